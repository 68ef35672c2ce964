#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs third-party programs that share memory of which CUDA makes no legacy handles, unmodified, bare
# and under CULIMBO_SHARE=all in alternation.  Prints TAP, with rows for doc/compatibility.md.
#
#	bash tests/gpu/share_clients.sh [--only PATTERN] [--simulate] BUILD_DIR [CLIENTS_DIR]
#	bash tests/gpu/share_clients.sh --list
#
# share_clients_get.sh makes CLIENTS_DIR; without it, only what the machine has is run.  PATTERN is a
# shell pattern for the names that --list prints; several are separated by spaces.  Settings:
#   SHARE_ROUNDS      how often each client runs each way (1)
#   SHARE_SECONDS     limit of one run of a client (45)
#   SHARE_ASYNC=1     this culimbo must make handles of stream-ordered memory; otherwise the clients
#                     that share such memory are "not run" with a culimbo that does not
#   GPU_TEST_SECONDS  limit of the whole run (280)
#   GPU_TEST_KEEP=1   keep the logs
#
# Rules: as in run.sh.  There are three sorts of clients:
#   refused  bare, each handle is refused; under culimbo each is given and opened, and every byte is right
#   same     the same output and exit status; every byte is right both ways
#   path     every byte is right both ways; bare by a slow path, under culimbo by cuda_ipc: the reports
#            count handles or descriptors, and on a GPU it is at least twice as fast.  NIXL has no slow path
#            for such memory: bare nothing comes ("none")
# Other times are printed, but not checked.  A client that cannot run says why ("not run").

set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD PYTHONPATH PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF "${!CULIMBO_@}" "${!UCX_@}"
export CULIMBO_KEEP_DEAD=0
usage='usage: share_clients.sh [--only PATTERN] [--simulate] BUILD_DIR [CLIENTS_DIR], or share_clients.sh --list'

only='*' simulate=''
# NAME|SORT|reaches the driver by|what is run
clients=(
	'ucx|path|UCX|cuda_ipc on virtual memory without a handle type (CULIMBO_SHARE=all,visible)'
	'nixl|path|UCX in NIXL|READ of virtual memory without a handle type (CULIMBO_SHARE=all,visible)'
	'ucx-async|path|UCX|cuda_ipc on cuMemAllocAsync memory (CULIMBO_SHARE=all,visible; UCX_CUDA_COPY_ASYNC_MEM_TYPE=cuda)'
	'nixl-async|path|UCX in NIXL|READ of cuMemAllocAsync memory (CULIMBO_SHARE=all,visible; UCX_CUDA_COPY_ASYNC_MEM_TYPE=cuda)'
	"ucx-pool-async|path|UCX|cuda_ipc on memory of a pool of the program's own (CULIMBO_SHARE=all,visible; UCX_CUDA_COPY_ASYNC_MEM_TYPE=cuda)"
	"nixl-pool-async|path|UCX in NIXL|READ of memory of a pool of the program's own (CULIMBO_SHARE=all,visible; UCX_CUDA_COPY_ASYNC_MEM_TYPE=cuda)"
	'plain-start|refused|driver API|virtual memory; offsets from RANGE_START_ADDR; mapped later, unmapped, mapped anew (CULIMBO_SHARE=all)'
	'plain-block|refused|driver API|virtual memory; offsets from cuMemGetAddressRange; mapped later, unmapped, mapped anew (CULIMBO_SHARE=all)'
	"torch-start|refused|CUDA runtime, shared|expandable segments, shared as vLLM's custom all-reduce does, by RANGE_START_ADDR; the segment grows (CULIMBO_SHARE=all)"
	"torch-block|refused|CUDA runtime, shared|expandable segments, shared as vLLM's custom all-reduce does, by cuMemGetAddressRange; the segment grows (CULIMBO_SHARE=all)"
	'torch-mp|same|CUDA runtime, shared|expandable segments by torch.multiprocessing'
	'tms-torch|refused|driver API|a region shared, paused, resumed; hook_mode torch (CULIMBO_SHARE=all)'
	'tms-preload|refused|driver API|a region shared, paused, resumed; hook_mode preload (CULIMBO_SHARE=all)'
	'plain-peer|refused|driver API|virtual and stream-ordered memory of device 0 that device 1 opens (CULIMBO_SHARE=all)'
	'torch-peer|refused|CUDA runtime, shared|expandable segments of device 0 that PyTorch on device 1 opens and copies (CULIMBO_SHARE=all)'
	'plain-async|refused|driver API|cuMemAllocAsync; blocks freed while another process maps them (CULIMBO_SHARE=all)'
	'cupy-async|refused|CUDA runtime|MemoryAsyncPool; arrays deleted while another process maps them (CULIMBO_SHARE=all)'
	'rmm-async|refused|CUDA runtime, static|CudaAsyncMemoryResource; buffers deleted while another process maps them (CULIMBO_SHARE=all)'
	"numba-async|refused|cuda-bindings, RMM|get_ipc_handle of arrays by RMM's memory manager on CudaAsyncMemoryResource (CULIMBO_SHARE=all)"
)
while [ $# -gt 0 ]; do
	case $1 in
	--only) only=${2-}; shift ;;
	--simulate) simulate=1 ;;
	--list) printf '%s\n' "${clients[@]}"; exit 0 ;;
	-*) echo "$usage" >&2; exit 2 ;;
	*) break ;;
	esac
	shift
