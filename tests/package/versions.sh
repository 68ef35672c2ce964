#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests two versions in one CULIMBO_DIR; prints TAP.  One is this build; the other's files have another
# layout.  Whichever exports, neither reads the other's files, the importer says so once, and its
# program goes on as without culimbo.  The scene pool-older (tests/e2e) shares blocks of pools with that
# version, with one that stamps their export data in another way, and with one that knows no pools.  `make check-package` runs it: it builds libraries.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
old=$top_builddir/.libs/libculimbo.so
culimbo=$top_builddir/tools/culimbo
sharer=$top_builddir/tests/tools/sharer
export CULIMBO_DIR="$tmp/limbo" CULIMBO_SIM_DIR="$tmp/sim" CULIMBO_REPORT=off CULIMBO_GRACE=1h
mkdir "$tmp/sim"

${MAKE:-make} -C "$top_builddir" dist-gzip > "$tmp/dist.log" 2>&1 &&
	archive=$(cd "$top_builddir" && ls -t "$PWD"/culimbo-*.tar.gz | head -n 1) &&
	tar -xf "$archive" -C "$tmp" && mv "$tmp"/culimbo-* "$tmp/tree" &&
	layout=$(sed -n 's/^#define CL_LAYOUT_VERSION \([0-9]*\)u$/\1/p' "$tmp/tree/shim/shm/layout.h") &&
	(cd "$tmp/tree" && unset MAKEFLAGS MFLAGS MAKELEVEL &&
		./configure -q --disable-dependency-tracking --with-cuda="$(sed -n 's/^CUDA_HOME_DIR = //p' "$top_builddir/Makefile")" &&
		# this version's hooks of pool pointers only call the driver
		sed 's/cl_pool_pointer_\(export\|import\)(/cl_driver.cuMemPool\1Pointer(/
			s/cuMemPoolexport/cuMemPoolExport/; s/cuMemPoolimport/cuMemPoolImport/; s/(dptr, pool, data, NULL)/(dptr, pool, data)/' \
			preload/hook_ipc.c > hook_ipc.c && ! cmp -s hook_ipc.c preload/hook_ipc.c && mv hook_ipc.c preload/hook_ipc.c &&
		make -s -j"$(nproc)" libculimbo.la && cp .libs/libculimbo.so "$tmp/without-pools.so" &&
		tar -xf "$archive" --strip-components=1 --wildcards '*/preload/hook_ipc.c' && make -s clean &&
		sed -i "s/^#define CL_POOL_VERSION 1u/#define CL_POOL_VERSION 2u/" shim/shm/pool_data.h &&
		make -s -j"$(nproc)" libculimbo.la && cp .libs/libculimbo.so "$tmp/other-stamps.so" &&
		tar -xf "$archive" --strip-components=1 --wildcards '*/shim/shm/pool_data.h' && make -s clean &&
		sed -i "s/^#define CL_LAYOUT_VERSION .*/#define CL_LAYOUT_VERSION $((layout + 1))u/" shim/shm/layout.h &&
		make -s -j"$(nproc)" libculimbo.la) > "$tmp/build.log" 2>&1 < /dev/null
ok $? "a library with layout $((layout + 1)) beside that with layout $layout, one without pools, one with other stamps" || { show "$tmp/build.log"; finish; }
new=$tmp/tree/.libs/libculimbo.so
sim=$top_builddir/tools/sim/.libs

# shares EXPORTER-LIBRARY IMPORTER-LIBRARY: two opens of two blocks, with a free between; leaves $tmp/{P,C}.{out,err}
shares() {
	rm -rf "$CULIMBO_DIR" "$tmp"/*.in "$tmp"/*.out
	mkfifo "$tmp/P.in" "$tmp/P.out" "$tmp/C.in" "$tmp/C.out"
	LD_LIBRARY_PATH=$sim LD_PRELOAD=$1 timeout 60 "$sharer" < "$tmp/P.in" > "$tmp/P.out" 2> "$tmp/P.err" &
	P=$!
	LD_LIBRARY_PATH=$sim LD_PRELOAD=$2 timeout 60 "$sharer" < "$tmp/C.in" > "$tmp/C.out" 2> "$tmp/C.err" &
	C=$!
	exec 3> "$tmp/P.in" 4< "$tmp/P.out" 5> "$tmp/C.in" 6< "$tmp/C.out"
	answer='' all=''
	for line in '3 4 export 1024 2' '5 6 open' '3 4 export 2048 1' '5 6 open' '3 4 free 1'; do
		# shellcheck disable=SC2086 # words
		set -- $line
		case $line in *open) set -- "$@" $answer ;; esac
		to=$1 from=$2
		shift 2
		eval "echo \"\$*\" >&$to; read -r answer <&$from"
		all="$all|${answer%% *}"
		answer=${answer#ok}
	done
	"$culimbo" ps > "$tmp/ps" 2> "$tmp/ps.err"
	exec 3>&- 5>&-
	wait "$P"
	ended=$?
	wait "$C" && [ $ended -eq 0 ]
	ended=$?
	exec 4<&- 6<&-
}
for way in "$old $new" "$new $old"; do
	# shellcheck disable=SC2086 # two words
	shares $way
	what="exporter of $([ "${way%% *}" = "$old" ] && echo "layout $layout, importer of $((layout + 1))" || echo "layout $((layout + 1)), importer of $layout")"
	[ "$all" = "|ok|ok|ok|ok|ok" ] && [ $ended -eq 0 ]
	ok $? "$what: both programs go on ($all)" || { show "$tmp/P.err"; show "$tmp/C.err"; }
	[ "$(grep -c 'made by another version of culimbo' "$tmp/C.err")" = 1 ] && [ "$(wc -l < "$tmp/C.err")" = 1 ]
	ok $? "$what: the importer says it once" || show "$tmp/C.err"
	[ ! -s "$tmp/P.err" ]
	ok $? "$what: the exporter has nothing to say" || show "$tmp/P.err"
	grep -q 'made by another version of culimbo' "$tmp/ps" "$tmp/ps.err"
	ok $? "$what: culimbo ps says whose file it cannot read" || { show "$tmp/ps"; show "$tmp/ps.err"; }
done

for library in "$new" "$tmp/without-pools.so" "$tmp/other-stamps.so"; do
	case $library in *without-pools*) with='one without pools' ;; *stamps*) with='one with other stamps' ;; *) with="layout $((layout + 1))" ;; esac
	E2E_OLDER=$library "$top_srcdir/tests/e2e/run.sh" "$top_builddir" pool-older > "$tmp/scene" 2>&1 < /dev/null
	ok $? "scene pool-older, with $with" || show "$tmp/scene"
	grep '^# ours has' "$tmp/scene"
done
finish
