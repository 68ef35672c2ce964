# SPDX-License-Identifier: Apache-2.0
"""CUDA IPC made safe for unmodified programs: see culimbo(7).

A process is under culimbo if LD_PRELOAD named the library when it began.  So these functions
affect processes that are started later:

    subprocess.run(["./worker"], env=culimbo.env())

    with culimbo.preload():
        pool = multiprocessing.get_context("spawn").Pool(8)

Both sides of a share must be under culimbo: start the program itself by ``culimbo run -- python3
program.py``, or have it ask culimbo.active().
"""

import contextlib
import ctypes
import json
import os
import tempfile

__version__ = "@VERSION@"
__all__ = ["active", "env", "path", "preload", "report"]

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
_PATHS = {
    "library": ("lib", "libculimbo.so"),
    "command": ("bin", "culimbo"),
    "include": ("include",),
    "simulated-driver": ("lib", "culimbo", "sim", "libcuda.so.1"),
}


def path(what="library"):
    """Returns where libculimbo.so is, for LD_PRELOAD; or "command", "include" or "simulated-driver"."""
    return os.path.join(_HERE, *_PATHS[what])


def env(base=None, *, simulate=False, **variables):
    """Returns the environment for starting a process under culimbo, as a new dict.

    base: the environment to add to; os.environ by default.
    simulate: the process gets the simulated driver, and needs no GPU.
    variables: grace="1s" is CULIMBO_GRACE=1s; culimbo(7) has all of them.  None removes one.
    """
    result = dict(os.environ if base is None else base)
    library = path()
    for breaks in " :$":
        if breaks in library:
            raise ValueError("ld.so splits LD_PRELOAD at %r, which is in %s" % (breaks, library))
    others = [
        entry
        for entry in result.get("LD_PRELOAD", "").replace(":", " ").split()
        if os.path.basename(entry) != os.path.basename(library)
    ]
    result["LD_PRELOAD"] = ":".join([library] + others)
    if simulate:
        folder = os.path.dirname(path("simulated-driver"))
        paths = [p for p in result.get("LD_LIBRARY_PATH", "").split(":") if p and p != folder]
        result["LD_LIBRARY_PATH"] = ":".join([folder] + paths)
    for name, value in variables.items():
        name = "CULIMBO_" + name.upper()
        if value is None:
            result.pop(name, None)
        else:
            result[name] = str(value)
    return result


@contextlib.contextmanager
def preload(*, simulate=False, **variables):
    """A context manager: processes that are started within it are under culimbo.

    The arguments are those of env().  It changes os.environ, for the whole process, and restores it.
    It is for subprocess, and for multiprocessing with "spawn" or "forkserver".  A "fork" child is
    under culimbo only if its parent is.
    """
    wanted = env(simulate=simulate, **variables)
    before = dict(os.environ)
    changed = {name for name in set(before) | set(wanted) if before.get(name) != wanted.get(name)}
    _set_environment(changed, wanted)
    try:
        yield
    finally:
        _set_environment(changed, before)


def _set_environment(names, values):
    for name in names:
        if name in values:
            os.environ[name] = values[name]
        else:
            os.environ.pop(name, None)


def _library():
    """Returns the library in this process; None: it is not preloaded."""
    program = ctypes.CDLL(None)
    return program if hasattr(program, "culimbo_report") else None


def active():
    """Returns whether this process is under culimbo."""
    return _library() is not None


def report(text=False):
    """Returns the report that culimbo would write if this process ended now.

    It is a list of dicts (doc/report-format.md), or with text=True the text.  Raises RuntimeError if
    this process is not under culimbo.
    """
    library = _library()
    if library is None:
        raise RuntimeError("this process is not under culimbo: start it by `culimbo run -- CMD`")
    with tempfile.TemporaryFile() as written:
        found = library.culimbo_report(written.fileno(), b"text" if text else b"jsonl")
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        written.seek(0)
        said = written.read().decode("utf-8", "replace")
    return said if text else [json.loads(line) for line in said.splitlines()]
