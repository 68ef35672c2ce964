#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154
# (top_srcdir and top_builddir are of the test environment)
# all.sh: which suites it runs, and when it stops.  It runs none here.  And the order of variants in ucx.sh and share_cycle.py.

setup() {
	all=$top_srcdir/tests/gpu/all.sh
	cd "$BATS_TEST_TMPDIR" || return
}

@test "--list prints every suite; with --only those whose names match a pattern" {
	run bash "$all" --list
	[ "$status" -eq 0 ]
	[[ $output == *"tests-gpu.tap "* && $output == *"ucx-perf.txt "* && $output == *"two-matrix.tap "* ]]
	run bash "$all" --only 'ucx-* torture.tap' --list
	[ "$status" -eq 0 ]
	[ "$(grep -o '^  [^ ]*' <<< "$output" | paste -sd' ')" = "  ucx-gtest.txt   ucx-perf.txt   torture.tap" ]
}

@test "an unknown part, and a time that is no number, are named" {
	run bash "$all" alone,beside,tims "$top_builddir" out
	[ "$status" -eq 2 ]
	[[ $output == *"there is no part 'tims'"* && $output == *"PART is alone, scenes, beside, times, torture or two"* ]]
	run bash "$all" --seconds 10m alone "$top_builddir" out
	[ "$status" -eq 2 ]
	[[ $output == *"--seconds '10m': a number of seconds is wanted"* ]]
	run bash "$all" , "$top_builddir" out
	[ "$status" -eq 2 ]
	[[ $output == *"PART is empty"* ]]
}

@test "where no suite has the name that --only wants, that is a failure" {
	run bash "$all" --simulate --only hand-over --seconds 099 alone,times "$top_builddir" out
	[ "$status" -eq 1 ]
	[ "$(cat out/alone-times.summary)" = "no suite of alone times has a name like 'hand-over': see --list" ]
}

@test "a suite that has no time left is not run, and the summary says so" {
	run bash "$all" --simulate --only hand-over.txt --seconds 10 alone,beside "$top_builddir" out
	[ "$status" -eq 1 ]
	[ "$(cat out/alone-beside.summary)" = "hand-over.txt: not run, the time is over" ]
}

@test "ucx.sh: in three rounds, and backwards in the next three, each variant has each place" {
	eval "$(sed -n '/^order_of()/,/^}/p' "$top_srcdir/tests/gpu/ucx.sh")"
	for round in 1 2 3 4 5 6; do
		order_of $round bare culimbo again | paste -sd' '
	done > orders
	[ "$(sort -u orders | wc -l)" -eq 6 ]
	for column in 1 2 3; do
		[ "$(cut -d' ' -f$column orders | sort | uniq -c | sed 's/^ *//' | paste -sd' ')" = "2 again 2 bare 2 culimbo" ]
	done
	# from the fourth round on the side questions leave the order to the others
	for round in 4 5 6; do
		order_of $round bare culimbo none-bare again none-culimbo | paste -sd' '
	done > orders
	[ "$(cut -d' ' -f1 orders | sort | paste -sd' ')" = "again bare culimbo" ]
}

@test "share_cycle.py: in three rounds that are played, and backwards in the next three, each variant has each place" {
	# quick settings play in each round, slow ones in one of three
	for each in 1 3; do
		PYTHONDONTWRITEBYTECODE=1 python3 -c '
import sys
sys.path.insert(0, sys.argv[1])
from share_cycle import is_played, order_of
for number in [n for n in range(30) if is_played(n, int(sys.argv[2]))][:6]:
    print(*order_of(["bare", "culimbo", "again"], number))' "$top_srcdir/tests/bench" $each > orders
		[ "$(wc -l < orders)" -eq 6 ]
		for column in 1 2 3; do
			[ "$(cut -d' ' -f$column orders | sort | uniq -c | sed 's/^ *//' | paste -sd' ')" = "2 again 2 bare 2 culimbo" ]
		done
	done
}

@test "share_cycle.py --beside: another library plays by turns; a bad one is named" {
	cycle() { python3 "$top_srcdir/tests/bench/share_cycle.py" --rounds 1 --seconds 0.05 --limit 1 --sizes 1K --consumers 1 --work 0 "$@"; }
	cp "$top_builddir/.libs/libculimbo.so" other.so
	run cycle --beside before=other.so "$top_builddir"
	grep -q '^# before ' <<< "$output"
	echo "no library" > text.so
	run cycle --beside before=text.so "$top_builddir"
	[ "$status" -eq 1 ]
	[[ "$output" == *"before: has not loaded "*"/text.so"* ]]
	run cycle --beside before=nowhere.so "$top_builddir"
	[ "$status" -eq 2 ]
	[[ "$output" == *"there is no library 'nowhere.so'"* ]]
	run cycle --beside culimbo=other.so "$top_builddir"
	[ "$status" -eq 2 ]
	[[ "$output" == *"'culimbo=other.so' is not NAME=LIBRARY with a name of its own"* ]]
	run cycle --check --beside before=other.so "$top_builddir"
	[ "$status" -eq 2 ]
	[[ "$output" == *"--beside plays neither with --check nor with --profile"* ]]
}
