#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much memory our part of a share cycle's calls touches: lines of the processor's cache (64 bytes), and pages (4 KiB).

    footprint.py [--instead LIBCULIMBO] [--where] BUILD_DIR [SIZE...]

A driver's own work empties the caches between our calls, so these numbers say more about what a call takes beside a GPU
than its instructions.  An exporter and a consumer (share_cycle.c) play a few cycles with blocks of SIZE bytes (64 MiB and
1 KiB) on the simulated driver, each in turn under valgrind's lackey, which prints each access.  What our code touches
counts, and what the C library touches for it; what the driver and the program touch does not.  Each number is the median of the
cycles but the first ten.  --where also names what lies in each page, and by which function it was touched first, in the last
cycle but two.
"""
import argparse
import bisect
import collections
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

CALLS = {'cl_stub_' + name: name
         for name in ('cuMemAlloc_v2', 'cuIpcGetMemHandle', 'cuMemFree_v2', 'cuIpcOpenMemHandle_v2', 'cuIpcCloseMemHandle')}
CYCLES, FIRST = 24, 10
LINE, PAGE = 6, 12 # bits
MOST = 1 << 30 # bytes of a block: the simulated device has 4 GiB


class Failed(Exception):
    """What is to be said to whoever has called this."""


def played(build, library, role, size, scratch):
    """Plays the cycles with `role` under lackey.  Returns its accesses, as a file, and its mappings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith('CULIMBO_')}
    env.update(LD_LIBRARY_PATH=f'{build}/tools/sim/.libs', LD_PRELOAD=library, CULIMBO_DIR=f'{scratch}/dir',
               CULIMBO_SIM_DIR=f'{scratch}/sim', CULIMBO_SIM_MEMORY='4GiB')
    for name in ('dir', 'sim'):
        shutil.rmtree(f'{scratch}/{name}', ignore_errors=True)
        os.mkdir(f'{scratch}/{name}', 0o700)
    log = f'{scratch}/accesses'
    ends = socket.socketpair()

    def start(which, end, *args):
        command = [f'{build}/tests/bench/share_cycle', which, *args]
        if which == role:
            command = ['valgrind', '--tool=lackey', '--trace-mem=yes', f'--log-file={log}', *command]
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[end.fileno()])
        processes.append(process)
        if process.stdout.readline() != b'ready\n':
            raise Failed(f'{which} does not begin')
        return process

    processes = []
    try:
        play(start, ends, size, role, maps := [])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return log, sorted((int(m[0].split('-')[0], 16), int(m[0].split('-')[1], 16), m[5].strip() if len(m) > 5 else '') for m in maps)


def play(start, ends, size, role, maps):
    """Plays the cycles to their end; `maps` gets the lines of /proc/PID/maps of the process in `role`."""
    consumer = start('consumer', ends[1], f'link={ends[1].fileno()}')
    exporter = start('exporter', ends[0], f'links={ends[0].fileno()}', f'size={size}', 'seconds=0.001', f'cycles={CYCLES}', 'ends=1')
    for end in ends:
        end.close()
    with open(f'/proc/{(exporter if role == "exporter" else consumer).pid}/maps', encoding='utf-8') as file:
        maps.extend(line.split(maxsplit=5) for line in file)
    exporter.stdin.write(b'go\n')
    exporter.stdin.flush()
    if not exporter.stdout.readline():
        raise Failed(f'no cycle was played with blocks of {size} bytes')
    for process in (exporter, consumer):
        process.stdin.close()
        process.wait(100)


class Places:
    """Tells what an address belongs to."""

    def __init__(self, maps, library):
        self.maps, self.ours = maps, library
        self.base = min(m[0] for m in maps if m[2] == library)
        names = subprocess.run(['nm', '-S', '--defined-only', library], capture_output=True, text=True, check=True).stdout
        self.symbols = sorted((int(f[0], 16), int(f[1], 16), f[3]) for f in map(str.split, names.splitlines()) if len(f) == 4)
        self.calls = {self.base + at: CALLS[name] for at, _, name in self.symbols if name in CALLS}
        self.owners = {}

    def file(self, address):
        i = bisect.bisect_right(self.maps, (address, 1 << 64)) - 1
        return self.maps[i][2] if i >= 0 and address < self.maps[i][1] else None

    def owner(self, address):
        """Whose code it is: 'us', 'them' or None, a library's that works for whoever has called it."""
        page = address >> PAGE
        if page not in self.owners:
            file = self.file(address) or ''
            them = 'libcuda' in file or 'share_cycle' in file
            self.owners[page] = 'us' if file == self.ours else 'them' if them else None
        return self.owners[page]

    def name(self, address):
        i = bisect.bisect_right(self.symbols, (address - self.base, 1 << 64)) - 1
        if 0 <= i and address - self.base < self.symbols[i][0] + self.symbols[i][1]:
            return self.symbols[i][2]
        return os.path.basename(self.file(address) or '') or 'other memory'


