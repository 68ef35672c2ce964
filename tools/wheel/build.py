#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheels: build.py [--out DIR] [--jobs N] [ARCHITECTURE...]

A wheel has the library, the command, the header, the simulated driver, the man pages and the Python
module.  The compiler is zig's, which PyPI has as a wheel: it brings the symbols of glibc 2.17, so
what it builds runs with that and later ones, and it builds for x86_64 and aarch64 alike.  `make
wheel` runs this; `pip install .` does, too (pyproject.toml).
"""

import argparse
import base64
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile

TOP = pathlib.Path(__file__).resolve().parents[2]
ZIG = "ziglang==0.13.0.post1"
GLIBC = "2.17"
TAGS = {arch: f"py3-none-manylinux_2_17_{arch}.manylinux2014_{arch}" for arch in ("x86_64", "aarch64")}
# Headers of libraries that the command loads at run time, and of uthash.  The compiler must not see
# other headers in their folder, since they are of this machine's C library.
HEADERS = ("uthash.h", "libsmartcols", "elfutils", "dwarf.h", "gelf.h", "libelf.h", "curses.h", "ncurses_dll.h",
           "term.h", "unctrl.h")
DATE = (2020, 1, 1, 0, 0, 0)


def run(*command, cwd=None, env=None, log=None):
    """Runs the command, and shows its output only if it fails."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if log:
        log.write_bytes(done.stdout)
    if done.returncode:
        sys.stderr.write(done.stdout.decode(errors="replace")[-4000:])
        sys.exit(f"{shlex.join(str(c) for c in command)}: status {done.returncode}")
    return done.stdout.decode(errors="replace")


def version():
    return re.search(r"^AC_INIT\(\[culimbo\], \[([^]]+)\]", (TOP / "configure.ac").read_text(), re.M).group(1)


def find_zig(work):
    """Returns the command that runs zig, from this Python or from a virtual environment made for it."""
    for python in (sys.executable, work / "zig" / "bin" / "python"):
        if pathlib.Path(python).exists() and not subprocess.run(
                [str(python), "-c", "import ziglang"], stderr=subprocess.DEVNULL).returncode:
            return [str(python), "-m", "ziglang"]
    venv.create(work / "zig", with_pip=True, clear=True)
    python = work / "zig" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", ZIG)
    return [str(python), "-m", "ziglang"]


def find_cuda():
    for folder in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", TOP / "build" / "cuda-headers"):
        if folder and (pathlib.Path(folder) / "include" / "cudaTypedefs.h").exists():
            return folder
    sys.exit("no CUDA headers: set CUDA_HOME, or run ./bootstrap, which fetches them")


def find_headers(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in HEADERS:
        there = pathlib.Path("/usr/include") / name
        if not there.exists():
            sys.exit(f"there is no {there}: ./bootstrap installs what is missing")
        (folder / name).symlink_to(there)
    return folder


def compile_for(arch, work, jobs):
    """Builds and installs culimbo for @arch.  Returns the folder that has bin/, lib/ and so on."""
    tree, stage = work / arch, work / arch / "stage"
    if not (TOP / "configure").exists():
        run("autoreconf", "-fi", cwd=TOP)
    config = tree / "config.status"
    made_anew = not config.exists() or config.stat().st_mtime < (TOP / "configure").stat().st_mtime
    if made_anew:  # with another version: nothing of the old one may stay
        shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True, exist_ok=True)
    compiler = tree / "zig-cc"
    compiler.write_text("#!/bin/sh\nexec %s cc -target %s-linux-gnu.%s \"$@\"\n" %
                        (shlex.join(find_zig(work)), arch, GLIBC))
    compiler.chmod(0o755)
    headers = find_headers(work / "include")
    # these replace pkg-config's answers, which would be about this machine's libraries
    found = {f"{name}_{what}": f"-I{headers}" for name in ("SMARTCOLS", "NCURSES", "LIBDW") for what in ("CFLAGS", "LIBS")}
    found["SMARTCOLS_CFLAGS"] = f"-I{headers}/libsmartcols"
    if made_anew:
        run(TOP / "configure", "-q", f"CC={compiler}", "--build=" + build_system(), f"--host={arch}-linux-gnu",
            "--prefix=/usr", "--libdir=/usr/lib", "--sysconfdir=/etc", f"--with-cuda={find_cuda()}",
            f"CPPFLAGS=-I{headers}", "CFLAGS=-O2 -fstack-protector-strong",
            # the linker thinks that these are unused, but they are found by their section's name
            "LDFLAGS=-Wl,--no-gc-sections -Wl,-z,relro -Wl,-z,now -Wl,-s",
            *(f"{name}={value}" for name, value in found.items()), cwd=tree, log=tree / "configure.out")
    run("make", "-s", f"-j{jobs}", "all", cwd=tree, log=tree / "make.out", env=clean_environment())
    shutil.rmtree(stage, ignore_errors=True)
    run("make", "-s", "install", f"DESTDIR={stage}", cwd=tree, env=clean_environment())
    return stage / "usr"


def clean_environment():
    """Returns the environment without the variables of an outer make."""
    return {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}


