#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2012,SC2030,SC2031
# (the inner shell expands; each test is a subshell, as bats has it)
# culimbo run: CMD runs unchanged under the library, or a message says why not.
bats_require_minimum_version 1.5.0
load common.bash

library() {
	"$C" version | sed -n 's/^library  *//p'
}

# patch FILE OFFSET BYTES: printf escapes
patch() {
	printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

@test "the library is loaded into CMD and what CMD starts" {
	run "$C" run -- grep -c libculimbo.so /proc/self/maps
	exits 0
	run "$C" run -- sh -c 'sh -c "grep libculimbo.so /proc/self/maps; :"'
	exits 0
	has "$(readlink -f "$(library)")"
}

@test "with --no-preload the library is not loaded, even when the environment has it" {
	export CULIMBO_LOG=off # no word of the missing driver
	run "$C" run --no-preload -- grep -c libculimbo.so /proc/self/maps
	exits 1
	run "$C" run -- "$C" run --no-preload -- sh -c 'echo "<${LD_PRELOAD-unset}>"'
	[ "$output" = "<unset>" ]
	LD_PRELOAD=libc.so.6 run "$C" run -- "$C" run --no-preload -- printenv LD_PRELOAD
	[ "$output" = libc.so.6 ]
}

@test "--share-all sets CULIMBO_SHARE, unless it asks for more already" {
	export CULIMBO_LOG=off # no word of the missing driver
	[ "$("$C" run --share-all -- printenv CULIMBO_SHARE)" = all ]
	for less in cuda nonsense allx ''; do
		[ "$(CULIMBO_SHARE=$less "$C" run --share-all -- printenv CULIMBO_SHARE 2> said)" = all ]
		[ $less ] && [ $less = cuda ] && [ ! -s said ] || grep -q "; --share-all sets it to all" said
	done
	for more in all,visible all,force all,visible,force; do
		[ "$(CULIMBO_SHARE=$more "$C" run --share-all -- printenv CULIMBO_SHARE)" = "$more" ]
	done
}

@test "the library comes first in LD_PRELOAD, and once" {
	export CULIMBO_LOG=off # no word of the missing driver
	lib=$(library)
	[ "$("$C" run -- printenv LD_PRELOAD)" = "$lib" ]
	LD_PRELOAD="libc.so.6 libm.so.6" run "$C" run -- printenv LD_PRELOAD
	[ "$output" = "$lib:libc.so.6:libm.so.6" ]
	LD_PRELOAD=libm.so.6 run "$C" run -- "$C" run -- printenv LD_PRELOAD
	[ "$output" = "$lib:libm.so.6" ]
	# by another name of the same file
	ln -s "$lib" other-name.so
	LD_PRELOAD=$PWD/other-name.so:libm.so.6 run "$C" run -- printenv LD_PRELOAD
	[ "$output" = "$lib:libm.so.6" ]
}

@test "options for the library's variables: the same as the variable, and a wrong value is refused before CMD runs" {
	run --separate-stderr "$C" run --grace=5ms --log=debug --log-file=l.%p --report=off --report-file r.%p --report-format jsonl \
		--trace=t.%p -- sh -c 'env | grep ^CULIMBO_ | sort'
	exits 0
	[ "$output" = 'CULIMBO_GRACE=5ms
CULIMBO_LOG=debug
CULIMBO_LOG_FILE=l.%p
CULIMBO_REPORT=off
CULIMBO_REPORT_FILE=r.%p
CULIMBO_REPORT_FORMAT=jsonl
CULIMBO_TRACE=t.%p' ]
	# it stands before what the environment has
	[ "$(CULIMBO_GRACE=9s "$C" run --grace=1s -- printenv CULIMBO_GRACE)" = 1s ]
	run "$C" run --grace=soon -- touch ran
	exits 2
	has 'CULIMBO_GRACE="soon" is not a duration: allowed is'
	[[ $output != *default* ]]
	run "$C" run --log loud -- touch ran
	exits 2
	[ ! -e ran ]
	"$C" run --report-file='%q{HOME_OF_NOBODY}' -- true
}

@test "--simulate puts the simulated driver first" {
	run "$C" run --simulate -- printenv LD_LIBRARY_PATH
	[ -e "$output/libcuda.so.1" ]
	sim=$output
	LD_LIBRARY_PATH=/a:/b run "$C" run --simulate -- printenv LD_LIBRARY_PATH
	[ "$output" = "$sim:/a:/b" ]
	LD_LIBRARY_PATH='' run "$C" run --simulate -- printenv LD_LIBRARY_PATH
	[ "$output" = "$sim" ]
	run "$C" run -- printenv LD_LIBRARY_PATH
	exits 1
}

@test "--simulate prints once why a program of the CUDA runtime cannot run on the simulated driver" {
	cat > asks.c <<-'END'
		int cuGetExportTable(const void **table, const void *id);
		int main(void)
		{
			const void *table;
			char id[16] = { 0 };

			return cuGetExportTable(&table, id) != 500 || cuGetExportTable(&table, id) != 500 || table;
		}
	END
	"$CC" -o asks asks.c "$top_builddir/tools/sim/.libs/libcuda.so.1"
	"$C" run --simulate -- ./asks 2> err
	[ "$(grep -c "this program uses the CUDA runtime (cudart)" err)" -eq 1 ]
	[ "$(wc -l < err)" -eq 1 ]
}

@test "without a driver: run explains --simulate, once" {
	[ ! -e /dev/nvidiactl ] || skip "there is a driver"
	"$C" run -- sh -c '"$1" run "$1" run true' sh "$C" > out 2> err
	[ ! -s out ]
	[ "$(wc -l < err)" -eq 1 ]
	grep -q "there is no NVIDIA driver here: .* --simulate" err
	[ -z "$("$C" run --simulate true 2>&1)" ]
	[ -z "$("$C" run --log=off true 2>&1)" ]
	# one that is found by the loader is a driver
	[ -z "$(LD_LIBRARY_PATH=$top_builddir/tools/sim/.libs "$C" run true 2>&1)" ]
}

@test "CMD is killed: the message names CMD" {
	run "$C" run --simulate --names -- sh -c 'kill -9 $$'
	exits 137
	has 'culimbo run: CMD (sh -c kill -9 $$) was killed by signal 9 (Killed)'
	run "$C" check --allow-no-cuda -- sh -c 'kill -9 $$'
	exits 137
	[[ $output =~ culimbo:\ process\ [0-9]+\ \(sh\ -c\ kill\ -9 ]]
	run "$C" check --format=json --allow-no-cuda --output=json -- sh -c 'kill -9 $$'
	exits 137
	[ "$output" = 'culimbo check: CMD (sh -c kill -9 $$) was killed by signal 9 (Killed)' ]
	jq -es 'any(.type == "descendant" and .command == "sh -c kill -9 $$" and .signal == 9)' json
	run "$C" run --simulate --names -- sh -c 'kill -INT $$'
	exits 130
	[ -z "$output" ]
}

@test "stdin, stdout, stderr, arguments, exit status are CMD's own" {
	export CULIMBO_LOG=off # no word of the missing driver
	[ "$(printf 'a\nb' | "$C" run cat)" = "$(printf 'a\nb')" ]
	run "$C" run -- sh -c 'echo out; echo err >&2; exit 42'
	exits 42
	[ "$output" = $'out\nerr' ]
	[ "$("$C" run -- printf '<%s>' a 'b c' '' --simulate)" = "<a><b c><><--simulate>" ]
	[ "$("$C" run sh -c 'echo "$0 $1"' --help -- )" = "--help --" ]
}

@test "CMD replaces culimbo: same pid, signals, no descriptors" {
	"$C" run -- sh -c 'echo $$ > pid; exec sleep 60' &
	for _ in $(seq 100); do [ -s pid ] && break; sleep 0.05; done
	[ "$(cat pid)" = "$!" ]
	kill -TERM "$!"
	status=0
	wait "$!" || status=$?
	[ "$status" -eq 143 ]
	bare=$(ls /proc/self/fd | wc -l)
	[ "$("$C" run -- ls /proc/self/fd | wc -l)" -eq "$bare" ]
}

@test "no CMD: 2; no such CMD: 127" {
	run "$C" run
	exits 2
	run -127 "$C" run -- no-such-command-anywhere
	has "no-such-command-anywhere: no such command in PATH"
	run -127 "$C" run -- ./none
	has "./none: No such file or directory"
	run -127 "$C" run -- ''
}

@test "not executable, a directory: 126" {
	echo hello > plain
	run "$C" run ./plain
	exits 126
	has "./plain: Permission denied"
	run "$C" run "$PWD"
	exits 126
	has "directory"
	mkdir bin
	cp plain bin/plain-command
	PATH=$PWD/bin:$PATH run "$C" run plain-command
	exits 126
	has "Permission denied"
}

@test "another architecture or class: a message, 126" {
	cp "$(type -P true)" foreign
	patch foreign 18 '\0363\0000' # EM_RISCV
	run "$C" run ./foreign
	exits 126
	has "./foreign: is a program for riscv, but this culimbo is for"
	cp "$(type -P true)" foreign32
	patch foreign32 4 '\0001'
	patch foreign32 18 '\0003\0000'
	run "$C" run ./foreign32
	exits 126
	has "i386 (32-bit)"
	# as the interpreter of a script of a script
	printf '#!%s\n' "$PWD/foreign" > one
	printf '#! %s -x\n' "$PWD/one" > two
	chmod +x one two
	run "$C" run ./two
	exits 126
	has "$PWD/foreign: is a program for riscv"
	# without the library it is the kernel that says what it thinks
	run "$C" run --no-preload ./foreign
	exits 126
	has "./foreign: is a program for riscv: this machine cannot run it"
}

@test "a script's interpreter that is missing is named" {
	printf '#!/no/such/interpreter -u\n' > script
	printf '#!/bin/sh\r\n' > windows
	printf '#!%s\n' "$PWD/loop" > loop
	chmod +x script windows loop
	run "$C" run ./script
	exits 126
	has "./script: its interpreter '/no/such/interpreter' cannot be run: No such file"
	run "$C" run ./windows
	exits 126
	has "carriage return"
	run "$C" run ./loop
	exits 126
	has "too many"
	# as many as the kernel follows, and one more
	printf '#!/bin/true\n' > script1
	for n in 2 3 4 5 6; do
		printf '#!%s\n' "$PWD/script$((n - 1))" > "script$n"
	done
	chmod +x script[1-6]
	run "$C" run ./script5
	exits 0
	run "$C" run ./script6
	exits 126
	has "too many"
}

@test "a script runs under the library; one without #! as a shell would" {
	printf '#!/bin/sh\ngrep -q libculimbo.so /proc/$$/maps && echo in "$@"\n' > script
	printf 'echo plain "$@"\n' > plain
	chmod +x script plain
	[ "$("$C" run ./script a)" = "in a" ]
	[ "$("$C" run ./plain b)" = "plain b" ]
}

@test "setuid of another user: a message, 126; with --no-preload it runs" {
	if [ "$(id -u)" -eq 0 ]; then
		install -o 65534 -m 4755 "$(type -P true)" suid
		install -g 65534 -m 2755 "$(type -P true)" sgid
		case $(findmnt -no OPTIONS -T .) in *nosuid*) skip "nosuid here" ;; esac
		run "$C" run ./sgid
		exits 126
		has "is setgid"
		suid=./suid
	else
		suid=$(find /usr/bin -uid 0 -perm -4001 | head -n 1)
		[ -n "$suid" ] || skip "no setuid program"
	fi
	grep -q '^NoNewPrivs:.*1' /proc/self/status && skip "no_new_privs here"
	run "$C" run "$suid"
	exits 126
	has "is setuid, so ld.so would ignore LD_PRELOAD"
	if [ "$suid" = ./suid ]; then
		run "$C" run --no-preload "$suid"
		exits 0
		# one's own is nothing special
		install -m 4755 "$(type -P true)" mine
		run "$C" run ./mine
		exits 0
	fi
}

@test "another C library's loader, a missing loader: a message, 126" {
	loader=$(LC_ALL=C grep -aoE '/lib[0-9a-z]*/ld-linux[-0-9a-z]*\.so\.[0-9]' "$C" | head -n 1)
	[ -n "$loader" ]
	at=$(LC_ALL=C grep -abo "$loader" "$C" | head -n 1 | cut -d: -f1)
	cp "$C" strange
	patch strange "$at" '/n' # /nib64/...
	run "$C" run ./strange
	exits 126
	has "the loader it asks for"
	has "does not exist here"
	# one that is there, under another name
	mkdir -p "/tmp/cl-$$"
	ln -s "$loader" "/tmp/cl-$$/m"
	cp "$C" musl
	patch musl "$at" "/tmp/cl-$$/m\\0000"
	run "$C" run ./musl --version
	rm -r "/tmp/cl-$$"
	exits 126
	has "is of another C library (m, and culimbo's is ld-linux"
}

@test "a statically linked CMD runs, with a warning" {
	echo 'int main(void) { return 7; }' > s.c
	$CC -static -o s s.c 2>/dev/null || skip "no static C library"
	run "$C" run ./s
	exits 7
	has "warning: ./s is statically linked"
	run "$C" run --no-preload ./s
	exits 7
	[ -z "$output" ]
}

@test "a statically linked program that a shell or env is told to run: a warning, too" {
	echo 'int main(void) { return 7; }' > s.c
	$CC -static -o s s.c 2>/dev/null || skip "no static C library"
	for cmd in 'bash -c ./s' 'sh -c exec\ ./s' 'sh -c true;A=1\ ./s\ |cat;./s' 'env A=1 ./s' 'timeout -k 5 10 nice -n 0 ./s' \
		'nohup sh -ec cd\ .&&./s'; do
		eval "run \"\$C\" run -- $(sed 's/[;|&]/\\&/g' <<< "$cmd")"
		echo "$cmd"
		exits 7
		has "warning: ./s, which CMD runs, is statically linked: culimbo cannot see what it does"
		eval "run \"\$C\" run --no-preload -- $(sed 's/[;|&]/\\&/g' <<< "$cmd")"
		[[ $output != *warning* ]]
	done
	# not where it is no program, and not of what is not static
	export CULIMBO_LOG=off # of a driver that is not there
	run "$C" run -- sh -c 'cat ./s > copy; ls -l ./s > list; echo "./s"'
	exits 0
	[ "$output" = ./s ]
	run "$C" run -- env sh -c 'true; ls > list'
	[ -z "$output" ]
	run "$C" check --allow-no-cuda -- sh -c './s; true'
	has "warning: ./s, which CMD runs, is statically linked"
}

@test "ld.so itself may be CMD" {
	loader=$(LC_ALL=C grep -aoE '/lib[0-9a-z]*/ld-linux[-0-9a-z]*\.so\.[0-9]' "$C" | head -n 1)
	run "$C" run "$loader" "$(type -P grep)" -c libculimbo.so /proc/self/maps
	exits 0
	[[ $output != *warning* ]]
}

# The build tree as it would look elsewhere, around a copy of the command.
tree() {
	mkdir -p "$1/tools/sim/.libs" "$1/.libs"
	cp "$C" "$1/tools/culimbo"
	cp "$(library)" "$1/.libs/libculimbo.so"
	cp "$("$C" version | sed -n 's/^simulated driver  *//p')" "$1/tools/sim/.libs/libcuda.so.1"
}

@test "the files are found where the tree was moved to" {
	export CULIMBO_LOG=off # no word of the missing driver
	tree moved
	run moved/tools/culimbo run -- printenv LD_PRELOAD
	exits 0
	[ "$output" = "$PWD/moved/.libs/libculimbo.so" ]
}

@test "an installed tree is found wherever it was moved to" {
	mkdir install
	make -s -C "$top_builddir" install DESTDIR="$PWD/install" > log 2>&1 || { cat log; false; }
	bin=$(find install -name culimbo -path '*bin*')
	[ -n "$bin" ]
	run "$bin" version
	exits 0
	[[ $output != *missing* ]]
	has "$PWD/install/"
	run "$bin" run --simulate -- grep libculimbo.so /proc/self/maps
	exits 0
	has "$PWD/install/"
}

@test "a path that LD_PRELOAD cannot hold: a message, 125" {
	for bad in 'with space' 'with:colon' 'with$dollar'; do
		tree "$bad"
		run "$bad/tools/culimbo" run -- true
		exits 125
		has "cannot be named in LD_PRELOAD"
		run "$bad/tools/culimbo" run --no-preload -- true
		exits 0
	done
	run 'with:colon/tools/culimbo' run --no-preload --simulate -- true
	exits 125
	has "cannot be named in LD_LIBRARY_PATH"
	run 'with space/tools/culimbo' run --no-preload --simulate -- true
	exits 0
}

@test "a missing library: a message, 125, and CMD is not run" {
	tree broken
	rm broken/.libs/libculimbo.so
	run broken/tools/culimbo run -- touch ran
	exits 125
	has "the library is missing"
	[ ! -e ran ]
	rm broken/tools/sim/.libs/libcuda.so.1
	run broken/tools/culimbo run --no-preload --simulate -- touch ran
	exits 125
	has "the simulated driver is missing"
	[ ! -e ran ]
}
