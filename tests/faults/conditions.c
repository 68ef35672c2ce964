/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests promise 4 under conditions that real machines get into: no room, no
 * descriptors, no memory, no /proc, a read-only or missing folder, a seccomp
 * filter that refuses calls of ours, limits.
 *
 *   conditions           all of them, with libculimbo preloaded
 *   conditions --bare    the same without it: the driver must work in each of them,
 *                        and the importer must read foreign bytes; otherwise a run
 *                        with culimbo would prove nothing
 *
 * judge.h says what must hold.  In addition, if the exporter lacks something, its
 * blocks are kept and the importer reads no foreign byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/shm/layout.h"
#include "tests/faults/judge.h"
#include "tests/namespaces/own_mounts.h"

static bool bare;

__attribute__((noreturn)) static void cannot(const char *what)
{
	fprintf(stderr, "conditions: %s: %s\n", what, strerror(errno));
	_exit(92);
}

/* ------------------------------------------------------------------------ limits */
static void set_limit(int what, rlim_t value)
{
	struct rlimit limit = { value, value };

	if (setrlimit((__rlimit_resource_t)what, &limit))
		cannot("setrlimit");
}

static void sixteen_descriptors(void)
{
	set_limit(RLIMIT_NOFILE, 16);
}

static void no_descriptor_left(void)
{
	int fd = dup(0);

	if (fd < 0)
		cannot("dup");
	close(fd);
	/* the lowest free number is the first that is forbidden */
	set_limit(RLIMIT_NOFILE, (rlim_t)fd);
}

static void no_address_space(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%ld", &pages) != 1)
		cannot("/proc/self/statm");
	fclose(f);
	/* room for the driver's mappings, not for an exporter file */
	set_limit(RLIMIT_AS, (rlim_t)pages * 4096 + (CL_FILE_SIZE / 2 & ~(rlim_t)4095));
}

static void small_files(void)
{
	set_limit(RLIMIT_FSIZE, 1 << 20);
}

static void no_files(void)
{
	set_limit(RLIMIT_FSIZE, 0);
}

/* ----------------------------------------------------------------------- seccomp */
/* The low 32 bits of an argument; with @high, the upper ones. */
#define ARG(n) ((unsigned int)(offsetof(struct seccomp_data, args) + 8 * (n)))
#define LOAD(where) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (where))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define IS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)(value), 0, (skip))
#define HAS(bits, skip) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (unsigned int)(bits), 0, (skip))

