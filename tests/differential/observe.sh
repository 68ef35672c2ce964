#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CULIMBO_MODE=observe changes no result of the driver: makes the random calls of run.sh with and without it.
# shellcheck disable=SC2046 # words
exec sh "$(dirname "$0")/run.sh" --observe "${1:-${top_builddir:-build}}" $(seq 100)
