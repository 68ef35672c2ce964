#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# culimbo.h(3) describes exactly what culimbo.h declares.
HEADER=$top_srcdir/preload/culimbo.h
PAGE=$top_srcdir/doc/culimbo.h.3

@test "culimbo.h and its man page have the same functions" {
	declared=$(sed -n 's/^[a-z].*[ *]\(culimbo_[a-z_]*\)(.*);$/\1/p' "$HEADER" | grep -v '_fn$' | sort -u)
	[ "$(wc -w <<< "$declared")" -ge 3 ]
	told=$(grep -oE '^\.BI? .*(culimbo_[a-z_]*)\(' "$PAGE" | grep -oE 'culimbo_[a-z_]+' | grep -v '_fn$' | sort -u)
	[ "$declared" = "$told" ]
	named=$(sed -n '/^\.SH NAME/,/^\.SH LIBRARY/p' "$PAGE" | grep -oE 'culimbo_[a-z_]+' | sort -u)
	[ "$declared" = "$named" ]
}

@test "culimbo.h and its man page have the same errors" {
	[ "$(grep -oE -- '-E[A-Z]+' "$HEADER" | sort -u)" = \
		"$(sed -n 's/^\.B \\\(-E[A-Z]*\)$/\1/p' "$PAGE" | sort -u)" ]
}
