#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests which C library culimbo needs; prints TAP.  Each function that this build imports from a
# glibc newer than 2.17 is also in 2.17, or has a fallback.  The sources that use such a function are
# compiled as for glibc 2.17, and then need it no more.  If `make wheel` has built for 2.17, its files
# need nothing newer; `make check-glibc` builds this machine's and tests them.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

# These are in glibc 2.17 too, in libpthread or libdl or in another form.  2.32 and 2.34 moved some to
# libc; 2.33 gave stat and its kin symbols of their own.
old='__libc_start_main __pthread_key_create dladdr dladdr1 dlclose dlerror dlinfo dlopen dlsym dlvsym fstat fstatat lstat stat
pthread_attr_getstack pthread_attr_setaffinity_np pthread_attr_setstacksize pthread_condattr_setclock pthread_create pthread_detach pthread_getattr_np pthread_getspecific pthread_join
pthread_key_create pthread_key_delete pthread_kill pthread_mutex_consistent pthread_mutex_trylock pthread_mutexattr_destroy
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

# As configure would find glibc 2.17: it has none of these functions.
mkdir "$tmp/2.17"
# shellcheck disable=SC2086 # words
names=$(printf '%s\n' $fallback | grep -v '^_')
cp "$top_builddir/config.h" "$tmp/2.17/"
for name in $names; do
	sed -i "/^#define HAVE_$(echo "$name" | tr '[:lower:]' '[:upper:]') /d" "$tmp/2.17/config.h"
done
cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$top_builddir/Makefile")
compile() { # SOURCE: makes $tmp/one.o
	$CC -std=gnu11 -D_GNU_SOURCE -fPIC -w -I"$tmp/2.17" -I"$top_builddir" -I"$top_srcdir" -isystem "$cuda/include" \
		-c -o "$tmp/one.o" "$top_srcdir/$1" > "$tmp/cc.log" 2>&1 || show "$tmp/cc.log" >> "$tmp/wrong"
}
: > "$tmp/wrong"
compile shim/base/old_libc.c
# what it defines is in the library itself
nm --defined-only "$tmp/one.o" | sed 's/.* //' > "$tmp/defined"
compiled=0
(cd "$top_builddir" && find shim preload -path '*/.libs/*.o' -exec nm -A -u {} +) |
	awk -v names="$names" 'BEGIN { split(names, list); for (i in list) wanted[list[i]] }
		$NF in wanted { sub(/:.*/, "", $1); print $1 }' | sort -u > "$tmp/objects"
while read -r object; do
	source=$(echo "$object" | sed 's|\.libs/[a-z]*_la-||; s|o$|c|')
	compile "$source"
	# a weak reference is 0 in glibc 2.17, and old_libc.h looks before it calls
	nm "$tmp/one.o" | sed -n 's/.* U //p' | grep -xF "$names" | grep -vxF -f "$tmp/defined" | sed "s|\$| in $source|" >> "$tmp/wrong"
	compiled=$((compiled + 1))
done < "$tmp/objects"
[ ! -s "$tmp/wrong" ] && [ "$compiled" -ge 5 ]
ok $? "$compiled sources compiled for glibc 2.17 use their fallbacks" || show "$tmp/wrong"

# The libsmartcols that configure wants has the functions that the command calls.  RHEL 8 has 2.32.
wanted=$(sed -n 's/^PKG_CHECK_MODULES(\[SMARTCOLS\], \[smartcols >= \(.*\)\])$/\1/p' "$top_srcdir/configure.ac")
smartcols=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n 's/.*libsmartcols\.so\.1 .* => //p' | head -n 1)
grep -o '_(scols_[a-z_]*)' "$top_srcdir/tools/common/smartcols.h" | sed 's/^_(//; s/)//' > "$tmp/calls"
nm -D --defined-only "$smartcols" | sed -n 's/.* \([a-z_]*\)@@SMARTCOLS_\(.*\)/\1 \2/p' |
	grep -wF -f "$tmp/calls" | sed 's/.* //' > "$tmp/versions"
newest=$( (cat "$tmp/versions"; echo 2.32) | sort -V | tail -n 1)
[ "$(wc -l < "$tmp/versions")" -ge "$(wc -l < "$tmp/calls")" ] && [ "$newest" = 2.32 ] &&
	[ "$(printf '%s\n' "$wanted" 2.32 | sort -V | tail -n 1)" = 2.32 ]
ok $? "libsmartcols 2.32 is enough to build (configure wants $wanted) and to run"

architectures='x86_64 aarch64'
if [ "${1-}" = --build ]; then
	architectures=$(uname -m)
	cd "$top_builddir" || exit 1
	build() {
		CUDA_HOME=$cuda python3 "$top_srcdir/tools/wheel/build.py" --work wheel --out wheel/dist "$@" > "$tmp/build.log" 2>&1
	}
	if build --compiler; then
		build "$architectures"
		ok $? "the wheel is built for glibc 2.17" || show "$tmp/build.log"
	else
		show "$tmp/build.log"
		number=$((number + 1))
		echo "ok $number # SKIP pip cannot have the compiler"
	fi
fi
for arch in $architectures; do
	for file in .libs/libculimbo.so tools/sim/.libs/libcuda.so.1 tools/culimbo; do
		built=$top_builddir/wheel/$arch/$file
		if [ ! -e "$built" ]; then
			number=$((number + 1))
			echo "ok $number # SKIP $arch: make wheel and make check-glibc have not built ${file##*/}"
			continue
		fi
		newer "$built" > "$tmp/unknown"
		[ ! -s "$tmp/unknown" ]
		ok $? "$arch: the wheel's ${file##*/} needs glibc 2.17 at most" || show "$tmp/unknown"
	done
done
finish
