#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The share cycle (share_cycle.c), bare and under culimbo by turns: how fast, and how much memory.

    share_cycle.py [--gpu] [--profile] [--rounds N] [--seconds S] [--json FILE] BUILD_DIR
    share_cycle.py --check BUILD_DIR
    (share_cycle.py --help names the rest)

A setting is a size of block, a number of consumers and how long each of them works.  In each
round every setting is played by every variant, the order turned round from round to round; a
figure is the median of the rounds.  In a round a variant's consumers play all settings, and no
other variant's are there meanwhile; an exporter plays one setting, so that each starts on an empty
limbo.  A watcher without culimbo looks at the device's free memory meanwhile.  Prints a table, in
which "bare again" says how much two runs of the same differ, and "from-to" in what interval the
median of the rounds' ratios lies with 95 %, then a line of TAP for each limit:

  - least free memory within the budget of bare's (the smaller of 256 MiB and 1/64 of the device)
  - at least 0.95 of bare's cycles a second
  - the worst pause, the longest from one cycle's end to the next, at most twice bare's
    A setting that is beyond one of these two, while the interval reaches to the limit or there are fewer than
    six rounds, is played again, for a third of --limit at most; if it is still so, its line says "not sure"
  - no wrong byte, no refused open, no allocation that failed
  - a bystander without culimbo, which takes all but what bare needs and the budget, never fails

