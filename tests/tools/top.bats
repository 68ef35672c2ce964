#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031,SC2317
# (output and status come from bats; each test is a subshell)
# culimbo top: in a real terminal (tmux's), in none, and in a dumb one.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
	export CULIMBO_GRACE=1h
	cp "$SHARER" other
}
teardown() {
	tmux -S "$HOME_OF_ALL/tmux" kill-server 2> /dev/null
	share_teardown
}

term() {
	tmux -S "$HOME_OF_ALL/tmux" -f /dev/null "$@"
}
# opens COLUMNS LINES COMMAND: a terminal that stays when COMMAND has ended
opens() {
	term new-session -d -x "$1" -y "$2" "$3; echo status=\$?; exec sleep 60" 3>&-
}
keys() {
	term send-keys -t 0 "$@"
}
pane() {
	term capture-pane -p -t 0
}
# shows REGEX: within 20 s; gone REGEX
shows() {
	within 20 eval "pane | grep -qE -- '$1'" || { pane; false; }
}
gone() {
	within 20 eval "! pane | grep -qE -- '$1'" || { pane; false; }
}

scene() {
	start P
	start C
	tell P "export 3145728 3"
	tell C "open $SAID"
	tell P "free 2"
	EXE=./other start Q
	tell Q "export 1024 5"
}

@test "live: a line for each process, a moving bar and sparkline, the largest first" {
	scene
	opens 120 24 "$C top -d 200ms"
	shows 'culimbo top .*every 200ms'
	shows '^ *PID STATE .*IN LIMBO .*TREND .*COMMAND'
	shows "^ *${PID[P]} alive .* 6 MiB █+ .*█+ +2 +1 +1 +0 "
	shows "^ *${PID[Q]} alive .* 0 B "
	shows "^ *${PID[C]} alive .* 0 +0 +0 +1 "
	shows '3 processes   limbo 6 MiB in 2 blocks'
	[ "$(pane | grep -E '^ *[0-9]+ alive' | head -n 1 | grep -oE '[0-9]+' | head -n 1)" = "${PID[P]}" ]
	# a path that does not fit is not cut before the name
	shows "^ *${PID[P]} alive .* sharer *$"
	tell Q "free 4"
	shows "^ *${PID[Q]} alive .* 4 KiB .*▁█" # its trend goes up
	die P
	shows "^ *${PID[P]} dead"
	keys q
	shows 'status=0'
}

@test "keys: sort, reverse, filter, pause, help" {
	scene
	opens 120 24 "$C top -d 200ms"
	shows "^ *${PID[P]} "
	first() { pane | grep -E '^ *[0-9]+ (alive|dead)' | head -n 1 | grep -oE '[0-9]+' | head -n 1; }
	lowest=$(printf '%s\n' "${PID[P]}" "${PID[Q]}" "${PID[C]}" | sort -n | head -n 1)
	highest=$(printf '%s\n' "${PID[P]}" "${PID[Q]}" "${PID[C]}" | sort -n | tail -n 1)
	keys p
	within 20 eval '[ "$(first)" = $lowest ]'
	keys r
	within 20 eval '[ "$(first)" = $highest ]'
	keys r l
	within 20 eval '[ "$(first)" = "${PID[P]}" ]'
	keys i
	within 20 eval '[ "$(first)" = "${PID[C]}" ]'
	# Q has more blocks in limbo, P more bytes
	order() { pane | grep -E '^ *[0-9]+ (alive|dead)' | grep -oE '^ *[0-9]+' | xargs; }
	sorts() { # KEY NAME...: so they stand then
		local want="${PID[$2]} ${PID[$3]} ${PID[$4]}"
		keys "$1"
		within 20 eval '[ "$(order)" = "'"$want"'" ]' || { echo "after $1:"; pane; false; }
	}
	tell Q "free 4"
	shows "^ *${PID[Q]} alive .* 4 KiB "
	by_pid() { local n; for n in P Q C; do echo "${PID[$n]} $n"; done | sort -n | cut -d' ' -f2 | xargs; }
	rest() { local n; for n in $(by_pid); do [ "$n" = "$1" ] || echo "$n"; done; }
	# shellcheck disable=SC2046 # a word each
	{
		sorts b Q P C
		sorts l P Q C
		sorts i C $(rest C)
		sorts h P $(rest P)
		sorts c Q $(rest Q)
		sorts a P C Q
		sorts e P Q C
		sorts p $(by_pid)
	}
	keys +
	shows 'every 400ms'
	keys -
	shows 'every 200ms'
	keys /
	shows 'only those with:'
	keys otherx
	gone "^ *${PID[Q]} alive"
	keys BSpace
	shows "^ *${PID[Q]} alive"
	gone "^ *${PID[P]} alive"
	keys Enter
	shows 'only: other  \(1 of 3\)'
	keys / z
	shows 'only those with: otherz'
	keys Escape
	shows 'only: other  \(1 of 3\)'
	keys / C-u
	keys Enter
	shows "^ *${PID[P]} alive"
	keys Space
	shows 'standing still'
	shows 'exported .* in 2 blocks'
	tell P "export 1024 10"
	keys '?'
	shows 'the other way round'
	# drawn anew, as the clock tells, yet of what was there
	clock() { pane | head -n 1 | grep -oE '[0-9]+:[0-9]+:[0-9]+'; }
	was=$(clock)
	within 20 eval '[ "$(clock)" != "$was" ]'
	shows 'exported .* in 2 blocks'
	keys '?' Space
	shows 'exported .* in 12 blocks'
	gone 'standing still'
	gone 'the other way round'
	tell P "free 1" # what C has open
	# shellcheck disable=SC2046 # a word each
	sorts n C $(rest C)
	keys q
	shows 'status=0'
}

