#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154
# (top_srcdir is of the test environment)
# culimbo config: the values that the library would read, from the same table.
load common.bash

names() {
	sed -n 's/^OPTION([a-z_]*, "\([A-Z_]*\)".*/\1/p' "$top_srcdir/shim/base/options.def"
}

@test "every option of the table is listed, once, in its order" {
	[ "$(names | wc -l)" -ge 12 ]
	[ "$("$C" config --raw | tail -n +2 | cut -d' ' -f1)" = "$(names)" ]
	[ "$("$C" config --json | jq -r '.options[].name')" = "$(names)" ]
	[ "$("$C" config | tail -n +2 | cut -d' ' -f1)" = "$(names)" ]
}

@test "every option of the table is in the README's" {
	sed -n '/^## Options/,/^## [^O]/p' "$top_srcdir/README.md" > told
	for name in $(names); do
		grep -q "^|.*\`$name\`.*|" told || {
			echo "README.md, Options: no row has $name"
			false
		}
	done
}

@test "the simulated driver's options are known, and no others" {
	sed -n 's/^| `\(CULIMBO_SIM_[A-Z_]*\)`.*/\1/p' "$top_srcdir/tools/sim/README.md" > sim_names
	[ "$(wc -l < sim_names)" -ge 8 ]
	grep -oh '"CULIMBO_SIM_[A-Z_]*"' "$top_srcdir"/tools/sim/*.c | tr -d '"' | sort -u | diff - <(sort sim_names)
	while read -r name; do
		run --separate-stderr env "$name=1" "$C" config
		exits 0
		[ -z "$stderr" ]
	done < sim_names
	run --separate-stderr env CULIMBO_SIM_NOTHING=1 "$C" config
	[[ $stderr == *"CULIMBO_SIM_NOTHING is not an option"* ]]
}

@test "value and source follow the environment" {
	run env CULIMBO_GRACE=500ms CULIMBO_COLLECTOR=inline "$C" config --json
	exits 0
	jq -e '.options[] | select(.name == "CULIMBO_GRACE") |
		.value == "500ms" and .source == "environment" and .default == "2s" and
		.allowed == "0..1h"' <<< "$output"
	jq -e '.options[] | select(.name == "CULIMBO_COLLECTOR") | .value == "inline"' <<< "$output"
	jq -e '.options[] | select(.name == "CULIMBO_SETTLE") |
		.value == "250ms" and .source == "default"' <<< "$output"
	jq -e 'all(.options[]; .help | length > 10)' <<< "$output"
	# seconds are said to be seconds
	[ "$(CULIMBO_GRACE=5 "$C" config --raw --noheadings -o VALUE grace)" = 5s ]
	[ "$(CULIMBO_GRACE=0 "$C" config --raw --noheadings -o VALUE grace)" = 0 ]
	[ "$(CULIMBO_GRACE=0.5 "$C" config --raw --noheadings -o VALUE grace)" = 0.5s ]
}

@test "complaints go to stderr, the default is shown" {
	CULIMBO_GRACE=soon CULIMBO_GRAEC=1 "$C" config --json > out 2> err
	[ "$(wc -l < err)" -eq 2 ]
	grep -q 'culimbo config: CULIMBO_GRACE="soon" is not a duration' err
	grep -q 'did you mean CULIMBO_GRACE?' err
	jq -e '.options[] | select(.name == "CULIMBO_GRACE") |
		.value == "2s" and .source == "default"' out
}

@test "any text makes valid JSON" {
	run env CULIMBO_DIR=$'/a "b"\\c\td' "$C" config --json
	exits 0
	[ "$(jq -r '.options[] | select(.name == "CULIMBO_DIR").value' <<< "$output")" = \
		$'/a "b"\\c\td' ]
}

@test "--json and --raw exclude each other" {
	run "$C" config --json --raw
	exits 2
}

@test "-o chooses columns, +COL adds one, an unknown one is named with the most similar" {
	[ "$("$C" config -o value,NAME --noheadings --raw | head -n 1)" = "0 CULIMBO_DISABLE" ]
	[ "$("$C" config -o+name --raw | head -n 1)" = "$("$C" config --raw | head -n 1)" ]
	[ "$("$C" config -o NAME --json | jq -c '.options[0]')" = '{"name":"CULIMBO_DISABLE"}' ]
	run "$C" config -o NAME,VALEU
	exits 2
	has "unknown column 'VALEU'; did you mean 'VALUE'?"
	run "$C" config -o ''
	exits 2
}

@test "no control byte of a value reaches a terminal" {
	CULIMBO_DIR=$'/a\e[31m\x9b\xc2\x9b\xe2\x80\xaeb' "$C" config -o VALUE > out
	run cat out
	has "/a?[31m???b"
	if LC_ALL=C grep -q $'[\x01-\x09\x0b-\x1f\x7f-\xff]' out; then false; fi
}

@test "prints only the named options, with or without CULIMBO_, in upper or lower case" {
	[ "$("$C" config grace CULIMBO_DIR --raw --noheadings -o NAME | xargs)" = "CULIMBO_GRACE CULIMBO_DIR" ]
	run "$C" config grace grcae
	exits 2
	has "there is no option 'grcae'; did you mean 'GRACE'?"
	run "$C" config CULIMBO_GRAEC
	exits 2
	has "did you mean 'CULIMBO_GRACE'?"
	run "$C" config ''
	exits 2
}

@test "a terminal of 80 columns: nothing is wider, and an option's whole description is below it" {
	command -v script > /dev/null || skip "no script(1)"
	unset "${!CULIMBO_@}"
	TERM=xterm script -qec "stty cols 80 rows 24; '$C' config" typed < /dev/null | tr -d '\r' > seen
	[ "$(awk 'length > 80' seen | wc -l)" -eq 0 ]
	[ "$(wc -l < seen)" -lt $((3 * $(names | wc -l))) ]
	[ "$(grep -c '^CULIMBO_' seen)" -eq "$(names | wc -l)" ]
	grep -A 2 '^CULIMBO_DIR ' seen | grep -q '^    where exporter files live'
	# the same words as in a wide one
	[ "$(grep '^    ' seen | xargs -0 echo | tr -s ' \n' ' ')" = \
		" $("$C" config -o HELP --noheadings | tr -s ' \n' ' ')" ]
}

@test "a terminal of 80 columns: what has no room behind a long value stands below its heading" {
	command -v script > /dev/null || skip "no script(1)"
	unset "${!CULIMBO_@}"
	path=/dev/shm/$(printf '%040d' 0)
	CULIMBO_DIR=$path CULIMBO_TRACE=$path/$path TERM=xterm script -qec "stty cols 80 rows 24; '$C' config" typed < /dev/null |
		tr -d '\r' > seen
	grep -q "^CULIMBO_DIR *$path *\$" seen
	[ "$(sed "s, *\$,," seen | awk "length > 80")" = "CULIMBO_TRACE $(printf %13s "")$path/$path" ]
	awk '/^NAME/ { source = index($0, "SOURCE") } / environment / { n += index($0, "environment") == source } END { exit n != 2 }' seen
}
