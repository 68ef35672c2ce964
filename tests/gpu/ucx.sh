#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests culimbo with UCX: UCX's own tests must give the same results bare and
# preloaded, and its benchmark must be as fast.
#
#	bash tests/gpu/ucx.sh BUILD_DIR UCX_PREFIX [ROUNDS] (default: 7 rounds)
#
# BUILD_DIR has .libs/libculimbo.so.  UCX_PREFIX has bin/ucx_perftest, bin/gtest
# and UCX's libraries in lib and lib/ucx; README.md says how to build them.
#
#  1. gtest: prints each test's result bare and preloaded, and the differences.
#     After a crash a new process runs the remaining tests.  A test that differs runs again bare, alone, three
#     times at most: if one of these runs gives what the preloaded one gave, it is no difference.
#  2. ucx_perftest, two processes on one GPU: microseconds for each operation, bare
#     and preloaded by turns; order_of() says in which order.  One pair of
#     processes runs all tests of a variant (-b).  Then the same without UCX's hooks.
#     Rows "(bare)" compare bare with bare: they show the noise.
#     Rows "stackl" run without call stacks (CULIMBO_STACK=0).
#     ucx_table.py judges the times.  A process is fast or slow as a whole: bare runs of
#     tag_bw differ by a quarter.  So many rounds of short runs say more than few long ones.
#
# The exit status is 1 when a test's result differs, or when fewer than seven rounds of ROUNDS
# fitted into UCXTEST_PERF_SECONDS.  It is 1, too, when an operation with UCX's hooks on is surely
# slower than UCXTEST_RATIO.  The last line says how many ratios are not sure.
#
#	UCXTEST_ONLY=gtest or =perf   runs only that part
#	UCXTEST_RATIO=1.03            the highest ratio that passes
#	UCXTEST_GTEST_FILTERS="A B"   filters of gtest, a run for each
#	UCXTEST_GTEST_SECONDS=100     for all runs of gtest bare, and the same preloaded
#	UCXTEST_GTEST_WATCHDOG=30     seconds after which a test counts as hung
#	UCXTEST_TESTS="ucp_get:65536"  only these tests of ucx_perftest
#	UCXTEST_VARIANTS="bare culimbo again"  only these variants
#	UCXTEST_PERF_MS=250           how long each test of ucx_perftest measures, in
#	UCXTEST_STRETCHES=3           stretches; the fastest counts, as what other programs do to a
#	                              processor or a GPU can only make a stretch slower
#	UCXTEST_PERF_SECONDS=240      no round starts that would end later
#	UCXTEST_PAIR_SECONDS=30       for one pair of processes
#	UCXTEST_MEMORY=cuda           the benchmark's memory; host needs no GPU, with UCX_TLS=sm,self
#	UCXTEST_ROUNDS=FILE           the times go to FILE as they come, so a run that is cut off leaves them;
#	                              ucx_table.py FILE judges them
#	UCXTEST_KEEP=1                keep the logs

set -u -f
export LC_ALL=C
unset LD_PRELOAD "${!CULIMBO_@}"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
build=$(cd "${1:?usage: ucx.sh BUILD_DIR UCX_PREFIX [ROUNDS]}" && pwd) || exit 2
ucx=$(cd "${2:?usage: ucx.sh BUILD_DIR UCX_PREFIX [ROUNDS]}" && pwd) || exit 2
rounds=${3:-7}
library=$build/.libs/libculimbo.so
limit=${UCXTEST_RATIO:-1.03}
filters=${UCXTEST_GTEST_FILTERS:-*cuda_hooks* *cuda_ipc* *memtype_cache*}
only=${UCXTEST_ONLY:-gtest perf}
memory=${UCXTEST_MEMORY:-cuda}
for file in "$library" "$ucx/bin/gtest" "$ucx/bin/ucx_perftest"; do
	[ -e "$file" ] || { echo "there is no $file"; exit 2; }
done

export LD_LIBRARY_PATH=$ucx/lib:$ucx/lib/ucx${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export UCX_TLS=${UCX_TLS:-cuda_ipc,cuda_copy,sm,self}
export UCX_HANDLE_ERRORS=${UCX_HANDLE_ERRORS:-bt} UCX_WARN_UNUSED_ENV_VARS=n
took=0 bad=0 unsure=''
logs=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-ucx.XXXXXX") || exit 2
rounds_file=${UCXTEST_ROUNDS:-$logs/rounds}
server='' client=''

# shellcheck disable=SC2317 # the trap calls it
finish()
{
	for pid in $server $client; do
		kill -TERM "$pid" 2>/dev/null
	done
	if [ "${UCXTEST_KEEP:-0}" = 1 ]; then
		echo "logs: $logs"
	else
		rm -rf "$logs"
	fi
}
trap finish EXIT
trap 'exit 130' HUP INT TERM

# variables VARIANT: prints the environment variables of its processes
variables()
{
	case $1 in *culimbo) echo "LD_PRELOAD=$library" ;; esac
	case $1 in none-*) echo "UCX_MEM_CUDA_HOOK_MODE=none" ;; esac
	case $1 in stackless-*) echo "CULIMBO_STACK=0" ;; esac
}

