#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Plays a program's scenes on the simulated driver, one after the other:
# play.sh PROGRAM [PATTERN].  The program is one like those of tests/e2e.  Prints TAP.
#
# Must always hold: each scene has its own folder, with a CULIMBO_DIR and a
# CULIMBO_SIM_DIR, which is removed afterwards.  Each scene has a deadline.
set -u
program=${1:?usage: play.sh PROGRAM [PATTERN]}
pattern=${2:-*}
seconds=120 # for one scene

unset E2E_GPU TEST_DOOR
# The files of killed processes are removed at once: tests count files.  tests/tools/dead.bats tests the default.
export CULIMBO_KEEP_DEAD=0
export E2E_ON=simulated E2E_BUILD=${top_builddir:?}
E2E_TMP=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/culimbo-play.XXXXXX") || exit 99
export E2E_TMP
trap '[ -n "${E2E_KEEP-}" ] || rm -rf "$E2E_TMP"' EXIT
trap 'exit 130' HUP INT TERM

number=0 failed=0
E2E_SCENE_DIR=$E2E_TMP "$program" --list > "$E2E_TMP/all" || exit 99
while read -r name _; do
	# shellcheck disable=SC2053,SC2254 # it is a pattern
	case $name in $pattern) ;; *) continue ;; esac
	export E2E_SCENE_DIR=$E2E_TMP/$name
	mkdir "$E2E_SCENE_DIR" || exit 99
	CULIMBO_DIR=$E2E_SCENE_DIR/limbo CULIMBO_SIM_DIR=$E2E_SCENE_DIR/sim \
		timeout -k 5 "$seconds" "$program" "$name" > "$E2E_SCENE_DIR/result" 2>&1 < /dev/null
	status=$?
	echo "# scene $name"
	lines=0 bad=0
	while IFS= read -r line; do
		case $line in
		"ok - "* | "not ok - "*)
			number=$((number + 1))
			lines=$((lines + 1))
			printf '%s\n' "${line/ok - /ok $number - }"
			case $line in
			"not ok"*) bad=1 ;;
			esac
			;;
		*) printf '# %s\n' "$line" ;;
		esac
	done < "$E2E_SCENE_DIR/result"
	if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$lines" -eq 0 ]; }; then
		number=$((number + 1)) bad=1
		echo "not ok $number - scene $name ends well and says something (status $status)"
	fi
	if [ "$bad" -ne 0 ]; then
		failed=1
		for log in "$E2E_SCENE_DIR"/*.err; do
			[ ! -s "$log" ] || { echo "# ${log##*/}:"; head -n 20 "$log" | cut -c1-300 | sed 's/^/#   /'; }
		done
	fi
done < "$E2E_TMP/all"
echo "1..$number"
[ "$number" -gt 0 ] && [ "$failed" -eq 0 ]
