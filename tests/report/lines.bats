#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# A finding has at most 15 lines of text, however deep its stacks are and however many processes hold it.

load common.bash

# findings FILE: the number of lines of each group in FILE
findings() {
	awk '/^  [A-Z]+: / { if (n) print n; n = 1; next } /^    / { if (n) n++; next } { if (n) print n; n = 0 }
		END { if (n) print n }' "$1"
}

# short FILE: FILE has a finding, and no finding has more than 15 lines
short() {
	local n
	findings "$1" > counted
	[ -s counted ]
	while read -r n; do
		[ "$n" -le 15 ] || {
			echo "$n lines"
			cat "$1"
			return 1
		}
	done < counted
}

@test "four holders with deep stacks: 15 lines, the culprit's first" {
	export CULIMBO_STACK=40
	fails 99 "$C" check --simulate -- "$P/one_place" held 4 30 2> text
	short text
	cat text
	[ "$(findings text)" -eq 15 ]
	grep -Eq '^  LEAK: process [0-9]+ and 3 more still map 1 block \(4 MiB\) that process [0-9]+ has freed$' text
	# the first holder's line, in the code that opened, and the last frame of its stack
	sed -n '/^  LEAK/,$p' text > finding
	sed -n 3p finding | grep -Eq '^    held by process '
	sed -n 4p finding | grep -Eq '^    opened .* ago, from$'
	sed -n 5p finding | grep -q "#0 .* in open_block .*one_place.c:$(line one_place.c 'CHECK(cuIpcOpenMemHandle')"
	[ "$(grep -c '^    held by process' finding)" -eq 4 ]
	# who freed it, after that; where it was exported, and the other holders' stacks are left out
	sed -n '/^    freed from$/{n;p}' finding | grep -q 'free_block'
	grep -Eq '^      \.\.\. [0-9]+ more frames; --full-stacks shows them$' finding
	grep -Eq '^    \.\.\. 4 more stacks; --full-stacks shows them$' finding
	sed -n 14,15p finding > hint
	unfold hint | grep -Eq '^    HINT: .* until then the memory cannot be reused$'
}

@test "--full-stacks of check, run and report, and its variable, lift the limit" {
	export CULIMBO_STACK=40
	fails 99 "$C" check --simulate --full-stacks -- "$P/one_place" held 5 30 2> text
	[ "$(findings text)" -gt 150 ]
	lacks text 'more frame'
	[ "$(grep -c '^    held by process' text)" -eq 5 ]
	[ "$(grep -c ' in open_block ' text)" -eq 5 ]
	CULIMBO_FULL_STACKS=1 fails 99 "$C" check --simulate -- "$P/one_place" held 5 30 2> text
	[ "$(findings text)" -gt 150 ]
	"$C" run --simulate --full-stacks -- "$P/one_place" held 5 30 2> text
	[ "$(findings text)" -gt 150 ]
	"$C" run --simulate --full-stacks --names -- "$P/one_place" held 5 30 2> text
	[ "$(findings text)" -gt 150 ]
	lacks text 'more frame'
}

@test "the report at exit has the same limit, and says how much it leaves out" {
	export CULIMBO_STACK=40
	"$C" run --simulate -- "$P/one_place" held 5 30 2> text
	short text
	[ "$(findings text)" -eq 15 ]
	has text "process"
	has text "    and 1 hold of another process"
	grep -Eq '^      \.\.\. [0-9]+ more frames; --full-stacks shows them$' text
	"$C" report - < text > named
	short named
	grep -q ' in open_block .*one_place.c:' named
	CULIMBO_REPORT_FORMAT=jsonl "$C" run --simulate -- "$P/one_place" held 5 30 2> json
	valid json
	jq -e -s 'any(.[]; .type == "group" and (.holders | length) == 5 and all(.holders[].open_stack; length > 30))' json
}

@test "more holders than a report keeps: others, who have a verb of their own" {
	CULIMBO_STACK=40 fails 99 "$C" check --simulate -- "$P/one_place" held 20 10 2> text
	short text
	grep -Eq '^  LEAK: process [0-9]+ and others still map 1 block \(4 MiB\) that process [0-9]+ has freed$' text
	has text "    and 16 holds of other processes"
	unfold text | grep -Eq '^    HINT: process [0-9]+ and others do not close what they opened: '
	# nothing hides what is not known of
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/one_place" held 20
	fails 99 "$C" check --simulate --suppressions made -- "$P/one_place" held 20 2> text
	has text "findings=1"
}

@test "the Python frames of two deep stacks" {
	cat > deep.py <<-'END'
		import ctypes
		cuda = ctypes.CDLL("libcuda.so.1")
		context, block, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(64)
		assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
		assert not cuda.cuCtxSetCurrent(context) and not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(4096))
		def down(left, then):
		    return down(left - 1, then) if left else then()
		assert not cuda.cuIpcGetMemHandle(handle, block)
		down(30, lambda: cuda.cuMemFree_v2(block))
		down(30, lambda: cuda.cuMemFree_v2(block))
	END
	CULIMBO_STACK=40 fails 99 "$C" check --simulate -- python3 deep.py 2> text
	short text
	[ "$(findings text)" -eq 15 ]
	grep -q '#0 .*lambda.* (.*deep.py:9)' text
	grep -Eq '^      \.\.\. [0-9]+ more frames; --full-stacks shows them$' text
	CULIMBO_STACK=40 fails 99 "$C" check --simulate --full-stacks -- python3 deep.py 2> text
	[ "$(findings text)" -gt 60 ]
	CULIMBO_STACK=40 "$C" run --simulate -- python3 deep.py 2> text
	short text
	[ "$(findings text)" -eq 15 ]
}

@test "deep stacks of a live process, of misuse, and of default depth" {
	start 20 20
	"$C" report > text
	short text
	grep -Eq '^      \.\.\. [2-9] more frames; --full-stacks shows them$' text
	"$C" report --full-stacks > text
	[ "$(findings text | sort -n | tail -1)" -gt 15 ]
	kill -9 "$exporter" "$importer"
	export CULIMBO_STACK=40
	unset CULIMBO_DIR
	for program in "never_closes twice" frees_early is_killed "one_place two" "one_place made"; do
		# shellcheck disable=SC2086
		fails 99 "$C" check --simulate -- "$P"/$program 2> text
		short text
	done
}
