# SPDX-License-Identifier: Apache-2.0
"""Memory that cudaIpcGetMemHandle refuses, shared by its handles all the same: memory.py CASE

    plain-start, plain-block   cuMemCreate and cuMemMap by the driver API
    plain-async                cuMemAllocAsync by the driver API
    torch-start, torch-block   PyTorch's expandable segments, as vLLM's custom all-reduce shares them
    tms-torch, tms-preload     torch_memory_saver: shared, paused, resumed
    cupy-async, rmm-async      CuPy's MemoryAsyncPool, RMM's CudaAsyncMemoryResource
    numba-async                Numba with RMM's memory manager over that resource

"start" counts the offset from the beginning of the reservation (RANGE_START_ADDR), "block" from
that of the allocation (cuMemGetAddressRange).  The other process opens each handle whose bytes it
has not opened yet, adds the offset, and compares every byte.  "result=" is refused, if CUDA gives or opens no handle, own or
foreign.  A line that must say the same with and without culimbo has no "result=".

Nothing here knows of culimbo.  Handles come from the library itself where it has a call for that.
"""

import ctypes
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "matrix"))
import clients  # noqa: E402

MIB = 1 << 20
PIECE = 2 * MIB
LAZY = 1
INVALID_VALUE = 1


class Refused(Exception):
    """CUDA has given or opened no handle."""


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Access(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


def pattern(seed, size):
    return random.Random(seed).randbytes(size)


# ------------------------------------------------------------------- doors to CUDA


class Driver:
    """The driver API, on a device's primary context."""

    def __init__(self, number=0):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def result(self, name, *args):
        return getattr(self.cuda, name)(*args)

    def call(self, name, *args):
        result = self.result(name, *args)
        if result:
            raise RuntimeError(f"{name}: error {result}")

    def write(self, address, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        self.call("cuCtxSynchronize")

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def reservation(self, address):
        """Returns RANGE_START_ADDR."""
        start = ctypes.c_uint64()
        self.call("cuPointerGetAttribute", ctypes.byref(start), 11, ctypes.c_uint64(address))
        return start.value

    def block(self, address):
        """Returns the base that cuMemGetAddressRange gives."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value

    def get(self, address):
        handle = Handle()
        result = self.result("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        if result:
            raise Refused(result)
        return bytes(handle.bytes)

    def open(self, handle):
        address = ctypes.c_uint64()
        result = self.result("cuIpcOpenMemHandle_v2", ctypes.byref(address), Handle.from_buffer_copy(handle), LAZY)
        if result:
            raise Refused(result)
        return address.value

    def close(self, address):
        self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))


class Runtime(Driver):
    """Handles by the CUDA runtime at @path: vLLM calls it by ctypes, too (cuda_wrapper.py)."""

    def __init__(self, path, number=0):
        super().__init__(number)
        self.runtime = ctypes.CDLL(path)

    def get(self, address):
        handle = Handle()
        result = self.runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(address))
        if result:
            self.runtime.cudaGetLastError()
            raise Refused(result)
        return bytes(handle.bytes)

    def open(self, handle):
        address = ctypes.c_void_p()
        result = self.runtime.cudaIpcOpenMemHandle(ctypes.byref(address), Handle.from_buffer_copy(handle), LAZY)
        if result:
            self.runtime.cudaGetLastError()
            raise Refused(result)
        return address.value

    def close(self, address):
        if self.runtime.cudaIpcCloseMemHandle(ctypes.c_void_p(address)):
            raise RuntimeError("cudaIpcCloseMemHandle")


class Cupy(Driver):
    """Handles by CuPy."""

    def __init__(self):
        super().__init__()
        import cupy

        self.runtime = cupy.cuda.runtime
        self.error = cupy.cuda.runtime.CUDARuntimeError

    def get(self, address):
        try:
            return bytes(self.runtime.ipcGetMemHandle(address))
        except self.error as error:
            raise Refused(error.status) from None

    def open(self, handle):
        try:
            return self.runtime.ipcOpenMemHandle(handle)
        except self.error as error:
            raise Refused(error.status) from None

    def close(self, address):
        self.runtime.ipcCloseMemHandle(address)


class Numba(Driver):
    """Arrays that Numba opens; a handle here is Numba's own object."""

    def __init__(self):
        super().__init__()
        self.handles = {}

    def open(self, handle):
        from numba.cuda.cudadrv.driver import CudaAPIError

        try:
            array = handle.open()
        except CudaAPIError as error:
            raise Refused(error.code) from None
        address = array.__cuda_array_interface__["data"][0]
        self.handles[address] = (handle, array)
        return address

    def close(self, address):
        handle, array = self.handles.pop(address)
        del array
        handle.close()


def loaded_runtime():
    """Returns the path of the libcudart that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith("libcudart.so"):
                return path
    clients.skip("this PyTorch has loaded no libcudart")


# ------------------------------------------------------------------- the two sides


class Kept:
    """What is open, by the bytes of its handle: the same bytes are not opened again, as in vLLM's table and UCX's."""

    def __init__(self, cuda):
        self.cuda, self.addresses, self.uses = cuda, {}, {}

    def open(self, handle):
        if not isinstance(handle, bytes):  # Numba's own object
            return self.cuda.open(handle)
        if handle not in self.addresses:
            self.addresses[handle] = self.cuda.open(handle)
            self.uses[handle] = 0
        self.uses[handle] += 1
        return self.addresses[handle]

    def close(self, address):
        for handle, its in self.addresses.items():
            if its == address:
                self.uses[handle] -= 1
                if self.uses[handle]:
                    return
                del self.addresses[handle]
                break
        self.cuda.close(address)


def there(connection, door, *args):
    """The other process: opens, compares, closes."""
    cuda = door(*args)
    kept = Kept(cuda)
    while True:
        what, *rest = clients.receive(connection)
        if what == "end":
            connection.send("ends")
            return
        try:
            if what == "open":
                connection.send(("opened", kept.open(rest[0])))
            elif what == "open anew":
                connection.send(("opened", cuda.open(rest[0])))
            elif what == "read":
                address, size, seed = rest
                connection.send("own" if cuda.read(address, size) == pattern(seed, size) else "foreign")
            else:
                kept.close(rest[0])
                connection.send("closed")
        except Refused as refusal:
            connection.send(("refused", refusal.args[0]))


class Case:
    def __init__(self, name, cuda, *door):
        self.name, self.cuda = name, cuda
        self.peer = clients.Peer(there, *door)
        self.us = []

    def say(self, text):
        print(f"client={self.name} {text}", flush=True)

    def tell(self, step, result):
        self.say(f"{step}: result={result}")

    def opened(self, handle, how="open"):
        """Returns the address at which the other process has opened @handle, or None."""
        if handle is None:
            return None
        answer, address = self.peer.ask(how, handle)
        if answer == "opened":
            return address
        clients.fact("error", address)
        return None

    def get(self, base):
        """Returns a handle of @base, or None; a refusal is that of CUDA: "invalid argument"."""
        try:
            start = time.perf_counter()
            handle = self.cuda.get(base)
            self.us.append((time.perf_counter() - start) * 1e6)
            return handle
        except Refused as refusal:
            if refusal.args[0] != INVALID_VALUE:
                clients.fact("error", refusal.args[0])
            return None

    def share(self, step, address, size, seed, base=None):
        """Shares @size bytes at @address by a handle of @base.  Returns the handle and the other process's @base."""
        base = address if base is None else base
        handle = self.get(base)
        there = self.opened(handle)
        if there is None:
            self.tell(step, "refused")
        else:
            self.look(step, there + address - base, size, seed)
        return handle, there

    def look(self, step, address, size, seed):
        self.tell(step, "refused" if address is None else self.peer.ask("read", address, size, seed))

    def stale(self, step, handle):
        """Says whether the other process can open a handle of memory that is gone."""
        there = self.opened(handle, "open anew")
        self.say(f"{step}: opened: {'no' if there is None else 'yes'}")

    def close(self, *addresses):
        for address in addresses:
            if address is not None:
                self.peer.ask("close", address)

    def end(self):
        self.peer.ask("end")
        self.peer.end()
        if self.us:
            clients.fact("note", f"a handle {min(self.us):.1f} us at best, {max(self.us):.1f} at worst")
        self.say("done")


# ------------------------------------------------------------- by the driver API


class Reservation:
    """Addresses, of which pieces are mapped, each an allocation of its own."""

    def __init__(self, cuda, pieces, handle_types=0):
        self.cuda, self.size = cuda, pieces * PIECE
        self.properties = Properties(type=1, handle_types=handle_types, location_type=1, location=0)
        address = ctypes.c_uint64()
        cuda.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(self.size), ctypes.c_size_t(0),
                  ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.base = address.value
        self.mapped = {}

    def at(self, piece):
        return self.base + piece * PIECE

    def map(self, piece, pieces=1):
        handle, size = ctypes.c_uint64(), ctypes.c_size_t(pieces * PIECE)
        access = Access(1, 0, 3)
        self.cuda.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(self.properties), ctypes.c_uint64(0))
        self.cuda.call("cuMemMap", ctypes.c_uint64(self.at(piece)), size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self.cuda.call("cuMemSetAccess", ctypes.c_uint64(self.at(piece)), size, ctypes.byref(access), ctypes.c_size_t(1))
        self.cuda.call("cuMemRelease", handle)
        self.mapped[piece] = size

    def unmap(self, piece):
        self.cuda.call("cuMemUnmap", ctypes.c_uint64(self.at(piece)), self.mapped.pop(piece))

    def free(self):
        for piece in list(self.mapped):
            self.unmap(piece)
        self.cuda.call("cuMemAddressFree", ctypes.c_uint64(self.base), ctypes.c_size_t(self.size))


def base_of(case, way, address):
    return case.cuda.reservation(address) if way == "start" else case.cuda.block(address)


def plain(name, way):
    cuda = Driver()
    case = Case(name, cuda, Driver)
    memory = Reservation(cuda, 16)

    def fill(piece):
        memory.map(piece)
        cuda.write(memory.at(piece), pattern(piece, PIECE))

    def share(step, address, size, seed):
        return case.share(step, address, size, seed, base_of(case, way, address))

    for piece in range(3):
        fill(piece)
    imports = [share(f"piece {piece}", memory.at(piece), PIECE, piece) for piece in range(3)]
    case.close(share("the same piece again", memory.at(1), PIECE, 1)[1])
    fill(3)
    fill(6)
    imports += [share(f"mapped later, piece {piece}", memory.at(piece), PIECE, piece) for piece in (3, 6)]
    handle, there = imports[1]
    offset = memory.at(1) - base_of(case, way, memory.at(1))
    memory.unmap(1)
    if way == "block":
        case.stale("unmapped, a handle of before", handle)
    case.look("unmapped, an import of before", there and there + offset, PIECE, 1)
    memory.map(1)
    cuda.write(memory.at(1), pattern(100, PIECE))
    case.look("mapped anew, an import of before", there and there + offset, PIECE, 1)
    imports.append(share("mapped anew", memory.at(1), PIECE, 100))
    case.close(*(there for _, there in imports))
    memory.free()
    case.end()


def plain_async(name):
    cuda = Driver()
    case = Case(name, cuda, Driver)

    def make(size, seed):
        address = ctypes.c_uint64()
        cuda.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(0))
        cuda.write(address.value, pattern(seed, size))
        return address.value

    def free(address):
        cuda.call("cuMemFreeAsync", ctypes.c_uint64(address), ctypes.c_void_p(0))
        cuda.call("cuCtxSynchronize")

    freed_while_open(case, make, free)
    case.end()


def freed_while_open(case, make, free, get=None):
    """Shares blocks of several sizes, frees them while they are open, and has others take their places."""
    sizes = [1000, 64 << 10, 3 * MIB]
    blocks = [make(size, seed) for seed, size in enumerate(sizes)]
    shared = []
    for seed, size in enumerate(sizes):
        address = get[0](blocks[seed]) if get else blocks[seed]
        shared.append(case.share(f"{size} bytes", address, size, seed))
    while blocks:
        free(blocks.pop())
    others = [make(size, 100 + seed) for seed, size in enumerate(sizes * 4)]
    for seed, size in enumerate(sizes):
        case.look(f"{size} bytes, freed", shared[seed][1], size, seed)
    case.close(*(there for _, there in shared))
    while others:
        free(others.pop())


# -------------------------------------------------------------------- PyTorch


def torch_tensor(torch, size, seed):
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    tensor.copy_(torch.frombuffer(bytearray(pattern(seed, size)), dtype=torch.uint8))
    torch.cuda.synchronize()
    return tensor


def torch_or_skip():
    try:
        import torch
    except ImportError as error:
        clients.skip(f"no PyTorch: {error}")
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    return torch


def torch_segments(name, way):
    torch = torch_or_skip()
    clients.fact("version", f"PyTorch {torch.__version__}")
    cuda = Runtime(loaded_runtime())
    case = Case(name, cuda, Runtime, loaded_runtime())
    size, few, more = 6 * MIB, 4, 12  # chunks of 20 MiB: the segment grows, and tensors lie across two chunks

    def share(step, tensor, seed):
        address = tensor.data_ptr()
        handle, there = case.share(step, address, size, seed, base_of(case, way, address))
        return handle, there, address - base_of(case, way, address)

    tensors = [torch_tensor(torch, size, seed) for seed in range(few)]
    imports = [share(f"tensor {seed}", tensor, seed) for seed, tensor in enumerate(tensors)]
    tensors += [torch_tensor(torch, size, seed) for seed in range(few, more)]
    starts = {cuda.reservation(tensor.data_ptr()) for tensor in tensors}
    blocks = {cuda.block(tensor.data_ptr()) for tensor in tensors}
    case.say(f"segments: {len(starts)}, several allocations: {len(blocks) > len(starts)}")
    imports += [share(f"the segment has grown, tensor {seed}", tensors[seed], seed) for seed in range(few, more)]
    for seed in range(few):
        _, there, offset = imports[seed]
        case.look(f"tensor {seed}, as opened before", there and there + offset, size, seed)
    tensors[0].copy_(torch.frombuffer(bytearray(pattern(200, size)), dtype=torch.uint8))
    torch.cuda.synchronize()
    _, there, offset = imports[0]
    case.look("what the producer writes now arrives", there and there + offset, size, 200)
    small = torch_tensor(torch, 1000, 300)
    address = small.data_ptr()
    case.close(case.share("1,000 bytes", address, 1000, 300, base_of(case, way, address))[1])
    tensors.clear()
    del small
    torch.cuda.empty_cache()
    case.stale("all unmapped, a handle of before", imports[0][0])
    case.look("all unmapped, an import of before", there and there + offset, size, 200)
    case.close(*(there for _, there, _ in imports))
    case.end()


def saver(name, mode):
    torch = torch_or_skip()
    try:
        from importlib.metadata import version

        from torch_memory_saver import torch_memory_saver
    except ImportError as error:
        clients.skip(f"no torch_memory_saver: {error}")
    clients.fact("version", f"torch_memory_saver {version('torch_memory_saver')}, PyTorch {torch.__version__}")
    torch_memory_saver.hook_mode = mode
    cuda = Runtime(loaded_runtime())
    case = Case(name, cuda, Runtime, loaded_runtime())
    size = 32 * MIB
    with torch_memory_saver.region():
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")

    def fill(seed):
        tensor.copy_(torch.frombuffer(bytearray(pattern(seed, size)), dtype=torch.uint8))
        torch.cuda.synchronize()

    def share(step, seed):
        address = tensor.data_ptr()
        return case.share(step, address, size, seed, cuda.block(address))

    fill(1)
    handle, before = share("in the region", 1)
    torch_memory_saver.pause()
    case.stale("paused, the handle of before", handle)
    case.look("paused, what was opened before", before, size, 1)
    torch_memory_saver.resume()
    fill(2)
    case.stale("resumed, the handle of before", handle)
    case.look("resumed, what was opened before", before, size, 1)
    _, after = share("resumed", 2)
    case.close(before)
    case.look("the old one is closed", after, size, 2)
    case.close(after)
    case.end()
    if mode == "torch":
        # When Python ends PyTorch frees the tensor, outside of the region: then the library (0.0.10) ends the process
        # with 1, and without its exit handlers.
        sys.stdout.flush()
        ctypes.CDLL(None).exit(0)


# ----------------------------------------------------------- stream-ordered memory


def import_or_skip(*names):
    import importlib

    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        clients.skip(f"no {names[0]}: {error}")


def cupy_async(name):
    cupy, numpy = import_or_skip("cupy", "numpy")
    clients.fact("version", f"CuPy {cupy.__version__}")
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    case = Case(name, Cupy(), Cupy)

    def make(size, seed):
        array = cupy.asarray(numpy.frombuffer(pattern(seed, size), dtype=numpy.uint8))
        cupy.cuda.runtime.deviceSynchronize()
        return array

    def free(array):
        del array
        cupy.cuda.runtime.deviceSynchronize()

    freed_while_open(case, make, free, [lambda array: array.data.ptr])
    case.end()


def rmm_resource():
    rmm, _ = import_or_skip("rmm", "rmm.mr")
    resource = rmm.mr.CudaAsyncMemoryResource()
    rmm.mr.set_current_device_resource(resource)
    return rmm


def rmm_async(name):
    cuda = Driver()
    rmm = rmm_resource()
    clients.fact("version", f"rmm {rmm.__version__}")
    case = Case(name, cuda, Driver)

    def make(size, seed):
        buffer = rmm.DeviceBuffer.to_device(pattern(seed, size))
        cuda.call("cuCtxSynchronize")
        return buffer

    def free(buffer):
        del buffer
        cuda.call("cuCtxSynchronize")

    freed_while_open(case, make, free, [lambda buffer: buffer.ptr])
    case.end()


def numba_async(name):
    from importlib.metadata import version

    cuda, numpy = import_or_skip("numba.cuda", "numpy")
    driver = Driver()
    rmm = rmm_resource()
    (manager,) = import_or_skip("rmm.allocators.numba")
    cuda.set_memory_manager(manager.RMMNumbaManager)
    clients.fact("version", f"numba-cuda {version('numba-cuda')}, rmm {rmm.__version__}")
    case = Case(name, driver, Numba)

    def make(size, seed):
        array = cuda.to_device(numpy.frombuffer(pattern(seed, size), dtype=numpy.uint8))
        cuda.synchronize()
        return array

    def get(array):
        try:
            handle = array.get_ipc_handle()
        except cuda.cudadrv.driver.CudaAPIError as error:
            raise Refused(error.code) from None
        # pylint: disable-next=protected-access
        if handle._ipc_handle.handle is None:  # RMM's manager (26.10) does not look at the driver's error
            raise Refused(INVALID_VALUE)
        return handle

    def free(array):
        del array
        cuda.synchronize()

    driver.get = get
    # the case counts no offsets: Numba's handle has its own
    for seed, size in enumerate([1000, 3 * MIB]):
        arrays = [make(size, seed)]
        handle = case.get(arrays[0])
        there = case.opened(handle)
        case.look(f"{size} bytes", there, size, seed)
        # the handle refers to the array, too
        del handle
        free(arrays.pop())
        others = [make(size, 100 + i) for i in range(8)]
        case.look(f"{size} bytes, freed", there, size, seed)
        case.close(there)
        while others:
            free(others.pop())
    case.end()


CASES = {
    "plain-start": lambda name: plain(name, "start"),
    "plain-block": lambda name: plain(name, "block"),
    "plain-async": plain_async,
    "torch-start": lambda name: torch_segments(name, "start"),
    "torch-block": lambda name: torch_segments(name, "block"),
    "tms-torch": lambda name: saver(name, "torch"),
    "tms-preload": lambda name: saver(name, "preload"),
    "cupy-async": cupy_async,
    "rmm-async": rmm_async,
    "numba-async": numba_async,
}


def main():
    clients.start()
    CASES[sys.argv[1]](sys.argv[1])


if __name__ == "__main__":
    main()
