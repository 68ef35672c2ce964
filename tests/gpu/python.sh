#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Unmodified Python packages on the simulated driver: cuda-bindings of CUDA 12 and 13,
# and Numba.  They share small blocks and free them.  Bare, the consumer reads another
# block's bytes; preloaded, its own.  Prints TAP.
#
# pip downloads the packages into BUILD_DIR/tests/gpu/python, once.  Where pip cannot
# reach a registry the tests are skipped.
set -u
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD PYTHONPATH "${!CULIMBO_@}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
build=$(cd "${1:-${top_builddir:-build}}" 2> /dev/null && pwd) || {
	echo "Bail out! no build tree in ${1:-build}"
	exit 2
}
culimbo=$build/tools/culimbo
packages=$build/tests/gpu/python
logs=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-python.XXXXXX") || exit 2
export CULIMBO_DIR=$logs/limbo CULIMBO_SIM_DIR=$logs/sim NUMBA_CACHE_DIR=$logs/numba
# clients.bash reads them
{
	deadline=$((SECONDS + 500))
	bare_by=("$culimbo" run --simulate --no-preload --)
	preloaded_by=("$culimbo" run --simulate --)
}
# shellcheck source=tests/gpu/clients.bash
. "$here/clients.bash"

# pip_client NAME MODULE CLIENT PACKAGE...
pip_client()
{
	local name=$1 module=$2 what=$3
	shift 3

	if ! fetch "$name" "$@"; then
		show "$logs/pip" pip 5
		skip "$name" "pip cannot fetch $*"
		return
	fi
	python_client "$name" "$module" foreign 60 "$here/share.py" "$what"
}

if ! python3 -m pip --version >/dev/null 2>&1; then
	echo "1..0 # SKIP there is no pip"
	exit 0
fi
pip_client bindings-13 cuda.bindings bindings 'cuda-bindings==13.0.*' cuda-pathfinder
pip_client bindings-12 cuda.bindings bindings 'cuda-bindings==12.9.*' cuda-pathfinder
pip_client numba numba.cuda numba numba 'numba-cuda==0.30.*' numpy llvmlite packaging \
	'cuda-bindings==13.0.*' cuda-pathfinder cuda-core
echo "1..$number"
[ "$failed" -eq 0 ]
