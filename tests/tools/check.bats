#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2013,SC2016
# What culimbo check reports about CMD's descendants, and its output for CI systems.

load common
bats_require_minimum_version 1.5.0

# unfold FILE: its lines without their folds
unfold() {
	sed -z 's/\n        \([^ ]\)/ \1/g' "$1"
}

# connected: the kernel's process connector tells of all processes here (tools/commands/check_ends.h)
connected() {
	[ "$(id -u)" -eq 0 ] && [ "$(readlink /proc/self/ns/pid)" = 'pid:[4026531836]' ] &&
		python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11).bind((0, 1))'
}

setup_file() {
	export P=$top_builddir/tests/report
}

@test "check names a descendant of CMD that was killed by a signal and reaped by another process" {
	# it lives long enough to be seen
	"$C" check --allow-no-cuda --output text -- sh -c 'sh -c "sleep 0.5; kill -SEGV \$\$" & wait $!; :'
	unfold text | grep -E '^culimbo: process [0-9]+ \(sh -c .*\) was killed by signal 11 ' || {
		cat text
		# Linux 6.15 says how a process ended whose parent has taken its status
		[ "$(printf '6.15\n%s\n' "$(uname -r)" | sort -V | head -n 1)" != 6.15 ]
	}
	# one whose parent had ended is ours to wait for, with any kernel
	"$C" check --allow-no-cuda --wait 10s --output text -- sh -c '(sh -c "sleep 0.2; kill -SEGV \$\$" &); :'
	unfold text | grep -E '^culimbo: process [0-9]+ \(sh -c .*\) was killed by signal 11 '
}

@test "check names descendants that were killed while it stood still, where the kernel tells of all" {
	connected || skip "the kernel does not tell this process of the ends of others"
	run "$C" check --simulate --output text -- sh -c 'kill -STOP $PPID
		sh -c "kill -ABRT \$\$"; "$1"; sh -c "exit 3"; sh -c "kill -PIPE \$\$"; kill -CONT $PPID' sh "$P/is_killed"
	exits 99
	cat text
	unfold text | grep -E '^culimbo: process [0-9]+ \(which lived for a moment only\) was killed by signal 6 '
	unfold text | grep -E '^culimbo: process [0-9]+ \(.*is_killed\) was killed by signal 9 '
	[ "$(unfold text | grep -c 'by signal')" -eq 2 ]
	run "$C" check --simulate --json --output json -- sh -c 'kill -STOP $PPID; "$1"; kill -CONT $PPID' sh "$P/is_killed"
	python3 "$top_srcdir/tests/report/schema.py" "$top_srcdir/doc/report.schema.json" json
	jq -e -s '[.[] | select(.type == "descendant")] | length == 1 and .[0].ended == "signal" and .[0].signal == 9 and
		.[0].cuda and (.[0].command | endswith("is_killed"))' json
}

@test "check names the signal of processes that live for milliseconds" {
	# between them the pause of its looks grows to 50 ms
	"$C" check --simulate --output text -- sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do "$1"; sleep 0.15; done' sh "$P/is_killed" || :
	cat text
	grep -q ' killed=10 ' text
	if connected; then
		[ "$(unfold text | grep -cE '^culimbo: process [0-9]+ \(.*is_killed\) was killed by signal 9 ')" -eq 10 ]
	fi
	[ "$(printf '6.15\n%s\n' "$(uname -r)" | sort -V | head -n 1)" = 6.15 ] || return 0
	[ "$(unfold text | grep -cE '^culimbo: process [0-9]+ \(.*is_killed\) was killed by signal 9 ')" -ge 6 ]
}

