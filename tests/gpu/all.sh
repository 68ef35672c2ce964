#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs everything that needs a GPU, in parts of less than ten minutes each:
#
#	bash tests/gpu/all.sh [--simulate] [--only PATTERNS] [--seconds N] PART BUILD_DIR OUT_DIR [CLIENTS_DIR]
#	bash tests/gpu/all.sh [--only PATTERNS] --list
#
# PART is alone, scenes, beside, times, torture or two, or several of them with commas between; README.md says what
# each shows.  PATTERNS are shell patterns of the file names that --list prints, with spaces between: only
# these suites are run.  With --seconds all of it ends within N seconds: a suite is killed when the time is over, and
# one that has no time left is "not run".  (ucx-perf.txt plays fewer rounds instead.)  What a suite prints goes to
# a file of its own in OUT_DIR, for doc/results/.  OUT_DIR/PART.summary has a line for each suite: its
# exit status, its time, its last line.  A suite that fails does not stop the others.  The exit status is
# 0 when none failed.
#
# CLIENTS_DIR may have the folders pools (pool_clients_get.sh), share (share_clients_get.sh) and ucx
# (ucx_get.sh).  Without one of them its suite is "not run".
#
# On a machine with two GPUs two parts can run at the same time, each with its own CUDA_VISIBLE_DEVICES.  The part two
# then runs what needs both GPUs, without that variable.
#
# --simulate runs the same commands on the simulated driver as far as they can, and each for a few seconds.
# It shows that no command line is wrong; it judges no times.
#
# Rules: Each suite has a time limit, and is killed with all its processes a few seconds later.  In the
# parts alone, times and torture one suite runs at a time; in beside all run at the same time.

set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD "${!CULIMBO_@}"

usage='usage: all.sh [--simulate] [--only PATTERNS] [--seconds N] PART[,PART...] BUILD_DIR OUT_DIR [CLIENTS_DIR], or all.sh --list
PART is alone, scenes, beside, times, torture or two'
all_parts='alone scenes beside times torture two'
simulate='' list='' only='' seconds=''
while [ $# -gt 0 ]; do
	case $1 in
	--simulate) simulate=1 ;;
	--list) list=1 ;;
	--only) only=${2-}; shift ;;
	--seconds)
		seconds=${2-}
		case $seconds in '' | *[!0-9]*) echo "all.sh: --seconds '$seconds': a number of seconds is wanted" >&2; exit 2 ;; esac
		seconds=$((10#$seconds))
		shift
		;;
	-*) echo "$usage" >&2; exit 2 ;;
	*) break ;;
	esac
	shift
done
if [ -n "$list" ]; then
	parts=() build=BUILD_DIR out=OUT_DIR clients=CLIENTS_DIR
else
	[ $# -eq 3 ] || [ $# -eq 4 ] || { echo "$usage" >&2; exit 2; }
	read -ra parts <<<"${1//,/ }"
	[ ${#parts[@]} -gt 0 ] || { echo "all.sh: PART is empty" >&2; echo "$usage" >&2; exit 2; }
	for part in "${parts[@]}"; do
		case " $all_parts " in *" $part "*) ;; *) echo "all.sh: there is no part '$part'" >&2; echo "$usage" >&2; exit 2 ;; esac
	done
	build=$(cd "$2" && pwd) || exit 2
	mkdir -p "$3" || exit 2
	out=$(cd "$3" && pwd) || exit 2
	clients=''
	[ -z "${4-}" ] || clients=$(cd "$4" && pwd) || exit 2
fi
gpu=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
tests=$(dirname "$gpu")
summary=$(IFS=-; echo "$out/${parts[*]}.summary") failed=0 waiting=()

# chosen FILE: true where --only does not leave this suite out
chosen()
{
	local pattern

	[ -n "$only" ] || return 0
	set -f
	for pattern in $only; do
		# shellcheck disable=SC2254 # it is a pattern
		case $1 in $pattern) set +f; return 0 ;; esac
	done
	set +f
	return 1
}

# at_most SECONDS KEPT: prints SECONDS, or what is left of --seconds but KEPT of it, if that is less
at_most()
{
	local left=$((${seconds:-1000000} - SECONDS - $2))

	echo $((left < $1 ? left : $1))
}