static void filter(struct sock_filter *code, size_t n)
{
	struct sock_fprog program = { (unsigned short)n, code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		cannot("seccomp");
}

static void refuse_call(int number, int error)
{
	struct sock_filter code[] = {
		LOAD(offsetof(struct seccomp_data, nr)),
		IS(number, 1),
		REFUSE(error),
		ALLOW,
	};

	filter(code, sizeof code / sizeof *code);
}

/* Refuses the call if its argument @n is @value. */
static void refuse_value(int number, int n, unsigned long long value, int error)
{
	struct sock_filter code[] = {
		LOAD(offsetof(struct seccomp_data, nr)),
		IS(number, 5),
		LOAD(ARG(n)),
		IS(value & 0xffffffff, 3),
		LOAD(ARG(n) + 4),
		IS(value >> 32, 1),
		REFUSE(error),
		ALLOW,
	};

	filter(code, sizeof code / sizeof *code);
}

/* Refuses the call if its argument @n has one of @bits. */
static void refuse_bits(int number, int n, unsigned int bits, int error)
{
	struct sock_filter code[] = {
		LOAD(offsetof(struct seccomp_data, nr)),
		IS(number, 3),
		LOAD(ARG(n)),
		HAS(bits, 1),
		REFUSE(error),
		ALLOW,
	};

	filter(code, sizeof code / sizeof *code);
}

#define ONLY_TMPFILE (__O_TMPFILE & ~O_DIRECTORY)
#define REFUSALS(X)                                                                     \
	X(fallocate_eperm, refuse_call(SYS_fallocate, EPERM))                           \
	X(fallocate_enosys, refuse_call(SYS_fallocate, ENOSYS))                         \
	X(tmpfile_eperm, refuse_bits(SYS_openat, 2, ONLY_TMPFILE, EPERM))               \
	X(tmpfile_eopnotsupp, refuse_bits(SYS_openat, 2, ONLY_TMPFILE, EOPNOTSUPP))     \
	X(creat_eperm, refuse_bits(SYS_openat, 2, ONLY_TMPFILE | O_CREAT, EPERM))       \
	X(openat_eperm, refuse_call(SYS_openat, EPERM))                                 \
	X(linkat_eperm, refuse_call(SYS_linkat, EPERM))                                 \
	X(linkat_enosys, refuse_call(SYS_linkat, ENOSYS))                               \
	X(renameat2_eperm, refuse_call(SYS_renameat2, EPERM))                           \
	X(renameat2_enosys, refuse_call(SYS_renameat2, ENOSYS))                         \
	X(unlinkat_eperm, refuse_call(SYS_unlinkat, EPERM))                             \
	X(getrandom_enosys, refuse_call(SYS_getrandom, ENOSYS))                         \
	X(getrandom_eperm, refuse_call(SYS_getrandom, EPERM))                           \
	X(setlk_enosys, refuse_value(SYS_fcntl, 1, F_SETLK, ENOSYS))                    \
	X(setlk_eperm, refuse_value(SYS_fcntl, 1, F_SETLK, EPERM))                      \
	X(getlk_eperm, refuse_value(SYS_fcntl, 1, F_GETLK, EPERM))                      \
	X(dupfd_eperm, refuse_value(SYS_fcntl, 1, F_DUPFD_CLOEXEC, EPERM))              \
	X(mremap_enomem, refuse_value(SYS_mremap, 2, CL_FILE_SIZE, ENOMEM))             \
	X(mremap_eperm, refuse_value(SYS_mremap, 2, CL_FILE_SIZE, EPERM))               \
	X(munlock_eperm, refuse_call(SYS_munlock, EPERM))                               \
	X(madvise_eperm, refuse_call(SYS_madvise, EPERM))                               \
	X(ftruncate_eperm, refuse_call(SYS_ftruncate, EPERM))                           \
	X(fchmod_eperm, refuse_call(SYS_fchmod, EPERM))                                 \
	X(readlink_eperm, refuse_call(SYS_readlink, EPERM))                             \
	X(getdents_eperm, refuse_call(SYS_getdents64, EPERM))                           \
	X(prlimit_eperm, refuse_call(SYS_prlimit64, EPERM))                             \
	X(sigmask_pending, refuse_call(SYS_rt_sigpending, EPERM))                       \
	X(set_name_eperm, refuse_call(SYS_prctl, EPERM))                                \
	X(clone3_enosys, refuse_call(SYS_clone3, ENOSYS))

#define X(name, how)             \
	static void name(void)   \
	{                        \
		how;             \
	}
REFUSALS(X)
#undef X

static void no_thread(void)
{
	refuse_call(SYS_clone3, ENOSYS); /* then libc tries clone() */
	refuse_call(SYS_clone, EAGAIN);
}

/* --------------------------------------------------------------------- namespaces */
static bool tmpfs(const char *options, unsigned long flags)
{
	mkdir(judge_folder(), 0700);
	return mount("tmpfs", judge_folder(), "tmpfs", flags | MS_NOSUID | MS_NODEV, options) == 0;
}

/* sizes are whole pages; the simulated driver's files are elsewhere */
static bool full_folder(void)
{
	return tmpfs("mode=0700,size=4k", 0);
}
static bool folder_for_half_a_file(void)
{
	return tmpfs("mode=0700,size=100k", 0);
}
static bool folder_without_inodes(void)
{
	return tmpfs("mode=0700,nr_inodes=1", 0);
}
static bool read_only_folder(void)
{
	return tmpfs("mode=0700", 0) &&
	       mount(NULL, judge_folder(), NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV,
		     NULL) == 0;
}
static bool open_folder(void)
{
	return tmpfs("mode=0777", 0);
}
static bool no_proc(void)
{
	return mount("tmpfs", "/proc", "tmpfs", 0, "mode=0555,size=4k") == 0;
}
static bool no_parent(void)
{
	/* CULIMBO_DIR's parent folder is removed */
	char parent[600];

	snprintf(parent, sizeof parent, "%s", judge_folder());
	*strrchr(parent, '/') = 0;
	rmdir(judge_folder());
	rmdir(parent);
	return access(parent, F_OK) != 0;
}

/* ---------------------------------------------------------------------- the table */
enum where { EXPORTER = 1, IMPORTER = 2, BOTH = 3 };
static const struct condition {
	const char *name;
	void (*set)(void);	 /* called in the processes of @where */
	bool (*surround)(void);	 /* called once, in namespaces of both processes; false: not possible */
	enum where where;	 /* each process alone; a surrounding is for both */
	bool says;		 /* a warning is required: the condition harms culimbo */
} conditions[] = {
	{ "16 descriptors at most", sixteen_descriptors, NULL, BOTH, false },
	{ "no descriptor is left", no_descriptor_left, NULL, BOTH, true },
	{ "no address space for the file", no_address_space, NULL, BOTH, true },
	{ "files of 1 MiB at most", small_files, NULL, EXPORTER, true },
	{ "no file may grow", no_files, NULL, EXPORTER, false }, /* nor that of stderr */
	{ "no thread can be started", no_thread, NULL, EXPORTER, true },
#define X(name, how) { "seccomp: " #name, name, NULL, BOTH, false },
	REFUSALS(X)
#undef X
	{ "the folder's file system is full", NULL, full_folder, EXPORTER, true },
	{ "the folder has room for half a file", NULL, folder_for_half_a_file, EXPORTER, true },
	{ "the folder has no inode left", NULL, folder_without_inodes, EXPORTER, true },
	{ "the folder is read-only", NULL, read_only_folder, EXPORTER, true },
	{ "anybody may write to the folder", NULL, open_folder, EXPORTER, true },
	{ "no /proc", NULL, no_proc, EXPORTER, false },
	{ "the folder's parent is missing", NULL, no_parent, EXPORTER, true },
};
enum { CONDITIONS = sizeof conditions / sizeof *conditions };

static void judge(const struct condition *condition, const char *of, bool exporter_lacks)
{
	const char *wrong = judge_what(false);
	bool said = judge_warned(&exporter) || judge_warned(&importer);
	int before = judge_failures();

	if (bare) { /* without culimbo no warning is printed, and the harm is done */
		if (wrong && strstr(wrong, "nothing was said"))
			wrong = NULL;
		ok(!wrong, "%s%s: the driver alone stands it%s%s", condition->name, of,
		   wrong ? ": " : "", wrong ? wrong : "");
		ok(importer.verdict.foreign && exporter.verdict.reused,
		   "%s%s: without culimbo, foreign bytes are read", condition->name, of);
	} else {
		if (!wrong && exporter_lacks && importer.verdict.foreign)
			wrong = "foreign bytes are read, though the exporter knew better";
		if (!wrong && condition->says && !said)
			wrong = "nobody says a word";
		ok(!wrong, "%s%s: as bare, %s%s%s%s%s", condition->name, of,
		   importer.verdict.foreign ? "not protected" : "protected",
		   exporter.verdict.kept ? ", memory is kept" : "", said ? ", said so" : "",
		   wrong ? ": " : "", wrong ? wrong : "");
	}
	if (judge_failures() != before || getenv("FAULTS_SHOW"))
		judge_show();
}

/*
 * A process can't leave a namespace, so such a run has a process of its own, which
 * passes its results on.
 */
enum { CANNOT = 77 };

static void in_surroundings(const struct condition *condition)
{
	static const struct run plain;
	int found = memfd_create("found", MFD_CLOEXEC), status;
	pid_t child;

	fflush(stdout);
	child = found < 0 ? -1 : fork();
	if (child == 0) {
		if (own_mounts() || !condition->surround()) {
			if (errno != EPERM && errno != EACCES)
				cannot(condition->name);
			_exit(CANNOT);
		}
		judge_run(&plain);
		_exit(write(found, &exporter, sizeof exporter) != sizeof exporter ||
		      write(found, &importer, sizeof importer) != sizeof importer);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
		ok(false, "%s: the run comes to its end", condition->name);
	else if (WEXITSTATUS(status) == CANNOT)
		skip("%s: the kernel forbids it here", condition->name);
	else if (pread(found, &exporter, sizeof exporter, 0) != sizeof exporter ||
		 pread(found, &importer, sizeof importer, sizeof exporter) != sizeof importer)
		ok(false, "%s: the run can be judged", condition->name);
	else
		judge(condition, "", condition->where & EXPORTER);
	if (found >= 0)
		close(found);
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 && strcmp(argv[1], "--bare") ? argv[1] : NULL;
	char parent[600];

	bare = argc > 1 && !strcmp(argv[1], "--bare");
	if (!judge_folder()) {
		fprintf(stderr, "conditions: run.sh starts me\n");
		return 2;
	}
	snprintf(parent, sizeof parent, "%s", judge_folder());
	*strrchr(parent, '/') = 0;
	for (const struct condition *c = conditions; c < conditions + CONDITIONS; c++) {
		if (only && !strstr(c->name, only))
			continue;
		mkdir(parent, 0700);
		judge_empty_folder();
		if (c->surround) {
			in_surroundings(c);
			continue;
		}
		if (c->where & EXPORTER) {
			struct run run = { .exporter_condition = c->set };

			judge_run(&run);
			judge(c, " (exporter)", true);
		}
		if (c->where & IMPORTER) {
			struct run run = { .importer_condition = c->set };

			judge_empty_folder();
			judge_run(&run);
			judge(c, " (importer)", false);
		}
	}
	judge_empty_folder();
	return judge_end();
}
