# SPDX-License-Identifier: Apache-2.0
"""mpi4py: rank 0 exports a block with cuda-bindings, and the other ranks open its handle.

Run by mpiexec -n N.  Rank 0 frees the block while the others hold it, and overwrites what it
then allocates at that address.
"""

import ctypes
import os

import clients
from mpi4py import MPI

BYTES, NEIGHBOURS, TRIES = 1024, 8, 64


def main():
    def make(value):
        block = call("cuMemAlloc", BYTES)
        call("cuMemsetD8", block, value, BYTES)
        call("cuCtxSynchronize")
        return block

    clients.start()
    ranks = MPI.COMM_WORLD
    if ranks.size < 2:
        clients.skip("there is only one rank: no mpiexec here matches this mpi4py")
    driver, call = clients.bindings()
    handle, block, beside = None, None, []
    if ranks.rank == 0:
        import mpi4py

        clients.fact("version", f"mpi4py {mpi4py.__version__}, {MPI.get_vendor()[0]}")
        beside = [make(90) for _ in range(NEIGHBOURS)]
        block = make(clients.OURS)
        beside += [make(90) for _ in range(NEIGHBOURS)]
        handle = ctypes.string_at(call("cuIpcGetMemHandle", block).getPtr(), 64)
    handle = ranks.bcast(handle, root=0)
    opened = None
    if ranks.rank:
        there = driver.CUipcMemHandle()
        ctypes.memmove(there.getPtr(), handle, 64)
        opened = call("cuIpcOpenMemHandle", there, 1)
    ranks.Barrier()
    if ranks.rank == 0:
        call("cuMemFree", block)
        for _ in range(TRIES):
            beside.append(make(clients.THEIRS))
            if int(beside[-1]) == int(block):
                break
    ranks.Barrier()
    wrong = 0
    if ranks.rank:
        data = bytearray(BYTES)
        call("cuMemcpyDtoH", data, opened, BYTES)
        wrong = sum(byte != clients.OURS for byte in data)
    wrong = ranks.allreduce(wrong)
    if ranks.rank == 0:
        print(f"client=mpi ranks={ranks.size} result={clients.word(wrong)}", flush=True)
    else:
        call("cuIpcCloseMemHandle", opened)
    ranks.Barrier()


if __name__ == "__main__":
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    main()