# suite FILE SECONDS COMMAND...: runs the command, or prints it with --list.  Its status goes to FILE.status
suite()
{
	local file=$1 limit=$2 began=$SECONDS status
	shift 2

	chosen "$file" || return 0
	# (it is killed up to 10 s after its limit)
	[ -n "$list" ] || limit=$(at_most "$limit" 12)
	if [ "$limit" -lt 5 ]; then
		echo "$file: not run, the time is over" >>"$summary"
		return 1
	fi
	if [ -n "$list" ]; then
		printf '  %-18s %4s s  %s\n' "$file" "$limit" "$*"
		return
	fi
	timeout -k 10 "$limit" env "$@" >"$out/$file" 2>&1 </dev/null
	status=$?
	printf '%-20s status %3d, %3d s: %s\n' "$file" "$status" $((SECONDS - began)) "$(tail -n 1 "$out/$file" | cut -c 1-120)" \
		>>"$summary"
	return "$status"
}

# beside FILE SECONDS COMMAND...: the same, while others run
beside()
{
	if [ -n "$list" ]; then
		suite "$@"
		return
	fi
	suite "$@" &
	waiting+=($!)
}

run()
{
	suite "$@" || failed=1
}

# with FOLDER: true if CLIENTS_DIR has it; else the suite $2 is not run
with()
{
	[ -z "$list" ] || return 0
	chosen "$2" || return 1
	[ -n "$clients" ] && [ -d "$clients/$1" ] && return 0
	echo "$2: not run, there is no folder $1 in CLIENTS_DIR" >>"$summary"
	return 1
}

# What --simulate changes: no --gpu, few seconds
on_gpu=(--gpu) long=320 half=200 simulated=()
if [ -n "$simulate" ]; then
	on_gpu=() long=5 half=5 simulated=(--simulate)
	# for the suites that have no option for it
	export CULIMBO_SIM_DIR="${TMPDIR:-/tmp}/culimbo-all-$$" top_builddir=$build
	[ -d /dev/shm ] && CULIMBO_SIM_DIR=/dev/shm/culimbo-all-$$
fi

alone()
{
	if [ -n "$simulate" ]; then
		run tests-gpu.tap 60 bash "$gpu/conformance.sh" "$build"
		run scenes.tap 60 bash "$tests/e2e/run.sh" "$build" 'reuse-*'
		run hand-over.txt 60 python3 "$tests/bench/hand_over.py" --check "$build"
		return
	fi
	run tests-gpu.tap 300 GPU_TEST_SCENES=no GPU_TEST_SECONDS=285 bash "$gpu/run.sh" "$build"
	# their processes poll: beside others one of them needs more than its time
	if with share share-ucx.tap; then
		run share-ucx.tap 300 GPU_TEST_SECONDS=290 SHARE_SECONDS=90 SHARE_ASYNC=1 bash "$gpu/share_clients.sh" --only 'ucx* nixl*' "$build" "$clients/share"
	fi
	run hand-over.txt 155 python3 "$tests/bench/hand_over.py" --gpu --seconds 120 "$build"
}

scenes()
{
	if [ -n "$simulate" ]; then
		run scenes.tap 60 bash "$tests/e2e/run.sh" "$build" 'async-*'
		return
	fi
	run scenes.tap 560 E2E_SECONDS=200 E2E_JOBS=8 bash "$tests/e2e/run.sh" --gpu "$build"
}

beside_each_other()
{
	local part_of=('torch-*' '[!t]* threads')

	beside differential-a.tap 380 bash "$tests/differential/run.sh" "${on_gpu[@]}" --seconds "$long" "$build"
	beside differential-b.tap 380 DIFFERENTIAL_POOLS=1 bash "$tests/differential/run.sh" "${on_gpu[@]}" --seconds "$long" "$build"
	beside differential-share.tap 260 bash "$tests/differential/run.sh" "${on_gpu[@]}" --share-all --seconds "$half" "$build"
	[ -z "$simulate" ] || part_of=('imports' 'server')
	beside matrix-torch.tap 500 MATRIX_SECONDS=3 GPU_TEST_SECONDS=480 bash "$gpu/matrix.sh" "${simulated[@]}" \
		--only "${part_of[0]}" "$build"
	beside matrix-rest.tap 400 MATRIX_SECONDS=3 GPU_TEST_SECONDS=380 bash "$gpu/matrix.sh" "${simulated[@]}" \
		--only "${part_of[1]}" "$build"
	if [ -n "$simulate" ]; then
		beside share-clients.tap 200 bash "$gpu/share_clients.sh" --simulate --only 'plain-*' "$build"
	elif with share share-clients.tap; then
		beside share-clients.tap 500 GPU_TEST_SECONDS=480 SHARE_SECONDS=90 SHARE_ASYNC=1 bash "$gpu/share_clients.sh" --only '[!un]* numba*' "$build" "$clients/share"
	fi
	if [ -z "$simulate" ] && with pools pools.tap; then
		beside pools.tap 570 GPU_TEST_SECONDS=555 POOL_ROUNDS=1 POOL_SUITE_SECONDS=270 \
			bash "$gpu/pool_clients.sh" "$build" "$clients/pools"
	fi
	if [ -z "$simulate" ] && with ucx ucx-gtest.txt; then
		beside ucx-gtest.txt 400 UCXTEST_ONLY=gtest UCXTEST_GTEST_SECONDS=180 bash "$gpu/ucx.sh" "$build" "$clients/ucx"
	fi
	for pid in "${waiting[@]}"; do
		wait "$pid" || failed=1
	done
}

