#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Searches handshake.pml with spin: the model must have no error, and each planted
# fault must give one.  Prints TAP.
#
#   run.sh         sizes that take seconds, and the planted faults (in `check`)
#   run.sh full    also the large sizes: about 25 minutes of one processor, 12 GiB
#                  (make check-model-full)
#
# Every search must cover its size completely, or the test fails: it must not reach
# the depth limit or run out of memory.
set -u
model=${top_srcdir:?}/tests/model/handshake.pml
if ! command -v spin > /dev/null; then
	echo '1..0 # SKIP no spin (Debian: spin)'
	exit 0
fi
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 99

# size: NAME|MACROS.  The head of the model explains what each macro adds.
sizes=(
	'2 records, 2 importers, one dies|-DRECORDS=2'
	'3 importers for 2 slots, one dies|-DIMPORTERS=3 -DSLOTS=2'
	'2 generations, store buffers, asking again|-DBUFFERS -DGENERATIONS=2 -DTRIES=2'
	'the collector sleeps; exporter, reaper and importer die|-DSLEEP -DREAPER_KILLS=1 -DEXPORTER_DIES'
	'words read one by one, contexts that end, 2 generations|-DWORDS -DORPHANED -DGENERATIONS=2 -DTRIES=2'
	'two die and come again, the reaper dies|-DREBORN -DKILLS=2 -DREAPER_KILLS=1'
	'one slot that goes from the dead to the next|-DREBORN -DSLOTS=1 -DKILLS=2 -DREAPER_KILLS=1 -DGENERATIONS=2'
)
large=(
	'2 records of one exporter, 3 importers, one dies|-DRECORDS=2 -DIMPORTERS=3 -DSYMMETRY'
	'2 exporters, 3 importers, one dies|-DRECORDS=2 -DFILES=2 -DIMPORTERS=3 -DSYMMETRY'
	'2 exporters, 2 importers, one dies|-DRECORDS=2 -DFILES=2'
	'3 importers with 3 words, store buffers|-DIMPORTERS=3 -DWORDS -DBUFFERS'
	'2 records, both held by one that dies|-DRECORDS=2 -DOPENS=2'
	'2 records, 2 generations, all may die|-DRECORDS=2 -DGENERATIONS=2 -DREAPER_KILLS=1 -DEXPORTER_DIES'
)
# fault: NAME|MACROS|PAN'S OPTIONS|WHAT IT MUST SAY
faults=(
	'a missing fence: freed while held|-DMISSING_FENCE -DBUFFERS -DKILLS=0|-E|assertion violated .*has'
	'opens set to 0 after the record is published: a holder that is not counted|-DRESET_LATE -DKILLS=0|-E|assertion violated opened'
	'a bit cleared in two steps: freed while held|-DTWO_STEP_RELEASE -DKILLS=0|-E|assertion violated .*has'
	'the slot freed before its bits: a slot with bits|-DSLOT_BEFORE_BITS -DREAPER_KILLS=1 -DREBORN|-E|assertion violated .*bits'
	'closing after the bit: a block that never comes back|-DBIT_BEFORE_CLOSING||invalid end state'
)
# The small sizes fit into memory as they are.  They are searched in seconds, so the compiler's time counts.
hash=22 compile=-Og
if [ "${1-}" = full ]; then
	sizes+=("${large[@]}")
	hash=27 compile='-O1 -DCOLLAPSE'
fi

n=0
bad=0
result() { # OK-OR-NOT TEXT
	n=$((n + 1))
	[ "$1" = ok ] || bad=$((bad + 1))
	echo "$1 $n - $2"
}

search() { # MACROS [PAN'S OPTIONS]; the output is in ./out
	rm -f pan pan.* ./*.trail
	# shellcheck disable=SC2086 # lists of options
	spin -a $1 "$model" > out 2>&1 &&
		${CC:-cc} $compile -w -DSAFETY -DMEMLIM=20000 -o pan pan.c >> out 2>&1 &&
		./pan -m100000 -w"$hash" ${2-} > out 2>&1
}

total=0
echo "1..$((${#sizes[@]} + ${#faults[@]}))"
for size in "${sizes[@]}"; do
	IFS='|' read -r name macros <<< "$size"
	search "$macros"
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' out)
	if grep -q 'errors: 0$' out && [ -n "$states" ] &&
		! grep -qE 'not completed|max search depth|out of memory|pan:' <(grep -v 'pan: \(elapsed\|rate\)' out); then
		result ok "$name: no error"
		echo "# $states states: $macros"
		total=$(awk -v a="$total" -v b="$states" 'BEGIN { printf "%.0f", a + b }')
	else
		result 'not ok' "$name: no error"
		sed 's/^/# /' out
	fi
done
compile=-O0
for fault in "${faults[@]}"; do
	IFS='|' read -r name macros options says <<< "$fault"
	search "$macros" "$options"
	if grep -q "$says" out && grep -q 'errors: 1$' out; then
		result ok "planted: $name"
	else
		result 'not ok' "planted: $name"
		sed 's/^/# /' out
	fi
done
echo "# model: searches=${#sizes[@]} states=$total planted=${#faults[@]} errors=$bad"
[ "$bad" -eq 0 ]
