# SPDX-License-Identifier: Apache-2.0
"""PyTorch: two ranks, one per GPU.

    torch_ranks.py nccl|symmetric

nccl: all-reduces of several sizes; NCCL_CUMEM_ENABLE selects how NCCL shares memory.
symmetric: symmetric memory without multicast; the ranks exchange file descriptors, and each
    reads what the other wrote.
"""

import os
import sys
import tempfile

import clients
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def nccl(rank):
    for size in (1, 1000, 1 << 16, 1 << 22):
        tensor = torch.arange(size, device="cuda", dtype=torch.float64) % 1000 + rank
        dist.all_reduce(tensor)
        expected = 2 * (torch.arange(size, device="cuda", dtype=torch.float64) % 1000) + 1
        wrong = int((tensor != expected).sum())
        if rank == 0:
            print(f"client=torch-nccl size={size} result={clients.word(wrong)}", flush=True)
    dist.barrier()


def symmetric(rank):
    import torch.distributed._symmetric_memory as symm_mem

    group = dist.group.WORLD
    for turn in range(3):
        tensor = symm_mem.empty(4096, dtype=torch.float32, device=f"cuda:{rank}")
        handle = symm_mem.rendezvous(tensor, group)
        tensor.fill_(float(10 * turn + rank))
        handle.barrier(channel=0)
        theirs = handle.get_buffer(1 - rank, tensor.shape, tensor.dtype).clone()
        handle.barrier(channel=0)
        wrong = int((theirs != float(10 * turn + 1 - rank)).sum())
        total = torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group.group_name)
        wrong += int((total != float(20 * turn + 1)).sum())
        torch.cuda.synchronize()
        if rank == 0:
            print(f"client=torch-symmetric turn={turn} result={clients.word(wrong)}", flush=True)
        dist.barrier()
        del tensor, handle, theirs, total


def worker(rank, mode, path):
    clients.start()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{path}", rank=rank, world_size=RANKS,
                            device_id=torch.device(f"cuda:{rank}"))
    {"nccl": nccl, "symmetric": symmetric}[mode](rank)
    dist.destroy_process_group()


def main():
    clients.start()
    mode = sys.argv[1]
    library = "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
    clients.fact("version", f"PyTorch {torch.__version__}, {library}")
    if torch.cuda.device_count() < RANKS:
        clients.skip("there is one GPU")
    if os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") != "1":
        clients.skip("NVLink multicast must be off: TORCH_SYMM_MEM_DISABLE_MULTICAST=1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(mode, os.path.join(folder, "meet")), nprocs=RANKS)
    print("client=torch-ranks done", flush=True)


if __name__ == "__main__":
    main()
