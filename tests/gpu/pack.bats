#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154
# (top_builddir, top_srcdir and output come from the test environment)
# pack.sh: what it packs runs from another root, and nothing of the originals is changed.

bats_require_minimum_version 1.5.0

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	export XZ_OPT=-0
	pack=${top_srcdir:?}/tests/gpu/pack.sh
	mkdir -p clients/share/sub clients/ucx clients/libs
	printf 'first\n' > "clients/share/sub/a file"
	ln -s 'a file' clients/share/sub/link
	touch clients/share/part.o clients/share/part.a clients/ucx/tool
	cp "$(type -P true)" clients/libs/libsystem.so.1
}

@test "a scene runs from what was packed and unpacked below another root" {
	local build root=$PWD/root before there
	build=$(cd "$top_builddir" && pwd)
	before=$(sha256sum "$build/tests/e2e/scenes" "$build/.libs/libculimbo.so" clients/libs/*)
	run -0 bash "$pack" "$top_builddir" clients to
	[ "${#lines[@]}" -eq 1 ]
	[[ $output =~ ^packed\ [0-9]+\ files\ of\ $build\ and\ of\ share\ ucx:\ [0-9]+\ MiB,\ [0-9.]+\ MiB\ in\ 1\ part\ in\ $PWD/to$ ]]
	[ "$before" = "$(sha256sum "$build/tests/e2e/scenes" "$build/.libs/libculimbo.so" clients/libs/*)" ]
	run -0 bash to/unpack.sh "$root"
	[ "$output" = "build: $root$build; clients: $root$PWD/clients" ]
	there=$root$build
	CULIMBO_DIR='' sh "$top_srcdir/tests/e2e/run.sh" "$there" small-blocks > out
	grep -q '^ok 3' out
	# what all.sh looks for, and beside.sh
	for file in tests/gpu/conformance tests/gpu/include/uthash.h tests/torture/torture tests/bench/share_cycle \
		tests/differential/differential tools/sim/.libs/libcuda.so.1 config.h Makefile; do
		[ -e "$there/$file" ]
	done
	# no object files, no unit tests, no debug data; the originals have that
	[ -z "$(find "$root" -name '*.o' -o -name '*.a' -o -name '*.lo' -o -name 'test_*')" ]
	[ -n "$(find "$build/tests/e2e" -name '*.o')" ]
	[ "$(stat -c %s "$there/tests/e2e/scenes")" -lt "$(stat -c %s "$build/tests/e2e/scenes")" ]
	cd "$root/$BATS_TEST_TMPDIR/clients"
	[ "$(cat share/sub/link)" = first ]
	[ -e ucx/tool ] && ./libs/libsystem.so.1
}

@test "of the clients only those that are named, the system libraries with them, in parts" {
	run -0 env PACK_PART=300000 bash "$pack" "$top_builddir" clients to share
	[[ $output == *" and of share: "*" parts in "* ]]
	[ "$(find to -name 'part-*' -size +300000c | wc -l)" -eq 0 ]
	[ "$(find to -name 'part-*' | wc -l)" -gt 1 ]
	bash to/unpack.sh root
	[ -e "root/$PWD/clients/share/sub/a file" ] && [ -e "root/$PWD/clients/libs/libsystem.so.1" ]
	[ ! -e "root/$PWD/clients/ucx" ]
	# parts of an earlier time go
	run -0 bash "$pack" "$top_builddir" - to
	[[ $output == *" and of no client: "*" in 1 part in "* ]]
	[ "$(find to -name 'part-*' | wc -l)" -eq 1 ]
}

@test "what is no finished build, or one with a sanitizer, or no client is refused, and nothing is packed" {
	run -1 bash "$pack" clients clients to
	[[ $output == *"is no finished build tree"* ]]
	run -1 bash "$pack" "$top_builddir" clients to other
	[[ $output == *"there is no folder other in "* ]]
	mkdir -p fake/tools fake/.libs
	touch fake/tools/culimbo fake/.libs/libculimbo.so
	chmod +x fake/tools/culimbo fake/.libs/libculimbo.so
	echo 'CULIMBO_SANITIZE =  -fsanitize=address' > fake/Makefile
	run -1 bash "$pack" fake clients to
	[[ $output == *"is built with -fsanitize=address"* ]]
	[ -z "$(ls to)" ]
}

@test "if the compiler does not find uthash.h, that is said" {
	local file

	mkdir -p fake/.libs fake/tools/sim/.libs fake/tests/{bench,differential,e2e,gpu,torture}
	for file in tools/culimbo .libs/libculimbo.so tests/e2e/{scenes,actor,actor_linked} tests/gpu/conformance \
		tests/bench/share_cycle tests/differential/differential tests/torture/torture; do
		cp "$(type -P true)" "fake/$file"
	done
	run -1 env CC=false bash "$pack" fake - to
	[ "$output" = 'pack.sh: there is no uthash.h' ]
}
