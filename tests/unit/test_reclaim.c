/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclaim: what culimbo does when an allocation fails, and for how long.
 *
 * No allocation fails for memory that a limbo of the same device has.  No thread waits when that cannot
 * help.  No grace period ends needlessly.  The driver is fake; other exporters are separate
 * processes.  The end-to-end tests show the program's view, tests/torture/pressure_storm the
 * behaviour under load.
 */
#include "tests/unit/fake_driver.h"

#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "shim/importer/peers.h"
#include "shim/reclaim/callbacks.h"

enum { SOON = 20000 }; /* ms; what happens at once has happened by then, even on a slow machine */

/* ------------------------------------------------------------------- other exporters */
struct exporter {
	pid_t pid;
	int line;
};
enum order {
	FILLS, /* exports and frees one block */
	GIVES, /* releases blocks that no process holds: how many */
	FREED, /* how many blocks the driver got back */
	CALLS, /* makes some other call */
	NAMES, /* its file's number */
};

static void obey(enum order order, uint64_t *answer)
{
	if (order == FILLS)
		CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
	else if (order == GIVES)
		*answer = cl_limbo_collect(&cl_exporter, true).blocks;
	else if (order == FREED)
		*answer = atomic_load(&fake.free_calls);
	else if (order == NAMES)
		*answer = cl_own.file_id;
	else
		cl_memory_allocates();
}

/* Its device 0 has the UUID number @uuid. */
static struct exporter start_exporter(uint64_t collector, int uuid)
{
	struct exporter exporter;

	exporter.pid = fork_with_line(&exporter.line);
	if (!exporter.pid) {
		enum order order;

		start_with(HOUR, collector);
		fake.first_uuid = uuid;
		while (read(exporter.line, &order, sizeof order) == sizeof order) {
			uint64_t answer = 0;

			obey(order, &answer);
			CHECK(write(exporter.line, &answer, sizeof answer) == sizeof answer);
		}
		_exit(0);
	}
	return exporter;
}

static uint64_t ask(const struct exporter *exporter, enum order order)
{
	uint64_t answer;

	CHECK(write(exporter->line, &order, sizeof order) == sizeof order);
	CHECK(read(exporter->line, &answer, sizeof answer) == sizeof answer);
	return answer;
}

static struct exporter start_full(uint64_t collector)
{
	struct exporter exporter = start_exporter(collector, 0);

	ask(&exporter, FILLS);
	return exporter;
}

static void stop(const struct exporter *exporter)
{
	int status;

	kill(exporter->pid, SIGSTOP);
	CHECK(waitpid(exporter->pid, &status, WUNTRACED) == exporter->pid && WIFSTOPPED(status));
}

/* ------------------------------------------------------------------ one that fails */
/* A call fails.  Returns whether to retry it, and after a second failure whether to retry again. */
static struct cl_retry failing;
static bool fails(struct cl_need what)
{
	cl_retry_end(&failing);
	cl_retry_begin(&failing, CL_RETRY_MEMORY, what);
	return cl_retry_again(&failing);
}
static bool fails_again(void)
{
	return cl_retry_again(&failing);
}
#define FAILS() fails((struct cl_need){ .bytes = 4096, .device = CL_OF_CURRENT })

/* The call fails every time; returns how long the program waits, in ns. */
static uint64_t fails_for_good(void)
{
	uint64_t began = cl_now();

	if (FAILS())
		while (fails_again())
			;
	return cl_now() - began;
}

/* ----------------------------------------------------------------- what came free */
/*
 * They release memory by themselves, or for a third process: then this process has nothing to ask them for,
 * but there is memory all the same; and their limbos are as full as before.
 */
IN_A_CHILD(what_others_gave_back_by_themselves_is_heard_of)
{
	struct exporter other = start_full(CL_COLLECTOR_THREAD);

	start_with(HOUR, CL_COLLECTOR_THREAD);
	/* between the first call and the retry decision */
	CHECK_EQUAL(ask(&other, GIVES), 1);
	CHECK(FAILS());
	CHECK(!fails_again());
	/* and between the second call and the next decision */
	CHECK(FAILS());
	ask(&other, FILLS);
	ask(&other, GIVES);
	CHECK(fails_again());
	CHECK(!fails_again());
}

