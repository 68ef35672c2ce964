#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016
# (output and status come from bats, top_builddir from the test environment)
# Python frames in reports, with each Python of this machine: the one on PATH, and pyenv's.

bats_require_minimum_version 1.5.0

setup() {
	C=${CULIMBO:?run me by make check, or set CULIMBO to the command}
	S=${top_srcdir:?}/tests/report
	PLACES=$S/places.py
	unset LD_PRELOAD LD_LIBRARY_PATH
	cd "$BATS_TEST_TMPDIR" || return 1
	shared=/dev/shm
	[ -w "$shared" ] || shared=$BATS_TEST_TMPDIR
	D=$(mktemp -d "$shared/culimbo-report.XXXXXX")
	export CULIMBO_SIM_DIR="$D/sim" CULIMBO_DIR="$D/limbo"
}

teardown() {
	rm -rf "$D"
}

line() {
	grep -n -F "$1" "$PLACES" | head -1 | cut -d: -f1
}

has() {
	grep -q -F -- "$2" "$1" || {
		echo "not in $1: $2"
		head -60 "$1"
		return 1
	}
}

lacks() {
	if grep -F -- "$2" "$1"; then
		echo "in $1: $2"
		return 1
	fi
}

# pythons: one of each version from 3.8 to 3.14; says on descriptor 3 which are not here
pythons() {
	local python seen="" version missing=""
	for python in python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
		command -v "$python" > /dev/null || continue
		version=$("$python" -c 'import sys, ctypes; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) || continue
		case $version in 3.[89] | 3.1[0-4]) ;; *) continue ;; esac
		case " $seen " in *" $version "*) continue ;; esac
		seen="$seen $version"
		echo "$python"
	done
	for version in 3.8 3.9 3.10 3.11 3.12 3.13 3.14; do
		case " $seen " in *" $version "*) ;; *) missing="$missing $version" ;; esac
	done
	[ -z "$missing" ] || echo "# not here, so not tested: Python$missing" >&3
}

# found PYTHON WAYS TEXT...: the report at exit names these frames
found() {
	local python=$1 ways=$2 text
	shift 2
	# shellcheck disable=SC2086 # several words
	"$C" run --simulate -- "$python" "$PLACES" $ways > out 2> err || {
		cat out err
		return 1
	}
	for text; do
		has err "$text" || {
			echo "with $python $ways"
			return 1
		}
	done
}

@test "Python frames at exit, with the GIL and without it" {
	for python in $(pythons); do
		for held in "" held; do
			found "$python" "main_thread $held" "#0 load_batch ($PLACES:$(line '# the line'))" \
				"#1 main_thread ($PLACES:$(line 'load_batch(make.pop())'))" "#2 <module> ($PLACES:"
			lacks err "not read"
			lacks err libffi
		done
	done
}

@test "Python frames of two lines, threads, generators, finalizers, forked children, code made at run time" {
	export PYTHONUTF8=1
	for python in $(pythons); do
		for held in "" held; do
			found "$python" "two_lines grüße_ω generator at_exit collected $held" \
				"#0 two_lines ($PLACES:$(line '# first'))" "#0 two_lines ($PLACES:$(line '# second'))" \
				"#1 grüße_ω ($PLACES:" "#1 in_generator ($PLACES:" "#2 generator ($PLACES:" \
				"__del__ ($PLACES:" "#2 collected ($PLACES:"
			found "$python" "in_thread child code_at_run_time $held" \
				"work ($PLACES:" "#1 load_again ($PLACES:" \
				"#1 <module> (cell0.py:1)" "#1 <module> (cell1.py:2)" "#1 <module> (cell3.py:4)"
			lacks err "not read"
		done
	done
}

@test "code made at run time in a thread" {
	for python in $(pythons); do
		found "$python" code_in_thread "#1 <module> (cell0.py:1)" "#1 <module> (cell1.py:2)" "#1 <module> (cell3.py:4)"
	done
}

@test "Python frames end in the program's code, as those of C end at main" {
	# what multiprocessing and threading call lies below many frames of their own
	for way in "run --names" run; do
		CULIMBO_DIR="$PWD/limbo-${way// /}" "$C" $way --simulate -- python3 "$PLACES" spawned 2> text
		cat text
		grep -Fq "#1 spawned_work ($PLACES:" text
		run ! grep -Eq '/multiprocessing/|<string>|/threading.py' text
	done
	CULIMBO_FULL_STACKS=1 "$C" run --simulate -- python3 "$PLACES" spawned 2> text
	grep -Eq '#[0-9]+ BaseProcess.run|#[0-9]+ run .*/multiprocessing/process.py' text
	CULIMBO_REPORT_FILE=json CULIMBO_REPORT_FORMAT=jsonl "$C" run --simulate -- python3 "$PLACES" spawned
	jq -e -s 'any(.[]; .stack_python // [] | any(.file | endswith("/multiprocessing/process.py")))' json.*
}

