# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Shared by the tests of this folder, which read it with `.`.  It makes a folder, $tmp, which
# is removed at exit, and prints TAP.
: "${top_builddir:?run by make}" "${top_srcdir:?run by make}"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-package.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' HUP INT TERM

number=0 failed=0
ok() { # STATUS TEXT
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		failed=$((failed + 1))
		echo "not ok $number - $2"
	fi
	return "$1"
}
show() { # FILE: prints its end as comments
	tail -n 40 "$1" | cut -c1-300 | sed 's/^/#   /'
}
demo_lines() { # copies the README's demo into $tmp/demo.sh, and its output into $tmp/promised
	# shellcheck disable=SC2016 # sed's
	sed -n 's/^\$ \(culimbo run --simulate .*\)/\1/p' "$top_srcdir/README.md" > "$tmp/demo.sh"
	# shellcheck disable=SC2016 # sed's
	sed -n '/^\$ culimbo run --simulate /,/^```/{ /^[$`]/!p; }' "$top_srcdir/README.md" > "$tmp/promised"
	[ "$(wc -l < "$tmp/promised")" = 2 ]
}
finish() {
	echo "1..$number"
	exit $((failed > 0))
}
