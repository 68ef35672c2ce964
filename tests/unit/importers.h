/* SPDX-License-Identifier: Apache-2.0 */
/* Importers that are real processes, for the tests of who is alive: the kernel must decide there (locks, /proc, kills). */
#ifndef TEST_IMPORTERS_H
#define TEST_IMPORTERS_H

#include "tests/unit/region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shim/shm/liveness.h"
#include "shim/shm/slot.h"

/* Claims a slot in @file_id and holds its first @holds records; never returns. */
struct importer {
	pid_t pid;
	int said; /* a pipe from it: its slot */
};

static struct cl_region importer_region;
static inline void import_or_die(uint32_t file_id, uint32_t holds, int tell)
{
	struct cl_identity self;
	int slot;

	child_begins();
	CHECK_EQUAL(cl_region_open(&importer_region, folder_fd, file_id, NULL), 0);
	cl_identity_self(&self);
	slot = cl_holder_claim(&importer_region, &self, cl_now(), 50 * MS);
	CHECK(slot >= 0);
	for (uint32_t i = 0; i < holds; i++)
		CHECK_EQUAL(hold(&importer_region, (unsigned int)slot, i, 0, 1), 0);
	CHECK(write(tell, &slot, sizeof slot) == sizeof slot);
}
static inline void *sit(void *unused)
{
	for (;;)
		pause();
	return unused;
}
static inline void then_wait(void)
{
	sit(NULL);
}
static inline void then_close_all(void)
{
	close_range(0, ~0u, 0);
	then_wait();
}
static inline void then_exec(void)
{
	int ends[2];

	if (pipe(ends) || dup2(ends[0], 0) < 0)
		_exit(1);
	/* it keeps the writing end of its own stdin, so it waits until it is killed */
	execlp("cat", "cat", (char *)NULL);
	_exit(127);
}
static inline void then_leader_ends(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, sit, NULL));
	pthread_exit(NULL);
}
/* Each thread starts the next one and ends. */
static inline void *hand_on(void *unused)
{
	pthread_t thread;

	pthread_detach(pthread_self());
	CHECK(!pthread_create(&thread, NULL, hand_on, NULL));
	return unused;
}
static inline void then_threads_take_turns(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, hand_on, NULL));
	pthread_exit(NULL);
}
static inline void then_new_namespace(void)
{
	then_wait();
}

static pid_t *inner_pid; /* shared with children */

static inline struct importer start_importer(uint32_t file_id, uint32_t holds, void (*then)(void))
{
	struct importer importer;
	int ends[2], slot = -1;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	importer.pid = fork();
	assert_true(importer.pid >= 0);
	if (!importer.pid) {
		pid_t inner = 0;

		if (then == then_new_namespace) {
			if (unshare(CLONE_NEWPID) || (inner = fork()) < 0) {
				slot = -2;
				CHECK(write(ends[1], &slot, sizeof slot) == sizeof slot);
				_exit(0);
			}
			if (inner) {
				*inner_pid = inner;
				waitpid(inner, NULL, 0);
				_exit(0);
			}
			close(ends[0]);
		}
		import_or_die(file_id, holds, ends[1]);
		then();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &slot, sizeof slot), sizeof slot);
	close(ends[0]);
	importer.said = slot;
	return importer;
}
static inline void end_importer(struct importer *importer)
{
	kill(importer->pid, SIGKILL);
	kill(importer->pid, SIGCONT);
	waitpid(importer->pid, NULL, 0);
}

enum { HELD = 100 };

static inline struct cl_region make_region_with(uint32_t exported)
{
	struct cl_region r = make_region();

	for (uint32_t i = 0; i < exported; i++)
		publish(&r, i, 1);
	memset(watch, 0, sizeof watch);
	return r;
}
static inline struct cl_reaped look(struct cl_region *r, uint64_t settle)
{
	return cl_holder_reap(r, watch, cl_now(), settle, NULL, NULL);
}

/* Checks for longer than the settle time, at least 20 times, that nothing is reaped. */
static inline void assert_lives(struct cl_region *r)
{
	uint64_t until = test_now() + 150 * MS;
	int looks = 0;

	while (test_now() < until || looks < 20) {
		struct cl_reaped sum = look(r, 50 * MS);

		assert_int_equal(sum.slots, 0);
		assert_int_equal(sum.alive, 1);
		looks++;
		test_moment();
	}
	assert_int_equal(cl_record_holders(r, HELD - 1, NULL, 0), 1);
}

static inline int make_importers_folder(void **state)
{
	inner_pid = mmap(NULL, CL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return inner_pid == MAP_FAILED ? -1 : make_folder(state);
}

#endif
