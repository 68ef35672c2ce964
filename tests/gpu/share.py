# SPDX-License-Identifier: Apache-2.0
"""The Python clients that share blocks by handle: CuPy, Numba, cuda-bindings.

    share.py cupy|cupy-pool|numba|bindings [leak]

Runs a round for each way in which the library can free (or open) a block.  The
producer exports a block of 1,024 bytes between live neighbours, and the consumer
opens it.  The producer frees it and allocates until it gets the address again, up
to a limit; it overwrites each new block.  The consumer checks whether it still
reads its own bytes.  The bare driver gives "foreign" bytes; that is a result, not an
error, so the exit status is 0 either way.  With "leak" there is one round: the
producer exits while the consumer holds the block, and the consumer then exits
without closing it.

The consumer is a new Python process, because CUDA does not work after fork.  Only
the producer writes to stdout; its lines are the same in each run.  Nothing here
knows of culimbo.
"""

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection

BYTES = 1024
NEIGHBOURS = 8
TRIES = 64
OURS, THEIRS, BESIDE = 17, 238, 90
PROGRAM_SECONDS = 100
ANSWER_SECONDS = 40  # the first answer waits for imports and a context


def fact(key, value):
    """Writes a fact for run.sh: what the report must name, or the version."""
    path = os.environ.get("GPU_TEST_FACTS")
    if path:
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{key}={value}\n")


class Cupy:
    """CuPy: ipcGetMemHandle and ipcOpenMemHandle, each array a cudaMalloc of its own."""

    ways = ("deleted",)
    pool = None

    def __init__(self):
        import cupy

        self.cupy = cupy
        self.runtime = cupy.cuda.runtime
        fact("version", f"CuPy {cupy.__version__}")
        self.set_allocator()

    def set_allocator(self):
        self.cupy.cuda.set_allocator(None)

    def make(self, value):
        array = self.cupy.full(BYTES, value, dtype=self.cupy.uint8)
        self.runtime.deviceSynchronize()
        return array

    def address(self, array):
        return array.data.ptr

    def export(self, array):
        return self.runtime.ipcGetMemHandle(array.data.ptr)

    def free(self, only, way):
        """Frees the one block in the list @only, which is its one reference."""
        only.clear()
        gc.collect()

    def open(self, handle, way):
        pointer = self.runtime.ipcOpenMemHandle(handle)
        return pointer, pointer

    def read(self, opened):
        host = bytearray(BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(host))
        self.runtime.memcpy(address, opened, BYTES, self.runtime.memcpyDeviceToHost)
        return bytes(host)

    def close(self, opened):
        self.runtime.ipcCloseMemHandle(opened)


class CupyPool(Cupy):
    """CuPy with its memory pool, which returns free memory to the driver on demand.

    A deleted array whose memory the pool reuses never reaches the driver.  No library below
    CuPy can see that.
    """

    ways = ("free_all_blocks",)

    def set_allocator(self):
        self.pool = self.cupy.get_default_memory_pool()

    def free(self, only, way):
        only.clear()
        gc.collect()
        self.pool.free_all_blocks()


class Numba:
    """Numba: get_ipc_handle, opened by the handle itself or by cuda.open_ipc_array."""

    ways = ("handle.open", "open_ipc_array")

    def __init__(self):
        import numpy
        from numba import cuda

        self.numpy = numpy
        self.cuda = cuda
        try:
            fact("version", f"numba-cuda {importlib.metadata.version('numba-cuda')}")
        except importlib.metadata.PackageNotFoundError:  # Numba's own target
            fact("version", f"Numba {importlib.metadata.version('numba')}")
        self.stack = contextlib.ExitStack()

    def make(self, value):
        array = self.cuda.to_device(self.numpy.full(BYTES, value, dtype=self.numpy.uint8))
        self.cuda.synchronize()
        return array

    def address(self, array):
        return array.__cuda_array_interface__["data"][0]

    def export(self, array):
        # its base refers to the array: the caller pickles and drops it
        return array.get_ipc_handle()

    def free(self, only, way):
        only.clear()
        gc.collect()
        # Numba frees ten at a time or on request: the pending ones of the context and of its manager
        context = self.cuda.current_context()
        context.deallocations.clear()
        context.memory_manager.deallocations.clear()

    def open(self, handle, way):
        if way == "handle.open":
            array = handle.open()
            return self.address(array), (array, handle.close)
        raw = handle._ipc_handle.handle
        raw = bytes(getattr(raw, "reserved", raw))
        array = self.stack.enter_context(
            self.cuda.open_ipc_array(raw, shape=BYTES, dtype=self.numpy.uint8)
        )
        return self.address(array), (array, self.stack.close)

    def read(self, opened):
        return opened[0].copy_to_host().tobytes()

    def close(self, opened):
        opened[1]()


