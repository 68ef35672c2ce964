#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The clients of the matrix that can, on the simulated driver: for `make check`.
exec bash "$(dirname "$0")/matrix.sh" --simulate "$@"