@test "check looks at a program when it starts, where the kernel does not tell of its end" {
	local away=(unshare -rnpf --mount-proc)
	"${away[@]}" true || skip "no namespaces here"
	[ "$(printf '6.15\n%s\n' "$(uname -r)" | sort -V | head -n 1)" = 6.15 ] || skip "Linux tells nothing of what its parent has taken"
	# a process that opens the library wakes it
	# (check may close a descriptor meanwhile)
	"${away[@]}" "$C" check --simulate --allow-no-cuda --output text -- sh -c 'cat /proc/$PPID/fdinfo/* > watches || :'
	inode=$(stat -L -c %i "$("$C" version --json | jq -r '.["library"]')")
	grep -q "^inotify .*ino:$(printf %x "$inode") " watches
	# between them the pause of its looks grows to 50 ms: without a look at each start it names two of ten
	for _ in 1 2 3 4 5 6; do # a busy machine may come too late
		"${away[@]}" "$C" check --simulate --allow-no-cuda --output text -- \
			sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; sh -c "sleep 0.01; kill -SEGV \$\$"; done; sleep 0.1' || :
		cat text
		[ "$(unfold text | grep -cE '^culimbo: process [0-9]+ \(.*\) was killed by signal 11 ')" -lt 7 ] || return 0
	done
	false
}

@test "check names a killed process that it has never seen, from the file that it left" {
	# check stands still meanwhile
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	if connected; then
		# in another network namespace the kernel tells nothing
		printf '#!/bin/sh\nexec unshare -n "%s" "$@"\n' "$C" > inside
		chmod +x inside
		C=$PWD/inside
	fi
	unseen=(sh -c 'kill -STOP $PPID; "$1"; kill -CONT $PPID' sh "$P/is_killed")
	run "$C" check --simulate --output text -- "${unseen[@]}"
	exits 99
	cat text
	unfold text | grep -E '^culimbo: process [0-9]+ \(.*is_killed\) ended without a report of its own: probably killed, by which signal is not known$'
	run "$C" check --simulate --json --output json -- "${unseen[@]}"
	python3 "$top_srcdir/tests/report/schema.py" "$top_srcdir/doc/report.schema.json" json
	jq -e -s 'any(.[]; .type == "descendant" and .ended == "unknown" and .cuda and .reported == false)' json
	run "$C" check --simulate --format=junit --output junit.xml -- "${unseen[@]}"
	[ "$(grep -cE '^process [0-9]+ ended without a report: probably killed, by which signal is not known$' junit.xml)" -eq 1 ]
	grep -A1 '<system-out>' junit.xml | grep -E '^process [0-9]+ \(.*is_killed\) ended without a report: probably killed'
	run "$C" check --simulate --format=github --output text -- "${unseen[@]}"
	grep -E '^::warning title=culimbo check::process [0-9]+ \(.*is_killed\) ended without a report: probably killed' text
}

@test "check: a process that becomes another program with what it has open was not killed" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	cat > job.sh <<-'END'
		rm -f in out
		mkfifo in out
		"$1" < in > out 3>&- &
		exec 5> in 6< out
		echo 'export 4096 1' >&5
		read -r said handle <&6
		printf 'open %s\nexec /bin/true\n' "$handle" | "$1" > /dev/null
	END
	run "$C" check --simulate --json --output json -- sh job.sh "$top_builddir/tests/tools/sharer"
	cat json
	jq -e -s '[.[] | select(.type == "descendant" and .ended == "exec")] | length == 1' json
	jq -e -s 'any(.[]; .type == "check" and .killed == 0)' json
	run "$C" check --simulate --output text -- sh job.sh "$top_builddir/tests/tools/sharer"
	cat text
	output=$(< text)
	grep -E '^  EXEC: process [0-9]+ called exec with 1 block \(4 KiB\) of process [0-9]+ open$' text
	has "call cudaIpcCloseMemHandle before exec: with its program process "
	run grep -i kill text
	exits 1
}

@test "check waits up to a limit for processes that CMD leaves running, and names them" {
	begun=$EPOCHREALTIME
	"$C" check --allow-no-cuda --wait 0 --output text -- sh -c 'sleep 1.5 3>&- & echo $! > pid
		until grep -q sleep /proc/$!/comm; do :; done'
	cat text
	# before its exec it has the name of the shell
	grep -E "^culimbo: process $(cat pid) \((sleep 1.5|sh -c sleep 1.5 .*)\) still runs" text
	grep ' running=1' text
	"$C" check --allow-no-cuda --wait 10s --output text -- sh -c '(sleep 0.3; echo "done" > waited) &'
	[ -e waited ]
	run ! grep 'still runs' text
	[ $((${EPOCHREALTIME/./} - ${begun/./})) -lt 8000000 ]
	run "$C" check --wait soon -- true
	exits 2
	has "--wait: 'soon' is not a time"
}

