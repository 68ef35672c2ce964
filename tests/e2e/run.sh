#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The end-to-end tests: run.sh [--gpu] [BUILD_DIR [PATTERN]]
#
# Runs all scenes, or those whose names match the shell pattern PATTERN, on the
# simulated driver, or with --gpu on this machine's driver and never on another.
# Prints TAP: a line for each assertion, and measurements as comments.
#
# Rules: Each scene has its own CULIMBO_DIR and CULIMBO_SIM_DIR in a folder that is
# removed afterwards, and a deadline.  No process of a scene outlives it.  Scenes
# that assert times or free memory run alone.  SIGTERM ends the scenes, and what they
# have printed so far is shown.
#
#   E2E_JOBS   how many of the other scenes run at once (4)
#   E2E_HOW    alone: only the scenes that run alone; any: only the others (all)
#   E2E_SECONDS  time limit of one scene (60)
#   E2E_UNDER  a command, such as valgrind with options, that runs each actor with culimbo
#   E2E_OLDER  the library of another culimbo: an older one, or one with another layout; scene pool-older plays it
#   E2E_KEEP   not empty: keep the folder and print its path
set -u

# the caller's settings of culimbo would reach the scenes
unset LD_PRELOAD
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
# files of killed processes go at once, because scenes count files; tests/tools/dead.bats tests the default
export CULIMBO_KEEP_DEAD=0
unset E2E_GPU TEST_DOOR

seconds=${E2E_SECONDS:-60}
case ${E2E_HOW-} in '' | alone | any) ;; *)
	echo "run.sh: E2E_HOW=$E2E_HOW: allowed are alone and any; all scenes run" >&2
	unset E2E_HOW
esac

# ------------------------------------------------- one scene (we call ourselves)
# Writes into $E2E_TMP/NAME: result (lines of TAP without numbers), status, took, *.err
if [ "${1-}" = --scene ]; then
	name=$2
	[ "${E2E_ON-}" != gpu ] || export E2E_GPU=1
	export E2E_SCENE_DIR="$E2E_TMP/$name"
	export CULIMBO_DIR="$E2E_SCENE_DIR/limbo" CULIMBO_SIM_DIR="$E2E_SCENE_DIR/sim"
	# as on a large device: 1/64 of the simulated device is less than the scenes' blocks
	export CULIMBO_GRACE_BYTES=256MiB
	mkdir "$E2E_SCENE_DIR" || exit 1
	start=$(date +%s%N)
	timeout -k 5 "$seconds" "$E2E_BUILD/tests/e2e/scenes" "$name" \
		> "$E2E_SCENE_DIR/result" 2>&1 < /dev/null &
	# timeout and the scene are a process group of their own; timeout passes SIGTERM on to it
	trap 'touch "$E2E_SCENE_DIR/stopped"; kill $! 2> /dev/null' TERM
	wait $!
	status=$?
	while kill -0 $! 2> /dev/null; do
		wait $!
		status=$?
	done
	[ ! -e "$E2E_SCENE_DIR/stopped" ] || status=stopped
	echo "$status" > "$E2E_SCENE_DIR/status"
	echo $((($(date +%s%N) - start) / 1000000)) > "$E2E_SCENE_DIR/took"
	exit 0
fi

# ---------------------------------------------------------------------- setting
usage() {
	echo "usage: run.sh [--gpu] [BUILD_DIR [PATTERN]]" >&2
	exit 2
}

E2E_ON=simulated
case ${1-} in
--gpu)
	E2E_ON=gpu
	shift
	;;
