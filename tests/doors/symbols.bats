#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# libculimbo.so exports exactly the symbols in the list.
load common.bash

hooked() {
	printf '%s\n' '#include "shim/driver/calls.h"' \
		'#define X(symbol, ...) DOOR #symbol' 'CL_HOOKED_CALLS(X)' |
		$CC -E $INCLUDES -x c - | grep -o 'DOOR "[A-Za-z0-9_]*"' | tr -d '"' | sed 's/DOOR //'
}

@test "exports the hooked calls, dlsym, the ends of a process and culimbo.h, and nothing else" {
	wanted=$( (
		hooked | sed 's/$/@CULIMBO_DOOR/'
		printf '%s\n' CULIMBO_DOOR dlsym _exit _Exit quick_exit
		grep -o '^[a-z].*[ *]culimbo_[a-z_]*(' "$top_srcdir/preload/culimbo.h" |
			grep -v typedef | grep -o 'culimbo_[a-z_]*'
	) | sort)
	[ "$(echo "$wanted" | wc -l)" -gt 30 ]
	# symbols of a sanitizer or a profiler are not ours
	same "$wanted" "$(nm -D --defined-only "$LIBRARY" | awk '{ print $3 }' |
		grep -v '^__\(asan\|odr_asan\|tsan\|ubsan\|gcov\)' | sort)"
}

@test "needs nothing but libc" {
	needed=$(readelf -d "$LIBRARY" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -v 'lib[atu]b*san')
	echo "$needed"
	[ -n "$needed" ]
	[ -z "$(echo "$needed" | grep -v '^libc\.so\|^ld-linux\|^libdl\.so\|^libpthread\.so')" ]
	if ldd --version | head -1 | awk '{ split($NF, v, "."); exit !(v[2] >= 34) }'; then
		[ -z "$(echo "$needed" | grep 'libdl\|libpthread')" ]
	fi
}

@test "takes nothing that is not glibc's, binds at load, stays loaded, has no executable stack" {
	undefined=$(nm -D --undefined-only "$LIBRARY" | grep -v ' w ' | awk '{ print $2 }')
	echo "$undefined"
	[ -z "$(echo "$undefined" | grep -v '@GLIBC_\|^__[atu]b*san')" ]
	readelf -d "$LIBRARY" | grep -q 'NOW'
	readelf -d "$LIBRARY" | grep -q 'NODELETE'
	readelf -lW "$LIBRARY" | grep 'GNU_STACK' | grep -q 'RW '
	! readelf -d "$LIBRARY" | grep -q TEXTREL
}

# Prints the GNU properties of an object, by name.
properties() {
	readelf -nW "$1" | grep 'Properties:'
}

@test "the assembly of both processors assembles; what has no landing pads does not say it has" {
	command -v clang > /dev/null || skip "no clang, which assembles for both"
	# only this of cuda.h: it includes the C library's headers, which are not there for the other processor
	# shellcheck disable=SC2086
	version=$(echo CUDA_VERSION | $CC $INCLUDES -imacros cuda.h -E -P - | tail -n 1)
	for cpu in x86_64 aarch64; do
		for file in preload/dlsym_thunk_$cpu preload/stubs_hook preload/stubs_link tools/sim/stubs; do
			# shellcheck disable=SC2086
			clang --target=$cpu-linux-gnu $INCLUDES -DCUDA_VERSION="$version" -c "$top_srcdir/$file.S" \
				-o "$BATS_TEST_TMPDIR/$cpu.o"
			readelf -SW "$BATS_TEST_TMPDIR/$cpu.o" | grep -q 'note.GNU-stack'
			said=$(properties "$BATS_TEST_TMPDIR/$cpu.o")
			echo "$file $said"
			[[ $said == *SHSTK* || $said == *PAC* ]]
			[[ $file == preload/dlsym_thunk_* || $said != *IBT* && $said != *BTI* ]]
		done
	done
}

@test "built for landing pads and shadow stacks it is marked for the second alone" {
	case $(uname -m) in
	x86_64) flag=-fcf-protection=full wanted=SHSTK never=IBT ;;
	*) flag=-mbranch-protection=standard wanted=PAC never=BTI ;;
	esac
	cd "$BATS_TEST_TMPDIR"
	# shellcheck disable=SC2086
	$CC $INCLUDES -O2 -fPIC $flag -c "$top_srcdir/preload/hook_ipc.c" "$top_srcdir"/preload/stubs_*.S \
		"$top_srcdir/preload/dlsym_thunk_$(uname -m).S"
	[[ $(properties hook_ipc.o) == *$never* ]] || skip "this compiler marks nothing"
	$CC -r -nostdlib -o all.o ./*.o
	said=$(properties all.o)
	echo "$said"
	[[ $said == *$wanted* && $said != *$never* ]]
}

@test "what a program gets can be patched, by each compiler, at -O0 and -O2" {
	for compiler in gcc clang; do
		command -v $compiler > /dev/null && [[ $($compiler -dumpmachine) == "$(uname -m)"* ]] || continue
		for level in O0 O2; do
			CC=$compiler build_stubbed $level
			run "$top_builddir/tests/patch/decode" libculimbo.so "$T/libculimbo-stubbed-$level.so"
			echo "$compiler -$level: $output"
			[ "$status" -eq 0 ]
			[ "$(grep -c '^ok' <<< "$output")" -eq 4 ]
			[ "$(grep -c '^not ok' <<< "$output")" -eq 0 ]
			rm "$T/libculimbo-stubbed-$level.so"
		done
	done
}
