#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks that doc/compatibility.md matches the committed results, and that these have no path of the machine.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
[ -d "$here/../../doc/results" ] || {
	echo "1..0 # SKIP a source tarball has no results"
	exit 0
}
echo 1..2
failed=0
if out=$(python3 "$here/compatibility.py" --check 2>&1); then
	echo "ok 1 - doc/compatibility.md matches doc/results"
else
	echo "not ok 1 - doc/compatibility.md matches doc/results"
	printf '%s\n' "$out" | tail -n 5 | sed 's/^/#   /'
	failed=1
fi
# where somebody built tells no reader anything
if out=$(grep -rnIE '(^|[^A-Za-z0-9_.~/-])/([^ /()":]+/)+(build|tests|clients)/' "$here/../../doc/results"); then
	echo "not ok 2 - no result has the absolute path of a build folder"
	printf '%s\n' "$out" | cut -c 1-200 | head -n 5 | sed 's/^/#   /'
	failed=1
else
	echo "ok 2 - no result has the absolute path of a build folder"
fi
exit $failed
