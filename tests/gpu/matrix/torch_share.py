# SPDX-License-Identifier: Apache-2.0
"""PyTorch: what torch.multiprocessing shares.

    torch_share.py tensors|many|killed|first

tensors: sends tensors, a parameter, a storage and an event to a spawned consumer, deletes them
    while the consumer reads them, gets them back; prints what is allocated after ipc_collect.
many: the same with 20,000 tensors.
killed: the consumer is killed while it holds them.
first: the producer is the first to exit, while the consumer holds them.

PyTorch keeps what it sent until the consumer lets go: right on the bare driver,
too; it must stay so, and its own counters must give the same.
"""

import gc
import sys

import clients
import torch
import torch.multiprocessing as mp

FLOATS = 256
MANY = 20000
FEW = 100


def made(count):
    """Returns tensors that are filled with their own number, then a parameter, a shared storage, and an event.

    A CUDA storage alone is not pickled ("try pickling a CUDA tensor instead"): it is shared by
    _share_cuda_ and opened by _new_shared_cuda, as pickling a tensor does.
    """
    tensors = [torch.full((FLOATS,), float(i), device="cuda") for i in range(count)]
    parameter = torch.nn.Parameter(torch.full((FLOATS,), float(count), device="cuda"))
    storage = torch.full((FLOATS,), float(count + 1), device="cuda").untyped_storage()
    event = torch.cuda.Event(interprocess=True)
    event.record()
    torch.cuda.synchronize()
    return tensors, parameter, storage._share_cuda_(), event


def received(queue):
    tensors, parameter, storage, event = queue.get(timeout=clients.ANSWER_SECONDS)
    event.synchronize()
    return tensors, parameter, torch.UntypedStorage._new_shared_cuda(*storage), event


def wrong(shared):
    """Returns how many tensors do not hold their own number in every element."""
    tensors, parameter, storage, _ = shared
    last = torch.empty(0, dtype=torch.float32, device=storage.device).set_(storage)
    stacked = torch.stack([*tensors, parameter.detach(), last[:FLOATS]])
    expected = torch.arange(len(stacked), device=stacked.device, dtype=stacked.dtype)
    return int((stacked != expected[:, None]).any(dim=1).sum())


def consumer(connection, queue):
    torch.cuda.init()
    shared = None
    while True:
        (what,) = clients.receive(connection)
        if what == "get":
            shared = received(queue)
            connection.send((wrong(shared), type(shared[1]).__name__, shared[1].requires_grad, shared[3].query()))
        elif what == "verify":
            connection.send(wrong(shared))
        elif what == "drop":
            shared = None
            gc.collect()
            torch.cuda.synchronize()
            connection.send("dropped")
        else:
            connection.send("ends")
            return


def producer(connection, queue):
    shared = made(FEW)
    queue.put(shared)
    clients.receive(connection)  # the consumer has received all of them
    torch.cuda.synchronize()


def write_over(count):
    others = [torch.full((FLOATS,), float(clients.THEIRS), device="cuda") for _ in range(count)]
    torch.cuda.synchronize()
    return others


def tell_memory(when):
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    print(f"client=torch {when}: allocated={torch.cuda.memory_allocated()}", flush=True)
    torch.cuda.empty_cache()
    print(f"client=torch {when}: reserved={torch.cuda.memory_reserved()}", flush=True)


def shared_from_here(mode, count):
    context = mp.get_context("spawn")
    queue = context.Queue()
    peer = clients.Peer(consumer, queue, context=context)
    shared = made(count)
    queue.put(shared)
    print(f"client=torch {mode} arrived: {peer.ask('get')}", flush=True)
    del shared
    gc.collect()
    torch.cuda.empty_cache()
    others = write_over(count)
    print(f"client=torch {mode} result={clients.word(peer.ask('verify'))}", flush=True)
    if mode == "killed":
        peer.kill()
    else:
        peer.ask("drop")
    del others
    tell_memory("after ipc_collect")
    others = write_over(FEW)
    del others
    tell_memory("after more")
    if mode != "killed":
        peer.ask("end")
        peer.end()


def producer_first():
    context = mp.get_context("spawn")
    queue = context.Queue()
    peer = clients.Peer(producer, queue, context=context)
    shared = received(queue)
    print(f"client=torch first arrived: {wrong(shared)}", flush=True)
    peer.connection.send("go")
    peer.end()
    others = write_over(FEW)
    print(f"client=torch first, the producer gone: result={clients.word(wrong(shared))}", flush=True)
    del shared, others
    tell_memory("after ipc_collect")


def main():
    clients.start()
    mode = sys.argv[1]
    torch.cuda.init()
    clients.fact("version", f"PyTorch {torch.__version__}")
    if mode == "first":
        producer_first()
    else:
        shared_from_here(mode, MANY if mode == "many" else FEW)
    print("client=torch done", flush=True)


if __name__ == "__main__":
    main()
