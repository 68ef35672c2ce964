#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Under the preload dlsym finds the same as without it, for every caller and every handle,
# and dlerror() says the same.  Only the driver's addresses differ.  This holds at -O0 too,
# where a dlsym written in C would itself count as the caller.
load common.bash

setup_file() {
	build_driver
	build_probe
	build_stubbed O0
	build_stubbed O2
	build_library second-tail.so "-DFIRST_GLIBC=\"$FIRST_GLIBC\"" "$HERE/second_dlsym.c"
	build_library second-chain.so "-DFIRST_GLIBC=\"$FIRST_GLIBC\" -DDOORS_CHAIN" "$HERE/second_dlsym.c"
	# a program that is linked with libcuda
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -O2 -o "$T/probe-linked" "$HERE/probe.c" -Wl,--no-as-needed \
		"$T/driver/libcuda.so.1" -ldl
}

setup() {
	export LD_LIBRARY_PATH=$T/driver
}

each_library() {
	printf '%s\n' "$T/libculimbo-stubbed-O0.so" "$T/libculimbo-stubbed-O2.so"
	[ ! -e "$LIBRARY" ] || echo "$LIBRARY"
}

# Replaces the driver's addresses and ours by one word.
alike() {
	sed 's/ lib\(culimbo.*\.so\|cuda\.so\.1\)+.*/ DRIVER/'
}

# as_bare "BEFORE" "AFTER" PROGRAM ARGS: the output is the same with our library between the
# preloads BEFORE and AFTER
as_bare() {
	local before=$1 after=$2 bare with
	shift 2
	bare=$(LD_PRELOAD=$before:$after "$@" 2>&1 | alike)
	# it has run
	[[ $bare == *" none: "* || $bare == *"+0x"* || $bare == *" DRIVER"* ]] || { echo "$bare" && return 1; }
	for library in $(each_library); do
		with=$(LD_PRELOAD=$before:$library:$after "$@" 2>&1 | alike)
		same "$bare" "$with" || { echo "LD_PRELOAD=$before:$library:$after $*" && return 1; }
	done
}

general="default:malloc next:malloc main:malloc default:dlsym next:nothing default:nothing
	main:nothing default:dlerror next:free next:cuda_like next:cu next:c next:cuA
	default:cuNoSuchCall main:cuNoSuchCall error next:puts error"

