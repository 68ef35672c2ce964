#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016
# (output and status come from bats; the inner shell expands)
# The command itself: help, version, and suggestions for wrong words.
bats_require_minimum_version 1.5.0
load common.bash

@test "the command in the build tree is a program, not a wrapper script" {
	[ "$(head -c 4 "$C" | tail -c 3)" = ELF ]
}

@test "--help lists every subcommand on stdout" {
	run "$C" --help 2>/dev/null
	exits 0
	has "Usage: culimbo SUBCOMMAND"
	for sub in run config version help; do
		has "  $sub "
	done
}

@test "help SUB, SUB --help and SUB -h say the same" {
	for sub in run config version; do
		by_help=$("$C" help "$sub" 2>/dev/null)
		[ -n "$by_help" ]
		[ "$by_help" = "$("$C" "$sub" --help)" ]
		[ "$by_help" = "$("$C" "$sub" -h)" ]
		[[ $by_help == "Usage: culimbo $sub "* ]]
	done
}

@test "help of two subcommands is an error that names the second" {
	for words in "help ps ps" "--help ps version" "help help x"; do
		# shellcheck disable=SC2086
		run --separate-stderr "$C" $words
		exits 2
		[ -z "$output" ]
		[[ $stderr == *"help is of one subcommand at a time: '${words##* }' is too many"* ]]
	done
}

@test "version --json has the same as version, and null for what is missing" {
	"$C" version --json > json
	for key in version library simulated_driver; do
		name=${key/version/culimbo}
		[ "$(jq -er ".$key" json)" = "$("$C" version | sed -n "s/^${name/_/ }  *//p")" ]
	done
	mkdir -p alone/bin
	cp -L "$top_builddir/tools/culimbo" alone/bin/
	alone/bin/culimbo version --json | jq -e '.["library"] == null and (.version | length > 0)'
	alone/bin/culimbo version | grep '^library  *missing (looked for /'
}

@test "--version is one line; version says where the rest is" {
	run "$C" --version
	exits 0
	[[ $output =~ ^culimbo\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
	[ "$("$C" -V)" = "$output" ]
	run "$C" version
	exits 0
	has "library"
	has "simulated driver"
	[[ $output != *missing* ]]
}

@test "an unknown subcommand: the most similar valid one, exit 2, nothing on stdout" {
	run "$C" ru
	exits 2
	has "unknown subcommand 'ru'; did you mean 'run'?"
	run "$C" confgi
	has "did you mean 'config'?"
	run "$C" help confgi
	exits 2
	has "did you mean 'config'?"
	[ -z "$("$C" confgi 2>/dev/null)" ]
}

@test "a program in place of a subcommand: says how to run it" {
	run "$C" python3
	exits 2
	has "culimbo run -- python3"
}

@test "an unknown option: the most similar valid one, exit 2" {
	run "$C" run --simulated true
	exits 2
	has "unknown option '--simulated'; did you mean '--simulate'?"
	run "$C" run --nopreload true
	exits 2
	has "did you mean '--no-preload'?"
	run "$C" config --jsno
	exits 2
	has "did you mean '--json'?"
	run "$C" config --json -xh
	exits 2
	has "unknown option '-x'"
	run "$C" --vresion
	exits 2
	has "did you mean '--version'?"
}

@test "an option with a value too many, an argument too many, no subcommand: exit 2" {
	run "$C" config --json=yes
	exits 2
	has "takes no value"
	run "$C" ps me
	exits 2
	has "takes no argument: 'me'"
	run "$C"
	exits 2
	has "no subcommand"
	run "$C" "" # (of a variable that is empty)
	exits 2
	has "no subcommand"
}

@test "a failed write is an error" {
	[ -w /dev/full ] || skip "no /dev/full"
	run bash -c '"$0" --help > /dev/full' "$C"
	exits 1
	has "cannot write to stdout"
}
