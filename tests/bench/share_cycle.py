#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The share cycle (share_cycle.c), bare and under culimbo by turns: how fast, and how much memory.

    share_cycle.py [--gpu] [--profile] [--rounds N] [--seconds S] [--json FILE] BUILD_DIR
    share_cycle.py --check BUILD_DIR
    (share_cycle.py --help names the rest)

A setting is a size of block, a number of consumers and how long each of them works.  In each
round every setting is played by every variant, and every variant has every place in turn (order_of()); a
figure is the median of the rounds.  In a round a variant's consumers play all settings, and no
other variant's are there meanwhile; an exporter plays one setting, so that each starts on an empty
limbo.  A watcher without culimbo looks at the device's free memory meanwhile.  Prints a table, in
which "bare again" says how much two runs of the same differ, and "from-to" in what interval the
median of the rounds' ratios lies with 95 %, then a line of TAP for each limit:

  - least free memory within the budget of bare's (the smaller of 256 MiB and 1/64 of the device)
  - at least 0.95 of bare's cycles a second; 1.3 with 1 KiB and one quick consumer, if there is no --option
  - the worst pause, the longest from one cycle's end to the next, at most twice bare's: medians of
    the rounds' longest pauses.  The longest of all rounds is printed and not judged: a single interruption
    by the host decides it, and between two bare variants it differs by up to a factor of 4
    A setting that is beyond one of these two, while the interval reaches to the limit or there are fewer than
    six rounds, is played again, for a third of --limit at most; if it is still so, its line says "not sure"
  - no wrong byte, no refused open, no allocation that failed
  - a bystander without culimbo, which takes all but what bare needs, the budget and spare(), never fails; nor one
    beside two exporters, which takes all but what both need and the sum of their budgets.  The control is the
    same beside bare exporters, while a keeper has allocated the sum of the budgets: a process that shares nothing

--beside plays another build's library as well: so two libraries are compared in one run.