def build_system():
    return run("sh", TOP / "build-aux" / "config.guess").strip()


def pages():
    """Makes man pages and completions, for which the command must run on this machine."""
    for tree in (TOP / "build", TOP):
        if (tree / "tools" / "pages" / "culimbo.1").exists():
            return tree / "tools" / "pages"
    return None


def metadata():
    readme = (TOP / "README.md").read_text()
    return f"""Metadata-Version: 2.1
Name: culimbo
Version: {version()}
Summary: CUDA IPC memory sharing made safe for unmodified programs
License: Apache-2.0
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Framework :: Pytest
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Topic :: Software Development :: Debuggers
Description-Content-Type: text/markdown

{readme}"""


def make_wheel(arch, usr, out, made_pages):
    """Packs the wheel for @arch from the installed tree @usr.  Returns its path."""
    name = f"culimbo-{version()}"
    info, data = f"{name}.dist-info", f"{name}.data/data/share"
    files = {}  # name in the wheel: (bytes, executable)

    def add(path, content, executable=False):
        files[path] = (content if isinstance(content, bytes) else content.encode(), executable)

    for source in sorted((TOP / "tools" / "wheel" / "culimbo").glob("*.py")):
        add(f"culimbo/{source.name}", source.read_text().replace("@VERSION@", version()))
    add("culimbo/native/bin/culimbo", (usr / "bin/culimbo").read_bytes(), True)
    add("culimbo/native/lib/libculimbo.so", (usr / "lib/libculimbo.so").read_bytes(), True)
    add("culimbo/native/lib/culimbo/sim/libcuda.so.1", (usr / "lib/culimbo/sim/libcuda.so.1").read_bytes(), True)
    add("culimbo/native/include/culimbo.h", (usr / "include/culimbo.h").read_bytes())
    add(f"{data}/man/man3/culimbo.h.3", (TOP / "doc/culimbo.h.3").read_bytes())
    for page in sorted(made_pages.glob("culimbo*.[17]")) if made_pages else ():
        add(f"{data}/man/man{page.suffix[1:]}/{page.name}", page.read_bytes())
    for page, to in (("culimbo.bash", "bash-completion/completions/culimbo"), ("_culimbo", "zsh/site-functions/_culimbo"),
                     ("culimbo.fish", "fish/vendor_completions.d/culimbo.fish")):
        if made_pages:
            add(f"{data}/{to}", (made_pages / page).read_bytes())
    for source in sorted((usr / "share/doc/culimbo").iterdir()):
        add(f"{data}/doc/culimbo/{source.name}", source.read_bytes())
    add(f"{data}/culimbo/culimbo-dashboard.json", (usr / "share/culimbo/culimbo-dashboard.json").read_bytes())
    add(f"{info}/METADATA", metadata())
    add(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: culimbo\nRoot-Is-Purelib: false\n" +
        "".join(f"Tag: py3-none-{tag}\n" for tag in TAGS[arch].split("-", 2)[2].split(".")))
    add(f"{info}/entry_points.txt", "[console_scripts]\nculimbo = culimbo.__main__:main\n\n"
        "[pytest11]\nculimbo = culimbo.pytest_plugin\n")
    add(f"{info}/LICENSE", (TOP / "LICENSE").read_bytes())
    record = ""
    for path, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    add(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    wheel = pathlib.Path(out) / f"{name}-{TAGS[arch]}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path, (content, executable) in files.items():
            entry = zipfile.ZipInfo(path, DATE)
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    return wheel


def build(out, architectures, work, jobs):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    wheels, made_pages = [], None
    # this machine's architecture first: its command makes the man pages
    for arch in sorted(architectures, key=lambda arch: arch != os.uname().machine):
        usr = compile_for(arch, work, jobs)
        if (work / arch / "tools/pages/culimbo.1").exists():
            made_pages = work / arch / "tools/pages"
        wheels.append(make_wheel(arch, usr, out, made_pages or pages()))
    return wheels


# ------------------------------------------------------- what pip calls (PEP 517)
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    work = TOP / "build" / "wheel"
    work.mkdir(parents=True, exist_ok=True)
    return build(wheel_directory, [os.uname().machine], work, os.cpu_count() or 2)[0].name


def get_requires_for_build_wheel(config_settings=None):
    return [ZIG]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=TOP / "build" / "wheel" / "dist")
    parser.add_argument("--work", default=TOP / "build" / "wheel", type=pathlib.Path)
    parser.add_argument("--jobs", default=os.cpu_count() or 2, type=int)
    parser.add_argument("--compiler", action="store_true", help="only fetch the compiler")
    parser.add_argument("architecture", nargs="*", default=sorted(TAGS), help="x86_64, aarch64; default: both")
    args = parser.parse_args()
    for arch in args.architecture:
        if arch not in TAGS:
            parser.error(f"{arch}: one of {', '.join(sorted(TAGS))}")
    args.work.mkdir(parents=True, exist_ok=True)
    if args.compiler:
        find_zig(args.work.resolve())
        return
    for wheel in build(args.out, args.architecture, args.work.resolve(), args.jobs):
        print(f"{wheel}  {wheel.stat().st_size} bytes")


if __name__ == "__main__":
    main()
