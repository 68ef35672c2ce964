#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own limbo beside ours: n blocks shared, freed while held, collected, released.

    torch_limbo.py --preload libculimbo.so [--out DIR] [--seconds S] [--sizes 500,2000,...]

Needs a GPU, torch for the one side, and nothing but libcuda for the other.  For each n a producer
makes n blocks of 1 KiB and a consumer opens them.  Then, timed in the producer, per block or per call:

  share      the handle is made (torch: reduce_tensor, with its reference counter)
  free       the producer frees all, the consumer has them (torch: del; culimbo: cuMemFree, less the same n
             cuMemFree of blocks that were not shared, which is the driver's own waiting)
  collect    one collection while all n are held (torch.cuda.ipc_collect; culimbo: cuMemAlloc and cuMemFree of
             another block while n wait, less the same bare, for its collector runs beside)
  release    the consumer closes all; until the last is back, per block

PyTorch shares blocks of its caching allocator, so its blocks are of one cudaMalloc; that is how it is
used.  Lines "SIDE n WHAT ns" on stdout, torch-limbo.json and torch-limbo-*.svg in DIR.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = (500, 1000, 4000, 16000, 64000)
now = time.perf_counter_ns


def say(side, n, what, ns):
    print(side, n, what, f'{ns:.1f}', flush=True)


# ------------------------------------------------------------------ two processes
class Pair:
    """A consumer process on a pipe: a line each way."""

    def __init__(self, role, n):
        self.child = subprocess.Popen([sys.executable, os.path.abspath(__file__), '--role', role, '--n', str(n)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, data=b''):
        self.child.stdin.write(len(data).to_bytes(8, 'little') + data)
        self.child.stdin.flush()

    def hear(self):
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError('the consumer has ended')
        return line

    def end(self):
        self.child.stdin.close()
        self.child.wait(60)


def told():
    size = sys.stdin.buffer.read(8)
    if len(size) < 8:
        sys.exit(0)
    return sys.stdin.buffer.read(int.from_bytes(size, 'little'))


def answer():
    sys.stdout.write('ok\n')
    sys.stdout.flush()


# ------------------------------------------------------------------------ torch
def torch_producer(n):
    import pickle
    import torch
    from torch.multiprocessing.reductions import reduce_tensor
    torch.zeros(1, device='cuda')
    pair = Pair('torch-consumer', n)
    tensors = [torch.empty(1024, dtype=torch.uint8, device='cuda') for _ in range(n)]
    torch.cuda.synchronize()
    start = now()
    shared = [reduce_tensor(t) for t in tensors]
    say('torch', n, 'share', (now() - start) / n)
    pair.tell(pickle.dumps(shared))
    pair.hear()
    del shared
    start = now()
    tensors.clear()
    say('torch', n, 'free', (now() - start) / n)
    taken = []
    for _ in range(20):
        start = now()
        torch.cuda.ipc_collect()
        taken.append(now() - start)
    say('torch', n, 'collect', sorted(taken)[10])
    before = torch.cuda.memory_allocated()
    start = now()
    pair.tell()
    pair.hear()
    closed = now()
    while torch.cuda.memory_allocated() > before - n * 512 and now() - closed < 20e9:
        torch.cuda.ipc_collect()
    say('torch', n, 'release', (now() - closed) / n)
    say('torch', n, 'close', (closed - start) / n)
    pair.end()


def torch_consumer(_n):
    import pickle
    import torch
    torch.zeros(1, device='cuda')
    opened = [rebuild(*arguments) for rebuild, arguments in pickle.loads(told())]
    answer()
    told()
    opened.clear()
    torch.cuda.synchronize()
    answer()
    told()


# ---------------------------------------------------------------- the driver itself
class Driver:
    """The driver, through whatever is preloaded."""

    class Handle(ctypes.Structure):
        _fields_ = [('reserved', ctypes.c_char * 64)]

    def __init__(self):
        self.cu = ctypes.CDLL('libcuda.so.1')
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.check(self.cu.cuInit(0))
        self.check(self.cu.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(self.cu.cuCtxSetCurrent(context))
        self.cu.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.cu.cuMemFree_v2.argtypes = [ctypes.c_uint64]
        self.cu.cuIpcGetMemHandle.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self.cu.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, self.Handle, ctypes.c_uint]
        self.cu.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]

    @staticmethod
    def check(result):
        if result:
            raise RuntimeError(f'CUDA error {result}')

    def alloc(self, size=1024):
        p = ctypes.c_uint64()
        self.check(self.cu.cuMemAlloc_v2(ctypes.byref(p), size))
        return p.value

    def free_memory(self):
        unused, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.cu.cuMemGetInfo_v2(ctypes.byref(unused), ctypes.byref(total)))
        return unused.value


