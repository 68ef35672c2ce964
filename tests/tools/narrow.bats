#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2034,SC2086
# Tables that are wider than the terminal: no line is wider than it, and what had no room is named.
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

# P, of a long path and with long arguments, exports and frees blocks; C holds two of them
scene() {
	mkdir -p "$HOME_OF_ALL/a/folder/of/a/long/name/and/another/one/below/it"
	cp "$SHARER" "$HOME_OF_ALL/a/folder/of/a/long/name/and/another/one/below/it/sharer"
	EXE=$HOME_OF_ALL/a/folder/of/a/long/name/and/another/one/below/it/sharer
	start P
	start C
	tell P "export 3145728 3"
	tell C "open $SAID"
	tell P "export 1024 2"
	tell C "open $SAID"
	tell P "free 3"
}

# seen COLUMNS COMMAND...: what a terminal shows of it, with messages in err
seen() {
	local columns=$1
	shift
	TERM=xterm script -qec "stty cols $columns rows 24; '$C' $* 2> err" typed < /dev/null | tr -d '\r' > seen
	cat seen err
}

# widest FILE: the width of its widest line
widest() {
	wc -L < "$1"
}

@test "a terminal of 80 columns: blocks, ps, ps --gpus, groups and top are as wide at most, and say what they left out" {
	scene
	fake_nvml
	export LD_LIBRARY_PATH=$PWD
	for listing in blocks ps "ps --gpus" "top --batch -n 1" "blocks --group-by=PID,COMMAND,STATE,HELDBY,ADDRESS"; do
		"$C" $listing > whole
		[ "$(widest whole)" -gt 80 ]
		seen 80 "$listing"
		[ "$(widest seen)" -le 80 ]
		[ "$(widest seen)" -gt 40 ]
		# no line more or less, but of top's head
		[[ $listing == top* ]] || [ "$(wc -l < seen)" -eq "$(wc -l < whole)" ]
	done
	seen 80 blocks
	grep -qE '^BYTES STATE +PID COMMAND +ADDRESS +(EXPORTED +)?FREED HELDBY +ID$' seen # a small PID leaves more room
	grep -qE "^ +3M limbo-held +${PID[P]} sharer .*0x[0-9a-f]+ .* ${PID[C]} sharer +[0-9a-f]{6}:[0-9]+$" seen
	[[ $(cat err) =~ ^"No room in 80 columns for HOLDERS, DEVICE"(", EXPORTED")?"; -o +COL shows a column."$ ]]
	seen 80 blocks -o +HOLDERS
	grep -qE '^BYTES .* HOLDERS .*ID$' seen
	grep -q '^No room in 80 columns for DEVICE' err
	seen 80 ps
	grep -qE '^ *PID COMMAND +STATE EXPORTED HELD LIMBO LIMBOBYTES IMPORTED PINS +AGE$' seen
	[ "$(cat err)" = "No room in 80 columns for FILE; -o +COL shows a column." ]
	seen 80 "top --batch -n 1"
	grep -qE "^ *PID STATE LIMBOBYTES .*PINS .*COMMAND$" seen
	grep -qE "^ *${PID[C]} alive .* 3M .* sharer$" seen
}

@test "120 columns: what has room is there; 40 columns: the names of what has none" {
	scene
	seen 120 blocks
	[ "$(widest seen)" -le 120 ]
	grep -qE '^BYTES STATE +PID COMMAND +DEVICE +ADDRESS EXPORTED FREED HOLDERS HELDBY +ID$' seen
	[ ! -s err ]
	seen 120 ps
	[ "$(widest seen)" -le 120 ]
	grep -qE ' PINS +AGE FILE *$' seen
	[ ! -s err ]
	seen 40 ps -o +CGROUP
	grep -q '^No room in 40 columns for .*EXPORTED.*; -o +COL' err
}

@test "COLUMNS stands for the terminal's width, of a pipe, too; not for --raw and --json" {
	scene
	for listing in blocks ps "top --batch -n 1"; do
		COLUMNS=80 "$C" $listing > seen
		[ "$(widest seen)" -le 80 ]
		COLUMNS=120 "$C" $listing > seen
		[ "$(widest seen)" -gt 80 ]
		[ "$(widest seen)" -le 120 ]
		COLUMNS=x "$C" $listing > seen
		[ "$(widest seen)" -gt 120 ]
		COLUMNS=20 "$C" $listing --raw --noheadings | awk '{ print NF }' > narrow
		"$C" $listing --raw --noheadings | awk '{ print NF }' | cmp - narrow
	done
	COLUMNS=20 "$C" blocks --json | jq -e '.blocks | length == 5 and all(has("device") and (.command | length > 40))'
	TERM=xterm script -qec "stty cols 80 rows 24; COLUMNS=140 '$C' blocks" typed < /dev/null > seen
	[ "$(widest seen)" -gt 80 ]
}

