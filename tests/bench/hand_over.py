#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Virtual memory by legacy handles (CULIMBO_SHARE=all): how long until another process can use it.

    hand_over.py [--gpu] [--rounds N] [--seconds S] [--raw FILE] BUILD_DIR
    hand_over.py --check BUILD_DIR

hand_over.c does it in two ways: bare by descriptors, as a program does that was written for it, and
under culimbo by a handle.  They take turns, in new processes each time; in each other round the
second comes first.  Prints a table and a line of TAP for each limit:

  - an open of one allocation takes at most 1.3 times the program's own way, and so do 100 and 1,000
  - from 100 to 1,000 the time of each allocation grows at most 1.3 times as much as in the program's own way
  - a handle again takes at most 2 us
  - the allocations and frees of a process that shares nothing take at most 1 % more with the option on than
    bare, for each kind of memory.  What the driver itself takes more for exportable memory is printed beside it
  - of these, what culimbo adds to the driver's own functions, called by turns with it in one process, is at most 1 %
  - a process that uses the default pool alone: the one that stands in for it takes at most 1 % more than the real one

The two before the last are measured in processes of their own, bare and with the option by turns, by the lower quartile of short
batches in each.  A process is fast or slow as a whole, by chance, and much more than 1 %.  So each also measures
controls: memory that it makes and frees past any preload, which no option changes.  What is compared with
bare is the time of a kind in controls of its own process (of pools: their median).  Pools differ by 3 % by their place among
the others, which is at random in each process.
For the last one both pools take turns in one process, and only one is in use at a time: what the program gets, and the
real one by the driver's own functions.  The middle difference of the turns, to the lower quartile of the driver's own,
is compared with the same of a bare process.
A limit is broken if the ratio's interval (the median of the rounds lies in it with 95 %) lies beyond.
Where it reaches to both sides the line says "not sure".  --raw writes the quartiles of each process to FILE, as JSON.
--check judges no times, only made-up ones: for `make check`.
Without --gpu the driver is the simulated one, whose times say little.
"""
import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = (1, 100, 1000)
# what `hand_over alone` measures of a process that shares nothing, as it calls them
KINDS = ('virtual', 'virtual-exportable', 'plain', 'async', 'async-own', 'async-exportable')
# of which it also measures the driver's own functions, by turns
PAIRS = KINDS[2:]


def interval(values):
    """Where the median lies with 95 %, by the ranks of the values."""
    values = sorted(values)
    n = len(values)
    tail, rank = 0.0, 0
    while rank < n // 2:
        tail += math.comb(n, rank) / 2 ** n
        if tail > 0.025:
            break
        rank += 1
    if not rank:
        return values[0], values[-1]
    return values[rank - 1], values[n - rank]


def quartile(values):
    """The lower one: interrupts only ever make a batch longer."""
    return sorted(values)[len(values) // 4]


def judged(ratios, limit, what):
    """A line of TAP without its number: (good, text)."""
    low, high = interval(ratios)
    # below six values the interval says less than 95 %
    sure = '' if len(ratios) >= 6 and (high <= limit or low > limit) else ', not sure'
    return low <= limit, f'{what}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}{sure}), limit {limit}'


def alone_of(said):
    """Of what one process printed: the time of each kind, and to what the driver's own functions take."""
    times = {name: quartile(batches) for name, batches in said.items()}
    times['pool-control'] = statistics.median(t for name, t in times.items() if name.startswith('pool-control-'))
    for name in PAIRS:
        direct = said[name + '-direct']
        more = statistics.median(a - b for a, b in zip(said[name], direct))
        times[name + ' to direct'] = 1 + more / quartile(direct)
    return times


def default_of(said, name='default', kind=''):
    """Of what a process printed that uses the default pool alone: to the real one by turns."""
    direct = said[name + '-direct']
    return 1 + statistics.median(a - b for a, b in zip(said[name + kind], direct)) / quartile(direct)