def driver_producer(n, side):
    driver = Driver()
    pair = Pair('driver-consumer', n)
    cu, free = driver.cu, driver.cu.cuMemFree_v2
    plain = [driver.alloc() for _ in range(n)]
    blocks = [driver.alloc() for _ in range(n)]
    handles = (Driver.Handle * n)()
    size = ctypes.sizeof(Driver.Handle)
    base = ctypes.addressof(handles)
    start = now()
    for i, p in enumerate(blocks):
        Driver.check(cu.cuIpcGetMemHandle(base + i * size, p))
    say(side, n, 'share', (now() - start) / n)
    pair.tell(bytes(handles))
    pair.hear()
    start = now()
    for p in plain:
        free(p)
    not_shared = (now() - start) / n
    say(side, n, 'free-not-shared', not_shared)
    if side == 'bare':
        # without culimbo a held block must not be freed; the line above has the cost
        pair.tell()
        pair.hear()
        pair.end()
        return
    start = now()
    for p in blocks:
        free(p)
    say(side, n, 'free', (now() - start) / n)
    taken = []
    for _ in range(200):
        start = now()
        free(driver.alloc())
        taken.append(now() - start)
    say(side, n, 'collect', sorted(taken)[100])
    before = driver.free_memory()
    start = now()
    pair.tell()
    pair.hear()
    closed = now()
    # n blocks of 1 KiB: memory comes back in steps of 2 MiB
    wanted = before + max(0, (n * 1024 // (2 << 20) - 2)) * (2 << 20)
    while driver.free_memory() < wanted and now() - closed < 20e9:
        pass
    say(side, n, 'release', (now() - closed) / n)
    say(side, n, 'close', (closed - start) / n)
    pair.end()


def driver_consumer(n):
    driver = Driver()
    handles = (Driver.Handle * n).from_buffer_copy(told())
    opened = []
    p = ctypes.c_uint64()
    start = now()
    for handle in handles:
        Driver.check(driver.cu.cuIpcOpenMemHandle_v2(ctypes.byref(p), handle, 1))
        opened.append(p.value)
    print(f'open {(now() - start) / n:.0f} ns', file=sys.stderr)
    answer()
    told()
    for address in opened:
        Driver.check(driver.cu.cuIpcCloseMemHandle(address))
    answer()
    told()


# ------------------------------------------------------------------------ both
def play(role, n, library, seconds):
    env = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}
    env['CULIMBO_GRACE'] = '1ms'
    env['CULIMBO_REPORT'] = 'off'
    env['CULIMBO_WARN_BLOCKS'] = '0'
    if library:
        env['LD_PRELOAD'] = library
    try:
        done = subprocess.run([sys.executable, os.path.abspath(__file__), '--role', role, '--n', str(n)], env=env,
                              stdout=subprocess.PIPE, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f'# {role} {n}: not done in {seconds:.0f} s', flush=True)
        return []
    if done.returncode:
        print(f'# {role} {n}: exit status {done.returncode}', flush=True)
    return [line.split() for line in done.stdout.splitlines() if len(line.split()) == 4]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--preload')
    parser.add_argument('--out', default='.')
    parser.add_argument('--seconds', type=float, default=180)
    parser.add_argument('--sizes', default=','.join(map(str, SIZES)))
    parser.add_argument('--role', help=argparse.SUPPRESS)
    parser.add_argument('--n', type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    roles = {'torch-producer': torch_producer, 'torch-consumer': torch_consumer,
             'bare-producer': lambda n: driver_producer(n, 'bare'),
             'culimbo-producer': lambda n: driver_producer(n, 'culimbo'),
             'driver-consumer': driver_consumer}
    if args.role:
        roles[args.role](args.n)
        return 0
    if not args.preload:
        parser.error('--preload is needed')
    until = time.monotonic() + args.seconds
    found = {}
    # the sizes that matter most come first, in case the time is too short for all
    for n in map(int, args.sizes.split(',')):
        for role, library in (('bare-producer', None), ('culimbo-producer', args.preload), ('torch-producer', None)):
            left = until - time.monotonic()
            if left < 10:
                print(f'# {role} {n}: no time left', flush=True)
                continue
            for side, size, what, ns in play(role, n, library, left):
                say(side, int(size), what, float(ns))
                found.setdefault(what, {}).setdefault(side, {})[int(size)] = float(ns)
    with open(os.path.join(args.out, 'torch-limbo.json'), 'w', encoding='utf-8') as f:
        json.dump(found, f, indent=1, sort_keys=True)
        f.write('\n')
    sys.path.insert(0, HERE)
    import plot
    series = []
    for what in ('free', 'collect', 'release'):
        for side in ('torch', 'culimbo'):
            points = dict(found.get(what, {}).get(side, {}))
            if side == 'culimbo' and what in ('free', 'collect'):
                # our part: the time less the driver's for the same block, not shared
                bare = found.get('free-not-shared', {}).get('bare', {})
                if what == 'free':
                    points = {n: max(ns - bare[n], 1) for n, ns in points.items() if n in bare}
            series.append((f'{side}: {what}', sorted(points.items())))
    plot.lines(os.path.join(args.out, 'torch-limbo.svg'),
               "PyTorch's limbo and culimbo's, n blocks held by another process", series)
    return 0


if __name__ == '__main__':
    sys.exit(main())
