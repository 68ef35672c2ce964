#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tests that need a GPU, in TAP, with a table of clients and results.
#
#	bash tests/gpu/run.sh [BUILD_DIR]	(default: build)
#
# From the build tree it needs .libs/libculimbo.so, tools/culimbo and the
# programs of tests/e2e; it builds its own with nvcc into BUILD_DIR/tests/gpu.
# Each client is one program that knows nothing of culimbo, run bare and under
# `culimbo run --`.
#
# What must hold: a client that fails or hangs doesn't stop the rest; everything
# has a time limit, and the whole GPU_TEST_SECONDS (default 420); no process is
# left behind (each run's are known by their environment, and swept) and no file in
# /dev/shm; no setting of the GPU is touched.  Exit status 0 only when nothing
# failed.  What is missing on the machine is skipped and says so.

set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD "${!CULIMBO_@}"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
build=$(cd "${1:-build}" 2>/dev/null && pwd) || {
	echo "Bail out! no build tree in ${1:-build}"
	exit 2
}
culimbo=$build/tools/culimbo
programs=$build/tests/gpu
deadline=$((SECONDS + ${GPU_TEST_SECONDS:-420}))

number=0 passed=0 failed=0 skipped=0
token='' strays=0
table=()
declare -A seconds=()

mkdir -p "$programs" || exit 2
logs=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-gpu.XXXXXX") || exit 2
export CUPY_CACHE_DIR=$logs/cupy NUMBA_CACHE_DIR=$logs/numba

# ------------------------------------------------------------------------ TAP

note()
{
	printf '#%s\n' "${*:+ $*}"
}

# check STATUS WHAT: one TAP line, "ok" when STATUS is 0
check()
{
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		passed=$((passed + 1))
		printf 'ok %d - %s\n' "$number" "$2"
	else
		failed=$((failed + 1))
		printf 'not ok %d - %s\n' "$number" "$2"
	fi
	return "$1"
}

skip()
{
	number=$((number + 1))
	skipped=$((skipped + 1))
	printf 'ok %d - %s # SKIP %s\n' "$number" "$1" "$2"
}

# show FILE WHAT [LINES]: the end of a file, as comments
show()
{
	[ -s "$1" ] || { note "  ($2: empty)"; return; }
	note "  ($2, last lines:)"
	tail -n "${3:-15}" "$1" | cut -c1-300 | sed 's/^/#   /'
}

# Says why the last run failed.
show_run()
{
	note "  exit status $rc after ${took} s"
	show "$err" stderr
	[ "${1:-}" = all ] && show "$out" stdout
	return 0
}

# ------------------------------------------------------------------ processes

# live TOKEN: the processes of a run, by the GPU_TEST_RUN in their environment, which
# holds for those that made a session of their own too; zombies have none
live()
{
	grep -lzsx "GPU_TEST_RUN=$1" /proc/[0-9]*/environ | sed 's,^/proc/\([0-9]*\)/.*,\1,'
}

# Kills what is left of a run, and prints how many that were.
sweep()
{
	local left pid

	left=$(live "$1")
	for pid in $left; do
		kill -KILL "$pid" 2>/dev/null
	done
	wc -w <<<"$left"
}

