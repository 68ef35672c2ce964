#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Cross-builds culimbo for aarch64 and tests it under qemu-user: the unit tests, end-to-end
# scenes on the simulated driver, the dlsym thunk at -O0 and -O2, and patches of the functions
# that programs get.  That these can be patched is also tested of what gcc and clang make at -O0
# and -O2.  Also runs UCX's patches if fetch-ucx.sh has put UCX into
# BUILD_DIR/aarch64/tests/patch/ucx.
#
#	run.sh [BUILD_DIR [all]]	(default: build; make check-aarch64)
#
# Builds in BUILD_DIR/aarch64, with the CUDA headers that BUILD_DIR is configured with.
# It needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static.  It downloads
# arm64 cmocka and libsmartcols from Debian into BUILD_DIR/aarch64/sysroot and installs nothing.
# With "all" it plays every scene, which is slow; without, a choice that takes two minutes.
#
# Programs that start others run in their own user and mount namespace, where qemu is
# registered for aarch64 (binfmt_misc, Linux 6.7).  The machine's own registration is not
# changed.  If there is no such namespace and the machine has not registered qemu, only tests
# that start no program run, and the others are skipped.  Unit tests run outside: they need more users.
#
# What must hold: it writes only to BUILD_DIR/aarch64 and a scratch folder; every step has a
# deadline; each test that qemu-user can't run is listed with its reason.
set -u
export LC_ALL=C
unset LD_PRELOAD "${!CULIMBO_@}"
# The files of killed processes are removed at once: scenes count files.
export CULIMBO_KEEP_DEAD=0

fail()
{
	echo "Bail out! $*"
	exit 1
}

skip_all()
{
	echo "1..0 # SKIP $*"
	exit 0
}

self=$(realpath "${BASH_SOURCE[0]}")
here=$(dirname "$self")
source=$(cd "$here/../.." && pwd) || exit 1
how_much=${2:-some}
case ${1-} in
--*) build= ;;
*) build=$(cd "${1:-${top_builddir:-build}}" 2>/dev/null && pwd) || fail "no build tree in ${1:-build}" ;;
esac
arm=$build/aarch64
root=$arm/sysroot
cross=/usr/aarch64-linux-gnu
loader=$cross/lib/ld-linux-aarch64.so.1
qemu=$(command -v qemu-aarch64-static)
export QEMU_LD_PREFIX=$cross

# ------------------------------------------------------------------ the namespace
register()
{
	local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
	local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'

	mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
		printf '%s' ":culimbo-aarch64:M::$magic:$mask:$qemu:F" \
			>/proc/sys/fs/binfmt_misc/register
}

# Runs COMMAND where aarch64 programs can be executed directly.
inside()
{
	case $where in
	native) "$@" ;;
	namespace) unshare -Urm bash "$self" --inside "$@" ;;
	esac
}

if [ "${1-}" = --inside ]; then
	shift
	register || exit 125
	exec "$@"
fi

# Plays one scene in a folder of its own.  The script calls itself inside the namespace.
if [ "${1-}" = --scene ]; then
	dir=$AARCH64_SCRATCH/$2
	mkdir "$dir" || exit 1
	E2E_SCENE_DIR=$dir CULIMBO_DIR=$dir/limbo CULIMBO_SIM_DIR=$dir/sim CULIMBO_SIM_MEMORY=256MiB \
		CULIMBO_GRACE_BYTES=256MiB \
		timeout -k 5 90 "$E2E_BUILD/tests/e2e/scenes" "$2" >"$dir/result" 2>&1 </dev/null
	echo $? >"$dir/status"
	exit 0
fi

for command in aarch64-linux-gnu-gcc qemu-aarch64-static unshare; do
	command -v "$command" >/dev/null || skip_all "there is no $command"
done
[ -e "$loader" ] || skip_all "there is no $loader (libc6-dev-arm64-cross)"
mkdir -p "$arm" || exit 1
echo 'int main(void) { return 0; }' >"$arm/hello.c"
aarch64-linux-gnu-gcc -o "$arm/hello" "$arm/hello.c" -Wl,--dynamic-linker="$loader" ||
	fail "the cross compiler does not work"
where=no
for way in native namespace; do
	where=$way
	inside "$arm/hello" >/dev/null 2>&1 && break
	where=no
done

