#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# What a suppression hides, and what it must not hide.

load common.bash

@test "a suppression names a class: another bug at the same stack is still a finding" {
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/one_place" two
	grep -q '^not-closed:stack:^open_block\$;^go_down\$;^open_here\$;^two\$;^main\$$' made
	grep -q '^opened-after-free:stack:^open_block\$;^go_down\$;^open_here\$;^two\$;^main\$$' made
	[ "$(grep -c -v '^#' made)" -eq 2 ]
	"$C" check --simulate --suppressions made -- "$P/one_place" two 2> text
	has text "findings=0 suppressed=2"
	for class in not-closed opened-after-free; do
		grep "^$class:" made > known
		fails 99 "$C" check --simulate --suppressions known --print-suppressions -- "$P/one_place" two 2> text
		has text "findings=1 suppressed=1"
		has text "  1, 4 MiB: $class:stack:^open_block"
		printf '%s:leak:^open_here$\n' "$class" > known
		fails 99 "$C" check --simulate --suppressions known -- "$P/one_place" two 2> text
		has text "findings=1 suppressed=1"
	done
	fails 99 "$C" check --simulate --gen-suppressions --json --output json -- "$P/one_place" two
	valid json
	jq -e -s '[.[] | select(.type == "suppression") | .class] | sort == ["not-closed", "opened-after-free"]' json
	fails 99 "$C" check --simulate --suppressions known --print-suppressions --json --output json -- "$P/one_place" two
	valid json
	jq -e -s 'any(.[]; .type == "suppressed" and .class == "opened-after-free" and .pattern == "^open_here$")' json
}

@test "a suppression without a class, as the last release wrote it, hides every class" {
	for line in 'stack:^open_block$;^go_down$;^open_here$' 'leak:^open_here$'; do
		printf '%s\n' "$line" > known
		"$C" check --simulate --suppressions known --print-suppressions -- "$P/one_place" two 2> text
		has text "findings=0 suppressed=2"
		has text "  2, 8 MiB: $line"
	done
}

@test "a class that does not exist is an error before CMD runs, which names those that do" {
	printf '# known\nnot-close:stack:^x$\n' > known
	for command in check run; do
		fails 1 "$C" $command --simulate --suppressions known -- touch ran 2> text
		has text "known, line 2 names no class of findings: 'not-close' is none of held-in-limbo, "
		has text ", not-closed, "
		has text ", freed-while-mapped, "
		[ "$(wc -l < text)" -eq 1 ]
	done
	CULIMBO_SUPPRESSIONS=known fails 1 "$C" check --simulate -- touch ran 2> text
	has text "line 2 names no class of findings"
	[ ! -e ran ]
	fails 1 "$C" report --suppressions known 2> text
	has text "line 2 names no class of findings"
	# a process that is already running goes on
	CULIMBO_SUPPRESSIONS=known CULIMBO_REPORT=always "$C" run --simulate -- "$P/one_place" two 2> text
	has text "known, line 2 names no class of findings"
}

@test "what others hold is suppressed by the stacks of all its holders, not by its exporter's" {
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/one_place" held 3
	grep -q '^held-in-limbo:stack:^open_block\$;^go_down\$;^open_here\$;' made
	grep -q '^held-in-limbo:stack:^open_block\$;^go_down\$;^open_there\$;' made
	lacks made export_block
	"$C" check --simulate --suppressions made -- "$P/one_place" held 3 2> text
	has text "findings=0 suppressed=1"
	for pattern in open_here open_there export_block free_block; do
		printf 'held-in-limbo:leak:^%s$\n' $pattern > known
		fails 99 "$C" check --simulate --suppressions known -- "$P/one_place" held 3 2> text
		has text "findings=1"
		lacks text suppressed
	done
	# the report at exit knows no functions of its holders, but their places
	grep -o '^held-in-limbo:' made | head -1 | sed 's/$/leak:one_place+0x/' > known
	CULIMBO_SUPPRESSIONS=known CULIMBO_ERROR_EXITCODE=42 CULIMBO_REPORT=always "$C" run --simulate -- \
		"$P/one_place" held 3 2> text
	has text "  suppressed: 1, 4 MiB"
	# without a class the exporter's stacks match, as in the last release
	printf 'stack:^export_block$\n' > known
	"$C" check --simulate --suppressions known -- "$P/one_place" held 3 2> text
	has text "findings=0 suppressed=1"
}

@test "one place of a holder does not speak for the others" {
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/one_place" places 1
	grep -q '^held-in-limbo:stack:^open_block\$;^go_down\$;^open_here\$;' made
	"$C" check --simulate --suppressions made -- "$P/one_place" places 1 2> text
	has text "findings=0 suppressed=2"
	# the other block was opened elsewhere: that is another bug
	fails 99 "$C" check --simulate --suppressions made -- "$P/one_place" places 2> text
	has text "findings=2"
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/one_place" places
	has made "a process has opened them at several places"
	[ "$(grep -c -v '^#' made)" -eq 0 ]
	fails 99 "$C" check --simulate --json --output json -- "$P/one_place" places
	valid json
	jq -e -s 'any(.[]; .type == "group" and any(.holders[]?; .more_open_stacks))' json
}

@test "no suppression is made of the callers of code that has no name" {
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/one_place" made
	has made "# freed-while-mapped: 1 block, "
	has made "made at run time and has no name"
	[ "$(grep -c -v '^#' made)" -eq 0 ]
}
