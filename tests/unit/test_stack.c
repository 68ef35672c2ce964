/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cached call stacks (stack_cache.h): the answer is always that of a walk, and nothing is cached for a
 * stack whose end is not known.
 *
 * Promise 4.  Walks are counted: the look-up of cached stacks is wrapped (--wrap), and so is
 * pthread_getattr_np().  libc's backtrace() walks by itself; it gives the expected stack.
 */
#include "tests/unit/child.h"

#include <alloca.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "shim/base/options.h"
#include "shim/diag/stack.h"
#include "shim/diag/stack_cache.h"

#if defined(__x86_64__) && defined(__LP64__)
enum { REMEMBERS = 1 };
#else
enum { REMEMBERS = 0 };
#endif

/* This thread's. */
static __thread unsigned int walks, asked;
static __thread void (*amid_a_walk)(void);
static atomic_bool refuse;

bool __real_cl_stack_cache_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
			  struct cl_cached_stack **entry);
bool __wrap_cl_stack_cache_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
			  struct cl_cached_stack **entry);
bool __wrap_cl_stack_cache_find(uint64_t base, uint64_t caller, uint32_t max, struct cl_stack *stack,
			  struct cl_cached_stack **entry)
{
	bool found = __real_cl_stack_cache_find(base, caller, max, stack, entry);
	void (*act)(void) = amid_a_walk;

	if (!found) {
		walks++;
		amid_a_walk = NULL;
		if (act)
			act();
	}
	return found;
}

int __real_pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes);
int __wrap_pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes);
int __wrap_pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes)
{
	asked++;
	return atomic_load(&refuse) ? ENOMEM : __real_pthread_getattr_np(thread, attributes);
}

enum { FRAMES = 8, MORE = 64, FUNCTION = 4096 /* bytes; sanitized it takes some */ };
#define BY_ITSELF __attribute__((noinline, section("by_itself"), aligned(FUNCTION)))
/* No tail call: this frame stays; and its function is not merged with an equal one. */
#define KEEP_FRAME __asm__ volatile("# %0" : : "i"(__LINE__) : "memory")

/* The last stack taken in this thread, and where. */
static __thread struct {
	struct cl_stack stack;
	uint64_t base;
	bool walked;
} taken;

static bool is_in(uint64_t address, uint64_t function)
{
	return address > function && address < function + FUNCTION;
}

/* Takes a stack, which must equal that of backtrace(). */
BY_ITSELF static void take(void)
{
	unsigned int before = walks, n, max = (unsigned int)cl_options.stack.number, skip = 0;
	uint64_t here = (uint64_t)(uintptr_t)&take;
	void *right[MORE];
	struct cl_stack stack;

	cl_stack_take(&stack);
	taken.stack = stack;
	taken.walked = walks != before;
	taken.base = (uint64_t)(uintptr_t)__builtin_frame_address(0);
	n = (unsigned int)backtrace(right, MORE);
	/* a sanitizer's own frames */
	while (skip < n && !is_in((uint64_t)(uintptr_t)right[skip], here))
		skip++;
	CHECK_EQUAL(stack.n, n - skip < max ? n - skip : max);
	/* of one with a name there are no frames */
	CHECK(stack.name || is_in(stack.frame[0], here));
	for (unsigned int i = 1; i < stack.n && !stack.name; i++)
		CHECK_EQUAL(stack.frame[i], (uint64_t)(uintptr_t)right[skip + i]);
}

static void take_again(bool remembered)
{
	/* one call, not one for the first turn and another for the rest */
	for (volatile int i = 0; i < 5; i++) {
		take();
		if (i)
			CHECK_EQUAL(!taken.walked, REMEMBERS && remembered);
	}
}

static bool in_taken(void *function)
{
	uint64_t at = (uint64_t)(uintptr_t)function;

	for (unsigned int i = 0; i < taken.stack.n; i++)
		if (is_in(taken.stack.frame[i], at))
			return true;
	return false;
}

