#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031
# (output, status and the tests' variables come from bats and make check)
# Tests CULIMBO_TRACE and culimbo trace, on real processes and the simulated driver.
load ../tools/common.bash

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	# one consumer is killed while it holds blocks; others' blocks are freed while they are held
	play share blocks=12 consumers=3 kill stale want
	CULIMBO_SIM_MEMORY=16GiB play many blocks=2000 live=200 bytes=4096 consumers=4
}

play() { # NAME ARGUMENTS: leaves NAME.PID
	local name=$1
	shift
	CULIMBO_DIR="$PWD/$name-limbo" CULIMBO_SIM_DIR="$PWD/$name-sim" CULIMBO_GRACE=5ms \
		CULIMBO_REPORT=off CULIMBO_TRACE="$PWD/$name" \
		"$CULIMBO" run --simulate -- "$top_builddir/tests/trace/player" "$@"
}

T=$BATS_FILE_TMPDIR

@test "each process that called CUDA has a file of its own, for its user's eyes alone" {
	[ "$(find "$T" -maxdepth 1 -name 'share.*' | wc -l)" -eq 4 ]
	[ "$(find "$T" -maxdepth 1 -name 'share.*' -perm 0600 | wc -l)" -eq 4 ]
	CULIMBO_TRACE=$PWD/none "$C" run --simulate -- true
	[ -z "$(find . -name 'none*')" ]
}

@test "JSON: a track a process, with its name; slices that do not overlap" {
	"$C" trace "$T/share" -o out.json
	jq -e '[.traceEvents[] | select(.name == "process_name") | .args.name] | sort ==
		["player (ended)", "player (ended)", "player (ended)", "player (killed)"]' out.json
	# 12 blocks and the one before them; each open is a slice too
	jq -e '[.traceEvents[] | select(.ph == "X" and .args.address and .cat == "block")] | length == 13' out.json
	jq -e '[.traceEvents[] | select(.ph == "X" and .cat == "open")] | length == 12' out.json
	jq -e '[.traceEvents[] | select(.ph == "X" and .args.address)] | group_by([.pid, .tid]) |
		all(.[]; sort_by(.ts) | [., .[1:]] | transpose | map(select(.[1])) |
			all(.[]; .[0].ts + .[0].dur <= .[1].ts))' out.json
	for state in exported "limbo: held by importers" "limbo: may go"; do
		jq -e --arg s "$state" 'any(.traceEvents[]; .ph == "X" and .name == $s)' out.json
	done
}

