#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Packs what a GPU machine without a compiler and a network needs to run the suites of tests/gpu:
#
#	bash tests/gpu/pack.sh BUILD CLIENTS TO [CLIENT...]
#
# BUILD is a finished build tree (make and the check programs), not one with a sanitizer.  Packed are its shared
# libraries, the programs that all.sh runs, and what fetch-runtimes.sh has fetched.  CLIENTS has a folder for each
# client, as all.sh wants them; the names CLIENT choose some, otherwise all are packed.  CLIENTS/libs, the system
# libraries that are missing there, goes with them if it is there.  CLIENTS may be "-": none.
#
# The folder TO gets part-000, part-001, ... of at most 30 MiB (PACK_PART), and unpack.sh:
#
#	bash TO/unpack.sh [ROOT]
#
# puts all to the same places there, or to the same places below ROOT.  The source tree is not packed: the
# suites are run from it.  Object files are left out, and debug data of the copies; no file of BUILD or CLIENTS
# is changed.  Prints one line: what was packed, and how large it is.  XZ_OPT has options for xz.

set -eu -o pipefail
export LC_ALL=C
usage='usage: pack.sh BUILD CLIENTS TO [CLIENT...]'
die()
{
	echo "pack.sh: $*" >&2
	exit 1
}
[ $# -ge 3 ] || { echo "$usage" >&2; exit 2; }
build=$(cd "$1" && pwd) || exit 1
clients=''
[ "$2" = - ] || clients=$(cd "$2" && pwd) || exit 1
mkdir -p "$3"
to=$(cd "$3" && pwd)
shift 3

# ------------------------------------------------------------------------- what
programs=(tests/bench tests/differential tests/e2e tests/gpu tests/torture)
fetched=(tests/gpu/runtimes tests/gpu/mpi tests/gpu/include tests/gpu/libs)
for file in tools/culimbo .libs/libculimbo.so; do
	[ -x "$build/$file" ] || die "$build is no finished build tree"
done
sanitizer=$(sed -n 's/^CULIMBO_SANITIZE *= *\(-.*\)/\1/p' "$build/Makefile" 2>/dev/null || :)
[ -z "$sanitizer" ] || die "$build is built with $sanitizer, which no suite is for"
for program in e2e/scenes e2e/actor e2e/actor_linked gpu/conformance bench/share_cycle differential/differential torture/torture; do
	[ -x "$build/tests/$program" ] || die "there is no $build/tests/$program: make the check programs first"
done
names=("$@")
if [ -n "$clients" ] && [ ${#names[@]} -eq 0 ]; then
	for folder in "$clients"/*/; do
		name=$(basename "$folder")
		[ ! -d "$folder" ] || [ "$name" = libs ] || names+=("$name")
	done
fi
for name in ${names[@]+"${names[@]}"}; do
	[ -d "${clients:-/nowhere}/$name" ] || die "there is no folder $name in ${clients:-CLIENTS}"
done

# is_elf FILE: true for programs and shared libraries, false for object files
is_elf()
{
	local start

	start=$(head -c 18 "$1" | od -An -tx1 | tr -d ' \n')
	case $start in 7f454c46????????????????????????0[23]*) return 0 ;; esac
	return 1
}

# Prints the files to pack, each with a 0 behind it, as paths from / without that.
files()
{
	local file

	cd "$build"
	find .libs tools/sim/.libs -maxdepth 1 -name '*.so*' ! -type d -printf "${build#/}/%p\0"
	printf '%s\0' "${build#/}/tools/culimbo"
	for file in Makefile config.h; do
		[ ! -e "$file" ] || printf '%s\0' "${build#/}/$file"
	done
	while IFS= read -r -d '' file; do
		if is_elf "$file"; then
			printf '%s\0' "${build#/}/$file"
		fi
	done < <(find "${programs[@]}" -maxdepth 2 -type f -perm -u+x \
		! -path 'tests/gpu/runtimes/*' ! -path 'tests/gpu/mpi/*' ! -path 'tests/gpu/libs/*' -print0 2>/dev/null)
	for file in "${fetched[@]}"; do
		[ ! -d "$file" ] || find "$file" ! -type d ! -name '*.o' -printf "${build#/}/%p\0"
	done
	[ -n "$clients" ] || return 0
	cd "$clients"
	for file in ${names[@]+"${names[@]}"} libs; do
		[ ! -d "$file" ] || find "$file" ! -type d ! -name '*.o' ! -name '*.lo' ! -name '*.la' ! -name '*.a' \
			-printf "${clients#/}/%p\0"
	done
}

# ----------------------------------------------------------------------- copies
stage=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-pack.XXXXXX")
trap 'rm -rf "$stage"' EXIT
files | sort -zu >"$stage.list"
trap 'rm -rf "$stage" "$stage.list"' EXIT
tar -C / --null -T "$stage.list" -cf - | tar -C "$stage" -xf -
# beside.sh compiles with it where there is a compiler
include=$stage$build/tests/gpu/include
if [ ! -e "$include/uthash.h" ]; then
	uthash=$(echo '#include <uthash.h>' | ${CC:-cc} -E -xc - 2>/dev/null | sed -n 's/^# 1 "\(.*\/uthash\.h\)".*/\1/p' | head -n 1 || :)
	[ -n "$uthash" ] || die "there is no uthash.h"
	mkdir -p "$include"
	cp "$uthash" "$include"
fi
while IFS= read -r -d '' file; do
	if is_elf "$file"; then
		# a file that strip does not understand stays as it is
		strip --strip-debug "$file" 2>/dev/null || :
	fi
done < <(find "$stage" -type f \( -perm -u+x -o -name '*.so*' \) -print0)

# ------------------------------------------------------------------------ parts
rm -f "$to"/part-[0-9]* "$to/unpack.sh"
# no folders: unpacking must not change the rights of /tmp
find "$stage" ! -type d -printf '%P\0' >"$stage.list"
tar -C "$stage" --no-recursion --owner=0 --group=0 --null -T "$stage.list" -cf - |
	xz -T0 | split -b "${PACK_PART:-30m}" -d -a 3 - "$to/part-"
cat >"$to/unpack.sh" <<END
#!/usr/bin/env bash
# Made by tests/gpu/pack.sh.  unpack.sh [ROOT]: puts the files to their places, or to the same places below ROOT.
set -eu -o pipefail
here=\$(cd "\$(dirname "\${BASH_SOURCE[0]}")" && pwd)
root=\${1-}
mkdir -p "\$root/"
cat "\$here"/part-[0-9]* | {
	if command -v xz >/dev/null; then
		xz -dc
	else
		python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.stdin.buffer), sys.stdout.buffer)'
	fi
} | tar -xf - -C "\$root/" --no-same-owner
build=$(printf %q "$build") clients=$(printf %q "$clients")
echo "build: \$root\$build\${clients:+; clients: \$root\$clients}"
END
parts=("$to"/part-*)
echo "packed $(tr -cd '\0' <"$stage.list" | wc -c) files of $build and of ${names[*]:-no client}: $(du -sm "$stage" | cut -f 1) MiB," \
	"$(cat "${parts[@]}" | wc -c | awk '{ printf "%.1f", $1 / 1048576 }') MiB in ${#parts[@]} part$([ ${#parts[@]} -eq 1 ] || echo s) in $to"