IN_A_CHILD(where_nobody_shares_the_answer_comes_at_once)
{
	start_with(HOUR, CL_COLLECTOR_THREAD);
	CHECK(!FAILS());
	CHECK_EQUAL(count_entries(folder), 0);
	/* nor where others share, but have nothing to release */
	start_exporter(CL_COLLECTOR_THREAD, 0);
	CHECK(!FAILS());
}

IN_A_CHILD(where_nothing_is_left_nobody_waits)
{
	struct exporter other = start_full(CL_COLLECTOR_THREAD);

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.pressure_wait.number = 2 * SOON * MS;
	CHECK(fails_for_good() < SOON * MS);
	CHECK_EQUAL(ask(&other, FREED), 1);
}

/* Without a collector thread an exporter answers in its next call. */
IN_A_CHILD(who_has_no_thread_gives_in_its_next_call)
{
	struct exporter other = start_full(CL_COLLECTOR_INLINE);
	const enum order order = CALLS;
	uint64_t answer;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.pressure_wait.number = 0;
	CHECK(FAILS()); /* one retry in any case */
	CHECK(write(other.line, &order, sizeof order) == sizeof order);
	CHECK(read(other.line, &answer, sizeof answer) == sizeof answer);
	CHECK_EQUAL(ask(&other, FREED), 1);
	CHECK(fails_again());
}

/* Released memory is for the process that needs it: for a moment nothing enters the limbo. */
IN_A_CHILD(what_is_freed_while_others_need_it_goes_at_once)
{
	struct exporter other = start_full(CL_COLLECTOR_THREAD);
	bool at_once = false;
	uint64_t freed;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	/* the moment is short, and may pass unseen on a busy machine */
	for (int i = 0; i < 100 && !at_once; i++) {
		FAILS();
		freed = ask(&other, FREED);
		ask(&other, FILLS);
		at_once = ask(&other, FREED) > freed;
	}
	CHECK(at_once);
}

static int tell_frees_on;
static CUresult free_and_tell(CUdeviceptr p, CUstream stream)
{
	CHECK(write(tell_frees_on, "f", 1) == 1);
	return fake_free_async(p, stream);
}

/* ----------------------------------------------------- exporters that do not answer */
/* Stopped, or in the driver: they keep their memory, and cost one wait for all together. */
IN_A_CHILD(many_that_are_stopped_cost_one_wait)
{
	enum { STOPPED = 20 };
	struct exporter other[STOPPED];
	const uint64_t wait = 1000 * MS; /* a call that waits for none of them takes far less, on a busy machine, too */
	uint64_t took;
	pid_t beside;
	int line;

	for (int i = 0; i < STOPPED; i++) {
		other[i] = start_full(CL_COLLECTOR_THREAD);
		stop(&other[i]);
	}
	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.pressure_wait.number = wait;
	took = fails_for_good();
	CHECK(took >= wait && took < 2 * wait);
	CHECK(fails_for_good() < wait / 2);
	/* also of a process that has not met them */
	beside = fork_with_line(&line);
	if (!beside) {
		CHECK(fails_for_good() < wait / 2);
		_exit(0);
	}
	child_judge(beside);
	/* until they continue */
	for (int i = 0; i < STOPPED; i++)
		kill(other[i].pid, SIGCONT);
	for (int i = 0; i < STOPPED; i++) {
		CHECK(COMES_TRUE(ask(&other[i], FREED) == 1, SOON));
		ask(&other[i], FILLS);
	}
	cl_options.pressure_wait.number = SOON * MS;
	CHECK(FAILS());
	for (int i = 0; i < STOPPED; i++)
		CHECK(COMES_TRUE(ask(&other[i], FREED) == 2, SOON));
}

IN_A_CHILD(who_is_killed_while_it_is_waited_for_gives_all)
{
	struct exporter other = start_full(CL_COLLECTOR_THREAD);

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.pressure_wait.number = 50 * MS;
	/* its file stays for a report, and is no reason to retry forever */
	cl_options.keep_dead.number = HOUR;
	stop(&other);
	CHECK(FAILS());
	kill(other.pid, SIGKILL);
	cl_options.pressure_wait.number = SOON * MS;
	failing.deadline = cl_now() + SOON * MS;
	CHECK(fails_again());
	CHECK_EQUAL(waitpid(other.pid, &(int){ 0 }, 0), other.pid);
	CHECK(!FAILS());
}

