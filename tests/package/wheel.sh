#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests the wheels; prints TAP.  It checks what each needs from a system, and asks auditwheel.  It
# installs this machine's wheel into a fresh virtual environment of each Python here: the one on PATH,
# and pyenv's.  With CHROOT=DIR, a root file system with python3 and an older C library, it installs it
# there as well (root only).
#
# `make check-wheel` builds them (`make wheel`) and runs it.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
here=$top_srcdir/tests/package
demo=$top_builddir/tests/e2e/demo
machine=$(uname -m)
version=$("$top_builddir/tools/culimbo" --version)
version=${version#culimbo }
export CULIMBO_DIR="$tmp/limbo" CULIMBO_SIM_DIR="$tmp/sim"
unset PYTHONPATH LD_LIBRARY_PATH

skip() { # TEXT
	number=$((number + 1))
	echo "ok $number # SKIP $1"
}
newest_version() { # FILE: prints the newest version of the C library's symbols that it needs
	readelf -VW "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1
}

# ---------------------------------------------------------------- each of them
python3 -m venv "$tmp/audit" > /dev/null 2>&1 && "$tmp/audit/bin/pip" install -q --disable-pip-version-check auditwheel > "$tmp/pip.log" 2>&1 ||
	rm -rf "$tmp/audit"
for arch in x86_64 aarch64; do
	set -- "$top_builddir/wheel/dist/culimbo-$version-py3-none-manylinux_2_17_$arch.manylinux2014_$arch.whl"
	if [ ! -f "$1" ]; then
		skip "there is no wheel for $arch: make wheel"
		continue
	fi
	[ "$arch" != "$machine" ] || wheel=$1
	mkdir "$tmp/$arch" && python3 -m zipfile -e "$1" "$tmp/$arch" || exit 1
	for file in bin/culimbo lib/libculimbo.so lib/culimbo/sim/libcuda.so.1; do
		file=$tmp/$arch/culimbo/native/$file
		newest=$(newest_version "$file")
		[ "$(printf '%s\n' "$newest" 2.17 | sort -V | tail -n 1)" = 2.17 ]
		ok $? "$arch: ${file##*/} needs no symbol of a glibc above 2.17 ($newest)"
		readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
			grep -vE '^(libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux-[-a-z0-9_]*\.so\.[0-9])$' > "$tmp/needs"
		[ ! -s "$tmp/needs" ]
		ok $? "$arch: ${file##*/} needs no library but libc" || show "$tmp/needs"
	done
	echo "# $arch: ${1##*/}: $(wc -c < "$1") bytes, $(($(wc -c < "$1") / 1024)) KiB, $(python3 -m zipfile -l "$1" | grep -c 'share/man/') man pages"
	[ "$(python3 -m zipfile -l "$1" | grep -c 'share/man/')" -ge 10 ]
	ok $? "$arch: the man pages are in it"
	missing=
	for document in culimbo/culimbo-dashboard.json doc/culimbo/troubleshooting.md doc/culimbo/json.md; do
		[ -s "$tmp/$arch/culimbo-$version.data/data/share/$document" ] || missing="$missing $document"
	done
	[ -z "$missing" ]
	ok $? "$arch: so are the documents that they name, and the dashboard$missing"
	if [ -d "$tmp/audit" ]; then
		"$tmp/audit/bin/auditwheel" show "$1" > "$tmp/audit.log" 2>&1
		tr '\n' ' ' < "$tmp/audit.log" | grep -qE 'platform tag( to|:) *"manylinux_2_(5|12|17)_'"$arch"
		ok $? "$arch: auditwheel says that it is for manylinux_2_17 or older" || show "$tmp/audit.log"
		# what it says, without empty lines
		sed -n "s|$top_builddir/||; /./s/^/# auditwheel: /p" "$tmp/audit.log"
	else
		skip "$arch: auditwheel cannot be had"
	fi
done
[ -n "${wheel-}" ] || finish

# -------------------------------------------------------- each Python of this machine
pip=$tmp/audit/bin/pip
[ -x "$pip" ] || pip="python3 -m pip"
seen=
for python in python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
	its=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) || continue
	case $its in 3.[89] | 3.1[0-9]) ;; *) continue ;; esac
	case " $seen " in *" $its "*) continue ;; esac
	seen="$seen $its"
	env=$tmp/env-$its
	"$python" -m venv --without-pip "$env" &&
		$pip --python "$env/bin/python" install -q --disable-pip-version-check --no-index --no-deps "$wheel" \
			> "$tmp/pip.log" 2>&1
	ok $? "Python $its: it installs into a fresh virtual environment" || { show "$tmp/pip.log"; continue; }
	[ "$("$env/bin/culimbo" --version)" = "culimbo $version" ] && [ -s "$env/share/man/man7/culimbo.7" ] &&
		"$env/bin/python" -m culimbo run --simulate -- "$demo" 2>&1 | grep -q '^right'
	ok $? "Python $its: culimbo, python -m culimbo run, man pages"
	"$env/bin/python" "$here/wheel_api.py" "$demo" > "$tmp/out" 2>&1 && grep -qx right "$tmp/out"
	ok $? "Python $its: env, path, preload, active, report" || show "$tmp/out"
	if ! $pip --python "$env/bin/python" install -q --disable-pip-version-check pytest > "$tmp/pip.log" 2>&1; then
		skip "Python $its: pytest cannot be had"
		continue
	fi
	mkdir -p "$tmp/tests" && cp "$here/wheel_plugin.py" "$tmp/tests/test_it.py"
	(cd "$tmp/tests" && TRAINER=$top_srcdir/tests/report/trainer.py timeout 300 \
		"$env/bin/python" -m pytest -p no:cacheprovider -v --culimbo-simulate test_it.py) > "$tmp/out" 2> "$tmp/err"
	[ "$(grep -cE '^test_it.py::test_bad[a-z_]* FAILED' "$tmp/out")" = "$(grep -c '^def test_bad' "$tmp/tests/test_it.py")" ] &&
		! grep -vE '::test_bad' "$tmp/out" | grep -qE '^test_it.py::.* (FAILED|ERROR)' &&
		grep -q ' load_batch (.*/trainer\.py:' "$tmp/out"
	ok $? "Python $its: pytest --culimbo-simulate fails those tests that leak, and names the lines" || show "$tmp/out"
