/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of the threads program (threads.c): checks, the exporter beside a
 * test, threads that call hooks, and the list of tests.
 */
#ifndef CL_TEST_THREADS_COMMON_H
#define CL_TEST_THREADS_COMMON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/e2e/cuda_door.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum {
	SMALL = 1024,
	BIG = 4 << 20,
	TEST_SECONDS = 30, /* for one test; each takes a second or less */
	CHILD_SECONDS = 8, /* for a child that must not hang; it takes milliseconds */
	GIFTS = 4,	   /* blocks of the exporter */
};

#define CHECK(what)                                                                          \
	do {                                                                                 \
		if (!(what)) {                                                               \
			unless_it_ends();                                                    \
			dprintf(2, "# %s:%d: failed: %s\n", __FILE__, __LINE__, #what);      \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)
#define MUST(call)                                                                           \
	do {                                                                                 \
		int result_ = (int)(call);                                                   \
		if (result_) {                                                               \
			unless_it_ends();                                                    \
			dprintf(2, "# %s:%d: %s says %d\n", __FILE__, __LINE__, #call,       \
				result_);                                                    \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)

struct gifts {
	CUipcMemHandle memory[GIFTS];
	CUipcEventHandle event;
};

/* threads.c */
extern char *self_path;
extern CUcontext primary;
extern bool bare;
extern atomic_bool ending; /* somebody ends the process: calls may well fail now */
void unless_it_ends(void);
void begin(void);
uint64_t now_ms(void);
extern struct gifts gifts;
bool exporter_gets_all_back(void);

/* threads_work.c */
extern atomic_ulong rounds;
void share_and_free(void);
void open_and_close(void);
void look_up(void);
enum { FAMILIES = 9 };
extern void (*const families[FAMILIES])(void);
void *work(void *family);
extern pthread_t workers[2 * FAMILIES];
extern unsigned int workers_n;
void start_workers(void);
void stop_workers(void);
void must_end(pid_t child, int status);

/* threads_forks.c */
void fork_and_leave(void);
void fork_and_exit(void);
void fork_and_exec(void);
void fork_and_call(void);
void fork_amid_malloc(void);
void vfork_and_exec(void);
void spawn(void);
void signal_and_leave(void);
void signal_and_fork(void);

/* threads_ends.c */
void leave_main_thread(void);
void exit_among_others(void);
void keep_some(void);
void free_in_atexit(void);
void free_in_thread_destructor(void);
void close_driver(void);
void constructor_and_destructor(void);

/* threads_calls.c */
void sixteen_threads(void);
void one_handle(void);
void primary_ends(void);
void on_a_small_stack(void);
void free_in_anothers_stream(void);
void free_in_a_stream_that_ends(void);

#endif