/*
 * At exit, while the driver can be called, blocks in their grace period are released.  The end of the process
 * would release them only after removing the file by which others see that memory is coming.
 */
IN_A_CHILD(who_ends_gives_back_first)
{
	int line;
	pid_t child = fork_with_line(&line);
	char byte;

	if (!child) {
		start_with(HOUR, CL_COLLECTOR_THREAD);
		exported_block();
		CHECK_EQUAL(cl_memory_free(exported_block()), CUDA_SUCCESS);
		tell_frees_on = line;
		cl_driver.cuMemFreeAsync = free_and_tell;
		exit(0);
	}
	CHECK(read(line, &byte, 1) == 1); /* and not the end of the line */
	CHECK(waitpid(child, &(int){ 0 }, 0) == child);
}

/* As many as there are, a few at a time. */
IN_A_CHILD(however_many_there_are_all_are_asked)
{
	enum { MANY = 300 };
	static struct exporter other[MANY];

	for (int i = 0; i < MANY; i++)
		other[i] = start_full(CL_COLLECTOR_THREAD);
	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_options.pressure_wait.number = SOON * MS;
	CHECK(FAILS());
	for (int i = 0; i < MANY; i++)
		CHECK(COMES_TRUE(ask(&other[i], FREED) == 1, SOON));
}

/* Runs when shim/ next sleeps (the linker redirects its calls here). */
static void (*when_it_waits)(void);
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
/* It passes on six arguments, as the C library's does; callers have fewer, so AddressSanitizer must not check it. */
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...)
{
	void (*what)(void) = when_it_waits;
	va_list list;
	long a[6];

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && what) {
		when_it_waits = NULL;
		what();
	}
	return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static struct cl_peer *asked;
static void close_what_is_held(void)
{
	cl_lock(&cl_imports_lock);
	CHECK_EQUAL(asked->holds, 2);
	cl_peer_put(asked);
	cl_unlock(&cl_imports_lock);
}

/* Else its file stays mapped, and its slot taken, to the end. */
IN_A_CHILD(who_is_asked_while_the_last_of_it_is_closed_is_one_that_nothing_is_held_of)
{
	struct exporter other = start_full(CL_COLLECTOR_THREAD), third = start_full(CL_COLLECTOR_THREAD);
	uint32_t name = (uint32_t)ask(&other, NAMES);
	bool lost;
	int err;

	ask(&third, GIVES);
	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	cl_lock(&cl_imports_lock);
	asked = cl_peer_get(name, &err);
	CHECK(asked);
	CHECK_EQUAL(cl_peer_keep_slot(asked, &lost), 0);
	asked->holds = 1;
	CHECK(cl_peer_get((uint32_t)ask(&third, NAMES), &err)); /* a held peer leaves the list */
	CHECK(!asked->listed);
	cl_unlock(&cl_imports_lock);
	stop(&other);
	when_it_waits = close_what_is_held;
	cl_options.pressure_wait.number = 50 * MS;
	FAILS();
	kill(other.pid, SIGCONT);
	CHECK(!when_it_waits);
	cl_lock(&cl_imports_lock);
	CHECK(cl_peer_find(name) == asked);
	CHECK_EQUAL(asked->holds, 0);
	CHECK(asked->listed);
	cl_unlock(&cl_imports_lock);
}

/* ------------------------------------------------------- which device, and how much */
IN_A_CHILD(only_what_is_of_the_device_goes)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	p = exported_block(); /* of device 0 */
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	fake.device = 1;
	CHECK(!FAILS());
	CHECK_EQUAL(frees_of(p), 0);
	CHECK(!fails((struct cl_need){ .bytes = 4096, .device = 1 }));
	CHECK(!fails((struct cl_need){ .bytes = 4096, .device = CL_OF_NONE }));
	CHECK_EQUAL(frees_of(p), 0);
	CHECK(fails((struct cl_need){ .bytes = 4096, .device = 0 }));
	CHECK_EQUAL(frees_of(p), 1);
	/* of which device a pool is, is not known */
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK(fails((struct cl_need){ .bytes = 4096, .device = CL_OF_ANY }));
	CHECK_EQUAL(frees_of(p), 1);
}

