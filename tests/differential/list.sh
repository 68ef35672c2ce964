#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The list of what may differ (doc/differences.md) is what run.sh goes by: without an entry the
# difference is a failure, and an entry that names no rule is an error that names its line.
# Prints TAP.
set -u

here=$(cd "$(dirname "$0")" && pwd)
build=${1:-${top_builddir-}}
list=$here/../../doc/differences.md
tmp=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-list.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
number=0 failures=0

ok() { # STATUS TEXT
	number=$((number + 1))
	[ "$1" -eq 0 ] && echo "ok $number - $2" && return
	failures=$((failures + 1))
	echo "not ok $number - $2"
	sed 's/^/#   /' "$tmp/out"
}

play() { # SEED...: with the list $tmp/list
	DIFFERENTIAL_LIST=$tmp/list "$here/run.sh" --brief "$build" "$@" > "$tmp/out" 2>&1
}

# Seeds in which such a difference occurs: each is among what run.sh plays.
seed_of() {
	case $1 in
	foreign) echo 321 ;;
	stale) echo 20 ;;
	own) echo 25 ;;
	freed) echo 16 ;;
	known) echo 78 ;;
	memory) echo 57 ;;
	twice) echo 11 ;;
	esac
}

# shellcheck disable=SC2016 # the marks are those of the page
rules=$(sed -n '/(not played)/d; s/^| `\([a-z]*\)`.*/\1/p' "$list")
for rule in $rules; do
	seed=$(seed_of "$rule")
	if [ -z "$seed" ]; then
		ok 1 "a seed is known for the rule '$rule'"
		continue
	fi
	cp "$list" "$tmp/list"
	play "$seed"
	ok $? "seed $seed is the same with and without culimbo: all that differs is on the list"
	grep -v "^| \`$rule\`" "$list" > "$tmp/list"
	play "$seed"
	[ $? -eq 1 ] && grep -q "^# the rule '$rule' is not on the list" "$tmp/out"
	ok $? "without the entry '$rule' it fails, and says so"
done

{ cat "$list" && echo "| \`anything\` | everywhere |"; } > "$tmp/list"
play 1
[ $? -eq 2 ] && grep -q "^Bail out! $tmp/list:$(wc -l < "$tmp/list"): there is no rule 'anything'" "$tmp/out"
ok $? "an entry that names no rule is an error that names the line"
{ cat "$list" && grep "^| \`own\`" "$list"; } > "$tmp/list"
play 1
[ $? -eq 2 ] && grep -q "^Bail out! $tmp/list:$(wc -l < "$tmp/list"): 'own' is listed twice" "$tmp/out"
ok $? "so is one that is there twice"
echo "nothing" > "$tmp/list"
play 1
[ $? -eq 2 ] && grep -q "^Bail out! $tmp/list: it lists nothing" "$tmp/out"
ok $? "and an empty list"
echo "1..$number"
[ "$failures" -eq 0 ]
