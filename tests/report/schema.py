#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""schema.py SCHEMA FILE...: whether each line of FILE is what SCHEMA allows.

Knows the part of JSON Schema that doc/report.schema.json uses, and stops at
any keyword that it does not know: nothing passes because it was not looked at.
"""
import json
import re
import sys

TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
}
SAYS_NOTHING = {"$schema", "$id", "$defs", "title", "description"}


def wrong(value, schema, root, where):
    """What is wrong with value, or None."""
    for key, want in schema.items():
        if key in SAYS_NOTHING or key == "additionalProperties":
            continue
        if key == "$ref":
            target = root
            for part in want.lstrip("#/").split("/"):
                target = target[part]
            found = wrong(value, target, root, where)
        elif key == "type":
            found = None if TYPES[want](value) else f"{where}: {value!r} is no {want}"
        elif key == "const":
            found = None if value == want else f"{where}: {value!r} is not {want!r}"
        elif key == "enum":
            found = None if value in want else f"{where}: {value!r} is none of {want!r}"
        elif key == "minimum":
            found = None if value >= want else f"{where}: {value!r} is less than {want}"
        elif key == "pattern":
            found = None if re.search(want, value) else f"{where}: {value!r} is not like {want}"
        elif key == "required":
            missing = [name for name in want if name not in value]
            found = f"{where}: {missing} missing" if missing else None
        elif key == "properties":
            found = None
            for name, item in value.items():
                if name in want:
                    found = wrong(item, want[name], root, f"{where}.{name}")
                elif schema.get("additionalProperties") is False:
                    found = f"{where}: {name} is not in the schema"
                if found:
                    break
        elif key == "items":
            found = None
            for i, item in enumerate(value):
                found = found or wrong(item, want, root, f"{where}[{i}]")
        elif key == "oneOf":
            # (the objects differ by their type: the one that fits it says what is wrong)
            each = [wrong(value, one, root, where) for one in want]
            fitting = [w for w in each if w is None]
            found = None if len(fitting) == 1 else f"{where}: fits {len(fitting)} of oneOf: {each}"
        else:
            sys.exit(f"schema.py: does not know '{key}'")
        if found:
            return found
    return None


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        schema = json.load(f)
    lines = 0
    for name in sys.argv[2:]:
        with open(name, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                lines += 1
                found = wrong(json.loads(line), schema, schema, "")
                if found:
                    sys.exit(f"{name}:{number}: {found}\n{line}")
    if not lines:
        sys.exit("schema.py: not one line")


main()
