#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# beside.sh [--gpu] [BUILD_DIR]: culimbo built at -O0, and culimbo next to other
# preloaded libraries.  Prints TAP.
#
#  1. Symbol look-ups of a second library, including RTLD_NEXT, find the same
#     with and without the preload.  tests/doors/probe.c and asker.c make the
#     look-ups.  Two libraries are tested: the one of the build tree and one
#     compiled from the same sources at -O0.
#  2. End-to-end scenes run with the -O0 library; with jemalloc and tcmalloc
#     preloaded before and after culimbo; and with a second dlsym interposer
#     before and after culimbo.  That interposer either answers itself or passes
#     the call to the next one.
#
# Uses the simulated driver, or this machine's driver with --gpu.  Where the
# allocators are not installed, put them into BUILD_DIR/tests/gpu/libs.  Where
# uthash.h is missing, run fetch-runtimes.sh first.
set -u
export LC_ALL=C
unset LD_PRELOAD "${!CULIMBO_@}"
on=simulated
[ "${1-}" != --gpu ] || { on=gpu; shift; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
top=$(cd "$here/../.." && pwd)
build=$(cd "${1:-${top_builddir:-build}}" 2> /dev/null && pwd) || {
	echo "Bail out! no build tree in ${1:-build}"
	exit 2
}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-beside.XXXXXX") || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' HUP INT TERM
library=$build/.libs/libculimbo.so
case $(uname -m) in
x86_64) first_glibc=GLIBC_2.2.5 ;;
*) first_glibc=GLIBC_2.17 ;;
esac

number=0 failed=0
ok() { # STATUS TEXT
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		failed=$((failed + 1))
		echo "not ok $number - $2"
	fi
}
skip() { # TEXT REASON
	number=$((number + 1))
	echo "ok $number - $1 # SKIP $2"
}

# --------------------------------------------------------------------- building
cuda=${CUDA_HOME-}
[ -n "$cuda" ] || cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$build/Makefile" 2> /dev/null)
[ -e "$cuda/include/cuda.h" ] || cuda=/usr/local/cuda
includes="-D_GNU_SOURCE -I$build -I$top -isystem $cuda/include -idirafter $build/tests/gpu/include"
compile() { # SOURCES AND FLAGS...
	# shellcheck disable=SC2086
	${CC:-cc} -std=gnu11 $includes "$@" >> "$tmp/cc.log" 2>&1
}
compile -O0 -g -fPIC -fvisibility=hidden -shared -o "$tmp/libculimbo.so" \
	"$top"/preload/*.c "$top/preload/dlsym_thunk_$(uname -m).S" "$top"/preload/stubs_*.S \
	"$top"/shim/*.c "$top"/shim/*/*.c \
	-Wl,--version-script="$top/preload/libculimbo.map" -Wl,-z,now -Wl,-z,nodelete -Wl,-z,defs \
	-static-libgcc -Wl,--wrap=_Unwind_Find_FDE -ldl -lpthread
ok $? "the library builds at -O0"
compile -O2 -o "$tmp/probe" "$top/tests/doors/probe.c" -ldl &&
	compile -O2 -fPIC -shared -o "$tmp/asker.so" "$top/tests/doors/asker.c" &&
	compile -O2 -fPIC -shared -o "$tmp/second-tail.so" "-DFIRST_GLIBC=\"$first_glibc\"" \
		"$top/tests/doors/second_dlsym.c" &&
	compile -O2 -fPIC -shared -o "$tmp/second-chain.so" "-DFIRST_GLIBC=\"$first_glibc\"" \
		-DDOORS_CHAIN "$top/tests/doors/second_dlsym.c"
ok $? "the programs of tests/doors build"
[ ! -s "$tmp/cc.log" ] || sed 's/^/#   /' "$tmp/cc.log" | head -n 30

# ---------------------------------------------------------------------- look-ups
# Prints a look-up's results in a form that can be compared: the driver's and culimbo's addresses
# become one word, and the count of the interposer's calls is removed.
alike() {
	sed '/^second dlsym /d; s/ lib\(culimbo\.so\|cuda\.so[.0-9]*\)+.*/ DRIVER/'
}
ask() { # PRELOADS ARGUMENTS...
	local preload=$1
	shift
	[ $on = gpu ] || local -x LD_LIBRARY_PATH=$build/tools/sim/.libs
	LD_PRELOAD=$preload timeout 60 "$tmp/probe" "$@" 2>&1 | alike
}
general="next:malloc main:malloc default:malloc next:dlsym next:nothing default:nothing next:free
	next:cuA default:cuNoSuchCall error next:puts error"
driver="open:libcuda.so.1 lib:cuMemAlloc_v2 lib:cuMemFree_v2 lib:cuIpcOpenMemHandle_v2 lib:cuMemAlloc
	lib:cuGetProcAddress_v2 lib:cuInit lib:cuNoSuchCall error next:cuMemFree_v2 default:cuMemFree_v2
	openg:libcuda.so.1 default:cuMemAlloc_v2 next:cuMemAlloc_v2 main:cuMemFreeAsync_ptsz"
