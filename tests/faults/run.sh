#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests culimbo when calls fail and limits are reached, on the simulated driver.  One part
# fails every call of libculimbo in turn; others reach real limits.
#
#   run.sh [BUILD_DIR [PART]]    PART: steps, virtual, async, conditions, limits or records
#
# Prints the programs' TAP with consecutive numbers.  Three parts run at once, since they mostly
# wait, each in its own folder, which is removed afterwards.
#
#   FAULTS_JOBS  how many at once (3)
set -u

unset LD_PRELOAD
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
# The files of killed processes are removed at once: tests count files.  tests/tools/dead.bats tests the default.
export CULIMBO_KEEP_DEAD=0

# ------------------------------------------------- one part (we call ourselves)
if [ "${1-}" = --part ]; then
	name=$2
	dir=$FAULTS_TMP/$name
	# a grace and waits that are short enough for thousands of runs
	export CULIMBO_DIR="$dir/parent/limbo" CULIMBO_SIM_DIR="$dir/sim"
	export CULIMBO_GRACE=10ms CULIMBO_SETTLE=50ms CULIMBO_PRESSURE_WAIT=10ms
	export LD_LIBRARY_PATH="$FAULTS_BUILD/tools/sim/.libs"
	mkdir -p "$dir/parent" || exit 1
	ours=$FAULTS_BUILD/.libs/libculimbo.so
	inject=$FAULTS_BUILD/tests/faults/.libs/inject.so
	begun=$(date +%s%N)
	case $name in
	bare)
		timeout -k 5 120 "$FAULTS_BUILD/tests/faults/conditions" --bare
		;;
	conditions | limits)
		LD_PRELOAD=$ours timeout -k 5 120 "$FAULTS_BUILD/tests/faults/$name"
		;;
	records)
		CULIMBO_COLLECTOR=inline CULIMBO_GRACE=0 CULIMBO_DIR=$dir/parent/limbo \
			timeout -k 5 120 "$FAULTS_BUILD/tests/faults/records"
		;;
	*)
		case $name in virtual-* | async-*) export CULIMBO_SHARE=all ;; esac
		# so that its handle is stale once it is freed
		case $name in async-*) export CULIMBO_GRACE=0 ;; esac
		LD_PRELOAD="$ours:$inject" timeout -k 5 300 "$FAULTS_BUILD/tests/faults/steps" "$name"
		;;
	esac > "$FAULTS_TMP/$name.out" 2>&1 < /dev/null
	echo $? > "$FAULTS_TMP/$name.status"
	echo $((($(date +%s%N) - begun) / 1000000)) > "$FAULTS_TMP/$name.took"
	exit 0
fi

# ---------------------------------------------------------------------- setting
build=${1:-${top_builddir-}}
only=${2:-all}
if [ $# -gt 2 ] || [ -z "$build" ]; then
	echo "usage: run.sh [BUILD_DIR [PART]]" >&2
	exit 2
fi
FAULTS_BUILD=$(cd "$build" && pwd) || exit 1
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
for part in .libs/libculimbo.so tools/sim/.libs/libcuda.so.1 tests/faults/steps \
	tests/faults/.libs/inject.so tests/faults/conditions; do
	[ -e "$FAULTS_BUILD/$part" ] || {
		echo "Bail out! there is no $FAULTS_BUILD/$part (make check builds it)"
		exit 1
	}
done
shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
FAULTS_TMP=$(mktemp -d "$shared/culimbo-faults.XXXXXX") || exit 1
export FAULTS_BUILD FAULTS_TMP
trap 'rm -rf "$FAULTS_TMP"' EXIT
trap 'exit 130' HUP INT TERM

case $only in
all) parts='virtual-exporter async-exporter importer exporter virtual-importer async-importer growing bare conditions limits records' ;;
steps) parts='importer exporter virtual-exporter virtual-importer async-exporter async-importer growing' ;;
virtual) parts='virtual-exporter virtual-importer' ;;
async) parts='async-exporter async-importer' ;;
conditions) parts='bare conditions' ;;
limits | records) parts=$only ;;
*)
	echo "Bail out! no such part: $only"
	exit 1
	;;
esac

number=0
failures=0
ok() { # STATUS TEXT
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		failures=$((failures + 1))
		echo "not ok $number - $2"
	fi
}

