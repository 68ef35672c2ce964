#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs common CUDA programs unmodified, each bare and under culimbo.  Prints TAP and
# a table of results, from which compatibility.py makes doc/compatibility.md.
#
#	bash tests/gpu/matrix.sh [--simulate] [--only PATTERN] [--list] [BUILD_DIR]
#
# Uses this machine's GPUs and what is installed.  With --simulate it uses the
# simulated driver with two devices, and only the clients that can run there.
# PATTERN is a shell pattern for the names that --list prints; several are separated by spaces.  MATRIX_SECONDS is
# how long the server shares (120), GPU_TEST_SECONDS the limit of the whole run
# (570); GPU_TEST_KEEP=1 keeps the logs.
#
# Rules, as in run.sh: A client that fails or hangs does not stop the others.  No
# process and no file is left.  No setting of a GPU is changed.  NVLink multicast
# stays off.  A client passes when stdout and exit status are the same under
# culimbo, except that no "result=" may be "foreign".  A client that cannot run
# here prints "skip=REASON" and exits with 77.

set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD PYTHONPATH "${!CULIMBO_@}"
# files of killed processes go at once, because this script counts files; tests/tools/dead.bats tests the default
export CULIMBO_KEEP_DEAD=0
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

simulate='' only='*' list=''
while [ $# -gt 0 ]; do
	case $1 in
	--simulate) simulate=--simulate ;;
	--only) only=${2-}; shift ;;
	--list) list=1 ;;
	-*) echo "usage: matrix.sh [--simulate] [--only PATTERN] [--list] [BUILD_DIR]" >&2; exit 2 ;;
	*) break ;;
	esac
	shift
done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
build=$(cd "${1:-${top_builddir:-build}}" 2>/dev/null && pwd) || [ -n "$list" ] || {
	echo "Bail out! no build tree in ${1:-build}"
	exit 2
}
[ -z "$list" ] || build=/nonexistent # with --list nothing is built or run
culimbo=$build/tools/culimbo
programs=$build/tests/gpu/matrix
# fetch in clients.bash reads it
packages=$build/tests/gpu/python
logs=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-matrix.XXXXXX") || exit 2
export CUPY_CACHE_DIR=$logs/cupy NUMBA_CACHE_DIR=$logs/numba
bare_by=() preloaded_by=("$culimbo" run --)
server_seconds=${MATRIX_SECONDS:-120}
if [ -n "$simulate" ]; then
	bare_by=("$culimbo" run --simulate --no-preload --)
	preloaded_by=("$culimbo" run --simulate --)
	server_seconds=${MATRIX_SECONDS:-3}
	unset CUDA_VISIBLE_DEVICES
	export CULIMBO_SIM_DIR=$logs/sim CULIMBO_SIM_DEVICES=2
fi
# clients.bash reads it
deadline=$((SECONDS + ${GPU_TEST_SECONDS:-570}))
# shellcheck source=tests/gpu/clients.bash
. "$here/clients.bash"
[ -n "$list" ] || mkdir -p "$programs" || exit 2

# ---------------------------------------------------------------------- clients

rows=()
row() # NAME VERSION DOOR WHAT BARE PRELOADED RESULT NOTE
{
	local IFS='|'

	rows+=("$*")
}

wanted() # NAME
{
	local pattern patterns found=''

	read -ra patterns <<<"$only"
	for pattern in "${patterns[@]}"; do
		# shellcheck disable=SC2254 # it is a pattern
		case $1 in
		$pattern) found=1 ;;
		esac
	done
	[ -n "$found" ] || return 1
	[ -z "$list" ] || { echo "$1|${2-}|${3-}"; return 1; }
}

skipped() # NAME DOOR WHAT REASON
{
	skip "$1: $3" "$4"
	row "$1" - "$2" "$3" - - "not run" "$4"
}