@test "selecting a process shows its holders, their blocks and call stacks" {
	scene
	selected() { # the pid of the line that is drawn the other way round
		term capture-pane -e -p -t 0 | python3 -c '
import re, sys
turned = False # tmux gives no code again where a line ends as the next one begins
for line in sys.stdin:
    signs = []
    for codes, sign in re.findall(r"\x1b\[([0-9;]*)m|(.)", line):
        if sign:
            signs.append((sign, turned))
        for code in codes.split(";") if not sign else []:
            turned = code == "7" or (turned and code not in ("", "0", "27"))
    pid = re.match(r" *([0-9]+) ", "".join(s for s, t in signs))
    if pid and all(t for s, t in signs[:pid.end(1)]):
        print(pid.group(1))'
	}
	opens 120 30 "$C top -d 200ms"
	shows "^ *${PID[P]} alive"
	within 20 eval '[ "$(selected)" = ${PID[P]} ]'
	# it stays with its process when that is sorted elsewhere
	keys i
	within 20 eval '[ "$(pane | grep -E "^ *[0-9]+ alive" | head -n 1 | grep -oE "[0-9]+" | head -n 1)" = ${PID[C]} ]'
	keys Home
	within 20 eval '[ "$(selected)" = ${PID[C]} ]'
	keys l
	within 20 eval '[ "$(pane | grep -E "^ *[0-9]+ alive" | head -n 1 | grep -oE "[0-9]+" | head -n 1)" = ${PID[P]} ]'
	within 20 eval '[ "$(selected)" = ${PID[C]} ]'
	keys Enter
	shows '^culimbo show exporter-'
	shows "^imported +1"
	# what C has open is a block of P: its holders, and where they opened it
	id=$(pane | grep -oE '[0-9a-f]{6}:[0-9]+')
	keys Enter
	shows "^culimbo show $id"
	shows '^held by'
	shows "^ +pid +${PID[C]}"
	keys End
	shows '#0 main .*sharer.c:|#0 .*sharer\+0x'
	keys Escape
	shows "^imported +1"
	term resize-window -t 0 -x 60 -y 30
	shows "^  [0-9a-f]{6}:[0-9]+ .* of process ${PID[P]},$"
	shows "^    opened [0-9.ms]+ ago$"
	term resize-window -t 0 -x 120 -y 30
	shows "^  [0-9a-f]{6}:[0-9]+ .* of process ${PID[P]}, opened "
	keys Escape
	shows 'every 200ms'
	keys Home g
	shows '^culimbo collect exporter-'
	shows "^Process ${PID[P]} .* gave back 2 blocks, 6 MiB"
	keys Escape
	shows "^ *${PID[P]} alive .* 0 B "
	keys q
	shows 'status=0'
}