/* ------------------------------------------------------------------------ tests */
IN_A_CHILD(the_same_place_is_walked_once)
{
	take_again(true);
	CHECK_EQUAL(asked, 0); /* the first thread's would be read from /proc */
}

/* Alike, so that what they call has the same place on the stack. */
BY_ITSELF static void way_a(void)
{
	take();
	KEEP_FRAME;
}
BY_ITSELF static void way_b(void)
{
	take();
	KEEP_FRAME;
}
BY_ITSELF static void through(void (*way)(void))
{
	way();
	KEEP_FRAME;
}
BY_ITSELF static void far_a(void (*way)(void))
{
	through(way);
	KEEP_FRAME;
}
BY_ITSELF static void far_b(void (*way)(void))
{
	through(way);
	KEEP_FRAME;
}

IN_A_CHILD(another_caller_is_another_stack)
{
	void (*const near[])(void) = { way_a, way_b };
	void (*const far[])(void (*)(void)) = { far_a, far_b };
	uint64_t base = 0;

	for (int i = 0; i < 64; i++) {
		int a = i & 1, b = i >> 1 & 1;

		far[b](near[a]);
		CHECK(!base || taken.base == base); /* or nothing is shown */
		base = taken.base;
		CHECK(in_taken(near[a]) && in_taken(far[b]));
		CHECK(!in_taken(near[!a]) && !in_taken(far[!b]));
	}
	/* and when the stack is the same again, it is cached again */
	for (volatile int i = 0; i < 3; i++)
		far[0](near[0]);
	CHECK_EQUAL(!taken.walked, REMEMBERS);
}

/* Its frame begins at its frame pointer, as deep as wanted. */
BY_ITSELF static void varied(size_t room)
{
	volatile char *more = alloca(room + 16);

	more[0] = 0;
	take();
	KEEP_FRAME;
}
BY_ITSELF static void small_frame(size_t room)
{
	varied(room);
	KEEP_FRAME;
}
BY_ITSELF static void large_frame(size_t room)
{
	volatile char never_written[512];

	__asm__ volatile("" : : "r"(never_written));
	varied(room);
	KEEP_FRAME;
}

/* The return addresses of the previous call are still in memory, but inside a variable. */
IN_A_CHILD(an_old_return_address_is_not_taken_for_one)
{
	void (*const way[])(size_t) = { small_frame, large_frame };
	uint64_t base[2];
	size_t room[2] = { 2048, 2048 };

	for (int i = 0; i < 2; i++) {
		way[i](room[i]);
		base[i] = taken.base;
	}
	CHECK(base[0] > base[1] && base[0] - base[1] < 2048);
	room[1] -= base[0] - base[1];
	for (int i = 0; i < 20; i++) {
		way[i & 1](room[i & 1]);
		CHECK_EQUAL(taken.base, base[0]);
		CHECK(in_taken(way[i & 1]) && !in_taken(way[!(i & 1)]));
	}
}

IN_A_CHILD(as_many_frames_as_are_wanted_now)
{
	static const int numbers[] = { 8, 3, 8, 1, 64, 8 };

	for (unsigned int i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		cl_options.stack.number = numbers[i];
		take();
	}
}

IN_A_CHILD(a_name_is_remembered_until_all_are_forgotten)
{
	for (volatile int i = 0; i < 4; i++) {
		far_a(way_a);
		CHECK_EQUAL(taken.stack.name, i && REMEMBERS ? 5 : 0);
		cl_stack_name(&taken.stack, 5);
	}
	/* another stack does not have that name, nor has one that took the place of the stack */
	for (volatile int i = 0; i < 4; i++) {
		struct cl_stack before = taken.stack;

		for (volatile int twice = 0; twice < 2; twice++) {
			(i & 1 ? far_a : far_b)(way_a);
			CHECK_EQUAL(!taken.walked, REMEMBERS && twice);
			CHECK_EQUAL(taken.stack.name, 0);
			cl_stack_name(&before, 6);
		}
	}
	for (volatile int i = 0; i < 4; i++) {
		far_a(way_a);
		CHECK_EQUAL(taken.stack.name, i == 1 && REMEMBERS ? 7 : 0);
		if (i) {
			cl_stack_forget_names();
			/* known from before */
			cl_stack_name(&taken.stack, 8);
			CHECK_EQUAL(!taken.walked, REMEMBERS);
		} else {
			cl_stack_name(&taken.stack, 7);
		}
	}
}

