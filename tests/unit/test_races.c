/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads meet where one of them has given a lock up: in the driver, in /proc, at the process's end.
 *
 * One test passes control to another thread in the midst of a call, by meet(), and synchronises with it by nothing.  So
 * ThreadSanitizer reports what both use without a lock, though the two never run at once.  What goes wrong without it is
 * asserted, too.
 */
#include "tests/unit/limbo.h"

#include "shim/context_end.h"
#include "shim/descriptors/server.h"
#include "shim/life.h"

/* ------------------------------------------------------------------- the other thread */
static int called, came; /* relaxed atomics, which order nothing */
static void (*what)(void);

static bool is_set(int *flag)
{
	return __atomic_load_n(flag, __ATOMIC_RELAXED);
}
static void set(int *flag)
{
	__atomic_store_n(flag, 1, __ATOMIC_RELAXED);
}

static void *does_it(void *unused)
{
	CHECK(COMES_TRUE(is_set(&called), SOON));
	what();
	set(&came);
	return unused;
}
static pthread_t other_thread(void (*does)(void))
{
	pthread_t thread;

	what = does;
	CHECK(!pthread_create(&thread, NULL, does_it, NULL));
	return thread;
}
/* The other thread does what it is for, now. */
static void meet(void)
{
	set(&called);
	CHECK(COMES_TRUE(is_set(&came), SOON));
}
static bool meets; /* the next hook does */
static void meet_once(void)
{
	if (meets) {
		meets = false;
		meet();
	}
}

/* ---------------------------------------------------------------------- in a visit */
static CUresult exchange_and_meet(CUstreamCaptureMode *mode)
{
	meet_once();
	return fake_exchange(mode);
}

static void lose_a(void)
{
	cl_context_end_lost(&(struct cl_context_end){ .handle = CONTEXT_A, .last = UINT64_MAX });
}
static CUresult destroy_no_null(CUevent event)
{
	CHECK(event);
	return CUDA_SUCCESS;
}

/* A fence whose context is found to have ended while its event is destroyed. */
IN_A_CHILD(a_fence_loses_its_context_while_its_event_is_destroyed)
{
	pthread_t thread;
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_driver.cuThreadExchangeStreamCaptureMode = exchange_and_meet;
	cl_driver.cuEventDestroy_v2 = destroy_no_null;
	atomic_store(&fake.query_result, CUDA_ERROR_NOT_READY);
	p = fake_alloc(1024, CONTEXT_B);
	export_block(p);
	exported_block();
	CHECK_EQUAL(cl_memory_free_async(p, SOME_STREAM, false), CUDA_SUCCESS);
	CHECK(cl_collector_stop(&cl_exporter, SOON * MS));
	thread = other_thread(lose_a);
	/* B ends: the block goes, and its fence in A is detached */
	cl_context_end_lost(&(struct cl_context_end){ .handle = CONTEXT_B, .last = UINT64_MAX });
	CHECK(cl_fences_any_detached_locked(&cl_exporter));
	meets = true;
	cl_limbo_collect(&cl_exporter, false);
	CHECK(!meets && !pthread_join(thread, NULL));
}

/* ------------------------------------------------------------------------ holders that die */
static CUdeviceptr freed;
static void free_it(void)
{
	CHECK_EQUAL(cl_memory_free(freed), CUDA_SUCCESS);
}
static int outlived(const struct cl_identity *who)
{
	(void)who;
	meet_once();
	return 0;
}
static struct cl_lock_ops locks;
static int ask_and_meet(struct cl_region *region, off_t byte)
{
	meet_once();
	return cl_posix_locks.is_locked(region, byte);
}

IN_A_CHILD(a_block_is_freed_while_its_holders_death_is_noticed)
{
	struct other other = start_other(HOUR);
	pthread_t thread;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	freed = fake_alloc(1024, CONTEXT_A);
	others_open(&other, export_block(freed));
	thread = other_thread(free_it);
	kill(other.pid, SIGKILL);
	CHECK_EQUAL(waitpid(other.pid, NULL, 0), other.pid);
	cl_own.is_outlived = outlived;
	meets = true;
	CHECK(COMES_TRUE((cl_limbo_reap(&cl_exporter), !meets), SOON));
	CHECK(!pthread_join(thread, NULL));
}

/* As a program does that closes all that it does not know. */
static void lose_the_file(void)
{
	syscall(SYS_close, (int)cl_own.fd); /* ThreadSanitizer does not see it, and so takes it for no race */
	for (unsigned int i = 0; i < 2 * CL_CHUNK; i++)
		export_block(fake_alloc(1024, CONTEXT_A));
}
IN_A_CHILD(the_files_descriptor_is_restored_while_a_holder_is_asked_for)
{
	struct other other = start_other(HOUR);
	pthread_t thread;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	others_open(&other, export_block(fake_alloc(1024, CONTEXT_A)));
	thread = other_thread(lose_the_file);
	locks = cl_posix_locks;
	locks.is_locked = ask_and_meet;
	cl_own.locks = &locks;
	meets = true;
	cl_limbo_reap(&cl_exporter);
	CHECK(!meets && !pthread_join(thread, NULL));
}

