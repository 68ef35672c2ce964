# SPDX-License-Identifier: Apache-2.0
# Builds the programs and libraries of this folder's tests, in bats' scratch folder.
# Sourced by each .bats file; needs top_builddir, top_srcdir (tests/Makefile.inc).
: "${top_builddir:?run by make check}" "${top_srcdir:?run by make check}"
T=$BATS_FILE_TMPDIR
HERE=$top_srcdir/tests/doors
LIBRARY=$top_builddir/.libs/libculimbo.so
SIM=$top_builddir/tools/sim/.libs
CC=${CC:-cc}
INCLUDES="-D_GNU_SOURCE -I$top_builddir -I$top_srcdir $(sed -n 's/^CUDA_CPPFLAGS = //p' "$top_builddir/Makefile")"
WARN="-std=gnu11 -Wall -Wextra -Wno-unused-parameter -Wno-deprecated-declarations -Werror"
case $(uname -m) in
x86_64) FIRST_GLIBC=GLIBC_2.2.5 ;;
*) FIRST_GLIBC=GLIBC_2.17 ;;
esac

# build_library NAME OPTIONS SOURCES...: builds $T/NAME
build_library() {
	local name=$1 options=$2
	shift 2
	mkdir -p "$(dirname "$T/$name")"
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -O2 -fPIC -shared -o "$T/$name" "$@" $options
}

# Builds the driver that prints its calls, and a program linked with it by its path.
# The driver is linked -Bsymbolic, as NVIDIA's is: its calls to itself do not reach our hooks.
build_driver() {
	build_library driver/libcuda.so.1 "-Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic" \
		"$HERE/driver.c" "$HERE/driver_more.c"
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -o "$T/linked" "$HERE/linked.c" "$T/driver/libcuda.so.1"
}

# build_stubbed LEVEL: builds the preload with the shim that prints its calls, at this level.  The first file that needs
# it builds it, in the build folder, and the others take it from there.
build_stubbed() {
	local built=$top_builddir/tests/doors/stubbed-${CC//[^A-Za-z0-9]/_}-$1.so

	mkdir -p "${built%/*}"
	(
		flock 9
		[ -e "$built" ] && [ -z "$(find "$top_srcdir"/{preload,shim,tests/doors} "$top_builddir/config.h" \
			"$top_builddir/Makefile" -type f -newer "$built" -print -quit)" ] && exit
		# shellcheck disable=SC2086
		$CC $WARN $INCLUDES "-$1" -g -fPIC -fvisibility=hidden -shared \
			-o "$built.new" \
			"$top_srcdir"/preload/*.c "$top_srcdir/preload/dlsym_thunk_$(uname -m).S" \
			"$top_srcdir"/preload/stubs_*.S \
			"$top_srcdir"/shim/{driver/driver,base/options,base/log,base/stderr}.c "$HERE/stub_shim.c" \
			-Wl,--version-script="$top_srcdir/preload/libculimbo.map" -Wl,--wrap=_Unwind_Find_FDE -Wl,-z,now \
			-Wl,-z,defs -ldl -lgcc_eh && mv "$built.new" "$built"
	) 9> "$built.lock" && cp "$built" "$T/libculimbo-stubbed-$1.so"
}

build_probe() {
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -O2 -o "$T/probe" "$HERE/probe.c" -ldl
	build_library asker.so "" "$HERE/asker.c"
	[ ! -e "$T/driver/libcuda.so.1" ] ||
		build_library asker-linked.so -DDOORS_NEEDS_DRIVER "$HERE/asker.c" "$T/driver/libcuda.so.1"
}

build_route() {
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -o "$T/route" "$HERE/route.c" -ldl
}

# Fails and shows both sides if they differ.
same() {
	[ "$1" = "$2" ] && return 0
	diff <(echo "$1") <(echo "$2")
	return 1
}
