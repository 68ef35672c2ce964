#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The RPM packages, in TAP: rpmbuild makes them from the release tarball by its own spec file, each
# file lies in the package that it belongs to, they provide and require what they should, and what
# is in them works.  `make check-package` runs it, after package.sh.
set -u
for need in rpmbuild cpio; do
	command -v $need > /dev/null || {
		echo "1..0 # SKIP there is no $need here (Debian: rpm, cpio)"
		exit 0
	}
done
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

${MAKE:-make} -C "$top_builddir" dist-gzip > "$tmp/dist.log" 2>&1
ok $? "make dist makes the tarball" || { show "$tmp/dist.log"; finish; }
tarball=$(ls -t "$top_builddir"/culimbo-*.tar.gz | head -n 1)
version=$(basename "$tarball" .tar.gz)
version=${version#culimbo-}
grep -qx "Version: *$version" "$top_srcdir/tools/culimbo.spec"
ok $? "tools/culimbo.spec is of version $version"

# --nodeps: what is needed is there, but as another distribution's packages
cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$top_builddir/Makefile")
(unset MAKEFLAGS MFLAGS MAKELEVEL && rpmbuild -ta --nodeps --define "_topdir $tmp/rpm" --define "cuda_home $cuda" \
	--define "debug_package %{nil}" --define "_rpmdir $tmp/made" "$tarball") > "$tmp/build.log" 2>&1 < /dev/null
ok $? "rpmbuild builds them from it" || { show "$tmp/build.log"; finish; }
root=$tmp/root
mkdir "$root"
for package in libculimbo libculimbo-devel culimbo; do
	made=$(find "$tmp/made" -name "$package-$version-*.rpm")
	rpm -qpl "$made" > "$tmp/$package.list" 2> "$tmp/rpm.log" &&
		rpm -qp --provides "$made" > "$tmp/$package.provides" && rpm -qp --requires "$made" > "$tmp/$package.requires" &&
		rpm2cpio "$made" | (cd "$root" && cpio -idm --quiet)
	ok $? "there is $package" || show "$tmp/rpm.log"
done
has() { # PACKAGE PATTERN
	grep -qE "^$2\$" "$tmp/$1.list"
	ok $? "$1 has $2" || show "$tmp/$1.list"
}
has libculimbo '/usr/lib.*/libculimbo\.so'
has libculimbo '/usr/share/man/man7/culimbo\.7(\.gz)?'
has libculimbo-devel '/usr/include/culimbo\.h'
has libculimbo-devel '/usr/lib.*/pkgconfig/culimbo\.pc'
has culimbo '/usr/bin/culimbo'
has culimbo '/usr/lib.*/culimbo/sim/libcuda\.so\.1'
has culimbo '/usr/share/culimbo/culimbo-dashboard\.json'
has culimbo '/usr/share/doc/culimbo/report-format\.md'
has culimbo '/usr/share/man/man1/culimbo-run\.1(\.gz)?'
! cat "$tmp"/*.provides | grep libcuda && ! cat "$tmp"/*.requires | grep libcuda
ok $? "nobody is told that libcuda.so.1 is provided or needed"
! grep -vE '^(libc\.so\.6|ld-linux|rpmlib|rtld)|^libculimbo|^/sbin/ldconfig' "$tmp/libculimbo.requires" > "$tmp/depends"
ok $? "libculimbo requires libc alone" || show "$tmp/depends"
CULIMBO_DIR=$tmp/limbo CULIMBO_SIM_DIR=$tmp/sim "$root/usr/bin/culimbo" run --simulate -- "$top_builddir/tests/e2e/demo" \
	> "$tmp/run.out" 2>&1 < /dev/null && grep -q '^right' "$tmp/run.out"
ok $? "the demo is right under what they install" || show "$tmp/run.out"
finish
