# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by torture.sh, storm.sh and pressure_storm.sh.
#
# Rules: All shared files are in a folder of this run, which is removed afterwards.
# There is a deadline.  No process outlives it.

# the caller's settings of culimbo would reach the processes
unset LD_PRELOAD TEST_DOOR
for variable in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$variable"
done
# files of killed processes go at once, because the supervisors count files; tests/tools/dead.bats tests the default
export CULIMBO_KEEP_DEAD=0

bail() {
	echo "Bail out! $*"
	exit 1
}

clean() {
	if [ -n "${TORTURE_KEEP-}" ]; then
		echo "# kept: $top"
	else
		rm -rf "$top"
	fi
}

# Sets $program, $top, TORTURE_BUILD and TORTURE_SEED.  Where $gpu is not empty, the machine's driver is used.
begin() { # NAME BUILD_DIR
	name=$1
	TORTURE_BUILD=$(cd "$2" && pwd) || exit 1
	program=$TORTURE_BUILD/tests/torture/$name
	for part in "$program" "$TORTURE_BUILD/tools/culimbo" "$TORTURE_BUILD/.libs/libculimbo.so"; do
		[ -e "$part" ] || bail "there is no $part (make check builds it)"
	done
	if [ -n "${gpu-}" ]; then
		[ -e /dev/nvidiactl ] || bail "there is no GPU here (/dev/nvidiactl)"
	else
		part=$TORTURE_BUILD/tools/sim/.libs/libcuda.so.1
		[ -e "$part" ] || bail "there is no $part"
	fi
	shared=/dev/shm
	[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
	top=$(mktemp -d "$shared/culimbo-$name.XXXXXX") || exit 1
	trap clean EXIT
	trap 'exit 130' HUP INT TERM
	TORTURE_SEED=${TORTURE_SEED:-$(($(date +%s) % 1000000))}
	export TORTURE_BUILD TORTURE_SEED
	echo "# TORTURE_SEED=$TORTURE_SEED"
	number=0
	failures=0
}

# Runs $program once in the folder $top/NAME, and numbers its lines.
run() { # NAME SECONDS ARGUMENTS OF $program
	dir=$top/$1
	most=$(($2 + 120 + 75 + 30)) # a bound: it ends by itself before that, see torture.c and storm.c
	shift 2
	mkdir -p "$dir/reports"
	TORTURE_DIR=$dir CULIMBO_DIR=$dir/limbo CULIMBO_SIM_DIR=$dir/sim \
		CULIMBO_SIM_MEMORY=256MiB CULIMBO_SIM_DEVICES="${devices:-1}" CULIMBO_GRACE="${grace:-500ms}" \
		CULIMBO_REPORT=always CULIMBO_REPORT_FILE="$dir/reports/%p" \
		timeout -k 5 "$most" "$program" "$@" > "$dir/result" 2>&1 < /dev/null
	status=$?
	while IFS= read -r line; do
		case $line in
		"ok - "*) number=$((number + 1)) line="ok $number - ${line#ok - }" ;;
		"not ok - "*)
			number=$((number + 1)) failures=$((failures + 1))
			line="not ok $number - ${line#not ok - }"
			;;
		"#"* | "$name: "* | "Bail out!"*) ;;
		*) line="# $line" ;;
		esac
		printf '%s\n' "$line"
	done < "$dir/result"
	[ "$status" -eq 0 ] || {
		failures=$((failures + 1))
		echo "# $name ended with status $status"
	}
	[ "$status" -ne 124 ] && [ "$status" -ne 137 ] || echo "Bail out! it ran longer than $most s"
}

# Prints what the processes wrote to stderr: similar lines once, with their number.
said() { # NAME
	# keeps the number of a driver error
	cat "$top/$1"/*.err | sed -E 's/(CUDA error|gave) ([0-9]+)/\1 <\2>/g; s/0x[0-9a-f]*/N/g; s/(^|[^<0-9])[0-9]+/\1N/g; s/<([0-9]+)>/\1/g' | cut -c1-200 |
		sort | uniq -c | sort -rn | head -n 20 | sed 's/^/# said: /'
	grep -h "^$name: \(FOREIGN\|ERROR\)" "$top/$1"/*.err | head -n 10 | sed 's/^/#   /'
	grep -h "^$name: CRASH" "$top/$1"/*.err | head -n 100 | sed 's/^/#   /'
}

quiet() { # NAME
	number=$((number + 1))
	if [ -n "$(find "$top/$1" -name '*.out' -size +0)" ]; then
		failures=$((failures + 1))
		echo "not ok $number - 4 no process wrote to stdout"
	else
		echo "ok $number - 4 no process wrote to stdout"
	fi
}

# Prints the plan and returns the exit status.
end() {
	echo "1..$number"
	[ "$failures" -eq 0 ]
	exit
}