--profile judges nothing: 64 MiB and 1 GiB, one consumer, each call's times, and variants that
leave out a part of culimbo.  --check judges the same settings on the simulated driver in a few seconds,
for `make check` (share_cycle_check.py), but neither speed nor pauses: there most of a cycle is the first touch of
memory, which the kernel clears, and other tests run beside it.  Without --gpu the driver is the simulated one.
"""
import argparse
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from share_cycle_check import check # noqa: E402 (nothing is written beside the source)
from share_cycle_results import ( # noqa: E402
    LAST, MIB, SLACK, SURE, Tap, judge, judge_bystander, named, profile, results_of, say, setting_name, table, whole_pages)

# variants where only one side runs under culimbo: the role that runs without
ALONE = {'exporter alone': 'consumer', 'consumer alone': 'exporter'}

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
        self.preloaded = env.get('LD_PRELOAD')
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
        # the dynamic linker only warns of a library that it cannot load
        if self.preloaded:
            with open(f'/proc/{self.process.pid}/maps', encoding='utf-8') as maps:
                if os.path.realpath(self.preloaded) not in maps.read():
                    self.fail(f'has not loaded {self.preloaded}')

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
    def __init__(self, args, memory):
        self.args = args
        build = os.path.abspath(args.build)
        self.program = self.find(build, 'tests/bench/share_cycle')
        self.preload = self.find(build, '.libs/libculimbo.so')
        self.beside = dict(args.beside)
        base = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
        self.scratch = tempfile.mkdtemp(prefix='culimbo-cycle.', dir=base)
        self.roles, self.links, self.consumers = [], {}, {}
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith('CULIMBO_') and k != 'LD_PRELOAD'}
        if not args.gpu:
            self.env['LD_LIBRARY_PATH'] = self.find(build, 'tools/sim/.libs')
            self.env['CULIMBO_SIM_DIR'] = os.path.join(self.scratch, 'sim')
            self.env['CULIMBO_SIM_MEMORY'] = memory
        for name in ('limbo', 'sim'):
            os.mkdir(os.path.join(self.scratch, name), 0o700)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for role in self.roles:
            if role.process.poll() is None:
                role.kill()
            role.err.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    @staticmethod
    def find(build, name):
        path = os.path.join(build, name)
        if not os.path.exists(path):
            sys.exit(f'share_cycle: there is no {path}: make all and the check programs first')
        return path

    def environment(self, variant, role, more=None):
        options = VARIANTS.get(variant, {})
        if options is None or ALONE.get(variant) == role:
            return self.env
        return {**self.env, 'LD_PRELOAD': self.beside.get(variant, self.preload), 'CULIMBO_REPORT': 'off',
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

    def start_exporter(self, variant, number, consumers, more, options):
        """The exporter of so many consumers of the variant, behind those of the exporters before it."""
        links = [link.fileno() for link in self.links[variant][number * consumers:(number + 1) * consumers]]
        role = Role(self, f'exporter {number} {variant}', self.environment(variant, 'exporter', options), 'exporter',
                    f'links={",".join(map(str, links))}', *more, fds=links,
                    pair=1 if number == 0 else 1 + len(self.consumers[variant]) + number)
        role.ready()
        return role

    def start_bystander(self, variant, exporters, consumers, size, more):
        """It takes all of the device but what the exporters need bare, and the sum of their budgets.  Bare, somebody else
        has that sum, and @more bytes.  Returns who is to end."""
        roles = [Role(self, 'bystander', self.env, 'bystander')]
        if VARIANTS.get(variant, {}) is None:
            roles.append(Role(self, 'keeper', self.env, 'keeper'))
        for role in roles:
            role.ready()
        budgets = exporters * whole_pages(self.budget)
        roles[0].say(f'leave {budgets + exporters * consumers * whole_pages(size) + self.spare(exporters)}')
        roles[0].ready()
        if len(roles) > 1 and roles[1].ask(f'keep {budgets + more}')['result']:
            roles[1].fail('got no memory')
        roles[0].say('go')
        return roles

    def spare(self, exporters):
        """What a bystander leaves beyond the budgets and what the exporters need."""
        return exporters * SLACK + (LAST if self.args.gpu else 0)

    def play(self, variant, size, consumers, work, seconds, cycles=1, bystander=False, late=None,
             options=None, ends=False, exporters=1, more=0):
        """The lives of @exporters, each with so many consumers; returns what they found, and the watcher, and the
        bystander.  @late: each block is freed once it is sent, and opened so many ms after that.  @ends: only a
        block's ends are filled.  @more: see start_bystander()."""
        args = [f'size={size}', f'seconds={seconds}', f'work={work}', f'cycles={cycles}', f'ends={int(ends)}']
        if late is not None:
            args += ['early=1', f'late={late}']
        roles = [self.start_exporter(variant, i, consumers, args, options) for i in range(exporters)]
        before = self.watcher.ask('reset')
        beside = self.start_bystander(variant, exporters, consumers, size, more) if bystander else []
        for role in roles:
            role.say('go')
        found, *others = [json.loads(role.hear(seconds * 2 + 60)) for role in roles]
        for other in others:
            for what in ('cycles', 'short', 'opens', 'wrong', 'refused', 'failed_allocs'):
                found[what] += other[what]
            found['least_free'] = min(found['least_free'], other['least_free'])
        found['watched'] = self.watcher.ask('least')
        found['free'] = before['free']
        found['least'] = min(found['least_free'], found['watched']['least'])
        if bystander:
            found['bystander'] = beside[0].ask('stop')
            found['spare'] = self.spare(exporters)
        for role in roles + beside:
            role.end()
        return found