--profile judges nothing: 64 MiB and 1 GiB, one consumer, each call's times, and variants that
leave out a part of culimbo.  --check judges memory and handles but no times, on a small simulated
device in a few seconds: for `make check`.  Without --gpu the driver is the simulated one.
"""
import argparse
import json
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
MIB = 1 << 20
CALLS = ('alloc', 'fill', 'sync', 'export', 'wait', 'free', 'open', 'read', 'close')
SPEED, PAUSE = 0.95, 2.0
SURE = 6 # rounds: of fewer, the least and the greatest ratio are no interval of 95 %
# variants where only one side runs under culimbo: the role that runs without
ALONE = {'exporter alone': 'consumer', 'consumer alone': 'exporter'}
# memory that the driver itself keeps when a process shares: chunks, page tables
SLACK = 4 * MIB

VARIANTS = {
    'bare': None,
    'bare again': None,
    'exporter alone': {'CULIMBO_GRACE': '0'},
    'consumer alone': {'CULIMBO_GRACE': '0'},
    'culimbo': {},
    'grace 0': {'CULIMBO_GRACE': '0'},
    'disabled': {'CULIMBO_DISABLE': '1'},
    'grace 0, no stacks': {'CULIMBO_GRACE': '0', 'CULIMBO_STACK': '0'},
    'grace 0, inline': {'CULIMBO_GRACE': '0', 'CULIMBO_COLLECTOR': 'inline'},
}


class Failed(Exception):
    """A process did not do what it was told."""


class Role:
    """One process; its name is for messages."""

    def __init__(self, bench, name, env, *args, fds=(), pair=None):
        self.name = name
        # two processors of its own, if there are enough: otherwise its speed would depend on
        # where it happens to run
        own = None
        if pair is not None and os.cpu_count() >= 8:
            first = 2 * pair % (os.cpu_count() - 1)
            own = lambda: os.sched_setaffinity(0, {first, first + 1})
        self.err = open(os.path.join(bench.scratch, name.replace(' ', '_') + '.err'), 'w+')
        self.process = subprocess.Popen([bench.program, *args], env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.err, pass_fds=fds, bufsize=0,
                                        preexec_fn=own)
        self.rest = b''
        bench.roles.append(self)

    def fail(self, why):
        self.err.seek(0)
        raise Failed(f'{self.name}: {why}\n{self.err.read()[-3000:]}')

    def say(self, line):
        try:
            self.process.stdin.write(line.encode() + b'\n')
        except BrokenPipeError:
            self.fail('has gone')

    def hear(self, seconds=60):
        until = time.monotonic() + seconds
        while b'\n' not in self.rest:
            ready = select.poll()
            ready.register(self.process.stdout, select.POLLIN)
            if not ready.poll(max(0, 1000 * (until - time.monotonic()))):
                self.fail(f'said nothing for {seconds:g} s')
            got = os.read(self.process.stdout.fileno(), 65536)
            if not got:
                self.fail(f'ended with status {self.process.wait()}')
            self.rest += got
        line, self.rest = self.rest.split(b'\n', 1)
        return line.decode()

    def ready(self):
        if self.hear() != 'ready':
            self.fail('said something else than "ready"')

    def ask(self, line, seconds=60):
        self.say(line)
        return json.loads(self.hear(seconds))

    def end(self):
        self.process.stdin.close()
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            self.fail('does not end')
        if status:
            self.fail(f'ended with status {status}')
        # many hundred of them live one after another
        self.process.stdout.close()
        self.err.close()

    def kill(self):
        self.process.kill()
        self.process.wait()


class Bench:
    def __init__(self, args):
        self.args = args
        build = os.path.abspath(args.build)
        self.program = self.find(build, 'tests/bench/share_cycle')
        self.preload = self.find(build, '.libs/libculimbo.so')
        base = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
        self.scratch = tempfile.mkdtemp(prefix='culimbo-cycle.', dir=base)
        self.roles, self.links, self.consumers = [], {}, {}
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith('CULIMBO_') and k != 'LD_PRELOAD'}
        if not args.gpu:
            self.env['LD_LIBRARY_PATH'] = self.find(build, 'tools/sim/.libs')
            self.env['CULIMBO_SIM_DIR'] = os.path.join(self.scratch, 'sim')
            self.env['CULIMBO_SIM_MEMORY'] = args.memory
        for name in ('limbo', 'sim'):
            os.mkdir(os.path.join(self.scratch, name), 0o700)

    @staticmethod
    def find(build, name):
        path = os.path.join(build, name)
        if not os.path.exists(path):
            sys.exit(f'share_cycle: there is no {path}: make all and the check programs first')
        return path

    def environment(self, variant, role, more=None):
        options = VARIANTS[variant]
        if options is None or ALONE.get(variant) == role:
            return self.env
        return {**self.env, 'LD_PRELOAD': self.preload, 'CULIMBO_REPORT': 'off',
                'CULIMBO_WARN_BLOCKS': '0', 'CULIMBO_DIR': os.path.join(self.scratch, 'limbo'),
                **options, **dict(o.split('=', 1) for o in self.args.option), **(more or {})}

    def start(self):
        self.watcher = Role(self, 'watcher', self.env, 'watcher')
        self.watcher.ready()
        self.device = self.watcher.ask('reset')
        self.budget = min(256 * MIB, self.device['all'] // 64)

    def start_consumers(self, variants, consumers):
        for variant in variants:
            self.links[variant], self.consumers[variant] = [], []
            for i in range(consumers):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.links[variant].append(ours)
                self.consumers[variant].append(
                    Role(self, f'consumer {i} {variant}', self.environment(variant, 'consumer'), 'consumer',
                         f'link={theirs.fileno()}', fds=(theirs.fileno(),), pair=2 + i))
                theirs.close()
        for variant in variants:
            for role in self.consumers[variant]:
                role.ready()

    def stop_consumers(self):
        for links in self.links.values():
            for link in links:
                link.close()
        for role in [r for group in self.consumers.values() for r in group]:
            role.end()
        self.links, self.consumers = {}, {}

    def stop(self):
        self.stop_consumers()
        self.watcher.end()

    def clean(self):
        for role in self.roles:
            if role.process.poll() is None:
                role.kill()
            role.err.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def play(self, variant, size, consumers, work, seconds, cycles=1, bystander=False, late=None,
             options=None):
        """One exporter's life; returns what it found, and the watcher, and the bystander.
        @late: each block is freed once it is sent, and opened so many ms after that."""
        links = [link.fileno() for link in self.links[variant][:consumers]]
        args = [f'links={",".join(map(str, links))}', f'size={size}', f'seconds={seconds}', f'work={work}',
                f'cycles={cycles}']
        if late is not None:
            args += ['early=1', f'late={late}']
        exporter = Role(self, f'exporter {variant}', self.environment(variant, 'exporter', options), 'exporter', *args,
                        fds=links, pair=1)
        exporter.ready()
        before = self.watcher.ask('reset')
        if bystander:
            beside = Role(self, 'bystander', self.env, 'bystander')
            beside.ready()
            # rounded as the driver rounds; the memory that it keeps for itself is added
            need = consumers * max(size, 2 * MIB) + self.budget + (64 * MIB if self.args.gpu else SLACK)
            beside.say(f'go {need}')
            beside.ready()
        found = exporter.ask('go', seconds * 2 + 60)
        found['watched'] = self.watcher.ask('least')
        found['free'] = before['free']
        found['least'] = min(found['least_free'], found['watched']['least'])
        if bystander:
            found['bystander'] = beside.ask('stop')
            beside.end()
        exporter.end()
        return found


def named(size):
    for unit, name in ((1 << 30, 'GiB'), (MIB, 'MiB'), (1 << 10, 'KiB')):
        if size >= unit and size % unit == 0:
            return f'{size // unit} {name}'
    return f'{size} B'


def parsed(text):
    units = {'K': 1 << 10, 'M': MIB, 'G': 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def setting_name(setting):
    size, consumers, work = setting
    return f'{named(size)}, {consumers} consumer{"s" if consumers > 1 else ""}, ' + \
        (f'slow ({work:g} ms)' if work else 'quick')


def median(runs, *path):
    values = []
    for run in runs:
        for key in path:
            run = run[key]
        values.append(run)
    return statistics.median(values)


def us(ns):
    return f'{ns / 1e3:.1f}' if ns < 1e6 else f'{ns / 1e3:.0f}'


def lines_of(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield '  '.join(cell.ljust(w) if i == 0 else cell.rjust(w)
                        for i, (cell, w) in enumerate(zip(row, widths))).rstrip()


def say(text=''):
    print(('# ' + text).rstrip(), flush=True)


def mean_us(runs):
    """Of each call, of what lies between those of the exporter, and of the cycle."""
    calls = [median(runs, 'calls', call, 'mean') / 1e3 for call in CALLS]
    cycle = median(runs, 'cycle', 'mean') / 1e3
    return [*calls, cycle - sum(calls[:CALLS.index('open')]), cycle]


def interval(ratios):
    """The ends of the interval in which the median lies with 95 %; of few ratios the least and the greatest."""
    if not ratios:
        return 0, 0
    ratios = sorted(ratios)
    low = max(0, round(len(ratios) / 2 - 0.98 * len(ratios) ** 0.5) - 1)
    return ratios[low], ratios[-1 - low]


class Result:
    """All runs of one setting: {variant: [run of round 0, ...]}."""

    def __init__(self, variants):
        self.runs = {v: [] for v in variants}

    def bare(self, variant):
        """Cycles a second of each round, by all bare runs in it but those of @variant itself."""
        both = [self.runs[v] for v in ('bare', 'bare again') if v in self.runs and v != variant]
        return [statistics.mean(run['per_second'] for run in runs) for runs in zip(*both)]

    def speed(self, variant):
        """By the means: a process is quick or slow by where its memory comes to lie, for all its life."""
        bare = statistics.mean(self.bare(variant) or [0])
        return statistics.mean(run['per_second'] for run in self.runs[variant]) / bare if bare else 0

    def interval(self, variant):
        """The interval in which the median of the rounds' ratios of cycles a second lies with 95 %."""
        return interval([run['per_second'] / bare
                         for run, bare in zip(self.runs[variant], self.bare(variant)) if bare])

    def is_slow(self, variant):
        return self.speed(variant) < SPEED

    def is_surely_slow(self, variant):
        return self.is_slow(variant) and self.rounds() >= SURE and self.interval(variant)[1] < SPEED

    def pause(self, variant):
        return median(self.runs[variant], 'cycle', 'max') / median(self.runs['bare'], 'cycle', 'max')

    def pauses(self, variant):
        """The interval in which the median of the rounds' ratios of worst pauses lies with 95 %."""
        return interval([run['cycle']['max'] / bare['cycle']['max']
                         for run, bare in zip(self.runs[variant], self.runs['bare'])])

    def is_long(self, variant):
        return self.pause(variant) > PAUSE

    def is_surely_long(self, variant):
        return self.is_long(variant) and self.rounds() >= SURE and self.pauses(variant)[0] > PAUSE

    def rounds(self):
        return len(self.runs['bare'])

    def is_unsure(self):
        return any(self.is_slow(v) and not self.is_surely_slow(v) or self.is_long(v) and not self.is_surely_long(v)
                   for v in self.runs if v == 'culimbo')

    def less_free(self, variant):
        """In the worst round."""
        return max(b['least'] - o['least'] for o, b in zip(self.runs[variant], self.runs['bare']))

    def wrong(self, variant):
        return {what: sum(run[what] for run in self.runs[variant])
                for what in ('wrong', 'refused', 'failed_allocs')}


