#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Under CULIMBO_SHARE=all only virtual memory differs, as doc/differences.md has it: makes the random calls of
# run.sh with and without culimbo.
# shellcheck disable=SC2046 # words
exec sh "$(dirname "$0")/run.sh" --share-all "${1:-${top_builddir:-build}}" $(seq 16)
