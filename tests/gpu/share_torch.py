# SPDX-License-Identifier: Apache-2.0
"""The PyTorch client: torch.multiprocessing shares tensors and events with a spawned process.

    share_torch.py [leak]

The producer sends many small tensors over a Queue, deletes them while the consumer
holds them, empties its cache and fills new ones.  The consumer checks whether it
still reads its own values.  PyTorch keeps a sent tensor until the consumer releases
it, so this works on the bare driver too.  It must still work under culimbo, with the
same memory after ipc_collect().  Then both sides share events; one is destroyed
while the other side has it open.  With "leak" the producer ends by _exit while the
consumer holds tensors, and the consumer exits without closing them.

Only the producer writes to stdout; its lines are the same in each run.  Nothing here
knows of culimbo.
"""

import gc
import os
import signal
import sys

import torch
import torch.multiprocessing as mp

TENSORS = 500
FLOATS = 256
THEIRS = 238.0
PROGRAM_SECONDS = 100
ANSWER_SECONDS = 40


def fact(key, value):
    """Writes a fact for run.sh: what the report must name, or the version."""
    path = os.environ.get("GPU_TEST_FACTS")
    if path:
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{key}={value}\n")


def receive(connection):
    if not connection.poll(ANSWER_SECONDS):
        raise TimeoutError(f"no answer within {ANSWER_SECONDS} s")
    return connection.recv()


def ask(connection, *message):
    connection.send(message)
    return receive(connection)


def wrong_tensors(tensors):
    """Returns how many tensors do not hold their own number in every element."""
    stacked = torch.stack(tensors)
    expected = torch.arange(len(tensors), device=stacked.device, dtype=stacked.dtype)
    return int((stacked != expected[:, None]).any(dim=1).sum())


def consumer(queue, connection):
    signal.alarm(PROGRAM_SECONDS)
    torch.cuda.init()
    tensors, event, made = None, None, None
    while True:
        try:
            what, *rest = receive(connection)
        except EOFError:
            # the producer has ended while we hold tensors: exit without closing them
            os._exit(0)
        if what == "get":
            tensors = queue.get(timeout=ANSWER_SECONDS)
            connection.send(wrong_tensors(tensors))
        elif what == "verify":
            connection.send(wrong_tensors(tensors))
        elif what == "drop":
            tensors = None
            gc.collect()
            torch.cuda.synchronize()
            connection.send("dropped")
        elif what == "event":
            event = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), rest[0])
            event.synchronize()
            made = torch.cuda.Event(interprocess=True)
            made.record()
            connection.send((event.query(), made.ipc_handle()))
        elif what == "event gone":
            event.synchronize()
            connection.send(event.query())
        else:
            del event, made
            return


def segment_of(pointer):
    """Returns the address that cudaMalloc gave for the memory at @pointer."""
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= pointer < segment["address"] + segment["total_size"]:
            return segment["address"]
    raise RuntimeError("the tensor is in no segment")


def share_tensors(queue, connection):
    tensors = [torch.full((FLOATS,), float(i), device="cuda") for i in range(TENSORS)]
    torch.cuda.synchronize()
    fact("block", hex(segment_of(tensors[0].data_ptr())))
    queue.put(tensors)
    wrong = ask(connection, "get")
    if wrong:
        raise RuntimeError(f"{wrong} tensors are wrong right after they came")
    del tensors
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((FLOATS,), THEIRS, device="cuda") for _ in range(TENSORS)]
    torch.cuda.synchronize()
    wrong = ask(connection, "verify")
    print(f"client=torch tensors={TENSORS} result={'foreign' if wrong else 'own'}", flush=True)
    return others


def share_events(connection):
    event = torch.cuda.Event(interprocess=True)
    event.record()
    done, handle = ask(connection, "event", event.ipc_handle())
    theirs = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), handle)
    theirs.synchronize()
    print(f"client=torch event there: {done}, back: {theirs.query()}", flush=True)
    del event
    gc.collect()
    others = [torch.cuda.Event(interprocess=True) for _ in range(64)]
    for other in others:
        other.record()
        other.ipc_handle()
    print(f"client=torch event destroyed, still done there: {ask(connection, 'event gone')}",
          flush=True)
    del theirs, others
    gc.collect()


def main():
    signal.alarm(PROGRAM_SECONDS)
    leak = len(sys.argv) > 1 and sys.argv[1] == "leak"
    torch.cuda.init()
    context = mp.get_context("spawn")
    queue = context.Queue()
    ours, theirs = context.Pipe()
    child = context.Process(target=consumer, args=(queue, theirs), daemon=True)
    child.start()
    theirs.close()
    fact("version", f"PyTorch {torch.__version__}")
    fact("producer", os.getpid())
    fact("consumer", child.pid)
    others = share_tensors(queue, ours)
    if leak:
        sys.stdout.flush()
        os._exit(0)
    ask(ours, "drop")
    del others
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    print(f"client=torch after ipc_collect: allocated={torch.cuda.memory_allocated()}", flush=True)
    torch.cuda.empty_cache()
    print(f"client=torch after empty_cache: reserved={torch.cuda.memory_reserved()}", flush=True)
    share_events(ours)
    ours.send(("end",))
    child.join(ANSWER_SECONDS)
    if child.exitcode != 0:
        raise RuntimeError(f"the consumer ended with {child.exitcode}")
    print("client=torch done", flush=True)


if __name__ == "__main__":
    main()
