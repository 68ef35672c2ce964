#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests that need a GPU.  Prints TAP, with a table of clients and results.
#
#	bash tests/gpu/run.sh [BUILD_DIR] (default: build)
#
# The build tree must have .libs/libculimbo.so, tools/culimbo and the programs of
# tests/e2e.  This script builds its own programs with nvcc into BUILD_DIR/tests/gpu.
# A client is a program that knows nothing of culimbo; it runs bare and under
# `culimbo run --`.
#
# Rules: A client that fails or hangs does not stop the others.  Everything has a
# time limit, the whole run GPU_TEST_SECONDS (default 480).  With GPU_TEST_SCENES=no the end-to-end
# scenes are not run: on a host whose driver is slow they take longer than all else.  No process is left: each
# has the run's name in its environment and is killed at the end.  No file is left
# in /dev/shm.  No setting of the GPU is changed.  The exit status is 0 only when
# nothing failed.  A test that needs what the machine lacks is skipped, with the reason.

set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD "${!CULIMBO_@}"
# files of killed processes go at once, because this script counts files; tests/tools/dead.bats tests the default
export CULIMBO_KEEP_DEAD=0

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
build=$(cd "${1:-build}" 2>/dev/null && pwd) || {
	echo "Bail out! no build tree in ${1:-build}"
	exit 2
}
culimbo=$build/tools/culimbo
programs=$build/tests/gpu
bare_by=() preloaded_by=("$culimbo" run --)
deadline=$((SECONDS + ${GPU_TEST_SECONDS:-480}))

mkdir -p "$programs" || exit 2
logs=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-gpu.XXXXXX") || exit 2
export CUPY_CACHE_DIR=$logs/cupy NUMBA_CACHE_DIR=$logs/numba
# shellcheck source=tests/gpu/clients.bash
. "$here/clients.bash"

shm_files()
{
	find /dev/shm -maxdepth 2 -path '/dev/shm/culimbo-*/*' 2>/dev/null | sort
}

# ------------------------------------------------------------------- the head

echo "TAP version 13"
note "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
note "kernel: $(uname -srm)"
if ! command -v nvidia-smi >/dev/null; then
	echo "Bail out! no nvidia-smi: this needs a machine with an NVIDIA GPU"
	exit 2
fi
timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader |
	sed 's/^/# GPU, driver, memory: /'
note "nvcc: $(nvcc --version 2>/dev/null | sed -n 's/.*release \([^,]*\).*/\1/p')"
note "culimbo: $("$culimbo" --version 2>&1 | head -n 1)"
[ -x "$culimbo" ] && [ -e "$build/.libs/libculimbo.so" ]
check $? "the build tree has tools/culimbo and .libs/libculimbo.so"
shm_before=$(shm_files)
[ -n "$shm_before" ] && note "in /dev/shm before: $(wc -l <<<"$shm_before") files of culimbo"

# ------------------------------------------------------------------ 0. build

