# SPDX-License-Identifier: Apache-2.0
"""Python that shares: each function leaves an imported block open, so that the report names it.

places.py WAY...  Each WAY is one of the functions below; with "held" among them, CUDA is called with the GIL.
"""

import ctypes
import os
import sys
import threading

released, held = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")
cuda = held if "held" in sys.argv else released


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def must(result):
    if result:
        raise SystemExit("error %d" % result)


def use_gpu():
    context = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))


def make_handle():
    """A block of another process."""
    ours, theirs = os.pipe()
    if not os.fork():
        os.close(hold)
        use_gpu()
        block, handle = ctypes.c_uint64(), Handle()
        must(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 20)))
        must(cuda.cuIpcGetMemHandle(ctypes.byref(handle), block))
        os.write(theirs, bytes(handle))
        os.read(forever, 1)
        os._exit(0)
    handle = Handle.from_buffer_copy(os.read(ours, 64))
    return handle


def load_batch(handle):
    pointer = ctypes.c_uint64()
    must(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, 1))  # the line


def main_thread():
    load_batch(make.pop())


def two_lines():
    for _ in range(3):
        pointer = ctypes.c_uint64()
        must(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), make.pop(), 1))  # first
        must(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), make.pop(), 1))  # second


def in_thread():
    def work():
        use_gpu()
        load_batch(make.pop())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def grüße_ω():
    load_batch(make.pop())


def in_generator():
    yield load_batch(make.pop())


def generator():
    list(in_generator())


def at_exit():
    import atexit
    atexit.register(load_batch, make.pop())


class Loader:
    def __del__(self):
        load_batch(make.pop())


def collected():
    Loader()


def child():
    """The child of a process that has used CUDA cannot use it: this one is forked before."""


def load_again(handle):
    load_batch(handle)


def code_at_run_time():
    for i in range(4):
        exec(compile("\n" * i + "load_batch(make.pop())", "cell%d.py" % i, "exec"), globals())


def c_thread():
    """A thread of C, which has no state of Python, frees what this one has exported."""
    block, handle, thread = ctypes.c_uint64(), Handle(), ctypes.c_ulong()
    must(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 20)))
    must(cuda.cuIpcGetMemHandle(ctypes.byref(handle), block))
    pthread = ctypes.CDLL(None)
    must(pthread.pthread_create(ctypes.byref(thread), None,
                                ctypes.cast(released.cuMemFree_v2, ctypes.c_void_p), block))
    must(pthread.pthread_join(thread, None))


def code_in_thread():
    def work():
        use_gpu()
        code_at_run_time()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def share():
    block, handle = ctypes.c_uint64(), Handle()
    must(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(512)))
    must(cuda.cuIpcGetMemHandle(ctypes.byref(handle), block))
    cuda.cuMemFree_v2(block)


def daemons():
    """The interpreter ends while these are in calls of CUDA."""
    def work():
        use_gpu()
        while True:
            share()
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(50):
        share()


def export():
    block, handle = ctypes.c_uint64(), Handle()
    must(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(512)))
    must(cuda.cuIpcGetMemHandle(ctypes.byref(handle), block))


def export_and_wait():
    export()
    print("ready", flush=True)
    sys.stdin.readline()


def killed():
    os.kill(os.getpid(), 9)


def spawned_work(handle):
    use_gpu()
    load_batch(Handle.from_buffer_copy(handle))


def spawned():
    import multiprocessing
    worker = multiprocessing.get_context("spawn").Process(target=spawned_work, args=(bytes(make.pop()),))
    worker.start()
    worker.join()


if __name__ == "__main__":
    forever, hold = os.pipe()
    ways = [w for w in sys.argv[1:] if w != "held"]
    needed = {"two_lines": 6, "child": 1, "code_at_run_time": 4, "code_in_thread": 4, "c_thread": 0, "daemons": 0,
              "export_and_wait": 0, "killed": 0}
    make = [make_handle() for _ in range(sum(needed.get(way, 1) for way in ways))]
    if "child" in ways:
        pid, handle = os.fork(), make.pop()
        if not pid:
            use_gpu()
            load_again(handle)
            sys.exit(0)
        os.waitpid(pid, 0)
    use_gpu()
    for way in ways:
        globals()[way]()
    sys.stdout.flush()
