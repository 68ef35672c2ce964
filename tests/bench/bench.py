#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what culimbo costs, bare and preloaded in turn, and says it as a table, JSON and plots.

    bench.py [--gpu] [--quick] [--out DIR] BUILD_DIR

BUILD_DIR is a finished build tree with its check programs.  Without --gpu the driver is the
simulated one: what is ours is real, what is the driver's is not.  DIR (BUILD_DIR/bench) gets
table.txt, results.json and the plots.  With --gpu it is done within BENCH_SECONDS (450);
what did not fit is said.

Times are the median of rounds, each a process; beside them stand instructions, counted one by
one (harness.h), which are the same on a machine that is busy with something else.
"""
import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import plot  # noqa: E402

SIZES = (1000, 10000, 100000, 1000000)


class Bench:
    def __init__(self, args):
        self.args = args
        self.build = os.path.abspath(args.build)
        self.preload = self.find('.libs/libculimbo.so')
        self.deadline = time.monotonic() + float(os.environ.get('BENCH_SECONDS', '450' if args.gpu else '3600'))
        self.unmeasured = []
        base = '/dev/shm' if os.path.isdir('/dev/shm') else None
        self.scratch = tempfile.mkdtemp(prefix='culimbo-bench.', dir=base)
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith('CULIMBO_') and k != 'LD_PRELOAD'}
        for name in ('limbo', 'sim'):
            os.mkdir(os.path.join(self.scratch, name), 0o700)
        self.env['CULIMBO_DIR'] = os.path.join(self.scratch, 'limbo')
        self.env['CULIMBO_REPORT'] = 'off'
        self.env['CULIMBO_WARN_BLOCKS'] = '0'
        self.driver_env = {}
        if not args.gpu:
            self.driver_env = {'LD_LIBRARY_PATH': self.find('tools/sim/.libs'),
                               'CULIMBO_SIM_DIR': os.path.join(self.scratch, 'sim'),
                               'CULIMBO_SIM_MEMORY': '4GiB'}

    def find(self, name):
        path = os.path.join(self.build, name)
        if not os.path.exists(path):
            sys.exit(f'bench: there is no {path}: make all and the check programs first')
        return path

    def run(self, program, *arguments, preload=False, env=None, limit=120):
        """A dict of what it printed: name -> [ns], counts, values.  None: it failed, or no time is left."""
        command = [self.find('tests/bench/' + program), *map(str, arguments)]
        left = self.deadline - time.monotonic()
        if left < 5:
            self.unmeasured.append(' '.join([program, *map(str, arguments)]) + ': no time left')
            return None
        environment = {**self.env, **self.driver_env, **(env or {})}
        if preload:
            environment['LD_PRELOAD'] = self.preload
        try:
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=min(limit, left))
        except subprocess.TimeoutExpired:
            self.unmeasured.append(' '.join([program, *map(str, arguments)]) + ': took too long')
            return None
        if done.returncode or done.stderr:
            print(done.stderr.strip(), file=sys.stderr)
        if done.returncode:
            self.unmeasured.append(f'{program} {" ".join(map(str, arguments))}: exit status '
                                   f'{done.returncode}: {done.stderr.strip()[-200:]}')
            return None
        return parse(done.stdout)


def parse(text):
    said = {'ns': {}, 'count': {}, 'value': {}, 'syscall': {}}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] == 'ns':
            said['ns'].setdefault(words[0], []).append(float(words[2]))
        elif len(words) > 3 and words[1] == 'count':
            found = re.search(r'ours=(\d+)\+(\d+) driver=(\d+)\+(\d+) syscalls=(\d+):(\d+)', line)
            numbers = tuple(map(int, found.groups()))
            known = said['count'].get(words[0])
            # the least of the tries: others include a hash that grows, or a timer of libc's
            if known is None or sum(numbers[:2]) < sum(known[:2]):
                said['count'][words[0]] = numbers
        elif len(words) >= 3 and words[1] == 'value':
            said['value'][words[0]] = float(words[2])
        elif len(words) == 3 and words[0] == 'syscall':
            said['syscall'][int(words[1])] = int(words[2])
    return said


def median(values):
    return statistics.median(values) if values else None


def spread(values):
    """The middle half, as a text."""
    if not values or len(values) < 3:
        return ''
    quarter = statistics.quantiles(values, n=4)
    return f'{show(quarter[0])} to {show(quarter[2])}'


def show(ns):
    if ns is None:
        return '-'
    sign, ns = ('-', -ns) if ns < 0 else ('', ns)
    if ns < 1000:
        return f'{sign}{ns:.0f} ns' if ns >= 10 else f'{sign}{ns:.1f} ns'
    if ns < 1e6:
        return f'{sign}{ns / 1e3:.2f} us'
    return f'{sign}{ns / 1e6:.2f} ms'


def interleaved(bench, rounds, program, *arguments, **more):
    """(bare, preloaded), each name -> [median of each round's process]."""
    sides = ({}, {})
    for _ in range(rounds):
        for preload in (False, True):
            said = bench.run(program, *arguments, preload=preload, **more)
            for name, values in (said or {'ns': {}})['ns'].items():
                sides[preload].setdefault(name, []).append(median(values))
    return sides


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, limit, measured, ok, detail='', instructions=''):
        self.rows.append({'what': what, 'limit': limit, 'measured': measured,
                          'met': ok, 'detail': detail, 'instructions': instructions})

    def text(self):
        head = ('what', 'limit', 'measured', 'met', 'instructions', 'detail')
        lines = [[row['what'], row['limit'], row['measured'],
                  {True: 'yes', False: 'NO', None: '-'}[row['met']], row['instructions'],
                  row['detail']] for row in self.rows]
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
        return '\n'.join(' | '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
                         for line in [head, ['-' * width for width in widths], *lines]) + '\n'