# ---------------------------------------------------------------------- gtest

# Prints the result of each test in a log of gtest: NAME RESULT.  A test without an
# end is the one in which the process ended; its result is @last.
gtest_results()
{
	awk -v last="$1" '
		/^\[ RUN / { name = $4; next }
		name == "" { next }
		/^\[ +OK +\]/ { result = "passed" }
		/^\[ +FAILED +\]/ { result = "failed" }
		/^\[ +SKIPPED +\]/ { result = "skipped" }
		result != "" { print name, result; name = result = "" }
		END { if (name != "") print name, last }'
}

declare -A left=([bare]=${UCXTEST_GTEST_SECONDS:-100} [culimbo]=${UCXTEST_GTEST_SECONDS:-100})

# gtest VARIANT FILTER LOG: writes LOG and LOG.results, sets took.  True when gtest ran to its end
gtest()
{
	local variant=$1 filter=$2 log=$3 deadline=$((SECONDS + left[$1]))
	local done='' rc=0 part=$3.part vars began=$SECONDS pattern
	mapfile -t vars < <(variables "$variant")

	: >"$log"
	: >"$log.results"
	took=0
	while [ $SECONDS -lt $deadline ]; do
		case $filter in
		*-*) pattern=$filter${done:+:$done} ;;
		*) pattern=$filter${done:+-$done} ;;
		esac
		# gtest's own watchdog ends a test that hangs; UCX_TLS is for the benchmark
		{
			timeout -k 3 $((deadline - SECONDS)) env -u UCX_TLS "${vars[@]}" \
				"$ucx/bin/gtest" -s 1 -t "${UCXTEST_GTEST_WATCHDOG:-30}" \
				--gtest_filter="$pattern" >"$part" 2>&1 </dev/null
			rc=$?
		} 2>>"$logs/shell"
		cat "$part" >>"$log"
		case $rc in
		124 | 137) gtest_results hung <"$part" >>"$log.results" ;;
		*) gtest_results "crashed($rc)" <"$part" >>"$log.results" ;;
		esac
		took=$((SECONDS - began))
		left[$variant]=$((deadline - SECONDS))
		grep -q '^\[==========\].* ran\.' "$part" && return 0
		grep -q '^\[ RUN ' "$part" || break
		done=$(cut -d' ' -f1 "$log.results" | paste -sd:)
	done
	echo "  $variant: did not finish in $took s (exit status $rc); the last lines:"
	tail -n 6 "$log" | cut -c1-200 | sed 's/^/    /'
	return 1
}

count()
{
	awk '{ n[$2 ~ /^(passed|skipped)$/ ? $2 : "failed"]++ }
	     END { printf "%d passed, %d failed, %d skipped", n["passed"], n["failed"], n["skipped"] }' "$1"
}

