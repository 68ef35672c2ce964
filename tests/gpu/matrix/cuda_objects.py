# SPDX-License-Identifier: Apache-2.0
"""cuda-bindings and cuda.core: objects other than plain blocks.

    cuda_objects.py bindings-events|bindings-pool|core-pool|core-events

bindings-events: events shared by handle, destroyed by the producer while the consumer has them open.
bindings-pool: a pool exported as a file descriptor, and a block of it exported by
    cuMemPoolExportPointer.
core-pool: cuda.core's DeviceMemoryResource(ipc_enabled), buffers sent by pickle.
core-events: cuda.core's events, shared by descriptor.
"""

import ctypes
import os
import sys
from multiprocessing import reduction

import clients

BYTES = 4096


def tell_bindings():
    import cuda.bindings

    clients.fact("version", f"cuda-bindings {cuda.bindings.__version__}")


def tell_core():
    import cuda.core

    clients.fact("version", f"cuda.core {cuda.core.__version__}")


# ---------------------------------------------------------------- bindings-events

def events_there(connection):
    driver, call = clients.bindings()
    events = []
    while True:
        what, *rest = clients.receive(connection)
        if what == "open":
            handle = driver.CUipcEventHandle()
            ctypes.memmove(handle.getPtr(), rest[0], 64)
            events.append(call("cuIpcOpenEventHandle", handle))
            call("cuEventSynchronize", events[-1])
            connection.send("done")
        elif what == "again":
            for event in events:
                call("cuEventSynchronize", event)
            connection.send([driver.cuEventQuery(event)[0].name for event in events])
        else:
            for event in events:
                call("cuEventDestroy", event)
            connection.send("closed")
            return


def bindings_events():
    driver, call = clients.bindings()
    tell_bindings()
    peer = clients.Peer(events_there)
    flags = driver.CUevent_flags.CU_EVENT_INTERPROCESS | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    for _ in range(4):
        event = call("cuEventCreate", int(flags))
        call("cuEventRecord", event, driver.CUstream(0))
        peer.ask("open", ctypes.string_at(call("cuIpcGetEventHandle", event).getPtr(), 64))
        call("cuEventDestroy", event)
    others = [call("cuEventCreate", int(flags)) for _ in range(16)]
    for event in others:
        call("cuEventRecord", event, driver.CUstream(0))
    call("cuCtxSynchronize")
    print(f"client=bindings-events destroyed here, there: {peer.ask('again')}", flush=True)
    peer.ask("end")
    peer.end()
    for event in others:
        call("cuEventDestroy", event)


# ------------------------------------------------------------------ bindings-pool

def pool_there(connection):
    driver, call = clients.bindings()
    fd = reduction.recv_handle(connection)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    pool = call("cuMemPoolImportFromShareableHandle", fd, kind, 0)
    os.close(fd)
    device = driver.CUmemLocation()
    device.type, device.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    access = driver.CUmemAccessDesc()
    access.location, access.flags = device, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call("cuMemPoolSetAccess", pool, [access], 1)
    data = driver.CUmemPoolPtrExportData()
    ctypes.memmove(data.getPtr(), clients.receive(connection), 64)
    block = call("cuMemPoolImportPointer", pool, data)
    host = bytearray(BYTES)
    call("cuMemcpyDtoH", host, block, BYTES)
    connection.send(sum(byte != clients.OURS for byte in host))
    clients.receive(connection)
    call("cuMemFreeAsync", block, driver.CUstream(0))
    call("cuCtxSynchronize")
    connection.send("freed")
    clients.receive(connection)