def ours(counts, name):
    """'ours+libc, system calls' of a counted operation, as a text."""
    if not counts or name not in counts['count']:
        return ''
    a, b, _, _, calls, _ = counts['count'][name]
    return f'{a}+{b}' + (f', {calls} calls' if calls else '')


def compared(table, sides, counts, name, what, limit_ns, limit):
    bare, with_it = (side.get(name) for side in sides)
    if not bare or not with_it:
        table.add(what, limit, 'not measured', None)
        return
    more = median(with_it) - median(bare)
    detail = (f'bare {show(median(bare))} ({spread(bare)}), preloaded {show(median(with_it))} '
              f'({spread(with_it)}), ratio {median(with_it) / median(bare):.3f}')
    # by turns in one process, if the driver's own call can be made beside ours
    nothing, turns = (side.get(name + '-more') for side in sides)
    if turns and nothing:
        detail += (f'; by the processes {show(more)} more, by turns in one {show(median(turns))} '
                   f'({spread(turns)}), where bare has {show(median(nothing))}')
        more = median(turns)
    table.add(what, limit, f'{show(more)} more', None if limit_ns is None else more <= limit_ns,
              detail, ours(counts, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--gpu', action='store_true', help="the machine's own driver")
    parser.add_argument('--quick', action='store_true', help='few rounds, small n: does it run')
    parser.add_argument('--rounds', type=int, help='of processes, bare and preloaded')
    parser.add_argument('--out', help='where results go (BUILD_DIR/bench)')
    parser.add_argument('build')
    args = parser.parse_args()
    bench = Bench(args)
    out = args.out or os.path.join(bench.build, 'bench')
    os.makedirs(out, exist_ok=True)
    try:
        return measure(bench, out)
    finally:
        shutil.rmtree(bench.scratch, ignore_errors=True)


def machine(bench):
    said = {'date': time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime()),
            'processors': os.cpu_count(), 'kernel': platform.release(),
            'machine': platform.machine(), 'load': os.getloadavg()[0],
            'driver': 'simulated'}
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as f:
            said['processor'] = next((line.split(':', 1)[1].strip() for line in f
                                      if line.startswith('model name')), '')
    except OSError:
        pass
    if bench.args.gpu:
        asked = subprocess.run(['nvidia-smi', '--query-gpu=name,driver_version', '--format=csv,noheader'],
                               capture_output=True, text=True)
        said['driver'] = asked.stdout.strip() or 'the machine\'s'
    return said


def measure(bench, out):
    gpu, quick = bench.args.gpu, bench.args.quick
    rounds = bench.args.rounds or (2 if quick else 5 if gpu else 9)
    sizes = SIZES[:2] if quick else SIZES
    many = 20000 if quick else 100000
    table = Table()
    results = {'machine': machine(bench)}
    began = time.monotonic()

    def step(text):
        print(f'[{time.monotonic() - began:5.0f} s] {text}', file=sys.stderr, flush=True)

    step('instructions')
    parts_env = {'CULIMBO_STACK': '0'}
    count_calls, count_import, calls_stacks, import_stacks = (
        bench.run('bench', '--count', what, 1000, preload=True, env=env)
        for env in (parts_env, {}) for what in ('calls', 'importer'))
    count_parts = {}
    for n in sizes:
        a = bench.run('parts', '--count', 'exporter', n, env=parts_env)
        b = bench.run('parts', '--count', 'importer', n, env=parts_env)
        if a and b:
            count_parts[n] = {'count': {**a['count'], **b['count']}}

    step('calls, bare and preloaded in turn')
    calls = interleaved(bench, rounds, 'bench', 'calls', many, env=parts_env)
    compared(table, calls, count_calls, 'pair', 'alloc+free, never exported, process shares nothing', 10,
             '+10 ns')
    compared(table, calls, count_calls, 'pair-sharing', f'the same, with {many:,} exported blocks', 50, '+50 ns')
    compared(table, calls, count_calls, 'pair-async', 'async alloc+free, process shares nothing', 10, '+10 ns')
    compared(table, calls, count_calls, 'pair-pool', 'the same from a pool, process shares nothing', 10, '+10 ns')
    compared(table, calls, count_calls, 'pair-async-sharing', f'the same, with {many:,} exported blocks', 50,
             '(+50 ns)')
    compared(table, calls, count_calls, 'pair-primary-sharing', 'primary context retained and released again', 100,
             '(+100 ns)')

    step('pointers')
    here, there = (bench.run('bench', 'pointers', preload=p) for p in (False, True))
    if here and there:
        a, b = here['value'], there['value']
        total = b['pointers-own'] + b['pointers-hooked']
        table.add('any call not in the table', "the driver's own pointer",
                  f"{b['pointers-own']:.0f} of {total:.0f} its own, {b['pointers-hooked']:.0f} hooked",
                  a['pointers-hooked'] == 0 and a['pointers-own'] == total and
                  b['pointers-hooked'] < 60 and b['pointers-own'] > 0,
                  'dlsym() compared with the address in the driver\'s file; cuGetProcAddress: '
                  f"{b['asked-own']:.0f} its own, {b['asked-hooked']:.0f} hooked", '0')

    compared(table, calls, count_calls, 'export-again', 'cuIpcGetMemHandle again', 60, '+60 ns')
    compared(table, calls, count_calls, 'export-again-any', f'the same, of any of {many:,}', None, '(none)')
    compared(table, calls, count_calls, 'export-new', 'cuIpcGetMemHandle, first time', None, '(none)')

    step('imports, bare and preloaded in turn')
    imports = interleaved(bench, rounds, 'bench', 'importer', 1100, env=parts_env)
    compared(table, imports, count_import, 'open-new', 'open of a new block, exporter known', 500, '+500 ns')
    compared(table, imports, count_import, 'open-again', 'open again of what is open', 500, '(+500 ns)')
    compared(table, imports, count_import, 'close-last', 'last close', 200, '+200 ns')

    step('with call stacks, as they are by default')
    stacks = interleaved(bench, 2 if quick else 3, 'bench', 'importer', 1100)
    new = interleaved(bench, 1 if quick else 2, 'bench', 'calls', 10000)
    compared(table, new, calls_stacks, 'export-new', 'first handle, with call stacks (the default)', None, '(none)')
    compared(table, stacks, import_stacks, 'open-new', 'open of a new block, with call stacks', 500, '+500 ns')
    compared(table, stacks, import_stacks, 'open-again', 'open again, with call stacks', 500, '(+500 ns)')
    compared(table, stacks, import_stacks, 'close-last', 'last close, with call stacks', 200, '+200 ns')

    step('our part, with the null driver, at each n')
    parts = {}
    for n in sizes:
        parts[n] = {}
        for _ in range(1 if quick or bench.args.rounds == 1 else 3):
            for what in ('exporter', 'importer'):
                said = bench.run('parts', what, n, env=parts_env)
                for name, values in (said or {'ns': {}})['ns'].items():
                    parts[n].setdefault(name, []).extend(values)
                for name, value in (said or {'value': {}})['value'].items():
                    parts[n].setdefault(name, []).append(value)

    def at_each_n(name, what, limit_ns, limit):
        values = {n: median(parts[n].get(name)) for n in sizes}
        known = [v for v in values.values() if v is not None]
        if not known:
            table.add(what, limit, 'not measured', None)
            return
        instructions = '; '.join(f'{ours(count_parts.get(n), name)}' for n in (sizes[0], sizes[-1])
                                 if ours(count_parts.get(n), name))
        table.add(what, limit, f'{show(known[0])} at {sizes[0]:,}, {show(known[-1])} at {sizes[-1]:,}',
                  max(known) <= limit_ns, ', '.join(f'{n:,}: {show(v)}' for n, v in values.items()),
                  instructions)

    at_each_n('close-last', 'last close: our part', 200, '200 ns')
    at_each_n('close-last-in-limbo', 'the same, of a freed block, collector awake or not', 3000, '3 us')
    at_each_n('close-last-wakes', 'the same, collector asleep each time', 3000, '3 us')
    at_each_n('free-into-limbo', 'free into limbo: our part', 500, '500 ns')
    at_each_n('free-not-exported', 'free of what was not exported: our part', 50, '(50 ns)')
    at_each_n('collect-nothing', 'a collection, nothing ready, n waiting', 20, '20 ns')
    at_each_n('release-a-block', 'releasing 1,000 of n waiting, each', 1000, '1 us')
    at_each_n('open-new', 'open of a new block: our part', 500, '(500 ns)')

    said = bench.run('parts', 'pieces', 10000)
    if said:
        nothing = median(said['ns']['piece-nothing'])
        table.add('what of that is not ours to save, on this machine', '(none)', ', '.join(
            f'{what} {show(median(said["ns"]["piece-" + name]) - nothing)}' for name, what in (
                ('clock', 'the exact clock'), ('lock', 'a lock, uncontended'), ('cancel', 'no cancellation meanwhile'),
                ('fence', 'a full fence'), ('getlk', 'F_GETLK'))), None,
            f'(the coarse clock: {show(median(said["ns"]["piece-clock-coarse"]) - nothing)})')

    step('memory back')
    back = bench.run('bench', 'back', 10 if quick else 25 if gpu else 50, preload=True,
                     env={'CULIMBO_GRACE': '1ms'}, limit=150)
    for name, what, limit_ns, limit in (
            ('close-to-back', 'last close to memory back, exporter asleep', 200e3, '200 us median'),
            ('kill-to-back', 'importer killed to memory back', 300e6, '300 ms')):
        values = back['ns'].get(name) if back else None
        if values:
            table.add(what, limit, f'{show(median(values))} median, {show(max(values))} most',
                      (median(values) if name == 'close-to-back' else max(values)) <= limit_ns,
                      f'{len(values)} times, {spread(values)}')
        else:
            table.add(what, limit, 'not measured', None)

    step('many records, many processes')
    n = 100000 if quick else 1000000
    said = [bench.run('parts', 'reap', n, env=parts_env) for _ in range(1 if quick else 5)]
    reaps = [s['value']['reap-held-one'] for s in said if s]
    all_held = parts[sizes[-1]].get('reap-held-all')
    table.add(f'reaping a dead holder, {n:,} records', '5 ms',
              f'{median(reaps):.1f} ms' if reaps else 'not measured',
              median(reaps) <= 5 if reaps else None,
              f'it held one of them; one that held all {sizes[-1]:,}: {median(all_held):.0f} ms'
              if all_held else '')
    big = parts[max(k for k in sizes)]
    if 'shared-bytes-a-held-block' in big:
        shared, private = median(big['shared-bytes-a-held-block']), median(big['private-bytes-a-block'])
        table.add('memory an exported block, shared and private (stacks off)', '128 B + 128 B',
                  f'{shared:.0f} B + {private:.0f} B', shared <= 128 and private <= 128,
                  f'of {sizes[-1]:,}; held by up to 64 processes; +8 B for each 64 more')
    true = bench.run('bench', 'spawn', 20 if quick else 200, '/bin/true', env={'BENCH_PRELOAD': bench.preload})
    plain = bench.run('bench', 'syscalls', '/bin/true')
    loaded = bench.run('bench', 'syscalls', '/bin/true', env={'BENCH_PRELOAD': bench.preload})
    if true and plain and loaded:
        t = {k: median(v) for k, v in true['ns'].items()}
        extra = {k: v - plain['syscall'].get(k, 0) for k, v in loaded['syscall'].items()
                 if v != plain['syscall'].get(k, 0)}
        table.add('/bin/true under the preload', '+200 us, no call beyond loading, no thread',
                  f"{show(t['spawn-preloaded'] - t['spawn-bare'])} more, {sum(extra.values())} system calls more, "
                  f"{loaded['value']['threads']:.0f} threads",
                  t['spawn-preloaded'] - t['spawn-bare'] <= 200e3 and not loaded['value']['threads'],
                  f"bare {show(t['spawn-bare'])}, preloaded {show(t['spawn-preloaded'])}; least "
                  f"{show(t['spawn-bare-least'])}, {show(t['spawn-preloaded-least'])}; by number: "
                  + ' '.join(f'{k}:+{v}' for k, v in sorted(extra.items())))
        results['true_extra_system_calls'] = extra
    said = [bench.run('parts', 'starts', 64) for _ in range(1 if quick else 5)]
    said = [s for s in said if s]
    if said:
        slowest = [s['ns']['starts-first-export-slowest'][0] for s in said]
        table.add('64 processes starting at once, first export of each', 'no lock across processes over 1 ms',
                  f'slowest {show(median(slowest))}', None,
                  'every lock that another process can hold is asked for without waiting (fcntl F_SETLK): see '
                  'doc/performance.md; median '
                  + show(median([s['ns']['starts-first-export-median'][0] for s in said])))
    said = bench.run('parts', 'holders', 64 if quick else 1024, limit=300)
    if said:
        table.add('holders of one block', '1,024',
                  f"{said['value']['holders']:.0f}, the file grew by {said['value']['holders-file-grew']:.0f} KiB",
                  said['value']['holders'] == 1024 or None,
                  f"first open of each, all at once: median {show(said['ns']['holders-first-open-median'][0])}")
    n = 20000 if quick else 1000000
    said = bench.run('bench', 'live', n, preload=True, limit=100)
    if said:
        table.add('live exported blocks in one process', '1,000,000', f"{said['value']['live']:,.0f}",
                  said['value']['live'] == 1000000 or None,
                  f"{show(said['ns']['live-export'][0])} each")

    if gpu:
        step('import torch')
        torch(bench, table)
        step("beside PyTorch's own limbo")
        side_by_side(bench, out)

    series = [(name, [(n, median(parts[n][key])) for n in sizes if parts[n].get(key)]) for name, key in (
        ('free into limbo', 'free-into-limbo'), ('collection, nothing ready', 'collect-nothing'),
        ('release, each', 'release-a-block'), ('last close', 'close-last'),
        ('open, new', 'open-new'), ('free, not exported', 'free-not-exported'))]
    plot.lines(os.path.join(out, 'times.svg'), 'our part of a call, n blocks there', series)
    counted = ('free-into-limbo', 'collect-nothing', 'close-last', 'open-new', 'free-not-exported')
    plot.lines(os.path.join(out, 'instructions.svg'), 'our part of a call, n blocks there',
               [(name, [(n, sum(count_parts[n]['count'][name][:2])) for n in sizes
                        if name in count_parts.get(n, {'count': {}})['count']]) for name in counted],
               unit='')
    results.update(table=table.rows, calls=calls, imports=imports, unmeasured=bench.unmeasured,
                   parts={str(n): parts[n] for n in sizes},
                   counts={'calls': count_calls, 'imports': count_import,
                           'parts': {str(n): c for n, c in count_parts.items()}},
                   seconds=time.monotonic() - began)
    with open(os.path.join(out, 'results.json'), 'w', encoding='utf-8') as f:
        json.dump(results, f, indent=1, sort_keys=True)
        f.write('\n')
    head = ''.join(f'{key}: {value}\n' for key, value in results['machine'].items())
    text = head + '\n' + table.text() + '\n'
    text += ('instructions: ours + libc\'s for us; at the smallest n; at the largest.  A limit in brackets is '
             'not the issue\'s.\n')
    for what in bench.unmeasured:
        text += f'not measured: {what}\n'
    with open(os.path.join(out, 'table.txt'), 'w', encoding='utf-8') as f:
        f.write(text)
    print(text)
    return 1 if bench.unmeasured else 0


def torch(bench, table):
    what, limit = '`import torch` under the preload', 'within noise, +1 %'
    python = shutil.which('python3')
    command = [python, '-c', 'import torch']
    valgrind = shutil.which('valgrind') or os.environ.get('VALGRIND')

    def once(preload, prefix=()):
        env = dict(bench.env)
        if preload:
            env['LD_PRELOAD'] = bench.preload
        left = max(1, bench.deadline - time.monotonic() - 60)
        return subprocess.run([*prefix, *command], env=env, capture_output=True, text=True, timeout=left)

    try:
        once(False)
        if valgrind and bench.args.gpu and os.environ.get('BENCH_VALGRIND'):
            counts = []
            for preload in (False, True):
                done = once(preload, (valgrind, '--tool=none', '--log-file=/dev/null'))
                counts.append(done.returncode)
        user = ([], [])
        for _ in range(8):
            for preload in (False, True):
                if bench.deadline - time.monotonic() < 100:
                    break
                before = os.times()
                once(preload)
                after = os.times()
                user[preload].append((after.children_user + after.children_system
                                      - before.children_user - before.children_system) * 1e9)
        a, b = median(user[0]), median(user[1])
        table.add(what, limit, f'{(b / a - 1) * 100:+.2f} %', abs(b / a - 1) <= 0.01,
                  f'processor time, {len(user[1])} rounds: bare {show(a)} ({spread(user[0])}), preloaded {show(b)} '
                  f'({spread(user[1])})')
    except (subprocess.SubprocessError, OSError, TypeError) as error:
        table.add(what, limit, 'not measured', None, str(error)[:100])


def side_by_side(bench, out):
    left = bench.deadline - time.monotonic()
    if left < 20:
        bench.unmeasured.append('torch_limbo.py: no time left')
        return
    try:
        done = subprocess.run([shutil.which('python3'), os.path.join(HERE, 'torch_limbo.py'), '--preload',
                               bench.preload, '--out', out, '--seconds', str(int(left - 10))],
                              env=bench.env, text=True, timeout=left - 2)
        if done.returncode:
            bench.unmeasured.append(f'torch_limbo.py: exit status {done.returncode}')
    except (subprocess.SubprocessError, OSError, TypeError) as error:
        bench.unmeasured.append(f'torch_limbo.py: {error}')


if __name__ == '__main__':
    sys.exit(main())
