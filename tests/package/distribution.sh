#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# distribution.sh SUITE...: tests the packages in an empty system; prints TAP.  For each SUITE debootstrap
# makes a root file system with only pip added.  The test installs the wheel there by the README's line,
# and then the Debian packages.  Each time the README's demo must be right under culimbo, and wrong without.
#
# `make check-distribution DISTRIBUTION="bullseye trixie"` builds the packages once and runs it, as root.
# Each SUITE needs the network, some minutes, and 400 MB that are removed afterwards.  MIRROR and KEYRING
# are passed to debootstrap, for a SUITE that has left its usual mirror.  With ROOTS=DIR the test uses the
# root file system in DIR/SUITE, makes it if it is missing, and leaves it unchanged.  With DEBS=DIR it uses
# the Debian packages in DIR and builds none.
set -u
for need in debootstrap unshare dpkg-buildpackage; do
	command -v $need > /dev/null || {
		echo "1..0 # SKIP there is no $need here"
		exit 0
	}
done
[ "$(id -u)" = 0 ] || {
	echo '1..0 # SKIP only root can make a root file system'
	exit 0
}
# Mounts end with this namespace, however the test ends.
# shellcheck disable=SC2016 # the inner shell's
[ "${IN_NAMESPACE-}" = "$PPID" ] || exec unshare -m sh -c 'IN_NAMESPACE=$$ sh "$0" "$@"; exit $?' "$0" "$@"
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
trap 'umount -l "$tmp/top" 2> /dev/null; rm -rf --one-file-system "$tmp"' EXIT
[ $# -gt 0 ] || { echo "Usage: make check-distribution DISTRIBUTION='SUITE...'" >&2; exit 2; }

# ------------------------------------------------------------------------ what is installed
machine=$(uname -m)
version=$("$top_builddir/tools/culimbo" --version)
version=${version#culimbo }
wheel=$top_builddir/wheel/dist/culimbo-$version-py3-none-manylinux_2_17_$machine.manylinux2014_$machine.whl
cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$top_builddir/Makefile")
mkdir -p "$tmp/files/build/tests/e2e" "$tmp/debs" "$tmp/top" && cp "$wheel" "$tmp/files/" || exit 1
# The wheel needs no other package, so pip does not use the network (PIP_NO_INDEX).
line=$(sed -n 's/^\(pip install culimbo-.*\.whl\).*/\1/p' "$top_srcdir/README.md")
# The wheel's compiler builds the demo, so that it runs with an old C library, too.
"$top_builddir/wheel/$machine/zig-cc" -O2 -I "$cuda/include" -o "$tmp/files/build/tests/e2e/demo" "$top_srcdir/tests/e2e/demo.c" \
	"$top_builddir/wheel/$machine/tools/sim/.libs/libcuda.so.1" > "$tmp/demo.log" 2>&1
ok $? "the demo is built for glibc 2.17" || { show "$tmp/demo.log"; finish; }
${MAKE:-make} -C "$top_builddir" dist-gzip > "$tmp/build.log" 2>&1
ok $? 'make dist makes the tarball' || { show "$tmp/build.log"; finish; }
if [ -n "${DEBS-}" ]; then
	cp "$DEBS"/*culimbo_*.deb "$tmp/debs/" 2> "$tmp/build.log"
else
	tar -xf "$top_builddir/culimbo-$version.tar.gz" -C "$tmp/debs" && cp -R "$top_srcdir/debian" "$tmp/debs/culimbo-$version/" &&
		(cd "$tmp/debs/culimbo-$version" && unset MAKEFLAGS MFLAGS MAKELEVEL && CUDA_HOME=$cuda \
			DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)" dpkg-buildpackage -us -uc -b -d) > "$tmp/build.log" 2>&1 < /dev/null
fi
ok $? "the Debian packages: ${DEBS:-built by dpkg-buildpackage}" || { show "$tmp/build.log"; finish; }
for package in libculimbo culimbo; do
	cp "$tmp/debs/${package}_"*.deb "$tmp/files/" || exit 1
done

# ------------------------------------------------------------------------ one distribution
inside() { # COMMAND...: runs it in the root file system, with a clean environment
	chroot "$top" /usr/bin/env -i PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
		PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1 "$@" < /dev/null
}
readme() { # COMMAND...: runs it inside, in the folder of the files
	# shellcheck disable=SC2016 # the inner shell's
	inside sh -c 'cd /opt/files && exec "$@"' sh "$@"
}
begin() { # makes a copy of $root, an overlay in memory, so that each package starts from an empty system
	top=$tmp/top/root
	mount -t tmpfs -o size=3g tmpfs "$tmp/top" && mkdir "$tmp/top/upper" "$tmp/top/work" "$top" &&
		mount -t overlay overlay -o "lowerdir=$root,upperdir=$tmp/top/upper,workdir=$tmp/top/work" "$top" &&
		mount -t proc proc "$top/proc" && mount -t tmpfs tmpfs "$top/dev/shm" &&
		cp -R "$tmp/files" "$top/opt/files"
}
end() {
	umount -R "$tmp/top"
}
demo_is_right() { # PACKAGE: the README's demo prints what the README says
	demo_lines && cp "$tmp/demo.sh" "$top/opt/files/" && {
		readme sh demo.sh > "$tmp/printed" 2>&1
		diff "$tmp/promised" "$tmp/printed" > "$tmp/diff"
	}
	ok $? "$suite, $1: the demo is corrupted without culimbo, and right with it" || show "$tmp/diff"
}
build_there() { # builds the Debian packages with the distribution's tools and this machine's CUDA headers
	source=$top/opt/files/culimbo
	mkdir "$source" "$top/opt/cuda" && tar -xf "$top_builddir/culimbo-$version.tar.gz" -C "$source" --strip-components=1 &&
		cp -R "$top_srcdir/debian" "$source/" && mount --bind "$cuda" "$top/opt/cuda" &&
		inside apt-get -q update &&
		inside env DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends install dpkg-dev gcc make libc6-dev &&
		inside env DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends -P nocheck build-dep /opt/files/culimbo &&
		inside sh -c "cd /opt/files/culimbo && CUDA_HOME=/opt/cuda DEB_BUILD_OPTIONS='nocheck parallel=$(nproc)' \
			DEB_BUILD_PROFILES=nocheck dpkg-buildpackage -us -uc -b"
}
for suite in "$@"; do
	root=${ROOTS:-$tmp}/$suite
	if [ ! -x "$root/usr/bin/python3" ]; then
		mkdir -p "$root" && debootstrap ${KEYRING:+--keyring="$KEYRING"} --variant=minbase --include=python3-pip,python3-venv \
			"$suite" "$root" ${MIRROR:+"$MIRROR"} > "$tmp/debootstrap.log" 2>&1 < /dev/null
		ok $? "$suite: debootstrap makes its root file system" || { show "$tmp/debootstrap.log"; continue; }
		umount "$root/proc" "$root/sys" 2> /dev/null
	fi
	begin
	ok $? "$suite: a fresh copy" || { end; continue; }
	# shellcheck disable=SC2016 # the inner shell's
	echo "# $suite: $(inside sh -c '. /etc/os-release; echo "$PRETTY_NAME"'), glibc $(inside ldd --version | sed -n '1s/.* //p')," \
		"$(inside python3 --version), $(inside pip3 --version | cut -d' ' -f1,2)"
	readme sh -c "$line" > "$tmp/pip.log" 2>&1
	status=$?
	if grep -q externally-managed-environment "$tmp/pip.log"; then
		echo "# $suite: pip installs into virtual environments alone"
		inside python3 -m venv /opt/venv > "$tmp/pip.log" 2>&1 && readme sh -c "$line" >> "$tmp/pip.log" 2>&1
		status=$?
	fi
	if ok $status "$suite, wheel: $line" || { show "$tmp/pip.log"; false; }; then
		demo_is_right wheel
		[ "$(readme culimbo --version 2>&1)" = "culimbo $version" ]
		ok $? "$suite, wheel: the command says its version"
	fi
	end

	begin || exit 1
	needs=$(dpkg-deb -f "$tmp/files/culimbo_"*.deb Depends | sed -n 's/.*libc6 (>= \([0-9.]*\)).*/\1/p')
	# shellcheck disable=SC2016 # the inner shell's
	has=$(inside dpkg-query -Wf '${Version}' libc6)
	if dpkg --compare-versions "$has" lt "$needs"; then
		echo "# $suite: the Debian packages built here need libc6 $needs, and it has $has: they are built there"
		rm "$top"/opt/files/*.deb
		build_there > "$tmp/dpkg.log" 2>&1
		ok $? "$suite, Debian packages: dpkg-buildpackage builds them there" || {
			grep -m 8 -E ' (fatal )?error:? |line [0-9]+: ' "$tmp/dpkg.log" > "$tmp/why" # the end of the log is only configure's
			show "$tmp/why"
			show "$tmp/dpkg.log"
		}
	fi
	if [ -n "$(ls "$top"/opt/files/*.deb 2> /dev/null)" ]; then
		inside sh -c 'dpkg -i /opt/files/*.deb' > "$tmp/dpkg.log" 2>&1
		ok $? "$suite, Debian packages: dpkg installs them" || show "$tmp/dpkg.log"
		demo_is_right 'Debian packages'
		# shellcheck disable=SC2016 # the inner shell's
		inside sh -c 'dpkg -P $(dpkg-query -Wf "\${Package} " "*culimbo*") && test ! -e /usr/bin/culimbo' > "$tmp/dpkg.log" 2>&1
		ok $? "$suite, Debian packages: dpkg removes them" || show "$tmp/dpkg.log"
	fi
	end
	[ -n "${ROOTS-}" ] || rm -rf --one-file-system "$root"
done
finish