def parsed(text):
    units = {'K': 1 << 10, 'M': MIB, 'G': 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def order_of(variants, number):
    """The variants in the order of round @number.  In as many rounds as there are variants each has each place once;
    then the same again backwards."""
    first = number % len(variants)
    order = variants[first:] + variants[:first]
    return order[::-1] if number // len(variants) % 2 else order


def is_played(number, each):
    """Whether what plays in one of @each rounds plays in round @number: so that there, too, every variant has every place."""
    return number % each == number // each % each


def rounds_of(bench, results, settings, rounds, limit, slow_each):
    """Plays @settings and adds their runs to @results; no round begins that would end after @limit s.
    Settings with slow consumers are played in one of @slow_each rounds."""
    began, variants = time.monotonic(), list(next(iter(results.values())).runs)
    for number in range(rounds):
        so_far = time.monotonic() - began
        if number and so_far * (number + 1) / number > limit:
            say(f'{number} of {rounds} rounds only: one more would take longer than {limit:g} s')
            break
        for variant in order_of(variants, number):
            # only one variant's processes at a time: beside others, a process that starts later
            # opens and frees more slowly (measured: 30 us a cycle for each variant's consumer)
            bench.start_consumers([variant], max(s[1] for s in settings))
            for setting in settings:
                if not setting[2] or is_played(number, slow_each):
                    results[setting].runs[variant].append(bench.play(variant, *setting, bench.args.seconds))
            bench.stop_consumers()


def bystanders(bench, tap, args):
    """Each size beside a bystander: one exporter, and two, whose budgets add up."""
    beside = {}
    bench.start_consumers(['bare', 'culimbo'], 2)
    for size in args.sizes:
        for exporters in (1, 2):
            for variant in ('bare', 'culimbo'):
                name = f'{variant}, {named(size)}' + (', two exporters' if exporters == 2 else '')
                beside[name] = bench.play(variant, size, 1, 0, max(args.seconds, 1.5), bystander=True,
                                          exporters=exporters)
                judge_bystander(tap, name, beside[name])
    return beside


def measure(bench, args):
    if args.profile:
        variants = list(VARIANTS)
        settings = [(size, 1, 0) for size in args.sizes]
    else:
        variants = ['bare', 'culimbo', 'bare again', *bench.beside]
        settings = [(size, n, work) for size in args.sizes for n in args.consumers for work in args.work]
    began = time.monotonic()
    bench.start()
    say(f'{bench.device["all"] / MIB:.0f} MiB of device memory, {bench.device["free"] / MIB:.0f} free; '
        f'{args.rounds} rounds of {args.seconds:g} s')
    results = results_of(settings, variants, args.option)
    # a slow consumer's cycles are as long as its work: at first a few rounds are enough
    rounds_of(bench, results, settings, args.rounds, args.limit, 3)
    unsure = [s for s in settings if results[s].is_unsure()]
    if unsure and not args.profile:
        say('more rounds of what is beyond a limit and not sure: ' + '; '.join(map(setting_name, unsure)))
        # as many as it takes to be sure at all
        rounds = max(args.rounds, SURE - min(results[s].rounds() for s in unsure))
        rounds_of(bench, results, unsure, rounds, args.limit / 3, 1)
    tap, beside = Tap(), {}
    (profile if args.profile else table)(results)
    if not args.profile:
        say()
        print('TAP version 13')
        judge(tap, results, bench.budget)
        beside = bystanders(bench, tap, args)
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


def library_beside(text):
    name, equals, path = text.partition('=')
    if not equals or not name or name in VARIANTS:
        raise argparse.ArgumentTypeError(f'{text!r} is not NAME=LIBRARY with a name of its own, such as '
                                         'before=old/.libs/libculimbo.so')
    if not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f'there is no library {path!r}')
    return name, os.path.abspath(path)


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
    parser.add_argument('--beside', action='append', default=[], type=library_beside, metavar='NAME=LIBRARY',
                        help='another libculimbo.so, played by turns with the others and not judged')
    parser.add_argument('--json', metavar='FILE', help='every figure of every run')
    args = parser.parse_args()
    if args.beside and (args.check or args.profile):
        parser.error('--beside plays neither with --check nor with --profile')
    default = '64M,1G' if args.profile else '1K,1M,64M,1G'
    if not args.gpu:
        default = '16M,64M' if args.profile else '1K,1M,64M'
    args.sizes = [parsed(size) for size in (args.sizes or default).split(',')]
    args.consumers = [int(n) for n in args.consumers.split(',')]
    args.work = [float(ms) for ms in args.work.split(',')]
    args.seconds = args.seconds or (0.8 if args.profile else 0.25)
    if args.check:
        args.gpu = False
    try:
        if args.check:
            return 0 if check(lambda memory: Bench(args, memory)) else 1
        with Bench(args, args.memory) as bench:
            return 0 if measure(bench, args) else 1
    except Failed as failed:
        print(f'Bail out! {failed}')
        return 1


if __name__ == '__main__':
    sys.exit(main())
