#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh obeys the list of allowed differences (doc/differences.md).  A difference without an entry is a
# failure.  An entry that names no rule is an error, which names the entry's line.
# Prints TAP.
set -u
# shellcheck source=tests/differential/common.sh
. "$(dirname "$0")/common.sh"
list=$here/../../doc/differences.md
share=''

play() { # SEED...: runs the seeds with the list $tmp/list
	DIFFERENTIAL_LIST=$tmp/list "$here/run.sh" --brief ${share:+"$share"} "$build" "$@" > "$tmp/out" 2>&1
}

# Seeds in which such a difference occurs; run.sh runs all of them.
seed_of() {
	case $1 in
	foreign) echo 321 ;;
	stale) echo 20 ;;
	own) echo 25 ;;
	freed) echo 16 ;;
	known) echo 78 ;;
	memory) echo 57 ;;
	twice) echo 11 ;;
	virtual) echo 5 ;;
	async) echo 3 ;;
	threshold) echo 575 ;;
	esac
}

# the backquotes are those of the page
rules=$(sed -n '/(not played)/d; s/^| `\([a-z]*\)`.*/\1/p' "$list")
for rule in $rules; do
	seed=$(seed_of "$rule")
	if [ -z "$seed" ]; then
		ok 1 "a seed is known for the rule '$rule'"
		continue
	fi
	case $rule in
	virtual | async | threshold) share=--share-all ;;
	*) share='' ;;
	esac
	cp "$list" "$tmp/list"
	play "$seed"
	ok $? "seed $seed is the same with and without culimbo: every difference is on the list"
	grep -v "^| \`$rule\`" "$list" > "$tmp/list"
	play "$seed"
	[ $? -eq 1 ] && grep -q "^# the rule '$rule' is not on the list" "$tmp/out"
	ok $? "without the entry '$rule' it fails, and the output names the rule"
done

share=''
{ cat "$list" && echo "| \`anything\` | everywhere |"; } > "$tmp/list"
play 1
[ $? -eq 2 ] && grep -q "^Bail out! $tmp/list:$(wc -l < "$tmp/list"): there is no rule 'anything'" "$tmp/out"
ok $? "an entry that names no rule is an error that names the line"
{ cat "$list" && grep "^| \`own\`" "$list"; } > "$tmp/list"
play 1
[ $? -eq 2 ] && grep -q "^Bail out! $tmp/list:$(wc -l < "$tmp/list"): 'own' is listed twice" "$tmp/out"
ok $? "an entry that is listed twice is an error"
echo "nothing" > "$tmp/list"
play 1
[ $? -eq 2 ] && grep -q "^Bail out! $tmp/list: it lists nothing" "$tmp/out"
ok $? "an empty list is an error"
finish
