#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests the RPM packages; prints TAP.  rpmbuild makes them from the release tarball and its spec
# file.  Each file must be in its package, the packages must provide and require the right things,
# and the installed program must work.  `make check-package` runs it, after package.sh.
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

# --nodeps: the build dependencies are here, but not as RPM packages
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

# ------------------------------------------------------------------------ installed where nothing is
# No RPM distribution is needed: we package this machine's C library, shell and pkg-config as the base
# system.  rpmbuild finds out what that provides, so rpm checks the requirements of our packages.
[ "$(id -u)" = 0 ] || {
	echo '# not root, so they are not installed in an empty root file system'
	finish
}
installed=$tmp/installed
mkdir -p "$tmp/base" "$installed/dev/shm" "$installed/proc" "$installed/build/tests/e2e"
for file in /bin/sh /usr/bin/pkg-config; do
	echo "$file"
	ldd "$file"
done | grep -o '/[^ :]*' | sort -u > "$tmp/base.list"
cat > "$tmp/base.spec" << EOF
Name: base-system
Version: 1
Release: 1
Summary: What a distribution has
License: various
AutoReq: no
Provides: rtld(GNU_HASH)
%global __os_install_post %{nil}
%description
This machine's C library, shell and pkg-config.
%install
xargs cp -L --parents -t %{buildroot} < $tmp/base.list
%files -f $tmp/base.list
EOF
(unset MAKEFLAGS MFLAGS MAKELEVEL && rpmbuild -bb --define "_topdir $tmp/rpm" --define "debug_package %{nil}" \
	--define "_rpmdir $tmp/base" "$tmp/base.spec") > "$tmp/base.log" 2>&1 < /dev/null &&
	rpm --root "$installed" -i "$tmp"/base/*/*.rpm >> "$tmp/base.log" 2>&1
ok $? "a root file system with this machine's C library, shell and pkg-config" || show "$tmp/base.log"
! rpm --root "$installed" -i --test "$tmp"/made/*/culimbo-[0-9]*.rpm > "$tmp/alone.log" 2>&1 &&
	grep -q 'libculimbo.* is needed by culimbo' "$tmp/alone.log"
ok $? "culimbo is not installed without libculimbo" || show "$tmp/alone.log"
if command -v dnf > /dev/null; then # the README's line, into that root file system
	dnf -y --installroot="$installed" --releasever=1 --disablerepo='*' \
		install "$tmp"/made/*/*culimbo*.rpm > "$tmp/install.log" 2>&1 < /dev/null
	ok $? "dnf installs them" || show "$tmp/install.log"
else
	rpm --root "$installed" -i "$tmp"/made/*/*culimbo*.rpm > "$tmp/install.log" 2>&1
	ok $? "rpm installs them (there is no dnf here)" || show "$tmp/install.log"
fi
rpm --root "$installed" -V libculimbo libculimbo-devel culimbo > "$tmp/verify.log" 2>&1
ok $? "rpm finds each file as it was packaged" || show "$tmp/verify.log"
cp "$top_builddir/tests/e2e/demo" "$installed/build/tests/e2e/"
# shellcheck disable=SC2016 # the inner shell's
demo_lines && cp "$tmp/demo.sh" "$installed/" &&
	unshare -m sh -c 'mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" && exec chroot "$@"' sh "$installed" \
		/bin/sh -c "PATH=/usr/bin:/bin; export PATH; . /demo.sh" < /dev/null > "$tmp/printed" 2>&1
diff "$tmp/promised" "$tmp/printed" > "$tmp/diff"
ok $? "the README's demo there: corrupted without culimbo, and right with it" || show "$tmp/diff"
rpm --root "$installed" -e culimbo libculimbo-devel libculimbo > "$tmp/erase.log" 2>&1 &&
	[ -z "$(find "$installed" -name '*culimbo*')" ]
ok $? "rpm removes them, and nothing of theirs is left" || { show "$tmp/erase.log"; find "$installed" -name '*culimbo*' | sed 's/^/#   /'; }
finish