@test "each GPU: the memory in limbos; with NVIDIA's library, used and free memory" {
	scene
	run "$C" top
	exits 0
	# two blocks of 3 MiB, of which each takes two pages
	has "GPU 63756c69   limbo takes 8 MiB (2 MiB pages)   used and free are not known: no libnvidia-ml.so.1"
	# one that the processes know, by its UUID, and another
	fake_nvml
	LD_LIBRARY_PATH=$PWD run "$C" top
	exits 0
	[[ ${lines[1]} == "GPU 0   used 1 GiB   free 97 GiB   limbo takes 0 B (2 MiB pages)   Fake 1" ]]
	[[ ${lines[2]} == "GPU 1   used 2 GiB   free 97 GiB   limbo takes 8 MiB (2 MiB pages)   Fake 2" ]]
	[[ ${lines[3]} == *PID* ]]
	opens 120 24 "LD_LIBRARY_PATH=$PWD $C top -d 200ms"
	shows '^GPU 1   used 2 GiB   free 97 GiB   limbo takes 8 MiB .2 MiB pages.   Fake 2'
	keys q
	shows 'status=0'
}

@test "it follows the size of the terminal, down to a tiny one" {
	scene
	opens 200 40 "$C top -d 200ms"
	shows 'TREND'
	for size in "60 20" "38 10" "20 5" "5 2" "130 30"; do
		# shellcheck disable=SC2086 # two words
		set -- $size
		term resize-window -t 0 -x "$1" -y "$2"
		within 20 eval '[ "$(pane | wc -l)" -eq '"$2"' ]'
	done
	shows "^ *${PID[P]} alive .* 6 MiB █+ .*█"
	# whatever columns there is room for, the command is seen, by its name
	for columns in 40 50 66 72 80 96 104 112 120; do
		term resize-window -t 0 -x "$columns" -y 20
		shows 'COMMAND$'
		shows "^ *${PID[P]} .* sharer *$"
	done
	term resize-window -t 0 -x 80 -y 24
	shows '^ *PID STATE +IN LIMBO TREND +HELD EXPORTED +PINS COMMAND$'
	keys q
	shows 'status=0'
}

@test "80 columns: what has no room in a line of the head stands whole in the next" {
	scene
	opens 80 24 "$C top -d 200ms"
	shows '^3 processes   limbo 6 MiB in 2 blocks   exported 3 MiB in 6 blocks *$'
	shows '^  held by others 1 *$'
	shows '^GPU [0-9a-f]*   limbo takes [0-9]+ MiB .2 MiB pages. *$'
	shows '^  used and free are not known: no libnvidia-ml.so.1 *$'
	# of a small one the processes are the better use
	term resize-window -x 80 -y 10
	gone '^  held by others'
	shows "^ *${PID[P]} alive"
}

@test "a narrow screen of few lines: head and keys end between words" {
	scene
	opens 60 12 "$C top -d 200ms"
	shows '^3 processes   limbo 6 MiB in 2 blocks *$'
	shows '^q quit   . help   Enter details   g collect   / filter *$'
}

@test "many processes - scrolling" {
	for n in 1 2 3 4 5 6 7 8; do
		start "P$n"
		tell "P$n" "export 1024 $n"
	done
	opens 110 11 "$C top -d 200ms --sort=PID"
	shows '1-6 of 8'
	keys NPage NPage
	shows '2-7 of 8'
	keys NPage
	shows '3-8 of 8'
	[ "$(pane | grep -E '^ *[0-9]+ alive' | grep -oE '^ *[0-9]+' | xargs)" = \
		"$(printf '%s\n' "${PID[@]}" | sort -n | tail -n 6 | xargs)" ]
	keys End
	shows '3-8 of 8'
	keys Up Up Up Up Up
	shows '3-8 of 8'
	keys Up
	shows '2-7 of 8'
	keys Home
	shows '1-6 of 8'
	keys Down Down Down Down Down
	shows '1-6 of 8'
	keys Down
	shows '2-7 of 8'
	keys PPage PPage PPage
	shows '1-6 of 8'
	keys q
	shows 'status=0'
}

@test "the terminal is restored, also after a signal" {
	scene
	opens 100 20 "stty -g > before; sh -c 'echo \$\$ > pid; exec $C top'; echo ended=\$?; stty -g > after"
	shows 'culimbo top'
	kill -TERM "$(cat pid)"
	shows ended=0
	shows status=0
	cmp before after
	[ "$(term display-message -p -t 0 '#{alternate_on} #{cursor_flag}')" = "0 1" ]
}

