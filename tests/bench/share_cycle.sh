#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# share_cycle.sh [BUILD_DIR]: a program shares in a loop on a small simulated device.  Checks
# how much memory stays free and which handles work.  Part of `make check`; measures no times.
exec python3 "$(dirname "$0")/share_cycle.py" --check "${1:-${top_builddir:-build}}"