# Removes the files that PyTorch leaves in /dev/shm when its process is killed or ends by _exit.
# Those of a process that lives stay: they may be another test's, which runs beside this one.
torch_before=$(find /dev/shm -maxdepth 1 -name 'torch_*' 2>/dev/null | sort)
forget_dead_torch_files()
{
	local file pid

	while IFS= read -r file; do
		pid=${file#/dev/shm/torch_}
		[ -z "$file" ] || [ -e "/proc/${pid%%_*}" ] || rm -f "$file"
	done < <(comm -13 <(echo "$torch_before") <(find /dev/shm -maxdepth 1 -name 'torch_*' 2>/dev/null | sort))
}

# same NAME DOOR WHAT EXPECT SECONDS COMMAND...: runs the client bare and preloaded
# EXPECT is one of:
#   shares    the reports count exports and imports
#   reclaims  the reports count exports, and holds reclaimed from dead processes
#   silent    no message and no file
#   any       may share or not
same()
{
	local name=$1 door=$2 what=$3 expect=$4 limit=$5 ok=yes bare bare_rc bare_out
	local preloaded exports imports reclaimed version more reason
	shift 5

	wanted "$name" "$door" "$what" || return 0
	run "$name-bare" "$limit" "${bare_by[@]}" "$@"
	bare=$(results "$out") bare_rc=$rc bare_out=$out
	if [ "$rc" -eq 77 ]; then
		reason=$(sed -n 's/^skip=//p' "$out" | head -n 1)
		skipped "$name" "$door" "$what" "${reason:-it gave no reason}"
		return
	fi
	check "$rc" "$name: runs bare, $took s" || { ok='fails bare, too'; show_run all; }

	export GPU_TEST_FACTS=$logs/$name.facts
	: >"$GPU_TEST_FACTS"
	if [ "$expect" = silent ]; then
		CULIMBO_DIR=$logs/$name.dir run "$name-preloaded" "$limit" "${preloaded_by[@]}" "$@"
	else
		CULIMBO_REPORT=always CULIMBO_REPORT_FILE=$logs/$name.report.%p CULIMBO_DIR=$logs/limbo \
			run "$name-preloaded" "$limit" "${preloaded_by[@]}" "$@"
	fi
	unset GPU_TEST_FACTS
	preloaded=$(results "$out")
	[ "$rc" -eq "$bare_rc" ] && [ "$(without_results "$out")" = "$(without_results "$bare_out")" ]
	check $? "$name: the same output and exit status preloaded, $took s" || {
		ok=DIFFERS
		note "  exit status $bare_rc bare, $rc preloaded"
		diff "$bare_out" "$out" | head -n 20 | cut -c1-300 | sed 's/^/#   /'
		show "$err" stderr 60
	}
	case +$preloaded+ in
	*+foreign+*) false ;;
	esac
	check $? "$name: no foreign byte preloaded (bare: $bare, preloaded: $preloaded)" || ok=FOREIGN
	case $expect in
	shares)
		exports=$(summed "$name" exports) imports=$(summed "$name" imports)
		[ "$exports" -gt 0 ] && [ "$imports" -gt 0 ]
		check $? "$name: the reports count $exports exports and $imports imports" || ok='NOT SEEN'
		;;
	reclaims)
		exports=$(summed "$name" exports) reclaimed=$(summed "$name" reclaimed)
		[ "$exports" -gt 0 ] && [ "$reclaimed" -gt 0 ]
		check $? "$name: the reports count $exports exports and $reclaimed reclaimed" || ok='NOT SEEN'
		;;
	any)
		note "$name: $(summed "$name" exports) exports, $(summed "$name" imports) imports"
		;;
	silent)
		! grep -qi culimbo "$err" && [ ! -e "$logs/$name.dir" ]
		check $? "$name: no message and no file" || {
			ok='NOT SILENT'
			grep -i culimbo "$err" | head -n 5 | sed 's/^/#   /'
		}
		;;
	esac
	grep -i 'culimbo\[' "$err" | sed 's/culimbo\[[0-9]*\]/culimbo[N]/' | sort | uniq -c | head -n 4 |
		cut -c1-250 | sed 's/^/# said: /'
	version=$(sed -n 's/^version=//p' "$logs/$name.facts" | tail -n 1)
	more=$(sed -n 's/^note=//p' "$logs/$name.facts" | tail -n 1)
	row "$name" "${version:--}" "$door" "$what" "$bare" "$preloaded" "$ok" "$more"
	forget_dead_torch_files
}

# python NAME MODULE DOOR WHAT EXPECT SECONDS SCRIPT [ARG]...
python()
{
	local name=$1 module=$2 door=$3 what=$4 missing
	shift 2

	wanted "$name" "$door" "$what" || return 0
	[ -z "$list" ] || return 0
	missing=$(python_lacks "$module")
	if [ -n "$missing" ]; then
		skipped "$name" "$door" "$what" "$missing"
		return
	fi
	same "$name" "${@:1:4}" python3 "$here/matrix/$5" "${@:6}"
}

