# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What torture.sh and storm.sh have in common; they read it with `.`.
#
# Must always hold: a folder of its own for all that is shared, gone afterwards;
# a deadline; what is started does not outlive it.

# what the caller has of ours would reach the processes
unset LD_PRELOAD TEST_DOOR
for variable in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$variable"
done
# what killed processes leave goes at once, as tests count files; tests/tools/dead.bats has the default
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

# Sets what follows needs: $program, $top, TORTURE_BUILD, TORTURE_SEED; $gpu not empty: on the machine's own driver.
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

# One run in the folder $top/NAME; its lines get their numbers here.
run() { # NAME SECONDS ARGUMENTS OF $program
	dir=$top/$1
	most=$(($2 + 120 + 75 + 30)) # (it ends by itself before that, see torture.c and storm.c)
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
		echo "# $name ended with $status"
	}
	[ "$status" -ne 124 ] && [ "$status" -ne 137 ] || echo "Bail out! it takes longer than $most s"
}

# What they said on stderr: like lines once, with how often.
said() { # NAME
	# (an error of the driver keeps its number)
	cat "$top/$1"/*.err | sed -E 's/(CUDA error|gave) ([0-9]+)/\1 <\2>/g; s/0x[0-9a-f]*/N/g; s/(^|[^<0-9])[0-9]+/\1N/g; s/<([0-9]+)>/\1/g' | cut -c1-200 |
		sort | uniq -c | sort -rn | head -n 20 | sed 's/^/# said: /'
	grep -h "^$name: \(FOREIGN\|ERROR\)" "$top/$1"/*.err | head -n 10 | sed 's/^/#   /'
}

quiet() { # NAME
	number=$((number + 1))
	if [ -n "$(find "$top/$1" -name '*.out' -size +0)" ]; then
		failures=$((failures + 1))
		echo "not ok $number - 4 nobody wrote to stdout"
	else
		echo "ok $number - 4 nobody wrote to stdout"
	fi
}

# The plan, and the exit status.
end() {
	echo "1..$number"
	[ "$failures" -eq 0 ]
	exit
}
