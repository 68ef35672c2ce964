#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds culimbo and all its test programs with clang, where a warning is an error, and runs the unit tests and scenes of
# that build.  `make check` uses the compiler that the tree is configured with, which is gcc unless somebody says otherwise.
#
#	run.sh [BUILD_DIR]	(default: build; make check-clang)
#
# Builds in BUILD_DIR/clang, with the CUDA headers that BUILD_DIR is configured with, and writes nowhere else but to a
# scratch folder of the scenes.  Every step has a deadline.
set -u
export LC_ALL=C
unset LD_PRELOAD "${!CULIMBO_@}"

build=$(cd "${1:-${top_builddir:-build}}" 2>/dev/null && pwd) || { echo "Bail out! no build tree in ${1:-build}"; exit 1; }
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
clang=$build/clang
scenes='reuse-*'

command -v clang >/dev/null || { echo "1..0 # SKIP there is no clang"; exit 0; }
mkdir -p "$clang" && cd "$clang" || exit 1

number=0 failures=0
ok()
{
	number=$((number + 1))
	[ "$1" -eq 0 ] || { failures=$((failures + 1)); printf 'not '; }
	printf 'ok %d - %s\n' "$number" "$2"
}

# Reads TAP from FILE, and prints it with new numbers; each name begins with WHERE.  STATUS is that of what printed it.  One
# line more fails if it ended badly without a failed test, or printed other than as many tests as it planned.
renumber() # WHERE STATUS FILE
{
	local line had=$number failed=$failures plan=none

	while IFS= read -r line || [ -n "$line" ]; do
		case $line in
		'ok '* | 'not ok '*'# SKIP'*) ok 0 "$1: $(sed 's/^\(not \)\?ok \([0-9]* \)\?\(- \)\?//' <<<"$line")" ;;
		'not ok '*) ok 1 "$1: $(sed 's/^not ok \([0-9]* \)\?\(- \)\?//' <<<"$line")" ;;
		1..*) plan=${line#1..} plan=${plan%% *} ;;
		'#'*) printf '%s\n' "$line" ;;
		esac
	done <"$3"
	[ "$failures" -eq "$failed" ] || return
	[ "$2" -eq 0 ] || { ok 1 "$1 ends well ($2)"; return; }
	[ "$plan" = $((number - had)) ] || ok 1 "$1 prints its $plan tests ($((number - had)))"
}

make_it()
{
	if [ ! -e Makefile ] || [ "$source/configure" -nt config.status ]; then
		timeout 200 "$source/configure" -q -C --with-cuda="$(sed -n 's/^CUDA_HOME_DIR = //p' "$build/Makefile")" \
			CC=clang CFLAGS='-g -O1' || return
	fi
	# (one after the other: "all" starts a make of its own)
	timeout 400 make -s -j"${MAKE_JOBS:-2}" all CC=clang CFLAGS='-g -O1 -Werror' &&
		timeout 600 make -s -j"${MAKE_JOBS:-2}" check TESTS= CC=clang CFLAGS='-g -O1 -Werror'
}

make_it >make.log 2>&1
status=$?
ok "$status" "clang builds everything, without a warning (see $clang/make.log)"
if [ "$status" -ne 0 ]; then
	tail -n 20 make.log | sed 's/^/# /'
	echo "1..$number"
	exit 1
fi
units=0
for unit in tests/unit/test_*; do
	[ -f "$unit" ] && [ -x "$unit" ] && [[ $unit != *.* ]] && [ -e "$source/$unit.c" ] || continue
	units=$((units + 1))
	CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 150 "$unit" >unit.out 2>"${unit##*/}.err" </dev/null
	renumber "${unit##*/}" $? unit.out
done
[ "$units" -gt 0 ]
ok $? "there are unit tests"
timeout -k 5 200 sh "$source/tests/e2e/run.sh" "$clang" "$scenes" >scenes.out 2>&1 </dev/null
renumber scenes $? scenes.out
echo "1..$number"
echo "# clang: $number tests, $failures failed, in $SECONDS s"
[ "$failures" -eq 0 ]