def control_of(name):
    """What an option of culimbo cannot change, of the same kind."""
    return 'virtual-control' if name.startswith('virtual') else 'plain-direct' if name == 'plain' else 'pool-control'


def to_bare(alone, name):
    """For each pair of processes: with the option to bare, each in controls of its own process."""
    return [y[name] / y[control_of(name)] / (x[name] / x[control_of(name)]) for x, y in zip(alone[False], alone[True])]


def judged_alone(alone):
    """The lines for processes that share nothing.  @alone: alone_of() of the processes bare and with the option."""
    return [judged(to_bare(alone, name), 1.01,
                   f'allocation and free, {name}, a process that shares nothing, to bare') for name in KINDS] + \
           [judged([y[name + ' to direct'] for y in alone[True]], 1.01,
                   f"allocation and free, {name}, to the driver's own functions, by turns in one process")
            for name in PAIRS]


def all_judged_alone(alone, default):
    """All lines for processes that share nothing.  @default: default_of() of processes bare and with the option."""
    return judged_alone(alone) + [judged([y / x for x, y in zip(default[False], default[True])], 1.01,
                                         'allocation and free, the default pool alone in use, to the real one by turns '
                                         'in one process, to the same bare')]


def check_judging():
    """One kind takes 5 % more than bare, another one 0 to 2 %, one 5 % more than direct: only these lines are bad.
    All processes with the option are half as fast.  The default pool alone takes 1.6 % more than the real one, and 0.5 or
    1 % of that bare: only the first is bad.  Single batches and processes lie far off."""
    controls = ['virtual-control', 'pool-control-0', 'pool-control-1', 'pool-control-2']

    def process(number, ours):
        said = {name: 100.0 for name in (*KINDS, *(name + '-direct' for name in PAIRS), *controls)}
        said['pool-control-1'] = 103.0
        if ours:
            said['async-exportable'] = said['async-exportable-direct'] = 104.0 + number % 2 * 2
            said['virtual'] = 100.0 + number % 2 * 2
            said['async-own-direct'] = 95.0
        return alone_of({name: [time * (2 if ours else 1)] * 8 for name, time in said.items()})

    one = default_of({'default': [101.6] * 5 + [300.0] * 3, 'default-direct': [100.0] * 7 + [900.0]})
    alone = {ours: [process(i, ours) for i in range(20)] for ours in (False, True)}
    lines, bad = [], []
    for bare in (1.01, 1.005):
        lines = all_judged_alone(alone, {False: [bare] * 20, True: [one] * 18 + [0.9, 1.5]})
        bad += [text.split(':')[0] for good, text in lines[-1:] if not good]
    if bad != ['allocation and free, the default pool alone in use, to the real one by turns in one process, to the same bare']:
        return False
    bad = [text.split(':')[0] for good, text in lines[:-1] if not good]
    return bad == ['allocation and free, async-exportable, a process that shares nothing, to bare',
                   "allocation and free, async-own, to the driver's own functions, by turns in one process"] and \
        'not sure' in lines[KINDS.index('virtual')][1] and len(lines) == len(KINDS) + len(PAIRS) + 1


