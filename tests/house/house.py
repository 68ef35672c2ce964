# SPDX-License-Identifier: Apache-2.0
"""Checks that the code keeps to its folders: house.py SOURCE_DIR BUILD_DIR

A room is a folder.  Rooms stand on floors: doc/architecture.md lists them.  An
arrow leads from a file to each file that it includes, and from an object to each
object whose functions or variables it uses.  Each of these prints a line:
- an arrow to a higher floor, or to another room of the same floor;
- an arrow between exporter/ and importer/;
- a circle of arrows;
- a variable in shm/ or base/;
- a file of more than 600 lines;
- a place other than the setter that assigns the state of a block;
- what one file alone may do (ONE_PLACE), in another file of preload/ or shim/;
- a function of shim/ that preload/ uses, and that neither begins with a guard nor is named at the head of shim/door.h;
- a row in doc/architecture.md's table of ways that counts wrong, names a file that is not there, or names
  more files than WAYS_MOST allows;
- a file that such a way calls, from the hooks of WAY_BEGINS on through the files of its row, and that neither
  that page's tables of services and of other ways nor ALWAYS_SERVICES have for it; and a file in a row of these
  that none of the ways of that row calls.
The exit status is 1 if there is any.
"""

import bisect
import graphlib
import pathlib
import re
import subprocess
import sys