# said LOG NAME: prints the first lines of the log between the test's start and its end
said()
{
	awk -v name="$2" '
		/^\[ RUN / { on = ($4 == name); next }
		/^\[ +(OK|FAILED|SKIPPED) +\]/ { on = 0 }
		on && n++ < 6 { print "      " substr($0, 1, 180) }' "$1"
}

# happens_bare NAME RESULT LOG: true when bare gives @RESULT in one of three runs of that test alone
happens_bare()
{
	local i

	for i in 1 2 3; do
		left[bare]=40
		gtest bare "$1" "$3-again" >/dev/null
		grep -qxF "$1 $2" "$3-again.results" && return 0
	done
	return 1
}

compare_gtest()
{
	local filter name bare ours log number=0 whole differ

	for filter in $filters; do
		number=$((number + 1))
		log=$logs/gtest-$number
		echo
		echo "gtest $filter"
		gtest bare "$filter" "$log-bare" && whole=1 || whole=0
		printf '  bare:    %s, %d s\n' "$(count "$log-bare.results")" $took
		gtest culimbo "$filter" "$log-culimbo"
		printf '  culimbo: %s, %d s\n' "$(count "$log-culimbo.results")" $took
		grep -q ' passed$' "$log-bare.results" || {
			echo "  no test passes bare: nothing to compare"
			bad=1
		}
		# where bare ran out of time, a test that either run did not reach says nothing
		awk -v whole=$whole '
			!whole && $2 == "hung" { next }
			FILENAME == ARGV[1] { bare[$1] = $2; next }
			{ ours[$1] = $2 }
			END {
				for (name in bare)
					if (!(name in ours) ? whole : ours[name] != bare[name])
						print name, bare[name], name in ours ? ours[name] : "not-run"
				for (name in ours)
					if (whole && !(name in bare))
						print name, "not-run", ours[name]
			}' "$log-bare.results" "$log-culimbo.results" | sort >"$log.differ"
		differ=0
		while read -r name bare ours; do
			if happens_bare "$name" "$ours" "$log"; then
				echo "  $name: bare $bare, culimbo $ours; and bare $ours when it runs again: no difference"
				continue
			fi
			differ=$((differ + 1))
			echo "  DIFFERS: $name: bare $bare, culimbo $ours"
			[ "$ours" = passed ] || said "$log-culimbo" "$name"
		done < <(head -n 20 "$log.differ")
		if [ $differ -gt 0 ]; then
			bad=1
			echo "  $differ tests differ, of $(wc -l <"$log.differ") at first"
		else
			echo "  no test differs$([ $whole -eq 1 ] || echo " of those that both runs reached")"
		fi
	done
}

# ------------------------------------------------------------------- perftest

tests=(ucp_get:65536 ucp_get:1048576 ucp_put_bw:65536 ucp_put_bw:1048576
	tag_lat:65536 tag_lat:1048576 tag_bw:65536 tag_bw:1048576)
# again: bare a second time; the difference is the noise
variants=(bare culimbo again none-bare none-culimbo stackless-culimbo)
read -ra tests <<<"${UCXTEST_TESTS:-${tests[*]}}"
read -ra variants <<<"${UCXTEST_VARIANTS:-${variants[*]}}"
stretches=${UCXTEST_STRETCHES:-3}
port=$((20000 + $$ % 20000))
# each process is bound to one processor: without that, one variant's times spread by a quarter
pin_server=() pin_client=()
if command -v taskset >/dev/null && [ "$(nproc)" -ge 8 ]; then
	pin_server=(taskset -c 2)
	pin_client=(taskset -c 4)
fi

# batch STRETCHES TEST:SIZE:COUNT...: lines for ucx_perftest -b; all tests by turns, STRETCHES times
batch()
{
	local test size count stretch stretches=$1

	shift
	for ((stretch = 0; stretch < stretches; stretch++)); do
		for line in "$@"; do
			IFS=: read -r test size count <<<"$line"
			echo "$test:$size -t $test -s $size -m $memory -n $count -w $((count / 10 + 10))"
		done
	done
}

listening()
{
	grep -q "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") [0-9A-F]*:0000 0A " /proc/net/tcp
}

# ended PID SECONDS: waits for a process of this script and kills it after SECONDS
ended()
{
	local until=$((SECONDS + $2))

	while kill -0 "$1" 2>/dev/null; do
		[ $SECONDS -ge $until ] && kill -TERM "$1" 2>/dev/null && break
		sleep 0.02
	done
	wait "$1"
}

# pair VARIANT BATCH LOG RESULTS WORDS: for each test that finished, appends a line
# WORDS TEST:SIZE MICROSECONDS to RESULTS.  MICROSECONDS is the least of a test's stretches.
pair()
{
	local vars seconds=${UCXTEST_PAIR_SECONDS:-30} until
	mapfile -t vars < <(variables "$1")

	port=$((port + 1))
	timeout -k 2 "$seconds" env "${vars[@]}" "${pin_server[@]}" "$ucx/bin/ucx_perftest" -p $port -b "$2" \
		>"$3.server" 2>&1 </dev/null &
	server=$!
	until=$((SECONDS + 10))
	until listening $port || [ $SECONDS -ge $until ] || ! kill -0 $server 2>/dev/null; do
		sleep 0.02
	done
	timeout -k 2 "$seconds" env "${vars[@]}" "${pin_client[@]}" "$ucx/bin/ucx_perftest" 127.0.0.1 -p $port \
		-b "$2" -f -v >"$3.client" 2>&1 </dev/null &
	client=$!
	ended $client "$seconds"
	client=''
	ended $server 3
	server=''
	# name, iterations, median, average, overall, ...
	awk -F, -v words="$5" '
		NF >= 9 && $1 ~ /^[a-z_]+:[0-9]+$/ && $5 + 0 > 0 && (!($1 in us) || $5 + 0 < us[$1]) { us[$1] = $5 + 0 }
		END { for (test in us) print words, test, us[test] }' "$3.client" >>"$4"
} 2>>"$logs/shell"

