#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hand_over.sh [BUILD_DIR]: virtual memory comes over by descriptors, and by legacy handles, on the
# simulated driver: 1, 100 and 1,000 allocations.  Part of `make check`; judges no times.
exec python3 "$(dirname "$0")/hand_over.py" --check "${1:-${top_builddir:-build}}"
