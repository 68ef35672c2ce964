# SPDX-License-Identifier: Apache-2.0
"""Whether the guide has each message of the library: messages.py TOP

Takes the texts given to cl_log() and cl_log_once() out of the sources, and
looks for how each begins (what differs is a % in the guide).  Prints those that
are missing there, and those of the guide that no source says; fails if any.
"""

import pathlib
import re
import sys

BEGINS = 40  # characters that must be the same

top = pathlib.Path(sys.argv[1])
text = (top / "doc/troubleshooting.md").read_text(encoding="utf-8")
guide = text[text.index("## Each message of the library") :]
said = {}
for source in sorted([*top.glob("shim/**/*.c"), *top.glob("preload/*.c")]):
    code = source.read_text(encoding="utf-8")
    for call in re.finditer(r'\bcl_log(?:_once)?\(\s*CL_LOG_\w+,\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', code):
        message = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call[1]))
        message = message.replace('\\"', '"')
        message = re.sub(r"%[-#0-9.*]*(?:ll|l|z|h)?[a-zA-Z]", "%", message)
        said[message] = source.name
wrong = 0
if len(said) < 25:
    print(f"only {len(said)} messages were found in the sources")
    wrong = 1
quoted = re.findall(r"`([^`]*)`", guide)
for message, where in said.items():
    if message.strip("% :") and not any(q.startswith(message[:BEGINS]) for q in quoted):
        print(f"not in the guide: {message} ({where})")
        wrong = 1
for line in guide.splitlines():
    if not line.startswith("| `") or line.startswith("| `NAME"):
        continue
    for quote in re.findall(r"`([^`]*)`", line.split(" | ")[0]):
        if not any(m.startswith(quote[:BEGINS]) for m in said):
            print(f"said by no source: {quote}")
            wrong = 1
sys.exit(wrong)