@test "check: a process that uses CUDA and still runs makes the check fail" {
	cat > job.sh <<-'END'
		mkfifo in out
		"$1" < in > out &
		exec 5> in 6< out
		echo 'export 4096 1' >&5
		read -r said <&6
		sleep 2 3>&- > /dev/null 2>&1 &
	END
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	run "$C" check --simulate --wait 0 --output text -- sh job.sh "$top_builddir/tests/tools/sharer"
	left=$output
	cat text
	exits 98
	unfold text | grep 'still runs, and uses CUDA: what it will leave is not known'
	rm in out
	run "$C" check --simulate --wait 0 --allow-running --output text -- sh job.sh "$top_builddir/tests/tools/sharer"
	exits 0
	# they are told to be removed by who has seen their processes end
	for folder in $(grep -o '/[^ ]*culimbo-check-[A-Za-z0-9]*' <<< "$left $output" | sort -u); do
		rm -rf "$folder"
	done
}

@test "check: valid JUnit XML, and its own output separate from the program's" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	cp "$P/.libs/never_closes" 'a<b>&"c' 2> /dev/null || cp "$P/never_closes" 'a<b>&"c'
	run "$C" check --simulate --format=junit --output=junit.xml -- sh -c 'echo log >&2; exec "$0"' './a<b>&"c'
	exits 99
	[ "$output" = log ]
	cat junit.xml
	python3 - <<-'END'
		import xml.etree.ElementTree as tree
		root = tree.parse("junit.xml").getroot()
		suite, = root.findall("testsuite")
		cases = suite.findall("testcase")
		failed = [c for c in cases if c.find("failure") is not None]
		assert root.tag == "testsuites" and int(suite.get("tests")) == len(cases)
		assert int(suite.get("failures")) == len(failed) == len(cases) - 1, suite.attrib
		closes, = [c for c in failed if c.get("classname") == "culimbo.not-closed"]
		assert "2 blocks, 2 MiB in open_frame" in closes.get("name"), closes.get("name")
		assert 'a<b>&"c' in closes.get("name")
		assert "call cudaIpcCloseMemHandle" in closes.find("failure").get("message")
		assert "#0 open_frame" in closes.find("failure").text and "never_closes.c:" in closes.find("failure").text
	END
	# green: one case, which says that the check was made
	"$C" check --simulate --format=junit --output=junit.xml -- "$top_builddir/tests/e2e/demo" > out || [ $? -eq 99 ]
	python3 -c 'import xml.etree.ElementTree as t; assert t.parse("junit.xml").getroot().findall(".//testcase")'
	run "$C" check --simulate --format=junit --output=junit.xml -- true
	exits 98
	grep -q 'message="no CUDA call' junit.xml
}

@test "check: GitHub's annotations name the file of the repository and the line" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	GITHUB_WORKSPACE=$(realpath "$top_srcdir")
	export GITHUB_WORKSPACE
	run "$C" check --simulate --format github --output text -- "$P/never_closes"
	exits 99
	cat text
	line=$(grep -n 'CHECK(cuIpcOpenMemHandle' "$top_srcdir/tests/report/never_closes.c" | cut -d: -f1)
	grep -E "^::error file=tests/report/never_closes.c,line=$line,title=culimbo not-closed::not-closed: 2 blocks, 2 MiB in open_frame of process [0-9]+ .*call cudaIpcCloseMemHandle" text
	grep '^culimbo: CHECK processes=2 findings=2' text
	run "$C" check --format xml -- true
	exits 2
	has "--format: 'xml' is not text, json, junit or github"
}

