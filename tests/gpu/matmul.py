# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program that shares nothing: run bare and preloaded, it must print the same."""

import torch

torch.manual_seed(7)
a = torch.randn(512, 512, device="cuda", dtype=torch.float64)
b = torch.randn(512, 512, device="cuda", dtype=torch.float64)
product = a @ b
print(torch.__version__, tuple(product.shape), f"{product.sum().item():.9e}")
blocks = [torch.full((256,), i, device="cuda") for i in range(1000)]
print(sum(int(block[0].item()) for block in blocks))
del blocks, a, b, product
torch.cuda.empty_cache()
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved() > 0)
