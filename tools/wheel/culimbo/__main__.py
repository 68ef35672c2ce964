# SPDX-License-Identifier: Apache-2.0
"""Runs the culimbo command, which replaces this process."""

import os
import sys

import culimbo


def main():
    command = culimbo.path("command")
    if not os.access(command, os.X_OK):  # the installer did not keep the file's mode
        os.chmod(command, 0o755)
    os.execv(command, ["culimbo"] + sys.argv[1:])


if __name__ == "__main__":
    main()
