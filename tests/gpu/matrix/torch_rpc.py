# SPDX-License-Identifier: Apache-2.0
"""PyTorch: RPC over TensorPipe sends tensors from GPU to GPU by a device map.

    torch_rpc.py cuda_ipc|cuda_xth|cuda_basic

TensorPipe gets this channel as the only one for GPU memory: cuda_ipc connects two processes of
a host, cuda_xth stays within one process, cuda_basic goes through host memory.
"""

import os
import sys

import clients
import torch
import torch.multiprocessing as mp

ROUNDS, FLOATS = 50, 1 << 16


def twice(tensor):
    return tensor * 2


def worker(rank, world, channel, path):
    from torch.distributed import rpc

    clients.start()
    torch.cuda.init()
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{path}", rpc_timeout=clients.ANSWER_SECONDS,
        _channels=[channel, "basic"])
    target = f"worker{world - 1}"
    if rank == 0:
        options.set_device_map(target, {0: torch.cuda.device_count() - 1 if world > 1 else 0})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world, rpc_backend_options=options)
    if rank == 0:
        wrong, held = 0, []
        for i in range(ROUNDS):
            tensor = torch.full((FLOATS,), float(i), device="cuda:0")
            back = rpc.rpc_sync(target, twice, args=(tensor,))
            held.append(back)
            del tensor
            wrong += sum(int((t != 2.0 * n).any()) for n, t in enumerate(held[-8:], len(held) - len(held[-8:])))
        print(f"client=torch-rpc channel={channel} rounds={ROUNDS} on {back.device}: "
              f"result={clients.word(wrong)}", flush=True)
    rpc.shutdown()


def main():
    import tempfile

    clients.start()
    clients.fact("version", f"PyTorch {torch.__version__}")
    if not torch.distributed.is_available() or not torch.distributed.rpc.is_available():
        clients.skip("this PyTorch has no RPC")
    channel = sys.argv[1]
    world = 1 if channel == "cuda_xth" else 2
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(world, channel, os.path.join(folder, "meet")), nprocs=world)
    print("client=torch-rpc done", flush=True)


if __name__ == "__main__":
    import torch.distributed.rpc  # noqa: F401 (not imported by torch itself)

    main()
