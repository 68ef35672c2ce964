#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# CULIMBO_MODE=observe: each bug is told once, with what culimbo would have done about it.

load common.bash

# observed FINDINGS PROGRAM...: `culimbo check --observe` finds so many, each in one group; its report is in "text".
# The bug makes some programs fail: $fails is their status.
observed() {
	local n=$1
	shift
	fails "${fails:-99}" "$C" check --observe --simulate -- "$@" > out 2> text || {
		cat text
		return 1
	}
	cat text
	has text " findings=$n"
	[ "$(grep -cE '^  [A-Z]+: ' text)" -eq "$(grep -c '^    culimbo would have ' text)" ]
	lacks text "without culimbo process"
	lacks text "cannot reuse"
	lacks text "waits for this process"
}

groups() {
	[ "$(grep -cE '^  [A-Z]+: ' text)" -eq "$1" ]
}

@test "a block that is never closed is one finding, of who does not close it" {
	observed 2 "$P/never_closes"
	groups 1
	grep -Eq '^  LEAK: process [0-9]+ never closed 2 blocks \(2 MiB\) of process [0-9]+$' text
	grep -Eq '^    culimbo would have kept these 2 MiB, once freed, until process [0-9]+ ended$' text
	has text "freed by process"
	observed 1 "$P/is_killed"
	groups 1
	grep -Eq '^  KILLED: ' text
	"$C" check --observe --simulate --json --output json -- "$P/never_closes" || [ $? -eq 99 ]
	valid json
	jq -e -s '[.[] | select(.type == "group" and .finding)] | length == 1 and
		(.[0].would | startswith("culimbo would have kept these 2 MiB, once freed, until process "))' json
}

@test "a block that is freed while it is mapped is one finding, of who freed it" {
	fails=1 observed 1 "$top_builddir/tests/e2e/demo"
	groups 1
	grep -Eq '^  MISUSE: process [0-9]+ freed 1 block \(1 KiB\) while process ([0-9]+) had it mapped$' text
	grep -Eq '^    culimbo would have kept these 1 KiB until process [0-9]+ closed them$' text
	observed 1 "$P/one_place" made
	groups 1
	observed 1 "$P/one_place" held 3
	groups 1
	grep -Eq '^    culimbo would have kept these 4 MiB until process [0-9]+ and 2 more closed them$' text
	CULIMBO_STACK=40 observed 1 "$P/one_place" held 4 30
	[ "$(sed -n '/^  LEAK/,$p' text | sed -n '1p; 2,${/^    /!q;p}' | wc -l)" -eq 15 ]
}

@test "a block that is freed while it is mapped, and whose holder is killed, is one finding" {
	export CULIMBO_DIR="$D/limbo"
	"$C" run --observe --simulate -- "$P/one_place" dies < in > out 2> text 7>&- &
	exporter=$!
	echo $exporter > pids
	waits out ready
	# the exporter takes it back while it runs
	for _ in $(seq 600); do
		"$C" report --json | jq -e -s 'any(.[]; .type == "group" and .class == "reclaimed")' > /dev/null && break
		sleep 0.05
	done
	echo end >&7
	wait $exporter
	cat text
	has text " findings=1"
	groups 1
	grep -Eq '^  LEAK: process [0-9]+ ended without closing 1 block \(4 MiB\) of process [0-9]+$' text
	grep -Eq '^    culimbo would have kept these 4 MiB, once freed, until process [0-9]+ ended$' text
}

@test "a block that is opened after its free is one finding, and the driver's refusal is not another" {
	CULIMBO_GRACE=50ms observed 2 "$P/frees_early"
	groups 1
	grep -Eq '^  STALE: process [0-9]+ had freed 2 blocks \(2 MiB\) before process [0-9]+ opened them$' text
	has text "freed from"
	# each with what the driver did and when the block was freed, though its exporter has made others since
	unfold text | grep -Eq '^    (0x[0-9a-f]+, 1 MiB, (opened|refused by CUDA) [0-9.]+ m?s ago, [0-9.]+ m?s after its free; ){2}device 0$'
	has text "    culimbo would have refused these opens"
	observed 2 "$P/frees_early"
	groups 1
	has text "    culimbo would have kept these 2 MiB for CULIMBO_GRACE after the last export, and refused these opens after that"
	# the driver refuses the second one: nothing of it is said again
	fails=3 observed 2 "$P/one_place" two
	groups 2
	lacks text REFUSED
	grep -Eq '^    0x[0-9a-f]+, 4 MiB, refused by CUDA [0-9.]+ m?s ago, [0-9.]+ [mu]?s after its free; device 0$' text
	has text "    refused at"
	lacks text "another block may be there"
	has text "would have kept these 4 MiB for CULIMBO_GRACE"
	CULIMBO_GRACE=0 fails=3 observed 2 "$P/one_place" two
	has text "    culimbo would have refused this open"
	"$C" check --observe --simulate --json --output json -- "$P/one_place" two || [ $? -eq 3 ]
	valid json
	jq -e -s 'any(.[]; .class == "opened-after-free" and .result > 0 and .bytes == 4194304 and
		(.items[0] | .address and .after_free_ns > 0))' json
}

@test "check --observe is check with CULIMBO_MODE=observe: the program's results are the bare driver's" {
	[ "$("$C" check --observe --allow-no-cuda -- printenv CULIMBO_MODE)" = observe ]
	# shellcheck disable=SC2314
	! "$C" check --allow-no-cuda -- printenv CULIMBO_MODE
	fails 1 "$C" run --simulate --no-preload -- "$top_builddir/tests/e2e/demo" > bare
	has bare CORRUPTED
	# the program's own status, which culimbo did not change
	fails 1 "$C" check --observe --simulate -- "$top_builddir/tests/e2e/demo" > out 2> text
	cmp bare out
	has text "CULIMBO_MODE=observe: nothing was kept or refused"
	fails 99 "$C" check --simulate -- "$top_builddir/tests/e2e/demo" > out 2> text
	lacks text "culimbo would have"
}
