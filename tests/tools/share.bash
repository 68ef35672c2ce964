# SPDX-License-Identifier: Apache-2.0
# Real processes on the simulated driver, which the tests tell what to do: see
# sharer.c.  To be loaded after common.bash.
# shellcheck shell=bash disable=SC2154,SC2034
# (top_builddir is of the test environment)

share_setup() {
	SHARER=$top_builddir/tests/tools/sharer
	shared=/dev/shm
	[ -w "$shared" ] || shared=$BATS_TEST_TMPDIR
	HOME_OF_ALL=$(mktemp -d "$shared/culimbo-tools.XXXXXX")
	export CULIMBO_DIR=$HOME_OF_ALL/dir CULIMBO_SIM_DIR=$HOME_OF_ALL/sim
	export CULIMBO_SIM_MEMORY=8GiB LC_ALL=C.UTF-8
	mkdir -m 700 "$CULIMBO_SIM_DIR"
	declare -gA TO FROM PID
}

share_teardown() {
	local name
	for name in "${!PID[@]}"; do
		kill -CONT "${PID[$name]}" 2> /dev/null
		kill -KILL "${PID[$name]}" 2> /dev/null
		wait "${PID[$name]}" 2> /dev/null
	done
	rm -rf "$HOME_OF_ALL"
}

# start NAME [VARIABLE=VALUE...]: a sharer; ${PID[NAME]}
start() {
	local name=$1 to from
	shift
	mkfifo "$name.in" "$name.out"
	# (env and culimbo become the sharer: its pid is this one's)
	env "$@" "$C" run --simulate -- "${EXE:-$SHARER}" < "$name.in" > "$name.out" 2> "$name.err" 3>&- &
	PID[$name]=$!
	exec {to}> "$name.in" {from}< "$name.out"
	TO[$name]=$to FROM[$name]=$from
}

# tell NAME LINE: has it done; $SAID is what it answers
tell() {
	printf '%s\n' "$2" >&"${TO[$1]}"
	read -r -t 60 SAID <&"${FROM[$1]}"
	case $SAID in
	ok*) SAID=${SAID#ok}; SAID=${SAID# } ;;
	*) echo "$1: $2: $SAID"; cat "$1.err"; return 1 ;;
	esac
}

# finish NAME: the end of its stdin
finish() {
	eval "exec ${TO[$1]}>&-"
	wait "${PID[$1]}"
}

# die NAME: killed, and waited for
die() {
	kill -KILL "${PID[$1]}"
	wait "${PID[$1]}" || :
}

# within SECONDS COMMAND...: true before that
within() {
	local until=$((${EPOCHREALTIME/./} + $1 * 1000000))
	shift
	until "$@"; do
		[ "${EPOCHREALTIME/./}" -lt "$until" ] || { echo "not in time: $*"; return 1; }
		sleep 0.02
	done
}

# column NAME COMMAND...: that column alone
column() {
	local name=$1
	shift
	"$C" "$@" --raw --noheadings -o "$name"
}

# copy_file FROM TO: of an exporter file, without its holes; the part that is
# always there stays whole
copy_file() {
	cp --sparse=always "$1" "$2"
	dd if="$1" of="$2" bs=4096 count=19 conv=notrunc status=none
	# (bytes 592 to 599: its inode, by which a copy is told; 0: not known)
	dd if=/dev/zero of="$2" bs=1 seek=592 count=8 conv=notrunc status=none
	chmod 600 "$2"
}

# fake_nvml: here a libnvidia-ml.so.1 that knows three GPUs: one of no process here, ours, one that is broken
fake_nvml() {
	$CC -shared -fPIC -x c -o libnvidia-ml.so.1 - <<-'END'
		#include <stdio.h>
		int nvmlInit_v2(void) { return 0; }
		int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
		int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(unsigned long)(i + 1); return i == 2 ? 15 : 0; }
		int nvmlDeviceGetMemoryInfo(void *d, unsigned long long m[3])
		{ m[0] = 100ull << 30; m[1] = 97ull << 30; m[2] = (unsigned long)d << 30; return 0; }
		int nvmlDeviceGetUUID(void *d, char *to, unsigned n)
		{ snprintf(to, n, "GPU-%s", d == (void *)2 ? "63756c69-6d62-6f2d-7369-6d0000000000" : "00112233-4455-6677-8899-aabbccddeeff"); return 0; }
		int nvmlDeviceGetName(void *d, char *to, unsigned n) { snprintf(to, n, "Fake %d", (int)(long)d); return 0; }
	END
}
