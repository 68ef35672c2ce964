#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Guards the cost of hooked calls.  harness.h counts their instructions.  Each call may
# execute a tenth more than expected-instructions.txt says.  It may make the system calls
# listed there and no others.  No process may wait for one that was stopped in such a call.
# A call for a pool's pointer may execute a tenth more than the same for a handle of cuIpcGetMemHandle().
# An exported block may take 128 bytes of the exporter's file, held by one process, and 128 of its own memory.
#
#   guard.sh [--record] [BUILD_DIR]
#
# --record (make bench-record) writes this compiler's counts into the file.  If no count was
# recorded for a build like this one, the bound is looser, and the test says so.
set -u
here=$(cd "$(dirname "$0")" && pwd)
record=
[ "${1-}" = --record ] && record=1 && shift
build=${1:-${top_builddir:-build}}
expected=$here/expected-instructions.txt
library=$build/.libs/libculimbo.so
scratch=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)/culimbo-guard.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir -m 700 "$scratch/limbo" "$scratch/sim"

# These make no system call at all; the others at most as many as were recorded.
silent='pair pair-async pair-pool pair-primary
	pair-sharing pair-async-sharing pair-pool-sharing pair-primary-sharing export-again export-refused free-not-exported
	free-into-limbo collect-nothing open-again close-again close-last
	free-into-limbo-stack close-last-stack
	pool-export-again pool-open-again pool-close-again pool-close-last pool-close-last-stack
	virtual-get-again async-alloc async-get-again'
# these are counted as well
others='open-new free-nobody-holds free-into-grace close-last-in-limbo open-new-stack pool-open-new pool-open-new-stack'

# these cost as much as those without pool-; doc/performance.md says what is left
as_legacy='pool-export-again pool-open-again pool-open-new pool-close-again pool-close-last pool-close-last-stack
	pool-open-new-stack'

# Prints NAME OURS LIBC SYSCALLS of each try.  NAME-stack: with call stacks, as by default, taken there before.
count() {
	{
		for what in 'calls 1000' 'importer 1000'; do
			# shellcheck disable=SC2086 # two words
			env CULIMBO_DIR="$scratch/limbo" CULIMBO_SIM_DIR="$scratch/sim" CULIMBO_REPORT=off \
				LD_LIBRARY_PATH="$build/tools/sim/.libs" LD_PRELOAD="$library" \
				"$build/tests/bench/bench" --count $what | grep -E '^pair' # the rest of it: below
			case $what in calls*) which=exporter ;; *) which=importer ;; esac
			for which in $which pool-$which; do
				CULIMBO_STACK=0 "$build/tests/bench/parts" --count $which 1000
				CULIMBO_STACK=8 "$build/tests/bench/parts" --count $which 1000 |
					sed 's/^\([a-z-]*\) count /\1-stack count /'
			done
		done
		CULIMBO_STACK=0 "$build/tests/bench/parts" --count virtual-exporter 1000
		CULIMBO_STACK=0 "$build/tests/bench/parts" --count async-exporter 1000
	} | sed -n 's/^\([a-z-]*\) count ours=\([0-9]*\)+\([0-9]*\) .*syscalls=\([0-9]*\):.*/\1 \2 \3 \4/p' \
		>> "$scratch/counts"
}

# Prints the least counts of operation $1 so far: OURS LIBC SYSCALLS
least() {
	awk -v name="$1" '$1 == name && (!n || $2 + $3 < a + b) { a = $2; b = $3; n = 1 }
		$1 == name && (c == "" || $4 < c) { c = $4 }
		END { if (n) print a, b, c }' "$scratch/counts"
}

key=$("$build/tests/bench/parts" built 0) || exit 1
if [ -n "$record" ]; then
	count && count && count
	{
		grep -vF "$key " "$expected" 2> /dev/null || :
		for name in $silent $others; do
			set -- $(least "$name")
			[ $# = 3 ] && echo "$key $name $1 $2 $3"
		done
	} > "$scratch/new" && cat "$scratch/new" > "$expected"
	grep -F "$key " "$expected"
	exit
fi

# shellcheck disable=SC2086 # words
set -- $silent $others
echo "1..$((2 * $# + 8 + $(echo "$as_legacy" | wc -w)))"
percent=10
if ! grep -qF "$key " "$expected"; then
	# at least the processor is the same; a build without optimisation executes several times as much
	machine=${key%% *}
	percent=60
	case $key in *-O0* | *-sanitized*) percent=900 ;; esac
	echo "# counts of this build ($key) were not recorded: compared with another's, with $percent % more allowed"
	key=$(grep "^$machine " "$expected" | head -n 1 | cut -d' ' -f1-3)
	[ -n "$key" ] || key=$(grep -v '^#' "$expected" | head -n 1 | cut -d' ' -f1-3)
	echo "# (recorded for: $key)"
fi

# Prints NAME COUNT LEGACY_COUNT of each call for a pool's pointer: all its instructions, and those of the same for a handle.
beside_legacy() {
	for name in $as_legacy; do
		awk -v name="$name" -v legacy="${name#pool-}" '$1 == name { a = $2 + $3 } $1 == legacy { b = $2 + $3 }
			END { print name, a + 0, b + 0 }' "$scratch/compared"
	done
}

