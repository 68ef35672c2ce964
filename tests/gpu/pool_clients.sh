#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs third-party programs that share memory pools, unmodified, bare and under culimbo in
# alternation.  Prints TAP, with rows for doc/compatibility.md.
#
#	bash tests/gpu/pool_clients.sh [--only PATTERN] [--simulate] BUILD_DIR CLIENTS_DIR
#	bash tests/gpu/pool_clients.sh --list
#
# pool_clients_get.sh makes CLIENTS_DIR.  Settings:
#   POOL_ROUNDS         how often the sample and RMM run each way (3)
#   POOL_SUITE_SECONDS  limit of one run of cuda.core's tests (200)
#   POOL_SUITE_TESTS    which of these tests (tests/memory_ipc)
#   GPU_TEST_SECONDS    limit of the whole run (570)
#   GPU_TEST_KEEP=1     keep the logs
#
# Rules: as in run.sh.  A client passes when its exit status and its output (for the test suite:
# which tests pass, fail and are skipped) are the same under culimbo as bare, and the reports at
# exit count pointers exported from pools.  A test that fails bare may fail under culimbo.  Times
# are printed, but not checked.

set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD PYTHONPATH "${!CULIMBO_@}" "${!PYTEST_@}"
export CULIMBO_KEEP_DEAD=0
usage='usage: pool_clients.sh [--only PATTERN] [--simulate] BUILD_DIR CLIENTS_DIR, or pool_clients.sh --list'

only='*' simulate=''
clients=('memory-ipc|cuda-bindings|the test suite tests/memory_ipc of cuda.core'
	"pool-sample|CUDA runtime, static|cuda-samples' streamOrderedAllocationIPC"
	'rmm|CUDA runtime, static|CudaAsyncMemoryResource with enable_ipc; blocks freed while another process holds them')
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
[ $# -eq 2 ] || { echo "$usage" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
build=$(cd "$1" && pwd) || exit 2
carried=$(cd "$2" && pwd) || exit 2
culimbo=$build/tools/culimbo
logs=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-pools.XXXXXX") || exit 2
bare_by=() preloaded_by=("$culimbo" run --)
if [ -n "$simulate" ]; then
	bare_by=("$culimbo" run --simulate --no-preload --)
	preloaded_by=("$culimbo" run --simulate --)
	export CULIMBO_SIM_DIR=$logs/sim
fi
# clients.bash reads it
deadline=$((SECONDS + ${GPU_TEST_SECONDS:-570}))
rounds=${POOL_ROUNDS:-3}
# shellcheck source=tests/gpu/clients.bash
. "$here/clients.bash"
rows=()

wanted() # NAME
{
	# shellcheck disable=SC2254 # it is a pattern
	case $1 in
	$only) ;;
	*) return 1 ;;
	esac
}

# said NAME: shows culimbo's messages and checks that the reports count pools
said()
{
	local exports imports

	cat "$logs/$1"-preloaded-*.err | grep -i 'culimbo\[' | sed 's/culimbo\[[0-9]*\]/culimbo[N]/' |
		sort | uniq -c | head -n 6 | cut -c1-250 | sed 's/^/# said: /'
	exports=$(summed "$1" pool_exports) imports=$(summed "$1" imports)
	[ "$exports" -gt 0 ]
	check $? "$1: the reports count $exports exports of pool pointers and $imports imports"
}

# finish NAME VERSION RESULT BARE PRELOADED NOTE
finish()
{
	local line

	for line in "${clients[@]}"; do
		[ "${line%%|*}" != "$1" ] || rows+=("$1|$2|${line#*|}|$4|$5|$3|$6")
	done
}

