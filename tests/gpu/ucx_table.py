#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges ucx_perftest's times under culimbo against bare: the tables that ucx.sh prints.

    ucx_table.py [--limit 1.03] [--least 7] FILE

FILE has lines ROUND VARIANT OPERATION:BYTES MICROSECONDS.  In a round each variant ran once, in
processes of its own.  "bare" and "again" both ran without culimbo.  A last line without its end is left
out: the run was cut off there.

The first table has a row for each operation and size.  The second has all sizes of an operation
together, and all operations: the geometric mean of the rounds' ratios, and the interval in which it
lies with 95 % (bootstrap of the rounds).  A process is fast or slow as a whole, by a quarter, so one
row of the first table says little, and many short processes say more than few long ones.

The exit status is 1 if an operation is surely slower than LIMIT: its interval begins above it.  It is
1, too, if fewer than LEAST rounds are complete, since they don't tell a difference from noise.
"(not sure)" stands where the interval ends above LIMIT, and the last line says of how many ratios that is so.
"""
import argparse
import math
import random
import statistics
import sys

RESAMPLES = 4000
PAIRS = (("on", "culimbo", "bare"), ("none", "none-culimbo", "none-bare"), ("(bare)", "again", "bare"),
         ("stackl", "stackless-culimbo", "bare"))


def read(path):
    """Returns {(variant, test): {round: microseconds}}."""
    times = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            number, variant, test, us = line.split()
            times.setdefault((variant, test), {})[int(number)] = float(us)
    return times


def logs_of(times, test, ours, bare):
    """Returns {round: log of the ratio} of the rounds that have both.  Bare is the mean of its runs."""
    again = times.get(("again", test), {}) if ours == "culimbo" else {}
    found = {}
    for number, us in times.get((ours, test), {}).items():
        base = times.get((bare, test), {}).get(number)
        if base:
            logs = [math.log(value) for value in (base, again.get(number)) if value]
            found[number] = math.log(us) - statistics.fmean(logs)
    return found


def pooled(tables):
    """Returns the geometric mean of all ratios, and its interval.  All tables resample the same rounds."""
    rounds = sorted(set.intersection(*(set(table) for table in tables)))
    if not rounds:
        return None
    sums = {number: statistics.fmean(table[number] for table in tables) for number in rounds}
    chance = random.Random(1)
    values = list(sums.values())
    count = len(values)
    means = sorted(sum(chance.choices(values, k=count)) / count for _ in range(RESAMPLES))
    ends = means[RESAMPLES // 40], means[-RESAMPLES // 40 - 1]
    return tuple(math.exp(x) for x in (statistics.fmean(sums.values()), *ends)) + (len(rounds),)


def size_of(test):
    size = int(test.split(":")[1])
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=1.03)
    parser.add_argument("--least", type=int, default=7)
    parser.add_argument("file")
    arguments = parser.parse_args()
    times, limit, failed = read(arguments.file), arguments.limit, False
    tests = list(dict.fromkeys(test for _, test in times))
    if not tests:
        print(f"there are no times in {arguments.file}")
        return 1

    print(f"{'us an':<18} {'UCX':<6} {'bare':>9} {'culimbo':>9} {'ratio of':>9} {'ratio of':>9} {'spread':>8}")
    print(f"{'operation':<10} {'size':>7} {'hooks':<6} {'':>9} {'':>9} {'medians':>9} {'fastest':>9} {'bare, %':>8}")
    for test in sorted(tests):
        for hooks, ours, bare in PAIRS:
            a = list(times.get((bare, test), {}).values())
            b = list(times.get((ours, test), {}).values())
            if not b or not a:
                continue
            if ours == "culimbo":
                a += times.get(("again", test), {}).values()
            middle = statistics.median(a)
            print(f"{test.split(':')[0]:<10} {size_of(test):>7} {hooks:<6} {middle:9.3f} {statistics.median(b):9.3f} "
                  f"{statistics.median(b) / middle:9.3f} {min(b) / min(a):9.3f} {(max(a) - min(a)) / middle * 100:8.1f}")

    print(f"\n{'all sizes of':<18} {'UCX':<6} {'ratio, geometric mean':>21} {'lies between (95 %)':>20} {'rounds':>7}")
    few, judged, unsure = None, 0, 0
    operations = sorted({test.split(":")[0] for test in tests})
    for operation in operations + ["all"]:
        of_it = [test for test in tests if operation in ("all", test.split(":")[0])]
        for hooks, ours, bare in PAIRS:
            found = [table for table in (logs_of(times, test, ours, bare) for test in of_it) if table]
            result = pooled(found) if found else None
            if len(found) < len(of_it):
                if ours == "culimbo":
                    print(f"{operation:<18} {hooks:<6} no result of {len(of_it) - len(found)} of {len(of_it)} sizes")
                    failed = True
                continue
            if not result:
                continue
            mean, low, high, rounds = result
            mark = ""
            if ours == "culimbo":
                mark = f"  <-- over {limit}" if low > limit else "  (not sure)" if high > limit else f"  within {limit}"
                failed = failed or low > limit or rounds < arguments.least
                judged += 1
                unsure += low <= limit < high
                if operation == "all" and rounds < arguments.least:
                    few = f"{rounds} complete rounds: {arguments.least} are needed to tell a difference from noise"
            print(f"{operation:<18} {hooks:<6} {mean:21.3f} {low:12.3f} to {high:.3f} {rounds:7}{mark}")
    if few:
        print(f"\n{few}")
    print(f"\n{unsure} of {judged} ratios not sure")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