/* ----------------------------------------------------------------------- the end */
/* The service is lost, and begun again, while the process ends. */
enum { ENDS = 40 };
static struct cl_server servers[ENDS];
static int serves(void *arg, const struct cl_request *request, struct cl_piece *piece, int *fds, uint32_t *total)
{
	return -ESTALE;
}
static int turn;
static void *ends_servers(void *unused)
{
	for (int i = 0; i < ENDS; i++) {
		CHECK(COMES_TRUE(__atomic_load_n(&turn, __ATOMIC_RELAXED) > i, SOON));
		cl_server_end(&servers[i], SOON * MS);
	}
	return unused;
}
IN_A_CHILD(a_service_ends_while_it_begins_again)
{
	char socket[160];
	pthread_t thread;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	exported_block();
	snprintf(socket, sizeof socket, "%s/serve-%06x", folder, cl_own.file_id);
	CHECK(!pthread_create(&thread, NULL, ends_servers, NULL));
	for (int i = 0; i < ENDS; i++) {
		servers[i] = (struct cl_server)CL_SERVER_INIT(&cl_own, serves, NULL);
		/* all have one name: the end of the one before may remove it while this one takes it */
		CHECK(COMES_TRUE(cl_server_need(&servers[i], 1) == 0, SOON));
		unlink(socket);
		__atomic_store_n(&turn, i + 1, __ATOMIC_RELAXED);
		(void)cl_server_need(&servers[i], 1);
	}
	CHECK(!pthread_join(thread, NULL));
}

/* The collector's thread starts while the process ends: it has ended before the driver's own exit handlers run. */
static _Atomic bool driver_is_down, in_create;
static _Atomic pid_t leaver;
static void *leaves(void *unused)
{
	atomic_store(&leaver, gettid());
	atomic_store(&cl_exporter.collector.empty, true);
	CHECK(cl_collector_stop(&cl_exporter, SOON * MS));
	atomic_store(&driver_is_down, true);
	return unused;
}
static pthread_t leaving;
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg)
{
	if (atomic_exchange(&in_create, false)) {
		CHECK(!__real_pthread_create(&leaving, NULL, leaves, NULL));
		CHECK(COMES_TRUE(driver_is_down || sleeps_in_a_futex(leaver), SOON));
	}
	return __real_pthread_create(thread, how, run, arg);
}
static CUresult free_while_up(CUdeviceptr p, CUstream stream)
{
	CHECK(p == CL_NO_MEMORY || !driver_is_down);
	return fake_free_async(p, stream);
}
IN_A_CHILD(a_collector_that_starts_at_the_end_is_waited_for)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_driver.cuMemFreeAsync = free_while_up;
	p = exported_block();
	atomic_store(&in_create, true);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK(!in_create && !pthread_join(leaving, NULL));
	CHECK_EQUAL(frees_of(p), 1);
	/* pthread_join() returns a moment before the kernel has taken the thread away */
	CHECK(COMES_TRUE(tasks() == TASKS(1), 1000));
}

/* Our file goes: a thread that gives a block back meanwhile must not take it for removed by somebody else. */
static unsigned int renames;
int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags)
{
	if (cl_self.ended) {
		CHECK(!cl_try_lock(&cl_exports_lock));
		renames++;
	}
	return __real_renameat2(from_dir, from, to_dir, to, flags);
}
IN_A_CHILD(nobody_sees_the_file_lost_while_the_process_ends)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	exported_block();
	cl_process_end(0);
	CHECK_EQUAL(renames, 1);
	CHECK(cl_self.file_ended);
}

/* A signal handler ends the process in the thread that holds the lock: that is waited for once, not at each use. */
static unsigned int waits;
int __real_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until)
{
	struct timespec now = cl_after(0);

	waits += mutex == &cl_exports_lock.mutex &&
		 (until->tv_sec - now.tv_sec) * 1000 + (until->tv_nsec - now.tv_nsec) / 1000000 > 20;
	return __real_pthread_mutex_clocklock(mutex, clock, until);
}
IN_A_CHILD(the_end_waits_once_for_a_lock_that_its_own_thread_has)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	exported_block();
	cl_lock(&cl_exports_lock);
	cl_process_end(0);
	CHECK_EQUAL(waits, 1);
	cl_unlock(&cl_exports_lock);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fence_loses_its_context_while_its_event_is_destroyed),
		cmocka_unit_test(a_block_is_freed_while_its_holders_death_is_noticed),
		cmocka_unit_test(the_files_descriptor_is_restored_while_a_holder_is_asked_for),
		cmocka_unit_test(a_service_ends_while_it_begins_again),
		cmocka_unit_test(a_collector_that_starts_at_the_end_is_waited_for),
		cmocka_unit_test(nobody_sees_the_file_lost_while_the_process_ends),
		cmocka_unit_test(the_end_waits_once_for_a_lock_that_its_own_thread_has),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
