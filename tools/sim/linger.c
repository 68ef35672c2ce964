/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that outlive their process for a moment (CULIMBO_SIM_KERNELS=linger).
 *
 * On a GPU, a killed process's kernel goes on writing for about 9 ms after the
 * process's file locks are free, and its last task leaves /proc after about 48 ms.
 * A thread can't imitate that: it dies with its process.  So the first such kernel
 * starts two helpers:
 *
 *   the engine   a separate process that shares our memory (clone with CLONE_VM).
 *                It runs the kernels, and survives the process;
 *   the task     a thread of the process that does nothing.  The engine traces
 *                it: when the process dies, the task stops on its way out, and
 *                stays visible in /proc/PID/task until the engine lets it go.
 *
 * While a process lives that was forked from ours after cuInit() and has the driver's descriptors, the engine
 * lets the kernels write on to their end (measured).  Such a process has a copy of one end of a pipe.
 *
 * What must hold:
 * - the task has its own table of descriptors, with one end of the pipe alone; otherwise the locks of a
 *   dying process would stay as long as the task;
 * - the engine uses the task's thread-local storage, so the task calls nothing
 *   once the engine runs, and the engine takes no lock of libc;
 * - a program's wait() does not see the engine as a child (its exit signal is 0);
 * - where tracing is forbidden there is no engine, and threads run the kernels: no
 *   GPU writes after the last task is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define WRITES_NS UINT64_C(9000000)  /* how long kernels write after the death */
#define TASK_NS UINT64_C(48000000)
#define LOOK_NS UINT64_C(100000)     /* between two looks while kernels run */
#define STACK_BYTES ((size_t)256 << 10)
#define JOBS 16

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

enum { JOB_FREE, JOB_TAKEN, JOB_READY, JOB_DONE };
enum { ENGINE_NONE, ENGINE_STARTING, ENGINE_RUNS, ENGINE_REFUSED };

struct job {
	_Atomic uint32_t state;
	struct sim_kernel kernel;
	uint64_t end;
};

static struct {
	struct job job[JOBS];
	_Atomic uint32_t state;
	_Atomic uint32_t may_trace;
	atomic_bool quit;
	pid_t task, engine;
	char *stack;
	int forked[2]; /* a pipe; forked processes have its second end */
	pid_t inits;   /* the process that has made it */
} engine;

