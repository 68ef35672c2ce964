# SPDX-License-Identifier: Apache-2.0
"""Memory of device 0 that a process on device 1 opens by a handle: peers.py plain-peer|torch-peer

    plain-peer   virtual and stream-ordered memory by the driver API; cuMemAlloc memory is the control
    torch-peer   PyTorch's expandable segments; PyTorch on device 1 copies them to a tensor of its own

The rules are those of memory.py.  The control is the same with and without culimbo, and has no "result=".
"""

import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "matrix"))
import clients  # noqa: E402
import memory  # noqa: E402

DEVICE_TO_DEVICE = 3


class Torch(memory.Runtime):
    """PyTorch on device 1."""

    def __init__(self, path):
        import torch

        self.torch = torch
        torch.cuda.set_device(1)
        torch.zeros(1, device="cuda:1")
        super().__init__(path, 1)

    def read(self, address, size):
        mine = self.torch.empty(size, dtype=self.torch.uint8, device="cuda:1")
        if self.runtime.cudaMemcpy(ctypes.c_void_p(mine.data_ptr()), ctypes.c_void_p(address), ctypes.c_size_t(size),
                                   DEVICE_TO_DEVICE):
            raise RuntimeError("cudaMemcpy")
        host = mine.cpu()
        return ctypes.string_at(host.data_ptr(), size)


def begin():
    """Returns the driver on device 0."""
    cuda, count = memory.Driver(), ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    if count.value < 2:
        clients.skip("it needs two GPUs")
    return cuda


def plain(name):
    cuda = begin()
    case = memory.Case(name, cuda, memory.Driver, 1)
    size = 2 * memory.PIECE
    address = ctypes.c_uint64()
    cuda.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    cuda.write(address.value, memory.pattern(1, size))
    there = case.opened(case.get(address.value))
    case.say(f"cuMemAlloc memory: {there and case.peer.ask('read', there, size, 1)}")
    case.close(there)
    mapped = memory.Reservation(cuda, 4)
    mapped.map(0, 2)
    cuda.write(mapped.base, memory.pattern(2, size))
    _, virtual = case.share("virtual memory", mapped.base, size, 2)
    cuda.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(0))
    cuda.write(address.value, memory.pattern(3, size))
    _, ordered = case.share("stream-ordered memory", address.value, size, 3)
    mapped.unmap(0)
    cuda.call("cuMemFreeAsync", address, ctypes.c_void_p(0))
    cuda.call("cuCtxSynchronize")
    case.look("virtual memory, unmapped", virtual, size, 2)
    case.look("stream-ordered memory, freed", ordered, size, 3)
    case.close(virtual, ordered)
    mapped.free()
    case.end()


def torch_segments(name):
    begin()
    torch = memory.torch_or_skip()
    clients.fact("version", f"PyTorch {torch.__version__}")
    path = memory.loaded_runtime()
    cuda = memory.Runtime(path)
    case = memory.Case(name, cuda, Torch, path)
    size = 6 * memory.MIB
    tensors = [memory.torch_tensor(torch, size, seed) for seed in range(4)]
    imports = []
    for seed, tensor in enumerate(tensors):
        address = tensor.data_ptr()
        imports.append(case.share(f"tensor {seed}", address, size, seed, cuda.block(address))[1])
    case.close(*imports)
    case.end()


def main():
    clients.start()
    {"plain-peer": plain, "torch-peer": torch_segments}[sys.argv[1]](sys.argv[1])


if __name__ == "__main__":
    main()
