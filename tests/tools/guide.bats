#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

@test "doc/troubleshooting.md has exactly the messages of the library" {
	python3 "$top_srcdir/tests/tools/messages.py" "$top_srcdir"
}

@test "report-format.md has the limits of Python stacks that the library keeps" {
	data=$top_srcdir/shim/diag/report_data.c
	kept=$(sed -nE 's/.*PYTHON_NAMES = ([0-9]+).*/\1/p' "$data")
	read=$(sed -nE 's/.*PYTHON_STACKS = ([0-9]+).*/\1/p' "$data")
	ms=$(sed -nE 's/^uint64_t cl_python_limit = ([0-9]+) \* 1000000ull;.*/\1/p' "$data")
	thousands() { sed -E 's/([0-9])([0-9]{3})$/\1,\2/' <<< "$1"; }
	grep "reads the names and lines of $(thousands "$read") Python stacks at most, and for $ms ms at most" "$top_srcdir/doc/report-format.md"
	grep "up to $(thousands "$kept") stacks" "$top_srcdir/doc/report-format.md"
}

@test "make install installs every page of doc/" {
	make -s -C "$top_builddir" -pn 2> make.err < /dev/null | sed -n 's/^dist_doc_DATA = //p' | tr ' ' '\n' |
		grep '^doc/.*\.md$' | sort -u > installed
	(cd "$top_srcdir" && ls doc/*.md) | sort > pages
	[ -s pages ]
	diff pages installed
}

@test "its transcripts name the same lines of code as the programs' reports" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	unset LD_PRELOAD LD_LIBRARY_PATH
	guide=$top_srcdir/doc/troubleshooting.md
	for program in never_closes frees_early is_killed; do
		# "in FUNCTION FILE:LINE", of the program itself
		grep -oE "in [a-z_]+ $program\.c:[0-9]+" "$guide" | sort -u > told
		[ -s told ]
		"$CULIMBO" check --simulate -- "$top_builddir/tests/report/$program" > report 2>&1 && false
		sed -E 's|(in [a-z_]+ )/?[^ ]*/|\1|' report | grep -oE "in [a-z_]+ $program\.c:[0-9]+" | sort -u > said
		if [ -n "$(comm -23 told said)" ]; then
			echo "only in the guide:"
			comm -23 told said
			false
		fi
		# and those of the words below
		for line in $(sed -n "/-- \.\/$program;/,/^## /p" "$guide" | grep -v "$program.c" | grep -oE '\bline [0-9]+' | grep -oE '[0-9]+'); do
			grep -q ":$line\$" told
			# each story is to be found from the first ten lines
			head -10 report | grep -q "$program.c:$line\$"
		done
	done
}

@test "its transcript of a Python program names the same lines as the report" {
	export CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR
	unset LD_PRELOAD LD_LIBRARY_PATH
	grep -oE '[a-z_<>]+ \(trainer\.py:[0-9]+\)' "$top_srcdir/doc/troubleshooting.md" | sort -u > told
	[ "$(wc -l < told)" -eq 4 ]
	"$CULIMBO" check --simulate -- python3 "$top_srcdir/tests/report/trainer.py" > report 2>&1 && false
	sed -E 's|\([^ ]*/|(|' report | grep -oE '[a-z_<>]+ \(trainer\.py:[0-9]+\)' | sort -u > said
	[ -z "$(comm -23 told said)" ]
	line=$(sed -n '/-- python3 trainer.py;/,/^## /p' "$top_srcdir/doc/troubleshooting.md" | grep -oE 'line [0-9]+' | tr -dc 0-9)
	grep -q "load_batch (trainer.py:$line)" told
	head -10 report | grep -q "trainer.py:$line)"
}
