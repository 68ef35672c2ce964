#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# culimbo.h(3) tells of what culimbo.h declares, and of nothing else.
HEADER=$top_srcdir/preload/culimbo.h
PAGE=$top_srcdir/doc/culimbo.h.3

@test "each function of culimbo.h is in its man page, and each of the page is in culimbo.h" {
	declared=$(sed -n 's/^[a-z].*[ *]\(culimbo_[a-z_]*\)(.*);$/\1/p' "$HEADER" | grep -v '_fn$' | sort -u)
	[ "$(wc -w <<< "$declared")" -ge 3 ]
	told=$(grep -oE '^\.BI? .*(culimbo_[a-z_]*)\(' "$PAGE" | grep -oE 'culimbo_[a-z_]+' | grep -v '_fn$' | sort -u)
	[ "$declared" = "$told" ]
	named=$(sed -n '/^\.SH NAME/,/^\.SH LIBRARY/p' "$PAGE" | grep -oE 'culimbo_[a-z_]+' | sort -u)
	[ "$declared" = "$named" ]
}

@test "so is each error" {
	[ "$(grep -oE -- '-E[A-Z]+' "$HEADER" | sort -u)" = \
		"$(sed -n 's/^\.B \\\(-E[A-Z]*\)$/\1/p' "$PAGE" | sort -u)" ]
}