def table(results):
    head = ['variant', 'cycles/s', 'ratio', 'from-to', 'worst ms', 'ratio', 'least free MiB', 'less than bare',
            'wrong/refused/failed', *CALLS]
    for setting, result in results.items():
        say()
        say(f'{setting_name(setting)}; medians of {len(result.runs["bare"])} rounds, calls in us')
        rows = [head]
        for variant, runs in result.runs.items():
            bad = result.wrong(variant)
            rows.append([variant, f'{median(runs, "per_second"):.0f}', f'{result.speed(variant):.3f}',
                         '{:.2f}-{:.2f}'.format(*result.interval(variant)),
                         f'{median(runs, "cycle", "max") / 1e6:.2f}', f'{result.pause(variant):.2f}',
                         f'{min(run["least"] for run in runs) / MIB:.0f}',
                         f'{result.less_free(variant) / MIB:.0f}',
                         f'{bad["wrong"]}/{bad["refused"]}/{bad["failed_allocs"]}',
                         *(us(median(runs, 'calls', call, 'median')) for call in CALLS)])
        for line in lines_of(rows):
            say(line)
        for variant, runs in result.runs.items():
            worst = max(runs, key=lambda run: run['cycle']['max'])
            parts = sorted(worst['worst'].items(), key=lambda part: -part[1])
            say(f'  worst, {variant}: {worst["cycle"]["max"] / 1e6:.2f} ms, of it ' +
                ', '.join(f'{name} {ns / 1e6:.2f}' for name, ns in parts[:3]))


