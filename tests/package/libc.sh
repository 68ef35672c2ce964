#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The C library that is needed, in TAP.  What this build imports by a version above glibc 2.17 is
# known to be in 2.17 as well, or to have a fallback; and where `make wheel` has built for 2.17, what
# it built asks for no more.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

# In glibc 2.17 too, where they are of libpthread, libdl or another form: moved to libc by 2.34, 2.32,
# or given a symbol of their own by 2.33 (stat and its kin).
old='__libc_start_main __pthread_key_create dladdr dladdr1 dlclose dlerror dlinfo dlopen dlsym dlvsym fstat fstatat lstat stat
pthread_attr_getstack pthread_condattr_setclock pthread_create pthread_getattr_np pthread_getspecific pthread_join
pthread_key_create pthread_kill pthread_mutex_consistent pthread_mutex_trylock pthread_mutexattr_destroy
pthread_mutexattr_init pthread_mutexattr_setpshared pthread_mutexattr_setrobust pthread_once pthread_rwlock_rdlock
pthread_rwlock_unlock pthread_rwlock_wrlock pthread_setname_np pthread_setspecific pthread_sigmask pthread_timedjoin_np
pthread_tryjoin_np sem_init sem_post sem_wait glob posix_spawn'
# With a fallback: shim/base/old_libc.h and old_libc.c; log.c; libgcc's unwinder asks for the last one,
# which is not linked where the C library has none.
fallback='getrandom pthread_clockjoin_np pthread_cond_clockwait pthread_mutex_clocklock renameat2 strerrordesc_np
_dl_find_object'
# shellcheck disable=SC2086 # words
printf '%s\n' $old $fallback | sort -u > "$tmp/known"

newer() { # FILE: what it imports by a version above 2.17
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