@test "Python ends while daemon threads share" {
	for python in $(pythons); do
		found "$python" daemons
	done
}

@test "a thread of C beside Python; turned off" {
	for python in $(pythons); do
		found "$python" "c_thread main_thread" "#1 main_thread ($PLACES:"
		CULIMBO_PYTHON=0 found "$python" main_thread from
		lacks err "main_thread ($PLACES"
	done
}

@test "Python frames in JSON, culimbo check, suppressions, generated suppressions, culimbo show" {
	status=0
	"$C" check --simulate --json --output json -- python3 "$PLACES" main_thread || status=$?
	[ "$status" -eq 99 ]
	python3 "$S/schema.py" "$S/../../doc/report.schema.json" json
	jq -e -s --argjson line "$(line '# the line')" 'any(.[]; .class == "not-closed" and
		.stack_python[0].function == "load_batch" and .stack_python[0].line == $line and
		(.stack_python[0].file | endswith("places.py")) and .stack_python[1].function == "main_thread" and
		(.stack | length > 2))' json
	"$C" check --simulate --gen-suppressions --output known -- python3 "$PLACES" main_thread || :
	has known 'stack:^load_batch$;'
	lacks known ffi
	# where its exporter freed it stands in the importer's group
	"$C" check --simulate --json --output json -- python3 "$S/trainer.py" || :
	python3 "$S/schema.py" "$S/../../doc/report.schema.json" json
	jq -e -s 'any(.[]; .class == "not-closed" and .exporter.free_stack_python[0].function == "<module>" and
		(.exporter.free_stack | length > 2))' json
	"$C" check --simulate --format=github --output text -- python3 "$S/trainer.py" || :
	cat text
	grep -Eq '^::error file=.*trainer.py,line=[0-9]+,title=culimbo not-closed::.* in load_batch of process .*; freed by process [0-9]+ .* in <module> .*trainer.py:[0-9]+' text
	# what the exporter finds has no stack
	"$C" check --simulate --suppressions known --output text -- python3 "$PLACES" main_thread || :
	has text "suppressed=1"
	lacks text load_batch
	echo 'leak:places.py' > file
	CULIMBO_SUPPRESSIONS=$PWD/file "$C" run --simulate -- python3 "$PLACES" main_thread 2> text
	lacks text load_batch
	CULIMBO_KEEP_DEAD=1h CULIMBO_REPORT=off "$C" run --simulate -- python3 "$PLACES" main_thread killed || :
	"$C" report > text
	has text "#0 load_batch ($PLACES:$(line '# the line'))"
	"$C" report --gen-suppressions > known
	has known 'stack:^load_batch$;'
}

@test "one line of Python is one place, also where the interpreter runs it in several ways" {
	unset CULIMBO_DIR
	for python in $(pythons); do
		status=0
		"$C" check --simulate --output text -- "$python" "$S/trainer.py" || status=$?
		[ "$status" -eq 99 ]
		[ "$(grep -cE '^  [A-Z]+: ' text)" -eq 1 ] || {
			cat text
			return 1
		}
		grep -Eq '^  LEAK: process [0-9]+ never closed 2 blocks \(8 MiB\)' text
	done
}

@test "the structures of Python 3.14, as 3.14.10 has them; for an unknown version nothing is read" {
	"$C" run --simulate -- "$top_builddir/tests/report/fake_python" 3.14.10 2> err
	has err " inner (fake.py:15)"
	has err " outer (fake.py:25)"
	lacks err "not read"
	# of another version, one without its tables, a free-threaded one, and an old one
	for version in 3.15.0 3.13.0 3.14.0t 3.7.0 2.7.18; do
		"$C" run --simulate -- "$top_builddir/tests/report/fake_python" $version 2> err
		has err "Python frames not read" || {
			echo "version $version"
			return 1
		}
		lacks err "fake.py"
	done
}

@test "a live Python process is shown with its frames" {
	mkfifo in
	exec 7<> in
	"$C" run --simulate -- python3 "$PLACES" export_and_wait < in > out 7>&- &
	pid=$!
	for _ in $(seq 600); do
		[ -s out ] && break
		sleep 0.05
	done
	id=$("$C" blocks --json | jq -r '.. | objects | select(has("id")) | .id' | head -1)
	"$C" show "$id" > text
	has text "export ($PLACES:"
	"$C" show --json "$id" > json
	jq -e '.exported_from_python[0].function == "export"' json
	echo >&7
	wait $pid
}