class Bindings:
    """cuda-bindings: the driver API itself."""

    ways = ("cuMemFree", "cuMemFreeAsync")

    def __init__(self):
        from cuda import bindings
        from cuda.bindings import driver

        self.driver = driver
        fact("version", f"cuda-bindings {bindings.__version__}")
        self.call("cuInit", 0)
        self.context = self.call("cuDevicePrimaryCtxRetain", self.call("cuDeviceGet", 0))
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *args):
        error, *results = getattr(self.driver, name)(*args)
        if error != self.driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {error!r}")
        return results[0] if results else None

    def make(self, value):
        block = self.call("cuMemAlloc", BYTES)
        self.call("cuMemsetD8", block, value, BYTES)
        self.call("cuCtxSynchronize")
        return block

    def address(self, block):
        return int(block)

    def export(self, block):
        # some versions return the bytes in an attribute
        return ctypes.string_at(self.call("cuIpcGetMemHandle", block).getPtr(), 64)

    def free(self, only, way):
        if way == "cuMemFreeAsync":
            self.call("cuMemFreeAsync", only.pop(), self.driver.CUstream(0))
            self.call("cuStreamSynchronize", self.driver.CUstream(0))
        else:
            self.call("cuMemFree", only.pop())

    def open(self, handle, way):
        driver_handle = self.driver.CUipcMemHandle()
        ctypes.memmove(driver_handle.getPtr(), handle, 64)
        lazily = self.driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
        block = self.call("cuIpcOpenMemHandle", driver_handle, lazily)
        return int(block), block

    def read(self, block):
        data = bytearray(BYTES)
        self.call("cuMemcpyDtoH", data, block, BYTES)
        return bytes(data)

    def close(self, block):
        self.call("cuIpcCloseMemHandle", block)


LIBRARIES = {"cupy": Cupy, "cupy-pool": CupyPool, "numba": Numba, "bindings": Bindings}


class Link:
    """Pickled messages over two pipes, with a deadline for each."""

    def __init__(self, fd_in, fd_out):
        self.reader = Connection(fd_in, writable=False)
        self.writer = Connection(fd_out, readable=False)

    def send(self, *message):
        self.writer.send(message)

    def receive(self):
        if not self.reader.poll(ANSWER_SECONDS):
            raise TimeoutError(f"no answer within {ANSWER_SECONDS} s")
        return self.reader.recv()

    def ask(self, *message):
        self.send(*message)
        return self.receive()


def wrong_bytes(data):
    return sum(byte != OURS for byte in data)


def consumer(name):
    # the link uses stdin and stdout; what a library writes to stdout goes to stderr
    link = Link(0, os.dup(1))
    os.dup2(2, 1)
    library = LIBRARIES[name]()
    opened = None
    while True:
        try:
            what, *rest = link.receive()
        except EOFError:
            # the producer has ended while we hold blocks: exit without closing them
            os._exit(0)
        if what == "open":
            address, opened = library.open(*rest)
            link.send(address, wrong_bytes(library.read(opened)))
        elif what == "verify":
            link.send(wrong_bytes(library.read(opened)))
        elif what == "close":
            library.close(opened)
            opened = None
            link.send("closed")
        else:
            return


def round_of(library, link, name, way):
    """Returns the live blocks; the caller keeps or frees them."""
    beside = [library.make(BESIDE) for _ in range(NEIGHBOURS)]
    only = [library.make(OURS)]
    beside += [library.make(BESIDE) for _ in range(NEIGHBOURS)]
    block = library.address(only[0])
    address, wrong = link.ask("open", library.export(only[0]), way)
    if wrong:
        raise RuntimeError(f"{wrong} bytes are wrong right after the open")
    fact("block", hex(block))
    fact("import", hex(address))

    library.free(only, way)
    again = []
    while len(again) < TRIES and (not again or library.address(again[-1]) != block):
        again.append(library.make(THEIRS))
    came = library.address(again[-1]) == block
    print(f"{name} {way}: the address {'came' if came else 'did not come'} again "
          f"after {len(again)} allocations", file=sys.stderr)
    (wrong,) = link.ask("verify")
    print(f"client={name} way={way} result={'foreign' if wrong else 'own'}", flush=True)
    return beside + again


def producer(name, leak):
    library = LIBRARIES[name]()
    child = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), name, "consumer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    link = Link(os.dup(child.stdout.fileno()), os.dup(child.stdin.fileno()))
    child.stdin.close()
    child.stdout.close()
    fact("producer", os.getpid())
    fact("consumer", child.pid)
    for way in library.ways:
        alive = round_of(library, link, name, way)
        if leak:
            # this descriptor is closed only by the end of the process; the consumer holds the block until then
            os.dup(link.writer.fileno())
            child.returncode = 0  # nobody waits for the consumer
            return
        link.ask("close")
        while alive:
            library.free([alive.pop()], way)
    link.send("end")
    status = child.wait(ANSWER_SECONDS)
    if status:
        raise RuntimeError(f"the consumer exited with {status}")
    print(f"client={name} done", flush=True)


def main():
    signal.alarm(PROGRAM_SECONDS)
    name, mode = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    if mode == "consumer":
        consumer(name)
    else:
        producer(name, mode == "leak")


if __name__ == "__main__":
    main()
