# SPDX-License-Identifier: Apache-2.0
"""UCX and NIXL on memory that was made for no way of sharing: transports.py ucx|nixl|ucx-async|nixl-async|ucx-pool-async|nixl-pool-async

The first two move virtual memory, the next two stream-ordered memory of the device's default pool, and the last two that
of a pool of the program's own, which has no handle type.  Two processes move blocks of such memory and compare every byte.  Bare the bytes arrive as well, by
a slow path, since cuda_ipc can't share them: "rate" among the facts is how fast the best block came, in
MB/s.  "result=" says only whether the bytes are right, or "none" if they did not come: NIXL has no slow path for such
memory (seen on H100s).  Nothing here knows of culimbo.
"""

import asyncio
import ctypes
import multiprocessing
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "matrix"))
import clients  # noqa: E402
import memory  # noqa: E402

SIZE = 64 * memory.MIB
BLOCKS = 12
NIXL_SECONDS = 20  # for one block


def virtual(driver):
    """A mapping of one allocation.  Returns its address."""
    reservation = memory.Reservation(driver, SIZE // memory.PIECE)
    reservation.map(0, SIZE // memory.PIECE)
    return reservation.base


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps; all that is not set is zero."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 72),
    ]


def own_pool(driver):
    """A pool of device 0 that nobody can export."""
    pool = ctypes.c_void_p()
    driver.call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(PoolProperties(kind=1, location_type=1)))
    return pool


def stream_ordered(driver, pool=None):
    """A block of @pool, or of the device's default one.  Returns its address."""
    address = ctypes.c_uint64()
    take, of = ("cuMemAllocFromPoolAsync", [pool]) if pool else ("cuMemAllocAsync", [])
    driver.call(take, ctypes.byref(address), ctypes.c_size_t(SIZE), *of, ctypes.c_void_p(0))
    driver.call("cuCtxSynchronize")
    return address.value


class Block:
    """Memory of the client @name, as an array that CUDA libraries take.  It stays until the process ends."""

    def __init__(self, name, seed=None):
        self.driver = driver = memory.Driver()
        if name.endswith("-async"):
            self.address = stream_ordered(driver, own_pool(driver) if name.endswith("-pool-async") else None)
        else:
            self.address = virtual(driver)
        if seed is not None:
            driver.write(self.address, memory.pattern(seed, SIZE))

    @property
    def __cuda_array_interface__(self):
        return {"shape": (SIZE,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def has(self, seed):
        return self.driver.read(self.address, SIZE) == memory.pattern(seed, SIZE)


def tell_rate(times):
    clients.fact("rate", f"{SIZE / 1e6 / min(times):.0f}")
    clients.fact("us", f"{min(times) * 1e6:.0f}")


# ------------------------------------------------------------------------ UCX


async def ucx_sends(connection, name):
    import ucxx

    block = Block(name, 7)
    done = asyncio.Event()
    endpoints = []

    async def serve(endpoint):
        # without a reference it is closed after the last send, before the other side has all of it
        endpoints.append(endpoint)
        for _ in range(BLOCKS):
            await endpoint.send(block)
        done.set()

    listener = ucxx.create_listener(serve, 0)
    connection.send(listener.port)
    await asyncio.wait_for(done.wait(), clients.ANSWER_SECONDS)
    while not connection.poll():
        await asyncio.sleep(0.01)
    listener.close()


def ucx_there(connection, name):
    asyncio.run(ucx_sends(connection, name))


async def ucx_receives(port, name):
    import ucxx

    block = Block(name)
    times = []
    endpoint = await ucxx.create_endpoint("127.0.0.1", port)
    for _ in range(BLOCKS):
        start = time.perf_counter()
        await endpoint.recv(block)
        times.append(time.perf_counter() - start)
    right = block.has(7)
    await endpoint.close()
    return right, times


def ucx(name):
    try:
        import ucxx
    except ImportError as error:
        clients.skip(f"no ucxx: {error}")
    clients.fact("version", "UCX " + ".".join(map(str, ucxx.get_ucx_version())))
    peer = clients.Peer(ucx_there, name, context=multiprocessing.get_context("spawn"))
    port = clients.receive(peer.connection)
    right, times = asyncio.run(ucx_receives(port, name))
    peer.connection.send("end")
    peer.end()
    tell_rate(times)
    print(f"client={name} blocks={BLOCKS} result={'own' if right else 'foreign'}", flush=True)


# ----------------------------------------------------------------------- NIXL


def nixl_agent(name):
    try:
        from nixl._api import nixl_agent as agent
        from nixl._api import nixl_agent_config as config
    except ImportError as error:
        clients.skip(f"no nixl: {error}")
    return agent(name, config(enable_prog_thread=True, backends=["UCX"]))


def nixl_there(connection, name):
    block = Block(name, 9)
    agent = nixl_agent("target")
    registered = agent.register_memory([(block.address, SIZE, 0, "")], "VRAM")
    connection.send((agent.get_agent_metadata(), block.address))
    clients.receive(connection)
    agent.deregister_memory(registered)
    connection.send("ends")
    # at the normal end UCX's threads may still be in the driver
    os._exit(0)


def nixl(name):
    from importlib.metadata import PackageNotFoundError, version

    block = Block(name)
    agent = nixl_agent("initiator")
    try:
        clients.fact("version", f"nixl {version('nixl')}")
    except PackageNotFoundError:
        pass
    registered = agent.register_memory([(block.address, SIZE, 0, "")], "VRAM")
    peer = clients.Peer(nixl_there, name, context=multiprocessing.get_context("spawn"))
    metadata, address = clients.receive(peer.connection)
    target = agent.add_remote_agent(metadata)
    transfer = agent.initialize_xfer(
        "READ",
        agent.get_xfer_descs([(block.address, SIZE, 0)], "VRAM"),
        agent.get_xfer_descs([(address, SIZE, 0)], "VRAM"),
        target if isinstance(target, str) else target.decode(),
    )
    times = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        state = agent.transfer(transfer)
        while state == "PROC" and time.perf_counter() - start < NIXL_SECONDS:
            state = agent.check_xfer_state(transfer)
        if state == "PROC":
            # neither process would end in order: the transfer is still under way
            clients.fact("note", f"block {len(times) + 1} of {BLOCKS} had not come after {NIXL_SECONDS} s")
            print(f"client={name} blocks={BLOCKS} result=none", flush=True)
            peer.kill()
            os._exit(0)
        if state != "DONE":
            raise RuntimeError(f"the transfer is {state}")
        times.append(time.perf_counter() - start)
    print(f"client={name} blocks={BLOCKS} result={'own' if block.has(9) else 'foreign'}", flush=True)
    agent.release_xfer_handle(transfer)
    agent.remove_remote_agent(target)
    agent.deregister_memory(registered)
    del transfer, agent
    peer.ask("end")
    peer.end()
    tell_rate(times)


def main():
    clients.start()
    {"ucx": ucx, "nixl": nixl}[sys.argv[1].split("-")[0]](sys.argv[1])


if __name__ == "__main__":
    main()
