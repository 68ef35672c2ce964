/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program sees: driver calls, through whatever libcuda.so.1 and whatever
 * preload it was started with.  The same program is run bare and preloaded.
 *
 *   bench [--count] calls N     a process that shares nothing; then one with N exported blocks
 *   bench [--count] importer N  opens and closes, of another process's N blocks
 *   bench back N                last close, and an importer's death, to memory back; N times
 *   bench live N                N live exported blocks in one process
 *   bench pointers              which of the driver's calls are its own pointers
 *   bench syscalls CMD...       CMD's system calls and threads; BENCH_PRELOAD is for CMD alone
 *   bench spawn N CMD...        how long CMD takes, N times; BENCH_PRELOAD likewise
 */
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/harness.h"

#define SMALL 4096u
#define LARGE ((size_t)64 << 20)

/* ------------------------------------------------------------------ the driver */
static void *libcuda;
static struct calls {
	CUresult (*init)(unsigned int);
	CUresult (*device)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*set_current)(CUcontext);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
	CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
	CUresult (*free_async)(CUdeviceptr, CUstream);
	CUresult (*stream)(CUstream *, unsigned int);
	CUresult (*stream_sync)(CUstream);
	CUresult (*handle)(CUipcMemHandle *, CUdeviceptr);
	CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int);
	CUresult (*close)(CUdeviceptr);
	CUresult (*info)(size_t *, size_t *);
	CUresult (*proc_address)(const char *, void **, int, cuuint64_t);
} cu, drivers; /* what the program is given, and the driver's own */

static void *look(const char *name)
{
	void *p = dlsym(libcuda, name);

	if (!p)
		DIE("the driver has no %s", name);
	return p;
}

#define CHECKED(call)                                                             \
	do {                                                                      \
		CUresult result_ = (call);                                        \
		if (result_ != CUDA_SUCCESS)                                      \
			DIE("%s: CUDA error %d", #call, (int)result_);            \
	} while (0)

/* Each function that the file of libcuda defines, with its address as the file has it. */
static void each_function(void (*with)(const char *name, void *address))
{
	struct link_map *map;
	const uint8_t *file;
	const ElfW(Ehdr) *elf;
	const ElfW(Shdr) *section;
	struct stat st;
	int fd;

	MUST(dlinfo(libcuda, RTLD_DI_LINKMAP, &map) == 0);
	fd = open(map->l_name, O_RDONLY | O_CLOEXEC);
	MUST(fd >= 0 && fstat(fd, &st) == 0);
	file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	MUST(file != MAP_FAILED);
	close(fd);
	elf = (const void *)file;
	section = (const void *)(file + elf->e_shoff);
	for (unsigned int s = 0; s < elf->e_shnum; s++) {
		const ElfW(Sym) *symbol = (const void *)(file + section[s].sh_offset);
		const char *names;

		if (section[s].sh_type != SHT_DYNSYM)
			continue;
		names = (const char *)file + section[section[s].sh_link].sh_offset;
		for (uint64_t i = 0; i < section[s].sh_size / sizeof *symbol; i++)
			if (ELF64_ST_TYPE(symbol[i].st_info) == STT_FUNC && symbol[i].st_shndx)
				with(names + symbol[i].st_name, (void *)(map->l_addr + symbol[i].st_value));
	}
	munmap((void *)file, (size_t)st.st_size);
}

static void is_drivers(const char *name, void *address)
{
	static const struct {
		const char *name;
		void *at;
	} measured[] = {
		{ "cuMemAlloc_v2", &drivers.alloc },
		{ "cuMemFree_v2", &drivers.free },
		{ "cuMemAllocAsync", &drivers.alloc_async },
		{ "cuMemFreeAsync", &drivers.free_async },
		{ "cuIpcGetMemHandle", &drivers.handle },
		{ "cuIpcOpenMemHandle_v2", &drivers.open },
		{ "cuIpcCloseMemHandle", &drivers.close },
	};

	for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++)
		if (!strcmp(name, measured[i].name))
			memcpy(measured[i].at, &address, sizeof address);
}