def profile(results):
    head = ['', *(f'{variant} (us)' for variant in next(iter(results.values())).runs)]
    for setting, result in results.items():
        say()
        say(f'{setting_name(setting)}; mean, median, p99, max of each call; medians of '
            f'{len(result.runs["bare"])} rounds')
        rows = [head]
        for name in ('cycle', *CALLS):
            path = (name,) if name == 'cycle' else ('calls', name)
            rows.append([name, *(' '.join(us(median(runs, *path, key)).rjust(7)
                                          for key in ('mean', 'median', 'p99', 'max'))
                                 for runs in result.runs.values())])
        for name, key in (('user us a cycle', 'user'), ('system', 'system')):
            rows.append([name, *(us(median(runs, key)) for runs in result.runs.values())])
        rows.append(['switches', *(f'{median(runs, "switches"):.1f}' for runs in result.runs.values())])
        for line in lines_of(rows):
            say(line)
        say()
        say('more than bare, us a cycle (means; the rest is what lies between the calls)')
        rows = [['', *CALLS, 'rest', 'cycle']]
        for variant, runs in result.runs.items():
            means = mean_us(runs)
            rows.append([variant, *(f'{ours - bare:+.1f}' for ours, bare in zip(means, mean_us(result.runs['bare'])))])
        for line in lines_of(rows):
            say(line)


class Tap:
    number = failures = 0

    def ok(self, good, text):
        self.number += 1
        self.failures += not good
        print(f'{"ok" if good else "not ok"} {self.number} - {text}', flush=True)


def not_sure(result, is_beyond, is_sure, between):
    if not is_beyond:
        return ''
    return (', sure' if is_sure else ', not sure') + (
        f': the median of {result.rounds()} rounds lies between {between[0]:.2f} and {between[1]:.2f}')


def judge(tap, results, budget):
    for setting, result in results.items():
        name = setting_name(setting)
        less, bad = result.less_free('culimbo'), result.wrong('culimbo')
        tap.ok(less <= budget + SLACK,
               f'{name}: least free memory {less / MIB:.0f} MiB below bare (budget {budget / MIB:.0f})')
        speed, pause = result.speed('culimbo'), result.pause('culimbo')
        tap.ok(not result.is_surely_slow('culimbo'),
               f'{name}: {speed:.3f} of bare\'s cycles a second (limit {SPEED})' +
               not_sure(result, result.is_slow('culimbo'), result.is_surely_slow('culimbo'), result.interval('culimbo')))
        tap.ok(not result.is_surely_long('culimbo'),
               f'{name}: the worst pause is {pause:.2f} of bare\'s (limit {PAUSE:g})' +
               not_sure(result, result.is_long('culimbo'), result.is_surely_long('culimbo'), result.pauses('culimbo')))
        tap.ok(not any(bad.values()), f'{name}: {bad["wrong"]} wrong bytes, {bad["refused"]} refused opens, '
               f'{bad["failed_allocs"]} failed allocations')


