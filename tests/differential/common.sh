# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Shared by the tests of this folder's scripts, which read it with `.`.  It sets $here, this folder; $build, the build
# tree, which is the test's first argument or make's; and $tmp, a folder that is removed at exit.  It prints TAP, with
# what $tmp/out has after a line that fails.
# shellcheck disable=SC2034 # for the tests
here=$(cd "$(dirname "$0")" && pwd) || exit 1
# shellcheck disable=SC2034 # for the tests
build=$(cd "${1:-${top_builddir:?run by make, or with the build tree as argument}}" && pwd) || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-differential-test.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
unset LD_PRELOAD

number=0 failures=0
ok() { # STATUS TEXT
	number=$((number + 1))
	[ "$1" -eq 0 ] && echo "ok $number - $2" && return
	failures=$((failures + 1))
	echo "not ok $number - $2"
	[ ! -e "$tmp/out" ] || sed 's/^/#   /' "$tmp/out"
}
says() { # PATTERN: has $tmp/out a line that matches it?
	grep -Eq "$1" "$tmp/out"
}
finish() {
	echo "1..$number"
	exit $((failures > 0))
}