class Call:
    def __init__(self, name):
        self.name, self.instructions, self.code, self.data = name, 0, {}, {}

    def touch(self, lines, address, size, by):
        for line in range(address >> LINE, (address + size - 1 >> LINE) + 1):
            lines.setdefault(line, by)


def calls_of(log, places):
    owner, call, at = 'them', None, 0
    with open(log, encoding='utf-8') as file:
        for line in file:
            kind = line[:2]
            if kind not in ('I ', ' L', ' S', ' M'):
                continue
            address, size = line[2:].split(',')
            address, size = int(address, 16), int(size)
            if kind == 'I ':
                owner, at = places.owner(address) or owner, address
                if address in places.calls:
                    if call:
                        yield call
                    call = Call(places.calls[address])
            if owner == 'us' and call:
                call.instructions += kind == 'I '
                call.touch(call.code if kind == 'I ' else call.data, address, size, at)
    if call:
        yield call


def where(call, places):
    for what, lines in (('code', call.code), ('data', call.data)):
        pages = collections.defaultdict(list)
        for line, by in lines.items():
            pages[line >> PAGE - LINE].append(f'{places.name(line << LINE)} ({places.name(by)})' if what == 'data' else places.name(by))
        for page, names in sorted(pages.items()):
            print(f'    {what} {page << PAGE:#x}: {len(names)} lines: {", ".join(dict.fromkeys(names))}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--instead', metavar='LIBCULIMBO', help='another build of it')
    parser.add_argument('--where', action='store_true')
    parser.add_argument('build', metavar='BUILD_DIR')
    parser.add_argument('sizes', metavar='SIZE', type=int, nargs='*', default=[64 << 20, 1 << 10], help='of a block, bytes')
    args = parser.parse_args()
    build = os.path.realpath(args.build)
    library = os.path.realpath(args.instead or f'{build}/.libs/libculimbo.so')
    if not shutil.which('valgrind'):
        parser.error('valgrind is not installed, and it is what counts')
    for file in (library, f'{build}/tests/bench/share_cycle', f'{build}/tools/sim/.libs/libcuda.so.1'):
        if not os.path.isfile(file):
            parser.error(f'there is no {file}: a finished build tree with its check programs is needed')
    if ' ' in library or ':' in library:
        parser.error(f'LD_PRELOAD takes no path with a space or a colon: {library}')
    for size in args.sizes:
        if not 8 <= size <= MOST:
            parser.error(f'SIZE {size}: 8 to {MOST} bytes are allowed')
    try:
        measure(build, library, args.sizes, args.where)
    except Failed as failed:
        sys.exit(f'footprint.py: {failed}')


def measure(build, library, sizes, with_places):
    print(f'{"size":>10}  {"call":22}{"instructions":>13}{"lines of code":>15}{"pages":>7}{"lines of data":>15}{"pages":>7}')
    with tempfile.TemporaryDirectory(prefix='culimbo-footprint.', dir='/dev/shm' if os.path.isdir('/dev/shm') else None) as scratch:
        for size in sizes:
            for role in ('exporter', 'consumer'):
                log, maps = played(build, library, role, size, scratch)
                places = Places(maps, library)
                calls = collections.defaultdict(list)
                for call in calls_of(log, places):
                    calls[call.name].append(call)
                for name, each in calls.items():
                    each = each[FIRST:]
                    middle = [statistics.median_low(f(c) for c in each) for f in (
                        lambda c: c.instructions, lambda c: len(c.code), lambda c: len({line >> PAGE - LINE for line in c.code}),
                        lambda c: len(c.data), lambda c: len({line >> PAGE - LINE for line in c.data}))]
                    print(f'{size:>10}  {name:22}{middle[0]:>13}{middle[1]:>15}{middle[2]:>7}{middle[3]:>15}{middle[4]:>7}')
                    if with_places:
                        where(each[-3], places)


if __name__ == '__main__':
    main()