# ---------------------------------------------------------------------- building
# Unpacks the arm64 libraries that the command and the unit tests need; installs none.
fetch_libraries()
{
	local apt=$arm/apt deb

	[ -e "$root/done" ] && return
	rm -rf "$apt" "$root"
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$root/usr/include" || return
	: >"$apt/status"
	cat >"$apt/conf" <<-END
		APT::Architecture "$(dpkg --print-architecture)";
		APT::Architectures { "$(dpkg --print-architecture)"; "arm64"; };
		APT::Sandbox::User "";
		Dir::State "$apt";
		Dir::State::status "$apt/status";
		Dir::State::lists "$apt/lists";
		Dir::Cache "$apt/cache";
		Acquire::Retries "2";
		Acquire::http::Timeout "30";
		Acquire::https::Timeout "30";
	END
	export APT_CONFIG=$apt/conf
	(cd "$apt" && timeout 100 apt-get -q update &&
		timeout 60 apt-get -q download {libcmocka0,libcmocka-dev,libsmartcols1}:arm64 \
			{libsmartcols-dev,libdw1,libdw-dev,libelf1,libelf-dev}:arm64 \
			{libncurses-dev,libncursesw6,libtinfo6}:arm64 \
			{zlib1g,liblzma5,libbz2-1.0}:arm64) >"$arm/apt.log" 2>&1 || return
	for deb in "$apt"/*.deb; do
		dpkg-deb -x "$deb" "$root" || return
	done
	rm -rf "$apt"
	# (only headers, which are the same for all machines)
	cp /usr/include/ut*.h "$root/usr/include" && touch "$root/done"
}

libraries=$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu

cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$build/Makefile")

# Configures the tree in the current folder, unless that is done.  The caller's compiler builds for this machine.
configure_it() # FLAGS [CONFIGURE ARGUMENTS]
{
	local flags=$1

	shift
	[ ! -e Makefile ] || [ "$source/configure" -nt config.status ] || return 0
	timeout 200 env -u CC -u CXX -u CFLAGS -u CPPFLAGS -u LDFLAGS "$source/configure" -q --host=aarch64-linux-gnu --with-cuda="$cuda" \
		CFLAGS="$flags" \
		CPPFLAGS="-isystem $root/usr/include -isystem $root/usr/include/aarch64-linux-gnu" \
		LDFLAGS="-L$root/lib/aarch64-linux-gnu -Wl,--dynamic-linker=$loader -Wl,--disable-new-dtags -Wl,-rpath,$libraries -Wl,-rpath-link,$libraries" "$@"
}

make_it()
{
	export PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig
	export PKG_CONFIG_SYSROOT_DIR=$root
	cd "$arm" || return
	configure_it '-g -O1' -C || return
	# (one after the other: "all" starts a make of its own)
	timeout 300 make -s -j"${MAKE_JOBS:-2}" all &&
		timeout 300 make -s -j"${MAKE_JOBS:-2}" tests/e2e/{actor,actor_linked,scenes} \
			tests/patch/{decode,patched} "${units[@]}"
}

# Only what is decoded: the library and the simulated driver, as another compiler makes them.
make_decoded() # FOLDER FLAGS COMPILER
{
	mkdir -p "$1" && cd "$1" && configure_it "$2" CC="$3" &&
		timeout 300 make -s -j"${MAKE_JOBS:-2}" libculimbo.la tools/sim/libcuda.la
}

# ----------------------------------------------------------------------- results
number=0 failures=0
ok()
{
	number=$((number + 1))
	[ "$1" -eq 0 ] || failures=$((failures + 1))
	[ "$1" -eq 0 ] || printf 'not '
	printf 'ok %d - %s\n' "$number" "$2"
}

skip()
{
	number=$((number + 1))
	printf 'ok %d - %s # SKIP %s\n' "$number" "$1" "$2"
}

# Reads TAP from stdin and prints it with new numbers; each name begins with WHERE.
renumber() # WHERE
{
	local line name why

	while IFS= read -r line; do
		case $line in
		'ok '* | 'not ok '*) ;;
		*) continue ;;
		esac
		name=$(sed 's/^\(not \)\?ok \([0-9]* \)\?\(- \)\?//; s/^# *[Ss][Kk][Ii][Pp] *//' <<<"$line")
		why=${cannot[$name]-}
		case $line in
		*'# SKIP'* | *'# skip'*) skip "$1: ${name%% #*}" "${cannot[${name%% #*}]-as on this machine}" ;;
		ok*) ok 0 "$1: $name" ;;
		*) if [ -n "$why" ]; then skip "$1: $name" "$why"; else ok 1 "$1: $name"; fi ;;
		esac
	done
}