# on_simulated CLIENT NAME PACKAGE...: with --simulate pip fetches the packages; else uses installed ones
on_simulated()
{
	local name=$1
	shift

	[ -n "$simulate" ] && [ -z "$list" ] && wanted "$name" || return 0
	fetch "$@" || { skip "$name" "pip cannot fetch $*"; return 1; }
}

# --------------------------------------------------------------------- building

cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$build/Makefile" 2>/dev/null)
if command -v nvcc >/dev/null; then
	cuda=$(cd "$(dirname "$(readlink -f "$(command -v nvcc)")")/.." && pwd)
fi
[ -e "$cuda/include/cuda.h" ] || cuda=/usr/local/cuda

# fresh PROGRAM SOURCE: true when PROGRAM exists and is newer than its sources
fresh()
{
	[ -x "$programs/$1" ] && [ -z "$(find "$here/matrix/$2" "$here/matrix/driver.h" \
		"$here/common.h" -newer "$programs/$1" 2>/dev/null)" ]
}

# cxx NAME FLAGS...: builds matrix/NAME.cc against the driver
cxx()
{
	local name=$1
	shift

	[ -z "$list" ] || return 0
	fresh "$name" "$name.cc" && return
	timeout 120 "${CXX:-g++}" -O2 -std=c++17 -Wall -isystem "$cuda/include" "$@" \
		"$here/matrix/$name.cc" "$build/tools/sim/.libs/libcuda.so.1" -lpthread \
		-o "$programs/$name" >"$logs/cxx-$name" 2>&1 && return
	check 1 "$name: it compiles" || show "$logs/cxx-$name" "${CXX:-g++}"
}

# nvcc_client NAME SOURCE FLAGS...
nvcc_client()
{
	local name=$1 source=$2
	shift 2

	[ -z "$list" ] || return 0
	command -v nvcc >/dev/null || return 0
	timeout 120 nvcc -O2 -std=c++17 -arch=sm_90 "$@" -o "$programs/$name" "$here/$source" \
		>"$logs/nvcc-$name" 2>&1 && return
	check 1 "$name: nvcc compiles it" || show "$logs/nvcc-$name" nvcc
}

# program NAME: checks that the program exists
program()
{
	[ -n "$list" ] || [ -x "$programs/$1" ]
}

# ------------------------------------------------------------------------- head

if [ -z "$list" ]; then
	echo "TAP version 13"
	note "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	if [ -n "$simulate" ]; then
		note "GPU, driver, memory: simulated"
	elif command -v nvidia-smi >/dev/null; then
		note "kernel: $(uname -srm)"
		timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader |
			sed 's/^/# GPU, driver, memory: /'
	else
		echo "Bail out! no nvidia-smi: this needs a machine with an NVIDIA GPU, or --simulate"
		exit 2
	fi
	note "culimbo: $("$culimbo" --version 2>&1 | head -n 1)"
	[ -x "$culimbo" ] && [ -e "$build/.libs/libculimbo.so" ]
	check $? "the build tree has tools/culimbo and .libs/libculimbo.so"
fi

# --------------------------------------------------------------------- C and C++

for name in imports threads capture green server devices; do
	[ -n "$list" ] || cxx "$name" # other clients run imports too
done
linked='linked to libcuda'
same imports "$linked" "C++ objects that own imports, or look; moved, closed early, at exit" shares 100 \
	"$programs/imports"
same threads "$linked" "per-thread default streams, 4 threads" shares 100 "$programs/threads"
same capture "$linked" "blocks freed, and closed there, during stream capture" shares 100 "$programs/capture"
same green "$linked" "green contexts, destroyed before and after what was made and opened in them" shares 100 \
	"$programs/green"
same devices "$linked" "2 devices: opened on either and both, peer copy, reset of one, CUDA_VISIBLE_DEVICES" \
	shares 150 "$programs/devices"
same server "$linked" "4 threads share with 8 clients for $server_seconds s" shares \
	$((server_seconds + 60)) "$programs/server" "$server_seconds"

# another interposer of dlsym, between the program's own look-ups and culimbo
case $(uname -m) in
x86_64) first_glibc=GLIBC_2.2.5 ;;
*) first_glibc=GLIBC_2.17 ;;
esac
if [ -z "$list" ] && wanted second-dlsym; then
	"${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -O2 -fPIC -shared "-DFIRST_GLIBC=\"$first_glibc\"" \
		-o "$programs/second-dlsym.so" "$here/../doors/second_dlsym.c" 2>"$logs/cc" || show "$logs/cc" cc
