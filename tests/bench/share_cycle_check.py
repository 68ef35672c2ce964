# SPDX-License-Identifier: Apache-2.0
"""share_cycle.py --check: memory and handles on the simulated driver, in a few seconds.

Plays all sizes with one consumer and eight, quick and slow, each setting bare, under culimbo, and under culimbo beside a
bystander, and each size with two exporters beside one, bare as well.  Neither speed nor pauses are judged (see share_cycle.py),
but those of made-up runs, to see that judge() fails where it should.
What a simulated device holds is real memory once it is touched.  So of large blocks the exporter fills the ends only,
which are what consumers read, and 8 GiB of blocks take some pages.
"""
from share_cycle_results import (
    MIB, PAGE, SLACK, SURE, Tap, judge, judge_bystander, named, results_of, setting_name)

SECONDS = 0.02
SLOW = 5 # ms; all else in a cycle takes less
# Devices, and the blocks that are played there: their budgets, 1/64 of the device, are small enough to be filled.
DEVICES = {'512MiB': ((1 << 10, 100), (MIB, 40)), '12GiB': ((64 * MIB, 12), (1 << 30, 3))}


def check_setting(tap, bench, setting, cycles, ends):
    name = setting_name(setting)
    bare, ours = (bench.play(variant, *setting, SECONDS, cycles, ends=ends) for variant in ('bare', 'culimbo'))
    less = bare['least'] - ours['least']
    tap.ok(less <= bench.budget + SLACK, f'{name}: least free memory {less / MIB:.0f} MiB below bare, '
           f'the budget of a device of {bench.device["all"] / MIB:.0f} MiB is {bench.budget / MIB:.0f}')
    tap.ok(not (ours['wrong'] or ours['refused'] or ours['failed_allocs']),
           f'{name}: {ours["wrong"]} wrong bytes, {ours["refused"]} refused opens, '
           f'{ours["failed_allocs"]} failed allocations of {ours["cycles"]} cycles')
    # else a run ends within a turn, and has a wait too many for its cycles
    if setting[1] > 1:
        tap.ok(not any(found['cycles'] % setting[1] for found in (bare, ours)),
               f'{name}: {bare["cycles"]} and {ours["cycles"]} cycles are whole turns of the {setting[1]} consumers')
    judge_bystander(tap, name, bench.play('culimbo', *setting, SECONDS, cycles, bystander=True, ends=ends))
    return less


def check_settings(tap, bench, sizes):
    for size, cycles in sizes:
        ends, most = size >= 64 * MIB, 0
        for consumers in (1, 8):
            for work in (0, SLOW):
                less = check_setting(tap, bench, (size, consumers, work), cycles if not work else min(cycles, 12), ends)
                most = max(most, less)
        # else the limit of a size would hold in an empty limbo, too
        if MIB <= size <= bench.budget:
            tap.ok(most > bench.budget / 2, f'{named(size)}: the limbo fills its budget ({most / MIB:.0f} MiB)')
        for variant in ('bare', 'culimbo'):
            judge_bystander(tap, f'{named(size)}, two exporters, {variant}',
                            bench.play(variant, size, 1, 0, SECONDS, cycles, bystander=True, ends=ends, exporters=2))


def check_bystander(tap, bench):
    """The control of the bystander is as short of memory as it may be, and no shorter."""
    found = bench.play('bare', 4 * MIB, 1, 0, SECONDS, 10, bystander=True, more=SLACK + 2 * PAGE)
    beside = found['bystander']
    tap.ok(beside['failures'] and beside['free_then'] < beside['bytes'],
           f'the control: bare, while somebody has {(SLACK + 2 * PAGE) / MIB:.0f} MiB more than the budget, a bystander fails '
           f'{beside["failures"]} of {beside["attempts"]} times')
    short = (beside['bytes'] - beside['free_then']) / MIB
    tap.ok(0 < short <= (SLACK + 2 * PAGE) / MIB, f'and its line says by how much: {short:.1f} MiB')


def check_options(tap, bench):
    seconds = 0.15
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


class Heard(Tap):
    """Keeps its lines instead of printing them."""

    def __init__(self):
        self.lines = []

    def ok(self, good, text):
        self.lines.append((bool(good), text))


def made_up(speed, rounds, spread):
    """Runs that differ by no more than @spread, with @speed cycles a second."""
    return [{'per_second': speed * (1 + spread * (i % 2)), 'cycle': {'max': 1e6}, 'least': 0, 'wrong': 0,
             'refused': 0, 'failed_allocs': 0} for i in range(rounds)]


def check_speeds(tap):
    """Which speeds judge() lets pass, by made-up runs."""
    small = (1 << 10, 1, 0)
    for what, setting, ratio, rounds, options, limit, good in (
            ('which gains', small, 1.8, SURE, [], 1.3, True),
            ('which gains nothing', small, 1.0, SURE, [], 1.3, False),
            ('which gains too little', small, 1.25, SURE, [], 1.3, False),
            ('of which too few rounds tell', small, 1.0, SURE - 1, [], 1.3, True),
            ('without a grace', small, 1.0, SURE, ['CULIMBO_GRACE=0'], 0.95, True),
            ('without a grace, slow', small, 0.9, SURE, ['CULIMBO_GRACE=0'], 0.95, False),
            ('with eight consumers', (1 << 10, 8, 0), 1.0, SURE, [], 0.95, True),
            ('with a slow one', (1 << 10, 1, 20), 1.0, SURE, [], 0.95, True),
            ('of larger blocks', (MIB, 1, 0), 1.0, SURE, [], 0.95, True)):
        heard, results = Heard(), results_of([setting], ['bare', 'culimbo', 'bare again'], options)
        for variant in results[setting].runs:
            results[setting].runs[variant] = made_up(1000 * ratio if variant == 'culimbo' else 1000, rounds, 0.02)
        judge(heard, results, 0)
        said = [line for line in heard.lines if 'cycles a second' in line[1]]
        tap.ok(len(said) == 1 and said[0][0] == good and f'(limit {limit})' in said[0][1],
               f'a made-up cycle {what}: {"passes" if good else "fails"}, limit {limit}')
        tap.ok(all(line[0] for line in heard.lines if line not in said), f'a made-up cycle {what}: no other limit is broken')


def check(bench_of):
    """@bench_of: a Bench on a simulated device of so much memory."""
    print('TAP version 13')
    tap = Tap()
    check_speeds(tap)
    for memory, sizes in DEVICES.items():
        with bench_of(memory) as bench:
            bench.start()
            bench.start_consumers(['bare', 'culimbo'], 8)
            check_settings(tap, bench, sizes)
            if memory == '512MiB':
                check_bystander(tap, bench)
                check_options(tap, bench)
            bench.stop()
    print(f'1..{tap.number}')
    return tap.failures == 0
