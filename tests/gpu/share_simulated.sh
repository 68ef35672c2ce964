#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the clients of share_clients.sh that the simulated driver can serve, for `make check`.
exec bash "$(dirname "$0")/share_clients.sh" --simulate --only 'plain-*' "${1:-${top_builddir:-build}}"
