# SPDX-License-Identifier: Apache-2.0
#
# Runs clients, bare (without culimbo) and preloaded, and compares the two runs.
# A client is a program that knows nothing of culimbo.  run.sh sources this file
# on a GPU, python.sh on the simulated driver.  The sourcing script sets:
#   $logs      a folder
#   $deadline  the end of the whole run, in $SECONDS
#   how a program is run:

number=0 passed=0 failed=0 skipped=0
token='' strays=0
table=()
declare -A seconds=()


# ------------------------------------------------------------------------ TAP

note()
{
	printf '#%s\n' "${*:+ $*}"
}

# check STATUS TEXT: prints one TAP line, "ok" when STATUS is 0
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

# show FILE TITLE [LINES]: prints the end of a file as TAP comments
show()
{
	[ -s "$1" ] || { note "  ($2: empty)"; return; }
	note "  ($2, last lines:)"
	tail -n "${3:-15}" "$1" | cut -c1-300 | sed 's/^/#   /'
}

# Prints why the last run failed.
show_run()
{
	note "  exit status $rc after ${took} s"
	show "$err" stderr
	[ "${1:-}" = all ] && show "$out" stdout
	return 0
}

# ------------------------------------------------------------------ processes

# live TOKEN: prints the processes of a run.  Each has GPU_TEST_RUN=TOKEN in its environment, even
# when it started a session of its own.  Zombies have no environment and are not listed.
live()
{
	grep -lzsx "GPU_TEST_RUN=$1" /proc/[0-9]*/environ | sed 's,^/proc/\([0-9]*\)/.*,\1,'
}

# Kills the remaining processes of a run and prints how many there were.
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

# run NAME SECONDS COMMAND...: runs COMMAND in a session of its own and waits for every process
# that it started.  Sets rc, out, err and took.
run()
{
	local name=$1 limit=$2 left=$((deadline - SECONDS)) start i killed
	shift 2

	out=$logs/$name.out err=$logs/$name.err took=0
	: >"$out"
	: >"$err"
	if [ "$left" -lt 3 ]; then
		echo "not run: the limit GPU_TEST_SECONDS has passed" >"$err"
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
	# a consumer ends shortly after its producer
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
	[ "$rc" -eq 124 ] && echo "(killed: it ran longer than its limit of $limit s)" >>"$err"
	return 0
}

# ------------------------------------------------------------------- clients

# results FILE: prints which "result=" values FILE has: own, foreign, none, or foreign+own
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

# fact KEY: prints the last value that the client wrote for KEY
fact()
{
	sed -n "s/^$1=//p" "$GPU_TEST_FACTS" 2>/dev/null | tail -n 1
}

# show_report STATUS FILE WHOSE: prints the report; a correct report (STATUS 0) is part of the results
show_report()
{
	if [ -s "$2" ]; then
		show "$2" "$3 report" "$([ "$1" = yes ] && echo 12 || echo 40)"
	else
		note "  (no $3 report; there are:" "$(cd "$logs" && echo ./*.report.* ./*.leak.*)" ")"
	fi
}

# prints the sum of KEY over the SUMMARY lines of the reports of NAME
summed() # NAME KEY
{
	cat "$logs/$1".report.* 2>/dev/null |
		sed -n "s/.*SUMMARY .*\\b$2=\\([0-9]*\\).*/\\1/p" | awk '{ n += $1 } END { print n + 0 }'
}

# one WHICH NAME ROUND SECONDS COMMAND...: WHICH is bare or preloaded; appends the time to NAME-WHICH.times
one()
{
	local which=$1 name=$2 round=$3 limit=$4 start
	shift 4

	start=${EPOCHREALTIME/./}
	export GPU_TEST_FACTS=$logs/$name-$which-$round.facts
	: >"$GPU_TEST_FACTS"
	if [ "$which" = bare ]; then
		run "$name-bare-$round" "$limit" "${bare_by[@]}" "$@"
	else
		CULIMBO_REPORT=always CULIMBO_REPORT_FILE=$logs/$name.report.%p CULIMBO_DIR=$logs/limbo \
			run "$name-preloaded-$round" "$limit" "${preloaded_by[@]}" "$@"
	fi
	elapsed=$((${EPOCHREALTIME/./} - start))
	# the client may report its own time
	elapsed=$(sed -n 's/^us=//p' "$GPU_TEST_FACTS" | grep . || echo "$elapsed")
	echo "$elapsed" >>"$logs/$name-$which.times"
	unset GPU_TEST_FACTS
}

# median FILE: prints the median
median()
{
	sort -n "$1" | awk '{ v[NR] = $1 } END { print NR ? (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 : 0 }'
}

