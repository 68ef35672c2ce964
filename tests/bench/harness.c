/* SPDX-License-Identifier: Apache-2.0 */
/* Timing, and counting by single steps: see harness.h. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/harness.h"

unsigned int bench_rounds = 5;
bool bench_counting;

/* The child tells this to the parent that single-steps it. */
static struct shared {
	char name[64];
	char ours[64];
	uint64_t null_driver, null_driver_end;
	bool warms_up; /* this run is stepped and not printed */
} *shared;

uint64_t bench_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void say_ns(const char *name, double ns)
{
	printf("%s ns %.1f\n", name, ns);
	fflush(stdout);
}

void say_value(const char *name, double value, const char *unit)
{
	printf("%s value %.6g %s\n", name, value, unit);
	fflush(stdout);
}

/* ------------------------------------------------------------ the processor */
#if defined __x86_64__
#define BREAKPOINT() __asm__ volatile("int3" ::: "memory")
static uint64_t pc_of(const struct user_regs_struct *r)
{
	return r->rip;
}
static bool is_breakpoint(long code)
{
	return (code & 0xff) == 0xcc;
}
static bool is_syscall(long code)
{
	return (code & 0xffff) == 0x050f;
}
static long syscall_number(const struct user_regs_struct *r)
{
	return (long)r->rax;
}
static void skip_breakpoint(struct user_regs_struct *r)
{
	(void)r; /* the processor has */
}
#elif defined __aarch64__
#define BREAKPOINT() __asm__ volatile("brk #0" ::: "memory")
static uint64_t pc_of(const struct user_regs_struct *r)
{
	return r->pc;
}
static bool is_breakpoint(long code)
{
	return (uint32_t)code == 0xd4200000u;
}
static bool is_syscall(long code)
{
	return (uint32_t)code == 0xd4000001u;
}
static long syscall_number(const struct user_regs_struct *r)
{
	return (long)r->regs[8];
}
static void skip_breakpoint(struct user_regs_struct *r)
{
	r->pc += 4;
}
#else
#error "no single steps for this processor"
#endif

static void registers(pid_t child, struct user_regs_struct *r)
{
	struct iovec io = { r, sizeof *r };

	MUST(ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &io) == 0);
}

/* -------------------------------------------------------------- what runs where */
enum whose { OURS, DRIVER, PROGRAM, LIBC, WHOSE };
static struct range {
	uint64_t start, end, base;
	enum whose whose;
} ranges[512];
static unsigned int ranges_n;
/* BENCH_PROFILE lists each instruction: the operation, whose it is, and its place in its file */
static FILE *profile;

static void read_ranges(pid_t child)
{
	char path[64], line[4400];
	FILE *maps;

	ranges_n = 0;
	/* this section is within the program itself, so it comes first */
	if (shared->null_driver)
		ranges[ranges_n++] = (struct range){ shared->null_driver, shared->null_driver_end,
						     0, DRIVER };
	snprintf(path, sizeof path, "/proc/%d/maps", (int)child);
	maps = fopen(path, "re");
	MUST(maps);
	while (fgets(line, sizeof line, maps) && ranges_n < 512) {
		unsigned long start, end, offset;
		char mode[5];
		enum whose whose = PROGRAM;

		if (sscanf(line, "%lx-%lx %4s %lx", &start, &end, mode, &offset) != 4 || mode[2] != 'x')
			continue;
		if (strstr(line, shared->ours))
			whose = OURS;
		else if (strstr(line, "libcuda.so"))
			whose = DRIVER;
		else if (strstr(line, "libc.so") || strstr(line, "libc-") || strstr(line, "ld-linux") ||
			 strstr(line, "[vdso]"))
			whose = LIBC;
		ranges[ranges_n++] = (struct range){ start, end, start - offset, whose };
	}
	fclose(maps);
}

/* Returns the load address of the file that has the code at @pc. */
static uint64_t base_of(uint64_t pc)
{
	for (unsigned int i = 0; i < ranges_n; i++)
		if (ranges[i].base && pc >= ranges[i].start && pc < ranges[i].end)
			return ranges[i].base;
	return 0;
}

