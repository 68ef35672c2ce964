#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fetch-ucx.sh [BUILD_DIR [PLATFORM]]: fetches UCX's libraries and headers from the package
# registry (the wheel libucx-cu13, some 45 MB) into BUILD_DIR/tests/patch/ucx, for ucx.sh.
# PLATFORM is pip's name of another platform, such as manylinux_2_28_aarch64.
# It builds and installs nothing.  It fails, and leaves nothing, if pip can't reach a registry
# or the registry has no wheel for the platform.
set -eu
to=$(cd "${1:-build}" && pwd)/tests/patch/ucx
[ ! -e "$to" ] || exit 0
mkdir -p "${to%/*}"
tmp=$(mktemp -d "$to.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' HUP INT TERM
python3 -m pip download -q --no-input --no-deps --only-binary :all: \
	--disable-pip-version-check --timeout 30 --retries 1 -d "$tmp/wheel" ${2:+--platform "$2"} \
	'libucx-cu13==1.22.*' < /dev/null
# what ucx.c needs of it, and the CUDA runtime that comes with it
python3 - "$tmp"/wheel/*.whl "$tmp/whole" << 'END'
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
for name in wheel.namelist():
    if name.startswith(("libucx/include/", "libucx_cu13.libs/", "libucx_cu13-")) or name in (
            "libucx/lib/libucm.so.0", "libucx/lib/libucs.so.0", "libucx/lib/ucx/libucm_cuda.so.0"):
        wheel.extract(name, sys.argv[2])
END
# whole or not at all: the rename is last
mv "$tmp/whole" "$to"
