#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2016
# Processes of other users and in other PID namespaces, as culimbo ps shows them to root.

load common
bats_require_minimum_version 1.5.0
eval "$(declare -f setup | sed 's/^setup/common_setup/')"
load share

setup() {
	common_setup
	share_setup
}

teardown() {
	share_teardown
	if [ -n "${STRANGER-}" ]; then
		rm -rf "/dev/shm/culimbo-$STRANGER"
	fi
}

@test "ps: for a process in another PID namespace: its pid here, and its cgroup" {
	unshare -pf --mount-proc true 2> /dev/null || skip "no PID namespace can be made here"
	printf '#!/bin/sh\nexec unshare -pf --kill-child --mount-proc "%s"\n' "$SHARER" > inside
	chmod +x inside
	EXE=$PWD/inside start P
	tell P "export 4096 1"
	"$C" ps --json -o +HOSTPID,CGROUP > ps.json
	cat ps.json
	here=$(jq -e '.processes[0] | select(.pid == 1) | .hostpid' ps.json)
	[ "$(readlink "/proc/$here/exe")" = "$(realpath "$SHARER")" ] || grep -q sharer "/proc/$here/comm"
	[ "$(jq -r '.processes[0].cgroup' ps.json)" != null ]
	run "$C" ps
	has HOSTPID
	finish P
	# of those that are here the column is not there
	start Q
	tell Q "export 4096 1"
	run "$C" ps
	[[ $output != *HOSTPID* ]]
}

@test "ps: for a process with a host name of its own: that host name" {
	unshare -pfu --mount-proc true 2> /dev/null || skip "no namespaces can be made here"
	printf '#!/bin/sh\nHOSTNAME=trainer-0 exec unshare -pfu --kill-child --mount-proc "%s"\n' "$SHARER" > inside
	chmod +x inside
	EXE=$PWD/inside start P
	tell P "export 4096 1"
	run "$C" ps
	[[ ${lines[0]} == *HOSTPID*HOST* ]]
	[[ ${lines[1]} == *trainer-0* ]]
	[[ ${lines[0]} != *POD* ]]
	"$C" ps --json -o PID,HOST,POD,CONTAINER | jq -e '.processes[0] | .pid == 1 and .host == "trainer-0" and has("pod") and has("container")'
	finish P
	# in another PID namespace alone the host is this one
	printf '#!/bin/sh\nHOSTNAME=trainer-0 exec unshare -pf --kill-child --mount-proc "%s"\n' "$SHARER" > inside
	EXE=$PWD/inside start Q
	tell Q "export 4096 1"
	"$C" ps --json | jq -e '[.processes[] | select(.state == "alive")] | length == 1 and .[0].host == null'
}

@test "ps --user: root looks at another user's processes, and at all" {
	[ "$(id -u)" -eq 0 ] || skip "only root may look"
	STRANGER=$((61000 + RANDOM % 4000))
	chmod 777 "$HOME_OF_ALL"
	rmdir "$CULIMBO_SIM_DIR"
	setpriv --reuid=$STRANGER --clear-groups test -x "$SHARER" || skip "another user cannot run what was built here"
	printf '#!/bin/sh\nexec setpriv --reuid=%s --clear-groups "%s"\n' $STRANGER "$SHARER" > inside
	chmod +x inside
	dir=$CULIMBO_DIR
	unset CULIMBO_DIR
	EXE=$PWD/inside start P
	tell P "export 4096 2"
	"$C" ps --user $STRANGER --json | jq -e --argjson u $STRANGER '.processes | length == 1 and .[0].exported == 2 and
		.[0].user == $u and .[0].state == "alive"'
	"$C" ps --user=all --json | jq -e --argjson u $STRANGER '[.processes[] | select(.user == $u)] | length == 1'
	"$C" blocks --user $STRANGER --json | jq -e '.blocks | length == 2 and .[1].bytes == 4096 and .[1].state == "exported"'
	"$C" blocks --user=all --json | jq -e --argjson p "${PID[P]}" '[.blocks[] | select(.pid == $p)] | length == 2'
	"$C" metrics --user=all > text
	grep -q "^culimbo_exported_bytes{pid=\"${PID[P]}\",.*user=\"$STRANGER\",device=\"0\",.*} 8192$" text
	"$C" metrics --user=$STRANGER -o whole.prom
	[ "$(stat -c %u whole.prom)" -eq 0 ]
	"$C" top --user=$STRANGER --json | jq -e '.processes | length == 1 and .[0].exported_blocks == 2'
	"$C" show --user=$STRANGER "${PID[P]}" --json | jq -e '.exported_blocks == 2 and (.blocks | length == 2)'
	"$C" report --user=$STRANGER --all --json > report.json
	jq -es --argjson p "${PID[P]}" 'any(.pid? == $p or .process?.pid? == $p)' report.json
	for command in top report "show 1"; do
		# shellcheck disable=SC2086 # two words
		run "$C" $command --user=all
		exits 2
	done
	# it looks as that user does, so nothing of it is root's now
	[ "$(find "/dev/shm/culimbo-$STRANGER" -not -user $STRANGER | wc -l)" -eq 0 ]
	run "$C" ps --dir="/dev/shm/culimbo-$STRANGER"
	exits 1
	has "belongs to another user"
	run "$C" ps --user=all --dir="$dir"
	exits 2
	run "$C" ps --user=nobody-of-this-name
	exits 2
	run setpriv --reuid=$STRANGER --clear-groups "$C" ps --user=0
	exits 1
	has "only root"
}