static void driver_load(void)
{
	libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!libcuda)
		DIE("%s", dlerror());
	*(void **)&cu.init = look("cuInit");
	*(void **)&cu.device = look("cuDeviceGet");
	*(void **)&cu.retain = look("cuDevicePrimaryCtxRetain");
	*(void **)&cu.set_current = look("cuCtxSetCurrent");
	*(void **)&cu.alloc = look("cuMemAlloc_v2");
	*(void **)&cu.free = look("cuMemFree_v2");
	*(void **)&cu.alloc_async = look("cuMemAllocAsync");
	*(void **)&cu.free_async = look("cuMemFreeAsync");
	*(void **)&cu.stream = look("cuStreamCreate");
	*(void **)&cu.stream_sync = look("cuStreamSynchronize");
	*(void **)&cu.handle = look("cuIpcGetMemHandle");
	*(void **)&cu.open = look("cuIpcOpenMemHandle_v2");
	*(void **)&cu.close = look("cuIpcCloseMemHandle");
	*(void **)&cu.info = look("cuMemGetInfo_v2");
	*(void **)&cu.proc_address = look("cuGetProcAddress");
	drivers = cu;
	each_function(is_drivers);
}

static void *idle(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/*
 * A real driver has threads.  The simulated one has none, and in a process of one
 * thread libc's locks are cheaper: without atomic instructions.
 */
static void have_threads(void)
{
	pthread_t thread;

	MUST(bench_counting || !pthread_create(&thread, NULL, idle, NULL));
}

static void driver_start(void)
{
	CUcontext ctx;
	CUdevice device;

	have_threads();
	driver_load();
	CHECKED(cu.init(0));
	CHECKED(cu.device(&device, 0));
	CHECKED(cu.retain(&ctx, device));
	CHECKED(cu.set_current(ctx));
}

/*
 * What culimbo adds to @op, by turns in one process: a few by the pointers that
 * the program was given, a few by the driver's own, the first of them in turn.  A
 * line "NAME-more ns VALUE" for each pair, per operation.  What a machine does
 * meanwhile meets both; bare, the line says what is left of it.
 */
#define TURN 50u
struct turn {
	const char *name;
	void (*op)(uint64_t);
	uint64_t run;
};
static double timed_turn(struct turn *turn)
{
	uint64_t start = bench_now();

	for (unsigned int i = 0; i < TURN; i++)
		turn->op(turn->run++);
	return (double)(bench_now() - start) / TURN;
}

static void say_more(const struct turn *turn, double ns)
{
	char more[64];

	snprintf(more, sizeof more, "%s-more", turn->name);
	say_ns(more, ns);
}

/* @back, if there is one, takes back what @op did. */
static void measure_both_turns(struct turn op, struct turn back, unsigned int pairs)
{
	const struct calls given = cu;

	for (unsigned int pair = 0; pair < pairs && !bench_counting; pair++) {
		double took[2], took_back[2] = { 0, 0 };

		for (unsigned int turn = 0; turn < 2; turn++) {
			bool own = (turn ^ pair) & 1;

			cu = own ? drivers : given;
			took[own] = timed_turn(&op);
			if (back.op)
				took_back[own] = timed_turn(&back);
		}
		say_more(&op, took[0] - took[1]);
		if (back.op)
			say_more(&back, took_back[0] - took_back[1]);
	}
	cu = given;
}

static void measure_turns(const char *name, void (*op)(uint64_t), unsigned int pairs)
{
	measure_both_turns((struct turn){ .name = name, .op = op }, (struct turn){ .op = NULL }, pairs);
}

/* ------------------------------------------------------------- two processes */
/* What they tell each other; each counter is written by one side. */
static struct board {
	_Atomic uint32_t told, done;
	_Atomic uint32_t blocks;
	CUipcMemHandle handle[];
} *board;

static int board_fd = -1; /* a memory file, so that a program that is started finds it */

static void make_board(uint64_t handles)
{
	size_t bytes = sizeof *board + handles * sizeof board->handle[0];

	if (board_fd < 0) {
		board_fd = memfd_create("bench", 0);
		MUST(board_fd >= 0 && ftruncate(board_fd, (off_t)bytes) == 0);
	}
	board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
	MUST(board != MAP_FAILED);
}
static void wait_for(_Atomic uint32_t *what, uint32_t value)
{
	uint64_t end = bench_now() + 120000000000u;

	while (atomic_load(what) < value) {
		MUST(bench_now() < end);
		nanosleep(&(struct timespec){ 0, 100000 }, NULL);
	}
}
/* A child made before there is any CUDA. */
static pid_t helper_start(void (*body)(void))
{
	pid_t child = fork();

	MUST(child >= 0);
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	body();
	_exit(0);
}

/* ------------------------------------------------------------------- its calls */
static CUstream stream;
static CUdeviceptr *blocks;
static uint64_t blocks_n;

static void op_pair(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	CHECKED(cu.alloc(&p, SMALL));
	CHECKED(cu.free(p));
}
static void op_pair_async(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	CHECKED(cu.alloc_async(&p, SMALL, stream));
	CHECKED(cu.free_async(p, stream));
}
static void op_handle_again(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	CHECKED(cu.handle(&handle, blocks[blocks_n / 2]));
}
/* Another one each time: what no cache of the processor has. */
static void op_handle_any(uint64_t run)
{
	CUipcMemHandle handle;

	CHECKED(cu.handle(&handle, blocks[run * 7919 % blocks_n]));
}
/* The blocks are there for each; what is measured is the export. */
static void op_export(uint64_t run)
{
	CUipcMemHandle handle;

	(void)run;
	CHECKED(cu.handle(&handle, blocks[blocks_n++]));
}

static int calls(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), start;
	unsigned int each = 1000;
	CUdeviceptr kept;
	uint64_t total = n + measure_runs(each);

	(void)argc;
	driver_start();
	CHECKED(cu.stream(&stream, CU_STREAM_NON_BLOCKING));
	/* one stays, so that the driver keeps the memory it takes small ones from */
	CHECKED(cu.alloc(&kept, 512));
	CHECKED(cu.alloc_async(&kept, 512, stream));
	CHECKED(cu.stream_sync(stream));
	for (int i = 0; i < 1000; i++) { /* the driver's own warming up */
		op_pair(0);
		op_pair_async(0);
	}
	measure("pair", op_pair, 2000);
	measure("pair-async", op_pair_async, 5000);
	measure_turns("pair", op_pair, 400);
	measure_turns("pair-async", op_pair_async, 400);
	CHECKED(cu.stream_sync(stream));
	blocks = calloc(total, sizeof blocks[0]);
	MUST(blocks);
	for (uint64_t i = 0; i < total; i++)
		CHECKED(cu.alloc(&blocks[i], 512));
	start = bench_now();
	while (blocks_n < n)
		op_export(0);
	say_ns("export-new-all", (double)(bench_now() - start) / (double)n);
	measure("export-new", op_export, each);
	measure("export-again", op_handle_again, 5000);
	measure("export-again-any", op_handle_any, 5000);
	measure("pair-sharing", op_pair, 2000);
	measure("pair-async-sharing", op_pair_async, 5000);
	measure_turns("export-again", op_handle_again, 400);
	measure_turns("export-again-any", op_handle_any, 400);
	measure_turns("pair-sharing", op_pair, 400);
	measure_turns("pair-async-sharing", op_pair_async, 400);
	CHECKED(cu.stream_sync(stream));
	return 0;
}