n_asked=0
same_as_bare() { # TEXT BEFORE AFTER ARGUMENTS...
	local text=$1 before=$2 after=$3 bare with ours wrong=0
	shift 3
	bare=$(ask "$before:$after" "$@")
	[[ $bare == *"+0x"* || $bare == *" DRIVER"* ]] || wrong=1
	for ours in "$library" "$tmp/libculimbo.so"; do
		with=$(ask "$before:$ours:$after" "$@")
		[ "$with" = "$bare" ] || {
			wrong=1
			echo "# LD_PRELOAD=$before:$ours:$after"
			diff <(echo "$bare") <(echo "$with") | sed 's/^/#   /'
		}
	done
	n_asked=$((n_asked + $(wc -l <<< "$bare")))
	ok $wrong "$text"
}
for names in general driver; do
	# shellcheck disable=SC2086
	{
		what="a library's look-ups give the same as without culimbo, at -O2 and -O0 ($names names)"
		same_as_bare "$what, asked by the program" "" "" ${!names//next:dlsym/}
		same_as_bare "$what, by a library preloaded before culimbo" "$tmp/asker.so" "" who:"$tmp/asker.so" ${!names//next:dlsym/}
		same_as_bare "$what, by a library preloaded after culimbo" "" "$tmp/asker.so" who:"$tmp/asker.so" ${!names}
		same_as_bare "$what, by a library opened with dlopen" "" "" who:"$tmp/asker.so" ${!names//next:dlsym/}
		for second in tail chain; do
			same_as_bare "$what, beside a second dlsym ($second) before culimbo" \
				"$tmp/asker.so:$tmp/second-$second.so" "" who:"$tmp/asker.so" ${!names//next:dlsym/}
			same_as_bare "$what, beside a second dlsym ($second) after culimbo" \
				"$tmp/asker.so" "$tmp/second-$second.so" who:"$tmp/asker.so" ${!names//next:dlsym/}
		done
	}
done
echo "# $n_asked look-ups compared, with each of two libraries"

# ------------------------------------------------------------------------ scenes
# Makes a build tree whose culimbo is LIBRARY, or preloads a second library before or after it.
shadow() { # NAME LIBRARY [before|after LIBRARY]
	local dir=$tmp/$1
	mkdir -p "$dir/tools/sim" "$dir/.libs" "$dir/real/tools/sim" "$dir/real/.libs" || return
	for at in "$dir" "$dir/real"; do
		cp "$2" "$at/.libs/libculimbo.so" && ln -s "$build/tools/sim/.libs" "$at/tools/sim/.libs"
	done
	ln -s "$build/tests" "$dir/tests"
	cp "$build/tools/culimbo" "$dir/real/tools/culimbo"
	if [ $# -eq 2 ]; then
		cp "$build/tools/culimbo" "$dir/tools/culimbo"
		return
	fi
	# the inner shell expands it
	case $3 in
	after) printf '#!/bin/sh\nLD_PRELOAD=%s exec "%s" "$@"\n' "$4" "$dir/real/tools/culimbo" ;;
	before)
		printf '#!/bin/bash\noptions=()\nwhile [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done\nshift\n'
		printf 'exec "%s" "${options[@]}" -- sh -c '\''LD_PRELOAD=%s:$LD_PRELOAD exec "$@"'\'' sh "$@"\n' \
			"$dir/real/tools/culimbo" "$4"
		;;
	esac > "$dir/tools/culimbo"
	chmod +x "$dir/tools/culimbo"
}
play() { # NAME TEXT PATTERN
	local args=()
	[ $on = simulated ] || args=(--gpu)
	timeout -k 5 200 sh "$top/tests/e2e/run.sh" "${args[@]}" "$tmp/$1" "$3" > "$tmp/$1.tap" 2>&1
	local status=$? good
	good=$(grep -c '^ok' "$tmp/$1.tap")
	[ $status -eq 0 ] && [ "$good" -gt 0 ]
	ok $? "$2: $good assertions hold in scenes $3"
	[ $status -eq 0 ] || grep -vE '^ok' "$tmp/$1.tap" | head -n 40 | sed 's/^/#   /'
}
shadow O0 "$tmp/libculimbo.so"
play O0 "the library at -O0" "reuse-*"
play O0 "the library at -O0" "[esf]*-small"
find_library() { # NAME: prints the path or name to put into LD_PRELOAD
	local at=$build/tests/gpu/libs/$1
	[ -e "$at" ] || at=$1
	[ -z "$(LD_PRELOAD=$at sh -c : 2>&1)" ] && echo "$at"
}
for allocator in libjemalloc.so.2 libtcmalloc_minimal.so.4; do
	if ! found=$(find_library $allocator); then
		skip "under $allocator" "it is not installed, nor in BUILD_DIR/tests/gpu/libs"
		continue
	fi
	for where in before after; do
		shadow "$where-$allocator" "$library" $where "$found"
		play "$where-$allocator" "$allocator preloaded $where culimbo" "reuse-*"
	done
done
# Not tested: an interposer that comes first and answers itself.  It hides culimbo from dlsym.
export DOORS_QUIET=1
for pair in after:tail after:chain before:chain; do
	where=${pair%:*} second=${pair#*:}
	shadow "$where-$second" "$library" "$where" "$tmp/second-$second.so"
	play "$where-$second" "a second dlsym interposer ($second) $where culimbo" "reuse-*"
done
echo "1..$number"
[ $failed -eq 0 ]