times()
{
	local limit

	if [ -n "$simulate" ]; then
		run share-cycle.txt 100 python3 "$tests/bench/share_cycle.py" --check "$build"
		return
	fi
	if with ucx ucx-perf.txt; then
		run ucx-perf.txt 260 UCXTEST_ONLY=perf UCXTEST_ROUNDS="$out/ucx-rounds" UCXTEST_PERF_SECONDS="$(at_most 210 62)" UCXTEST_VARIANTS="bare culimbo again" bash "$gpu/ucx.sh" "$build" "$clients/ucx" 20
	fi
	# a third of that again, and 70 s for the bystanders
	limit=$((($(at_most 283 12) - 70) * 3 / 4))
	run share-cycle.txt 330 SHARE_CYCLE_LIMIT="$((limit < 10 ? 10 : limit))" SHARE_CYCLE_JSON="$out/share-cycle.json" bash "$gpu/share_cycle.sh" "$build" 99 0.25
	run bench.txt 90 BENCH_SECONDS=80 python3 "$tests/bench/bench.py" --gpu --quick --out "$out/bench" "$build"
}

torture()
{
	run torture.tap $((long + 60)) bash "$tests/torture/torture.sh" "${on_gpu[@]}" "$build" "$long"
	run torture-bare.tap $((half + 30)) TORTURE_POOLS=most bash "$tests/torture/torture.sh" "${on_gpu[@]}" --bare "$build" "$half"
}

# What needs two GPUs
two()
{
	local scene

	if [ -n "$simulate" ]; then
		run two-conformance.tap 60 bash "$gpu/conformance.sh" "$build"
	else
		run two-conformance.tap 60 "$build/tests/gpu/conformance"
	fi
	for scene in '*peers*' '*device*' 'async-capture-access' 'shared-hidden-neighbour'; do
		run "two-${scene//[^a-z-]/}.tap" 100 bash "$tests/e2e/run.sh" "${on_gpu[@]}" "$build" "$scene"
	done
	if [ -n "$simulate" ]; then
		run two-share.tap 60 bash "$gpu/share_clients.sh" --simulate --only 'plain-peer' "$build"
	elif with share two-share.tap; then
		run two-share.tap 100 GPU_TEST_SECONDS=90 bash "$gpu/share_clients.sh" --only '*-peer' "$build" "$clients/share"
	fi
	run two-matrix.tap 150 MATRIX_SECONDS=3 GPU_TEST_SECONDS=140 bash "$gpu/matrix.sh" "${simulated[@]}" --only 'devices torch-nccl-* torch-symmetric' "$build"
}

play()
{
	case $1 in
	alone) alone ;;
	scenes) scenes ;;
	beside) beside_each_other ;;
	times) times ;;
	torture) torture ;;
	two) two ;;
	esac
}

if [ -n "$list" ]; then
	for part in $all_parts; do
		echo "$part:"
		play "$part"
	done
elif [ -z "$simulate" ] && [ ! -e /dev/nvidiactl ]; then
	echo "Bail out! there is no GPU here (/dev/nvidiactl)"
	failed=2
else
	: >"$summary"
	for part in "${parts[@]}"; do
		play "$part"
	done
	[ -s "$summary" ] || { echo "no suite of ${parts[*]} has a name like '$only': see --list" >>"$summary"; failed=1; }
	[ -z "$simulate" ] || rm -rf "$CULIMBO_SIM_DIR"
	cat "$summary"
fi
exit "$failed"