/* --------------------------------------------------------------- the importer */
static void exporter_helper(void)
{
	CUdeviceptr p;

	driver_start();
	for (uint32_t i = 0; i < board->blocks; i++) {
		CHECKED(cu.alloc(&p, 512));
		CHECKED(cu.handle(&board->handle[i], p));
	}
	atomic_store(&board->done, 1);
	for (;;)
		pause();
}

static CUdeviceptr *opened;
static uint64_t used;

static void op_open_new(uint64_t run)
{
	(void)run;
	CHECKED(cu.open(&opened[used], board->handle[used], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	used++;
}
static void op_close_last(uint64_t run)
{
	(void)run;
	CHECKED(cu.close(opened[used++]));
}
static void op_open_again(uint64_t run)
{
	CUdeviceptr p;

	(void)run;
	CHECKED(cu.open(&p, board->handle[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}
static void op_close_again(uint64_t run)
{
	(void)run;
	CHECKED(cu.close(opened[0]));
}

/* The same TURN blocks again and again: new each time, and closed for the last time. */
static void op_open_turn(uint64_t run)
{
	CHECKED(cu.open(&opened[run % TURN], board->handle[run % TURN],
			CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}
static void op_close_turn(uint64_t run)
{
	CHECKED(cu.close(opened[run % TURN]));
}

static int importer(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0);
	pid_t helper;

	(void)argc;
	MUST(n >= measure_runs(200) + 1 && n >= TURN);
	make_board(n);
	board->blocks = (uint32_t)n;
	helper = helper_start(exporter_helper);
	wait_for(&board->done, 1);
	driver_start();
	opened = calloc(n, sizeof opened[0]);
	MUST(opened);
	op_open_new(0); /* the exporter is known from here on */
	measure("open-new", op_open_new, 200);
	measure("open-again", op_open_again, 1000);
	measure("close-again", op_close_again, 1000);
	used = 1;
	measure("close-last", op_close_last, 200);
	op_close_again(0);
	measure_both_turns((struct turn){ .name = "open-new", .op = op_open_turn },
			   (struct turn){ .name = "close-last", .op = op_close_turn }, 400);
	kill(helper, SIGKILL);
	waitpid(helper, NULL, 0);
	return 0;
}

/* --------------------------------------------------------------- memory back */
static size_t free_memory(void)
{
	size_t unused, total;

	CHECKED(cu.info(&unused, &total));
	return unused;
}

static void back_exporter(void)
{
	uint32_t step = 0;
	CUdeviceptr p;

	driver_start();
	for (;;) {
		CHECKED(cu.alloc(&p, LARGE));
		CHECKED(cu.handle(&board->handle[0], p));
		atomic_store(&board->done, ++step); /* odd: here it is */
		wait_for(&board->told, step);
		CHECKED(cu.free(p)); /* the other has it open */
		atomic_store(&board->done, ++step); /* even: freed, and asleep */
		wait_for(&board->told, step);
	}
}

/* The importer that is killed; the descriptor of the board is its argument. */
static int victim(int argc, char **argv)
{
	CUdeviceptr p;

	(void)argc;
	board_fd = atoi(argv[0]);
	make_board(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	driver_start();
	CHECKED(cu.open(&p, board->handle[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	atomic_store(&board->blocks, 1);
	for (;;)
		pause();
}

/* From when @done was until the driver has LARGE more than @before. */
static void say_back(const char *name, uint64_t start, size_t before)
{
	uint64_t end = start + 5000000000u;

	while (free_memory() < before + LARGE)
		if (bench_now() > end) {
			say_ns(name, 5e9); /* never, as far as anybody waits */
			return;
		}
	say_ns(name, (double)(bench_now() - start));
}

static int back(int argc, char **argv)
{
	int n = atoi(argv[0]);
	uint32_t step = 0;
	char fd[16];

	(void)argc;
	make_board(1);
	snprintf(fd, sizeof fd, "%d", board_fd);
	helper_start(back_exporter);
	wait_for(&board->done, 1);
	driver_start();
	for (int i = 0; i < n; i++) {
		bool killed = i % 5 == 4; /* each of those starts CUDA anew */
		uint64_t start;
		CUdeviceptr p = 0;
		pid_t child = 0;
		size_t before;

		wait_for(&board->done, ++step);
		if (killed) {
			atomic_store(&board->blocks, 0);
			/* not a fork: this process has CUDA */
			MUST(!posix_spawn(&child, "/proc/self/exe", NULL, NULL,
					  (char *[]){ (char *)"bench", (char *)"victim", fd, NULL }, environ));
			wait_for(&board->blocks, 1);
		} else {
			CHECKED(cu.open(&p, board->handle[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		}
		atomic_store(&board->told, step);
		wait_for(&board->done, ++step);
		/* the grace is over, and the collector lies down */
		nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
		before = free_memory();
		start = bench_now();
		if (killed)
			kill(child, SIGKILL);
		else
			CHECKED(cu.close(p));
		say_back(killed ? "kill-to-back" : "close-to-back", start, before);
		if (killed)
			waitpid(child, NULL, 0);
		atomic_store(&board->told, step);
	}
	return 0;
}

/* ---------------------------------------------------------------- live blocks */
static int live(int argc, char **argv)
{
	uint64_t n = strtoull(argv[0], NULL, 0), start;
	CUdeviceptr *p = calloc(n, sizeof *p);
	CUipcMemHandle handle;

	(void)argc;
	MUST(p);
	driver_start();
	for (uint64_t i = 0; i < n; i++)
		CHECKED(cu.alloc(&p[i], 512));
	start = bench_now();
	for (uint64_t i = 0; i < n; i++)
		CHECKED(cu.handle(&handle, p[i]));
	say_ns("live-export", (double)(bench_now() - start) / (double)n);
	say_value("live", (double)n, "blocks");
	return 0;
}

/* ------------------------------------------------------------------- pointers */
static bool asked_for(const char *name, void **asked)
{
	return cu.proc_address(name, asked, 13000, 0) == CUDA_SUCCESS && *asked;
}

static struct {
	unsigned int own, others, asked_own, asked_others;
} pointing;

static void look_at_function(const char *name, void *address)
{
	void *asked = NULL;
	Dl_info info;

	if (strncmp(name, "cu", 2))
		return;
	if (dlsym(libcuda, name) == address)
		pointing.own++;
	else if (pointing.others++, true)
		printf("hooked %s\n", name);
	/* what cuGetProcAddress gives is some version of it; which, is the driver's choice */
	if (strchr(name, '_') || !asked_for(name, &asked))
		return;
	MUST(dladdr(asked, &info));
	if (strstr(info.dli_fname, "libculimbo"))
		pointing.asked_others++;
	else
		pointing.asked_own++;
}

static int pointers(int argc, char **argv)
{
	(void)argc, (void)argv;
	driver_load();
	each_function(look_at_function);
	say_value("pointers-own", pointing.own, "functions");
	say_value("pointers-hooked", pointing.others, "functions");
	say_value("asked-own", pointing.asked_own, "functions");
	say_value("asked-hooked", pointing.asked_others, "functions");
	return 0;
}

/* ---------------------------------------------------------------------- spawn */
static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int run_many(int n, char **cmd)
{
	const char *preload = getenv("BENCH_PRELOAD");
	double *bare = calloc((size_t)n, sizeof *bare), *with = calloc((size_t)n, sizeof *with);

	MUST(bare && with);
	for (int i = 0; i < 2 * n; i++) {
		uint64_t start = bench_now();
		pid_t child;
		int status;

		if (i % 2 && preload)
			setenv("LD_PRELOAD", preload, 1);
		else
			unsetenv("LD_PRELOAD");
		MUST(!posix_spawnp(&child, cmd[0], NULL, NULL, cmd, environ));
		MUST(waitpid(child, &status, 0) == child);
		(i % 2 ? with : bare)[i / 2] = (double)(bench_now() - start);
	}
	qsort(bare, (size_t)n, sizeof *bare, by_size);
	qsort(with, (size_t)n, sizeof *with, by_size);
	say_ns("spawn-bare", bare[n / 2]);
	say_ns("spawn-preloaded", with[n / 2]);
	say_ns("spawn-bare-least", bare[0]);
	say_ns("spawn-preloaded-least", with[0]);
	return 0;
}

/* ------------------------------------------------------------------------ main */
static const struct {
	const char *name;
	int (*body)(int, char **);
} bodies[] = {
	{ "calls", calls }, { "importer", importer }, { "back", back },	{ "victim", victim },
	{ "live", live },   { "pointers", pointers },
};

int main(int argc, char **argv)
{
	argv++;
	if (*argv && !strcmp(*argv, "--count")) {
		bench_counting = true;
		argv++;
	}
	if (!*argv)
		goto usage;
	if (!strcmp(argv[0], "syscalls") && argv[1])
		return bench_syscalls(argv + 1);
	if (!strcmp(argv[0], "spawn") && argv[1] && argv[2])
		return run_many(atoi(argv[1]), argv + 2);
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
		if (!strcmp(bodies[i].name, argv[0]) && (argv[1] || !strcmp(argv[0], "pointers")))
			return bench_run(bodies[i].body, argc, argv + 1, "libculimbo");
usage:
	fprintf(stderr, "Usage: bench [--count] calls N | importer N | back N | live N | pointers | "
			"syscalls CMD... | spawn N CMD...\n");
	return 2;
}