# The tests that fail under qemu-user, and why.  They run all the same; those that pass count.
tasks='qemu has a thread of its own in each process, and this counts them'
fork='qemu 7.2 ignores MADV_DONTFORK and MADV_WIPEONFORK'
# (seen: a child reads 1592965 about itself, its parent reads 1592999; natively both are the same)
closed='qemu 7.2 makes up the start time in /proc/self/stat, after a fork the parent'"'"'s; others read the true one, and take it for another process'
python='qemu 7.2 has no process_vm_readv, by which frames are read'
declare -A cannot=(
	[without_a_collector_the_programs_calls_do_its_work]=$tasks
	[without_grace_an_unopened_block_goes_at_once_and_starts_nothing]=$tasks
	[what_was_never_exported_is_the_drivers_matter]=$tasks
	[a_free_that_fails_keeps_the_block]=$tasks
	[callbacks_are_a_bounded_registry]=$tasks
	[the_collector_comes_with_the_first_block_and_takes_no_signal]=$tasks
	[a_forked_child_starts_anew]=$tasks
	[a_release_that_ends_no_context_starts_and_wakes_nobody]=$tasks
	[a_terminal_is_stderr_if_it_is_ours]='qemu 7.2 answers TIOCGSID and leaves the session out'
	[a_new_file_is_private_sparse_locked_and_small]=$fork
	[who_closed_all_descriptors_is_not_reaped]=$closed
	[an_unfinished_file_goes_with_its_maker]=$closed
	[what_a_dead_process_of_another_version_left_goes]=$closed
	[a_child_that_was_forked_unseen_begins_anew]=$fork
	[the_copy_of_a_fork_begins_anew_in_each_call]=$fork
	[the_copy_of_a_fork_begins_anew_in_each_fast_half]=$fork
	[the_copy_of_a_fork_begins_anew_at_each_guard]=$fork
	[a_copy_that_no_handler_saw_knows_the_events_that_it_made_before_it_shares]=$fork
	[no_export_pays_for_the_others]='one call that maps memory costs qemu as much as thousands that do not (seen: 3 and 4 % of all)'
	[more_descriptors_than_there_is_room_for_are_closed]='qemu 7.2 takes more descriptors than its program has room for, and keeps them'
	[a_stack_has_the_frames_of_python_and_those_of_c]=$python
	[another_code_object_at_the_same_address]=$python
	[another_function_at_the_same_address]=$python
	[code_of_the_interpreter_is_no_frame]=$python
	[long_tables_are_read_so_much_and_no_more]=$python
	[names_of_so_many_stacks_are_read_and_no_more]=$python
	[no_python_in_this_thread_or_turned_off]=$python
	[frames_that_lead_in_a_circle]=$python
	[a_subinterpreter]=$python
	[texts_of_other_letters_and_long_ones]=$python
	[texts_that_are_not_what_they_say]=$python
	[paths_have_names]='the name of a process under qemu is qemu'"'"'s'
	[its_descriptor_is_high_and_makes_no_larger_table]='it execs itself, an aarch64 program, which needs binfmt_misc'
)

# --------------------------------------------------------------------- the tests
# (not test_handshake_fence: only real aarch64 cores show a missing fence, qemu on x86 does not)
units=(tests/unit/test_{blocks,collector,contexts,handshake,handshake_bits,handshake_slot}
	tests/unit/test_{imports,imports_contexts,imports_elsewhere}
	tests/unit/test_limbo_{contexts,cost,events,free,grace,holders,retry,short,stale,streams,thread}
	tests/unit/test_{log,report_data,report_data_ends,report_data_misuse,options,python,report,serve,serve_answers,serve_hostile,sides}
	tests/unit/test_shm_{deaths,file,records,refused,room,slots} tests/unit/test_{stack,stderr,view})
# Even "all" leaves these out: scenes that need a device of 1 GiB, which qemu maps slowly, and
# scenes that fork, which the simulated driver notices by MADV_DONTFORK and MADV_WIPEONFORK.
not_here=' in-flight exporter-exits exporter-killed context-ends fork closed-descriptors '
scenes='reuse-linked reuse-dlsym reuse-mixed stale-small errors-small back-small back-inline
	twice own-handle importer-died-before one-of-two-dies own-limbo exec which-driver'

fetch_libraries || skip_all "no libraries of arm64 to be had (see $arm/apt.log)"
if ! make_it >"$arm/make.log" 2>&1; then
	tail -n 20 "$arm/make.log" | sed 's/^/# /'
	fail "the cross build fails (see $arm/make.log)"
fi
echo "# built; aarch64 programs run: $where, by $("$qemu" --version | head -n 1)"