# compile NAME SOURCE FLAGS...: runs in the background; built() checks the result
declare -A compiling=()
compile()
{
	local name=$1 source=$2 libs rpath=()
	shift 2

	for libs in "$cuda"/lib64 "$cuda"/targets/*/lib "$cuda"/lib; do
		[ -e "$libs/libcudart.so" ] && rpath+=(-L"$libs" -Xlinker -rpath -Xlinker "$libs")
	done
	rm -f "$programs/$name"
	timeout -k 3 120 nvcc -O2 -std=c++17 -arch=sm_90 "$@" "${rpath[@]}" \
		-o "$programs/$name" "$here/$source" >"$logs/nvcc-$name" 2>&1 &
	compiling[$name]=$!
}

# built NAME: true when it was compiled just now, or earlier on a machine without nvcc
built()
{
	[ -x "$programs/$1" ]
}

if command -v nvcc >/dev/null; then
	cuda=$(cd "$(dirname "$(readlink -f "$(command -v nvcc)")")/.." && pwd)
	compile share-static share.cu
	compile share-shared share.cu -cudart shared
	compile killed killed.cu
	compile freewait freewait.cu
	compile pair pair.cu
	for name in share-static share-shared killed freewait pair; do
		wait "${compiling[$name]}"
		check $? "nvcc builds $name" || show "$logs/nvcc-$name" nvcc
	done
else
	skip "nvcc builds the CUDA programs" "no nvcc; what an earlier run built is used"
fi

# ------------------------------------------------------------ 1. conformance

note ""
note "1. the facts about the driver, bare"
conformance=$programs/conformance
if [ ! -x "$conformance" ] && [ -e "$here/conformance.c" ]; then
	timeout 60 "${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -I"$here/../.." -I"$build" \
		${cuda:+-I"$cuda/include"} -I/usr/local/cuda/include \
		-o "$conformance" "$here"/conformance*.c -ldl -lpthread >"$logs/cc" 2>&1 ||
		show "$logs/cc" cc
fi
if [ -x "$conformance" ]; then
	run conformance 180 "$conformance"
	nested "$out"
	summary=$(tap_summary "$out") && [ "$rc" -eq 0 ]
	check $? "conformance: $summary" || show_run
else
	check 1 "conformance: the program is there"
fi

# ------------------------------------------------------------------- 2. e2e

note ""
note "2. the end-to-end scenarios on this GPU"
if [ "${GPU_TEST_SCENES-}" = no ]; then
	note "not here: GPU_TEST_SCENES=no"
elif [ -e "$here/../e2e/run.sh" ]; then
	# a scene starts processes that wait for each other most of the time
	jobs=$(($(nproc) / 2))
	E2E_SECONDS=200 E2E_JOBS=$((jobs < 2 ? 2 : jobs > 8 ? 8 : jobs)) run e2e 560 bash "$here/../e2e/run.sh" --gpu "$build"
	nested "$out"
	summary=$(tap_summary "$out") && [ "$rc" -eq 0 ]
	check $? "end to end: $summary, $took s" || show_run
else
	check 1 "end to end: tests/e2e/run.sh is there"
fi

TOP_BUILDDIR=$build run demo 100 sh "$here/../e2e/demo.sh" --gpu
sed 's/^/# /' "$out"
grep -q '^   CORRUPTED: ' "$out" && grep -q '^   right: ' "$out" && [ "$rc" -eq 0 ]
check $? "the demo: corrupted bare, right with culimbo" || show_run

# --------------------------------------------------------------- 3. clients

note ""
note "3. unmodified clients, bare and preloaded"
for kind in static shared; do
	if built share-$kind; then
		client "cudart-$kind" foreign 40 "$programs/share-$kind" "cudart-$kind"
	else
		check 1 "cudart-$kind: the program is there"
	fi
done
for program in "$programs"/runtimes/share-*; do
	[ -x "$program" ] || continue
	client "cudart-${program##*/share-}" foreign 40 "$program" "${program##*/}"
done
python_client bindings cuda.bindings foreign 40 "$here/share.py" bindings
python_client cupy cupy - 60 "$here/share.py" cupy
python_client cupy-pool cupy - 60 "$here/share.py" cupy-pool
python_client numba numba.cuda - 60 "$here/share.py" numba
python_client torch torch - 90 "$here/share_torch.py"

# ------------------------------------------------- 4. the consumer is killed

note ""
note "4. a consumer killed by SIGKILL while its kernel writes into the imported block"

# killed_run NAME SIZE ROUNDS HELD_MS GRACE
killed_run()
{
	local worst foreign

	CULIMBO_GRACE=$5 run "$1" 40 "$culimbo" run -- "$programs/killed" "$2" "$3" "$4"
	sed 's/^/# /' "$out"
	worst=$(sed -n 's/.* worst_ms=\([0-9]*\) .*/\1/p' "$out")
	foreign=$(sed -n 's/.* worst_ms=.* foreign=\([0-9]*\)$/\1/p' "$out")
	[ "$rc" -eq 0 ] && [ "${foreign:-1}" -eq 0 ] && ! grep -q never "$out"
	check $? "killed, $1: no byte of the dead process in the next owner's memory" || show_run
	[ "$rc" -eq 0 ] && [ "${worst:-9999}" -lt 1000 ]
	check $? "killed, $1: back within 1 s of the kill (worst: ${worst:-?} ms)"
}

if built killed; then
	run killed-bare 40 "$programs/killed" small 2
	sed 's/^/# bare (the control): /' "$out"
	check "$rc" "killed: the control runs bare" || show_run
	killed_run killed-small small 4 0 0
	killed_run killed-big big 3 0 0
	killed_run killed-small-grace-over small 1 2100 2s
else
	check 1 "killed: the program is there"
fi

# ----------------------------------------------- 5. a deferred free waits too

note ""
note "5. the time of a free behind a kernel of 200 ms on another stream"
if built freewait; then
	run freewait-bare 40 "$programs/freewait"
	check "$rc" "freewait: runs bare" || show_run all
	bare_out=$out
	run freewait-preloaded 40 "$culimbo" run -- "$programs/freewait"
	check "$rc" "freewait: runs preloaded" || show_run all
	for kind in never-exported held-small held-big held-async held-idle; do
		bare=$(sed -n "s/.*kind=$kind free_ms=//p" "$bare_out")
		ours=$(sed -n "s/.*kind=$kind free_ms=//p" "$out")
		awk -v bare="${bare:--1000}" -v ours="${ours:-1000}" \
			'BEGIN { d = ours - bare; exit !(d > -20 && d < 50) }'
		check $? "freewait: $kind, ${ours:-?} ms preloaded, ${bare:-?} ms bare"
	done
else
	check 1 "freewait: the program is there"
fi

# ------------------------------------------------------------ 6. a first look

note ""
note "6. cudaMalloc and cudaFree of 4 KiB, never exported (a quick check, not the benchmark)"
if built pair; then
	bare_us='' ours_us=''
	for i in 1 2 3; do
		run "pair-bare-$i" 20 "$programs/pair"
		bare_us+=$(sed -n 's/pair_us=//p' "$out")$'\n'
		run "pair-preloaded-$i" 20 "$culimbo" run -- "$programs/pair"
		ours_us+=$(sed -n 's/pair_us=//p' "$out")$'\n'
	done
	bare=$(sort -n <<<"${bare_us%$'\n'}" | sed -n 2p)
	ours=$(sort -n <<<"${ours_us%$'\n'}" | sed -n 2p)
	note "bare, us:      $(paste -sd' ' - <<<"${bare_us%$'\n'}")"
	note "preloaded, us: $(paste -sd' ' - <<<"${ours_us%$'\n'}")"
	note "ratio of the medians: $(awk -v a="${ours:-0}" -v b="${bare:-0}" \
		'BEGIN { if (a > 0 && b > 0) printf "%.3f", a / b; else print "?" }')"
else
	note "the program was not built"
fi

# --------------------------------------------------- 7. who shares nothing

note ""
note "7. PyTorch programs that share nothing"

# quiet NAME COMMAND...: checks for the same output, no message and no file
quiet()
{
	local name=$1 bare_rc bare_out bare_err
	shift

	run "$name-bare" 60 "$@"
	bare_rc=$rc bare_out=$out bare_err=$err
	CULIMBO_DIR=$logs/$name.dir run "$name-preloaded" 60 "$culimbo" run -- "$@"
	[ "$rc" -eq 0 ] && [ "$rc" -eq "$bare_rc" ] && cmp -s "$bare_out" "$out"
	check $? "$name: the same output and exit status" || show_run all
	cmp -s "$bare_err" "$err"
	check $? "$name: no message" || show_run
	[ ! -e "$logs/$name.dir" ]
	check $? "$name: no file" || find "$logs/$name.dir" | sed 's/^/# /'
}

missing=$(python_lacks torch)
if [ -n "$missing" ]; then
	skip "import torch" "$missing"
else
	quiet import-torch python3 -c 'import torch'
	quiet matmul python3 "$here/matmul.py"
fi

# ------------------------------------------------- 8. beside others, and at -O0

note ""
note "8. built at -O0, under other allocators, beside another dlsym interposer"
run beside 120 bash "$here/beside.sh" --gpu "$build"
nested "$out"
summary=$(tap_summary "$out") && [ "$rc" -eq 0 ]
check $? "beside others: $summary, $took s" || show_run

# --------------------------------------------------------------- what is left

note ""
note "what is left behind"
# files of killed exporters are removed by the next process that shares: this one
if built share-static; then
	run last 40 "$culimbo" run -- "$programs/share-static" last
fi
shm_after=$(comm -13 <(echo "$shm_before") <(shm_files))
[ -z "$shm_after" ]
check $? "no file of culimbo in /dev/shm" || printf '%s\n' "$shm_after" | sed 's/^/#   /'
[ "$strays" -eq 0 ]
check $? "no process is left (killed: $strays)"

note ""
note "$(printf '%-14s %-8s %-10s %-12s %-10s %-16s %-16s %s' client bare preloaded \
	"same output" "with leak" "report: producer" "report: consumer" seconds)"
for line in "${table[@]}"; do
	note "$line"
done
echo "1..$number"
note "$passed passed, $failed failed, $skipped skipped, $SECONDS s"
[ "$failed" -eq 0 ]