done
for its in 3.8 3.9 3.10 3.11 3.12 3.13; do
	case " $seen " in *" $its "*) ;; *) echo "# not here, so not tested: Python $its" ;; esac
done

# ----------------------------------------------------------------- an older C library
if [ -z "${CHROOT-}" ]; then
	finish
fi
inside=$CHROOT/opt/culimbo-test
rm -rf "$inside" && mkdir -p "$inside" && python3 -m zipfile -e "$wheel" "$inside" &&
	cp "$top_srcdir/tests/report/trainer.py" "$inside/" && chmod +x "$inside"/culimbo/native/*/culimbo || exit 1
libc=$(chroot "$CHROOT" /usr/bin/ldd --version | sed -n '1s/.* //p')
# shellcheck disable=SC2016 # the inner shell's
unshare -m sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$CHROOT" /usr/bin/env PYTHONPATH=/opt/culimbo-test CULIMBO_DIR=/tmp/limbo CULIMBO_SIM_DIR=/tmp/sim \
	python3 -m culimbo check --simulate -- python3 /opt/culimbo-test/trainer.py > "$tmp/out" 2>&1
grep -q 'LEAK: .* never closed 2 blocks' "$tmp/out" && grep -q ' load_batch (.*trainer.py:' "$tmp/out"
ok $? "glibc $libc, in $CHROOT: culimbo check finds the leak of a Python program" || show "$tmp/out"
rm -rf "$inside"
finish