class Bench:
    def __init__(self, args, folder):
        self.build = pathlib.Path(args.build).resolve()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith('CULIMBO_') and k != 'LD_PRELOAD'}
        self.env['CULIMBO_DIR'] = str(folder / 'limbo')
        if not args.gpu:
            self.env['LD_LIBRARY_PATH'] = str(self.build / 'tools/sim/.libs')
            self.env['CULIMBO_SIM_DIR'] = str(folder / 'sim')
            self.env['CULIMBO_SIM_MEMORY'] = '8GiB'

    def run(self, preload, *arguments):
        # another beginning of the stack in each process
        env = self.env | {'PADDING': 'x' * random.randrange(4096)}
        if preload:
            env |= {'LD_PRELOAD': str(self.build / '.libs/libculimbo.so'), 'CULIMBO_SHARE': 'all'}
        done = subprocess.run([self.build / 'tests/bench/hand_over', *map(str, arguments)], env=env, text=True,
                              capture_output=True, timeout=120, check=False)
        if done.returncode == 77:
            print(f'1..0 # SKIP {done.stderr.strip()}')
            sys.exit(77)
        if done.returncode or done.stderr:
            raise RuntimeError(f'hand_over {arguments}: {done.returncode}: {done.stderr.strip()}')
        return {name: [float(v) for v in values.split()]
                for name, values in (line.split(' ns ', 1) for line in done.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split('\n\n')[1].strip())
    parser.add_argument('--gpu', action='store_true')
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--seconds', type=float, default=75, help='no round starts that would end later')
    parser.add_argument('--raw', type=pathlib.Path)
    parser.add_argument('build')
    args = parser.parse_args()
    rounds = 1 if args.check else args.rounds
    lines = []

    times, again, alone, default = {}, [], {False: [], True: []}, {False: [], True: []}
    chunk, exportable = {False: [], True: []}, {False: [], True: []}
    began, longest, done = time.monotonic(), 0.0, 0
    with tempfile.TemporaryDirectory(dir='/dev/shm' if os.access('/dev/shm', os.W_OK) else None) as folder:
        bench = Bench(args, pathlib.Path(folder))
        for number in range(rounds):
            started = time.monotonic()
            if number and started + longest - began > args.seconds * 0.6:
                break
            for ours in ((False, True), (True, False))[number % 2]:
                for n in SIZES:
                    many = 1 if args.check else 20 if n == 1 else 3
                    said = bench.run(ours, 'handle' if ours else 'own', n, many)
                    # the first open of a process also finds its exporter, and makes the process's own file
                    opens = said['open'][1:] or said['open']
                    times.setdefault((n, ours), []).append(statistics.median(opens))
                    # one allocation: the simulated driver searches all others before it refuses
                    again += said.get('get-again', []) if n == 1 else []
            longest = max(longest, time.monotonic() - started)
            done += 1
        longest, pairs = 0.0, 0
        for number in range(1 if args.check else 100):
            started = time.monotonic()
            if number and started + longest - began > args.seconds * 0.85:
                break
            for ours in ((False, True), (True, False))[number % 2]:
                alone[ours].append(alone_of(bench.run(ours, 'alone', 1 if args.check else 60)))
            longest = max(longest, time.monotonic() - started)
            pairs += 1
        longest, left = 0.0, 0
        for number in range(1 if args.check else 30):
            started = time.monotonic()
            if number and started + longest - began > args.seconds:
                break
            for ours in ((False, True), (True, False))[number % 2]:
                said = bench.run(ours, 'default', 1 if args.check else 150)
                if said['default-stands-in'] != [ours]:
                    raise RuntimeError(f"hand_over default: {'no' if ours else 'a'} pool stands in for the default one")
                default[ours].append(default_of(said))
                chunk[ours].append(default_of(said, 'default-chunk'))
                exportable[ours].append((default_of(said, 'default', '-exportable'),
                                         default_of(said, 'default-chunk', '-exportable')))
                left = max(left, said['default-left'][0])
            longest = max(longest, time.monotonic() - started)

    if args.check:
        print('ok 1 - 1, 100 and 1,000 allocations side by side come over in both ways, each with its own bytes')
        judges = check_judging()
        print(f'{"ok" if judges else "not ok"} 2 - what surely takes over 1 % more than bare, or than the functions of the driver, fails, and nothing else\n1..2')
        return 0 if judges else 1
    print(f'# {done} rounds of opens, {pairs} rounds of processes that share nothing, '
          f'{len(default[True])} of processes that use the default pool alone, {time.monotonic() - began:.0f} s; medians, us')
    print('# allocations  own way  each  by a handle  each')
    for n in SIZES:
        own, ours = (statistics.median(times[n, o]) / 1000 for o in (False, True))
        print(f'# {n:11,} {own:8.0f} {own / n:5.0f} {ours:12.0f} {ours / n:5.0f}')
        lines.append(judged([b / a for a, b in zip(times[n, False], times[n, True])], 1.3,
                            f'{n:,} allocation{"s" if n > 1 else ""} by a handle, to the program\'s own way'))
    grows = {o: [a / b / 10 for a, b in zip(times[1000, o], times[100, o])] for o in (False, True)}
    print(f'# each of 1,000 to each of 100: own way {statistics.median(grows[False]):.2f}, '
          f'by a handle {statistics.median(grows[True]):.2f}')
    lines.append(judged([b / a for a, b in zip(grows[False], grows[True])], 1.3,
                        "each of 1,000 to each of 100 by a handle, to the same in the program's own way"))
    lines.append((statistics.median(again) <= 2000, f'a handle again: {statistics.median(again) / 1000:.2f} us, limit 2'))
    if args.raw:
        args.raw.write_text(json.dumps({'bare': alone[False], 'with the option': alone[True],
                                        'default alone, bare': default[False],
                                        'default alone, with the option': default[True]}, indent=0), encoding='utf-8')
    print('# allocation and free, a process that shares nothing: ns bare, ns with the option, each in controls to bare; '
          "to the driver's own functions by turns, bare and with the option")
    for name in KINDS:
        a, b = ([process[name] for process in alone[ours]] for ours in (False, True))
        ratios = to_bare(alone, name)
        turns = ''
        if name in PAIRS:
            turns = ''.join(f' {statistics.median(process[name + " to direct"] for process in alone[ours]):7.4f}'
                            for ours in (False, True))
        print(f'# {name:18} {statistics.median(a):9.1f} {statistics.median(b):9.1f} '
              '%6.3f (%.3f to %.3f)' % (statistics.median(ratios), *interval(ratios)) + turns)
    for name in ('pool-control', 'plain-direct', 'virtual-control'):
        ratios = [y[name] / x[name] for x, y in zip(alone[False], alone[True])]
        print(f'# controls, {name}, processes with the option to bare ones, pair by pair: '
              '%.3f (%.3f to %.3f): what would slow the whole process down is here, not above' %
              (statistics.median(ratios), *interval(ratios)))
    for ours in (False, True):
        speeds = sorted(process['pool-control'] for process in alone[ours])
        places = [process[name] / process['pool-control'] for process in alone[ours]
                  for name in process if name.startswith('pool-control-')]
        print(f"# pools past any preload, {'with the option' if ours else 'bare'}: {speeds[0]:.0f} to {speeds[-1]:.0f} ns in "
              f'{len(speeds)} processes; by their place in one process {min(places):.3f} to {max(places):.3f} of its median')
    for plain in ('virtual', 'async'):
        price = [process[plain + '-exportable'] / process[plain] for process in alone[False]]
        low, high = interval(price)
        print(f"# {plain + '-exportable'} to {plain}, bare: the driver's own price: "
              f'{statistics.median(price):.3f} ({low:.3f} to {high:.3f})')
    for ours in (False, True):
        print(f"# the default pool alone, to the real one by turns, {'with the option' if ours else 'bare'}: "
              '%.4f (%.4f to %.4f)' % (statistics.median(default[ours]), *interval(default[ours])))
        print('#   with a chunk that it takes from the driver and gives back (not judged: the driver asks a price for '
              'exportable memory): %.4f (%.4f to %.4f)' % (statistics.median(chunk[ours]), *interval(chunk[ours])))
        print("#   the driver's own price, a pool that can be exported past any preload: "
              + '; with a chunk '.join('%.4f (%.4f to %.4f)' % (statistics.median(price), *interval(price))
                                       for price in zip(*exportable[ours])))
    print(f'# after its turn a pool kept {left:.0f} bytes at most')
    lines += all_judged_alone(alone, default)
    for number, (good, text) in enumerate(lines, 1):
        print(f'{"ok" if good else "not ok"} {number} - {text}')
    print(f'1..{len(lines)}')
    return 0 if all(good for good, _ in lines) else 1


sys.exit(main())