def bindings_pool():
    driver, call = clients.bindings()
    tell_bindings()
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = kind
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = 0
    pool = call("cuMemPoolCreate", wanted)
    stream = driver.CUstream(0)
    block = call("cuMemAllocFromPoolAsync", BYTES, pool, stream)
    call("cuMemsetD8Async", block, clients.OURS, BYTES, stream)
    call("cuCtxSynchronize")
    # a legacy handle of a pool's block is an error, and must be the same error under culimbo
    print(f"client=bindings-pool legacy handle: {driver.cuIpcGetMemHandle(block)[0].name}", flush=True)
    peer = clients.Peer(pool_there)
    fd = call("cuMemPoolExportToShareableHandle", pool, kind, 0)
    reduction.send_handle(peer.connection, int(fd), peer.process.pid)
    os.close(int(fd))
    wrong = peer.ask_raw(ctypes.string_at(call("cuMemPoolExportPointer", block).getPtr(), 64))
    print(f"client=bindings-pool result={clients.word(wrong)}", flush=True)
    peer.ask("free")
    call("cuMemFreeAsync", block, stream)
    call("cuCtxSynchronize")
    peer.connection.send("end")
    peer.end()
    call("cuMemPoolDestroy", pool)


# ---------------------------------------------------------------------- core-pool

def core():
    import cuda.core as core

    if not hasattr(core, "DeviceMemoryResource"):
        try:
            import cuda.core.experimental as core
        except ImportError:
            pass
    if not hasattr(core, "DeviceMemoryResourceOptions"):
        clients.skip("this cuda.core has no memory resource that can be shared")
    device = core.Device(0)
    device.set_current()
    return core, device


def read(device, buffer):
    driver, call = clients.bindings()
    device.sync()
    host = bytearray(BYTES)
    call("cuMemcpyDtoH", host, int(buffer.handle), BYTES)
    return sum(byte != clients.OURS for byte in host)


def core_pool_there(connection):
    _, device = core()
    buffers = clients.receive(connection)
    connection.send(sum(read(device, buffer) for buffer in buffers))
    clients.receive(connection)
    connection.send(sum(read(device, buffer) for buffer in buffers))
    stream = device.create_stream()
    for buffer in buffers:
        buffer.close(stream)
    stream.sync()


def core_pool():
    module, device = core()
    tell_core()
    _, call = clients.bindings()
    stream = device.create_stream()
    resource = module.DeviceMemoryResource(
        device, options=module.DeviceMemoryResourceOptions(ipc_enabled=True, max_size=2 << 20))
    buffers = [resource.allocate(BYTES, stream=stream) for _ in range(4)]
    stream.sync()
    for buffer in buffers:
        call("cuMemsetD8", int(buffer.handle), clients.OURS, BYTES)
    device.sync()
    peer = clients.Peer(core_pool_there)
    print(f"client=core-pool arrived: {peer.ask_raw(buffers)}", flush=True)
    print(f"client=core-pool result={clients.word(peer.ask_raw('again'))}", flush=True)
    peer.end()
    for buffer in buffers:
        buffer.close(stream)
    stream.sync()
    resource.close()


# -------------------------------------------------------------------- core-events

def core_events_there(connection):
    module, _ = core()
    event = module.Event.from_ipc_descriptor(clients.receive(connection))
    event.sync()
    connection.send(event.is_done)
    clients.receive(connection)
    event.sync()
    connection.send(event.is_done)
    event.close()


def core_events():
    module, device = core()
    tell_core()
    if not hasattr(module.Event, "from_ipc_descriptor"):
        clients.skip("this cuda.core shares no events")
    stream = device.create_stream()
    event = stream.record(options=module.EventOptions(ipc_enabled=True))
    descriptor = event.ipc_descriptor if hasattr(type(event), "ipc_descriptor") else event.get_ipc_descriptor()
    peer = clients.Peer(core_events_there)
    print(f"client=core-events there: {peer.ask_raw(descriptor)}", flush=True)
    event.close()
    others = [stream.record(options=module.EventOptions(ipc_enabled=True)) for _ in range(16)]
    print(f"client=core-events destroyed here, there: {peer.ask_raw('again')}", flush=True)
    peer.end()
    del others


def main():
    clients.start()
    {
        "bindings-events": bindings_events,
        "bindings-pool": bindings_pool,
        "core-pool": core_pool,
        "core-events": core_events,
    }[sys.argv[1]]()
    print(f"client={sys.argv[1]} done", flush=True)


if __name__ == "__main__":
    main()
