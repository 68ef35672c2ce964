#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016
# (top_srcdir is of the test environment; the fakes expand their own arguments)
# bootstrap, as far as it can be tried without installing anything.
load common.bash

fake() {
	printf '#!/bin/sh\n%s\n' "$2" > "bin/$1"
	chmod +x "bin/$1"
}

# A copy in an empty folder, with a PATH that holds the commands named only.
# They are scripts around the real ones, not links: what writes over one must
# not write over the system's.
bare() {
	mkdir -p bin clone
	cp "$top_srcdir/bootstrap" clone/
	for command in sh dirname cat mkdir sort tr env "$@"; do
		fake "$command" "exec '$(type -P "$command")' \"\$@\""
	done
}

@test "help is on stdout with 0, a wrong word on stderr with 2" {
	run bash -c '"$0" help 2>/dev/null' "$top_srcdir/bootstrap"
	exits 0
	has "Usage: ./bootstrap [build | demo | check | help]"
	run bash -c '"$0" biuld 2>/dev/null' "$top_srcdir/bootstrap"
	exits 2
	[ -z "$output" ]
}

@test "without apt-get it names the packages of the system, and stops" {
	bare
	fake id 'echo 1000'
	for system in dnf pacman zypper; do
		rm -f bin/dnf bin/pacman bin/zypper
		fake "$system" 'echo must not run; exit 9'
		PATH=$PWD/bin run clone/bootstrap build
		exits 1
		has "please install, then run me again: $system"
		case $system in
		dnf) has "pkgconf-pkg-config" && has "uthash-devel" ;;
		pacman) has "util-linux-libs" ;;
		zypper) has "libdw-devel" ;;
		esac
		[[ $output != *"must not run"* ]]
	done
	rm -f bin/zypper
	PATH=$PWD/bin run clone/bootstrap build
	exits 1
	has "please install what has these"
	has "libtoolize"
}

@test "with apt-get it installs only missing packages, without a question" {
	unset DEBIAN_FRONTEND
	bare gcc tail
	fake apt-get 'echo "$DEBIAN_FRONTEND $*" >> ../calls; read -r answer && echo asked >> ../calls; :'
	fake id 'echo 0'
	cd clone
	PATH=$PWD/../bin run ./bootstrap build
	exits 1
	has "installing: "
	has "installed, but still not found: "
	[ "$(wc -l < ../calls)" -eq 2 ]
	grep -q '^noninteractive .*update$' ../calls
	grep -q '^noninteractive .*install -y .*autoconf .*make ' ../calls
	if grep -q ' gcc ' ../calls; then false; fi
}

@test "with apt-get but no way to be root it names the packages, and stops" {
	bare
	fake apt-get 'echo ran >> ../calls'
	fake id 'echo 1000'
	cd clone
	PATH=$PWD/../bin run ./bootstrap build
	exits 1
	has "please do as root, then run me again: apt-get install autoconf automake"
	[ ! -e ../calls ]
	(cd .. && fake sudo 'exit 1')
	PATH=$PWD/../bin run ./bootstrap build < /dev/null
	exits 1
	has "please do as root"
	[ ! -e ../calls ]
}

@test "check ends with a count, also when it cannot even begin" {
	bare
	fake id 'echo 1000'
	PATH=$PWD/bin run clone/bootstrap check
	exits 1
	[ "${lines[-1]}" = "0 passed, 1 failed" ]
}

# What bootstrap's own functions say of a build folder that is made here.
functions() {
	sed '/^top=/,$d' "$top_srcdir/bootstrap" > functions
	grep -q '^show_results()' functions
	mkdir -p build/tests/ci
	: > build/check.log
}

@test "check runs two tests more at a time than there are processors, or as many as a variable says" {
	unset MAKE_JOBS TEST_JOBS
	functions
	mkdir bin
	fake make 'for word in "$@"; do case $word in -j*) echo "$word" >> calls ;; esac; done'
	fake nproc 'echo 6'
	jobs_of='install_for() { :; }; do_build() { run_make "$(make_jobs 0)" -s all; }; fetch_for_tests() { :; }; run_tests'
	for settings in : MAKE_JOBS=3 TEST_JOBS=1; do
		PATH=$PWD/bin:$PATH sh -euc ". ./functions; build=$PWD/build; $settings; $jobs_of"
	done
	[ "$(paste -sd' ' calls)" = "-j6 -j8 -j3 -j3 -j6 -j1" ]
}

