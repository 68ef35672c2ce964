/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the supervisors: see supervisor.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/cuda_door.h"
#include "tests/torture/chance.h"
#include "tests/torture/supervisor.h"

struct supervisor supervisor;
static int observer = -1;

void *supervisor_begin(bool gpu, size_t size, int *fd)
{
	const char *given = getenv("TORTURE_SEED");
	void *shared;

	supervisor.folder = getenv("TORTURE_DIR");
	supervisor.build = getenv("TORTURE_BUILD");
	supervisor.self = realpath("/proc/self/exe", NULL);
	supervisor.gpu = gpu;
	if (!supervisor.folder || !supervisor.build || !supervisor.self || !getenv("CULIMBO_DIR") || !given)
		bail("started by %s.sh only", program_invocation_short_name);
	supervisor.seed = strtoull(given, NULL, 0);
	/* this process adopts grandchildren whose parents end */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	*fd = memfd_create("torture", 0);
	if (*fd < 0 || ftruncate(*fd, (off_t)size))
		bail("memfd: %s", strerror(errno));
	shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (shared == MAP_FAILED)
		bail("mmap: %s", strerror(errno));
	return shared;
}

void ok(bool holds, const char *format, ...)
{
	va_list args;

	supervisor.failed |= !holds;
	printf("%sok - ", holds ? "" : "not ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

void bail(const char *format, ...)
{
	va_list args;

	printf("Bail out! ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	exit(1);
}

void nap_ms(unsigned int ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	nanosleep(&t, NULL);
}

static bool read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return n > 0;
}

/* ---------------------------------------------------------------- processes */
static int open_log(const char *name, const char *kind)
{
	char path[600];
	int fd;

	snprintf(path, sizeof(path), "%s/%s.%s", supervisor.folder, name, kind);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		bail("%s: %s", path, strerror(errno));
	return fd;
}

pid_t start(const char *name, const char *role, int fd, unsigned int number, bool bare)
{
	char command[600], fd_text[16], number_text[16];
	const char *argv[12];
	int n = 0, out, err;
	pid_t pid;

	snprintf(command, sizeof(command), "%s/tools/culimbo", supervisor.build);
	snprintf(fd_text, sizeof(fd_text), "%d", fd);
	snprintf(number_text, sizeof(number_text), "%u", number);
	if (!supervisor.gpu || !bare) {
		argv[n++] = command;
		argv[n++] = "run";
		if (!supervisor.gpu)
			argv[n++] = "--simulate";
		if (bare)
			argv[n++] = "--no-preload";
		argv[n++] = "--";
	}
	argv[n++] = supervisor.self;
	argv[n++] = role;
	argv[n++] = fd_text;
	argv[n++] = number_text;
	argv[n] = NULL;
	out = open_log(name, "out");
	err = open_log(name, "err");
	pid = fork();
	if (pid < 0)
		bail("fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == 1 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
			_exit(124);
		setenv("TEST_DOOR", number % 2 ? "getproc" : "dlsym", 1);
		if (number % 4 == 3)
			setenv("CULIMBO_COLLECTOR", "inline", 1);
		if (number % 3)
			setenv("CULIMBO_SHARE", "all", 1);
		execv(argv[0], (char **)(uintptr_t)argv);
		fprintf(stderr, "%s: ERROR: %s: %s\n", program_invocation_short_name, argv[0],
			strerror(errno));
		_exit(124);
	}
	close(out);
	close(err);
	return pid;
}

void print_process(pid_t pid)
{
	static const char *const names[] = { "wchan", "syscall" };
	char path[64], text[256], state = '?';
	const char *after;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (read_text(path, text, sizeof(text)) && (after = strrchr(text, ')')) && after[1])
		state = after[2];
	printf("; state %c", state);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, names[i]);
		if (read_text(path, text, sizeof(text)))
			printf(", %s %.*s", names[i], (int)strcspn(text, " "), text);
	}
}

int observe(int fd, unsigned int last)
{
	CUcontext context[OBSERVED];
	struct memory memory;
	size_t free_bytes, total;
	CUdevice device;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (last >= OBSERVED || cuda_door_open() || cu.cuInit(0))
		return 1;
	for (unsigned int i = 0; i <= last; i++)
		if (cu.cuDeviceGet(&device, (int)i) || cu.cuDevicePrimaryCtxRetain(&context[i], device))
			return 1;
	while (read(fd, &byte, 1) == 1) {
		memory = (struct memory){ .free = 0 };
		for (unsigned int i = 0; i <= last; i++) {
			if (cu.cuCtxSetCurrent(context[i]) || cu.cuMemGetInfo_v2(&free_bytes, &total))
				return 1;
			memory.free += free_bytes;
			memory.free_of[i] = free_bytes;
			memory.total += total;
		}
		if (write(fd, &memory, sizeof(memory)) != sizeof(memory))
			return 1;
	}
	return 0;
}

struct memory look(void)
{
	struct pollfd ready = { .fd = observer, .events = POLLIN };
	struct memory memory;

	if (send(observer, "?", 1, MSG_NOSIGNAL) != 1 || poll(&ready, 1, 30000) != 1 ||
	    read(observer, &memory, sizeof(memory)) != sizeof(memory))
		bail("the observer does not answer (see its .err)");
	return memory;
}

void start_observer(unsigned int last)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		bail("socketpair: %s", strerror(errno));
	fcntl(pair[0], F_SETFD, FD_CLOEXEC);
	start("observer", "observe", pair[1], last, true);
	close(pair[1]);
	observer = pair[0];
	look();
}

