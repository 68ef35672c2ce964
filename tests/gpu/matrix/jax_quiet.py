# SPDX-License-Identifier: Apache-2.0
"""JAX: computes and shares nothing."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import clients  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def main():
    clients.start()
    clients.fact("version", f"JAX {jax.__version__}")
    if jax.default_backend() != "gpu":
        clients.skip(f"JAX has the backend {jax.default_backend()} here")
    product = jax.jit(lambda a, b: a @ b)(jnp.ones((512, 512)), jnp.full((512, 512), 2.0))
    blocks = [jnp.full((256,), i) for i in range(200)]
    print(f"client=jax {float(product.sum()):.1f} {int(sum(int(b[0]) for b in blocks))}", flush=True)


if __name__ == "__main__":
    main()
