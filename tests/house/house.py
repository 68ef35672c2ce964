# SPDX-License-Identifier: Apache-2.0
"""Whether the code keeps to its rooms: house.py SOURCE_DIR BUILD_DIR

An arrow leads from a file to each file that it includes, and from an object to
each object that defines a name which it uses.  doc/architecture.md has the
floors.  Prints a line for each arrow that leads up or to another room of the same
floor, each arrow between exporter/ and importer/, each circle of files, each
variable in shm/ and base/, each file of more than 600 lines and each place but the
setter where the state of a block is assigned.  Exits with 1 if there is any.
"""

import graphlib
import pathlib
import re
import subprocess
import sys

FLOORS = [
    ["shim/base/"],
    ["shim/shm/"],
    ["shim/self/"],
    ["shim/driver/", "shim/diag/"],
    ["shim/importer/", "shim/blocks/"],
    ["shim/limbo/"],
    ["shim/exporter/", "shim/reclaim/", "shim/report/", "shim/context_end."],
    ["shim/"],
    ["preload/", "tools/common/"],
    ["tools/commands/"],
    ["tools/trace/", "tools/doctor/", "tools/top/"],
    ["tools/"],
]
STRANGERS = {"shim/exporter/", "shim/importer/"}
NO_STATE = ("shim/base/", "shim/shm/")
# The options and their texts, read once; the clock, which unit tests turn; and what the log must know before any other room does:
# what was said once, and what descriptor 2 was when the process began.
STATE_ALLOWED = {"cl_options", "cl_clock_ahead", "kept", "kept_n", "process_has_read", "said", "first"}
LINES_MOST = 600
# Where a block's state is assigned; and what else has a state: a process in a report, a context.
SETTER = {("shim/limbo/limbo.h", "cl_block_set_state"), ("shim/limbo/limbo.c", "cl_block_take_step")}
OTHER_STATES = {"view", "process", "context"}
ASSIGNED = re.compile(r"([\w)\]]*)(?:->|\.)state\s*(?:(?:[-+|&^]|<<|>>)?=(?!=)|\+\+|--)\s*([^;]*)"
                      r"|(?:\+\+|--)[\w>.-]*(?:->|\.)state\b|(?<!&)&\s*[\w>.-]*block(?:->|\.)state\b")
FUNCTION = re.compile(r"^\w[^;=\n]*?\b(\w+)\([^;]*$", re.M)

top, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
wrong = []


def room(path):
    """The floor and the room of a file: the longest prefix that fits."""
    fits = [(len(r), n, r) for n, floor in enumerate(FLOORS) for r in floor if path.startswith(r)]
    return max(fits)[1:] if fits else None


def check(source, target, what):
    """One arrow."""
    a, b = room(source), room(target)
    if a and b and a[1] != b[1] and a[0] <= b[0]:
        where = "up" if a[0] < b[0] else "to a room of its own floor"
        wrong.append(f"{source} -> {target}: {what}: leads {where}")
    elif a and b and {a[1], b[1]} == STRANGERS:
        wrong.append(f"{source} -> {target}: {what}: exporter/ and importer/ do not know each other")


files = [p.relative_to(top).as_posix() for d in ("preload", "shim", "tools", "tests")
         for p in sorted((top / d).rglob("*.[chS]"))]
for path in files:
    text = (top / path).read_text(encoding="utf-8")
    if text.count("\n") > LINES_MOST:
        wrong.append(f"{path}: {text.count(chr(10))} lines, more than {LINES_MOST}")
    for at in ASSIGNED.finditer(text) if path.startswith(("preload/", "shim/")) else ():
        function = ([m[1] for m in FUNCTION.finditer(text, 0, at.start())] or [""])[-1]
        # of an initialiser only the value says which struct it is
        its = "CL_BLOCK_" in at[2] if at[1] == "" else at[1] not in OTHER_STATES
        if its and (path, function) not in SETTER:
            wrong.append(f"{path}: {function}(): assigns the state of a block, which the setter alone does")
    for included in re.findall(r'^#include "((?:shim|preload|tools)/[^"]+)"', text, re.M):
        check(path, included, "#include")

uses, defined, source_of = {}, {}, {}
for source in (p for p in files if p.endswith((".c", ".S")) and not p.startswith("tests/")):
    folder, stem = (build / source).parent, pathlib.Path(source).stem
    found = [p for pattern in (f".libs/*_la-{stem}.o", f"*-{stem}.o") for p in sorted(folder.glob(pattern))]
    if found:
        source_of[str(found[0])] = source
        uses[source] = set()
# one nm for all of them: a process for each would take most of the time
listed = subprocess.run(["nm", "-f", "sysv", *source_of], capture_output=True, text=True, check=True) if source_of else None
for line in listed.stdout.splitlines() if listed else ():
    if line.startswith("Symbols from "):
        source = source_of[line[len("Symbols from "):].rstrip(":")]
        names = uses[source]
        continue
    field = [f.strip() for f in line.split("|")]
    if len(field) != 7:
        continue
    name, kind, section = field[0], field[2], field[6]
    if kind in "Uw":
        names.add(name)
    elif kind.isupper() and kind != "N":
        defined.setdefault((source.startswith("tools/"), name), source)
    writable = re.match(r"\.t?(bss|data)(\.(?!rel\.ro)|$)|\*COM\*", section)
    if source.startswith(NO_STATE) and writable and name.split(".")[0] not in STATE_ALLOWED:
        wrong.append(f"{source}: {name}: a variable, in a room without state")

arrows = {}
for source, names in uses.items():
    for name in sorted(names):
        target = defined.get((source.startswith("tools/"), name)) or defined.get((False, name))
        if target and target != source:
            arrows.setdefault(source, {}).setdefault(target, name)
for source, targets in arrows.items():
    for target, name in targets.items():
        check(source, target, name)
graph = {source: set(targets) for source, targets in arrows.items()}
while True:
    try:
        graphlib.TopologicalSorter(graph).prepare()
        break
    except graphlib.CycleError as error:
        circle = error.args[1][::-1]
        steps = [f"{a} ({arrows[a][b]})" for a, b in zip(circle, circle[1:])]
        wrong.append("a circle: " + " -> ".join([*steps, circle[0]]))
        graph[circle[0]].discard(circle[1])

print(*sorted(set(wrong)), sep="\n")
print(f"{len(files)} files, {len(uses)} objects, {sum(map(len, arrows.values()))} arrows between them")
sys.exit(bool(wrong))
