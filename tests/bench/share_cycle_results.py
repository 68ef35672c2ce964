# SPDX-License-Identifier: Apache-2.0
"""What share_cycle.py has found: figures of each setting, its tables, and the lines of TAP that judge them."""
import statistics

MIB = 1 << 20
PAGE = 2 * MIB # the driver takes memory by these
CALLS = ('alloc', 'fill', 'sync', 'export', 'wait', 'free', 'open', 'read', 'close')
SPEED, PAUSE = 0.95, 2.0
# One quick consumer of 1 KiB gains by the grace: while a freed block waits, the driver keeps its page, and an allocation
# takes 2 us instead of 50.  The printed runs on GPUs have 1.72 to 2.12 of bare's cycles (doc/results).  0.95 would not
# show that this gain is lost.
GAIN, GAINS = 1.3, (1 << 10, 1, 0)
SURE = 6 # rounds: of fewer, the least and the greatest ratio are no interval of 95 %
# What a process may take of the device beyond its blocks and its budget.  The driver takes memory by 2 MiB, and blocks
# that wait may be in one page more than those in use.  Nothing else was seen on H100s and H200s (doc/performance.md): least
# free memory is what was free at first without the contexts and the blocks, and under culimbo less by the budget, or by
# 2 MiB where 1 KiB blocks wait.  So handles, opens, page tables and culimbo's stream take nothing that the contexts
# did not have.  Bystanders used to leave 64 MiB more, and of these 63.9 MiB were free all the time.
SLACK = 4 * MIB
# The last of a GPU's free memory, which its driver gives to nobody.  With 2.7 MiB to spare it refused a bystander 77,086 MiB
# and, at first, the exporter 64 MiB; bare it refuses with 3.6 MiB, and not with 5.6 (doc/performance.md).
LAST = 4 * MIB


def whole_pages(size):
    return (size + PAGE - 1) // PAGE * PAGE


def named(size):
    for unit, name in ((1 << 30, 'GiB'), (MIB, 'MiB'), (1 << 10, 'KiB')):
        if size >= unit and size % unit == 0:
            return f'{size // unit} {name}'
    return f'{size} B'


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

    def __init__(self, variants, least=SPEED):
        self.runs = {v: [] for v in variants}
        self.least = least

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
        return self.speed(variant) < self.least

    def is_surely_slow(self, variant):
        return self.is_slow(variant) and self.rounds() >= SURE and self.interval(variant)[1] < self.least

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


def results_of(settings, variants, options):
    """A Result without a run for each setting, with its limit.  @options: those that all have that run under culimbo; any
    of them may end the gain, as CULIMBO_GRACE=0 does."""
    return {setting: Result(variants, GAIN if setting == GAINS and not options else SPEED) for setting in settings}


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
            say(f'  longest of all rounds, {variant}: {worst["cycle"]["max"] / 1e6:.2f} ms, of it ' +
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
        f': the median of {result.rounds()} rounds lies between {between[0]:.2f} and {between[1]:.2f}') + (
            f' (at least {SURE} are needed to be sure)' if result.rounds() < SURE else '')


def judge(tap, results, budget):
    for setting, result in results.items():
        name = setting_name(setting)
        less, bad = result.less_free('culimbo'), result.wrong('culimbo')
        tap.ok(less <= budget + SLACK,
               f'{name}: least free memory {less / MIB:.0f} MiB below bare (budget {budget / MIB:.0f})')
        speed, pause = result.speed('culimbo'), result.pause('culimbo')
        tap.ok(not result.is_surely_slow('culimbo'),
               f'{name}: {speed:.3f} of bare\'s cycles a second (limit {result.least})' +
               not_sure(result, result.is_slow('culimbo'), result.is_surely_slow('culimbo'), result.interval('culimbo')))
        tap.ok(not result.is_surely_long('culimbo'),
               f'{name}: the worst pause is {pause:.2f} of bare\'s (limit {PAUSE:g})' +
               not_sure(result, result.is_long('culimbo'), result.is_surely_long('culimbo'), result.pauses('culimbo')))
        tap.ok(not any(bad.values()), f'{name}: {bad["wrong"]} wrong bytes, {bad["refused"]} refused opens, '
               f'{bad["failed_allocs"]} failed allocations')


def judge_bystander(tap, name, found):
    beside = found['bystander']
    spare = (beside['free_then'] - beside['bytes']) / MIB
    tap.ok(beside['failures'] == 0 and beside['attempts'] > 0,
           f'{name}: a bystander without culimbo got {beside["bytes"] / MIB:.0f} MiB '
           f'{beside["attempts"] - beside["failures"]} of {beside["attempts"]} times, '
           f'{found["watched"]["least"] / MIB:.1f} MiB were free at least, all the time'
           + (f' (error {beside["first_failure"]}; after that {beside["free_then"] / MIB:.1f} MiB were free at least, '
              f'{abs(spare):.1f} MiB {"more" if spare > 0 else "less"} than it asked for; '
              f'{found["spare"] / MIB:.0f} MiB were left beyond what is needed)' if beside['failures'] else ''))
    tap.ok(not (found['wrong'] or found['refused'] or found['failed_allocs']),
           f'{name}: beside it {found["wrong"]} wrong bytes, {found["refused"]} refused opens, '
           f'{found["failed_allocs"]} failed allocations of {found["cycles"]} cycles'
           f'; an allocation takes {found["calls"]["alloc"]["mean"] / 1e6:.2f} ms on average, '
           f'{found["short"]} calls had no memory at first')