# shellcheck disable=SC2317,SC2329 # the trap calls it
cleanup()
{
	[ -n "$token" ] && sweep "$token" >/dev/null
	[ -n "${GPU_TEST_KEEP:-}" ] || rm -rf "$logs"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run NAME SECONDS COMMAND...: runs it in a session of its own, and waits for all that
# it started.  Sets rc, out, err and took.
run()
{
	local name=$1 limit=$2 left=$((deadline - SECONDS)) start i killed
	shift 2

	out=$logs/$name.out err=$logs/$name.err took=0
	: >"$out"
	: >"$err"
	if [ "$left" -lt 3 ]; then
		echo "no time left for this: GPU_TEST_SECONDS are over" >"$err"
		rc=124
		return
	fi
	[ "$limit" -gt "$left" ] && limit=$left
	start=$SECONDS
	token=$$-$name
	GPU_TEST_RUN=$token setsid timeout -k 3 "$limit" "$@" >"$out" 2>"$err" </dev/null &
	wait $! 2>/dev/null
	rc=$?
	took=$((SECONDS - start))
	seconds[$name]=$took
	# a consumer goes just after its producer
	for ((i = 0; i < 100 && rc < 124; i++)); do
		[ -n "$(live "$token")" ] || break
		sleep 0.1
	done
	killed=$(sweep "$token")
	if [ "$killed" -gt 0 ]; then
		note "$name left $killed processes behind; they were killed"
		strays=$((strays + killed))
	fi
	token=''
	[ "$rc" -eq 124 ] && echo "(ended by its limit of $limit s)" >>"$err"
	return 0
}

# ------------------------------------------------------------------- clients

# results FILE: own, foreign, none, or foreign+own
results()
{
	local all

	all=$(sed -n 's/.*result=\([a-z]*\).*/\1/p' "$1" | sort -u | paste -sd+ -)
	echo "${all:-none}"
}

without_results()
{
	sed 's/result=[a-z]*/result=/' "$1"
}

# fact KEY: the last that a client told of itself
fact()
{
	sed -n "s/^$1=//p" "$GPU_TEST_FACTS" 2>/dev/null | tail -n 1
}

# show_report STATUS FILE WHOSE: the report, a part of the results when it is right
show_report()
{
	if [ -s "$2" ]; then
		show "$2" "$3 report" "$([ "$1" = yes ] && echo 12 || echo 40)"
	else
		note "  (no $3 report; there are:" "$(cd "$logs" && echo ./*.report.* ./*.leak.*)" ")"
	fi
}

# names FILE WORD...: true when the report has its summary line and each word (a pid,
# or an address with however many zeros before its digits)
names()
{
	local file=$1 word
	shift

	[ -s "$file" ] && grep -q SUMMARY "$file" || return 1
	for word; do
		case $word in
		'') return 1 ;;
		0x*) grep -qiE "(^|[^0-9a-f])(0x)?0*${word#0x}([^0-9a-f]|\$)" "$file" || return 1 ;;
		*) grep -qw -- "$word" "$file" || return 1 ;;
		esac
	done
}

# forget_torch_files: PyTorch's own files in /dev/shm, which it leaves when it goes by _exit
forget_torch_files()
{
	local pid

	for pid in $(fact producer) $(fact consumer); do
		rm -f "/dev/shm/torch_${pid}_"*
	done
}

# client NAME CONTROL SECONDS COMMAND...
#	CONTROL: what the bare run must show (foreign), or "-" for any
#	COMMAND takes "leak" as one more argument
client()
{
	local name=$1 control=$2 limit=$3 bare bare_rc bare_out preloaded told=ok
	local same=no report_producer=no report_consumer=no report producer consumer
	shift 3

	run "$name-bare" "$limit" "$@"
	bare=$(results "$out") bare_rc=$rc bare_out=$out
	check "$rc" "$name: runs bare" || show_run all
	case $control in
	-) note "$name: bare result is $bare" ;;
	*)
		[ "$bare" = "$control" ]
		check $? "$name: bare, the control reads $control bytes (it read: $bare)" ||
			show_run all
		;;
	esac

	export GPU_TEST_FACTS=$logs/$name.facts
	: >"$GPU_TEST_FACTS"
	CULIMBO_REPORT=always CULIMBO_REPORT_FILE=$logs/$name.report.%p \
		run "$name-preloaded" "$limit" "$culimbo" run -- "$@"
	preloaded=$(results "$out")
	[ "$preloaded" = own ]
	check $? "$name: preloaded, the consumer reads its own bytes (it read: $preloaded)" ||
		show_run all
	if [ "$rc" -eq 0 ] && [ "$bare_rc" -eq 0 ] &&
		[ "$(without_results "$out")" = "$(without_results "$bare_out")" ]; then
		same=yes
	fi
	[ $same = yes ]
	check $? "$name: preloaded, exit status (0) and stdout are as bare" || {
		note "  exit status $bare_rc bare, $rc preloaded"
		diff "$bare_out" "$out" | head -n 15 | sed 's/^/#   /'
		show "$err" stderr
	}
	grep -i culimbo "$err" | head -n 5 | sed 's/^/# said: /'
	report=$logs/$name.report.$(fact producer)
	names "$report"
	check $? "$name: CULIMBO_REPORT=always writes the producer's report" ||
		show_report no "$report" "the producer's"
	forget_torch_files

	: >"$GPU_TEST_FACTS"
	CULIMBO_REPORT_FILE=$logs/$name.leak.%p \
		run "$name-leak" "$limit" "$culimbo" run -- "$@" leak
	[ "$rc" -eq 0 ]
	check $? "$name: preloaded, runs with a planted leak" || { told=no; show_run all; }
	producer=$(fact producer) consumer=$(fact consumer)
	report=$logs/$name.leak.$producer
	names "$report" "$(fact block)" "$consumer" && report_producer=yes
	[ $report_producer = yes ]
	check $? "$name: the producer's report names block $(fact block) and its holder $consumer"
	show_report $report_producer "$report" "the producer's"
	report=$logs/$name.leak.$consumer
	if names "$report" "$producer"; then
		if [ -z "$(fact import)" ] || names "$report" "$(fact import)" ||
			names "$report" "$(fact block)"; then
			report_consumer=yes
		fi
	fi
	[ $report_consumer = yes ]
	check $? "$name: the consumer's report names what it never closed, of $producer"
	show_report $report_consumer "$report" "the consumer's"
	forget_torch_files
	unset GPU_TEST_FACTS
	table+=("$(printf '%-14s %-8s %-10s %-12s %-10s %-16s %-16s %s' "$name" "$bare" \
		"$preloaded" "$same" "$told" "$report_producer" "$report_consumer" \
		"${seconds[$name-bare]:-?}/${seconds[$name-preloaded]:-?}")")
}

