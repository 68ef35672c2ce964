#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests the Debian packages; prints TAP.  It makes the release tarball and builds the
# packages from it with dpkg-buildpackage.  lintian must find no error, each file must be in
# its package, and the installed program must work.
#
# `make check-package` runs it.  It builds everything, which takes about a minute.
set -u
for need in dpkg-buildpackage dh lintian; do
	command -v $need > /dev/null || {
		echo "1..0 # SKIP there is no $need here (Debian: dpkg-dev, debhelper, lintian)"
		exit 0
	}
done
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

# ------------------------------------------------------------------- the tarball
${MAKE:-make} -C "$top_builddir" dist-gzip > "$tmp/dist.log" 2>&1
ok $? "make dist makes the tarball" || { show "$tmp/dist.log"; finish; }
tarball=$(ls -t "$top_builddir"/culimbo-*.tar.gz | head -n 1)
version=$(basename "$tarball" .tar.gz)
version=${version#culimbo-}
mv "$tarball" "$tmp/culimbo_$version.orig.tar.gz"
(cd "$tmp" && tar -xf "culimbo_$version.orig.tar.gz") && cp -R "$top_srcdir/debian" "$tmp/culimbo-$version/debian"
ok $? "it unpacks"
packaged=$(sed -n '1s/.*(\(.*\)-.*/\1/p' "$top_srcdir/debian/changelog")
[ "$packaged" = "$version" ]
ok $? "debian/changelog is of version $version (it says $packaged)"

# ------------------------------------------------------------------ the packages
# -d: the build dependencies need not be packages here (the CUDA headers are none)
cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$top_builddir/Makefile")
(cd "$tmp/culimbo-$version" && unset MAKEFLAGS MFLAGS MAKELEVEL &&
	CUDA_HOME=$cuda DEB_BUILD_OPTIONS="parallel=$(nproc)" dpkg-buildpackage -us -uc -d) \
	> "$tmp/build.log" 2>&1 < /dev/null
ok $? "dpkg-buildpackage builds them from it, source and binary" || { show "$tmp/build.log"; finish; }
# (whoever uploads the package sets the maintainer's address)
lintian --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog --fail-on error --allow-root "$tmp"/culimbo_*.changes > "$tmp/lintian.log" 2>&1
status=$?
sed 's/^/# lintian: /' "$tmp/lintian.log"
ok $status "lintian finds no error"

# --------------------------------------------------------------- what lies where
root=$tmp/root
for package in libculimbo libculimbo-dev culimbo; do
	dpkg-deb -c "$tmp/${package}_"*.deb | awk '$1 !~ /^d/ { print $6 }' > "$tmp/$package.list"
	dpkg-deb -x "$tmp/${package}_"*.deb "$root" || exit 1
done
has() { # PACKAGE PATTERN
	grep -qE "^\.$2\$" "$tmp/$1.list"
	ok $? "$1 has $2" || show "$tmp/$1.list"
}
has libculimbo '/usr/lib/[^/]*/libculimbo\.so'
has libculimbo-dev '/usr/include/culimbo\.h'
has libculimbo-dev '/usr/lib/[^/]*/pkgconfig/culimbo\.pc'
has culimbo '/usr/bin/culimbo'
has culimbo '/usr/lib/[^/]*/culimbo/sim/libcuda\.so\.1'
for page in "$top_builddir"/tools/pages/*.1; do
	has culimbo "/usr/share/man/man1/$(basename "$page")\.gz"
done
has libculimbo '/usr/share/man/man7/culimbo\.7\.gz'
has libculimbo-dev '/usr/share/man/man3/culimbo\.h\.3\.gz'
has culimbo '/usr/share/culimbo/culimbo-dashboard\.json'
for document in "$top_srcdir"/doc/*.md "$top_srcdir"/doc/*.json "$top_srcdir"/doc/*.png; do
	has culimbo "/usr/share/doc/culimbo/$(basename "$document")(\.gz)?"
done
has culimbo '/usr/share/bash-completion/completions/culimbo'
has culimbo '/usr/share/zsh/site-functions/_culimbo'
has culimbo '/usr/share/fish/vendor_completions\.d/culimbo\.fish'
cat "$tmp"/*.list | sort > "$tmp/packaged"
uniq -d "$tmp/packaged" > "$tmp/twice"
[ ! -s "$tmp/twice" ]
ok $? "no file is in two packages" || show "$tmp/twice"
dpkg-deb -f "$tmp/libculimbo_"*.deb Depends | tr ',' '\n' | grep -vE '^ *libc6 ' > "$tmp/depends"
[ ! -s "$tmp/depends" ]
ok $? "libculimbo depends on libc alone" || show "$tmp/depends"

dpkg-deb -f "$tmp/culimbo_"*.deb Depends | tr ',' '\n' | grep -vE '^ *(libc6|libculimbo) ' > "$tmp/depends"
[ ! -s "$tmp/depends" ]
ok $? "culimbo depends on libc and libculimbo alone" || show "$tmp/depends"

# --------------------------------------------------------------------- it works
said=$("$root/usr/bin/culimbo" --version 2>&1)
[ "$said" = "culimbo $version" ]
ok $? "the installed command says its version ($said)"
CULIMBO_DIR=$tmp/limbo CULIMBO_SIM_DIR=$tmp/sim CULIMBO_REPORT=always \
	"$root/usr/bin/culimbo" run --simulate -- "$top_builddir/tests/e2e/actor_linked" \
	> "$tmp/run.out" 2> "$tmp/run.err" < /dev/null
grep -q 'culimbo: SUMMARY' "$tmp/run.err"
ok $? "a program runs under the installed library, on the installed simulated driver" ||
	{ show "$tmp/run.out"; show "$tmp/run.err"; }
finish
