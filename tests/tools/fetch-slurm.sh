#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fetch-slurm.sh [BUILD_DIR]: fetches Debian's packages of Slurm (some 4 MB) into
# BUILD_DIR/tests/tools/slurm, for deploy.bats.  Nothing is installed and no service begins.
# Fails where apt-get can't have them; then nothing is left.
set -eu
to=$(cd "${1:-build}" && pwd)/tests/tools/slurm
[ ! -e "$to" ] || exit 0
mkdir -p "${to%/*}"
tmp=$(mktemp -d "$to.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' HUP INT TERM
cd "$tmp"
timeout 120 apt-get -q -o APT::Sandbox::User= -o Acquire::Retries=1 \
	-o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 \
	download slurmctld slurmd slurm-client slurm-wlm-basic-plugins libhwloc15 libnuma1 < /dev/null
for deb in *.deb; do
	dpkg-deb -x "$deb" whole
done
mkdir new new/bin new/lib
cp -R whole/usr/lib/*/slurm-wlm/. new/lib/
cp -R whole/usr/lib/*/lib* new/lib/
for command in slurmctld slurmd slurmstepd srun sbatch sinfo squeue; do
	for file in "whole/usr/sbin/$command-wlm" "whole/usr/sbin/$command" "whole/usr/bin/$command"; do
		[ ! -f "$file" ] || cp "$file" "new/bin/$command"
	done
done
# deploy.bats has no keys to share
[ -e new/lib/auth_none.so ]
LD_LIBRARY_PATH=$PWD/new/lib new/bin/slurmctld -V
# whole or not at all: the rename is last
mv new "$to"