/* ---------------------------------------------------------------------- threads */
enum { THREADS = 8 };
static pthread_barrier_t all_have_taken;
static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;

static void *take_many(void *unused)
{
	void (*const near[])(void) = { way_a, way_b };
	void (*const far[])(void (*)(void)) = { far_a, far_b };
	unsigned int random = (unsigned int)(uintptr_t)&random >> 12;

	for (int i = 0; i < 1000; i++) {
		random = random * 1103515245 + 12345;
		far[random >> 20 & 1](near[random >> 22 & 1]);
		CHECK(in_taken(near[random >> 22 & 1]) && in_taken(far[random >> 20 & 1]));
		/* at more places than there are to remember */
		varied((random >> 24 & 63) * 16);
	}
	/* another thread's could take the place */
	pthread_barrier_wait(&all_have_taken);
	pthread_mutex_lock(&alone);
	take_again(true);
	pthread_mutex_unlock(&alone);
	CHECK_EQUAL(asked, REMEMBERS); /* once */
	return unused;
}

IN_A_CHILD(each_thread_has_its_own)
{
	pthread_t thread[THREADS];

	CHECK(!pthread_barrier_init(&all_have_taken, NULL, THREADS));
	for (int turn = 0; turn < 3; turn++) { /* the stacks are used again */
		for (int i = 0; i < THREADS; i++)
			CHECK(!pthread_create(&thread[i], NULL, take_many, NULL));
		for (int i = 0; i < THREADS; i++)
			CHECK(!pthread_join(thread[i], NULL));
	}
}

static void *take_walked(void *unused)
{
	take_again(false);
	CHECK_EQUAL(asked, REMEMBERS);
	return unused;
}

IN_A_CHILD(a_thread_whose_stack_is_not_known_is_walked)
{
	pthread_t thread;

	atomic_store(&refuse, true);
	CHECK(!pthread_create(&thread, NULL, take_walked, NULL));
	CHECK(!pthread_join(thread, NULL));
}

static void *fork_and_take(void *known)
{
	pid_t child;
	int status;

	if (known)
		take_again(true);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		child_begins();
		take_again(known != NULL);
		_exit(0);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
	return NULL;
}

IN_A_CHILD(a_forked_child_has_its_thread_s_stack)
{
	pthread_t thread;

	take_again(true);
	fork_and_take(&thread);
	for (int i = 0; i < 2; i++) {
		CHECK(!pthread_create(&thread, NULL, fork_and_take, i ? &thread : NULL));
		CHECK(!pthread_join(thread, NULL));
	}
}

/* --------------------------------------------------------------- other stacks */
static void *new_stack(size_t size)
{
	void *area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(area != MAP_FAILED);
	return area;
}

static volatile sig_atomic_t handled;
static void in_a_handler(int signal)
{
	(void)signal;
	take_again(false);
	handled++;
}
static void in_a_handler_on_its_thread_s_stack(int signal)
{
	(void)signal;
	take_again(true);
	handled++;
}