@test "no colours with NO_COLOR; no UTF-8 in a locale without it; the screen is redrawn only where it changes" {
	scene
	opens 100 20 "NO_COLOR=1 LC_ALL=C $C top -d 200ms"
	shows '#####'
	if term capture-pane -e -p -t 0 | grep -qE $'\033\\[3[0-7]m'; then false; fi
	if pane | LC_ALL=C grep -q $'[\x80-\xff]'; then false; fi
	keys q
	shows 'status=0'
	term kill-server
	# what is written for some looks at what stands still: the clock, not the screen
	command -v script > /dev/null || skip "no script(1)"
	TERM=xterm script -qec "stty cols 100 rows 24; $C top -d 100ms -n 20" typed < /dev/null > /dev/null
	TERM=xterm script -qec "stty cols 100 rows 24; $C top -d 100ms -n 1" once < /dev/null > /dev/null
	[ "$(wc -c < typed)" -lt $((4 * $(wc -c < once))) ]
}

@test "with --iterations, a terminal keeps the last table after the screen" {
	scene
	TERM=xterm script -qec "stty cols 80 rows 24; $C top -d 100ms -n 2" typed < /dev/null > /dev/null
	# \e[?1049l: the terminal has its old contents again
	sed -n '/1049l/,$p' typed | tr -d '\r' > after
	cat -v after
	grep -E "^ *${PID[P]} alive +6M " after
	grep -E "^ *${PID[C]} alive .*sharer" after
}

@test "a dumb terminal gets a table; so does a pipe, once" {
	scene
	opens 150 20 "TERM=dumb $C top"
	shows "^ *${PID[P]} alive +6M "
	shows 'status=0'
	run "$C" top
	exits 0
	[[ ${lines[0]} == "culimbo top - "*"3 processes   limbo 6 MiB in 2 blocks"* ]]
	[ "${#lines[@]}" -eq 6 ] # one is of the GPU
	if LC_ALL=C grep -q $'\033' <<< "$output"; then false; fi
}

@test "--batch: the given number of tables, with the given columns, filter and order" {
	scene
	began=${EPOCHREALTIME/./}
	run "$C" top --batch -n 3 -d 100ms
	exits 0
	[ $((${EPOCHREALTIME/./} - began)) -ge 200000 ] # two waits
	[ "$(grep -c '^culimbo top - ' <<< "$output")" -eq 3 ]
	[ "$(grep -cE "^ *${PID[P]} alive" <<< "$output")" -eq 3 ]
	[ "$("$C" top --raw --noheadings -o PID,LIMBO --filter=other)" = "${PID[Q]} 0" ]
	[ "$("$C" top --raw --noheadings -o PID --sort=imported | head -n 1)" = "${PID[C]}" ]
	"$C" top --json -o PID,LIMBOBYTES |
		jq -e --argjson p "${PID[P]}" '.processes[] | select(.pid == $p).limbobytes == 6291456'
	"$C" top --json -o PID,BAR,TREND,LIMBO,HELD,EXPORTED,EXPORTEDBYTES,IMPORTED,AGE > top.json
	jq -e --argjson p "${PID[P]}" --argjson q "${PID[Q]}" '(.processes[] | select(.pid == $p) |
		.bar == "██████████" and .trend == "█" and .limbo == 2 and .held == 1 and .exported == 1 and
		.exportedbytes == 3145728 and .imported == 0 and .age > 0) and (.processes[] |
		select(.pid == $q) | .trend == "▁" and .limbo == 0 and .held == 0 and .exported == 5 and
		.exportedbytes == 5120)' top.json
	jq -e --argjson c "${PID[C]}" '.processes[] | select(.pid == $c) | .imported == 1 and .exported == 0' top.json
	[ "$(column PINS top --bytes | sort -u)" = 0 ]
	tell P "free 1"
	# what C has open of P is freed: C pins it
	[ "$("$C" top --raw --noheadings --bytes -o PID,PINS --sort=pins | head -n 1)" = "${PID[C]} 3145728" ]
	[ $(($(date +%s) - $(date -d "$("$C" top --json | jq -r .time)" +%s))) -le 60 ]
	[ "$("$C" top --json -b -n 2 -d 1100ms | jq -r .time | sort -u | wc -l)" -eq 2 ]
	run "$C" top --sort=LIMBOBYTE
	exits 2
	has "did you mean 'LIMBOBYTES'?"
	run "$C" top -n 0
	exits 2
	run "$C" top -d 1ms
	exits 2
}