@test "a note stands below its line where it has no room beside it" {
	start P CULIMBO_GRACE=100ms
	tell P "export 4096 2"
	has_note() { COLUMNS=80 "$C" ps > seen 2> err && grep -q '^    no export was ever opened' seen; }
	within 20 has_note
	[ "$(widest seen)" -le 80 ]
	[ "$(head -n 1 seen | grep -c NOTE)" -eq 0 ]
	grep -qE "^ *${PID[P]} .* exporter-[0-9a-f]{6}$|^ *${PID[P]} .* [0-9.]+m?s$" seen
	"$C" ps | grep -qE '^ *PID COMMAND .*FILE +NOTE$'
}

@test "gc: why a file goes stands below its line" {
	export CULIMBO_KEEP_DEAD=1h
	scene
	die P
	"$C" gc --dry-run > whole
	[ "$(widest whole)" -gt 80 ]
	COLUMNS=80 "$C" gc --dry-run > seen
	cat seen
	[ "$(widest seen)" -le 80 ]
	grep -A1 "^would-remove .* ${PID[P]} sharer " seen | grep -q '^    its process has ended$'
}

# FILE's words, but for what doctor says of the machine's other processes, which begin and end meanwhile
words() {
	awk '/^[^ ]/ { skip = /^[a-z]+ +containers / || /^[0-9]+ ok, / } !skip' "$1" | sed 's/[0-9.]* GiB//g' | tr -s ' \n' ' '
}

@test "on a terminal, messages and the lines of doctor end between words; elsewhere each is one line" {
	export CULIMBO_DIR=$HOME_OF_ALL/nobody
	for command in "ps" "blocks" "collect 1" "doctor --simulate" "show 123456789" "ps --sort=AVERYLONGNAMEOFACOLUMNTHATDOESNOTEXIST,ANOTHER"; do
		TERM=xterm script -qec "stty cols 60 rows 24; '$C' $command" typed < /dev/null | tr -d '\r' |
			sed 's/\x1b\[[0-9;]*m//g' > seen || :
		cat seen
		# one word may be longer than the line
		awk 'length > 60 && NF > 1 && !/^ *[^ ]+$/ && !/\// { print; wide = 1 } END { exit wide }' seen
		[ -s seen ]
		"$C" $command > out 2>&1 || :
		[ "$(words out)" = "$(words seen)" ]
	done
}

@test "on a terminal, the lines of show end between words" {
	scene
	for of in P C; do
		seen 60 "show ${PID[$of]}"
		awk 'length > 60 && NF > 1 && !/\// { print; wide = 1 } END { exit wide }' seen
		"$C" show "${PID[$of]}" > out
		run ! awk 'length > 60 && !/\// { wide = 1 } END { exit wide }' out # so there was something to fold
		[ "$(tr -s ' \n' ' ' < out | sed 's/[0-9.]*m\?[0-9.]*s ago//g')" = "$(tr -s ' \n' ' ' < seen | sed 's/[0-9.]*m\?[0-9.]*s ago//g')" ]
	done
	grep -q '^ \{16\}[^ ]' seen # a value goes on in its column
}

@test "a directory that is not there is told from one without files" {
	mkdir -m 700 empty
	run --separate-stderr "$C" ps --dir="$PWD/empty"
	[[ $stderr == *"(there is no file in $PWD/empty)."* ]]
	run --separate-stderr "$C" ps --dir="$PWD/mistyped"
	exits 0
	[[ $stderr == *"(there is no directory $PWD/mistyped)."* ]]
}

@test "ps --unprotected says so if there is no such process" {
	# of a user who has none
	[ "$(id -u)" -eq 0 ] || skip "not root"
	run --separate-stderr "$C" ps --unprotected --user=65531
	exits 0
	[[ $stderr == "No process of this user uses CUDA without culimbo." ]]
	"$C" ps --unprotected --user=65531 --json | jq -e '.processes == []'
}