@test "a block of a pool on the host has no device" {
	play host blocks=1 host
	"$C" trace host -o out.json
	"$C" trace host -o out.html
	jq -e '[.traceEvents[] | select(.ph == "X" and .args.bytes and .cat != "open") | .args.device] | sort ==
		[null, 0, 0]' out.json
	[ "$(grep -c '^\[0,[0-9],-1,"0x' out.html)" -eq 1 ]
	[ "$(grep -c '^\[0,[0-9],255,"0x' out.html)" -eq 0 ]
}

@test "JSON: flows join the exporter's export to each importer's open" {
	"$C" trace "$T/share" -o out.json
	jq -e '[.traceEvents[] | select(.ph == "s" or .ph == "f")] | group_by(.id) | length == 12 and
		all(.[]; length == 2 and .[0].ph != .[1].ph and .[0].pid != .[1].pid)' out.json
	# each end lies in a slice of its track, and the first is the exporter
	jq -e '.traceEvents as $all | [$all[] | select(.ph == "s" or .ph == "f")] | all(.[]; . as $flow |
		any($all[]; .ph == "X" and .args.address and .pid == $flow.pid and .tid == $flow.tid and
			.ts <= $flow.ts and $flow.ts <= .ts + .dur))' out.json
	jq -e '[.traceEvents[] | select(.ph == "s") | .pid] | unique | length == 1' out.json
	jq -e '[.traceEvents[] | select(.ph == "f") | .pid] | unique | length == 3' out.json
	# both are of the same block, which is not opened before it is exported
	jq -e '.traceEvents as $all | def stamp: .args | [.file, .record, .generation];
		[$all[] | select(.ph == "s")] | all(.[]; . as $from |
			($all[] | select(.ph == "f" and .id == $from.id)) as $to |
			($all[] | select(.cat == "open" and .pid == $to.pid and .tid == $to.tid and
				.ts == $to.ts)) as $open |
			$from.ts <= $to.ts and any($all[]; .cat == "block" and .args.address and
				.pid == $from.pid and .tid == $from.tid and .ts <= $from.ts and
				$from.ts <= .ts + .dur and stamp == ($open | stamp)))' out.json
	# also where records are used again, by other blocks
	"$C" trace "$T/many" -o many.json
	jq -e '[.traceEvents[] | select(.ph == "s" or .ph == "f")] | group_by(.id) | length == 2000 and
		all(.[]; sort_by(.ph) | .[1].ph == "s" and .[1].ts <= .[0].ts)' many.json
}

@test "JSON: the limbo's counter rises, and ends at 0" {
	for name in share many; do
		"$C" trace "$T/$name" -o out.json
		jq -e '[.traceEvents[] | select(.ph == "C") | .args.bytes] | max > 0 and .[-1] == 0' out.json
		jq -e 'all(.traceEvents[]; .name != "ended with blocks in limbo")' out.json
		# each block raises it once, and lowers it once
		jq -e '[.traceEvents[] | select(.cat == "block" and .args.exports > 0) | .args.bytes] as $blocks |
			[.traceEvents[] | select(.ph == "C") | .args.bytes] |
			[., [0] + .[:-1]] | transpose | map(.[0] - .[1]) |
			(map(select(. > 0)) | sort) == ($blocks | sort) and
			(map(select(. < 0) | -.) | sort) == ($blocks | sort)' out.json
	done
}

@test "JSON: a killed holder, a stale handle and a wait for memory are events" {
	"$C" trace "$T/share" -o out.json
	killed=$(jq -r '.traceEvents[] | select(.name == "process_name" and
		.args.name == "player (killed)") | .pid' out.json)
	jq -e --argjson pid "$killed" '[.traceEvents[] |
		select(.name == "hold of a dead process reclaimed" and .args.pid == $pid)] | length == 4' out.json
	jq -e '[.traceEvents[] | select(.name == "stale handle refused")] | length == 1' out.json
	jq -e 'any(.traceEvents[]; .name == "allocation waited for memory")' out.json
	jq -e --argjson pid "$killed" 'all(.traceEvents[] | select(.cat == "open" and .pid == $pid);
		.args.closed == "by the exporter: its holder died")' out.json
}

@test "the summary names who held the longest" {
	run "$C" trace "$T/share"
	exits 0
	has "4 processes"
	has "Longest in limbo:"
	has ", until found dead"
	[ -z "$(awk 'length > 80' <<< "$output")" ]
	has "Freed too early: "
	# the exporter; and each importer, of no block, with its opens
	[[ $output =~ \ player\ +ended\ +[0-9]+\ +0\ +13\ +12\ +0\ +[0-9.]+\ MiB ]]
	[ "$(grep -cE ' player +(ended|killed) +[0-9]+ +0 +0 +0 +4 +0 B$' <<< "$output")" -eq 3 ]
	[ "$("$C" trace "$T"/share.*)" = "$output" ]
	[ "$("$C" trace --format=text -o - "$T/share")" = "$output" ]
}

@test "names of processes are data, whatever they are" {
	evil='<img src=x onerror=alert(1)>"'
	cp "$top_builddir/tests/trace/player" "./$evil"
	CULIMBO_DIR=$PWD/limbo CULIMBO_SIM_DIR=$PWD/sim CULIMBO_TRACE=$PWD/evil CULIMBO_REPORT=off \
		CULIMBO_GRACE=5ms "$C" run --simulate -- "./$evil" blocks=1
	"$C" trace evil -o evil.html
	[ "$(grep -c '<img' evil.html)" -eq 0 ]
	"$C" trace evil -o evil.json
	jq -e 'any(.traceEvents[]; .name == "process_name" and (.args.name | startswith("<img src=x on")))' evil.json
	# the library writes no control bytes, but somebody else may
	LC_ALL=C sed 's/<img src/\x1b[2J\xc2\x9bzz/g' evil.[0-9]* > odd
	run "$C" trace odd
	exits 0
	has "(?[2J?zz="
	if LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]\|\xc2[\x80-\x9f]' <<< "$output"; then false; fi
	"$C" trace odd -o odd.json
	jq -e 'any(.traceEvents[]; .name == "process_name" and (.args.name | startswith("\u001b[2J")))' odd.json
}