done
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "$usage" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
build=$(cd "$1" && pwd) || exit 2
carried=''
[ $# -eq 1 ] || carried=$(cd "$2" && pwd) || exit 2
culimbo=$build/tools/culimbo
logs=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-shares.XXXXXX") || exit 2
# clients.bash reads them
# shellcheck disable=SC2034
{
	bare_by=()
	preloaded_by=("$culimbo" run --)
	if [ -n "$simulate" ]; then
		bare_by=("$culimbo" run --simulate --no-preload --)
		preloaded_by=("$culimbo" run --simulate --)
		export CULIMBO_SIM_DIR=$logs/sim
	fi
	deadline=$((SECONDS + ${GPU_TEST_SECONDS:-280}))
}
rounds=${SHARE_ROUNDS:-1} limit=${SHARE_SECONDS:-45}
export NUMBA_CACHE_DIR=$logs/numba CUPY_CACHE_DIR=$logs/cupy
# shellcheck source=tests/gpu/clients.bash
. "$here/clients.bash"
rows=() python_path=${carried:+$carried/site}

wanted() # NAME
{
	local pattern
	set -f
	for pattern in $only; do
		# shellcheck disable=SC2254 # it is a pattern
		case $1 in
		$pattern) set +f; return 0 ;;
		esac
	done
	set +f
	return 1
}

# finish NAME RESULT BARE PRELOADED NOTE: one row of the table
finish()
{
	local line version more

	version=$(sed -n 's/^version=//p' "$logs/$1"-*.facts 2>/dev/null | tail -n 1)
	more=$(sed -n 's/^note=//p' "$logs/$1"-preloaded-*.facts 2>/dev/null | tail -n 1)
	for line in "${clients[@]}"; do
		[ "${line%%|*}" != "$1" ] || rows+=("$1|${version:--}|${line#*|*|}|$3|$4|$2|$5${more:+; $more}")
	done
}

not_run() # NAME BARE REASON
{
	skip "$1" "not run: $3"
	finish "$1" 'not run' "$2" - "$3"
}

# only_results WHICH NAME: prints the results of all rounds
only_results()
{
	results <(cat "$logs/$2-$1"-*.out)
}

# facts WHICH NAME KEY: prints the highest value of all rounds
highest()
{
	sed -n "s/^$3=//p" "$logs/$2-$1"-*.facts | sort -n | tail -n 1
}

