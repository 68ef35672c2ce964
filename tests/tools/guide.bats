#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0

@test "doc/troubleshooting.md has each message of the library, and no other" {
	python3 "$top_srcdir/tests/tools/messages.py" "$top_srcdir"
}