@test "files that are cut, no traces, or not there: it is said, and the rest is read" {
	file=$(find "$T" -maxdepth 1 -name 'many.*' -size +1k | head -n 1)
	head -c 40000 "$file" > cut
	seq 2000 > letter
	run "$C" trace cut
	exits 0
	has "is cut: "
	"$C" trace cut --format=json -o cut.json
	jq -e '[.traceEvents[] | select(.ph == "X" and .args.address)] | length > 50' cut.json
	run "$C" trace cut letter
	exits 1
	has "'letter' is not a culimbo trace file"
	has "1 process, "
	run "$C" trace nothing-here
	exits 1
	has "CULIMBO_TRACE"
	run "$C" trace "$T/share" -o out.pdf
	exits 2
	run "$C" trace "$T/share" --format=pdf
	exits 2
	run "$C" trace
	exits 2
}

@test "what a small ring has lost is said, and the newest is there" {
	CULIMBO_TRACE_SIZE=64KiB CULIMBO_SIM_MEMORY=4GiB play small blocks=1000 live=8 bytes=4096
	run "$C" trace small
	exits 0
	[[ $output =~ \ player\ +ended\ +[0-9]+\ +[5-9][0-9][0-9][0-9]\  ]]
	"$C" trace small -o out.html
	[ "$(sed -n 's/.*"lost":\([0-9]*\).*/\1/p' out.html | sort -n | tail -n 1)" -gt 5000 ]
	"$C" trace small -o out.json
	jq -e '[.traceEvents[] | select(.ph == "C")] | sort_by(.ts) | .[-1].args.bytes == 0' out.json
	# a block whose export is lost is one block, not one that was freed and one that waited
	printf 'end\n' | CULIMBO_TRACE_SIZE=64KiB CULIMBO_GRACE=0 CULIMBO_REPORT=off CULIMBO_DIR=$PWD/limbo \
		CULIMBO_SIM_DIR=$PWD/sim CULIMBO_TRACE=$PWD/lost "$C" run --simulate -- \
		"$top_builddir/tests/report/many" 900 1 > out
	read -r _ exporter importer < out
	kill -9 "$importer"
	run "$C" trace "lost.$exporter"
	exits 0
	has "1 process, "
	[[ $output =~ \;\ ([0-9]+)\ blocks\ and\ events ]]
	[ "${BASH_REMATCH[1]}" -le 400 ] # (three records each of some 1,000)
}

@test "the page's rows, phases and density hold what the trace has" {
	command -v node > /dev/null || skip "there is no node"
	CULIMBO_DIR="$T/share-limbo" "$C" trace "$T/share" -o share.html # one was killed: its stacks are there
	run node "$top_srcdir/tests/trace/page.js" share.html 13 12 4
	exits 0
	"$C" trace "$T/many" -o many.html
	run node "$top_srcdir/tests/trace/page.js" many.html 2001 2000 0
	exits 0
	[[ $output =~ ,\ [1-9][0-9]*\ dense ]]
}

@test "a running process's stacks, and a killed one's, come from its exporter file; without that there are none" {
	command -v jq > /dev/null || skip "there is no jq"
	data() {
		sed -n '/<script id="data"/,/<\/script>/p' "$1" | sed '1d;$d' | jq -c "$2"
	}
	"$C" trace "$T/share" -o share.html
	# the killed one's opens have no stack, the others' have
	data share.html '[.opens[] | select(.[10] < 0)] | length' > without
	CULIMBO_DIR="$T/share-limbo" "$C" trace "$T/share" -o share.html
	data share.html '[.opens[] | select(.[10] < 0)] | length' > with
	cat without with
	[ "$(cat with)" -eq 0 ]
	[ "$(cat without)" -gt 0 ]
	data share.html '.stacks | length > 2 and all(length > 0 and (.[0] | test("player.c:[0-9]+$")))' | grep -x true
}

@test "a trace of version 1, which had no room for stacks, is read as before" {
	for file in "$T"/share.[0-9]*; do
		cp "$file" "old.${file##*.}"
		truncate -s "$(od -An -t u8 -j 360 -N 8 "$file" | tr -d ' ')" "old.${file##*.}"
		printf '\1' | dd of="old.${file##*.}" bs=1 seek=8 conv=notrunc status=none
	done
	"$C" trace "$T/share" --format=json > new.json
	"$C" trace old --format=json > old.json 2> err
	[ ! -s err ]
	cmp new.json old.json
	"$C" trace old -o old.html
	grep -q '"stacks":\[\]' old.html
}