/* The call is made again until @other has freed @n blocks: on a slow machine that answers after the first attempt. */
static void fails_until_freed(struct cl_need what, const struct exporter *other, uint64_t n)
{
	CHECK(fails(what));
	while (ask(other, FREED) < n)
		CHECK(fails_again());
	CHECK_EQUAL(ask(other, FREED), n);
}

/* A device need not have the same number in two processes. */
IN_A_CHILD(others_are_asked_for_what_is_of_the_device)
{
	struct exporter other = start_exporter(CL_COLLECTOR_THREAD, 1);

	start_with(HOUR, CL_COLLECTOR_THREAD);
	ask(&other, FILLS);
	CHECK(!FAILS());
	CHECK_EQUAL(ask(&other, FREED), 0);
	fake.device = 1;
	cl_options.pressure_wait.number = SOON * MS;
	fails_until_freed((struct cl_need){ .bytes = 4096, .device = CL_OF_CURRENT }, &other, 1);
	ask(&other, FILLS);
	ask(&other, FILLS);
	fails_until_freed((struct cl_need){ .bytes = 4096, .device = CL_OF_ANY }, &other, 3);
}

/* An exporter whose driver does not say which device it is may have it of any. */
IN_A_CHILD(what_is_of_a_device_without_a_name_goes_for_any)
{
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	cl_driver.cuDeviceGetUuid_v2 = NULL;
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	cl_driver.cuDeviceGetUuid_v2 = fake_uuid;
	fake.device = 1;
	CHECK(FAILS());
	CHECK_EQUAL(frees_of(p), 1);
}

static unsigned int callbacks_asked;
static size_t a_callback(size_t bytes, void *data)
{
	callbacks_asked++;
	return 0;
}

/* More than all limbos together have: bare it would fail as well. */
IN_A_CHILD(no_grace_ends_for_more_than_there_is)
{
	struct exporter other = start_full(CL_COLLECTOR_THREAD);
	const size_t limbos = 2 * 2 * MIB, much = 1ull << 30;
	CUdeviceptr p;

	start_with(HOUR, CL_COLLECTOR_THREAD);
	CHECK_EQUAL(cl_callbacks_register(a_callback, NULL), 0);
	p = exported_block();
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	fake.memory_free = much;
#define FAILS_OF(size)                                                                 \
	fails((struct cl_need){ .bytes = (size), .at_least = (size), .device = CL_OF_CURRENT })
	CHECK(!FAILS_OF(1ull << 60));
	CHECK(!FAILS_OF(much + limbos + 100 * MIB));
	CHECK_EQUAL(frees_of(p) + ask(&other, FREED), 0);
	/* the program's callbacks may have it */
	CHECK_EQUAL(callbacks_asked, 2);
	CHECK(FAILS_OF(much + limbos));
	CHECK_EQUAL(frees_of(p), 1);
	CHECK(fails_again());
	CHECK_EQUAL(ask(&other, FREED), 1);
	/* how much the driver has is asked only where somebody shares, see where_nobody_shares... */
	CHECK(atomic_load(&fake.memory_asked) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_A_FOLDER(what_others_gave_back_by_themselves_is_heard_of),
		IN_A_FOLDER(where_nobody_shares_the_answer_comes_at_once),
		IN_A_FOLDER(where_nothing_is_left_nobody_waits),
		IN_A_FOLDER(who_has_no_thread_gives_in_its_next_call),
		IN_A_FOLDER(what_is_freed_while_others_need_it_goes_at_once),
		IN_A_FOLDER(many_that_are_stopped_cost_one_wait),
		IN_A_FOLDER(who_is_killed_while_it_is_waited_for_gives_all),
		IN_A_FOLDER(who_ends_gives_back_first),
		IN_A_FOLDER(however_many_there_are_all_are_asked),
		IN_A_FOLDER(who_is_asked_while_the_last_of_it_is_closed_is_one_that_nothing_is_held_of),
		IN_A_FOLDER(only_what_is_of_the_device_goes),
		IN_A_FOLDER(others_are_asked_for_what_is_of_the_device),
		IN_A_FOLDER(what_is_of_a_device_without_a_name_goes_for_any),
		IN_A_FOLDER(no_grace_ends_for_more_than_there_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
