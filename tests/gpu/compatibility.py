#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes doc/compatibility.md from the printed results of the tests.

    compatibility.py [--check]

Reads doc/results/*/*.tap: the tables of run.sh, matrix.sh and pool_clients.sh, and when and where
they ran.  The page shows the latest run of each client on each kind of machine.  A run that failed
bare, whose processes got no memory for a context, or that had less time under culimbo than it took bare, says nothing
about culimbo and is left out.  A client that `matrix.sh --list` or
`pool_clients.sh --list` prints and that has not run on a GPU yet is marked so.  With --check nothing
is written; the exit status is 1 when the page differs from the results.
"""

import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = TOP / "doc" / "compatibility.md"
NOT_YET = "not run yet"

# run.sh's table has only the names of its clients
SHARE = "blocks freed while another process maps them; a leak, which both reports must name"
RUN_SH = {
    "bindings": ("cuda-bindings", SHARE),
    "cupy": ("CUDA runtime", SHARE + " (no pool)"),
    "cupy-pool": ("CUDA runtime", SHARE + " (its pool, emptied)"),
    "numba": ("cuda-bindings or ctypes", SHARE),
    "torch": ("CUDA runtime, shared", "500 tensors and events by spawn; a leak, which both reports must name"),
}

# Older runs printed no version of some clients.  A version stands here beside what their output has of
# that version alone: a build id or a line number in a call stack, each found in PyPI's wheel.  PyTorch's
# build id is of the PyTorch whose version matrix.sh printed on the same machine.
SHOWN = {
    "bindings": ("2dbe77e0cd4122c151ee3bbad2377046029c7051", "cuda-bindings 13.3.1"),
    "cupy": ("d96d4ed0d7980d48d7efbb5ac2bedbbefc95f934", "CuPy 14.2.0"),
    "cupy-pool": ("d96d4ed0d7980d48d7efbb5ac2bedbbefc95f934", "CuPy 14.2.0"),
    "numba": ("numba/cuda/cudadrv/driver.py:1558", "numba-cuda 0.30.2 to 0.30.4"),
    "torch": ("51614a4f0fd6e73ad474fbcf2405bd32b6293f5a", "PyTorch 2.11.0+cu130"),
    # the program that was carried to that machine says "release 13.0"
    "pool-sample": ("#| pool-sample|-|CUDA runtime, static|", "CUDA runtime 13.0"),
}

# fetch-runtimes.sh builds these, and run.sh runs them
RUNTIMES = ("11.8-shared", "12.1-shared", "12.9-shared", "12.9-static", "13.0-shared", "13.0-static")

HEAD = """# What runs under culimbo

`tests/gpu/compatibility.py` makes this page from the tests' output in `doc/results/`: don't edit it. Each client is an unmodified program that
ran without culimbo (*bare*) and under `culimbo run`. The columns *bare* and *culimbo* say whose bytes its consumer read after the producer had freed the block:
its own, or foreign ones; `none` where the client doesn't check. *same* means: stdout and exit status are the same (except for foreign bytes, which the client
must no longer read), and the reports at exit count what it shared. *NOT SEEN* means: these reports do not count what it shared, and the output may differ,
too. *DIFFERS* means: the output or the exit status differs. The page has the latest run of each client on each kind of machine that came to a result; all runs, failed ones
included, are in [results/](results/README.md).

Where *bare* says `refused`, CUDA makes no legacy handle of such memory (virtual memory, stream-ordered memory). These ran with
`CULIMBO_SHARE=all`, or `all,visible` where the row says so: [sharing.md](sharing.md) says what can be shared how.

"""

TAIL = """
## Programs that patch the driver

UCX (used by Open MPI, NIXL, RAPIDS and Dask) writes a jump over the first bytes of driver functions, to learn of allocations and frees.
It moves the overwritten instructions elsewhere, and can move only a few kinds of instructions. So each function that culimbo gives a program, by `dlsym`,
`cuGetProcAddress` or linking, begins with instructions that can be moved. A call by an address that the program was given executes four instructions for that on x86-64, and **five** on
aarch64: UCX overwrites four instructions there and can move no jump, so the jump is the fifth. A call of a program that is linked to libcuda passes two such functions, the symbol to which it is
bound and then the one that `dlsym` gives, so that a library that patches the latter sees it, as without culimbo: **eight** instructions on x86-64, and **thirteen** on aarch64, where
the first jumps by a variable, whose address takes two instructions and whose load, in the order that the target needs, one more. `tests/patch/decode.sh` counts those of each function in the built file. A patched call reaches UCX first, then culimbo. Landing pads for indirect branches can't be moved. So these functions have none, and the library
is not marked for IBT (x86-64; no Linux has it for programs today) or BTI (aarch64; it is then off for the library's own pages). Shadow stacks and pointer
authentication still work.
`tests/patch/`, part of `make check`, patches functions obtained in each of these ways with its own patcher, and with the library of UCX 1.22 (x86-64; pip needs a registry).

## What `LD_PRELOAD` does not reach

In these cases a program runs as without culimbo: unprotected, but unharmed. `tests/tools/unreached.bats` and `tests/tools/run.bats`
show this on the simulated driver, in `make check`.

| case | what happens | which message says so |
|---|---|---|
| a plugin opened with `RTLD_DEEPBIND` that is linked to libcuda | its calls go straight to the driver; its handles carry no stamp | with `CULIMBO_REPORT=always`: "no CUDA call of it reached culimbo"; an importer under culimbo that never closes it: "imported from processes without culimbo or their file (unmanaged), and never closed" |
| a plugin in a namespace of `dlmopen` | the same: preloaded libraries are not in such a namespace | the same |
| a setuid or setgid program, or one with file capabilities | ld.so ignores `LD_PRELOAD` and says nothing | `culimbo run` does not start it (126): "is setuid, so ld.so would ignore LD_PRELOAD: start what it runs by 'culimbo run' instead, or run it without by --no-preload" |
| a statically linked program | there is no ld.so | `culimbo run`: "warning: PROGRAM is statically linked: culimbo cannot see what it does (programs that it starts are seen)" |
| a program for another C library or another architecture | the library cannot be loaded into it | `culimbo run` does not start it (126), and names that C library or architecture |

Other preloaded libraries may wrap driver calls as well. A library that finds the driver by `dlsym` works beside culimbo, whichever is loaded first (`tests/doors/lookup.bats`; *second-dlsym*
above). A library that finds the driver by libc's own `dlsym`, as HAMi-core does, hides these calls from culimbo: what they free is not protected. A process that shares
says so once, with the library's path, and so does `culimbo doctor` (`tests/doors/beside.bats`, `tests/tools/doctor.bats`). A second copy of culimbo does nothing.
"""


def machine_of(text, folder):
    """Returns (kind, 'date, GPU, driver'): the first GPU's name and the number of GPUs."""
    gpus = re.findall(r"^# GPU, driver, memory: (.*)$", text, re.M)
    date = re.search(r"^# date: (\d{4}-\d\d-\d\d)", text, re.M)
    when = date.group(1) if date else folder[:10]
    if not gpus or gpus[0] == "simulated":
        return "simulated", f"{when}, simulated driver"
    name, driver, *_ = [part.strip() for part in gpus[0].split(",")]
    count = f"{len(gpus)} " if len(gpus) > 1 else ""
    return f"{count}{name}", f"{when}, {count}{name}, driver {driver}"


def version_of(name, text):
    """Returns the version of a client whose row has none, as the output of its run shows it."""
    printed = re.search(rf"^# version of {re.escape(name)}: (.*)$", text, re.M)
    if printed:
        return printed.group(1)
    runtime = re.fullmatch(r"cudart-([0-9.]+)-\w+", name)
    if runtime:
        return f"CUDA runtime {runtime.group(1)}"
    if name.startswith("cudart-"):
        return f"CUDA runtime {re.search(r'^# nvcc: (.+)$', text, re.M).group(1)}"
    if name == "share-ptds":  # built with the nvcc that built this client
        return re.search(r"^#\| graphs\|([^|]*)", text, re.M).group(1)
    evidence, version = SHOWN.get(name, ("", ""))
    return version if evidence and evidence in text else "-"


def rows_of(text):
    """Yields (name, version, door, what, bare, preloaded, result, note) of each row of the tables."""
    for line in re.findall(r"^#\| (.*)$", text, re.M):
        parts = line.split("|")
        if len(parts) >= 8:
            if parts[1] == "-" and parts[6] != "not run":
                parts[1] = version_of(parts[0], text)
            yield tuple(parts[:7]) + ("|".join(parts[7:]),)
    table = re.search(r"^# client +bare +preloaded.*\n((?:# \S.*\n)*)", text, re.M)
    for line in table.group(1).splitlines() if table else ():
        name, bare, *rest = line[2:].split()
        if "not run" in line or len(rest) < 5:
            continue
        ours, same, leak, producer, consumer = rest[:5]
        if name.startswith("cudart-"):
            door, what = f"CUDA runtime, {name.rsplit('-', 1)[1]}", SHARE
        else:
            door, what = RUN_SH.get(name, ("-", SHARE))
        # told: the producer's report has the leak's both sides, and the consumer says nothing
        good = (same, leak, producer) == ("yes", "ok", "yes") and consumer in ("yes", "told")
        yield name, version_of(name, text), door, what, bare, ours, "yes" if good else "DIFFERS", ""


def without_context(text):
    """Returns the clients of which a process got no context, since others had all of the device's memory."""
    return set(re.findall(r"^not ok \d+ - (\S+): .*\n(?:#.*\n)*?#.*\bcuDevicePrimaryCtxRetain\b.*: CUDA_ERROR_OUT_OF_MEMORY",
                          text, re.MULTILINE) +
               # what a process said may stand before the line of the test
               re.findall(r"^# (\S+), preloaded, round .*\n(?:#.*\n)*?#.*\bcuDevicePrimaryCtxRetain\b.*: CUDA_ERROR_OUT_OF_MEMORY",
                          text, re.MULTILINE))


def without_time(text):
    """Returns the clients that were given less time under culimbo than they took bare, and did not end in it."""
    bare = dict(re.findall(r"^ok \d+ - (\S+): runs bare, to its end, in (\d+) s", text, re.MULTILINE))
    cut_off = re.findall(r"not ok \d+ - (\S+): .* 124 preloaded\n#\s+exit status 124 after (\d+) s", text)
    return {name for name, seconds in cut_off if int(seconds) < int(bare.get(name, 0))}


def collect():
    """Returns {name: {kind: (where, row)}}; a later result replaces an earlier one."""
    seen = {}
    for path in sorted((TOP / "doc" / "results").glob("*/*.tap")):
        text = path.read_text(encoding="utf-8", errors="replace")
        kind, where = machine_of(text, path.parent.name)
        # for example when no time was left for it; output that was cut may stand before it in its line
        says_nothing = set(re.findall(r"\bnot ok \d+ - (\S+): runs bare", text)) | without_context(text) | without_time(text)
        for row in rows_of(text):
            if row[0] in says_nothing:
                continue
            kinds = seen.setdefault(row[0], {})
            old = kinds.get(kind)
            # a skipped run does not replace an earlier result
            if old and row[6] == "not run":
                continue
            if not old or old[0] <= where or old[1][6] == "not run":
                kinds[kind] = (where, row)
    return seen


