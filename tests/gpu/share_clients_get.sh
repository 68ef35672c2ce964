#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Collects what share_clients.sh runs into a folder and an archive, for a machine that cannot
# reach a registry.
#
#	bash tests/gpu/share_clients_get.sh DIR
#
# DIR (created anew) and DIR.tar.xz get the wheels, fetched by pip, without the parts that no
# client needs.  They are for the Python version SHARE_PYTHON (3.12).  PyTorch, CuPy, Numba,
# cuda-bindings and numpy are too big to carry; the machine must have them.
set -eu
usage='usage: share_clients_get.sh DIR'
to=${1:?$usage}
python=${SHARE_PYTHON:-3.12}
rm -rf "$to"
mkdir -p "$to/site"
to=$(cd "$to" && pwd)

platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
	platforms+=(--platform "${platform}_$(uname -m)")
done
wanted=(
	torch-memory-saver==0.0.10
	rmm-cu13==26.10.0 librmm-cu13==26.10.0 rapids-logger==0.3.0
	libucx-cu13==1.22.0 ucxx-cu13==0.52.0 libucxx-cu13==0.52.0
	nixl==1.5.1 nixl-cu13==1.5.1
)
python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: \
	--no-compile --root-user-action=ignore --python-version "$python" --implementation cp \
	"${platforms[@]}" --target "$to/site" "${wanted[@]}"
printf '%s\n' "for Python $python" "${wanted[@]}" >"$to/versions"

# needed NAME...: prints the files of these names and the libraries that they need, of those in $to
needed()
{
	local -a rest=("$@")
	local -A seen=()
	local name file

	while [ ${#rest[@]} -gt 0 ]; do
		name=${rest[0]} rest=("${rest[@]:1}")
		[ -z "${seen[$name]-}" ] || continue
		seen[$name]=1
		while read -r file; do
			echo "$file"
			mapfile -t -O ${#rest[@]} rest < <(readelf -d "$file" |
				sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
		done < <(find "$to/site" -name "$name" \( -type f -o -type l \))
	done
}

# headers, archives, programs, and what is for CUDA 12, for other transports or for PyTorch's own extension
cd "$to/site"
rm -rf bin libucx/bin libucx/include libucx/share libucx/lib/cmake libucx/lib/pkgconfig librmm/include \
	librmm/lib64/cmake librmm/lib64/rapids libucxx/include libucxx/lib64/cmake ucxx/include ucxx/examples \
	ucxx/benchmarks rapids_logger/include nixl_ep_cu13 nixl_cu13.scripts nixl_cu13-*.data nixl_cu13.libs/nixl pkgconfig
# of nixl's plugins the one for UCX; it looks for them in this folder
find .nixl_cu13.mesonpy.libs/plugins -name '*.so*' ! -name libplugin_UCX.so -exec rm -f {} +
find . \( -name '*.pxd' -o -name '*.pyx' -o -name '*.pyi' -o -name '*.a' -o -name '*.la' -o -name include \
	-o -name '*.hpp' -o -name '*_cu12.abi3.so' -o -name 'torch_memory_saver_hook_mode_*[a-z].abi3.so' \
	\) -prune -exec rm -rf {} +
# nixl brings its own UCX: of its libraries, those that its bindings and its plugin for UCX and CUDA need
needed '_bindings.*.so' libplugin_UCX.so 'libuct_cuda.so*' 'libucm_cuda.so*' 'libuct_cma.so*' 'libnixl*.so' |
	sort -u >"$to/needed"
find nixl_cu13.libs -name '*.so*' | while read -r file; do
	grep -qxF "$to/site/$file" "$to/needed" || rm -f "$file"
done
rm "$to/needed"
find libucx/lib/ucx -name '*.so*' ! -name 'libuct_cuda.so*' ! -name 'libucm_cuda.so*' ! -name 'libuct_cma.so*' \
	-exec rm -f {} +
find . -type f -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true
# a wheel has no links: files that are the same become links
find . -type f -name '*.so*' -size +64k -exec sha256sum {} + | sort | while read -r sum file; do
	if [ "$sum" = "${last-}" ] && [ "$(dirname "$file")" = "$(dirname "$first")" ]; then
		ln -sf "$(basename "$first")" "$file"
	else
		last=$sum first=$file
	fi
done

cd "$(dirname "$to")"
tar -cf - "$(basename "$to")" | xz -T0 -6 >"$to.tar.xz"
cat "$to/versions"
du -sh "$to/site"/* | sort -h | tail -n 8
ls -l "$to.tar.xz"