-*) usage ;;
esac
[ $# -le 2 ] || usage
build=${1:-${top_builddir-}}
pattern=${2:-*}
[ -n "$build" ] || usage
E2E_BUILD=$(cd "$build" && pwd) || exit 1
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
E2E_SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
export E2E_SOURCE

bail() {
	echo "Bail out! $*"
	exit 1
}
for part in tools/culimbo .libs/libculimbo.so tests/e2e/scenes tests/e2e/actor \
	tests/e2e/actor_linked; do
	[ -e "$E2E_BUILD/$part" ] || bail "there is no $E2E_BUILD/$part (make check builds it)"
done
if [ "$E2E_ON" = simulated ]; then
	part=tools/sim/.libs/libcuda.so.1
	[ -e "$E2E_BUILD/$part" ] || bail "there is no $E2E_BUILD/$part"
elif [ ! -e /dev/nvidiactl ]; then
	bail "there is no GPU here (/dev/nvidiactl)"
fi

shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
E2E_TMP=$(mktemp -d "$shared/culimbo-e2e.XXXXXX") || exit 1
export E2E_ON E2E_BUILD E2E_TMP
clean() {
	if [ -n "${E2E_KEEP-}" ]; then
		echo "# kept: $E2E_TMP"
	else
		rm -rf "$E2E_TMP"
	fi
}
# A shell runs its traps when the command in the foreground has ended.  So scenes run in the background.
running=''
stopped=''
stop() {
	stopped=1
	[ -z "$running" ] || kill "$running" 2> /dev/null
}
trap clean EXIT
trap 'exit 130' HUP INT
trap stop TERM

# play NAMES JOBS: runs the scenes whose names are in the file NAMES, or none after SIGTERM
play() {
	[ -z "$stopped" ] || return
	# setsid: one signal reaches xargs and all scenes
	setsid xargs -r -P "$2" -n 1 sh "$self" --scene < "$1" &
	running=$!
	# a signal ends the wait before the scenes have ended
	while kill -0 "$running" 2> /dev/null; do
		wait "$running"
		[ -z "$stopped" ] || kill -- "-$running" 2> /dev/null
	done
	running=''
}

# ---------------------------------------------------------------------- results
number=0
failures=0

ok() { # STATUS TEXT
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		failures=$((failures + 1))
		echo "not ok $number - $2"
	fi
}

comment() { # prints stdin as comments, but not more lines than given
	head -n "$1" | cut -c1-300 | sed 's/^/#   /'
}

# Prints the lines of a scene with numbers, and its log if an assertion failed.
show() { # NAME
	dir=$E2E_TMP/$1
	bad=0
	promises=0
	echo "# scene $1, $(cat "$dir/took" 2> /dev/null || echo '?') ms"
	while IFS= read -r line; do
		case $line in
		"ok - "*)
			ok 0 "${line#ok - }"
			promises=$((promises + 1))
			;;
		"not ok - "*)
			ok 1 "${line#not ok - }"
			bad=1
			;;
		"#"*) printf '%s\n' "$line" ;;
		*) printf '#   %s\n' "$line" ;;
		esac
	done < "$dir/result"
	status=$(cat "$dir/status" 2> /dev/null || echo stopped)
	if [ "$bad" -eq 0 ] && { [ "$status" != 0 ] || [ "$promises" -eq 0 ]; }; then
		case $status in
		124 | 137) ok 1 "scene $1 ends within $seconds s" ;;
		stopped) ok 1 "scene $1 ends before all scenes are ended from outside" ;;
		*) ok 1 "scene $1 exits with 0 and prints results (status $status)" ;;
		esac
		bad=1
	fi
	if [ "$bad" -ne 0 ]; then
		for log in "$dir"/*.err; do
			[ -s "$log" ] || continue
			echo "# $(basename "$log"):"
			comment 30 < "$log"
		done
	fi
}

# ----------------------------------------------------------------------- scenes
[ "$E2E_ON" != gpu ] || export E2E_GPU=1
E2E_SCENE_DIR=$E2E_TMP "$E2E_BUILD/tests/e2e/scenes" --list > "$E2E_TMP/all" || exit 1
unset E2E_GPU
while read -r name how; do
	# shellcheck disable=SC2254 # it is a pattern
	case $name in
	$pattern) case ${E2E_HOW:-$how} in "$how") echo "$name" >> "$E2E_TMP/$how" ;; esac ;;
	esac
done < "$E2E_TMP/all"
touch "$E2E_TMP/any" "$E2E_TMP/alone"

play "$E2E_TMP/any" "${E2E_JOBS:-4}"
play "$E2E_TMP/alone" 1
while read -r name how; do
	[ ! -d "$E2E_TMP/$name" ] || show "$name"
done < "$E2E_TMP/all"
if [ -n "$stopped" ]; then
	ok 1 "all scenes run before they are ended from outside"
	echo "1..$number"
	exit 1
fi

# ---------------------------------- programs that have nothing to do with CUDA
dir=$E2E_TMP/others
mkdir "$dir"

bare() {
	"$@"
}

preloaded() {
	if [ "$E2E_ON" = gpu ]; then
		CULIMBO_DIR=$dir/limbo "$E2E_BUILD/tools/culimbo" run -- "$@"
	else
		CULIMBO_DIR=$dir/limbo CULIMBO_SIM_DIR=$dir/sim \
			"$E2E_BUILD/tools/culimbo" run --simulate -- "$@"
	fi
}

other() { # NAME PROGRAM ARGUMENTS: runs the program with and without culimbo and compares
	what=$1
	shift
	if ! command -v "$1" > /dev/null; then
		number=$((number + 1))
		echo "ok $number - 13 $what # SKIP there is no $1"
		return
	fi
	for mode in bare preloaded; do
		(mkdir "$dir/work" && cd "$dir/work" && $mode timeout 20 "$@") \
			> "$dir/$mode.out" 2> "$dir/$mode.err" < /dev/null
		echo $? > "$dir/$mode.status"
		rm -rf "$dir/work"
	done
	cmp -s "$dir/bare.out" "$dir/preloaded.out" &&
		cmp -s "$dir/bare.err" "$dir/preloaded.err" &&
		cmp -s "$dir/bare.status" "$dir/preloaded.status"
	same=$?
	ok "$same" "13 $what: the same output, errors and status ($(cat "$dir/preloaded.status"))"
	if [ "$same" -ne 0 ]; then
		diff "$dir/bare.out" "$dir/preloaded.out" | comment 10
		diff "$dir/bare.err" "$dir/preloaded.err" | comment 10
	fi
	[ ! -e "$dir/limbo" ] && [ ! -e "$dir/sim" ]
	ok $? "13 $what: no file"
}

others() {
	preloaded sh -c 'cat /proc/$$/maps' 2> /dev/null | grep -q libculimbo.so
	ok $? "13 (the library is loaded into such programs)"
	# the inner bash expands it
	other "bash" bash -c '
		echo hello; for i in 1 2 3; do echo $((i * i)); done | sort -r
		(exit 3); echo "$?"; x=$(echo sub); echo "$x" >&2; exit 4'
	# shellcheck disable=SC2016
	other "bash, its threads and descriptors" bash -c '
		set -- /proc/$$/fd/*; echo "$# descriptors"
		while read -r key value; do
			[ "$key" != Threads: ] || echo "$value threads"
		done < "/proc/$$/status"'
	# shellcheck disable=SC2016
	other "git" sh -c '
		export GIT_CONFIG_NOSYSTEM=1 HOME=$PWD GIT_AUTHOR_DATE="1700000000 +0000"
		export GIT_COMMITTER_DATE="$GIT_AUTHOR_DATE"
		git -c init.defaultBranch=main init . | sed "s|in .*||"
		echo one > file && git add file
		git -c user.name=A -c user.email=a@b commit -qm first && git log --stat
		git status; git diff; git no-such-command'
	other "python3" python3 -c 1
	other "python3, its threads and descriptors" python3 -c '
import os
print(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))'
	other "python3 and its children" python3 -c '
import os, subprocess, sys, threading
print(subprocess.run(["echo", "child"], capture_output=True, text=True))
t = threading.Thread(target=print, args=("thread",))
t.start(); t.join()
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitpid(pid, 0)[1] >> 8)
sys.exit("an error")'
}

# shellcheck disable=SC2194,SC2254 # the pattern is what varies
case others in
$pattern)
	echo "# scene others: programs that have nothing to do with CUDA"
	others
	;;
esac

echo "1..$number"
[ "$failures" -eq 0 ] || echo "# $failures of $number failed"
[ "$failures" -eq 0 ] && [ "$number" -gt 0 ]
