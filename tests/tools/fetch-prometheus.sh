#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fetch-prometheus.sh [BUILD_DIR]: fetches Debian's packages of Prometheus, promtool and
# node_exporter (some 23 MB) into BUILD_DIR/tests/tools/prometheus, for metrics.bats.
# Nothing is installed and no service begins.  Fails where apt-get can't have them; then nothing
# is left.
set -eu
to=$(cd "${1:-build}" && pwd)/tests/tools/prometheus
[ ! -e "$to" ] || exit 0
mkdir -p "${to%/*}"
tmp=$(mktemp -d "$to.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' HUP INT TERM
cd "$tmp"
timeout 120 apt-get -q -o APT::Sandbox::User= -o Acquire::Retries=1 \
	-o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 \
	download prometheus prometheus-node-exporter < /dev/null
for deb in *.deb; do
	dpkg-deb -x "$deb" whole
done
whole/usr/bin/promtool --version
# whole or not at all: the rename is last
mv whole/usr/bin "$to"