# A hash may have a longer chain in one run than in another.  The collector may wait for a lock, which is one more
# system call.  So we take the least of up to ten counts.  We count again while a count that is judged below would fail.
for _ in 1 2 3 4 5 6 7 8 9 10; do
	count
	for name in $silent $others; do
		found=$(least "$name")
		want=$(awk -v key="$key $name " 'index($0, key) == 1 { print $5, $6, $7 }' "$expected")
		# shellcheck disable=SC2086 # words
		case " $(echo $silent) " in *" $name "*) want=${want:+${want% *} 0} ;; esac
		echo "$name ${found:-none} / ${want:-none}"
	done > "$scratch/compared"
	beside_legacy > "$scratch/beside"
	awk -v percent="$percent" '$2 == "none" || $6 == "none" || ($2 + $3) * 100 > ($6 + $7) * (100 + percent) || $4 > $8 { exit 1 }' \
		"$scratch/compared" &&
		awk -v percent="$percent" '!$2 || $2 * 100 > $3 * (100 + percent) { exit 1 }' "$scratch/beside" && break
done

n=0
result=0
verdict() {
	n=$((n + 1))
	if [ "$1" = 0 ]; then
		echo "ok $n - $2"
	else
		echo "not ok $n - $2"
		result=1
	fi
}
while read -r name ours libc calls _ want_ours want_libc want_calls; do
	if [ "$ours" = none ] || [ -z "${want_calls-}" ]; then
		verdict 1 "$name: counted and recorded"
		verdict 1 "$name: its system calls"
		continue
	fi
	[ $(((ours + libc) * 100)) -le $(((want_ours + want_libc) * (100 + percent))) ]
	verdict $? "$name: $ours instructions and $libc of libc's; $want_ours and $want_libc were recorded"
	[ "$calls" -le "$want_calls" ]
	verdict $? "$name: $calls system calls of ours, $want_calls expected"
done < "$scratch/compared"
while read -r name count legacy; do
	[ "$count" -gt 0 ] && [ $((count * 100)) -le $((legacy * (100 + percent))) ]
	verdict $? "$name: $count instructions in all; ${name#pool-}: $legacy"
done < "$scratch/beside"
CULIMBO_STACK=0 "$build/tests/bench/parts" exporter 100000 > "$scratch/memory"
CULIMBO_STACK=0 "$build/tests/bench/parts" pool-exporter 100000 | sed 's/^private/pool-private/' >> "$scratch/memory"
for name in shared-bytes-a-held-block private-bytes-a-block pool-private-bytes-a-block; do
	bytes=$(awk -v name="$name" '$1 == name { print $3 }' "$scratch/memory")
	awk -v bytes="${bytes:-none}" 'BEGIN { exit !(bytes != "none" && bytes <= 128) }'
	verdict $? "$name: ${bytes:-none}, 128 at most"
done
# shellcheck disable=SC2046 # words
set -- $(nm "$build/.libs/libculimbo.so" | awk '$3 ~ /^cl_(hook_cuMem(Alloc_v2|Free_v2|AllocAsync|FreeAsync|Create|Map|Unmap|Release)|virtual_(create|release|mapped|unmap_now)|range_add_locked)$/ { print $1 }' | sort | sed -n '1p;$p')
# without optimisation the compiler does not sort functions
[ "$percent" -ge 900 ] || { [ $# -eq 2 ] && [ $((0x$2 - 0x$1)) -le 16384 ]; }
verdict $? "what a program calls that shares nothing lies within $((0x${2:-0} - 0x${1:-0})) bytes of code, 16,384 at most (CL_HOT)"
# extent PATTERN: prints the first address of the symbols that match it, the one behind the last, and how many there are
extent()
{
	nm -S "$build/.libs/libculimbo.so" | awk -v pattern="^($1)\$" '$4 ~ pattern { print $1, $2 }' | sort | {
		first='' end=0 count=0
		while read -r at size; do
			first=${first:-$at} end=$((0x$at + 0x$size)) count=$((count + 1))
		done
		echo "$((0x${first:-0})) $end $count"
	}
}
# lies_within COUNT MOST: true if there are COUNT symbols, in MOST bytes.  Builds with a sanitizer or without optimisation are not judged
lies_within()
{
	[ "$percent" -ge 900 ] || { [ "$count" -eq "$1" ] && [ $((end - first)) -le "$2" ]; }
}
read -r first end count << END
$(extent 'cl_(options|driver|sharing_flag|self_word|async_made|descriptors_waiting|exports_lock)|known([.]lto_priv[.][0-9]+)?')
END
lies_within 8 4096
verdict $? "$count of the 8 things that it reads and writes of ours lie within $((end - first)) bytes of data, 4,096 at most (CL_HOT_DATA, CL_HOT_LOCKED)"
# some of each part of the library
read -r first end count << END
$(extent 'cl_(memory_(export|import|close|free)|export_publish_locked|block_(new|delete)|limbo_enter_locked|grace_add_locked|free_memory|record_(held|hold|unhold|publish)|hold_take_locked|mapping_add_locked|look_up|open_end|peer_get|stack_cache_find)')
END
lies_within 20 40960
verdict $? "$count of 20 functions that a share cycle calls lie within $((end - first)) bytes of code, 40,960 at most (CL_HOT_SHARING)"
read -r first end count << END
$(extent 'cl_(imports_lock|counts|context_unknown|contexts|holds|mappings)|imports([.]lto_priv[.][0-9]+)?')
END
lies_within 7 6144
verdict $? "$count of 7 things that it writes lie within $((end - first)) bytes of data, 6,144 at most (CL_HOT_SHARING_LOCKED)"
said=$("$build/tests/bench/parts" stopped 200 2>&1)
verdict $? 'nobody waits for an exporter or importer that is stopped amid its calls'
echo "$said" | sed 's/^/# /'
exit "$result"