int play_role(int argc, char **argv, size_t size, int (*play)(void *table, uint32_t number, char **argv))
{
	void *table;

	if (argc != 4)
		return -1;
	if (!strcmp(argv[1], "observe"))
		return observe(atoi(argv[2]), (unsigned int)atoi(argv[3]));
	if (!strcmp(argv[1], "share"))
		return share_once();
	if (strcmp(argv[1], "play"))
		return -1;
	table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
	return table == MAP_FAILED ? 2 : play(table, (uint32_t)atoi(argv[3]), argv);
}

uint64_t in_limbos(void)
{
	uint64_t all = 0;
	unsigned long n;
	char command[600], state[32];
	FILE *lines;

	snprintf(command, sizeof(command), "'%s/tools/culimbo' ps --raw --noheadings -o STATE,LIMBO",
		 supervisor.build);
	lines = popen(command, "re");
	if (!lines)
		return UINT64_MAX;
	while (fscanf(lines, "%31s %lu", state, &n) == 2)
		if (!strcmp(state, "alive"))
			all += n;
	return pclose(lines) ? UINT64_MAX : all;
}

/* Prints what a command of `culimbo` says, as comments of TAP. */
static void print_tool(const char *arguments)
{
	char command[700], line[400];
	FILE *lines;

	snprintf(command, sizeof(command), "'%s/tools/culimbo' %s 2>&1", supervisor.build, arguments);
	fflush(stdout);
	lines = popen(command, "re");
	printf("# culimbo %s\n", arguments);
	while (lines && fgets(line, sizeof(line), lines))
		printf("#   %.*s\n", (int)strcspn(line, "\n"), line);
	if (lines)
		pclose(lines);
}

void print_limbos(void)
{
	char command[700], arguments[100], id[80];
	FILE *lines;

	print_tool("ps");
	snprintf(command, sizeof(command), "'%s/tools/culimbo' blocks --raw --noheadings --state=limbo --limit=8 -o ID",
		 supervisor.build);
	lines = popen(command, "re");
	while (lines && fscanf(lines, "%79s", id) == 1) {
		snprintf(arguments, sizeof(arguments), "show %s", id);
		print_tool(arguments);
	}
	if (lines)
		pclose(lines);
	fflush(stdout);
}

void observer_end(void)
{
	close(observer);
	observer = -1;
}

/* ------------------------------------------------------------ one more that shares */
int share_once(void)
{
	CUipcMemHandle handle;
	CUdeviceptr address;
	CUcontext context;
	CUdevice device;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return cuda_door_open() || cu.cuInit(0) || cu.cuDeviceGet(&device, 0) ||
	       cu.cuDevicePrimaryCtxRetain(&context, device) || cu.cuCtxSetCurrent(context) ||
	       cu.cuMemAlloc_v2(&address, 1024) || cu.cuIpcGetMemHandle(&handle, address) ||
	       cu.cuMemFree_v2(address);
}

bool one_more(uint64_t most_ns)
{
	pid_t pid = start("one-more", "share", 0, 0, false);
	uint64_t deadline = torture_now() + most_ns;
	int status = -1;

	while (waitpid(pid, &status, WNOHANG) != pid) {
		if (torture_now() > deadline) {
			kill(pid, SIGKILL);
			return false;
		}
		nap_ms(2);
	}
	return status == 0;
}

int files(void)
{
	DIR *directory = opendir(getenv("CULIMBO_DIR"));
	struct dirent *entry;
	int n = 0;

	if (!directory)
		return 0;
	while ((entry = readdir(directory)))
		n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	closedir(directory);
	return n;
}

void print_files(void)
{
	DIR *directory = opendir(getenv("CULIMBO_DIR"));
	struct dirent *entry;

	while (directory && (entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			printf("# left: %s\n", entry->d_name);
	if (directory)
		closedir(directory);
}

/* ------------------------------------------------------------------ reports */
static uint64_t field(const char *line, const char *name)
{
	const char *at = strstr(line, name);

	return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

unsigned int read_reports(const pid_t *last, unsigned int n, uint64_t *reclaimed, uint64_t *in_limbo)
{
	unsigned int reported = 0;
	uint64_t limbo;
	bool said;
	char path[600], line[1024];
	struct dirent *entry;
	DIR *directory;

	snprintf(path, sizeof(path), "%s/reports", supervisor.folder);
	directory = opendir(path);
	while (directory && (entry = readdir(directory))) {
		FILE *file;

		if (*entry->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "%s/reports/%s", supervisor.folder, entry->d_name);
		file = fopen(path, "re");
		limbo = 0;
		said = false;
		while (file && fgets(line, sizeof(line), file)) {
			/* a process that shared nothing since it began anew says that in one line, without sums */
			said = said || strstr(line, ": it shared no GPU memory");
			if (!strstr(line, "culimbo: SUMMARY"))
				continue;
			*reclaimed += field(line, " reclaimed=");
			/* pids are reused: the last process that wrote is the right one */
			limbo = field(line, " limbo=");
			said = true;
		}
		if (file)
			fclose(file);
		for (unsigned int i = 0; said && i < n; i++)
			if ((uint64_t)last[i] == strtoull(entry->d_name, NULL, 10)) {
				reported++;
				*in_limbo += limbo;
			}
	}
	if (directory)
		closedir(directory);
	return reported;
}

int files_left(uint64_t each_ns, uint64_t all_ns)
{
	uint64_t deadline = torture_now() + all_ns;
	bool one;

	while ((one = one_more(each_ns)) && files() && torture_now() < deadline) {
		print_files();
		nap_ms(500);
	}
	return one ? files() : -1;
}
