#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# doc/json.md lists the keys of all JSON that the commands print, and no others.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

page=$top_srcdir/doc/json.md

setup() {
	common_setup
	share_setup
	export CULIMBO_GRACE=1h
}
teardown() {
	share_teardown
}

# columns COMMAND: all of them, for -o
columns() {
	"$C" help "$1" | sed -n '/^Columns of -o/,/^$/s/^  [* ] \([A-Z]\{2,\}\) .*/\1/p' | paste -sd,
}
# keys: the paths of all members of the JSON on stdin, a[].b
keys() {
	jq -r '[paths | map(if type == "number" then "[]" else "." + . end) | join("") | ltrimstr(".")] | unique[]' |
		grep -v '\]$' | sort -u > all_paths
	# those that have others below them are lists and objects
	awk '{ path[NR] = $0 } END { for (i = 1; i <= NR; i++) { inner = 0
		for (j = 1; j <= NR; j++) if (index(path[j], path[i] ".") == 1 || index(path[j], path[i] "[") == 1) inner = 1
		if (!inner) print path[i] } }' all_paths
}
# on_page HEADING [sometimes]: the keys there, old ones too
on_page() {
	awk -v heading="## culimbo $1" '/^## / { on = $0 == heading } on' "$page" |
		awk -F'|' -v some="${2-}" '/^\| `/ && (!some || $6 !~ /sometimes/) {
			gsub(/[` ]/, "", $2); gsub(/[` ]/, "", $5); print $2
			prefix = $2; sub(/[^.]*$/, "", prefix)
			if ($5) print prefix $5 }' | sort -u
}
# compare HEADING: with the file `printed`
compare() {
	# lists that are empty here
	grep -vxE "${2:-none}" printed > printed.here || :
	on_page "$1" > known
	on_page "$1" not_sometimes > always
	[ -s known ]
	diff <(comm -23 printed.here known) /dev/null || { echo "$1: printed, and not in doc/json.md"; false; }
	diff <(comm -13 printed.here always) /dev/null || { echo "$1: in doc/json.md, and not printed"; false; }
}

@test "doc/json.md has exactly the keys that are printed" {
	start P
	start C
	tell P "export 4096 2"
	tell C "open $SAID"
	tell P "free 2"
	tell P "event"
	for command in ps top blocks gc config doctor; do
		once=()
		[ $command != top ] || once=(-n 1)
		"$C" $command "${once[@]}" --json -o "$(columns $command)" | keys > printed || :
		compare $command
	done
	"$C" ps --gpus --json | keys > printed
	compare "ps --gpus"
	"$C" show "${PID[P]}" --json > P.json
	"$C" show "${PID[C]}" --json > C.json
	cat P.json C.json | keys > printed
	compare "show PID" "imports|held_by|blocks"
	id=$("$C" blocks --raw --noheadings -o ID --state=limbo-held)
	"$C" show "$id" --json | keys > printed
	compare "show BLOCK"
	"$C" version --json | keys > printed
	compare version
	"$C" collect "${PID[P]}" --json | keys > printed
	compare collect
	"$C" blocks --group-by=PID --json | keys > printed
	[ "$(xargs < printed)" = "groups[].blocks groups[].pid groups[].sum groups[].sum_bytes" ]
}

@test "doc/json.md has exactly the keys of the report's schema" {
	jq -r '[.. | .properties? // empty | keys[]] | unique[]' "$top_srcdir/doc/report.schema.json" | sort > schema
	awk '/^## / { on = /CULIMBO_REPORT_FORMAT/ } on' "$page" | sed -n 's/^| `\([^`]*\)`.*/\1/p' | sort > known
	diff schema known
	# the text that explains them has them too
	while read -r key; do
		[ "$key" = type ] || grep -q "\`$key\`\|\"${key#o*_}\"" "$top_srcdir/doc/report-format.md" || echo "$key"
	done < known > unexplained
	cat unexplained
	[ ! -s unexplained ]
}

@test "an old key and the new one have the same value, with any number of lines" {
	start P
	start C
	tell P "export 4096 3"
	tell C "open $SAID"
	for n in 3 1500; do
		"$C" ps --json | jq -e --argjson p "${PID[P]}" --argjson n $n '.processes[] | select(.pid == $p) |
			.exported == $n and .exported_blocks == $n and .held == 1 and .held_blocks == 1 and .limbo_bytes == 0 and
			.limbobytes == 0 and .age == .age_seconds'
		"$C" blocks --json | jq -e --argjson n $n '.blocks | length == $n and
			all(.[]; .exported == .exported_seconds and .freed == .freed_seconds and .heldby == .first_holder)'
		[ $n != 3 ] || tell P "export 4096 1497"
	done
	# no object has a name twice
	"$C" show "${PID[P]}" --json > P.json
	python3 - P.json <<-'END'
		import json, sys
		def once(pairs):
		    names = [name for name, _ in pairs]
		    assert len(names) == len(set(names)), names
		    return dict(pairs)
		json.load(open(sys.argv[1]), object_pairs_hook=once)
	END
}