# share NAME SORT COMMAND...
share()
{
	local name=$1 sort=$2 i which result=yes reason bare preloaded same=0 seen
	shift 2

	for ((i = 1; i <= rounds; i++)); do
		for which in bare preloaded; do
			one $which "$name" "$i" "$limit" "$@"
			if grep -q '^not run: ' "$err"; then
				check 1 "$name: the limit GPU_TEST_SECONDS leaves time for it"
				finish "$name" 'not run' - - 'the time was over'
				return
			fi
			if [ "$rc" -eq 77 ] && [ "$which" = bare ]; then
				reason=$(sed -n 's/^skip=//p' "$out" | head -n 1)
				not_run "$name" - "${reason:-it gave no reason}"
				return
			fi
			# a library's own words on stdout have times in them
			without_results "$out" | grep '^client=' >"$logs/$name.now"
			if [ "$i-$which" = 1-bare ]; then
				cp "$logs/$name.now" "$logs/$name.first"
				check "$rc" "$name: runs bare, $took s" || {
					show_run all
					finish "$name" 'fails bare' "$(only_results bare "$name")" - "exit status $rc"
					return
				}
			elif [ "$rc" -ne 0 ] || ! cmp -s "$logs/$name.first" "$logs/$name.now"; then
				note "$name, $which, round $i: exit status $rc"
				diff "$logs/$name.first" "$logs/$name.now" | head -n 15 | cut -c1-250 | sed 's/^/#   /'
				show_run
				same=1
			fi
		done
		# without a look at what comes of it: this library may not have what the client needs
		case $name in
		*-async)
			[ -z "${SHARE_ASYNC-}" ] || continue
			lacks_async || continue
			bare=$(only_results bare "$name")
			if [ "$sort" = refused ]; then
				[ "$bare" = refused ]
				check $? "$name: bare, CUDA gives no handle (result: $bare)" || show_run all
			fi
			not_run "$name" "$bare" 'library without it: this culimbo makes no handles of stream-ordered memory'
			return
			;;
		esac
	done
	[ $same -eq 0 ]
	check $? "$name: the same lines and exit status, $took s under culimbo" || result=DIFFERS
	bare=$(only_results bare "$name") preloaded=$(only_results preloaded "$name")
	case $sort in
	refused)
		[ "$bare" = refused ]
		check $? "$name: bare, CUDA gives no handle (result: $bare)" || { result='NOT REFUSED BARE'; show_run all; }
		;;
	*)
		[ "$bare" = own ] || { [ "${name%%-*}" = nixl ] && [ "$bare" = none ]; }
		check $? "$name: bare, every byte is right, or none comes (result: $bare)" || result='fails bare, too'
		;;
	esac
	[ "$preloaded" = own ]
	check $? "$name: under culimbo, every byte is right (result: $preloaded)" || {
		result=DIFFERS
		show "$logs/$name-preloaded-1.out" "under culimbo" 40
		show "$logs/$name-preloaded-1.err" stderr 30
	}
	seen="$(summed "$name" exports) handles, $(summed "$name" imports) opens, $(summed "$name" fd_exports) and $(
		)$(summed "$name" fd_imports) by descriptors"
	note "$name: the reports count $seen"
	case $sort in
	refused) [ "$(summed "$name" exports)" -gt 0 ] && [ "$(summed "$name" imports)" -gt 0 ] ;;
	path) [ $(($(summed "$name" imports) + $(summed "$name" fd_imports))) -gt 0 ] ;;
	esac
	check $? "$name: the reports count what was shared" || result='NOT SEEN'
	if [ "$sort" = path ] && [ "$bare" = none ]; then
		seen="$seen; nothing came bare, $(highest preloaded "$name" rate) MB/s under culimbo"
	elif [ "$sort" = path ]; then
		note "$name: $(highest bare "$name" rate) MB/s bare, $(highest preloaded "$name" rate) under culimbo"
		[ -n "$simulate" ] || awk -v bare="$(highest bare "$name" rate)" -v ours="$(highest preloaded "$name" rate)" \
			'BEGIN { exit !(bare > 0 && ours >= 2 * bare) }'
		check $? "$name: it does not go the slow path that it goes bare" || result=SLOW
		seen="$seen; $(highest bare "$name" rate) MB/s bare, $(highest preloaded "$name" rate) under culimbo"
	fi
	cat "$logs/$name"-preloaded-*.err | grep -i 'culimbo\[' | sed 's/culimbo\[[0-9]*\]/culimbo[N]/' |
		sort | uniq -c | head -n 6 | cut -c1-250 | sed 's/^/# said: /'
	sed -n 's/^error=/# CUDA error /p' "$logs/$name"-*.facts | sort | uniq -c | sed 's/^ *\([0-9]*\) \(.*\)/\2, \1 times/'
	times "$name"
	finish "$name" "$result" "$bare" "$preloaded" "$seen"
}

# Asks once whether this culimbo makes handles of stream-ordered memory.
async_known=''
lacks_async()
{
	if [ -z "$async_known" ]; then
		one preloaded asked 1 "$limit" python3 "$here/share/memory.py" plain-async
		async_known=$(only_results preloaded asked)
		note "stream-ordered memory under this culimbo: $async_known"
		[ "$async_known" = refused ] || [ "$async_known" = own ]
		check $? "it is known whether this culimbo makes handles of stream-ordered memory" || show_run all
	fi
	[ "$async_known" = refused ]
}

