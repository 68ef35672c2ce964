#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Under CULIMBO_SHARE=all only virtual and stream-ordered memory differ, as doc/differences.md has it: makes the random
# calls of run.sh with and without culimbo.  The last seeds once differed: a pool that keeps what it gives back bare,
# blocks that outlive their context, a capture in another device's stream, an import closed in another context.
# shellcheck disable=SC2046 # words
exec sh "$(dirname "$0")/run.sh" --share-all "${1:-${top_builddir:-build}}" $(seq 16) 209 1795635235691 \
	1795635235332 1795635235384 1795635234866 1795635234978
