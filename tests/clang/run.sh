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

# Reads TAP from stdin, and prints it with new numbers; each name begins with WHERE.
renumber() # WHERE
{
	local line

	while IFS= read -r line; do
		case $line in
		'ok '* | 'not ok '*'# SKIP'*) ok 0 "$1: $(sed 's/^\(not \)\?ok \([0-9]* \)\?\(- \)\?//' <<<"$line")" ;;
		'not ok '*) ok 1 "$1: $(sed 's/^not ok \([0-9]* \)\?\(- \)\?//' <<<"$line")" ;;
		'#'*) printf '%s\n' "$line" ;;
		esac
	done
}

make_it()
{
	if [ ! -e Makefile ] || [ "$source/configure" -nt config.status ]; then
		timeout 200 "$source/configure" -q -C --with-cuda="$(sed -n 's/^CUDA_HOME_DIR = //p' "$build/Makefile")" \
			CC=clang CFLAGS='-g -O1' || return
	fi
	# (one after the other: "all" starts a make of its own)
	timeout 400 make -s -j"${MAKE_JOBS:-2}" all CFLAGS='-g -O1 -Werror' &&
		timeout 600 make -s -j"${MAKE_JOBS:-2}" check TESTS= CFLAGS='-g -O1 -Werror'
}

make_it >make.log 2>&1
status=$?
ok "$status" "clang builds everything, without a warning (see $clang/make.log)"
if [ "$status" -ne 0 ]; then
	tail -n 20 make.log | sed 's/^/# /'
	echo "1..$number"
	exit 1
fi
for unit in tests/unit/test_*; do
	[ -f "$unit" ] && [ -x "$unit" ] && [[ $unit != *.* ]] || continue
	CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 150 "$unit" >unit.out 2>"${unit##*/}.err" </dev/null
	status=$?
	renumber "${unit##*/}" <unit.out
	[ "$status" -lt 124 ] || ok 1 "${unit##*/} comes to an end ($status)"
done
renumber scenes < <(timeout -k 5 200 sh "$source/tests/e2e/run.sh" "$clang" "$scenes" 2>&1)
echo "1..$number"
echo "# clang: $number tests, $failures failed, in $SECONDS s"
[ "$failures" -eq 0 ]