skipped() # NAME REASON
{
	skip "$1" "$2"
	finish "$1" - "not run" - - "$2"
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
note "python3: $(python3 --version 2>&1); carried: $(paste -sd' ' "$carried/versions")"
[ -x "$culimbo" ] && [ -e "$build/.libs/libculimbo.so" ]
check $? "the build tree has tools/culimbo and .libs/libculimbo.so"

# the carried packages come before the machine's; numpy and libnvrtc come from the machine
export PYTHONPATH=$carried/site PYTEST_DISABLE_PLUGIN_AUTOLOAD=1

# ---------------------------------------------------- cuda.core's tests/memory_ipc

# outcomes FILE: prints each test's result, from pytest's progress lines, which an interrupted run has too.
# A result is the word in capitals behind a test's name; whatever pytest may say there is compared.
outcomes()
{
	sed -nE 's/^(tests\/.*[^ ]) ([A-Z]+)( .*)?$/\2 \1/p' "$1" | sort
}

# prints which cuda.core python3 finds, and its version
core_version()
{
	python3 -c 'import cuda.core, cuda.bindings, numpy, sys
if "where" in sys.argv: print(cuda.core.__file__, "cuda-bindings", cuda.bindings.__version__, "numpy", numpy.__version__)
else: print("cuda.core", cuda.core.__version__)' "$@"
}

suite=$carried/cuda_python/cuda_core
read -ra tests <<<"${POOL_SUITE_TESTS:-tests/memory_ipc}"
pytest=(python3 -m pytest -p pytest_timeout -p no:cacheprovider -W ignore --no-showlocals --tb=short -v -o console_output_style=classic)
memory_ipc()
{
	local name=memory-ipc result=yes limit=${POOL_SUITE_SECONDS:-200} bare_rc ended test which i

	note "$(core_version), $(core_version where)"
	one bare $name 1 "$limit" env -C "$suite" "${pytest[@]}" "${tests[@]}"
	bare_rc=$rc
	outcomes "$out" >"$logs/$name.bare"
	tail -n 1 "$out" | sed 's/^/# bare: /'
	[ "$rc" -le 1 ] && [ -s "$logs/$name.bare" ]
	ended=$?
	check $ended "$name: runs bare, to its end, in $limit s" || show_run all
	grep -E '^(FAILED|ERROR)' "$out" | cut -c1-250 | sed 's/^/# bare: /'

	one preloaded $name 1 "$limit" env -C "$suite" "${pytest[@]}" "${tests[@]}"
	outcomes "$out" >"$logs/$name.preloaded"
	tail -n 1 "$out" | sed 's/^/# preloaded: /'
	# nothing can be compared with what did not end bare in its time
	if [ $ended -ne 0 ]; then
		said $name
		finish $name "$(core_version)" 'did not end bare' - - "exit status $rc under culimbo, $(grep -c ^PASSED "$logs/$name.preloaded") passed"
		return
	fi
	[ "$rc" -eq "$bare_rc" ]
	check $? "$name: the same exit status, $bare_rc bare, $rc preloaded" || { result=DIFFERS; show_run all; }
	cmp -s "$logs/$name.bare" "$logs/$name.preloaded"
	check $? "$name: the same tests pass, fail and are skipped ($(cut -d' ' -f1 "$logs/$name.bare" | sort |
		uniq -c | awk '{ printf "%s%d %s", n++ ? ", " : "", $1, tolower($2) }'))" || {
		result=DIFFERS
		diff "$logs/$name.bare" "$logs/$name.preloaded" | sed 's/^/#   /'
		# Is the difference chance?  Each test that failed only preloaded runs alone, three times each way.
		for test in $(comm -13 "$logs/$name.bare" "$logs/$name.preloaded" |
			sed -nE 's/^(FAILED|ERROR) //p' | sort -u | head -n 6); do
			for which in bare preloaded; do
				for i in a b c; do
					one $which "$name-again" "$i" 100 env -C "$suite" "${pytest[@]}" "$test"
					note "alone, $which: $test: $(tail -n 1 "$out")"
				done
			done
			grep '^E  ' "$out" | head -n 8 | cut -c1-250 | sed 's/^/#   /'
		done
	}
	said $name || result='NOT SEEN'
	times $name
	finish $name "$(core_version)" "$result" none none \
		"$(grep -c ^PASSED "$logs/$name.bare") passed, $(grep -cE '^(FAILED|ERROR)' "$logs/$name.bare") failed bare; $told"
}

