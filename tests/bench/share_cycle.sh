#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# share_cycle.sh [BUILD_DIR]: what a program that shares in a loop leaves free, and which
# of its handles work, on a small simulated device.  A part of `make check`; no times.
exec python3 "$(dirname "$0")/share_cycle.py" --check "${1:-${top_builddir:-build}}"
