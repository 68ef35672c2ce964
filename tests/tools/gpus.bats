#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# culimbo ps: the GPUs, one process alone, and another order.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
	export CULIMBO_GRACE=1h
}
teardown() {
	share_teardown
}

# P has freed two blocks of 3 MiB, of which C holds the first, and one of 1 MiB is exported
scene() {
	start P
	start C
	tell P "export 3145728 2"
	tell C "open $SAID"
	tell P "export 1048576 1"
	tell P "free 2"
}

MINE=GPU-63756c69-6d62-6f2d-7369-6d0000000000

@test "ps --gpus: the shared memory of each GPU; used and free memory are unknown without NVIDIA's library" {
	run --separate-stderr "$C" ps --gpus --json
	exits 0
	[ "$(jq -c . <<< "$output")" = '{"gpus":[]}' ]
	scene
	run --separate-stderr "$C" ps --gpus
	exits 0
	[[ ${lines[0]} =~ ^GPU\ +USED\ +FREE\ +EXPORTED\ +HELD\ +LIMBO\ +PINNED\ +UUID$ ]]
	[[ ${lines[1]} =~ ^-\ +-\ +-\ +1M\ +3M\ +8M\ +3M\ +$MINE$ ]]
	[[ $stderr == "Used and free memory are not known: libnvidia-ml.so.1: "* ]]
	run --separate-stderr "$C" ps --gpus --json
	[ -z "$stderr" ]
	jq -e --arg mine $MINE '.gpus == [{gpu: null, name: null, used_bytes: null, free_bytes: null,
		exported_bytes: 1048576, held_bytes: 3145728, limbo_bytes: 8388608, pinned_bytes: 3145728, uuid: $mine}]' <<< "$output"
	# what a dead process left is pinned by who holds it, and no limbo
	die P
	[ "$("$C" ps --gpus --raw --noheadings -o EXPORTED,HELD,LIMBO,PINNED)" = "0B 3M 0B 3M" ]
}

@test "ps --gpus: with NVIDIA's library, used and free memory, names, and GPUs without sharing" {
	scene
	fake_nvml
	LD_LIBRARY_PATH=$PWD run --separate-stderr "$C" ps --gpus --raw -o GPU,NAME,USED,FREE,LIMBO,UUID
	exits 0
	[ -z "$stderr" ]
	[ "$output" = "GPU NAME USED FREE LIMBO UUID
0 Fake\x201 1G 97G 0B GPU-00112233-4455-6677-8899-aabbccddeeff
1 Fake\x202 2G 97G 8M $MINE" ]
	# as root, of a user
	if [ "$(id -u)" = 0 ]; then
		LD_LIBRARY_PATH=$PWD run "$C" ps --gpus --user=0 --raw --noheadings -o GPU,LIMBO
		[ "$output" = "0 0B
1 8M" ]
	fi
	# it does not know ours
	sed -i "s/63756c69/63756c6a/" libnvidia-ml.so.1
	LD_LIBRARY_PATH=$PWD run "$C" top
	exits 0
	has "GPU 63756c69   limbo takes 8 MiB (2 MiB pages)   used and free are not known: libnvidia-ml.so.1 does not list it"
	# it is there, and fails
	echo 'int nvmlInit_v2(void) { return 9; } int nvmlDeviceGetCount_v2, nvmlDeviceGetHandleByIndex_v2,
		nvmlDeviceGetMemoryInfo, nvmlDeviceGetUUID, nvmlDeviceGetName;' | $CC -shared -fPIC -x c -o libnvidia-ml.so.1 -
	LD_LIBRARY_PATH=$PWD run --separate-stderr "$C" ps --gpus --raw --noheadings -o GPU,LIMBO
	exits 0
	[ "$output" = "- 8M" ]
	LD_LIBRARY_PATH=$PWD run --separate-stderr "$C" ps --gpus
	[ "$stderr" = "Used and free memory are not known: libnvidia-ml.so.1: nvmlInit_v2 returned 9" ]
}

@test "ps: one process alone, and by a column" {
	scene
	start Q
	tell Q "export 1024 7"
	[ "$(column PID ps | head -n 1)" = "${PID[P]}" ] # the most in limbo first
	[ "$(column PID ps --sort=EXPORTED | head -n 1)" = "${PID[Q]}" ]
	[ "$(column PID,PINS ps --sort=PINS --bytes | head -n 1 | xargs)" = "${PID[C]} 3145728" ]
	[ "$(column PID ps --pid="${PID[Q]}")" = "${PID[Q]}" ]
	"$C" ps --pid="${PID[C]}" --json | jq -e '.processes | length == 1'
	run --separate-stderr "$C" ps --pid=1
	exits 0
	[[ $stderr == "No process 1 shares GPU memory under culimbo"* ]]
	run "$C" ps --sort=PIN
	exits 2
	has "cannot sort by 'PIN'; did you mean 'PID'?"
	run "$C" ps --pid=all
	exits 2
	run "$C" ps --gpus --sort=PID
	exits 2
	run "$C" ps --gpus --unprotected
	exits 2
}

# keeps BYTES: C keeps so much from the driver, as ps, top, ps --gpus, metrics and show say
keeps() {
	[ "$(column PID,PINS ps --bytes | grep "^${PID[C]} ")" = "${PID[C]} $1" ]
	[ "$(column PID,PINS top --bytes | grep "^${PID[C]} ")" = "${PID[C]} $1" ]
	[ "$("$C" ps --gpus --raw --noheadings --bytes -o PINNED)" = "$1" ]
	[ "$("$C" metrics | sed -n "s/^culimbo_pinned_bytes{pid=\"${PID[C]}\".* //p")" = "$1" ]
	"$C" show "${PID[C]}" --json | jq -e --argjson n "$1" '.pinned_bytes == $n and ([.imports[] | select(.pinned).size] | add) == $n'
}

@test "ps, top, ps --gpus, metrics and show agree on what a process keeps from the driver" {
	start P CULIMBO_GRACE=0
	start Q CULIMBO_GRACE=0 CULIMBO_HELD_BYTES=4K
	start C
	tell P "export 4096 1"
	tell C "open $SAID"
	tell P "free 1"
	keeps 4096
	# its context ends: the driver keeps it for who has it open
	tell P "export 8192 1"
	tell C "open $SAID"
	tell P reset
	keeps 12288
	# forced out: the driver has it back
	tell Q "export 65536 1"
	tell C "open $SAID"
	tell Q "free 1"
	within 10 eval '[ "$("$C" blocks --raw --noheadings -o STATE --pid "${PID[Q]}")" = gone ]'
	keeps 12288
	[ "$(column HELDBYTES ps --bytes | awk '{ n += $1 } END { print n }')" = \
		"$("$C" ps --gpus --raw --noheadings --bytes -o HELD)" ]
	run "$C" show "${PID[C]}"
	has "close the pinned 2 (12 KiB): their owners have freed or left them, or died"
}

@test "ps --gpus: where only events are shared, it says that, and not that nobody shares" {
	run --separate-stderr "$C" ps --gpus
	[[ $stderr == "No process shares GPU memory under culimbo (there is no "* ]]
	start P
	tell P event
	run --separate-stderr "$C" ps --gpus
	exits 0
	[[ $stderr == "No memory of a GPU is shared: the processes of \`culimbo ps\` share events, or nothing now."* ]]
	[[ $stderr != *"there is no"* ]]
}
