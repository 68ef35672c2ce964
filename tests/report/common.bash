# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# Shared by the tests of reports: a directory of their own, and checks of the output.

setup() {
	C=${CULIMBO:?run me by make check, or set CULIMBO to the command}
	P=${top_builddir:?}/tests/report
	S=${top_srcdir:?}
	unset LD_PRELOAD LD_LIBRARY_PATH
	cd "$BATS_TEST_TMPDIR" || return 1
	shared=/dev/shm
	[ -w "$shared" ] || shared=$BATS_TEST_TMPDIR
	D=$(mktemp -d "$shared/culimbo-report.XXXXXX")
	export CULIMBO_SIM_DIR="$D/sim"
	mkfifo in
	exec 7<> in
}

teardown() {
	for pid in $(cat pids 2> /dev/null); do
		kill -9 "$pid" 2> /dev/null || :
	done
	rm -rf "$D"
}

# line FILE TEXT: the number of the line of tests/report/FILE that has TEXT
line() {
	grep -n -F "$2" "$S/tests/report/$1" | head -1 | cut -d: -f1
}

# narrow FILE: none of its lines is wider than 100 columns, but frames, whose paths are of any length
narrow() {
	if grep -E '^.{101}' "$1" | grep -Ev '^      #|^culimbo: SUMMARY'; then
		echo "in $1: too wide"
		return 1
	fi
}

# unfold FILE: its report without the folds of long lines
unfold() {
	sed -z 's/\n        \([^ ]\)/ \1/g' "$1"
}

has() {
	unfold "$1" | grep -F -- "$2" > /dev/null || {
		echo "not in $1: $2"
		head -40 "$1"
		return 1
	}
}

# lacks FILE TEXT (a command behind a "!" cannot fail a test, unless it is its last)
lacks() {
	if unfold "$1" | grep -F -- "$2"; then
		echo "in $1: $2"
		return 1
	fi
}

valid() {
	python3 "$S/tests/report/schema.py" "$S/doc/report.schema.json" "$@"
}

# frames FILE: of each stack its title's first words, and the functions, line by line
frames() {
	sed -nE 's/^    (opened|freed|refused|exported|destroyed)( [0-9].* ago,)? (from|at|by).*/\1 \3/p; s/^      #[0-9]+ 0x[0-9a-f]+ in ([^ ]+).*/\1/p' "$1"
}

# waits FILE TEXT: waits until FILE contains TEXT
waits() {
	for _ in $(seq 600); do
		grep -q -F -- "$2" "$1" 2> /dev/null && return 0
		sleep 0.05
	done
	echo "never in $1: $2"
	return 1
}

# start NUMBER PLACES: `many`, in the background, in its own directory; "in" is its stdin
start() {
	export CULIMBO_DIR="$D/limbo" CULIMBO_KEEP_DEAD=1h
	"$C" run --simulate -- "$P/many" "$@" < in > out 2> err 7>&- &
	many=$!
	echo $many > pids
	waits out ready
	read -r _ exporter importer < out
	echo "$exporter $importer" >> pids
}

# fails STATUS COMMAND...: COMMAND must end with STATUS
fails() {
	local want=$1 got=0
	shift
	"$@" || got=$?
	[ "$got" -eq "$want" ] || {
		echo "status $got, not $want: $*"
		return 1
	}
}

# waits until `culimbo report` says that the process is dead: some 100 ms
waits_dead() {
	for _ in $(seq 200); do
		"$C" report --json --all | jq -e -s --argjson p "$1" \
			'any(.[]; .type == "process" and .pid == $p and .state == "dead")' > /dev/null && return 0
		sleep 0.05
	done
	return 1
}