@test "names that are no business of ours, asked by the program" {
	# names that our library defines (dlsym, _exit) are left out: the program finds ours first
	set -- ${general//default:dlsym/}
	as_bare "" "" "$T/probe" "$@"
}

@test "names that are no business of ours, asked by a library: preloaded, opened, linked" {
	set -- ${general//default:dlsym/}
	as_bare "" "" "$T/probe" who:"$T/asker.so" "$@" default:doors_ask next:doors_ask
	as_bare "$T/asker.so" "" "$T/probe" who:"$T/asker.so" "$@" default:doors_ask next:doors_ask
	as_bare "" "$T/asker.so" "$T/probe" who:"$T/asker.so" "$@" default:doors_ask next:doors_ask
	as_bare "" "" "$T/probe" who:"$T/asker-linked.so" "$@"
}

@test "under jemalloc and tcmalloc, before us and after us" {
	found=0
	for allocator in libjemalloc.so.2 libtcmalloc_minimal.so.4; do
		LD_PRELOAD=$allocator "$T/probe" default:malloc 2>&1 | grep -q "^default:malloc ${allocator%%.*}" || continue
		found=1
		for args in "default:malloc next:malloc next:free next:calloc" \
			"who:$T/asker.so default:malloc next:malloc next:free next:aligned_alloc"; do
			# shellcheck disable=SC2086
			as_bare "$allocator" "" "$T/probe" $args
			# shellcheck disable=SC2086
			as_bare "" "$allocator" "$T/probe" $args
			# shellcheck disable=SC2086
			as_bare "$T/asker.so:$allocator" "" "$T/probe" $args
			# shellcheck disable=SC2086
			as_bare "$T/asker.so" "$allocator" "$T/probe" $args
		done
	done
	[ $found = 1 ] || skip "neither allocator is installed"
}

@test "beside a second dlsym interposer, before us and after us" {
	set -- ${general//default:dlsym/}
	for second in second-tail.so second-chain.so; do
		for who in who: "who:$T/asker.so"; do
			as_bare "$T/$second" "" "$T/probe" "$who" "$@"
			as_bare "" "$T/$second" "$T/probe" "$who" "$@"
			as_bare "$T/asker.so:$T/$second" "" "$T/probe" "$who" "$@"
			as_bare "$T/asker.so" "$T/$second" "$T/probe" "$who" "$@"
		done
	done
}

@test "the second interposer sees look-ups of hooked names, and what it answers itself stays" {
	for library in $(each_library); do
		said=$(LD_PRELOAD=$library:$T/second-tail.so "$T/probe" open:libcuda.so.1 \
			lib:cuMemFree_v2 lib:cuEventCreate call 2>&1)
		echo "$said"
		[[ $said == *"second dlsym cuMemFree_v2"* ]]
		[[ $said == *"lib:cuMemFree_v2 $(basename "$library")+"* ]]
		[[ $said == *"lib:cuEventCreate second-tail.so+"* ]]
		[[ $said == *"second cuEventCreate" ]]
		# the other interposer comes first and calls us
		said=$(LD_PRELOAD=$T/second-chain.so:$library "$T/probe" open:libcuda.so.1 lib:cuMemFree_v2 2>&1)
		[[ $said == *"lib:cuMemFree_v2 $(basename "$library")+"* ]]
	done
}

@test "hooked names when no libcuda is loaded: not found, in the same words" {
	for who in who: "who:$T/asker.so"; do
		for way in default next main; do
			as_bare "" "" "$T/probe" "$who" $way:cuMemAlloc_v2 $way:cuGetProcAddress error
			as_bare "$T/asker.so" "" "$T/probe" "$who" $way:cuMemAlloc_v2 error
		done
	done
	said=$(LD_PRELOAD=$LIBRARY "$T/probe" default:cuMemAlloc_v2)
	[[ $said == "default:cuMemAlloc_v2 none: "*"undefined symbol: cuMemAlloc_v2" ]]
}

names="cuMemAlloc_v2 cuMemFree_v2 cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuMemFreeAsync_ptsz cuGetProcAddress_v2 cuDriverGetVersion cuMemAlloc cuNoSuchCall"

@test "libcuda opened for itself alone: by its handle, and not by the others" {
	for who in who: "who:$T/asker.so" "who:$T/asker-linked.so"; do
		for name in $names; do
			as_bare "" "" "$T/probe" "$who" open:libcuda.so.1 lib:$name default:$name \
				next:$name main:$name error
		done
	done
}

@test "libcuda opened for all, or linked: by every handle" {
	for who in who: "who:$T/asker.so" "who:$T/asker-linked.so"; do
		for name in $names; do
			as_bare "" "" "$T/probe" "$who" openg:libcuda.so.1 lib:$name default:$name \
				next:$name main:$name error
			as_bare "" "" "$T/probe-linked" "$who" default:$name next:$name main:$name error
			as_bare "$T/asker.so" "" "$T/probe-linked" "$who" default:$name next:$name error
			as_bare "" "$T/asker.so" "$T/probe-linked" "$who" default:$name next:$name error
		done
	done
}

@test "what is found is the hook, by each handle, and the driver's own with CULIMBO_DISABLE=1" {
	for library in $(each_library); do
		for ask in "open:libcuda.so.1 lib:" "openg:libcuda.so.1 default:" "openg:libcuda.so.1 next:" \
			"openg:libcuda.so.1 main:" "openg:libcuda.so.1 who:$T/asker.so default:" \
			"who:$T/asker-linked.so default:" "who:$T/asker-linked.so next:"; do
			# shellcheck disable=SC2086
			said=$(LD_PRELOAD=$library "$T/probe" ${ask}cuMemFree_v2)
			echo "$ask $said"
			[[ $said == *" $(basename "$library")+"* ]]
			# shellcheck disable=SC2086
			said=$(CULIMBO_DISABLE=1 LD_PRELOAD=$library "$T/probe" ${ask}cuMemFree_v2)
			[[ $said == *" libcuda.so.1+"* ]]
		done
		# a preloaded library, before and after us
		for preload in "$T/asker.so:$library" "$library:$T/asker.so"; do
			said=$(LD_PRELOAD=$preload "$T/probe-linked" who:"$T/asker.so" next:cuMemFree_v2)
			[[ $said == *" $(basename "$library")+"* ]]
		done
	done
}

@test "32-bit forms, unknown names and forms newer than the list are never ours" {
	for name in cuMemAlloc cuMemFree cuIpcOpenMemHandle_v3 cuDriverGetVersion; do
		said=$(LD_PRELOAD=$LIBRARY "$T/probe" open:libcuda.so.1 lib:$name)
		[[ $said == "lib:$name libcuda.so.1+"* ]]
		same "$said" "$("$T/probe" open:libcuda.so.1 lib:$name)"
	done
}

@test "our own exported calls are found by no look-up, not even through our own handle" {
	for library in $(each_library); do
		said=$(LD_PRELOAD=$library "$T/probe" open:"$library" lib:cuMemFree_v2)
		echo "$said"
		[[ $said == "lib:cuMemFree_v2 none: "* ]]
	done
}

@test "many threads look up at once, as the first" {
	cat > "$BATS_TEST_TMPDIR/threads.c" <<-'EOF'
		#include <dlfcn.h>
		#include <pthread.h>
		#include <stdio.h>
		static void *lib;
		static pthread_barrier_t start;
		static void *look(void *unused)
		{
			pthread_barrier_wait(&start);
			return dlsym(lib, "cuMemFree_v2");
		}
		int main(void)
		{
			pthread_t t[32];
			void *first = NULL, *found;
			lib = dlopen("libcuda.so.1", RTLD_NOW);
			pthread_barrier_init(&start, NULL, 32);
			for (int i = 0; i < 32; i++)
				pthread_create(&t[i], NULL, look, NULL);
			for (int i = 0; i < 32; i++) {
				pthread_join(t[i], &found);
				if (i && found != first)
					return 1;
				first = found;
			}
			return !first;
		}
	EOF
	$CC -D_GNU_SOURCE -o "$BATS_TEST_TMPDIR/threads" "$BATS_TEST_TMPDIR/threads.c" -pthread -ldl
	for i in $(seq 50); do
		LD_PRELOAD=$T/libculimbo-stubbed-O2.so "$BATS_TEST_TMPDIR/threads"
	done
}
