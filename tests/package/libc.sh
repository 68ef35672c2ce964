#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests which C library culimbo needs; prints TAP.  Each function that this build imports from a
# glibc newer than 2.17 is also in 2.17, or has a fallback.  If `make wheel` has built for 2.17, its
# files need nothing newer.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

# These are in glibc 2.17 too, in libpthread or libdl or in another form.  2.32 and 2.34 moved some to
# libc; 2.33 gave stat and its kin symbols of their own.
old='__libc_start_main __pthread_key_create dladdr dladdr1 dlclose dlerror dlinfo dlopen dlsym dlvsym fstat fstatat lstat stat
pthread_attr_getstack pthread_condattr_setclock pthread_create pthread_getattr_np pthread_getspecific pthread_join
pthread_key_create pthread_kill pthread_mutex_consistent pthread_mutex_trylock pthread_mutexattr_destroy
pthread_mutexattr_init pthread_mutexattr_setpshared pthread_mutexattr_setrobust pthread_once pthread_rwlock_rdlock
pthread_rwlock_unlock pthread_rwlock_wrlock pthread_setname_np pthread_setspecific pthread_sigmask pthread_timedjoin_np
pthread_tryjoin_np sem_init sem_post sem_wait glob posix_spawn'
# These have a fallback: in shim/base/old_libc.h and old_libc.c, and in log.c.  libgcc's unwinder needs the
# last one, but only where the C library has it.
fallback='getrandom pthread_clockjoin_np pthread_cond_clockwait pthread_mutex_clocklock renameat2 strerrordesc_np
_dl_find_object'
# shellcheck disable=SC2086 # words
printf '%s\n' $old $fallback | sort -u > "$tmp/known"

newer() { # FILE: prints what it imports from a version above 2.17
	nm -D --undefined-only "$1" | sed -n 's/.* \([^ @]*\)@\{1,2\}GLIBC_2\.\([0-9]*\).*/\2 \1/p' |
		awk '$1 > 17 { print $2 }' | sort -u
}
for file in .libs/libculimbo.so tools/sim/.libs/libcuda.so.1 tools/culimbo; do
	newer "$top_builddir/$file" | comm -23 - "$tmp/known" > "$tmp/unknown"
	[ ! -s "$tmp/unknown" ]
	ok $? "${file##*/}: what it imports is in glibc 2.17, or has a fallback" || show "$tmp/unknown"
done
for arch in x86_64 aarch64; do
	for file in .libs/libculimbo.so tools/sim/.libs/libcuda.so.1 tools/culimbo; do
		built=$top_builddir/wheel/$arch/$file
		if [ ! -e "$built" ]; then
			number=$((number + 1))
			echo "ok $number # SKIP $arch: make wheel has not built ${file##*/}"
			continue
		fi
		newer "$built" > "$tmp/unknown"
		[ ! -s "$tmp/unknown" ]
		ok $? "$arch: the wheel's ${file##*/} needs glibc 2.17 at most" || show "$tmp/unknown"
	done
done
finish
