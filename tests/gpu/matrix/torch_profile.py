# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler (CUPTI) run on a program that shares tensors."""

import gc

import clients
import torch
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile

TENSORS, FLOATS = 50, 256


def consumer(connection, queue):
    tensors = queue.get(timeout=clients.ANSWER_SECONDS)
    connection.send(float(sum(t.sum() for t in tensors)))
    clients.receive(connection)
    del tensors
    gc.collect()
    connection.send("dropped")


def main():
    clients.start()
    clients.fact("version", f"PyTorch {torch.__version__}")
    context = mp.get_context("spawn")
    queue = context.Queue()
    peer = clients.Peer(consumer, queue, context=context)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        tensors = [torch.full((FLOATS,), 1.0 + i, device="cuda") for i in range(TENSORS)]
        product = torch.stack(tensors) @ torch.ones(FLOATS, 8, device="cuda")
        torch.cuda.synchronize()
        queue.put(tensors)
        there = clients.receive(peer.connection)
        del tensors
        gc.collect()
        torch.cuda.empty_cache()
    kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    print(f"client=torch-profile sum there: {there}, here: {float(product[:, 0].sum())}", flush=True)
    print(f"client=torch-profile device events seen: {len(kernels) > TENSORS}", flush=True)
    peer.ask("drop")
    peer.end()
    print("client=torch-profile done", flush=True)


if __name__ == "__main__":
    main()
