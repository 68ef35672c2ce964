/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about imports of another process's memory, by each way that CUDA has: what does the driver say of the
 * pointer, and does anything say in two processes that they have the same allocation?
 *
 * Rule: The exporter is forked before this process calls CUDA, and ends with it.
 */
#include "probe_pools.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/kcmp.h>

enum kind { LEGACY, VIRTUAL, POOL, KINDS };
static const char *const kinds[] = { "cudaMalloc memory", "virtual memory", "a pool's block" };
/* cuda.h has these from later versions on. */
enum { GDR_CAPABLE = 15, ACCESS_FLAGS = 16, MEMPOOL = 17, MAPPING_SIZE = 18, MAPPING_BASE = 19, MEMORY_BLOCK_ID = 20 };

/* The descriptors: the first allocation, that once more, and another one; and of two pools the same. */
enum fd { FIRST, AGAIN, OTHER, FIRST_POOL, AGAIN_POOL, OTHER_POOL, FDS };

struct id {
	int result;
	unsigned long long value;
};

/* What the exporter tells.  It has two blocks of each kind. */
struct told {
	CUipcMemHandle handle[2];
	CUmemPoolPtrExportData data[2];
	int pid, fd[FDS];
	struct id buffer[KINDS][2], memory[KINDS][2];
	CUmemAllocationProp property[2];
};

static CUresult(CUDAAPI *import_memory)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);

static struct id attribute(CUdeviceptr pointer, int which)
{
	struct id id = { 0, 0 };

	id.result = (int)cu.cuPointerGetAttribute(&id.value, (CUpointer_attribute)which, pointer);
	return id;
}

static CUdeviceptr map(CUmemGenericAllocationHandle memory)
{
	CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr pointer;

	MUST(cu.cuMemAddressReserve(&pointer, LARGE, 0, 0, 0));
	MUST(cu.cuMemMap(pointer, LARGE, 0, memory, 0));
	MUST(cu.cuMemSetAccess(pointer, LARGE, &access, 1));
	return pointer;
}

static void begin_imports(void)
{
	void *library, *found;

	begin_pools();
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	found = library ? dlsym(library, "cuMemImportFromShareableHandle") : NULL;
	must(found ? 0 : -1, "dlsym of cuMemImportFromShareableHandle");
	memcpy(&import_memory, &found, sizeof(found));
}

/* ---------------------------------------------------------------------- the exporter */
static void export_all(int socket)
{
	CUmemAllocationProp wanted = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .requestedHandleTypes = POSIX_FD,
				       .location.type = CU_MEM_LOCATION_TYPE_DEVICE };
	CUmemGenericAllocationHandle memory[2];
	CUdeviceptr pointer[KINDS][2];
	CUmemoryPool pool[2];
	struct told told;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for kcmp under Yama */
	begin_imports();
	memset(&told, 0, sizeof(told));
	told.pid = (int)getpid();
	for (int i = 0; i < 2; i++) {
		MUST(cu.cuMemAlloc_v2(&pointer[LEGACY][i], LARGE));
		MUST(cu.cuIpcGetMemHandle(&told.handle[i], pointer[LEGACY][i]));
		MUST(cu.cuMemCreate(&memory[i], LARGE, &wanted, 0));
		MUST(cu.cuMemGetAllocationPropertiesFromHandle(&told.property[i], memory[i]));
		pointer[VIRTUAL][i] = map(memory[i]);
		pool[i] = new_pool(0, true);
	}
	for (int i = 0; i < 3; i++) {
		MUST(cu.cuMemExportToShareableHandle(&told.fd[i], memory[i == OTHER], POSIX_FD, 0));
		MUST(p.cuMemPoolExportToShareableHandle(&told.fd[FIRST_POOL + i], pool[i == OTHER], POSIX_FD, 0));
	}
	for (int i = 0; i < 2; i++) {
		pointer[POOL][i] = new_block(pool[0], LARGE, OURS);
		MUST(p.cuMemPoolExportPointer(&told.data[i], pointer[POOL][i]));
	}
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < 2; i++) {
			told.buffer[kind][i] = attribute(pointer[kind][i], CU_POINTER_ATTRIBUTE_BUFFER_ID);
			told.memory[kind][i] = attribute(pointer[kind][i], MEMORY_BLOCK_ID);
		}
	if (send_with(socket, &told, sizeof(told), -1))
		_exit(3);
	for (int i = 0; i < FDS; i++)
		if (send_with(socket, "", 1, told.fd[i]))
			_exit(3);
	receive_with(socket, &byte, 1, NULL);
	_exit(0);
}

