# SPDX-License-Identifier: Apache-2.0
"""Tests the installed wheel's Python module: wheel_api.py DEMO.  Prints "right" at the end."""

import multiprocessing
import os
import subprocess
import sys

import culimbo

DEMO = sys.argv[1] if len(sys.argv) > 1 else None


def is_active(_):
    return culimbo.active(), os.environ.get("CULIMBO_GRACE")


def main():
    for what in ("library", "command", "include", "simulated-driver"):
        assert os.path.exists(culimbo.path(what)), what
    assert os.path.exists(os.path.join(culimbo.path("include"), "culimbo.h"))
    assert not culimbo.active()
    try:
        culimbo.report()
        raise AssertionError("a report without the library")
    except RuntimeError as error:
        assert "culimbo run" in str(error)

    # env(): our library comes first, and once; this process's environment does not change
    before = dict(os.environ)
    library = culimbo.path()
    first = culimbo.env({"LD_PRELOAD": "/other.so:/elsewhere/libculimbo.so", "CULIMBO_LOG": "info"}, grace="1s", log=None)
    assert first == {"LD_PRELOAD": library + ":/other.so", "CULIMBO_GRACE": "1s"}, first
    assert culimbo.env(first)["LD_PRELOAD"] == first["LD_PRELOAD"]
    simulated = culimbo.env({"LD_LIBRARY_PATH": "/lib1"}, simulate=True)
    assert simulated["LD_LIBRARY_PATH"] == os.path.dirname(culimbo.path("simulated-driver")) + ":/lib1"
    assert dict(os.environ) == before

    said = subprocess.run([DEMO], env=culimbo.env(simulate=True), stdout=subprocess.PIPE, universal_newlines=True)
    assert said.stdout == "right: the consumer reads 17, its own byte\n", said.stdout

    # preload(): for programs that are started within it
    for method in ("spawn", "forkserver"):
        with culimbo.preload(grace="3s"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                assert pool.map(is_active, [0]) == [(True, "3s")], method
    assert dict(os.environ) == before
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(is_active, [0]) == [(False, None)]

    # within a process that runs under culimbo
    code = (
        "import culimbo; assert culimbo.active(); r = culimbo.report(); "
        "assert r[0]['type'] == 'process' and r[-1]['type'] == 'summary', r; "
        "assert 'culimbo: SUMMARY' in culimbo.report(text=True); print('ok')"
    )
    said = subprocess.check_output([sys.executable, "-c", code], env=culimbo.env(), universal_newlines=True)
    assert said == "ok\n", said
    print("right")


if __name__ == "__main__":
    main()
