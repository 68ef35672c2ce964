#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# culimbo metrics: metrics for monitoring, as promtool, node_exporter and Prometheus read them.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

tools=$top_builddir/tests/tools/prometheus
dashboard=$top_srcdir/tools/culimbo-dashboard.json

setup() {
	common_setup
	share_setup
	export CULIMBO_GRACE=1h
}
teardown() {
	# shellcheck disable=SC2046 # a word each
	[ ! -e pids ] || kill $(cat pids) 2> /dev/null || :
	share_teardown
}

GPU=GPU-63756c69-6d62-6f2d-7369-6d0000000000 # the simulated driver's first
# P exports two small blocks and a large one; C has the first small one open, which is freed
scene() {
	start P
	start C
	tell P "export 4096 1"
	tell C "open $SAID"
	tell P "export 4096 1"
	tell P "free 2"
	tell P "export 4194304 1"
}

# value LINE: the number behind it, in the file `text`
value() {
	grep -F "$1" text | sed 's/.* //'
}
of() { # NAME of the process, and of the metric, and what else is in its labels
	grep "^$2{pid=\"${PID[$1]}\",program=\"sharer\",file=\"[^\"]*\",device=\"0\",gpu=\"$GPU\"${3-}}" text | sed 's/.* //'
}

@test "the exports, limbo and imports of each process" {
	"$C" metrics > text
	[ "$(value 'culimbo_processes{state="alive"}')" = 0 ]
	[ "$(tail -n 1 text)" = "# EOF" ]
	scene
	"$C" metrics > text
	[ "$(value 'culimbo_processes{state="alive"}')" = 2 ]
	[ "$(of P culimbo_exported_bytes)" = 4194304 ]
	[ "$(of P culimbo_exported_blocks)" = 1 ]
	[ "$(of P culimbo_limbo_bytes ',state="held"')" = 4096 ]
	[ "$(of P culimbo_limbo_bytes ',state="grace"')" = 4096 ]
	[ "$(of P culimbo_limbo_blocks ',state="free"')" = 0 ]
	[ "$(of C culimbo_pinned_bytes)" = 4096 ]
	[ "$(of P culimbo_pinned_bytes)" = 0 ]
	awk -v t="$(of P culimbo_limbo_oldest_seconds)" 'BEGIN { exit !(t > 0 && t < 100) }'
	die P
	"$C" metrics > text
	[ "$(value 'culimbo_processes{state="dead"}')" = 1 ]
	[ "$(of P culimbo_orphaned_bytes)" = 4096 ]
	[ "$(of P culimbo_limbo_bytes ',state="held"')" = 0 ]
	[ "$(of C culimbo_pinned_bytes)" = 4096 ]
}

@test "the file is always complete; it is written repeatedly until a signal ends the command" {
	scene
	"$C" metrics -o out.prom
	"$C" metrics > text
	[ "$(grep -v oldest out.prom)" = "$(grep -v oldest text)" ]
	"$C" metrics -o again.prom --every 100ms 3>&- &
	echo $! > pids
	within 20 test -s again.prom
	for _ in 1 2 3 4 5 6 7 8; do
		[ "$(tail -n 1 again.prom)" = "# EOF" ] # it never sees a part
	done
	tell P "export 1048576 1"
	within 20 grep -q "culimbo_exported_bytes.* 5242880" again.prom
	kill -TERM "$(cat pids)"
	wait "$(cat pids)"
	[ "$(find . -name 'again.prom*' | wc -l)" -eq 1 ]
	run "$C" metrics -o nowhere/out.prom
	exits 1
	has "nowhere/out.prom: No such file or directory"
	run "$C" metrics --every soon
	exits 2
}