/* ---------------------------------------------------------------------- the importer */
static struct told told;
static int fds[FDS]; /* received */

/* Imports, by kind: the first block, that once more, and the other one. */
static CUdeviceptr import[KINDS][3];
static CUmemGenericAllocationHandle imported[3];

static void begin_with_exporter(void)
{
	int ends[2];
	char byte;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends))
		exit(3);
	if (!fork()) {
		close(ends[0]);
		export_all(ends[1]);
	}
	close(ends[1]);
	snprintf(at, 128, "the exporter's part");
	must(receive_with(ends[0], &told, sizeof(told), NULL), "the exporter");
	for (int i = 0; i < FDS; i++)
		must(receive_with(ends[0], &byte, 1, &fds[i]), "the exporter");
	begin_imports();
}

static void import_all(void)
{
	CUmemoryPool pool;
	CUdeviceptr own;

	/* so that numbers which each process counts by itself are not alike by chance */
	for (int i = 0; i < 16; i++)
		MUST(cu.cuMemAlloc_v2(&own, LARGE));
	MUST(p.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fds[FIRST_POOL], POSIX_FD, 0));
	for (int i = 0; i < 3; i++) {
		MUST(cu.cuIpcOpenMemHandle_v2(&import[LEGACY][i], told.handle[i == OTHER], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		MUST(import_memory(&imported[i], (void *)(intptr_t)fds[i], POSIX_FD));
		import[VIRTUAL][i] = map(imported[i]);
		MUST(p.cuMemPoolImportPointer(&import[POOL][i], pool, &told.data[i == OTHER]));
	}
}

/* --------------------------------------------------- what the driver says of an import */
enum how { NUMBER, OF_POINTER, OF_CONTEXT };

/* What @id says, in words that are alike in each run. */
static const char *words(char to[64], struct id id, enum how how, CUdeviceptr pointer)
{
	long long off = (long long)(id.value - pointer);

	if (id.result)
		snprintf(to, 64, "error %d", id.result);
	else if (how == OF_CONTEXT)
		snprintf(to, 64, "%s", !id.value ? "none" : id.value == (uintptr_t)primary ? "the current one" : "another one");
	else if (how == OF_POINTER && id.value && off > -LARGE && off < LARGE)
		snprintf(to, 64, "the import's beginning %+lld", off);
	else if (how == OF_POINTER && id.value)
		snprintf(to, 64, "an address elsewhere");
	else
		snprintf(to, 64, "%llu", id.value);
	return to;
}

/* Each line tells one attribute of three pointers, which lie 4 KiB behind the beginnings of imports. */
static void import_attributes(void)
{
	static const struct {
		const char *name;
		int which;
		enum how how;
	} asks[] = {
		{ "CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT, OF_CONTEXT },
		{ "MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NUMBER },
		{ "DEVICE_POINTER", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, OF_POINTER },
		{ "HOST_POINTER", CU_POINTER_ATTRIBUTE_HOST_POINTER, OF_POINTER },
		{ "IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, NUMBER },
		{ "DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, NUMBER },
		{ "IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, NUMBER },
		{ "RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, OF_POINTER },
		{ "RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE, NUMBER },
		{ "MAPPED", CU_POINTER_ATTRIBUTE_MAPPED, NUMBER },
		{ "ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, NUMBER },
		{ "IS_GPU_DIRECT_RDMA_CAPABLE", GDR_CAPABLE, NUMBER },
		{ "ACCESS_FLAGS", ACCESS_FLAGS, NUMBER },
		{ "MEMPOOL_HANDLE", MEMPOOL, OF_POINTER },
		{ "MAPPING_SIZE", MAPPING_SIZE, NUMBER },
		{ "MAPPING_BASE_ADDR", MAPPING_BASE, OF_POINTER },
	};
	char text[KINDS][64];

	begin_with_exporter();
	import_all();
	measured("imports of %d bytes each, asked at byte 4096: %s; %s; %s", LARGE, kinds[0], kinds[1], kinds[2]);
	for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
		for (int kind = 0; kind < KINDS; kind++)
			words(text[kind], attribute(import[kind][0] + 4096, asks[i].which), asks[i].how, import[kind][0]);
		measured("%s: %s; %s; %s", asks[i].name, text[0], text[1], text[2]);
	}
	for (int kind = 0; kind < KINDS; kind++) {
		struct id id[3];

		for (int i = 0; i < 3; i++)
			id[i] = attribute(import[kind][i] + 4096, CU_POINTER_ATTRIBUTE_BUFFER_ID);
		measured("BUFFER_ID of an import of %s (%d): a second import of it, at %s address, has %s number; an import of another "
			 "block has %s", kinds[kind], id[0].result, import[kind][0] == import[kind][1] ? "the same" : "another",
			 id[0].value == id[1].value ? "the same" : "another", id[0].value == id[2].value ? "the same" : "another");
	}
}

/* ------------------------------------------------------ is it the same in two processes? */
enum { TEXT = 480 };

/*
 * @mine: of the first export, of the second one, and of the other allocation, in this process; @theirs of the first
 * export and of the other allocation in the exporter.  The simulated driver writes the allocation's number into the
 * descriptor's position, which the fdinfo tells.
 */
static void compare(const char *what, const char *by, char mine[3][TEXT], char theirs[2][TEXT])
{
	bool same = !strcmp(mine[FIRST], mine[AGAIN]) && !strcmp(mine[FIRST], theirs[0]);
	bool apart = strcmp(mine[FIRST], mine[OTHER]) && !strcmp(mine[OTHER], theirs[1]);

	measured("%s, %s: %s here, %s of the second export, %s of another one; in the exporter %s, %s of another one; identifies: %s",
		 what, by, mine[FIRST], mine[AGAIN], mine[OTHER], theirs[0], theirs[1], same && apart ? "yes" : "no");
}

/* The text of a file below /proc, its lines joined, without what differs for each copy of a descriptor. */
static void file_text(char to[TEXT], int pid, int fd)
{
	char path[64], line[256];
	size_t used = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
	file = fopen(path, "r");
	snprintf(to, TEXT, "%s", file ? "" : "not readable");
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		for (char *tab = line; (tab = strchr(tab, '\t'));)
			*tab = ' ';
		if (strncmp(line, "flags:", 6) && used + strlen(line) + 3 < TEXT)
			used += (size_t)snprintf(to + used, TEXT - used, "%s%s", used ? ", " : "", line);
	}
	if (file)
		fclose(file);
}

static void link_text(char to[TEXT], int pid, int fd)
{
	char path[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	n = readlink(path, to, TEXT - 1);
	to[n < 0 ? 0 : n] = 0;
	if (n < 0)
		snprintf(to, TEXT, "not readable");
}

static void stat_text(char to[TEXT], int pid, int fd)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	if (stat(path, &st))
		snprintf(to, TEXT, "not readable");
	else
		snprintf(to, TEXT, "%llx:%llu:%llx", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
			 (unsigned long long)st.st_rdev);
}

static void compare_files(const char *what, enum fd first)
{
	static const struct {
		const char *by;
		void (*text)(char to[TEXT], int pid, int fd);
	} ways[] = {
		{ "st_dev, st_ino and st_rdev of the descriptor", stat_text },
		{ "its link in /proc", link_text },
		{ "its fdinfo", file_text },
	};
	char mine[3][TEXT], theirs[2][TEXT];

	for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
		for (int i = 0; i < 3; i++)
			ways[way].text(mine[i], (int)getpid(), fds[first + i]);
		ways[way].text(theirs[0], told.pid, told.fd[first]);
		ways[way].text(theirs[1], told.pid, told.fd[first + OTHER]);
		compare(what, ways[way].by, mine, theirs);
	}
}

/* Returns how kcmp(2) says that the exporter's descriptor and ours stand: 0 is the same file. */
static const char *kcmp_words(char to[32], enum fd theirs, enum fd mine)
{
	long result = syscall(SYS_kcmp, told.pid, getpid(), KCMP_FILE, told.fd[theirs], fds[mine]);

	snprintf(to, 32, "%s", !result ? "the same file" : result > 0 ? "another file" : strerror(errno));
	return to;
}

static void compare_kcmp(const char *what, enum fd first)
{
	char same[32], again[32], other[32];

	kcmp_words(same, first, first);
	kcmp_words(again, first, first + AGAIN);
	kcmp_words(other, first, first + OTHER);
	measured("%s, kcmp(KCMP_FILE) of the exporter's descriptor and the received one: %s, with a second export %s, with that of another "
		 "one %s; identifies: %s", what, same, again, other,
		 !strcmp(again, "the same file") && !strcmp(other, "another file") ? "yes" :
		 !strcmp(same, "the same file") && !strcmp(other, "another file") ? "no, only copies of one descriptor" : "no");
}

static void id_text(char to[TEXT], struct id id)
{
	if (id.result)
		snprintf(to, TEXT, "error %d", id.result);
	else
		snprintf(to, TEXT, "%llu", id.value);
}

static void compare_ids(enum kind kind, const char *by, int which, const struct id their[2])
{
	char mine[3][TEXT], theirs[2][TEXT];

	for (int i = 0; i < 3; i++)
		id_text(mine[i], attribute(import[kind][i], which));
	for (int i = 0; i < 2; i++)
		id_text(theirs[i], their[i]);
	compare(kinds[kind], by, mine, theirs);
}

static void property_text(char to[TEXT], const CUmemAllocationProp *property)
{
	const unsigned char *bytes = (const unsigned char *)property;

	for (size_t i = 0; i < sizeof(*property) && 2 * i + 3 < TEXT; i++)
		snprintf(to + 2 * i, 3, "%02x", bytes[i]);
}

static void identity(void)
{
	char mine[3][TEXT], theirs[2][TEXT];

	begin_with_exporter();
	import_all();
	compare_files(kinds[VIRTUAL], FIRST);
	compare_kcmp(kinds[VIRTUAL], FIRST);
	for (int i = 0; i < 3; i++) {
		CUmemAllocationProp property;

		memset(&property, 0, sizeof(property));
		MUST(cu.cuMemGetAllocationPropertiesFromHandle(&property, imported[i]));
		property_text(mine[i], &property);
	}
	for (int i = 0; i < 2; i++)
		property_text(theirs[i], &told.property[i]);
	compare(kinds[VIRTUAL], "cuMemGetAllocationPropertiesFromHandle", mine, theirs);
	measured("virtual memory, the handles that the imports give: that of a second export is %s, that of another one %s",
		 imported[FIRST] == imported[AGAIN] ? "the same" : "another", imported[FIRST] == imported[OTHER] ? "the same" : "another");
	compare_files("a pool", FIRST_POOL);
	compare_kcmp("a pool", FIRST_POOL);
	for (int kind = 0; kind < KINDS; kind++) {
		compare_ids((enum kind)kind, "BUFFER_ID", CU_POINTER_ATTRIBUTE_BUFFER_ID, told.buffer[kind]);
		compare_ids((enum kind)kind, "MEMORY_BLOCK_ID", MEMORY_BLOCK_ID, told.memory[kind]);
	}
}

const struct more_question import_questions[] = {
	{ "import-attributes", import_attributes, 30000 },
	{ "identity", identity, 30000 },
	{ NULL, NULL, 0 },
};