[ "$where" != no ] || cannot[what_was_read_early_holds]='it execs an aarch64 program'
for unit in "${units[@]}"; do
	runner=(timeout -k 5 150 "$qemu")
	# (this test executes itself, and needs no other user)
	[ "$unit" != tests/unit/test_options ] || [ "$where" = no ] || runner=(inside timeout -k 5 150)
	CMOCKA_MESSAGE_OUTPUT=TAP "${runner[@]}" "$arm/$unit" >"$arm/unit.out" 2>"$arm/${unit##*/}.err" </dev/null
	status=$?
	renumber "${unit##*/}" < <(sed 's/^not ok \([0-9]* # SKIP\)/ok \1/' "$arm/unit.out")
	[ "$status" -lt 124 ] || ok 1 "${unit##*/} comes to an end ($status)"
done
skip test_handshake_fence "a missing fence does not show in qemu's code on x86"

# The decoder reads the library and executes none of its code.
printf '#!/bin/sh\nexec %s %s "$@"\n' "$qemu" "$arm/tests/patch/decode" >"$arm/decode"
chmod +x "$arm/decode"
renumber decode.sh < <(timeout -k 5 60 sh "$source/tests/patch/decode.sh" "$arm" "$arm/decode" 2>&1)
for compiler in aarch64-linux-gnu-gcc 'clang --target=aarch64-linux-gnu'; do
	name=${compiler%% *} name=${name#aarch64-linux-gnu-}
	for level in O0 O2; do
		if ! command -v "${compiler%% *}" >/dev/null; then
			skip "decode.sh, $name -$level" "there is no $name"
		elif (make_decoded "$arm/$name-$level" "-$level" "$compiler") >"$arm/$name-$level.log" 2>&1; then
			renumber "decode.sh, $name -$level" < <(timeout -k 5 60 sh "$source/tests/patch/decode.sh" "$arm/$name-$level" "$arm/decode" 2>&1)
		else
			ok 1 "decode.sh, $name -$level: it builds (see $arm/$name-$level.log)"
		fi
	done
done

if [ "$where" = no ]; then
	skip "end-to-end scenes, dlsym, patches" "no binfmt_misc in a namespace here (Linux 6.7), and no qemu registered"
else
	shared=/dev/shm
	[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
	scratch=$(mktemp -d "$shared/culimbo-aarch64.XXXXXX") || exit 1
	trap 'rm -rf "$scratch"' EXIT
	trap 'exit 130' HUP INT TERM
	if [ "$how_much" = all ]; then
		scenes=
		while read -r name _; do
			[[ $not_here == *" $name "* ]] || scenes+=" $name"
		done < <(E2E_SCENE_DIR=$scratch "$qemu" "$arm/tests/e2e/scenes" --list)
	fi
	# shellcheck disable=SC2086 # a list
	printf '%s\n' $scenes | AARCH64_SCRATCH=$scratch E2E_BUILD=$arm \
		inside xargs -P 2 -n 1 bash "$self" --scene
	for name in $scenes; do
		renumber "$name" <"$scratch/$name/result"
		status=$(cat "$scratch/$name/status")
		[ "$status" -eq 0 ] || ok 1 "$name ends well ($status)"
		[ "$status" -eq 0 ] || tail -n 5 "$scratch/$name"/*.err | sed 's/^/# /'
	done
	for name in $not_here; do
		skip "$name" "needs 1 GiB, or MADV_DONTFORK: see run.sh"
	done
	renumber patched.sh < <(inside timeout -k 5 120 sh "$source/tests/patch/patched.sh" "$arm" 2>&1)
	renumber ucx.sh < <(CC="aarch64-linux-gnu-gcc -Wl,--dynamic-linker=$loader" \
		inside timeout -k 5 300 sh "$source/tests/patch/ucx.sh" "$arm" 2>&1)
	# The thunk: lookup.bats builds the preload at -O0 and -O2; it asks $CC and uname.
	mkdir "$scratch/bin"
	printf '#!/bin/sh\n[ "$*" = -m ] && echo aarch64 && exit\nexec /usr/bin/uname "$@"\n' >"$scratch/bin/uname"
	chmod +x "$scratch/bin/uname"
	PATH=$scratch/bin:$PATH top_builddir=$arm top_srcdir=$source CULIMBO=$arm/tools/culimbo \
		CC="aarch64-linux-gnu-gcc -Wl,--dynamic-linker=$loader" \
		inside timeout -k 5 300 bats --tap "$source/tests/doors/lookup.bats" \
		>"$arm/bats.out" 2>&1 </dev/null
	status=$?
	renumber lookup.bats <"$arm/bats.out"
	[ "$status" -eq 0 ] || ok 1 "lookup.bats ends well ($status)"
fi
echo "1..$number"
echo "# aarch64: $number tests, $failures failed, in $SECONDS s"
[ "$failures" -eq 0 ]
