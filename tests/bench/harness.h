/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs of tests/bench measure with this.
 *
 * An operation is a function that makes one call or a pair of calls.  To time it, we run
 * it many times in a row, in rounds.  Each round prints "NAME ns VALUE".  To count its
 * instructions, we run it between two breakpoints while the parent process single-steps
 * it.  Each try prints
 *
 *   NAME count ours=A+B driver=C+D syscalls=E:F ( NUMBERS )
 *
 * A instructions are ours, and B are libc's in calls that we made; C and D are the same for
 * the driver.  We made E system calls, with these NUMBERS, and the driver made F.  Such a
 * count needs no performance counter and no emulator.  It is the same each time, and it
 * includes every system call.
 *
 * "Ours" is code of libculimbo.so, or of this program if shim/ is linked into it.  The
 * driver's is code of libcuda, or of a function marked NULL_DRIVER.
 */
#ifndef CL_BENCH_HARNESS_H
#define CL_BENCH_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Marks a function that stands for the driver: its instructions are not ours. */
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

/* How many rounds are timed. */
extern unsigned int bench_rounds;
extern bool bench_counting;

/*
 * Runs @op: to time it, bench_rounds rounds of @times; to count it, 3 times after 3
 * to warm up.  @op gets the number of the run, from 0.  If @op uses something up, the
 * caller must provide @times * rounds of it, or 6.
 */
void measure(const char *name, void (*op)(uint64_t), unsigned int times);
/* As measure(), and runs @op once before each run that is counted: a step takes so long that a time limit may pass. */
void measure_at_once(const char *name, void (*op)(uint64_t), unsigned int times);
/* Returns how often measure() runs an operation that is timed @times; measure_at_once() twice as often at most. */
uint64_t measure_runs(unsigned int times);

void say_ns(const char *name, double ns);
void say_value(const char *name, double value, const char *unit);

/*
 * Runs @body; with --count in a child that this process single-steps.  A file whose path
 * contains @ours holds our code.  Returns an exit status.
 */
int bench_run(int (*body)(int argc, char **argv), int argc, char **argv, const char *ours);

/* Runs @argv and counts the system calls of all its threads; prints a line for each number. */
int bench_syscalls(char **argv);

#endif