def known():
    listed = "".join(subprocess.run(["bash", TOP / "tests" / "gpu" / script, "--list"],
                                    check=True, capture_output=True, text=True).stdout
                     for script in ("matrix.sh", "pool_clients.sh"))
    runtimes = [[f"cudart-{name}", f"CUDA runtime, {name.split('-')[1]}", SHARE] for name in RUNTIMES]
    return runtimes + [line.split("|", 2) for line in listed.splitlines()]


def cell(text):
    return text.replace("|", "\\|") or "-"


def line_of(row, where):
    name, version, door, what, bare, ours, result, note = row
    if result == "not run":
        result = f"{NOT_YET}: {note}" if note else NOT_YET
        note = ""
    elif result == "yes":
        result = "same"
    if note:
        what += f" ({note})"
    return "| " + " | ".join(map(cell, (name, version, door, what, bare, ours, result, where))) + " |\n"


def page():
    seen = collect()
    out = HEAD + ("| client | version | reaches the driver by | what was run | bare | culimbo | result | when and where |\n"
                  "|---|---|---|---|---|---|---|---|\n")
    names = [name for name, *_ in known()]
    listed = {name: (door, what) for name, door, what in known()}
    for name in [n for n in seen if n not in listed] + names:
        kinds = seen.get(name, {})
        ran = {kind: entry for kind, entry in kinds.items() if entry[1][6] != "not run"}
        for kind in sorted(ran, key=lambda k: (k == "simulated", k)):
            where, row = ran[kind]
            out += line_of(row, where)
        if not any(kind != "simulated" for kind in ran):
            # prefer the reason for which a GPU machine skipped it
            skipped = [entry for kind, entry in kinds.items() if kind != "simulated"]
            if skipped:
                where, row = skipped[-1]
            else:
                where, row = "on a GPU", (name, "-", *listed.get(name, ("-", "-")), "-", "-", "not run", "")
            out += line_of(row, where)
    return out + TAIL


def main():
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE} does not match doc/results: run tests/gpu/compatibility.py", file=sys.stderr)
            sys.exit(1)
        return
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