@test "what the compiler says is kept of a build that began with nothing, and only of that" {
	functions
	mkdir bin
	fake make 'touch x.o; echo "x.c: warning: $SAY"'
	all='. ./functions; build=$PWD/build; cd build; make_all'
	for say in first second; do
		SAY=$say PATH=$PWD/bin:$PATH run sh -euc "$all"
		exits 0
		has "x.c: warning: $say"
	done
	[ "$(cat build/make.log)" = "$(printf 'x.c: warning: first\nx.c: warning: second')" ]
	# something was made without bootstrap, or a build was interrupted
	mkdir build/shim
	touch -d '1 minute' build/shim/y.o
	SAY=third PATH=$PWD/bin:$PATH run sh -euc "$all"
	exits 0
	[ ! -e build/make.log ]
	rm build/shim/y.o build/x.o
	fake make 'touch x.o; kill -9 $PPID'
	PATH=$PWD/bin:$PATH run sh -euc "$all"
	exits 137
	fake make 'touch x.o'
	PATH=$PWD/bin:$PATH run sh -euc "$all"
	exits 0
	[ ! -e build/make.log ]
	fake make 'echo "x.c: error"; exit 3'
	PATH=$PWD/bin:$PATH run sh -uc "$all"
	exits 3
	has "x.c: error"
}

@test "a failed test is shown with its output, and again in one line before the count" {
	functions
	{
		echo 'ok 1 - fine'
		echo 'not ok 2 - scene fork-calls'
		echo '#   the cause stands here'
		echo '#   test_x.c:12: failed: x == 3'
		echo '#   not ok 7 - nested'
		echo 'ok 3 - fine again'
		echo 'not ok 4 # SKIP not to be had'
		for i in $(seq 5 80); do echo "ok $i - much more"; done
	} > build/tests/ci/long.log
	printf ':test-result: %s\n' 'PASS 1 - fine' 'FAIL 2 - scene fork-calls' \
		'PASS 3 - fine again' 'SKIP 4' > build/tests/ci/long.trs
	echo 'ok 1 - all that came' > build/tests/short.log
	printf ':test-result: %s\n' 'PASS 1 - all that came' \
		'ERROR - exited with status 139 (terminated by signal 11?)' > build/tests/short.trs
	echo 'ok 1 - well' > build/tests/well.log
	echo ':test-result: PASS 1 - well' > build/tests/well.trs
	for i in $(seq 200); do echo "not ok $i - one of many"; done > build/tests/many.log
	sed 's/^not ok/:test-result: FAIL/' build/tests/many.log > build/tests/many.trs
	run sh -euc '. ./functions; build=$PWD/build status=1; show_results'
	exits 1
	[ "${lines[-1]}" = "4 passed, 202 failed, 1 skipped" ] ||
		{ echo "${lines[-1]}"; false; }
	[[ ${lines[-2]} == "failed: and "*" lines more" ]]
	has "--- failed: tests/ci/long.log"
	has "$(printf 'not ok 2 - scene fork-calls\n#   the cause stands here\n#   test_x.c:12: ')"
	# the list, which is after all else
	end=${output##*figures:}
	for line in 'tests/ci/long.log: not ok 2 - scene fork-calls' \
		'tests/ci/long.log: #   test_x.c:12: failed: x == 3' \
		'tests/ci/long.log: #   not ok 7 - nested'; do
		[[ $end == *"failed: $line"* ]] || { echo "not there: $line"; false; }
	done
	[[ $end == *'failed: tests/many.log: not ok 1 - one of many'* ]]
	[[ $output != *"well.log"* && $end != *SKIP* ]]
	[ "$(grep -c '^failed: ' <<< "$output")" -eq 101 ]
	# not more than so much of one log
	[ "$(grep -c '^not ok .* - one of many' <<< "$output")" -le 75 ]

	rm build/tests/many.*
	run sh -euc '. ./functions; build=$PWD/build status=1; show_results'
	exits 1
	has "failed: tests/short.log: error - exited with status 139"
	[ "${lines[-1]}" = "4 passed, 2 failed, 1 skipped" ]
	rm build/tests/short.* build/tests/ci/long.*
	run sh -euc '. ./functions; build=$PWD/build status=0; show_results'
	exits 0
	[ "$output" = "$(printf 'figures:\n1 passed, 0 failed')" ]
}

@test "where UCX, Prometheus or Slurm can't be fetched, check says so and continues" {
	functions
	mkdir -p top/tests/patch top/tests/tools
	printf '#!/bin/sh\necho no registry here; exit 1\n' > top/tests/patch/fetch-ucx.sh
	printf '#!/bin/sh\necho no packages here; exit 1\n' > top/tests/tools/fetch-prometheus.sh
	cp top/tests/tools/fetch-prometheus.sh top/tests/tools/fetch-slurm.sh
	chmod +x top/tests/*/fetch-*.sh
	run sh -euc '. ./functions; build=$PWD/build top=$PWD/top; fetch_for_tests; echo on'
	exits 0
	has "UCX can't be had (see $PWD/build/fetch.log): its test will be skipped"
	has "Prometheus can't be had (see $PWD/build/fetch-prometheus.log): its tests will be skipped"
	has "Slurm can't be had (see $PWD/build/fetch-slurm.log): its test will be skipped"
	[ "${lines[-1]}" = on ]
	[ "$(cat build/fetch.log)" = "no registry here" ]
	# each is fetched once
	mkdir -p build/tests/patch/ucx build/tests/tools/prometheus build/tests/tools/slurm
	run sh -euc '. ./functions; build=$PWD/build top=$PWD/top; fetch_for_tests'
	exits 0
	[ -z "$output" ]
}
