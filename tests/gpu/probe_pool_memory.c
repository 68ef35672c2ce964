/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A question about shared pools (probe_pools.h): when does the device get a pool's memory back while
 * its process lives?  Each way to use a pool is played once, with a block of 64 MiB, and the free memory
 * is printed after each step.
 *
 * Rule: All importers are forked before this process calls CUDA.
 */
#include "probe_pools.h"

#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 64 << 20 };
enum imported {
	NOBODY,
	CLOSED, /* imported, freed, the imported pool destroyed; the importer lives on */
	ENDED,	/* so, and the importer ends before the exporter frees */
	KILLED, /* the importer ends while it maps the block */
	MAPPED, /* it maps the block until after the pool's end */
};
static const char *const imported_text[] = { "nobody imports it", "an importer frees it and lives", "an importer frees it and ends",
					     "an importer ends with it", "an importer maps it longer than the pool lives" };

static const struct way {
	bool keeps; /* the greatest release threshold, else 0 */
	bool pointer; /* the block is exported, not only the pool */
	enum imported imported;
} ways[] = {
	{ false, false, NOBODY }, { true, false, NOBODY }, { false, true, NOBODY }, { true, true, NOBODY },
	{ false, true, CLOSED },  { true, true, CLOSED },  { false, true, ENDED },  { true, true, ENDED },
	{ false, true, KILLED },  { true, true, KILLED },  { false, true, MAPPED }, { true, true, MAPPED },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

struct importer {
	pid_t pid;
	int socket;
};

static void import_one(int socket, enum imported how)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool pool;
	CUdeviceptr pointer;
	char word = 0;
	int fd = -1;

	if (receive_with(socket, &data, sizeof(data), &fd))
		_exit(0);
	begin_pools();
	MUST(p.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, POSIX_FD, 0));
	MUST(p.cuMemPoolImportPointer(&pointer, pool, &data));
	close(fd);
	if (how == CLOSED || how == ENDED) {
		MUST(cu.cuMemFree_v2(pointer));
		MUST(p.cuMemPoolDestroy(pool));
	}
	MUST(write(socket, &word, 1) == 1 ? 0 : -1);
	if (how == CLOSED || how == MAPPED)
		MUST(read(socket, &word, 1) == 1 ? 0 : -1);
	_exit(0);
}

static struct importer fork_importer(enum imported how)
{
	struct importer importer = { .pid = -1 };
	int pair[2];

	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	importer.pid = fork();
	MUST(importer.pid < 0);
	if (!importer.pid) {
		close(pair[0]);
		import_one(pair[1], how);
	}
	close(pair[1]);
	importer.socket = pair[0];
	return importer;
}

static long free_mib(void)
{
	size_t free_bytes, total;

	MUST(cu.cuMemGetInfo_v2(&free_bytes, &total));
	return (long)(free_bytes >> 20);
}

static void play(const struct way *way, const struct importer *importer)
{
	uint64_t threshold = way->keeps ? UINT64_MAX : 0;
	long before, freed, trimmed, destroyed, closed, ended;
	CUmemPoolPtrExportData data;
	CUmemoryPool pool;
	CUdeviceptr block;
	char word = 0;
	int fd;

	before = free_mib();
	pool = new_pool(0, true);
	MUST(p.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	block = new_block(pool, BLOCK, OURS);
	MUST(p.cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0));
	if (way->pointer)
		MUST(p.cuMemPoolExportPointer(&data, block));
	if (way->imported != NOBODY) {
		MUST(send_with(importer->socket, &data, sizeof(data), fd));
		MUST(read(importer->socket, &word, 1) == 1 ? 0 : -1);
		if (way->imported == ENDED || way->imported == KILLED)
			MUST(waitpid(importer->pid, NULL, 0) == importer->pid ? 0 : -1);
	}
	MUST(cu.cuMemFreeAsync(block, stream));
	MUST(cu.cuStreamSynchronize(stream));
	freed = free_mib();
	/* the trim of a pool that was imported from has ended its process (fact 31) */
	if (way->imported == NOBODY)
		MUST(p.cuMemPoolTrimTo(pool, 0));
	trimmed = free_mib();
	MUST(p.cuMemPoolDestroy(pool));
	destroyed = free_mib();
	close(fd);
	MUST(cu.cuCtxSynchronize());
	closed = free_mib();
	if (way->imported == CLOSED || way->imported == MAPPED) {
		MUST(write(importer->socket, &word, 1) == 1 ? 0 : -1);
		MUST(waitpid(importer->pid, NULL, 0) == importer->pid ? 0 : -1);
	}
	ended = free_mib();
	measured("threshold %s, %s, %s: MiB not back after the free %ld, a trim %ld, the pool's destroy %ld, its descriptor's close %ld, "
		 "the importer's end %ld",
		 way->keeps ? "max" : "0", way->pointer ? "a block exported" : "no block exported", imported_text[way->imported],
		 before - freed, before - trimmed, before - destroyed, before - closed, before - ended);
}

void pool_memory(void)
{
	struct importer importers[WAYS] = { { 0 } };

	for (unsigned int i = 0; i < WAYS; i++)
		if (ways[i].imported != NOBODY)
			importers[i] = fork_importer(ways[i].imported);
	begin_pools();
	for (unsigned int i = 0; i < WAYS; i++)
		play(&ways[i], &importers[i]);
}
