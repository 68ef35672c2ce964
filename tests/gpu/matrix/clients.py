# SPDX-License-Identifier: Apache-2.0
"""Shared by the Python clients of the matrix: facts, skips, cuda-bindings, and a spawned peer with a deadline.

Only the first process writes to stdout.  Its lines are the same in each run, except for "result=".
Nothing here knows of culimbo.
"""

import multiprocessing
import os
import signal
import sys

PROGRAM_SECONDS = 170
ANSWER_SECONDS = 100
OURS, THEIRS = 17, 238
SKIPPED = 77


def fact(key, value):
    """Writes a fact for matrix.sh's table."""
    path = os.environ.get("GPU_TEST_FACTS")
    if path:
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{key}={value}\n")


def skip(reason):
    print(f"skip={reason}", flush=True)
    sys.exit(SKIPPED)


def word(wrong):
    return "foreign" if wrong else "own"


def start():
    signal.alarm(PROGRAM_SECONDS)


def receive(connection):
    if not connection.poll(ANSWER_SECONDS):
        raise TimeoutError(f"no answer within {ANSWER_SECONDS} s")
    return connection.recv()


def bindings():
    """Returns cuda-bindings' driver and call(NAME, ...), which raises on errors; makes device 0's primary context current."""
    from cuda.bindings import driver

    def call(name, *args):
        error, *results = getattr(driver, name)(*args)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {error.name}")
        return results[0] if results else None

    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
    return driver, call


class Peer:
    """A process of the same file that runs function(connection, *args)."""

    def __init__(self, function, *args, context=None):
        context = context or multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_peer, args=(function, theirs, args), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, *message):
        return self.ask_raw(message)

    def ask_raw(self, message):
        self.connection.send(message)
        return receive(self.connection)

    def end(self, expected=0):
        """Waits for the process's end and checks that its status is @expected."""
        self.process.join(ANSWER_SECONDS)
        if self.process.exitcode != expected:
            raise RuntimeError(f"the peer ended with {self.process.exitcode}")

    def kill(self):
        self.process.kill()
        self.end(-signal.SIGKILL)


def _peer(function, connection, args):
    signal.alarm(PROGRAM_SECONDS)
    function(connection, *args)
