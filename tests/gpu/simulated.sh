#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the clients of the matrix that the simulated driver can serve, for `make check`.
exec bash "$(dirname "$0")/matrix.sh" --simulate "$@"
