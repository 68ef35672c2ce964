# SPDX-License-Identifier: Apache-2.0
"""PyTorch: a DataLoader whose spawned workers create their tensors on the GPU."""

import gc

import clients
import torch
from torch.utils.data import DataLoader, Dataset

ITEMS, BATCH, FLOATS = 256, 8, 256


class OnGpu(Dataset):
    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        return torch.full((FLOATS,), float(index), device="cuda")


def main():
    clients.start()
    clients.fact("version", f"PyTorch {torch.__version__}")
    torch.cuda.init()
    loader = DataLoader(OnGpu(), batch_size=BATCH, num_workers=2, multiprocessing_context="spawn",
                        persistent_workers=True, timeout=clients.ANSWER_SECONDS)
    for epoch in range(2):
        wrong, number = 0, 0
        for batch in loader:
            expected = torch.arange(number, number + len(batch), device=batch.device, dtype=batch.dtype)
            wrong += int((batch != expected[:, None]).any(dim=1).sum())
            number += len(batch)
        print(f"client=torch-loader epoch={epoch} items={number} result={clients.word(wrong)}",
              flush=True)
    del batch, loader
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    print("client=torch-loader done", flush=True)


if __name__ == "__main__":
    main()
