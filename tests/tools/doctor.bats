#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output and status come from bats; each test is a subshell)
# culimbo doctor: its findings, its advice, and that nothing makes it crash.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
	mkdir root
}
teardown() {
	share_teardown
}

# verdict CHECK: of the last `doctor --json`, in checks.json
verdict() {
	jq -r --arg c "$1" '.checks[] | select(.check == $c).status' checks.json
}
doctor() {
	status=0
	"$C" doctor --json "$@" > checks.json || status=$?
}

# a libcuda.so.1 of C code, first in the loader's path
fake_driver() {
	mkdir -p fake
	printf '#include <unistd.h>\n%s\n' "$1" > fake/driver.c
	"${CC:-cc}" -shared -fPIC -o fake/libcuda.so.1 fake/driver.c
	export LD_LIBRARY_PATH=$PWD/fake
}

@test "with the simulated driver all is well: every check is ok, exit 0" {
	doctor --simulate
	[ "$status" -eq 0 ]
	for check in options library driver devices handles hooks sharing directory room fsize nofile; do
		[ "$(verdict "$check")" = ok ] || { cat checks.json; false; }
	done
	jq -e '.checks[] | select(.check == "hooks").what | test("all [1-9][0-9]* calls .* all [1-9][0-9]* by")' checks.json
	jq -e '.checks[] | select(.check == "sharing").what | test("stamped")' checks.json
	run "$C" doctor --simulate
	exits 0
	[[ ${lines[-1]} =~ ^[0-9]+\ ok,\ [0-9]+\ warnings?,\ 0\ failed$ ]]
	if LC_ALL=C grep -q $'\033' <<< "$output"; then false; fi # no colours into a pipe
	# nothing is left, and nobody shares
	[ -z "$(ls -A "$CULIMBO_DIR" 2> /dev/null)" ]
}

@test "--patience accepts the values that its error message names, also an hour" {
	"$C" doctor --simulate --patience=1h > /dev/null
	run "$C" doctor --simulate --patience=2h
	exits 2
	has "up to 1 hour"
}

@test "without a driver it prints what it can, with advice; a warning, exit 0" {
	if ldconfig -p | grep -q libcuda.so.1; then skip "there is a driver here"; fi
	doctor
	[ "$status" -eq 0 ]
	[ "$(verdict driver)" = warn ]
	[ "$(verdict directory)" = ok ]
	jq -e '.checks[] | select(.check == "driver").advice | test("culimbo run --simulate")' checks.json
}

@test "handles without room for a stamp are a warning" {
	CULIMBO_SIM_TAIL=random doctor --simulate
	[ "$status" -eq 0 ]
	[ "$(verdict handles)" = warn ]
	jq -e '.checks[] | select(.check == "sharing").what | test("without a stamp")' checks.json
}

@test "a driver that crashes does not crash the doctor" {
	fake_driver 'int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
		int cuInit(unsigned f) { return *(volatile int *)0; }'
	doctor
	[ "$status" -eq 1 ]
	jq -e '.checks[] | select(.check == "driver") | .status == "fail" and
		(.what | test("killed by signal 11 .*at: cuInit"))' checks.json
	[ "$(verdict ptrace)" != "" ]
}

@test "the doctor waits for a driver that hangs only for the given time" {
	fake_driver 'int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
		int cuInit(unsigned f) { for (;;) pause(); }'
	before=${EPOCHREALTIME/./}
	doctor --patience=1s
	[ $((${EPOCHREALTIME/./} - before)) -lt 20000000 ]
	[ "$status" -eq 1 ]
	jq -e '.checks[] | select(.check == "driver").what | test("did not answer within 1 s .*at: cuInit")' checks.json
	if pgrep -f "doctor --probe" -s 0; then false; fi
}

@test "a driver without a GPU: its version, and its error" {
	fake_driver 'int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
		int cuInit(unsigned f) { return 100; }
		int cuGetErrorName(int r, const char **n) { *n = "CUDA_ERROR_NO_DEVICE"; return 0; }'
	doctor
	[ "$status" -eq 1 ]
	jq -e '.checks[] | select(.check == "driver").what | test("fake/libcuda.so.1, CUDA 12.4")' checks.json
	jq -e '.checks[] | select(.check == "devices") | .status == "warn" and
		(.what | test("CUDA_ERROR_NO_DEVICE .100"))' checks.json
	[ "$(verdict hooks)" = fail ] # none of its calls can be routed: it has none
}