void sim_linger_begin(void)
{
	if (!sim_options()->kernels_linger || engine.inits == getpid())
		return;
	/* in a forked child, the parent's stays open: the child has the parent's contexts */
	if (pipe2(engine.forked, O_CLOEXEC))
		engine.forked[0] = engine.forked[1] = -1;
	else
		engine.inits = getpid();
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

/* ---- the engine, which may outlive the process ---- */

/* Runs one pass of each kernel.  Returns true if any is left. */
static bool run_jobs(bool stop)
{
	uint64_t now = sim_now_ns();
	bool any = false;

	for (int i = 0; i < JOBS; i++) {
		struct job *job = &engine.job[i];
		volatile uint32_t *to = (volatile uint32_t *)(uintptr_t)job->kernel.destination;

		if (atomic_load_explicit(&job->state, memory_order_acquire) != JOB_READY)
			continue;
		if (!job->end)
			job->end = now + job->kernel.ns;
		if (!stop)
			for (uint64_t w = 0; w < job->kernel.words; w++)
				to[w] = job->kernel.value;
		if (stop || now >= job->end) {
			atomic_store_explicit(&job->state, JOB_DONE, memory_order_release);
			futex_wake(&job->state);
		} else {
			any = true;
		}
	}
	return any;
}

/* Returns true once the task is on its way out, or gone. */
static bool task_ends(void)
{
	int status;
	pid_t pid;

	for (;;) {
		pid = (pid_t)syscall(SYS_wait4, engine.task, &status, WNOHANG | __WALL, NULL);
		if (pid < 0)
			return true;
		if (pid == 0)
			return false;
		if (!WIFSTOPPED(status) || status >> 16 == PTRACE_EVENT_EXIT)
			return true;
		/* If the whole process is stopped, the task stays stopped. */
		if (status >> 16 == PTRACE_EVENT_STOP)
			syscall(SYS_ptrace, PTRACE_LISTEN, engine.task, 0, 0);
		else
			syscall(SYS_ptrace, PTRACE_CONT, engine.task, 0, WSTOPSIG(status));
	}
}

static void sleep_until(uint64_t at)
{
	uint64_t now = sim_now_ns();
	struct timespec nap;

	if (at <= now)
		return;
	nap.tv_sec = (time_t)((at - now) / 1000000000);
	nap.tv_nsec = (long)((at - now) % 1000000000);
	syscall(SYS_nanosleep, &nap, NULL);
}

/* Returns true while a forked process has the second end of the pipe. */
static bool is_outlived(void)
{
	struct pollfd end = { .fd = engine.forked[0], .events = POLLIN };
	struct timespec none = { 0 };

	return engine.forked[0] >= 0 && syscall(SYS_ppoll, &end, 1, &none, NULL, 0) == 0;
}

/* Gets a private table of descriptors, and empties it but for the pipe's first end.  Returns 0, or another number. */
static long keep_pipe_alone(void)
{
	int fd = engine.forked[0];
	long failed = syscall(SYS_close_range, fd < 0 ? 0 : fd + 1, UINT_MAX, CLOSE_RANGE_UNSHARE);

	if (!failed && fd > 0)
		failed = syscall(SYS_close_range, 0, fd - 1, 0);
	return failed;
}

static int run_engine(void *unused)
{
	uint64_t wanted = UINT64_C(1) << (SIGCHLD - 1);
	uint64_t zero[8] = { 0 }; /* the kernel's struct sigaction, for the default action */
	uint64_t death, looked = 0;

	/* A tracer that ignores SIGCHLD does not learn of the task's stops. */
	syscall(SYS_rt_sigaction, SIGCHLD, zero, NULL, 8);
	while (!atomic_load(&engine.may_trace))
		futex_wait(&engine.may_trace, 0);
	if (syscall(SYS_ptrace, PTRACE_SEIZE, engine.task, 0, PTRACE_O_TRACEEXIT)) {
		atomic_store(&engine.state, ENGINE_REFUSED);
		futex_wake(&engine.state);
		syscall(SYS_exit, 0);
	}
	atomic_store(&engine.state, ENGINE_RUNS);
	futex_wake(&engine.state);
	for (;;) {
		if (atomic_load(&engine.quit))
			syscall(SYS_exit, 0); /* the engine ends; the task goes on untraced */
		if (run_jobs(atomic_load(&sim.exiting))) {
			if (sim_now_ns() - looked < LOOK_NS)
				continue;
			looked = sim_now_ns();
			if (task_ends())
				break;
		} else {
			if (task_ends())
				break;
			/* Wait until there is a kernel, or something happens to the task. */
			syscall(SYS_rt_sigtimedwait, &wanted, NULL, NULL, 8);
		}
	}
	death = sim_now_ns();
	while (sim_now_ns() < death + WRITES_NS && run_jobs(false))
		;
	if (!is_outlived())
		sleep_until(death + TASK_NS);
	/* nobody waits for the task any more, as a tracer would have to */
	syscall(SYS_ptrace, PTRACE_DETACH, engine.task, 0, 0);
	while (is_outlived() && run_jobs(false))
		;
	syscall(SYS_exit, 0);
	return 0;
}

/* ---- the task ---- */

static void *run_task(void *unused)
{
	uint32_t result = ENGINE_REFUSED;
	struct timespec nap = { .tv_nsec = 1000000 };

	engine.task = (pid_t)syscall(SYS_gettid);
	if (keep_pipe_alone()) /* the engine gets a copy of this table */
		goto out;
	engine.stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (engine.stack == MAP_FAILED)
		goto out;
	engine.engine = clone(run_engine, engine.stack + STACK_BYTES, CLONE_VM, NULL);
	if (engine.engine < 0)
		goto out;
	/*
	 * Yama may allow only descendants to be traced; kernels without Yama don't know this
	 * call.
	 */
	syscall(SYS_prctl, PR_SET_PTRACER, engine.engine, 0, 0, 0);
	atomic_store(&engine.may_trace, 1);
	futex_wake(&engine.may_trace);
	for (;;)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
out:
	atomic_store(&engine.state, result);
	futex_wake(&engine.state);
	/* The task never ends by itself, since the engine uses its memory. */
	for (;;)
		syscall(SYS_nanosleep, &nap, NULL);
	return NULL;
}

static void start(void)
{
	sigset_t every, before;
	pthread_attr_t attr;
	pthread_t thread;
	int error;

	atomic_store(&engine.state, ENGINE_STARTING);
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	error = pthread_create(&thread, &attr, run_task, NULL);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		atomic_store(&engine.state, ENGINE_REFUSED);
	while (atomic_load(&engine.state) == ENGINE_STARTING)
		futex_wait(&engine.state, ENGINE_STARTING);
	if (atomic_load(&engine.state) != ENGINE_RUNS)
		sim_warn("CULIMBO_SIM_KERNELS=linger needs ptrace, which is refused here; kernels end "
			 "with their process");
}

bool sim_linger_run(const struct sim_kernel *kernel)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, start);
	if (atomic_load(&engine.state) != ENGINE_RUNS)
		return false;
	for (int i = 0; i < JOBS; i++) {
		struct job *job = &engine.job[i];
		uint32_t expected = JOB_FREE, state;

		if (!atomic_compare_exchange_strong(&job->state, &expected, JOB_TAKEN))
			continue;
		job->kernel = *kernel;
		job->end = 0;
		atomic_store_explicit(&job->state, JOB_READY, memory_order_release);
		syscall(SYS_tgkill, engine.engine, engine.engine, SIGCHLD);
		while ((state = atomic_load(&job->state)) != JOB_DONE)
			futex_wait(&job->state, state);
		atomic_store(&job->state, JOB_FREE);
		return true;
	}
	return false;
}

void sim_linger_stop(void)
{
	if (atomic_load(&engine.state) != ENGINE_RUNS)
		return;
	atomic_store(&engine.quit, true);
	syscall(SYS_tgkill, engine.engine, engine.engine, SIGCHLD);
	while (waitpid(engine.engine, NULL, __WALL) < 0 && errno == EINTR)
		;
}