def judge_bystander(tap, name, found):
    beside = found['bystander']
    tap.ok(beside['failures'] == 0 and beside['attempts'] > 0,
           f'{name}: a bystander without culimbo got {beside["bytes"] / MIB:.0f} MiB '
           f'{beside["attempts"] - beside["failures"]} of {beside["attempts"]} times'
           + (f' (error {beside["first_failure"]}, {beside["free_then"] / MIB:.0f} MiB free then)'
              if beside['failures'] else ''))
    tap.ok(not (found['wrong'] or found['refused'] or found['failed_allocs']),
           f'{name}: beside it {found["wrong"]} wrong bytes, {found["refused"]} refused opens, '
           f'{found["failed_allocs"]} failed allocations of {found["cycles"]} cycles')


def check(bench, args):
    """Memory and handles on a small simulated device."""
    bench.start()
    bench.start_consumers(['bare', 'culimbo'], 8)
    print('TAP version 13')
    tap, seconds = Tap(), 0.15
    for size, cycles in ((1 << 10, 100), (MIB, 40), (16 * MIB, 4)):
        name = named(size)
        bare, ours = (bench.play(variant, size, 2, 0, seconds, cycles) for variant in ('bare', 'culimbo'))
        less = bare['least'] - ours['least']
        tap.ok(less <= bench.budget + SLACK, f'{name}: least free memory {less / MIB:.0f} MiB below bare, '
               f'the budget of a device of {bench.device["all"] / MIB:.0f} MiB is {bench.budget / MIB:.0f}')
        tap.ok(not (ours['wrong'] or ours['refused'] or ours['failed_allocs']),
               f'{name}: {ours["wrong"]} wrong bytes, {ours["refused"]} refused opens, '
               f'{ours["failed_allocs"]} failed allocations of {ours["cycles"]} cycles')
        judge_bystander(tap, name, bench.play('culimbo', size, 2, 0, seconds, cycles, bystander=True))

    # the option decides; while there is room, blocks that were opened wait as well
    options = {'CULIMBO_GRACE_BYTES': '32MiB'}
    ours = bench.play('culimbo', 4 * MIB, 1, 0, seconds, 16, options=options)
    # as the device was at first: the bystander before may not have ended yet
    less = bench.device['free'] - ours['least'] - 4 * MIB
    tap.ok(less <= 32 * MIB, f'CULIMBO_GRACE_BYTES=32MiB: {less / MIB:.0f} MiB wait, not more')
    tap.ok(less >= 16 * MIB, f'CULIMBO_GRACE_BYTES=32MiB: {less / MIB:.0f} MiB wait, not much less')

    # blocks are freed once they are sent and opened 100 ms later; the control runs first
    bare = bench.play('bare', 2 * MIB, 8, 0, seconds, late=100)
    tap.ok(bare['wrong'] or bare['refused'], 'the control: bare, of handles that are opened late '
           f'{bare["refused"]} are refused, and {bare["wrong"]} bytes are wrong')

    def late(what, size, consumers, budget):
        found = bench.play('culimbo', size, consumers, 0, seconds, late=100,
                           options={'CULIMBO_GRACE_BYTES': f'{budget}'})
        tap.ok(found['wrong'] == 0, f'{what}: no wrong byte ({found["wrong"]})')
        return found, found['opens'] - found['refused']

    found, opened = late('within the budget', 2 * MIB, 8, 17 * MIB)
    tap.ok(found['refused'] == 0 and opened, f'within the budget a handle that is opened 100 ms after its '
           f'block was freed works ({opened} of {found["opens"]})')
    found, opened = late('over the budget', 2 * MIB, 8, 9 * MIB)
    tap.ok(found['refused'] and opened and found['first_refusal'] == 1,
           f'over the budget the oldest go: {found["refused"]} of {found["opens"]} handles are refused as '
           f'stale (error {found["first_refusal"]}), the others work')
    found, opened = late('larger than the budget', 4 * MIB, 1, 2 * MIB)
    tap.ok(found['refused'] and not opened and found['first_refusal'] == 1,
           f'a block larger than the budget has no grace: {found["refused"]} of {found["opens"]} handles are '
           f'refused (error {found["first_refusal"]})')
    bench.stop()
    print(f'1..{tap.number}')
    return tap.failures == 0