@test "messages about other preloaded libraries: which wrappers, two copies" {
	case $(uname -m) in x86_64) first=GLIBC_2.2.5 ;; *) first=GLIBC_2.17 ;; esac
	"${CC:-cc}" -D_GNU_SOURCE -O2 -shared -fPIC -Wl,-Bsymbolic "-DFIRST_GLIBC=\"$first\"" -o wrapper.so \
		"$top_srcdir/tests/doors/wrapper.c" -ldl
	cp "$top_builddir/.libs/libculimbo.so" libculimbo-other.so
	LD_PRELOAD=$PWD/wrapper.so:$PWD/libculimbo-other.so doctor --simulate
	cat checks.json
	[ "$status" -eq 1 ]
	jq -e '.checks[] | select(.check == "hooks") | .status == "fail" and (.advice | test("see messages"))' checks.json
	jq -e '[.checks[] | select(.check == "messages" and .status == "warn").what] | any(test("wrapper.so wraps cuMemFree_v2"))' checks.json
	jq -e '[.checks[] | select(.check == "messages" and .status == "warn").what] | any(test("two copies of culimbo"))' checks.json
}

@test "limits: the file size limit too small, too few descriptors" {
	run bash -c 'ulimit -S -f 1000; "$0" doctor --simulate --json' "$C"
	exits 1
	jq -e '.checks[] | select(.check == "fsize") | .status == "fail" and (.advice | test("ulimit -f"))' <<< "$output"
	run bash -c 'ulimit -S -n 100; "$0" doctor --simulate --json' "$C"
	exits 0
	jq -e '.checks[] | select(.check == "nofile").status == "warn"' <<< "$output"
}

@test "the directory: another user's, missing, not writable" {
	mkdir -m 777 open
	doctor --simulate --dir="$PWD/open"
	[ "$status" -eq 1 ]
	[ "$(verdict directory)" = fail ]
	: > file
	doctor --simulate --dir="$PWD/file"
	[ "$(verdict directory)" = fail ]
	doctor --simulate --dir="$HOME_OF_ALL/none"
	[ "$(verdict directory)" = ok ]
	[ ! -e "$HOME_OF_ALL/none" ] || [ -z "$(ls -A "$HOME_OF_ALL/none")" ]
	# the library makes the last part alone: this one it cannot
	doctor --simulate --dir="$HOME_OF_ALL/none/of/these"
	[ "$status" -eq 1 ]
	[ "$(verdict directory)" = fail ]
	jq -e '.checks[] | select(.check == "directory").advice | test("mkdir -p")' checks.json
	[ "$(verdict sharing)" = warn ]
}

@test "the directory: one that we may not read must not be removed" {
	[ "$(id -u)" -ne 0 ] || skip "root is kept from nothing"
	mkdir -p -m 000 kept
	doctor --simulate --dir="$PWD/kept/in"
	[ "$(verdict directory)" = fail ]
	jq -e '.checks[] | select(.check == "directory").advice | test("set CULIMBO_DIR")' checks.json
	chmod 700 kept
}

@test "files of dead processes and wrong options are warnings" {
	start P
	tell P "export 1024 1"
	die P
	CULIMBO_GRAEC=1 doctor --simulate
	[ "$status" -eq 0 ]
	jq -e '.checks[] | select(.check == "exporters") | .status == "warn" and (.advice | test("culimbo gc"))' checks.json
	jq -e '.checks[] | select(.check == "options") | .status == "warn" and (.what | test("CULIMBO_GRACE"))' checks.json
}

@test "logind, ptrace and hidepid, from the system's files" {
	unset CULIMBO_DIR # where logind would take it
	mkdir -p root/run/systemd/system root/etc/systemd/logind.conf.d root/proc/sys/kernel/yama root/proc/self
	echo 2 > root/proc/sys/kernel/yama/ptrace_scope
	echo 'proc /proc proc rw,nosuid,hidepid=ptraceable,gid=5 0 0' > root/proc/self/mounts
	doctor --simulate --root="$PWD/root"
	[ "$(verdict RemoveIPC) $(verdict ptrace) $(verdict hidepid)" = "warn warn warn" ]
	printf '[Login]\nRemoveIPC=no\n' > root/etc/systemd/logind.conf
	echo 1 > root/proc/sys/kernel/yama/ptrace_scope
	echo 'proc /proc proc rw,nosuid,hidepid=2 0 0' > root/proc/self/mounts
	doctor --simulate --root="$PWD/root"
	[ "$(verdict RemoveIPC) $(verdict ptrace) $(verdict hidepid)" = "ok ok ok" ]
	printf '#RemoveIPC=no\n RemoveIPC = yes\n' > root/etc/systemd/logind.conf.d/later.conf
	doctor --simulate --root="$PWD/root"
	[ "$(verdict RemoveIPC)" = warn ]
}