@test "check: JUnit and GitHub have the other side, stacks up to main(), and the signal that ended a process" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	GITHUB_WORKSPACE=$(realpath "$top_srcdir")
	export GITHUB_WORKSPACE
	run "$C" check --simulate --format=junit --output=junit.xml -- "$P/never_closes"
	exits 99
	cat junit.xml
	grep -Eq '^LEAK: process [0-9]+ never closed 2 blocks \(2 MiB\) of process [0-9]+$' junit.xml
	grep -Eq '^freed by process [0-9]+ \(.*never_closes\) from$' junit.xml
	grep -A1 '^freed by' junit.xml | grep -q '#0 produce tests/report/never_closes.c:'
	grep -A2 '^freed by' junit.xml | grep -q '#1 main tests/report/never_closes.c:'
	run ! grep -E 'libc_start|_start' junit.xml
	run "$C" check --simulate --format=github --output=text -- "$P/never_closes"
	exits 99
	cat text
	grep -Eq '; freed by process [0-9]+ \(.*never_closes\) in produce tests/report/never_closes.c:[0-9]+\. call' text
	# an importer, CMD itself, is killed
	cat > job.sh <<-'END'
		rm -f in out
		mkfifo in out
		"$1" < in > out 2> /dev/null 3>&- &
		exec 5> in 6< out
		echo 'export 4096 1' >&5
		read -r said handle <&6
		exec "$1" 6<&- <<INNER
		open $handle
		abort
		INNER
	END
	run "$C" check --simulate --format=junit --output=junit.xml -- sh job.sh "$top_builddir/tests/tools/sharer"
	exits 137
	cat junit.xml
	grep -q '<failure type="check" message="CMD was killed by signal 9 (Killed)">' junit.xml
	pid=$(grep -oE '^KILLED: process [0-9]+' junit.xml | grep -oE '[0-9]+')
	[ "$(grep -c "^process $pid was killed by signal 9 (Killed)$" junit.xml)" -eq 1 ] # in the finding
	grep -A1 '<system-out>' junit.xml | grep -Eq "^process $pid \(.*sharer\) was killed by signal 9 \(Killed\)$"
	python3 -c 'import xml.etree.ElementTree as t; t.parse("junit.xml")'
	run "$C" check --simulate --format=github --output=text -- sh job.sh "$top_builddir/tests/tools/sharer"
	exits 137
	cat text
	unfold text | grep -Eq '^::error .*title=culimbo not-closed::.*\. process ([0-9]+) was killed by signal 9 \(Killed\)\. process \1 ended'
	unfold text | grep -Eq '^::warning title=culimbo check::process [0-9]+ \(.*sharer\) was killed by signal 9 \(Killed\)$'
	unfold text | grep -q '^::error title=culimbo check::CMD was killed by signal 9 (Killed)$'
	run "$C" check --simulate --format=github --output=text -- sh -c 'exit 3'
	exits 3
	grep -q '^::error title=culimbo check::CMD failed: exit status 3$' text
}

@test "check --print-suppressions counts matches only in its own processes" {
	export CULIMBO_DIR=$BATS_TEST_TMPDIR/limbo CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR CULIMBO_KEEP_DEAD=1h
	"$C" run --simulate -- "$P/is_killed" 2> /dev/null
	printf 'leak:load_model\n' > known
	"$C" report --suppressions known --print-suppressions > text
	grep 'leak:load_model' text
	"$C" check --simulate --suppressions known --print-suppressions --output text -- "$top_builddir/tests/e2e/demo" || [ $? -eq 99 ]
	cat text
	run ! grep 'leak:load_model' text
	grep '^culimbo: CHECK ' text
	run ! grep ' suppressed=' text
}

@test "check --gen-suppressions of a ctypes program refuses a suppression that would hide all others" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	cat > leaks.py <<-'END'
		import ctypes, os
		cuda = ctypes.CDLL("libcuda.so.1")
		context, block, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(64)
		assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
		assert not cuda.cuCtxSetCurrent(context) and not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(4096))
		assert not cuda.cuIpcGetMemHandle(handle, block)
		assert not cuda.cuMemFree_v2(block) and cuda.cuMemFree_v2(block)
	END
	# by Python's frames: code outside of functions is named by its file
	run "$C" check --simulate --gen-suppressions --output made -- python3 leaks.py
	exits 99
	cat made
	grep -Fx 'freed-twice:stack:/leaks.py$' made
	run "$C" check --simulate --suppressions made -- python3 leaks.py
	exits 0
	# without them there is only the interpreter
	CULIMBO_PYTHON=0 run "$C" check --simulate --gen-suppressions --output made -- python3 leaks.py
	exits 99
	cat made
	grep '^# freed-twice: 1 block, process [0-9]*: no function of the program is known' made
	run ! grep -v '^#' made
}