@test "counters only grow: exports, limbo, refusals and reclaims" {
	export CULIMBO_GRACE=0
	start P
	start C
	counter() { # NAME of the process, and of the counter
		grep "^culimbo_$2_total{pid=\"${PID[$1]}\",program=\"sharer\",file=\"[^\"]*\"} " text | sed 's/.* //'
	}
	tell P "export 4096 3"
	stale=$SAID
	tell P "export 4096 1"
	tell C "open $SAID"
	tell P "free 4" # C has one of these
	"$C" metrics > text # of the other three no good handle can be on its way
	[ "$(counter P exports)" = 4 ]
	[ "$(counter P limbo_entered_bytes)" = 2097152 ]
	[ "$(counter P limbo_returned_bytes)" = 0 ]
	[ "$(counter P reclaimed)" = 0 ]
	tell C "close"
	within 20 eval '"$C" metrics > text; [ "$(counter P limbo_returned_bytes)" = 2097152 ]'
	if tell C "open $stale" > /dev/null; then false; fi
	tell P "export 4096 2" # records that were used before
	tell C "open $SAID"
	tell P "free 2"
	die C
	within 20 eval '"$C" metrics > text; [ "$(counter P reclaimed)" = 1 ]'
	[ "$(counter P exports)" = 6 ]
	[ "$(counter C refused)" = 1 ]
	[ "$(counter P refused)" = 0 ]
	[ "$(counter P misuse)" = 0 ]
	[ "$(counter P memory_asked)" = 0 ]
	# OpenMetrics: a counter's name is that of its lines without "_total", a unit ends the name
	grep -v '^#' text | grep _total | sed 's/_total{.*//' | sort -u > of_lines
	sed -n 's/^# TYPE \(.*\) counter$/\1/p' text | sort > of_heads
	cmp of_lines of_heads
	for type in $(grep '^# UNIT' text | cut -d' ' -f3,4 | tr ' ' =); do
		[[ ${type%=*} == *_"${type#*=}" ]]
	done
	[ "$(grep -c '^# HELP' text)" = "$(grep -c '^# TYPE' text)" ]
	run "$C" metrics --format=xml
	exits 2
	has "'xml' is not openmetrics or prometheus"
}

@test "handles, opens, closes, frees that were kept, and waits for memory are counted in the file" {
	export CULIMBO_GRACE=0 CULIMBO_SIM_MEMORY=64MiB CULIMBO_PRESSURE_WAIT=20ms
	start P
	start C
	counter() { # NAME of the process, and of the counter
		grep "^culimbo_$2_total{pid=\"${PID[$1]}\",program=\"sharer\",file=\"[^\"]*\"} " text | sed 's/.* //'
	}
	tell P "export 4194304 1"
	mine=$SAID
	tell C "open $mine"
	tell C "open $mine"
	tell C "close"
	"$C" metrics > text
	[ "$(counter P handles) $(counter P opens) $(counter P closes)" = "1 0 0" ]
	[ "$(counter C handles) $(counter C opens) $(counter C closes)" = "0 2 1" ]
	[ "$(counter P frees_kept) $(counter P frees_kept_mapped)" = "0 0" ]
	tell P "free 1"
	"$C" metrics > text
	[ "$(counter P frees_kept) $(counter P frees_kept_mapped)" = "1 0" ]
	[ "$(counter C frees_kept)" = 0 ]
	"$C" show "${PID[P]}" --json | jq -e '.handles == 1 and .frees_kept == 1 and .opens == null'
	"$C" show "${PID[C]}" --json | jq -e '.opens == 2 and .closes == 1 and .handles == null'
	# it does not fit beside what C has
	[ "$(counter P memory_waits) $(counter P memory_wait_seconds)" = "0 0.000000" ]
	if tell P "alloc 64000000" > /dev/null; then false; fi
	"$C" metrics > text
	[ "$(counter P memory_waits)" = 1 ]
	awk -v t="$(counter P memory_wait_seconds)" 'BEGIN { exit !(t > 0 && t < 60) }'
	tell C "close"
	within 20 eval '"$C" metrics > text; [ "$(counter P frees_kept_mapped)" = 1 ]'
	[ "$(counter P frees_kept) $(counter C closes)" = "1 2" ]
	# a file of a version that does not keep them: its first word of them is 0
	for file in "$CULIMBO_DIR"/exporter-*; do
		printf '\0\0\0\0\0\0\0\0' | dd of="$file" bs=1 seek=2752 conv=notrunc status=none
	done
	"$C" metrics > text
	[ -z "$(counter P handles)$(counter C opens)" ]
	[ "$(counter P exports)" = 1 ]
}

@test "a GPU has one name for all processes, also when they number GPUs differently" {
	export CULIMBO_SIM_DEVICES=2
	start P CUDA_VISIBLE_DEVICES=1
	start Q
	start C
	tell P "export 4096 1"
	tell C "open $SAID"
	tell P "free 1"
	tell Q "export 8192 1"
	"$C" metrics > text
	[ "$(of Q culimbo_exported_bytes)" = 8192 ]
	GPU=${GPU%00}01
	[ "$(of P culimbo_limbo_bytes ',state="held"')" = 4096 ]
	[ "$(of C culimbo_pinned_bytes)" = 4096 ]
	[ "$(column GPU,BYTES blocks --bytes | sort | xargs)" = "${GPU%01}00 8192 $GPU 4096" ]
}