static void *signals(void *unused)
{
	enum { SIZE = 256 << 10 };
	struct sigaction action = { .sa_handler = in_a_handler, .sa_flags = SA_ONSTACK };
	void *area = new_stack(SIZE);
	int before = handled;

	/* a thread's first asks libc, which is not for a handler */
	take_again(true);
	CHECK(!sigaltstack(&(stack_t){ .ss_sp = area, .ss_size = SIZE }, NULL));
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	for (int i = 0; i < 3; i++)
		raise(SIGUSR1);
	/* with 8 frames it leads no further than the handler's own, with 2 not so far */
	cl_options.stack.number = 2;
	raise(SIGUSR1);
	action.sa_flags = 0;
	action.sa_handler = in_a_handler_on_its_thread_s_stack;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	raise(SIGUSR1);
	cl_options.stack.number = FRAMES;
	action.sa_handler = in_a_handler; /* through the signal's frame */
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	raise(SIGUSR1);
	CHECK_EQUAL(handled, before + 6);
	return unused;
}

IN_A_CHILD(a_signal_handler_s_stack_is_walked)
{
	pthread_t thread;

	signals(NULL);
	CHECK(!pthread_create(&thread, NULL, signals, NULL));
	CHECK(!pthread_join(thread, NULL));
}

static __thread ucontext_t back, coroutine;
static void in_a_coroutine(void)
{
	take_again(false);
	swapcontext(&coroutine, &back);
	take_again(false);
}

static void *coroutines(void *unused)
{
	enum { SIZE = 128 << 10 };

	for (int i = 0; i < 4; i++) {
		void *area = new_stack(SIZE);

		CHECK(!getcontext(&coroutine));
		coroutine.uc_stack.ss_sp = area;
		coroutine.uc_stack.ss_size = SIZE;
		coroutine.uc_link = &back;
		makecontext(&coroutine, in_a_coroutine, 0);
		CHECK(!swapcontext(&back, &coroutine));
		take_again(true);
		CHECK(!swapcontext(&back, &coroutine));
		CHECK(!munmap(area, SIZE));
	}
	return unused;
}

IN_A_CHILD(a_coroutine_s_stack_is_walked)
{
	pthread_t thread;

	coroutines(NULL);
	CHECK_EQUAL(asked, 0);
	CHECK(!pthread_create(&thread, NULL, coroutines, NULL));
	CHECK(!pthread_join(thread, NULL));
}

__attribute__((noinline)) static void deep(size_t room)
{
	volatile char *more = alloca(room);

	more[0] = 0;
	take_again(room < 1 << 20);
}

/* The limit of the first thread's stack is not asked for: the part near its beginning always exists. */
IN_A_CHILD(far_down_the_first_thread_is_walked)
{
	deep(512 << 10);
	deep(2 << 20);
}

/* The cache has one of them in the place where the interrupted one belongs. */
static void take_at_many_places(void)
{
	cl_options.stack.number = 1;
	for (size_t room = 0; room < 3000; room++)
		varied(room * 16);
	cl_options.stack.number = FRAMES;
}

/* As from a signal handler: a half-written entry is left alone. */
IN_A_CHILD(who_interrupts_a_walk_does_not_wait)
{
	for (volatile int i = 0; i < 3; i++) {
		amid_a_walk = i ? NULL : take_at_many_places;
		far_b(way_b);
		CHECK(in_taken(far_b) && in_taken(way_b));
	}
	CHECK_EQUAL(!taken.walked, REMEMBERS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_same_place_is_walked_once),
		cmocka_unit_test(another_caller_is_another_stack),
		cmocka_unit_test(an_old_return_address_is_not_taken_for_one),
		cmocka_unit_test(as_many_frames_as_are_wanted_now),
		cmocka_unit_test(a_name_is_remembered_until_all_are_forgotten),
		cmocka_unit_test(each_thread_has_its_own),
		cmocka_unit_test(a_thread_whose_stack_is_not_known_is_walked),
		cmocka_unit_test(a_forked_child_has_its_thread_s_stack),
		cmocka_unit_test(a_signal_handler_s_stack_is_walked),
		cmocka_unit_test(a_coroutine_s_stack_is_walked),
		cmocka_unit_test(far_down_the_first_thread_is_walked),
		cmocka_unit_test(who_interrupts_a_walk_does_not_wait),
	};

	cl_options.stack.number = FRAMES;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