static enum whose whose_is(uint64_t pc)
{
	for (unsigned int i = 0; i < ranges_n; i++)
		if (pc >= ranges[i].start && pc < ranges[i].end)
			return ranges[i].whose;
	return PROGRAM;
}

/* ---------------------------------------------------------------------- steps */
static void step_to_end(pid_t child)
{
	/* instructions of libc and the vdso count for their caller */
	uint64_t own[WHOSE] = { 0 }, for_it[WHOSE] = { 0 };
	unsigned int calls[WHOSE] = { 0 };
	enum whose caller = PROGRAM;
	char numbers[256] = "";
	struct user_regs_struct r;
	int status;

	read_ranges(child);
	registers(child, &r);
	skip_breakpoint(&r);
	MUST(ptrace(PTRACE_SETREGSET, child, NT_PRSTATUS, &(struct iovec){ &r, sizeof r }) == 0);
	for (;;) {
		enum whose whose;
		long code;

		registers(child, &r);
		errno = 0;
		code = ptrace(PTRACE_PEEKTEXT, child, (void *)pc_of(&r), NULL);
		if (errno)
			DIE("the code at %#lx cannot be read", (unsigned long)pc_of(&r));
		if (is_breakpoint(code))
			break;
		whose = whose_is(pc_of(&r));
		if (profile)
			fprintf(profile, "%s %d %#lx\n", shared->name, whose == LIBC ? (int)caller : (int)whose,
				(unsigned long)(pc_of(&r) - base_of(pc_of(&r))));
		if (whose == LIBC)
			for_it[caller]++;
		else
			own[caller = whose]++;
		if (is_syscall(code)) {
			size_t used = strlen(numbers);

			calls[caller]++;
			if (caller == OURS)
				snprintf(numbers + used, sizeof numbers - used, " %ld",
					 syscall_number(&r));
		}
		MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
		MUST(waitpid(child, &status, 0) == child);
		if (!WIFSTOPPED(status))
			DIE("%s: it ended while it was stepped", shared->name);
		if (WSTOPSIG(status) != SIGTRAP) /* another signal would run a handler, which is not part of the operation */
			DIE("%s: signal %d while it was stepped", shared->name, WSTOPSIG(status));
	}
	if (!shared->warms_up)
		printf("%s count ours=%llu+%llu driver=%llu+%llu syscalls=%u:%u (%s )\n", shared->name,
		       (unsigned long long)own[OURS], (unsigned long long)for_it[OURS],
		       (unsigned long long)own[DRIVER], (unsigned long long)for_it[DRIVER], calls[OURS],
		       calls[DRIVER], numbers);
	fflush(stdout);
	/* run to the second breakpoint, and step over it */
	MUST(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
	MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
	registers(child, &r);
	skip_breakpoint(&r);
	MUST(ptrace(PTRACE_SETREGSET, child, NT_PRSTATUS, &(struct iovec){ &r, sizeof r }) == 0);
}

static int watch(pid_t child)
{
	const char *path = getenv("BENCH_PROFILE");
	int status;

	profile = path ? fopen(path, "ae") : NULL;

	for (;;) {
		int sig = 0;

		if (waitpid(child, &status, 0) != child)
			return 1;
		if (WIFEXITED(status))
			return WEXITSTATUS(status);
		if (WIFSIGNALED(status)) {
			fprintf(stderr, "killed by signal %d\n", WTERMSIG(status));
			return 1;
		}
		if (WSTOPSIG(status) == SIGTRAP)
			step_to_end(child);
		else if (WSTOPSIG(status) != SIGSTOP)
			sig = WSTOPSIG(status);
		if (ptrace(PTRACE_CONT, child, NULL, (void *)(intptr_t)sig))
			return 1;
	}
}

static __attribute__((noinline)) void stepped(void (*op)(uint64_t), uint64_t run)
{
	BREAKPOINT();
	op(run);
	BREAKPOINT();
}

/* ------------------------------------------------------------------ measuring */
uint64_t measure_runs(unsigned int times)
{
	return bench_counting ? 6 : (uint64_t)times * bench_rounds;
}

static void measure_this(const char *name, void (*op)(uint64_t), unsigned int times, bool at_once)
{
	uint64_t run = 0;

	if (bench_counting) {
		snprintf(shared->name, sizeof shared->name, "%s", name);
		/* all are called from one place, so that the runs that warm up have the same stack */
		for (volatile unsigned int i = 0; i < 6; i++) {
			shared->warms_up = i < 3;
			if (at_once)
				op(run++);
			stepped(op, run++);
		}
		return;
	}
	for (unsigned int round = 0; round < bench_rounds; round++) {
		uint64_t start = bench_now();

		for (unsigned int i = 0; i < times; i++)
			op(run++);
		say_ns(name, (double)(bench_now() - start) / times);
	}
}

void measure(const char *name, void (*op)(uint64_t), unsigned int times)
{
	measure_this(name, op, times, false);
}

void measure_at_once(const char *name, void (*op)(uint64_t), unsigned int times)
{
	measure_this(name, op, times, true);
}

/* the section's bounds, from the linker; NULL in a program without a NULL_DRIVER */
extern const char __start_null_driver[] __attribute__((weak, visibility("hidden")));
extern const char __stop_null_driver[] __attribute__((weak, visibility("hidden")));

int bench_run(int (*body)(int, char **), int argc, char **argv, const char *ours)
{
	pid_t child;

	if (!bench_counting)
		return body(argc, argv);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	snprintf(shared->ours, sizeof shared->ours, "%s", ours);
	shared->null_driver = (uint64_t)(uintptr_t)__start_null_driver;
	shared->null_driver_end = (uint64_t)(uintptr_t)__stop_null_driver;
	fflush(stdout);
	child = fork();
	MUST(child >= 0);
	if (!child) {
		MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
		raise(SIGSTOP);
		exit(body(argc, argv));
	}
	return watch(child);
}

/* --------------------------------------------------------------- system calls */
int bench_syscalls(char **argv)
{
	static unsigned int seen[1024];
	unsigned int threads = 0, total = 0;
	pid_t child = fork(), any;
	int status, result = 1;

	MUST(child >= 0);
	if (!child) {
		const char *preload = getenv("BENCH_PRELOAD");

		MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
		if (preload)
			setenv("LD_PRELOAD", preload, 1);
		unsetenv("BENCH_PRELOAD");
		execvp(argv[0], argv);
		_exit(127);
	}
	MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	MUST(ptrace(PTRACE_SETOPTIONS, child, NULL,
		    PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) == 0);
	ptrace(PTRACE_SYSCALL, child, NULL, NULL);
	while ((any = waitpid(-1, &status, __WALL)) > 0) {
		int sig = 0;

		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (any == child)
				result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
			continue;
		}
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			struct user_regs_struct r;
			long number;

			registers(any, &r);
#if defined __x86_64__
			number = (long)r.orig_rax;
			/* at entry the result is -ENOSYS, at exit it is not */
			if ((long)r.rax == -ENOSYS && number >= 0 && number < 1024) {
				seen[number]++;
				total++;
			}
#else
			number = (long)r.regs[8];
			if (r.regs[7] == 0 && number >= 0 && number < 1024) { /* 0: entry */
				seen[number]++;
				total++;
			}
#endif
		} else if (status >> 8 == (SIGTRAP | PTRACE_EVENT_CLONE << 8)) {
			threads++;
		} else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
			sig = WSTOPSIG(status);
		}
		ptrace(PTRACE_SYSCALL, any, NULL, (void *)(intptr_t)sig);
	}
	for (int i = 0; i < 1024; i++)
		if (seen[i])
			printf("syscall %d %u\n", i, seen[i]);
	printf("syscalls value %u calls\nthreads value %u threads\n", total, threads);
	return result;
}