# python_client NAME MODULE CONTROL SECONDS SCRIPT [ARG]...
python_client()
{
	local name=$1 module=$2 control=$3 limit=$4 missing
	shift 4

	missing=$(python_lacks "$module")
	if [ -n "$missing" ]; then
		skip "$name" "$missing"
		table+=("$(printf '%-14s %s' "$name" "not run: $missing")")
		return
	fi
	client "$name" "$control" "$limit" python3 "$@"
}

# python_lacks MODULE: prints why it can't be used, or nothing
python_lacks()
{
	command -v python3 >/dev/null || { echo "no python3"; return; }
	timeout 20 python3 - "$1" <<-'EOF' || echo "no Python module $1"
	import importlib.util, sys
	try:
	    found = importlib.util.find_spec(sys.argv[1])
	except ImportError:
	    found = None
	sys.exit(found is None)
	EOF
}

# nested FILE: another TAP stream, indented so that it counts in its own plan alone
nested()
{
	sed 's/^/    /' "$1"
}

# tap_summary FILE: "N ok, M not ok"; fails when there is a failure, no line or a broken plan
tap_summary()
{
	local good bad plan

	good=$(grep -cE '^ok\b' "$1")
	bad=$(grep -E '^not ok\b' "$1" | grep -cvE '# *(TODO|todo)')
	plan=$(sed -n 's/^1\.\.\([0-9]*\).*/\1/p' "$1" | head -n 1)
	echo "$good ok, $bad not ok, plan ${plan:-missing}"
	[ "$bad" -eq 0 ] && [ "$good" -gt 0 ] && [ -n "$plan" ] &&
		[ "$(grep -cE '^(not )?ok\b' "$1")" -eq "$plan" ]
}

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

# compile NAME SOURCE FLAGS...: in the background; its status is looked at later
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

# built NAME: true when it was compiled just now, or (without nvcc) before
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
		-o "$conformance" "$here/conformance.c" -ldl -lpthread >"$logs/cc" 2>&1 ||
		show "$logs/cc" cc
fi
if [ -x "$conformance" ]; then
	run conformance 90 "$conformance"
	nested "$out"
	summary=$(tap_summary "$out") && [ "$rc" -eq 0 ]
	check $? "conformance: $summary" || show_run
else
	check 1 "conformance: the program is there"
fi

# ------------------------------------------------------------------- 2. e2e

note ""
note "2. the end-to-end scenarios on this GPU"
if [ -e "$here/../e2e/run.sh" ]; then
	run e2e 150 bash "$here/../e2e/run.sh" --gpu "$build"
	nested "$out"
	summary=$(tap_summary "$out") && [ "$rc" -eq 0 ]
	check $? "end to end: $summary, $took s" || show_run
else
	check 1 "end to end: tests/e2e/run.sh is there"
fi

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
note "6. cudaMalloc and cudaFree of 4 KiB, never exported (a first look, not the benchmark)"
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
	note "the program is not there"
fi

# --------------------------------------------------- 7. who shares nothing

note ""
note "7. PyTorch programs that share nothing"

# quiet NAME COMMAND...: the same output, no message, no file
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
# killed exporters leave their files to the next process that shares: this one
if built share-static; then
	run last 40 "$culimbo" run -- "$programs/share-static" last
fi
shm_after=$(comm -13 <(echo "$shm_before") <(shm_files))
[ -z "$shm_after" ]
check $? "no file of culimbo in /dev/shm" || printf '%s\n' "$shm_after" | sed 's/^/#   /'
[ "$strays" -eq 0 ]
check $? "no process left behind (killed: $strays)"

note ""
note "$(printf '%-14s %-8s %-10s %-12s %-10s %-16s %-16s %s' client bare preloaded \
	"same output" "with leak" "report: producer" "report: consumer" seconds)"
for line in "${table[@]}"; do
	note "$line"
done
echo "1..$number"
note "$passed passed, $failed failed, $skipped skipped, $SECONDS s"
[ "$failed" -eq 0 ]