@test "the dashboard uses exactly the printed metrics" {
	scene
	"$C" metrics --format=prometheus > text
	jq -e '.title and .uid and (.panels | length > 9) and ([.panels[].id] | length == (unique | length))' \
		"$dashboard"
	# each panel has its own place
	jq -e '[.panels[].gridPos | select(.x + .w > 24)] == []' "$dashboard"
	jq -e '[.panels[].gridPos | range(.x; .x + .w) as $x | range(.y; .y + .h) as $y | "\($x) \($y)"] |
		length == (unique | length)' "$dashboard"
	jq -r '.. | .expr? // empty' "$dashboard" | grep -o 'culimbo_[a-z_]*' | sort -u > asked
	grep -o '^culimbo_[a-z_]*' text | sort -u > printed
	diff asked printed
	# and so does its page
	grep '^| `culimbo_' "$top_srcdir/doc/metrics.md" | cut -d'|' -f2 | grep -o 'culimbo_[a-z_]*' | sort -u > listed
	diff listed printed
	make -s -C "$top_builddir" install-dist_dashboardDATA DESTDIR="$PWD/to"
	find to -name culimbo-dashboard.json | grep -q /share/culimbo/
}

@test "promtool finds no error, whatever a program's name is" {
	[ -x "$tools/promtool" ] || skip "no Prometheus (fetch-prometheus.sh has said why)"
	cp "$SHARER" 'a"b\c'
	scene
	EXE='./a"b\c' start Q
	tell Q "export 1024 1"
	"$C" metrics > text
	grep -q 'program="a\\"b\\\\c"' text
	"$C" metrics --format=prometheus > older
	run "$tools/promtool" check metrics < older
	exits 0
	[ -z "$output" ]
	# the newer form, by Prometheus's reader of it; it wants times
	sed '/^[^#]/s/$/ 1700000000/' text > timed
	run "$tools/promtool" tsdb create-blocks-from openmetrics timed blocks
	exits 0
	sed '/^# EOF/d' timed > endless
	run "$tools/promtool" tsdb create-blocks-from openmetrics endless blocks
	exits 1
}

@test "node_exporter and Prometheus read it" {
	[ -x "$tools/prometheus" ] || skip "no Prometheus (fetch-prometheus.sh has said why)"
	scene
	mkdir prom
	"$C" metrics --format=prometheus -o prom/culimbo.prom
	# (two ports that are free now)
	read -r exporter server < <(python3 -c 'import socket
s = [socket.socket(), socket.socket()]
for x in s: x.bind(("127.0.0.1", 0))
print(*[x.getsockname()[1] for x in s])')
	"$tools/prometheus-node-exporter" --collector.disable-defaults --collector.textfile \
		--collector.textfile.directory=prom --web.listen-address="127.0.0.1:$exporter" \
		2> exporter.log 3>&- &
	echo $! >> pids
	cat > prometheus.yml <<-END
		scrape_configs:
		  - job_name: culimbo
		    scrape_interval: 1s
		    scrape_timeout: 1s
		    static_configs: [targets: ["127.0.0.1:$exporter"]]
	END
	"$tools/prometheus" --config.file=prometheus.yml --storage.tsdb.path=data --log.level=warn \
		--web.listen-address="127.0.0.1:$server" 2> server.log 3>&- &
	echo $! >> pids
	asks() { # QUERY: its first value
		python3 - "$server" "$1" <<-'END'
			import json, sys, urllib.parse, urllib.request
			url = f"http://127.0.0.1:{sys.argv[1]}/api/v1/query?" + urllib.parse.urlencode({"query": sys.argv[2]})
			try:
			    result = json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]
			    print(result[0]["value"][1] if result else "")
			except OSError:
			    print("")
		END
	}
	within 60 eval '[ "$(asks "sum(culimbo_limbo_bytes)")" = 8192 ]' || { cat server.log exporter.log; false; }
	# (a scrape that takes too long leaves no answers until the next one)
	within 20 eval '[ "$(asks "sum by (pid) (culimbo_pinned_bytes{pid=\"${PID[C]}\"})")" = 4096 ]'
	within 20 eval '[ "$(asks "count_over_time(node_textfile_scrape_error[1m])")" -ge 3 ]'
	[ "$(asks 'max_over_time(node_textfile_scrape_error[1m])')" = 0 ]
	# what each panel of the dashboard asks for has an answer
	jq -r '.. | .expr? // empty' "$dashboard" | sed 's/\$instance/.*/; s/\$__rate_interval/1m/' > asked
	[ "$(wc -l < asked)" -gt 15 ]
	while read -r query; do
		within 20 eval '[ -n "$(asks "$query")" ]' || { echo "no answer: $query"; false; }
	done < asked
	within 20 eval '[ "$(asks "count(count by (instance) (culimbo_processes))")" = 1 ]'
}