# times NAME: prints the medians and their ratio as a comment, and sets $told
times()
{
	told=$(awk -v bare="$(median "$logs/$1-bare.times")" -v ours="$(median "$logs/$1-preloaded.times")" \
		'BEGIN { if (bare > 0) printf "%.0f us bare, %.0f us under culimbo, ratio %.3f", bare, ours, ours / bare }')
	note "$1: $told"
}

# names FILE WORD...: true when the report has its summary line and contains each WORD.  A WORD is a
# pid or an address; an address matches with any number of leading zeros.
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

# forget_torch_files: removes the files that PyTorch leaves in /dev/shm when its process ends by _exit
forget_torch_files()
{
	local pid

	for pid in $(fact producer) $(fact consumer); do
		rm -f "/dev/shm/torch_${pid}_"*
	done
}

# client NAME CONTROL SECONDS COMMAND...
# CONTROL is the result that the bare run must show ("foreign"), or "-" for any result.
# With "leak" as one more argument COMMAND leaks a block and an import.
client()
{
	local name=$1 control=$2 limit=$3 bare bare_rc bare_out preloaded told=ok
	local same=no report_producer=no report_consumer=no report producer consumer
	shift 3

	run "$name-bare" "$limit" "${bare_by[@]}" "$@"
	bare=$(results "$out") bare_rc=$rc bare_out=$out
	check "$rc" "$name: runs bare" || show_run all
	case $control in
	-) note "$name: bare result is $bare" ;;
	*)
		[ "$bare" = "$control" ]
		check $? "$name: bare, the consumer reads $control bytes (it read: $bare)" ||
			show_run all
		;;
	esac

	export GPU_TEST_FACTS=$logs/$name.facts
	: >"$GPU_TEST_FACTS"
	CULIMBO_REPORT=always CULIMBO_REPORT_FILE=$logs/$name.report.%p \
		run "$name-preloaded" "$limit" "${preloaded_by[@]}" "$@"
	preloaded=$(results "$out")
	[ "$preloaded" = own ]
	check $? "$name: preloaded, the consumer reads its own bytes (it read: $preloaded)" ||
		show_run all
	if [ "$rc" -eq 0 ] && [ "$bare_rc" -eq 0 ] &&
		[ "$(without_results "$out")" = "$(without_results "$bare_out")" ]; then
		same=yes
	fi
	[ $same = yes ]
	check $? "$name: preloaded, exit status (0) and stdout are the same as bare" || {
		note "  exit status $bare_rc bare, $rc preloaded"
		diff "$bare_out" "$out" | head -n 15 | sed 's/^/#   /'
		show "$err" stderr
	}
	grep -i culimbo "$err" | head -n 5 | sed 's/^/# said: /'
	[ -z "$(fact version)" ] || note "version of $name: $(fact version)"
	report=$logs/$name.report.$(fact producer)
	names "$report"
	check $? "$name: CULIMBO_REPORT=always writes the producer's report" ||
		show_report no "$report" "the producer's"
	forget_torch_files

	: >"$GPU_TEST_FACTS"
	CULIMBO_REPORT_FILE=$logs/$name.leak.%p \
		run "$name-leak" "$limit" "${preloaded_by[@]}" "$@" leak
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
	# who ends first tells a leak, with both sides; the other one is then silent
	[ $report_consumer = yes ] || [ $report_producer = no ] || [ -s "$report" ] || report_consumer=told
	[ $report_consumer != no ]
	check $? "$name: the consumer's report names the import from $producer that it never closed, or the producer's does and the consumer is silent"
	show_report ${report_consumer/told/yes} "$report" "the consumer's"
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

# python_lacks MODULE: prints why MODULE cannot be imported; prints nothing when it can
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

# fetch NAME PACKAGE...: installs the packages with pip into $packages, unless that is done, and sets
# PYTHONPATH.  Returns false when pip cannot get them.
fetch()
{
	local at=$packages/$1
	shift

	export PYTHONPATH=$at
	[ ! -e "$at/complete" ] || return 0
	mkdir -p "$packages"
	timeout 240 python3 -m pip install --quiet --disable-pip-version-check --no-input \
		--no-deps --only-binary=:all: --retries 1 --timeout 20 --root-user-action=ignore \
		--target "$at.$$" "$@" >"$logs/pip" 2>&1 || { rm -rf "$at.$$"; return 1; }
	touch "$at.$$/complete"
	# a test that runs at the same time may have installed them first
	mv -T "$at.$$" "$at" 2>/dev/null || rm -rf "$at.$$"
	[ -e "$at/complete" ]
}

# nested FILE: prints another TAP stream indented, so that its tests are not counted in this plan
nested()
{
	sed 's/^/    /' "$1"
}

# tap_summary FILE: prints "N ok, M not ok".  Fails when a test failed, FILE is empty or its plan is wrong.
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
