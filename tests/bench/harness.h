/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of tests/bench measure with.
 *
 * An operation is a function that does one call (or pair of calls).  Timed, it
 * is run many times in a row, in rounds: a line "NAME ns VALUE" each round.
 * Counted, it is run between two breakpoints while the parent process
 * single-steps it: a line
 *
 *   NAME count ours=A+B driver=C+D syscalls=E:F ( NUMBERS )
 *
 * each try: A instructions of ours, B of libc on our behalf, C and D the
 * driver's, E system calls of ours, which are NUMBERS, and F the driver's.  Such a
 * count needs no counter of the processor and no emulator, is the same each
 * time, and sees each system call.
 *
 * "ours" is code of libculimbo.so, or of this program where shim/ is linked into
 * it; the driver's is libcuda's, or what carries NULL_DRIVER.
 */
#ifndef CL_BENCH_HARNESS_H
#define CL_BENCH_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Stands for the driver: its instructions are not ours. */
#define NULL_DRIVER __attribute__((section("null_driver"), noinline))

#define DIE(...)                                                                  \
	do {                                                                      \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                   \
		fprintf(stderr, __VA_ARGS__);                                     \
		fputc('\n', stderr);                                              \
		_exit(1);                                                         \
	} while (0)
#define MUST(what)                                                                \
	do {                                                                      \
		if (!(what))                                                      \
			DIE("failed: %s", #what);                                 \
	} while (0)

uint64_t bench_now(void); /* CLOCK_MONOTONIC, ns */

/* How many rounds are timed, of how many operations each (at most what measure() is told). */
extern unsigned int bench_rounds;
extern bool bench_counting;

/*
 * Runs @op.  Timed: bench_rounds rounds of @times; counted: 3 times alone, after
 * 3 that warm up.  @op gets the number of the run, from 0, so @times * rounds
 * (or 6) of whatever it uses up must be there.
 */
void measure(const char *name, void (*op)(uint64_t), unsigned int times);
/* How many runs measure() makes of what it is told to time @times. */
uint64_t measure_runs(unsigned int times);

void say_ns(const char *name, double ns);
void say_value(const char *name, double value, const char *unit);

/*
 * Runs @body, in a child that is stepped if --count was given.  @ours is what the
 * path of our code's file contains.  Returns an exit status.
 */
int bench_run(int (*body)(int argc, char **argv), int argc, char **argv, const char *ours);

/* Runs @argv and counts its system calls, of all threads: a line for each number. */
int bench_syscalls(char **argv);

#endif