# ------------------------------------- cuda-samples' streamOrderedAllocationIPC, and RMM

# by_turns NAME SECONDS COMMAND...: $rounds times each way; stdout, sorted and without pids, must always be the same
by_turns()
{
	local name=$1 limit=$2 i which result=yes bare preloaded first_rc='' same=0 first=$logs/$1.first reason
	shift 2

	for ((i = 1; i <= rounds; i++)); do
		for which in bare preloaded; do
			one $which "$name" "$i" "$limit" "$@"
			if grep -q '^not run: ' "$err"; then
				check 1 "$name: the limit GPU_TEST_SECONDS leaves time for $rounds rounds each way"
				finish "$name" - 'not run' - - 'the time was over'
				return
			fi
			if [ "$rc" -eq 77 ] && [ "$which" = bare ]; then
				reason=$(sed -n 's/^skip=//p' "$out" | head -n 1)
				skipped "$name" "${reason:-it gave no reason}"
				return
			fi
			without_results "$out" | sed 's/shm[0-9][0-9]*$/shm/' | sort >"$logs/$name.now"
			if [ -z "$first_rc" ]; then
				first_rc=$rc
				cp "$logs/$name.now" "$first"
				check "$rc" "$name: runs bare" || { show_run all; result='fails bare, too'; }
			elif [ "$rc" -ne "$first_rc" ] || ! cmp -s "$first" "$logs/$name.now"; then
				note "$name, $which, round $i: exit status $rc, the first bare run had $first_rc"
				diff "$first" "$logs/$name.now" | head -n 15 | cut -c1-250 | sed 's/^/#   /'
				show_run
				same=1
			fi
		done
	done
	[ $same -eq 0 ]
	check $? "$name: the same output and exit status in $rounds rounds each way" || result=DIFFERS
	bare=$(results <(cat "$logs/$name"-bare-*.out)) preloaded=$(results <(cat "$logs/$name"-preloaded-*.out))
	case +$preloaded+ in
	*+foreign+*) false ;;
	esac
	check $? "$name: no foreign byte preloaded (bare: $bare, preloaded: $preloaded)" || result=FOREIGN
	said "$name" || result='NOT SEEN'
	times "$name"
	finish "$name" "$(sed -n 's/^version=//p' "$logs/$name-preloaded-1.facts" | grep . || echo -)" "$result" \
		"$bare" "$preloaded" "$told"
}

if wanted pool-sample; then
	sample=$carried/bin/streamOrderedAllocationIPC
	if [ -x "$sample" ]; then
		# it creates its socket in the current folder
		# nvcc leaves its version there
		sample_release=$(grep -aoE -m 1 'release [0-9]+\.[0-9]+' "$sample" | head -n 1)
		note "version of pool-sample: CUDA runtime ${sample_release#release }"
		by_turns pool-sample 60 env -C "$logs" "$sample"
		! grep -q 'mismatch' "$logs"/pool-sample-preloaded-*.out
		check $? "pool-sample: it finds no wrong byte under culimbo"
	else
		skipped pool-sample "$carried has no bin/streamOrderedAllocationIPC"
	fi
fi

if wanted rmm; then
	if python3 -c 'import numpy, cuda.bindings.driver, rmm' 2>"$logs/why"; then
		by_turns rmm 100 python3 "$here/pool_rmm.py"
	else
		skipped rmm "rmm can't be imported: $(tail -n 1 "$logs/why")"
	fi
fi

# the suite takes minutes: the others do not wait for it
if wanted memory-ipc; then
	if [ ! -d "$suite" ]; then
		skipped memory-ipc "$carried has no cuda_python"
	elif ! python3 -c 'import pytest, numpy, cuda.core' 2>"$logs/why"; then
		skipped memory-ipc "cuda.core, numpy and pytest can't be imported: $(tail -n 1 "$logs/why")"
	else
		memory_ipc
	fi
fi

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