def rounds_of(bench, results, settings, args, limit):
    """Plays @settings and adds their runs to @results; no round begins that would end after @limit s."""
    began, variants = time.monotonic(), list(next(iter(results.values())).runs)
    for number in range(args.rounds):
        so_far = time.monotonic() - began
        if number and so_far * (number + 1) / number > limit:
            say(f'{number} of {args.rounds} rounds only: one more would take longer than {limit:g} s')
            break
        order = variants if number % 2 == 0 else variants[::-1]
        for variant in order:
            # only one variant's processes at a time: beside others, a process that starts later
            # opens and frees more slowly (measured: 30 us a cycle for each variant's consumer)
            bench.start_consumers([variant], max(s[1] for s in settings))
            for setting in settings:
                # a slow consumer's cycles are as long as its work: a few rounds are enough
                if not setting[2] or number % 3 == 0:
                    results[setting].runs[variant].append(bench.play(variant, *setting, args.seconds))
            bench.stop_consumers()


def measure(bench, args):
    if args.profile:
        variants = list(VARIANTS)
        settings = [(size, 1, 0) for size in args.sizes]
    else:
        variants = ['bare', 'culimbo', 'bare again']
        settings = [(size, n, work) for size in args.sizes for n in args.consumers for work in args.work]
    began = time.monotonic()
    bench.start()
    say(f'{bench.device["all"] / MIB:.0f} MiB of device memory, {bench.device["free"] / MIB:.0f} free; '
        f'{args.rounds} rounds of {args.seconds:g} s')
    results = {setting: Result(variants) for setting in settings}
    rounds_of(bench, results, settings, args, args.limit)
    unsure = [s for s in settings if results[s].is_unsure()]
    if unsure and not args.profile:
        say('more rounds of what is beyond a limit and not sure: ' + '; '.join(map(setting_name, unsure)))
        rounds_of(bench, results, unsure, args, args.limit / 3)
    tap, beside = Tap(), {}
    (profile if args.profile else table)(results)
    if not args.profile:
        say()
        print('TAP version 13')
        judge(tap, results, bench.budget)
        bench.start_consumers(['bare', 'culimbo'], 1)
        for size in args.sizes:
            for variant in ('bare', 'culimbo'):
                name = f'{variant}, {named(size)}'
                beside[name] = bench.play(variant, size, 1, 0, max(args.seconds, 1.5), bystander=True)
                judge_bystander(tap, name, beside[name])
        print(f'1..{tap.number}')
    bench.stop()
    slow = [s for s in settings if results[s].is_unsure()]
    say(f'{tap.failures} of {tap.number} limits broken, {len(slow)} not sure, ' * (not args.profile) +
        f'{time.monotonic() - began:.0f} s in all')
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as file:
            json.dump({'device': bench.device, 'budget': bench.budget, 'bystander': beside,
                       'settings': {setting_name(s): r.runs for s, r in results.items()}}, file, indent=1)
    return tap.failures == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build', metavar='BUILD_DIR')
    parser.add_argument('--gpu', action='store_true', help='on this machine\'s GPU')
    parser.add_argument('--profile', action='store_true')
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--seconds', type=float, help='of each run (0.25; with --profile 0.8)')
    parser.add_argument('--limit', type=float, default=480, help='seconds; rounds that do not fit are left out')
    parser.add_argument('--sizes', help='of blocks, such as 1K,64M')
    parser.add_argument('--consumers', default='1,8')
    parser.add_argument('--work', default='0,20', help='ms of a quick and of a slow consumer')
    parser.add_argument('--memory', default='4GiB', help='of the simulated device')
    parser.add_argument('--option', action='append', default=[], metavar='CULIMBO_NAME=VALUE',
                        help='for all that run under culimbo')
    parser.add_argument('--json', metavar='FILE', help='every figure of every run')
    args = parser.parse_args()
    default = '64M,1G' if args.profile else '1K,1M,64M,1G'
    if not args.gpu:
        default = '16M,64M' if args.profile else '1K,1M,64M'
    args.sizes = [parsed(size) for size in (args.sizes or default).split(',')]
    args.consumers = [int(n) for n in args.consumers.split(',')]
    args.work = [float(ms) for ms in args.work.split(',')]
    args.seconds = args.seconds or (0.8 if args.profile else 0.25)
    if args.check:
        args.gpu, args.memory = False, '512MiB'
    bench = Bench(args)
    try:
        return 0 if (check if args.check else measure)(bench, args) else 1
    except Failed as failed:
        print(f'Bail out! {failed}')
        return 1
    finally:
        bench.clean()


if __name__ == '__main__':
    sys.exit(main())
