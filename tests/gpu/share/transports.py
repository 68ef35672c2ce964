# SPDX-License-Identifier: Apache-2.0
"""UCX and NIXL on virtual memory that was made for no way of sharing: transports.py ucx|nixl

Two processes move blocks of such memory and compare every byte.  Bare the bytes arrive as well, by
a slow path, since cuda_ipc can't share them: "rate" among the facts is how fast the best block came, in
MB/s.  "result=" says only whether the bytes are right, or "none" if they did not come: NIXL has no slow path for such
memory (seen on H100s).  Nothing here knows of culimbo.
"""

import asyncio
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


class Block:
    """A mapping of one allocation, as an array that CUDA libraries take."""

    def __init__(self, driver, seed=None):
        self.driver = driver
        self.reservation = memory.Reservation(driver, SIZE // memory.PIECE)
        self.reservation.map(0, SIZE // memory.PIECE)
        self.address = self.reservation.base
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


async def ucx_sends(connection):
    import ucxx

    block = Block(memory.Driver(), 7)
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


def ucx_there(connection):
    asyncio.run(ucx_sends(connection))


async def ucx_receives(port):
    import ucxx

    block = Block(memory.Driver())
    times = []
    endpoint = await ucxx.create_endpoint("127.0.0.1", port)
    for _ in range(BLOCKS):
        start = time.perf_counter()
        await endpoint.recv(block)
        times.append(time.perf_counter() - start)
    right = block.has(7)
    await endpoint.close()
    return right, times


def ucx():
    try:
        import ucxx
    except ImportError as error:
        clients.skip(f"no ucxx: {error}")
    clients.fact("version", "UCX " + ".".join(map(str, ucxx.get_ucx_version())))
    peer = clients.Peer(ucx_there, context=multiprocessing.get_context("spawn"))
    port = clients.receive(peer.connection)
    right, times = asyncio.run(ucx_receives(port))
    peer.connection.send("end")
    peer.end()
    tell_rate(times)
    print(f"client=ucx blocks={BLOCKS} result={'own' if right else 'foreign'}", flush=True)


# ----------------------------------------------------------------------- NIXL


def nixl_agent(name):
    try:
        from nixl._api import nixl_agent as agent
        from nixl._api import nixl_agent_config as config
    except ImportError as error:
        clients.skip(f"no nixl: {error}")
    return agent(name, config(enable_prog_thread=True, backends=["UCX"]))


def nixl_there(connection):
    block = Block(memory.Driver(), 9)
    agent = nixl_agent("target")
    registered = agent.register_memory([(block.address, SIZE, 0, "")], "VRAM")
    connection.send((agent.get_agent_metadata(), block.address))
    clients.receive(connection)
    agent.deregister_memory(registered)
    connection.send("ends")
    # at the normal end UCX's threads may still be in the driver
    os._exit(0)


def nixl():
    from importlib.metadata import PackageNotFoundError, version

    block = Block(memory.Driver())
    agent = nixl_agent("initiator")
    try:
        clients.fact("version", f"nixl {version('nixl')}")
    except PackageNotFoundError:
        pass
    registered = agent.register_memory([(block.address, SIZE, 0, "")], "VRAM")
    peer = clients.Peer(nixl_there, context=multiprocessing.get_context("spawn"))
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
            print(f"client=nixl blocks={BLOCKS} result=none", flush=True)
            peer.kill()
            os._exit(0)
        if state != "DONE":
            raise RuntimeError(f"the transfer is {state}")
        times.append(time.perf_counter() - start)
    print(f"client=nixl blocks={BLOCKS} result={'own' if block.has(9) else 'foreign'}", flush=True)
    agent.release_xfer_handle(transfer)
    agent.remove_remote_agent(target)
    agent.deregister_memory(registered)
    del transfer, agent
    peer.ask("end")
    peer.end()
    tell_rate(times)


def main():
    clients.start()
    {"ucx": ucx, "nixl": nixl}[sys.argv[1]]()


if __name__ == "__main__":
    main()