# ------------------------------------------- no call of libculimbo is forgotten
# Each function that the library imports is failed by inject.so, or is one of these, which
# can't fail for lack of anything.
# shellcheck disable=SC2034 # it is a list to read
cant_fail='
__cxa_at_quick_exit __cxa_atexit __cxa_finalize __environ environ __errno_location __stack_chk_fail
clock_gettime gethostname getppid isatty dl_iterate_phdr dladdr dladdr1 dlclose dlerror dlopen dlvsym free geteuid getauxval getpid time
closedir __assert_fail _dl_find_object sched_yield prctl
memchr memrchr memcmp memcpy memmove memset uname exit snprintf vsnprintf strchr strcmp strcspn strerror
strerrordesc_np strlen strncmp strrchr strstr strtoul strtoull strspn strnlen
pthread_detach pthread_join pthread_cond_broadcast pthread_cond_clockwait pthread_cond_timedwait pthread_cond_wait pthread_mutex_lock
pthread_mutex_unlock pthread_self pthread_attr_getstack pthread_attr_destroy pthread_attr_setinheritsched
pthread_attr_setschedparam pthread_attr_setschedpolicy pthread_attr_setstacksize getpriority pthread_sigmask pthread_equal pthread_setcancelstate
pthread_setcanceltype getcontext makecontext sigaltstack swapcontext
sigaddset sigemptyset sigfillset sigismember sigpending
dirfd kill abort pthread_once pthread_key_delete __pthread_key_create
_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __gmon_start__'
# (dlopen() of a loaded driver takes no memory.  abort() and the last two are in libgcc's unwinder, for a
# case that does not occur: the unwinder always has data, see preload/unwind.c.)
imports() {
	nm -D --undefined-only "$1" | sed 's/.* //; s/@.*//' | sort -u
}
exports() {
	nm -D --defined-only "$1" | sed 's/.* //; s/@.*//' | sort -u
}
if command -v nm > /dev/null; then
	{
		exports "$FAULTS_BUILD/tests/faults/.libs/inject.so"
		# shellcheck disable=SC2086
		printf '%s\n' $cant_fail
	} | sort -u > "$FAULTS_TMP/known"
	imports "$FAULTS_BUILD/.libs/libculimbo.so" > "$FAULTS_TMP/imports"
	forgotten=$(comm -23 "$FAULTS_TMP/imports" "$FAULTS_TMP/known" | tr '\n' ' ')
	[ -z "$forgotten" ] && [ "$(wc -l < "$FAULTS_TMP/imports")" -gt 30 ]
	ok $? "every call that libculimbo imports can be failed here, or cannot fail${forgotten:+: but for $forgotten}"
fi

# ------------------------------------------------------------------------- parts
# shellcheck disable=SC2086
printf '%s\n' $parts | xargs -P "${FAULTS_JOBS:-3}" -n 1 sh "$self" --part

for part in $parts; do
	bad=$failures
	seen=0
	echo "# $part, $(cat "$FAULTS_TMP/$part.took") ms"
	while IFS= read -r line; do
		case $line in
		"ok "*" # SKIP"*)
			number=$((number + 1))
			echo "ok $number # SKIP $part: ${line#*# SKIP }"
			seen=1
			;;
		"ok "* | "not ok "*)
			text="$part: ${line#* - }"
			case $line in
			"ok "*) ok 0 "$text" ;;
			*) ok 1 "$text" ;;
			esac
			seen=1
			;;
		"1..0"*"SKIP"*)
			number=$((number + 1))
			echo "ok $number # SKIP $part: ${line#*SKIP }"
			seen=1
			;;
		"1.."*) ;;
		"#"*) printf '%s\n' "$line" ;;
		*) printf '#   %s\n' "$line" ;;
		esac
	done < "$FAULTS_TMP/$part.out"
	status=$(cat "$FAULTS_TMP/$part.status")
	if [ "$failures" -eq "$bad" ] && { [ "$status" -ne 0 ] || [ "$seen" -eq 0 ]; }; then
		ok 1 "$part ends well and says something (status $status)"
	fi
done
echo "1..$number"
[ "$failures" -eq 0 ] && [ "$number" -gt 0 ]