fi
# shellcheck disable=SC2016 # for the sh to come
DOORS_QUIET=1 same second-dlsym "$linked, another dlsym preloaded" "the imports client beside a second interposer" \
	shares 100 sh -c 'LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$0 exec "$@"' \
	"$programs/second-dlsym.so" "$programs/imports"

# ---------------------------------------------------------- what nvcc compiles

if [ -z "$simulate" ]; then
	runtime='CUDA runtime, static'
	for name in graphs share-ptds; do
		[ -z "$list" ] && wanted "$name" || continue
		case $name in
		graphs) nvcc_client graphs matrix/graphs.cu ;;
		share-ptds) nvcc_client share-ptds share.cu --default-stream per-thread ;;
		esac
	done
	for name in graphs share-ptds; do
		case $name in
		graphs) what='graphs with memory nodes; frees before, in and after their capture' ;;
		share-ptds) what='cudaFree and cudaFreeAsync, compiled with --default-stream per-thread' ;;
		esac
		if program "$name"; then
			# share takes a name; graphs takes any argument to mean "you are the consumer"
			if [ "$name" = graphs ]; then set --; else set -- "$name"; fi
			same "$name" "$runtime" "$what" shares 60 "$programs/$name" "$@"
		elif wanted "$name" "$runtime" "$what"; then
			skipped "$name" "$runtime" "$what" 'no nvcc, and it was not built before'
		fi
	done
	for file in "$build"/tests/gpu/runtimes/share-*; do
		[ -x "$file" ] || continue
		name=${file##*/share-}
		same "cudart-$name" "CUDA runtime, ${name#*-}" "cudaFree and cudaFreeAsync of held blocks" shares 40 \
			"$file" "cudart-$name"
	done

	# tools that stand between a program and the driver
	beside='beside a tool'
	if ! program imports || { [ -z "$list" ] && ! command -v compute-sanitizer >/dev/null; }; then
		wanted compute-sanitizer && skipped compute-sanitizer "$beside" memcheck 'no compute-sanitizer'
	else
		# shellcheck disable=SC2016 # for the bash to come
		same compute-sanitizer "$beside" "memcheck over the imports client: its errors, its exit status" shares 120 \
			bash -c 'compute-sanitizer --tool memcheck --target-processes all --error-exitcode 9 "$@" |
				grep -E "^client=|ERROR SUMMARY|Invalid|leaked"; exit "${PIPESTATUS[0]}"' \
			sh "$programs/imports"
	fi
	if ! program imports || { [ -z "$list" ] && ! command -v cuda-gdb >/dev/null; }; then
		wanted cuda-gdb && skipped cuda-gdb "$beside" 'a run in the debugger' 'no cuda-gdb'
	else
		# shellcheck disable=SC2016
		same cuda-gdb "$beside" "the imports client run in the debugger" shares 120 \
			bash -c 'cuda-gdb -q -batch -ex "set pagination off" -ex run -ex "thread apply all backtrace 6" --args "$@" |
				awk "/received signal/ { stopped = 1 } stopped { print >\"/dev/stderr\" } { print }" |
				grep -E "^client=|process .* exited|SIG|fault" | grep -v "^\\[Thread" |
				sed "s/process [0-9]*/process/"; exit "${PIPESTATUS[0]}"' sh "$programs/imports"
	fi
fi

# ------------------------------------------------------------------------ Python

objects=cuda_objects.py
if on_simulated bindings-events bindings-13 'cuda-bindings==13.0.*' cuda-pathfinder; then
	python bindings-events cuda.bindings cuda-bindings "events, destroyed while they are open elsewhere" shares 100 \
		$objects bindings-events
fi
# uses the same folder as python.sh does for Numba
if on_simulated core-events numba numba 'numba-cuda==0.30.*' numpy llvmlite packaging 'cuda-bindings==13.0.*' \
	cuda-pathfinder cuda-core; then
	python core-events cuda.core cuda-bindings "events by descriptor" shares 100 $objects core-events
fi

# mpi NAME...: runs mpi4py under the machine's mpiexec, or under the one in BUILD_DIR
mpi_home=$build/tests/gpu/mpi
mpi()
{
	local launch libraries=${LD_LIBRARY_PATH-} interpreter

	launch=$(command -v mpiexec || command -v mpirun) || launch=''
	if [ -z "$launch" ] && [ -x "$mpi_home/bin/mpiexec" ]; then
		launch=$mpi_home/bin/mpiexec
		libraries=$mpi_home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	fi
	wanted mpi4py cuda-bindings "4 ranks exchange handles" || return 0
	if [ -n "$(python_lacks mpi4py)" ] || [ -n "$(python_lacks cuda.bindings)" ]; then
		skipped mpi4py cuda-bindings "4 ranks exchange handles" 'no Python module mpi4py or cuda.bindings'
	elif [ -z "$launch" ]; then
		skipped mpi4py cuda-bindings "4 ranks exchange handles" 'no mpiexec'
	else
		# mpiexec may put another python3 first on its PATH
		interpreter=$(python3 -c 'import sys; print(sys.executable)')
		OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 same mpi4py cuda-bindings \
			"4 ranks exchange handles, $(basename "$launch")" shares 60 \
			env LD_LIBRARY_PATH="$libraries" "$launch" -n 4 "$interpreter" "$here/matrix/mpi_handles.py"
	fi
}

if [ -z "$simulate" ]; then
	python bindings-pool cuda.bindings cuda-bindings "a pool by file descriptor, pointers into it" any 60 \
		$objects bindings-pool
	python core-pool cuda.core cuda-bindings "DeviceMemoryResource with ipc_enabled, buffers by pickle" any 60 \
		$objects core-pool
	torch='CUDA runtime, shared'
	python torch-tensors torch "$torch" "tensors, a parameter, a storage, an event, by spawn" shares 90 torch_share.py tensors
	python torch-many torch "$torch" "20,000 tensors" shares 150 torch_share.py many
	python torch-killed torch "$torch" "the consumer killed while it holds them" reclaims 90 torch_share.py killed
	python torch-first torch "$torch" "the producer is the first to exit" shares 90 torch_share.py first
	PYTORCH_ALLOC_CONF=expandable_segments:True PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
		python torch-expandable torch "$torch" "expandable_segments:True (file descriptors)" any 90 torch_share.py tensors
	python torch-loader torch "$torch" "DataLoader, CUDA tensors from 2 workers" shares 100 torch_loader.py
	python torch-rpc-ipc torch "$torch" "RPC, TensorPipe's cuda_ipc" any 90 torch_rpc.py cuda_ipc
	python torch-rpc-xth torch "$torch" "RPC, TensorPipe's cuda_xth" any 90 torch_rpc.py cuda_xth
	python torch-rpc-basic torch "$torch" "RPC, TensorPipe's cuda_basic" any 90 torch_rpc.py cuda_basic
	python torch-profiler torch "$torch, CUPTI" "the profiler over shared tensors" shares 90 torch_profile.py
	NCCL_CUMEM_ENABLE=0 python torch-nccl-ipc torch "NCCL, runtime static" \
		"2 ranks all-reduce, NCCL_CUMEM_ENABLE=0 (IPC handles)" any 90 torch_ranks.py nccl
	NCCL_CUMEM_ENABLE=1 python torch-nccl-cumem torch "NCCL, runtime static" \
		"2 ranks all-reduce, NCCL_CUMEM_ENABLE=1 (file descriptors)" any 90 torch_ranks.py nccl
	python torch-symmetric torch "$torch" "symmetric memory without multicast (file descriptors)" any 90 \
		torch_ranks.py symmetric
	python jax jax "PJRT plugin" "computes, shares nothing" silent 90 jax_quiet.py
	mpi
fi

# ------------------------------------------------------------------ what it says

# The simulated driver shows what CUDA_VISIBLE_DEVICES and a hidden device must
# give, so these results are asserted.
if [ -n "$simulate" ] && [ -z "$list" ] && wanted devices; then
	out=$logs/devices-preloaded.out
	grep -qF "seen as 1,0: device 1's block on its device 0: open CUDA_SUCCESS result=own" "$out" &&
		grep -qF "1 alone seen: device 0's block on its device 0: open CUDA_SUCCESS result=own" "$out" &&
		grep -qF "device 1 reset: its block there: result=own" "$out"
	check $? "devices: renumbered devices find their blocks, and so do hidden ones"
fi
[ -z "$list" ] || exit 0
[ "$strays" -eq 0 ]
check $? "no process is left (killed: $strays)"
note ""
note "client | version | reaches the driver | what was run | bare | preloaded | same | note"
for line in "${rows[@]}"; do
	echo "#| $line"
done
echo "1..$number"
note "$passed passed, $failed failed, $skipped skipped, $SECONDS s"
[ "$failed" -eq 0 ]
