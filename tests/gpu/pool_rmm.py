# SPDX-License-Identifier: Apache-2.0
"""RMM's pool shared between processes: pool_rmm.py [CYCLES]

rmm.mr.CudaAsyncMemoryResource(enable_ipc=True) creates the pool and its blocks.  RMM has no
call that exports or imports; cuda-bindings does that, with the handle that RMM gives.

First CYCLES blocks are filled, exported, imported, checked byte by byte, closed and freed.  The
time goes to GPU_TEST_FACTS.  Then blocks are freed while the other process holds them, and new
ones are allocated and filled.  "result=" says whose bytes the other process then reads.
"""

import ctypes
import multiprocessing
import os
import pathlib
import sys
import time
from multiprocessing import reduction

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "matrix"))
import clients  # noqa: E402

BYTES = 1 << 20
HELD = 4


def there(connection):
    driver, call = clients.bindings()
    fd = reduction.recv_handle(connection)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    pool = call("cuMemPoolImportFromShareableHandle", fd, kind, 0)
    os.close(fd)
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call("cuMemPoolSetAccess", pool, [access], 1)
    connection.send("ready")
    held = []
    host = bytearray(BYTES)

    def wrong(block, byte):
        call("cuMemcpyDtoH", host, block, BYTES)
        return BYTES - host.count(byte)

    while True:
        what, *rest = clients.receive(connection)
        if what == "import":
            data = driver.CUmemPoolPtrExportData()
            ctypes.memmove(data.getPtr(), rest[0], 64)
            held.append(call("cuMemPoolImportPointer", pool, data))
            connection.send(wrong(held[-1], rest[1]))
        elif what == "look":
            connection.send(sum(wrong(block, rest[0]) for block in held))
        elif what == "free":
            for block in held:
                call("cuMemFreeAsync", block, driver.CUstream(0))
            held.clear()
            call("cuCtxSynchronize")
            connection.send("freed")
        else:
            call("cuMemPoolDestroy", pool)
            connection.send("closed")
            return


def main():
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    clients.start()
    try:
        import rmm
    except ImportError as error:
        clients.skip(f"no rmm: {error}")
    driver, call = clients.bindings()
    clients.fact("version", f"rmm {rmm.__version__}")
    resource = rmm.mr.CudaAsyncMemoryResource(initial_pool_size=64 << 20, enable_ipc=True)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    # RMM does not tell its pool's handle, but the driver tells that of a block
    first = rmm.DeviceBuffer(size=BYTES, mr=resource)
    pool = call("cuPointerGetAttribute", driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, first.ptr)
    del first
    fd = call("cuMemPoolExportToShareableHandle", driver.CUmemoryPool(int(pool)), kind, 0)
    peer = clients.Peer(there, context=multiprocessing.get_context("spawn"))
    reduction.send_handle(peer.connection, int(fd), peer.process.pid)
    os.close(int(fd))
    clients.receive(peer.connection)

    def filled(byte):
        block = rmm.DeviceBuffer(size=BYTES, mr=resource)
        call("cuMemsetD8", block.ptr, byte, BYTES)
        call("cuCtxSynchronize")
        return block

    def give(block, byte):
        return peer.ask("import", ctypes.string_at(call("cuMemPoolExportPointer", block.ptr).getPtr(), 64), byte)

    wrong = 0
    start = time.monotonic()
    for i in range(cycles):
        byte = 1 + i % 250
        block = filled(byte)
        wrong += give(block, byte)
        peer.ask("free")
        del block
        call("cuCtxSynchronize")
    clients.fact("us", f"{(time.monotonic() - start) * 1e6 / cycles:.1f}")
    print(f"client=rmm cycles={cycles} wrong bytes: {wrong}", flush=True)

    blocks = [filled(clients.OURS) for _ in range(HELD)]
    wrong = sum(give(block, clients.OURS) for block in blocks)
    print(f"client=rmm held={HELD} wrong bytes while the producer holds them, too: {wrong}", flush=True)
    blocks.clear()
    call("cuCtxSynchronize")
    others = [filled(clients.THEIRS) for _ in range(4 * HELD)]
    wrong = peer.ask("look", clients.OURS)
    print(f"client=rmm result={clients.word(wrong)}", flush=True)
    peer.ask("free")
    del others
    peer.ask("end")
    peer.end()


if __name__ == "__main__":
    main()
