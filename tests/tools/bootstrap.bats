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

@test "with apt-get it installs what is missing and nothing else, without a question" {
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