@test "the page is worked in a browser: mouse, wheel, keys, filter, states, theme, table" {
	browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome ||
		command -v chromium-headless-shell) ||
		skip "there is no chromium"
	"$C" trace "$T/share" -o share.html
	{
		# a browser with a virtual clock draws no frames by itself, only on request
		sed -e '/^<\/body>/,$d' -e '/^<script id="core">/i \
<script>window.requestAnimationFrame = (f) => setTimeout(f, 0);</script>' share.html
		echo '<script>'
		cat "$top_srcdir/tests/trace/operate.js"
		echo '</script></body></html>'
	} > worked.html
	for size in 1280,800 800,600; do
		HOME=$PWD timeout 150 "$browser" --headless --no-sandbox --disable-gpu --window-size=$size \
			--user-data-dir="$PWD/profile" --virtual-time-budget=60000 --dump-dom "file://$PWD/worked.html" \
			> dom 2> err
		grep -o '<body[^>]*>' dom > body
		cat body
		grep -q 'data-operated="1"' body
		grep -q 'data-wrong=""' body
		grep -q 'data-errors="0"' body
	done
	play one blocks=1 consumers=1
	"$C" trace one -o one.html
	HOME=$PWD timeout 150 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" \
		--virtual-time-budget=2000 --dump-dom "file://$PWD/one.html" > dom 2> err
	grep -o '[0-9]* processes, [0-9]* blocks, 1 open[^ ]* ' dom > summary
	grep -q 'blocks, 1 open, $' summary
}

@test "a browser draws the page, and has nothing to complain of" {
	browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome ||
		command -v chromium-headless-shell) ||
		skip "there is no chromium"
	"$C" trace "$T/share" -o share.html
	"$C" trace "$T/many" -o many.html
	for page in "share 13 12" "many 2001 2000"; do
		# shellcheck disable=SC2086 # three words
		set -- $page
		HOME=$PWD timeout 150 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" \
			--enable-logging=stderr --virtual-time-budget=4000 --dump-dom "file://$PWD/$1.html" \
			> "$1.dom" 2> "$1.err"
		grep -o '<body[^>]*>' "$1.dom" > body
		cat body
		grep -q 'data-rendered="1"' body
		grep -q 'data-errors="0"' body
		grep -q "data-blocks=\"$2\"" body
		grep -q "data-opens=\"$3\"" body
		[ "$(grep -c CONSOLE "$1.err")" -eq 0 ]
	done
}

@test "a page of 20 processes and 10,000 blocks stays usable: its size, what it draws, and how long that takes" {
	CULIMBO_SIM_MEMORY=16GiB play large blocks=10000 consumers=19 live=200 bytes=4096
	"$C" trace large -o large.html
	size=$(stat -c %s large.html)
	echo "# $size bytes" >&3
	[ "$size" -lt 5000000 ]
	if command -v node > /dev/null; then
		run node "$top_srcdir/tests/trace/page.js" large.html 10001 10000 0
		exits 0
		[[ $output == "20001 bars in 20 lanes, "[1-9]*" dense" ]]
	fi
	browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome ||
		command -v chromium-headless-shell) ||
		skip "there is no chromium"
	{
		sed '/^<script id="core">/,$d' large.html
		echo '<script>'
		cat "$top_srcdir/tests/trace/large.js"
		echo '</script>'
		sed -n '/^<script id="core">/,/^<\/body>/p' large.html | sed '$d'
		echo '<script>'
		cat "$top_srcdir/tests/trace/large.js"
		echo '</script></body></html>'
	} > worked.html
	# by the machine's own clock, not by one that the browser lets run
	HOME=$PWD timeout 150 "$browser" --headless --no-sandbox --disable-gpu --window-size=1280,800 \
		--user-data-dir="$PWD/profile" --dump-dom "file://$PWD/worked.html" > dom 2> err
	grep -o '<body[^>]*>' dom | sed 's/&quot;/"/g' > body
	cat body
	grep -q 'data-large="1"' body
	grep -q 'data-errors="0"' body
	grep -q 'data-lanes="20"' body
	grep -o 'data-took="{[^}]*}' body | sed 's/.*="//' > took
	grep -o 'data-drew="{[^}]*}' body | sed 's/.*="//' > drew
	echo "# ms: $(jq -c 'map_values(round)' took)" >&3
	echo "# drawn: $(cat drew)" >&3
	# (loading draws thrice, and `deep` eight times)
	jq -e '.load < 8000 and .deep < 4000 and (del(.load, .deep) | all(. < 1000))' took
	jq -e '.load < 24000 and .deep < 64000 and (del(.load, .deep) | all(. < 8000))' drew
	jq -e '[.in, .fit, .next, .filter, .all, .theme] | all(. > 500)' drew
	grep -q 'data-rows="201"' body # of the table, with its head
	[ "$(grep -o 'data-nodes="[0-9]*' body | grep -o '[0-9]*$')" -lt 5000 ]
}
