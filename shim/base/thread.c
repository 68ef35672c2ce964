/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of our own: see thread.h. */
#include <errno.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shim/base/thread.h"

/*
 * The stack, beside the thread-local variables that glibc puts there.  The driver runs on it, and what programs have
 * patched into its calls, so it is not as small as ours alone might be.  The system's default is mostly 8 MiB,
 * which counts under RLIMIT_AS and is locked by mlockall(); or as little as `ulimit -s` says.
 */
enum { STACK = 1 << 20 };
/* Room for the processors of any kernel: 8,192. */
enum { CPU_WORDS = 8192 / (8 * sizeof(unsigned long)) };

struct cpus {
	unsigned long word[CPU_WORDS];
};

static bool get_cpus(pid_t task, struct cpus *cpus)
{
	return !sched_getaffinity(task, sizeof *cpus, (cpu_set_t *)cpus);
}

/*
 * The processors of the main thread and of the creator: either may have bound itself to one, which is busy with its
 * own work.  Those of the main thread are mostly those that taskset, numactl or a job's launcher has given the process.
 * What they were when the process began would be better if the main thread has bound itself, but would cost
 * each process a system call, also one that shares nothing.  No processor that a cpuset forbids is among
 * them: the kernel takes those out of the mask of each thread, whenever it is set or the cpuset changes.
 *
 * An equal mask is not set: a thread whose mask was set does not get the processors that its cpuset gets later.
 */
static void set_cpus(pthread_attr_t *attr)
{
	struct cpus wanted, own;

	if (!get_cpus(getpid(), &wanted) || !get_cpus(0, &own))
		return;
	for (unsigned int i = 0; i < CPU_WORDS; i++)
		wanted.word[i] |= own.word[i];
	if (memcmp(&wanted, &own, sizeof own))
		pthread_attr_setaffinity_np(attr, sizeof wanted, (cpu_set_t *)&wanted);
}

static void set_class(pthread_attr_t *attr)
{
	struct sched_param none = { .sched_priority = 0 };

	if (sched_getscheduler(0) == SCHED_OTHER)
		return;
	pthread_attr_setinheritsched(attr, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(attr, SCHED_OTHER);
	pthread_attr_setschedparam(attr, &none);
}

static int add_tls(struct dl_phdr_info *object, size_t size, void *sum)
{
	(void)size;
	for (unsigned int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
	return 0;
}

/* A size that is too small for the system is not set, so that the stack has the default size. */
static void set_stack(pthread_attr_t *attr)
{
	size_t tls = 0;

	dl_iterate_phdr(add_tls, &tls);
	pthread_attr_setstacksize(attr, STACK + tls);
}

/*
 * The attributes, and not the thread itself, set class and processors: where a real-time thread keeps the only
 * processor busy, a new thread that has its class would not come to set anything.
 */
int cl_thread_start(pthread_t *thread, void *(*main)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, before;
	int err = EINVAL;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (!pthread_attr_init(&attr)) {
		set_cpus(&attr);
		set_class(&attr);
		set_stack(&attr);
		err = pthread_create(thread, &attr, main, arg);
		pthread_attr_destroy(&attr);
	}
	/* it may not change its class, the cpuset has just changed, or the stack is too small: then it is as its creator */
	if (err == EPERM || err == EINVAL)
		err = pthread_create(thread, NULL, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

void cl_thread_begin(void)
{
	pthread_setname_np(pthread_self(), "culimbo");
	/* of this thread alone, on Linux; without privilege it can only be raised to 0 */
	if (getpriority(PRIO_PROCESS, 0))
		setpriority(PRIO_PROCESS, 0, 0);
}
