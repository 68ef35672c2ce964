# SPDX-License-Identifier: Apache-2.0
"""Tests for pytest --culimbo-simulate; those called "test_bad_*" must fail, the others pass."""

import ctypes
import os
import subprocess
import sys

import culimbo

TRAINER = os.environ["TRAINER"]


def test_active():
    assert culimbo.active()


def test_a_child_without_cuda():
    subprocess.check_call(["true"])


def test_bad_child_leaks():
    subprocess.check_call([sys.executable, TRAINER])


def test_the_next_one_is_not_blamed():
    assert subprocess.check_output([sys.executable, "-c", "import culimbo; print(culimbo.active())"]) == b"True\n"


def must(result):
    assert result == 0


def open_in_here():
    """Opens a block of another process, which ends with its stdin."""
    code = (
        "import ctypes, sys; c = ctypes.CDLL('libcuda.so.1'); x = ctypes.c_void_p(); c.cuInit(0); "
        "c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0); c.cuCtxSetCurrent(x); b = ctypes.c_uint64(); "
        "c.cuMemAlloc_v2(ctypes.byref(b), ctypes.c_size_t(4096)); h = (ctypes.c_ubyte * 64)(); "
        "c.cuIpcGetMemHandle(ctypes.byref(h), b); sys.stdout.buffer.write(bytes(h)); sys.stdout.flush(); sys.stdin.read()"
    )
    exporter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(block), Handle.from_buffer_copy(exporter.stdout.read(64)), 1))
    return cuda, block, exporter


def test_closed_in_here():
    cuda, block, exporter = open_in_here()
    must(cuda.cuIpcCloseMemHandle(block))
    exporter.communicate()


def test_bad_not_closed_in_here():
    _, _, exporter = open_in_here()
    exporter.communicate()


def test_the_last_is_not_blamed():
    pass
