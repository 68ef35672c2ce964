# SPDX-License-Identifier: Apache-2.0
"""A trainer gets batches of a loader process.  The bug: it never closes what it opened."""

import ctypes
import os

cuda = ctypes.CDLL("libcuda.so.1")
BYTES = 4 << 20


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def check(result):
    if result:
        raise RuntimeError("CUDA error %d" % result)


def use_gpu():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))


def share_batch(to):
    batch, handle = ctypes.c_uint64(), Handle()
    check(cuda.cuMemAlloc_v2(ctypes.byref(batch), ctypes.c_size_t(BYTES)))
    check(cuda.cuIpcGetMemHandle(ctypes.byref(handle), batch))
    os.write(to, bytes(handle))
    return batch


def load_batch(handles):
    batch = ctypes.c_uint64()
    check(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(batch), Handle.from_buffer_copy(os.read(handles, 64)), 1))
    return batch


def train(handles, done):
    for _ in range(2):
        load_batch(handles)
    os.write(done, b"done")


handles, to_handles = os.pipe()
done, to_done = os.pipe()
loader = os.fork()
use_gpu()
if not loader:
    batches = [share_batch(to_handles) for _ in range(2)]
    os.read(done, 4)
    for batch in batches:
        check(cuda.cuMemFree_v2(batch))
else:
    train(handles, to_done)
    os.waitpid(loader, 0)