# plan VARIANT: sets the number of operations that take UCXTEST_PERF_MS: bare's number, unless this
# variant needs much more time
plan()
{
	local hooks=${1%culimbo}

	[ "$hooks" != stackless- ] || hooks=
	awk -v ms="${UCXTEST_PERF_MS:-250}" -v stretches="$stretches" -v hooks="$hooks" -v variant="$1" '
		BEGIN { control = hooks == variant ? variant : hooks "bare" }
		$1 == control { us[$2] = $3 }
		$1 == variant { ours[$2] = $3 }
		END {
			for (test in us) {
				each = us[test]
				if (ours[test] > 1.5 * each)
					each = ours[test]
				# a latency test prints half of a round trip
				n = int(ms * 1000 / stretches / each / (test ~ /_lat/ ? 2 : 1))
				print test ":" (n < 20 ? 20 : n)
			}
		}' "$logs/first" | sort
}

# order_of ROUND VARIANT...: prints the variants that play in that round, in its order.  In as many rounds as there are
# variants each has each place once; then the same again backwards.
order_of()
{
	local round=$1 first backwards variant plays=()

	for variant in "${@:2}"; do
		# UCX without its hooks, and culimbo without call stacks, are side questions: a few rounds are enough
		case $variant in none-* | stackless-*) [ "$round" -le 3 ] || continue ;; esac
		plays+=("$variant")
	done
	first=$(((round - 1) % ${#plays[@]})) backwards=$(((round - 1) / ${#plays[@]} % 2))
	set -- "${plays[@]:first}" "${plays[@]:0:first}"
	if [ $backwards -eq 1 ]; then printf '%s\n' "$@" | tac; else printf '%s\n' "$@"; fi
}

compare_perf()
{
	local variant round order began=$SECONDS longest=0 line log wanted

	: >"$rounds_file" || { bad=1; return; }
	echo
	echo "ucx_perftest, $memory memory, two processes, UCX_TLS=$UCX_TLS"
	batch 1 "${tests[@]/%/:200}" >"$logs/batch-first"
	for variant in "${variants[@]}"; do
		# the memory hooks also print their state here
		UCX_MEM_LOG_LEVEL=info pair "$variant" "$logs/batch-first" "$logs/first-$variant" \
			"$logs/first" "$variant"
		wanted=$(grep -c "^$variant " "$logs/first")
		line=$(grep -ohE 'cuda memory hooks.*|failed to install .* hook.*' \
			"$logs/first-$variant.client" | sort -u | paste -sd';')
		echo "  $variant: $wanted of ${#tests[@]} tests; ${line:-UCX printed nothing about its hooks}"
		[ "$wanted" -eq ${#tests[@]} ] ||
			tail -n 4 "$logs/first-$variant.client" | cut -c1-200 | sed 's/^/    /'
		mapfile -t line < <(plan "$variant")
		batch "$stretches" "${line[@]}" >"$logs/batch-$variant"
	done
	if ! grep -q '^bare ' "$logs/first"; then
		echo "  the benchmark does not run bare: nothing to compare"
		bad=1
		return
	fi

	for ((round = 1; round <= rounds; round++)); do
		[ $((SECONDS - began + longest)) -le "${UCXTEST_PERF_SECONDS:-240}" ] || break
		log=$SECONDS
		mapfile -t order < <(order_of "$round" "${variants[@]}")
		for variant in "${order[@]}"; do
			pair "$variant" "$logs/batch-$variant" "$logs/$round-$variant" \
				"$rounds_file" "$round $variant"
		done
		[ $((SECONDS - log)) -le $longest ] || longest=$((SECONDS - log))
	done
	echo "  $((round - 1)) rounds of $rounds, $((SECONDS - began)) s"
	echo
	python3 "$here/ucx_table.py" --limit "$limit" --least $((rounds < 7 ? rounds : 7)) "$rounds_file" >"$logs/table" || bad=1
	cat "$logs/table"
	unsure=$(sed -n '$s/ not sure$/ not sure, /p' "$logs/table")
	echo
	echo "us an operation in each round:"
	awk '{ line = sprintf("%-16s %s", $3, $2); if (!(line in all)) order[++n] = line; all[line] = all[line] " " $4 }
		END { for (i = 1; i <= n; i++) print "  " order[i] ":" all[order[i]] }' "$rounds_file" | sort
}

# ----------------------------------------------------------------------- main

echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ), kernel: $(uname -srm), $(nproc) processors"
command -v nvidia-smi >/dev/null && timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total \
	--format=csv,noheader | sed 's/^/GPU, driver, memory: /'
echo "UCX: $("$ucx/bin/ucx_info" -v 2>/dev/null | sed -n 's/^# Library version: //p')," \
	"culimbo: $("$build/tools/culimbo" --version 2>&1 | head -n 1)"
case $only in *gtest*) compare_gtest ;; esac
case $only in *perf*) [ "$rounds" -gt 0 ] && compare_perf ;; esac
echo
[ $bad -eq 0 ] && echo "UCX: unharmed, $unsure$SECONDS s" || echo "UCX: HARMED, $unsure$SECONDS s"
exit $bad
