#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# However a run or the harness itself ends, the output names the seed, the step and the current call,
# and the exit status shows it.  This test plants each way to end (stage.c, plant()).
# Prints TAP.
set -u
# shellcheck source=tests/differential/common.sh
. "$(dirname "$0")/common.sh"
run=''
trap '[ -z "$run" ] || kill -9 "$run" 2> /dev/null; rm -rf "$tmp"' EXIT
export DIFFERENTIAL_TMP="$tmp"

# Seed 3 has two processes; DIFFERENTIAL_PLANT is SIDE:HOW:STEP[:PLAYER].
planted() { # PLANT STATUS PATTERN TEXT
	DIFFERENTIAL_PLANT=$1 DIFFERENTIAL_STALL_MS=${stall-20000} "$here/run.sh" --brief "$build" 3 > "$tmp/out" 2>&1
	[ $? -eq "$2" ] && says '^not ok 1 - seed 3: ' && says "$3" && says '^1\.\.2$'
	ok $? "$4"
}

at='at seed 3, step [0-9]+, P0 in c'
planted bare:crash:20:0 1 "^#   bare: ended by signal 11 .*, ${at}u[A-Za-z]+" "bare, a call crashes in the first process"
planted culimbo:crash:20:0 1 "^#   culimbo: ended by signal 11 .*, $at" "under culimbo a call crashes in the first process"
planted both:crash:20:0 1 '^# neither came to the end' "a call crashes on both sides: that also is a failure"
planted culimbo:crash:20:1 1 'stderr: player 1 ended by signal 11' "a call crashes in the second process"
planted culimbo:kill:20:1 1 'stderr: player 1 ended by signal 9' "the second process is killed"
planted culimbo:exit:20:1 1 'stderr: player 1 ended with exit status 3' "the second process exits"
says '^#   culimbo: gave up, .*, at seed 3, step [0-9]+, P1 in c'
ok $? "and the output has its current call"
planted bare:exit:20:0 1 "^#   bare: ended with exit status 3, $at" "the first process exits"
planted both:refuse:0:1 1 '^#   culimbo: gave up' "the driver never gives the second process a context"
says '^# seed 3: the driver gave a process no context, and that is the last time' &&
	says '^#   stderr: player 1 has no context: cuDevicePrimaryCtxRetain gave 999' && says '^# .*; 2 times the driver gave'
ok $? "and the output says that it was tried three times, and has the error"
: > "$tmp/once"
DIFFERENTIAL_PLANT=culimbo:refuse:0:1 DIFFERENTIAL_PLANT_ONCE=$tmp/once "$here/run.sh" --brief "$build" 3 > "$tmp/out" 2>&1
[ $? -eq 0 ] && says '^ok 1 - 1 seq' && says '^# seed 3: .*so it is played again' && says '; 1 times the driver gave'
ok $? "the driver refuses a context once: the sequence runs again"
for refused in bare:refuse:120:1/cuCtxCreate culimbo:refuse:11:0/cuGreenCtxCreate; do
	: > "$tmp/once"
	DIFFERENTIAL_PLANT=${refused%/*} DIFFERENTIAL_PLANT_ONCE=$tmp/once "$here/run.sh" --brief "$build" 3 > "$tmp/out" 2>&1
	[ $? -eq 0 ] && says '^ok 1 - 1 seq' && says "has no context: ${refused#*/} gave 999" && says '^# seed 3: .*so it is played again'
	ok $? "the driver refuses a ${refused#*/} once: the sequence runs again"
done
stall=2000 # ms; a process that only waits for a processor makes a call earlier than that
planted bare:hang:20:0 1 "^#   bare: killed, for nothing moved any more .*, $at" "bare, a call does not return"
planted culimbo:hang:20:1 1 '^#   culimbo: killed, .*, at seed 3, step [0-9]+, P1 in c' \
	"under culimbo, a call in the second process does not return"
planted both:hang:20:1 1 '^# neither came to the end' "a call does not return on both sides"

# The harness itself is ended while a call hangs.  The signal goes to run.sh or to the runner.
within() { # COMMAND: succeeds when COMMAND does within 20 s
	tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ $tries -lt 2000 ] || return 1
		sleep 0.01
	done
}
hangs() {
	grep -aqs 'step [2-9][0-9], P1 in c' "$tmp"/culimbo-differential.*/culimbo.at
}
gone() {
	! kill -0 "$1" 2> /dev/null
}
nothing_left() {
	! grep -alzs "^DIFFERENTIAL_UNDERWAY=$tmp/" /proc/[0-9]*/environ > "$tmp/left"
}
child_of() {
	for status in /proc/[0-9]*/status; do
		grep -qs "^PPid:[[:space:]]*$1\$" "$status" || continue
		status=${status#/proc/}
		echo "${status%/status}"
	done
}
ended_by() { # SIGNAL WHOM
	DIFFERENTIAL_PLANT=both:hang:20:1 DIFFERENTIAL_STALL_MS=60000 "$here/run.sh" --brief "$build" 3 > "$tmp/out" 2>&1 &
	run=$!
	within hangs || return 1
	whom=$run
	[ "$2" = run.sh ] || whom=$(child_of "$run")
	# shellcheck disable=SC2086 # it is a number
	kill "-$1" $whom
	wait "$run"
	status=$?
	run=''
}
ended_by TERM run.sh
[ "$status" -eq 143 ] && says '^not ok 1 - seed 3: ended by signal 15' && says '^1\.\.1$' &&
	says '^#   culimbo was at seed 3, step [0-9]+, P1 in c'
ok $? "run.sh gets SIGTERM: the output has the seed and the current call"
ended_by INT runner
[ "$status" -eq 130 ] && says '^not ok 1 - seed 3: ended by signal 2' && says '^#   bare was at seed 3, step '
ok $? "the runner gets SIGINT: the output has the seed and the current call"
ended_by KILL runner
[ "$status" -eq 137 ] && says '^Bail out! the runner was ended by signal 9, bare at seed 3, step [0-9]+, P1 in c.*, culimbo at seed 3'
ok $? "the runner is killed: the output has the seed and the current call"
ended_by KILL run.sh
within says '^not ok 1 - seed 3: ended by signal 15'
ok $? "run.sh is killed: the output has the seed and the current call"
within nothing_left
ok $? "no process of any run is left"
finish