@test "check reports that its cgroup ran out of memory, whichever process was killed" {
	if [ -w /sys/fs/cgroup/memory/cgroup.procs ]; then
		group=/sys/fs/cgroup/memory/culimbo-test-$$ limit=memory.limit_in_bytes
	else
		group=/sys/fs/cgroup/culimbo-test-$$ limit=memory.max
	fi
	mkdir "$group" 2> /dev/null || skip "no memory cgroup can be made here"
	echo 60M > "$group/$limit" || { rmdir "$group"; skip "no memory cgroup can be made here"; }
	cat > job.sh <<-'END'
		echo $$ > "$1/cgroup.procs"
		"$2" check --allow-no-cuda --output text -- sh -c 'perl -e "\$x = q(x) x (200 << 20)"; true'
	END
	sh job.sh "$group" "$C" || :
	rmdir "$group"
	cat text
	grep '^culimbo: memory ran out: the kernel has killed 1 of ' text
	grep ' oom_kills=1$' text
}

@test "check: a child that the kernel kills for want of memory: the signal, and the number of such kills" {
	v1=$(sed -n 's/.*:memory://p' /proc/self/cgroup) v2=$(sed -n 's/^0:://p' /proc/self/cgroup)
	if [ -n "$v1" ]; then
		group=/sys/fs/cgroup/memory$v1/culimbo-test.$$ limit=memory.limit_in_bytes
	else
		group=/sys/fs/cgroup$v2/culimbo-test.$$ limit=memory.max
	fi
	mkdir "$group" 2> /dev/null || skip "no cgroup can be made here"
	if ! echo 100000000 2> /dev/null > "$group/$limit"; then
		rmdir "$group"
		skip "a cgroup that is made here has no limit of memory"
	fi
	printf '#!/bin/sh\necho $$ > %s/cgroup.procs\nexec "$@"\n' "$group" > inside
	run sh inside "$C" check --allow-no-cuda --json --output json -- sh -c 'python3 -c "x = bytearray(400 << 20)"; :'
	run sh inside "$C" check --allow-no-cuda --output text -- sh -c 'python3 -c "x = bytearray(400 << 20)"; :'
	rmdir "$group"
	exits 0
	cat text json
	unfold text | grep -E '^culimbo: process [0-9]+ \(.*\) was killed by signal 9 '
	unfold text | grep -E "^culimbo: memory ran out: the kernel has killed [1-9] of this cgroup's processes meanwhile$"
	grep -E '^culimbo: CHECK .* oom_kills=[1-9]' text
	jq -e -s '.[-1].oom_kills >= 1 and any(.[]; .type == "descendant" and .signal == 9)' json
}

@test "check: report-format.md makes SARIF of the JSON" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	sed -n "/^jq -s '/,/culimbo.sarif$/p" "$top_srcdir/doc/report-format.md" > recipe
	[ -s recipe ]
	run "$C" check --simulate --json --output report.jsonl -- "$P/never_closes"
	exits 99
	sh recipe
	cat culimbo.sarif
	line=$(grep -n 'CHECK(cuIpcOpenMemHandle' "$top_srcdir/tests/report/never_closes.c" | cut -d: -f1)
	jq -e --argjson line "$line" '.version == "2.1.0" and .runs[0].tool.driver.name == "culimbo" and
		(.runs[0].results | length == 1) and (.runs[0].results[0] | .ruleId == "not-closed" and .level == "error" and
		(.message.text | test("^LEAK: .*cudaIpcCloseMemHandle")) and
		(.locations[0].physicalLocation | (.artifactLocation.uri | endswith("never_closes.c")) and .region.startLine == $line))' culimbo.sarif
	"$C" check --simulate --json --output report.jsonl -- python3 "$top_srcdir/tests/report/trainer.py" || [ $? -eq 99 ]
	sh recipe
	jq -e '.runs[0].results[0].locations[0].physicalLocation.artifactLocation.uri | endswith("trainer.py")' culimbo.sarif
	run "$C" check --simulate --json --output report.jsonl -- true
	sh recipe
	jq -e '.runs[0].results == []' culimbo.sarif
}
