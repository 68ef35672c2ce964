#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# An administrator has put the library into /etc/ld.so.preload, and a user starts a setuid
# program: the user's environment must not make it write a file.  Prints TAP.
#
# Must always hold: the test changes nothing outside its own mount namespace.
set -u
library=${top_builddir:?}/.libs/libculimbo.so
plan() {
	echo "1..2"
	exit 0
}
skip() {
	echo "ok 1 - control: without more rights the report goes where the user says # SKIP $1"
	echo "ok 2 - a setuid program writes no file that its user's environment names # SKIP $1"
	plan
}

if [ "${1-}" != inside ]; then
	[ "$(id -u)" -eq 0 ] || skip "only root can be two users"
	command -v setpriv > /dev/null || skip "there is no setpriv"
	unshare -m true 2> /dev/null || skip "no mount namespace may be made"
	exec unshare -m --propagation private bash "$0" inside
fi

work=$(mktemp -d) || exit 99
trap 'umount -l /etc "$work" 2> /dev/null; rmdir "$work"' EXIT
mount -t tmpfs -o size=16m,mode=755 tmpfs "$work" || skip "a tmpfs cannot be mounted"
mkdir "$work/upper" "$work/work" "$work/out" && chmod 1777 "$work/out"
cp "$(command -v id)" "$work/plain" && cp "$work/plain" "$work/setuid" && chmod 4755 "$work/setuid"
cp "$library" "$work/libculimbo.so" && chmod 755 "$work/libculimbo.so"
mount -t overlay -o "lowerdir=/etc,upperdir=$work/upper,workdir=$work/work" overlay /etc 2> /dev/null ||
	skip "an overlay cannot be mounted"
echo "$work/libculimbo.so" > /etc/ld.so.preload

# Succeeds if the program wrote its report.  culimbo adds .PID to the name.
written() {
	[ -n "$(find "$work/out" -name "$1.*" -size +0)" ]
}
for program in plain setuid; do
	setpriv --reuid 65534 --regid 65534 --clear-groups env CULIMBO_REPORT=always \
		CULIMBO_REPORT_FILE="$work/out/$program" "$work/$program" -u > "$work/said"
	echo "# $program: user $(cat "$work/said"), file: $(stat -c 'owner %u' "$work/out/$program".* 2>&1)"
done
: > /etc/ld.so.preload

if written plain; then
	echo "ok 1 - control: without more rights the report goes where the user says"
else
	echo "not ok 1 - control: without more rights the report goes where the user says"
	bad=1
fi
line="2 - a setuid program writes no file that its user's environment names"
if [ -n "$(find "$work/out" -name "setuid*")" ]; then
	echo "not ok $line"
	bad=1
else
	echo "ok $line"
fi
echo "1..2"
exit "${bad-0}"
