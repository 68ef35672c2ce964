/* SPDX-License-Identifier: Apache-2.0 */
/* Says where a process crashed: see crash.h. */
#include "tests/torture/crash.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char *name;
static _Atomic uint32_t *mark;
static pid_t marks; /* the process that it is of */

/* One write a line: other threads write, too, and the process may be killed at any time. */
static void tell_frame(int number, void *address)
{
	char line[400];
	Dl_info info = { 0 };
	int n;

	if (dladdr(address, &info) && info.dli_fname)
		n = snprintf(line, sizeof(line), "%s: CRASH %d %s+0x%lx %s\n", name, number, info.dli_fname,
			     (unsigned long)((uintptr_t)address - (uintptr_t)info.dli_fbase),
			     info.dli_sname ? info.dli_sname : "");
	else
		n = snprintf(line, sizeof(line), "%s: CRASH %d at %p, in no file\n", name, number, address);
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		_exit(3);
}

static void tell(int number, siginfo_t *info, void *context)
{
	void *frames[48];
	char line[200], thread[20] = "";
	int n;

	(void)context;
	if (getpid() == marks)
		atomic_store(mark, CRASHED);
	prctl(PR_GET_NAME, thread);
	n = snprintf(line, sizeof(line), "%s: CRASH of process %d: signal %d, code %d, address %p, thread '%s'\n", name,
		     (int)getpid(), number, info->si_code, info->si_addr, thread);
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		_exit(3);
	n = backtrace(frames, 48);
	for (int i = 0; i < n; i++)
		tell_frame(i, frames[i]);
	raise(number); /* SA_RESETHAND: it ends the process when this function returns */
}

void crash_tell(const char *program, _Atomic uint32_t *doomed)
{
	static const int crashes[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
	static char alternate[1 << 17];
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	struct sigaction action = { .sa_sigaction = tell, .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK };
	void *frame;

	name = program;
	mark = doomed;
	marks = getpid();
	backtrace(&frame, 1); /* loads the unwinder: not possible in the handler */
	sigaltstack(&stack, NULL);
	for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
		sigaction(crashes[i], &action, NULL);
}