@test "containers: a process that uses another directory is named; those of other containers that share this one are counted" {
	start P CULIMBO_DIR="$HOME_OF_ALL/other"
	tell P "export 4096 1"
	doctor --simulate
	jq -e --arg dir "$HOME_OF_ALL/other" --arg pid "${PID[P]}" 'any(.checks[]; .check == "containers" and .status == "warn" and
		(.what | test("process " + $pid + " \\(.*sharer\\) runs under culimbo with another directory, " + $dir + ": nothing is protected")) and
		(.advice | test("one CULIMBO_DIR")))' checks.json
	finish P
	unshare -pfm --mount-proc true 2> /dev/null || skip "no namespaces can be made here"
	# one tmpfs, seen from a container of its own
	printf '#!/bin/sh\nexec unshare -pf --kill-child --mount-proc "%s"\n' "$SHARER" > inside
	chmod +x inside
	EXE=$PWD/inside start Q
	tell Q "export 4096 1"
	doctor --simulate
	jq -e 'any(.checks[]; .check == "containers" and .status == "ok" and (.what | test("1 process of other PID namespaces .* has files in")))' checks.json
	finish Q
}

@test "containers: one with a /dev/shm of its own is named from outside, and inside doctor says what is needed" {
	unshare -pfm --mount-proc true 2> /dev/null || skip "no namespaces can be made here"
	printf '#!/bin/sh\nexec unshare -pfm --kill-child --mount-proc sh -c "mount -t tmpfs none \\"%s\\" && mkdir -m 700 \\"%s\\" \\"%s\\" && exec \\"%s\\""\n' \
		"$HOME_OF_ALL" "$CULIMBO_DIR" "$CULIMBO_SIM_DIR" "$SHARER" > inside
	chmod +x inside
	EXE=$PWD/inside start P
	tell P "export 4096 1"
	doctor --simulate
	jq -e --arg dir "$CULIMBO_DIR" 'any(.checks[]; .check == "containers" and .status == "warn" and
		(.what | test("with another directory, " + $dir + " of its container: nothing is protected")) and
		(.advice | test("mount one tmpfs into both and set CULIMBO_DIR")))' checks.json
	finish P
	unshare -pfm --kill-child --mount-proc "$C" doctor --simulate --json > checks.json
	jq -e 'any(.checks[]; .check == "containers" and .status == "ok" and
		(.what | test("a PID namespace of its own .* no process of another one has a file in")) and (.advice | test("mount one tmpfs")))' checks.json
}

@test "--require-gpu: without a driver, or without a GPU, it fails" {
	doctor --simulate --require-gpu
	[ "$status" -eq 0 ]
	if ! ldconfig -p | grep -q libcuda.so.1; then
		doctor --require-gpu
		[ "$status" -eq 1 ]
		[ "$(verdict driver)" = fail ]
	fi
	fake_driver 'int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
		int cuInit(unsigned f) { return 100; }
		int cuGetErrorName(int r, const char **n) { *n = "CUDA_ERROR_NO_DEVICE"; return 0; }'
	doctor --require-gpu
	[ "$status" -eq 1 ]
	[ "$(verdict devices)" = fail ]
}

@test "processes that share with another copy of the library are named" {
	start P
	tell P "export 4096 1"
	doctor --simulate
	[ "$(verdict versions)" = ok ]
	jq -e '.checks[] | select(.check == "versions").what == "1 process shares, with this libculimbo.so"' checks.json
	library=$("$C" version --json | jq -r '.["library"]')
	cp "$library" libculimbo.so
	mkfifo Q.in Q.out
	"$C" run --simulate --no-preload -- env LD_PRELOAD="$PWD/libculimbo.so" "$SHARER" < Q.in > Q.out 2> Q.err 3>&- &
	PID[Q]=$!
	exec {to}> Q.in {from}< Q.out
	TO[Q]=$to FROM[Q]=$from
	tell Q "export 4096 1"
	doctor --simulate
	[ "$(verdict versions)" = warn ]
	jq -e --arg p "process ${PID[Q]} with $PWD/libculimbo.so" '.checks[] | select(.check == "versions") |
		(.what | startswith("1 of 2 processes that share run with another libculimbo.so: ")) and (.what | endswith($p)) and
		(.advice | test("restart them"))' checks.json
	rm libculimbo.so
	doctor --simulate
	jq -e '.checks[] | select(.check == "versions").what | endswith("libculimbo.so, which was replaced since")' checks.json
}
