#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# python.sh SUITE...: tests Python frames with the python3 of other distributions; prints TAP.  For each
# SUITE debootstrap makes a root file system.  This build is mounted there, and tests/report/python.bats
# runs with that python3.  So it tests versions that this machine does not have.
#
# `make check-distribution-python DISTRIBUTION=sid` runs it, as root.  Each SUITE needs the network, some
# minutes and 400 MB.  MIRROR, KEYRING and ROOTS are as for distribution.sh.  The C library there must not
# be older than the one that this was built with.
set -u
for need in debootstrap unshare; do
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
[ $# -gt 0 ] || { echo "Usage: make check-distribution-python DISTRIBUTION='SUITE...'" >&2; exit 2; }
top=$tmp/top/root
mkdir "$tmp/top"

inside() { # COMMAND...: runs it in the root file system, with a clean environment
	chroot "$top" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
		top_builddir="$top_builddir" top_srcdir="$top_srcdir" CULIMBO="$top_builddir/tools/culimbo" "$@" < /dev/null
}
begin() { # makes a copy of $root, an overlay in memory, with both trees at their paths on this machine
	mount -t tmpfs -o size=3g tmpfs "$tmp/top" && mkdir "$tmp/top/upper" "$tmp/top/work" "$top" &&
		mount -t overlay overlay -o "lowerdir=$root,upperdir=$tmp/top/upper,workdir=$tmp/top/work" "$top" &&
		mount -t proc proc "$top/proc" && mount -t tmpfs tmpfs "$top/dev/shm" &&
		mkdir -p "$top$top_srcdir" && mount --bind "$top_srcdir" "$top$top_srcdir" &&
		mkdir -p "$top$top_builddir" && mount --bind "$top_builddir" "$top$top_builddir"
}
for suite in "$@"; do
	root=${ROOTS:-$tmp}/$suite-python
	if [ ! -x "$root/usr/bin/bats" ]; then
		mkdir -p "$root" && debootstrap ${KEYRING:+--keyring="$KEYRING"} --variant=minbase --include=python3,bats,jq \
			"$suite" "$root" ${MIRROR:+"$MIRROR"} > "$tmp/debootstrap.log" 2>&1 < /dev/null
		ok $? "$suite: debootstrap makes its root file system" || { show "$tmp/debootstrap.log"; continue; }
		umount "$root/proc" "$root/sys" 2> /dev/null
	fi
	begin
	ok $? "$suite: a fresh copy, with what is built here" || { umount -R "$tmp/top"; continue; }
	version=$(inside python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
	inside bats --tap "$top_srcdir/tests/report/python.bats" > "$tmp/bats.log" 2>&1
	status=$?
	! grep -q "not tested:.* ${version%.*}\( \|$\)" "$tmp/bats.log" && [ $status -eq 0 ]
	ok $? "$suite: Python $version, $(grep -c '^ok ' "$tmp/bats.log") scenes of tests/report/python.bats" || show "$tmp/bats.log"
	umount -R "$tmp/top"
	[ -n "${ROOTS-}" ] || rm -rf --one-file-system "$root"
done
finish