FLOORS = [
    ["shim/base/"],
    ["shim/shm/"],
    ["shim/self/"],
    ["shim/driver/", "shim/diag/", "shim/descriptors/"],
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
# Three things may be variables there: the options with their texts, which are read once; the clock, which unit tests set;
# and what the log needs before any other folder is initialised: which messages it has printed, and what descriptor 2 was at
# the start.
STATE_ALLOWED = {"cl_options", "cl_clock_ahead", "texts", "texts_used", "process_has_read", "said", "first"}
LINES_MOST = 600
# The functions that may assign a block's state.  Processes in a report and contexts have a state of their own.
SETTER = {("shim/limbo/limbo.h", "cl_block_set_state"), ("shim/limbo/limbo.c", "cl_block_take_step")}
OTHER_STATES = {"view", "process", "context"}
ASSIGNED = re.compile(r"([\w)\]]*)(?:->|\.)state\s*(?:(?:[-+|&^]|<<|>>)?=(?!=)|\+\+|--)\s*([^;]*)"
                      r"|(?:\+\+|--)[\w>.-]*(?:->|\.)state\b|(?<!&)&\s*[\w>.-]*block(?:->|\.)state\b")
FUNCTION = re.compile(r"^\w[^;=\n]*?\b(\w+)\([^;]*$", re.M)

# What stands in one place, and which: the name of the thing, what it looks like, and the files that may have it.
ONE_PLACE = [
    ("pushes a context", re.compile(r"\bcuCtx(?:PushCurrent\w*|SetCurrent)\("), {"shim/driver/visit.c"}),
    ("fills a finding in by hand", re.compile(r"\bstruct cl_finding\b(?:\s+\w+)?\s*(?:=|\))\s*\{|^\s*\w+(?:->|\.)finding\.\w+ ="),
     {"shim/diag/happened.c"}),
    ("has a list of its own", re.compile(r"\bstruct (\w+) \{[^}]*\bstruct \1 \*(?:next|prev|older|newer)\b"),
     {"shim/base/list.h", "shim/base/table.h"}),
    ("has a mutex without a rank", re.compile(r"\bPTHREAD_(?:MUTEX|RWLOCK)_INITIALIZER\b|\bpthread_(?:mutex|rwlock|spin)_init\b"),
     {"shim/self/locks.h"}),
]
# How a function of shim/ begins that preload/ uses, unless the comment at the head of shim/door.h names it.
GUARDED = re.compile(r"\{\s*(?:/\*.*?\*/\s*)*CL_(?:DOOR|DOOR_FAST|DOOR_FAST_OF_ALL|DOOR_FAST_UNCANCELLED|GUARD)\(", re.S)
WAYS_MOST = {"a freed pointer": 7, "an opened handle": 9, "a context's end": 4}
# What the tables of services call each way, and the hooks with which it begins.
WAY_BEGINS = {
    "free": ("a freed pointer", ["cl_hook_cuMemFree_v2"]),
    "open": ("an opened handle", ["cl_hook_cuIpcOpenMemHandle_v2"]),
    "pool": ("an imported pool pointer", ["cl_hook_cuMemPoolImportPointer"]),
    "end": ("a context's end", ["cl_hook_cuCtxDestroy_v2", "cl_hook_cuCtxDetach", "cl_hook_cuDevicePrimaryCtxRelease_v2",
                                "cl_hook_cuDevicePrimaryCtxReset_v2", "cl_hook_cuGreenCtxDestroy"]),
}
ALWAYS_SERVICES = ("shim/base/", "shim/diag/", "shim/self/")
# What a compiler adds to the name of a function that it has split or copied.
SPLIT = re.compile(r"\.(?:part|cold|constprop|isra)\b.*")

top, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
wrong = []


def room(path):
    """Returns the floor and the room of a file: those of the longest prefix that fits."""
    fits = [(len(r), n, r) for n, floor in enumerate(FLOORS) for r in floor if path.startswith(r)]
    return max(fits)[1:] if fits else None


def check(source, target, what):
    """Checks one arrow."""
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
        # In an initialiser only the value tells which struct it is.
        its = "CL_BLOCK_" in at[2] if at[1] == "" else at[1] not in OTHER_STATES
        if its and (path, function) not in SETTER:
            wrong.append(f"{path}: {function}(): assigns the state of a block, which the setter alone does")
    for what, looks, where in ONE_PLACE if path.startswith(("preload/", "shim/")) else ():
        wrong.extend(f"{path}:{text.count(chr(10), 0, at.start()) + 1}: {what}" for at in looks.finditer(text)
                     if path not in where)
    for included in re.findall(r'^#include "((?:shim|preload|tools)/[^"]+)"', text, re.M):
        check(path, included, "#include")

page = top / "doc/architecture.md"
text = page.read_text(encoding="utf-8") if page.exists() else ""
rows = re.findall(r"^\| (an? [\w' ]+) \| (\d+) \| (.*?)(?:\. (?:In|For) .*)? \|$", text, re.M)
for way, count, which in rows:
    named = re.findall(r"`([\w/]+\.[ch])`", which)
    wrong.extend(f"the way of {way}: {f} is not there" for f in named if not any((top / d / f).exists() for d in ("", "shim")))
    if len(named) != int(count) or len(named) > WAYS_MOST.get(way, LINES_MOST):
        wrong.append(f"the way of {way}: {len(named)} files are named and {count} are counted")
missing = WAYS_MOST.keys() - {way for way, _, _ in rows} if page.exists() else ()
wrong.extend(f"the way of {way} is not in doc/architecture.md" for way in missing)

uses, defined, source_of, functions = {}, {}, {}, set()
for source in (p for p in files if p.endswith((".c", ".S")) and not p.startswith("tests/")):
    folder, stem = (build / source).parent, pathlib.Path(source).stem
    found = [p for pattern in (f".libs/*_la-{stem}.o", f"*-{stem}.o") for p in sorted(folder.glob(pattern))]
    if found:
        source_of[str(found[0])] = source
        uses[source] = set()
# One nm reads all objects: one process for each would take most of the time.
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
        if kind == "T":
            functions.add(name)
    writable = re.match(r"\.t?(bss|data)(\.(?!rel\.ro)|$)|cl_hot_(data|locked|sharing_locked)$|\*COM\*", section)
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
entered = sorted({n for source, names in uses.items() if source.startswith("preload/") for n in names & functions
                  if defined.get((False, n), "").startswith("shim/")})
door = (top / "shim/door.h").read_text(encoding="utf-8")
exempt = set(re.findall(r"\b(cl_\w+)\(\)", door[: door.index("#ifndef")]))
for name in entered:
    where = defined[False, name]
    source = (top / where).read_text(encoding="utf-8")
    body = re.search(rf"^\w[^;{{}}()\n]*\b{name}\([^;{{}}]*\)\n(\{{.*?^\}})", source, re.M | re.S)
    if name not in exempt and not (body and GUARDED.match(body[1])):
        wrong.append(f"{where}: {name}(): begins without a guard, and shim/door.h does not name it")
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



def functions_called(objects):
    """Returns, by (file, name) of a function, the names of those that it calls or takes the address of."""
    calls, named, by_place, before, at = {}, {}, [], None, None
    text = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", *objects], capture_output=True, text=True, check=False).stdout
    for line in text.splitlines():
        # (the plain tests of a string come first: they are much faster, and there are a hundred thousand lines)
        if "file format" in line and (found := re.match(r"(\S+):\s+file format", line)):
            file = source_of[found[1]]
        elif line.startswith("Disassembly of section "):
            section = line.split()[-1][:-1]
        elif line.endswith(">:") and (found := re.match(r"([0-9a-f]+) <(.+)>:$", line)):
            at = (file, SPLIT.sub("", found[2]))
            named[file, section, int(found[1], 16)] = at[1]
            calls.setdefault(at, set())
        elif "R_" in line and (found := re.search(r"\b(R_\w+)\s+([\w.]+?)([-+]0x[0-9a-f]+)?$", line)):
            if found[2].startswith((".text", "cl_hot_sharing")): # a static function in another section
                from_end = 4 if found[1].startswith("R_X86_64_P") else 0
                by_place.append((at, (file, found[2], int(found[3] or "0", 16) + from_end)))
            else:
                calls[at].add(SPLIT.sub("", found[2]))
            # what the instruction before this relocation seems to name is none yet
            before = None
        else:
            if before:
                calls[before[0]].add(before[1])
            found = re.search(r"<([\w.]+)(?:\+0x[0-9a-f]+)?>$", line) if line.endswith(">") else None
            before = (at, SPLIT.sub("", found[1])) if found else None
    begins = sorted(named)
    for caller, place in by_place:
        # the function that @place lies in: a cold part jumps back into the middle of its own
        i = bisect.bisect_right(begins, place) - 1
        if i >= 0 and begins[i][:2] == place[:2]:
            calls[caller].add(named[begins[i]])
    return calls


# The tables of services and other ways: the files of each row, and in which ways.
may_call = []
for which, ways in re.findall(r"^\| ((?:`[\w/]+\.c`(?:, )?)+) \| ((?:%s)(?:, \w+)*) \| " % "|".join(WAY_BEGINS), text, re.M):
    may_call.extend((f if f.startswith("preload/") else "shim/" + f, ways.split(", ")) for f in re.findall(r"`(.+?)`", which))
called = {}
calls = functions_called([o for o, s in source_of.items() if not s.startswith("tools/")]) if text else {}
for short, (way, begins) in WAY_BEGINS.items() if calls else ():
    own = {("" if f.startswith("preload/") else "shim/") + f
           for w, _, which in rows if w == way for f in re.findall(r"`([\w/]+\.c)`", which)}
    todo = [(defined[False, b], b) for b in begins]
    seen = set(todo)
    while todo:
        caller = todo.pop()
        for name in calls[caller]:
            callee = (caller[0] if (caller[0], name) in calls else name in functions and defined.get((False, name)), name)
            if callee[0] in own and callee not in seen:
                seen.add(callee)
                todo.append(callee)
            elif callee[0] and callee[0] not in own and not callee[0].startswith(ALWAYS_SERVICES):
                called.setdefault((short, callee[0]), f"{name}() of {callee[0]}, called by {caller[1]}() of {caller[0]}")
    wrong.extend(f"the way of {way}: {f} is not on it" for f in own - {file for file, _ in seen})
for (short, file), how in called.items():
    if not any(file == f and short in ways for f, ways in may_call):
        wrong.append(f"the way of {WAY_BEGINS[short][0]}: {how}: doc/architecture.md has no row for it")
for file, ways in may_call if calls else ():
    if not any((short, file) in called for short in ways):
        wrong.append(f"doc/architecture.md: {file} is a service or another way, and no way of its row calls it")

print(*sorted(set(wrong)), sep="\n")
print(f"{len(files)} files, {len(uses)} objects, {sum(map(len, arrows.values()))} arrows between them")
lines = sum((top / f).read_text(encoding="utf-8").count("\n") for f in files if f.startswith("shim/"))
ranks = re.findall(r"^\tCL_RANK_\w+,", (top / "shim/self/locks.h").read_text(encoding="utf-8"), re.M)
print(f"shim/: {lines} lines, {len(ranks)} ranks of locks;", ", ".join(f"{way}: {count}" for way, count, _ in rows))
sys.exit(bool(wrong))