# ------------------------------------------------------------------------- head

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
note "python3: $(python3 --version 2>&1)${carried:+; carried: $(paste -sd' ' "$carried/versions")}"
[ -x "$culimbo" ] && [ -e "$build/.libs/libculimbo.so" ]
check $? "the build tree has tools/culimbo and .libs/libculimbo.so"

# the carried packages come before the machine's
[ -z "$python_path" ] || export PYTHONPATH=$python_path
export CULIMBO_SHARE=all

# saver_library: prints the library that torch_memory_saver preloads, and the folder of libcudart, which it needs
saver_library()
{
	timeout 60 python3 - <<-'EOF' 2>"$logs/why"
	import glob, os, site, sys
	import torch
	from torch_memory_saver.utils import get_binary_path_from_package
	roots = [p for p in sys.path if p] + site.getsitepackages()
	found = [f for root in roots for f in glob.glob(os.path.join(root, "nvidia/*/lib/libcudart.so.*"))]
	found += glob.glob("/usr/local/cuda/lib64/libcudart.so.*")
	print(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
	print(os.path.dirname(found[0]) if found else "")
	EOF
}

# what needs the CUDA runtime, or asks for attributes in a thread without a context (NIXL), can't run on
# the simulated driver
needs_gpu()
{
	[ -n "$simulate" ] || return 1
	case $1 in
	plain-* | ucx | ucx-*async) return 1 ;;
	esac
}

segments=(env PYTORCH_ALLOC_CONF=expandable_segments:True PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)
for line in "${clients[@]}"; do
	name=${line%%|*}
	sort=${line#*|} sort=${sort%%|*}
	wanted "$name" || continue
	if needs_gpu "$name"; then
		not_run "$name" - 'the simulated driver has not what it needs'
		continue
	fi
	command=(python3 "$here/share/memory.py" "$name")
	case $name in
	# of two GPUs; the simulated driver has two for it
	plain-peer) command=(env CULIMBO_SIM_DEVICES=2 CULIMBO_SIM_POOL_ACCESS=set python3 "$here/share/peers.py" "$name") ;;
	torch-peer) command=("${segments[@]}" python3 "$here/share/peers.py" "$name") ;;
	torch-mp) command=("${segments[@]}" python3 "$here/matrix/torch_share.py" tensors) ;;
	torch-*) command=("${segments[@]}" "${command[@]}") ;;
	ucx* | nixl*)
		# which lane a message takes must not depend on a network that the machine has; the memory may
		# be older than UCX, which then knows nothing of it (ucxx sets UCX_MEMTYPE_CACHE by itself); and where a
		# machine has no NVLink, as one with one GPU, UCX does not read by cuda_ipc unless it is told to
		command=(env "UCX_TLS=cuda_ipc,cuda_copy,tcp,sm,self" UCX_NET_DEVICES=lo UCX_MEMTYPE_CACHE=n
			UCX_WARN_UNUSED_ENV_VARS=n UCX_CUDA_COPY_MAX_REG_RATIO=1.0 UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y NIXL_LOG_LEVEL=ERROR
			python3 "$here/share/transports.py" "$name")
		# else UCX takes stream-ordered memory for managed memory, for which it never uses cuda_ipc
		# (doc/sharing.md); for virtual memory the setting changes nothing
		[ "${name%-async}" = "$name" ] || command=(env UCX_CUDA_COPY_ASYNC_MEM_TYPE=cuda "${command[@]}")
		;;
	tms-preload)
		mapfile -t saver < <(saver_library)
		if [ "${#saver[@]}" -ne 2 ]; then
			not_run "$name" - "no torch_memory_saver: $(tail -n 1 "$logs/why")"
			continue
		fi
		# shellcheck disable=SC2016 # for the sh to come
		command=(env LD_LIBRARY_PATH="${saver[1]}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" sh -c
			'LD_PRELOAD=$0${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"' "${saver[0]}" "${command[@]}")
		;;
	esac
	case $name in
	ucx* | nixl*) CULIMBO_SHARE=all,visible share "$name" "$sort" "${command[@]}" ;;
	*) share "$name" "$sort" "${command[@]}" ;;
	esac
	for file in /dev/shm/torch_*; do
		pid=${file#/dev/shm/torch_}
		[ ! -e "$file" ] || [ -e "/proc/${pid%%_*}" ] || rm -f "$file"
	done
done

# ------------------------------------------------------------------ what it says

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
