/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of imports: one exporter, which is a real process, and this process's view
 * of its file.  The driver is fake (fake_driver.h).
 */
#ifndef CL_TEST_IMPORTS_H
#define CL_TEST_IMPORTS_H

#include "tests/unit/fake_driver.h"

#include "shim/importer/peers.h"
#include "shim/shm/view.h"

enum { SOON = 5000 };

/* ----------------------------------------------------------------- the exporter */
static struct {
	pid_t pid;
	int line;
	CUipcMemHandle handle;
	uint32_t file_id, record;
} other;

enum { FREE = 'f', AGAIN = 'a', END = 'e', EXEC = 'x' };
static unsigned int addresses; /* the number of addresses that it does not export */
static const char *dir_is;     /* CULIMBO_DIR; NULL: the tests' folder */

/*
 * Exports a block.  On command it frees the block, if no process holds it, and exports the next one there;
 * or it ends what it shares, but goes on (as in the exit handlers after ours); or another program takes its place.
 */
static inline void exporter(int line)
{
	CUdeviceptr p;
	char byte;

	start_with(0, CL_COLLECTOR_INLINE);
	if (dir_is)
		cl_options.dir.text = dir_is;
	for (unsigned int i = 0; i < addresses; i++)
		fake_alloc(2048, CONTEXT_A);
	p = fake_alloc(2048, CONTEXT_A);
	other.handle = export_block(p);
	CHECK_EQUAL(write(line, &other.handle, sizeof other.handle), sizeof other.handle);
	while (read(line, &byte, 1) > 0) {
		if (byte == AGAIN) {
			fake_alloc_again(p, CONTEXT_A);
			other.handle = export_block(p);
			CHECK_EQUAL(write(line, &other.handle, sizeof other.handle), sizeof other.handle);
			continue;
		}
		if (byte == END) {
			cl_process_end(0);
			CHECK_EQUAL(write(line, &byte, 1), 1);
			continue;
		}
		if (byte == EXEC) {
			dup2(line, 0);
			dup2(line, 1);
			execlp("sh", "sh", "-c", "echo; exec cat", (char *)NULL);
			_exit(1);
		}
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		byte = (char)frees_of(p);
		CHECK_EQUAL(write(line, &byte, 1), 1);
	}
	_exit(cl_process_end(0));
}

static inline void start(void)
{
	struct cl_stamp stamp;

	other.pid = fork_with_line(&other.line);
	if (!other.pid)
		exporter(other.line);
	CHECK_EQUAL(read(other.line, &other.handle, sizeof other.handle), sizeof other.handle);
	stamp = stamp_of(&other.handle);
	other.file_id = stamp.file_id;
	other.record = stamp.record;
	start_with(0, CL_COLLECTOR_INLINE);
	if (dir_is)
		cl_options.dir.text = dir_is;
}

/* True when the driver got the block back. */
static inline bool other_frees(void)
{
	char freed = FREE;

	CHECK_EQUAL(write(other.line, &freed, 1), 1);
	CHECK_EQUAL(read(other.line, &freed, 1), 1);
	return freed != 0;
}

/* Returns when the exporter has done @what, END or EXEC. */
static inline void other_does(char what)
{
	CHECK_EQUAL(write(other.line, &what, 1), 1);
	CHECK_EQUAL(read(other.line, &what, 1), 1);
}

/* The driver has given the address to a new block, which has the same handle. */
static inline CUipcMemHandle other_exports_again(void)
{
	CUipcMemHandle handle;
	char again = AGAIN;

	CHECK_EQUAL(write(other.line, &again, 1), 1);
	CHECK_EQUAL(read(other.line, &handle, sizeof handle), sizeof handle);
	CHECK(only_stamps_differ(handle, other.handle));
	return handle;
}

static inline void finish(void)
{
	int status;

	close(other.line);
	CHECK(waitpid(other.pid, &status, 0) == other.pid);
}

/* Its file, as this process has it open. */
static inline struct cl_region *peer(void)
{
	bool own;
	const struct cl_region *region = cl_peer_has_open(other.file_id, &own);

	CHECK(region && !own);
	return (struct cl_region *)(uintptr_t)region;
}

/* This process's slot there, or -1. */
static inline int slot(void)
{
	const struct cl_region *region = peer();

	for (unsigned int i = 0; i < region->header->slots_used; i++)
		if (region->slot[i].claim & CL_SLOT_CLAIMED && region->slot[i].who.pid == (uint32_t)getpid())
			return (int)i;
	return -1;
}

/* The forked process at the other end sees which locks we hold. */
static inline bool is_locked_by_us(uint32_t file_id, off_t byte)
{
	int fd = -1, status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		char path[128], name[16];
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };

		cl_region_name(name, file_id);
		snprintf(path, sizeof path, "%s/%s", folder, name);
		fd = open(path, O_RDWR | O_CLOEXEC);
		CHECK(fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0);
		_exit(lock.l_type == F_WRLCK && lock.l_pid == getppid() ? 42 : 43);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status) == 42;
}

static inline bool slot_is_locked(void)
{
	int ours = slot();

	CHECK(ours >= 0);
	return is_locked_by_us(other.file_id, CL_LOCK_SLOT(ours));
}

/* ------------------------------------------------------- during the driver's open */
static void (*amid)(void);
static inline CUresult open_amid(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	CUresult result = fake_open(p, handle, flags);

	amid();
	return result;
}
static inline CUresult import(CUdeviceptr *p, void (*what)(void))
{
	CUresult result;

	amid = what;
	errno = ENOTUNIQ; /* errno is the program's */
	result = cl_memory_import(p, other.handle, 0, open_amid);
	CHECK_EQUAL(errno, ENOTUNIQ);
	return result;
}

static inline void nothing(void)
{
}

static inline void exporter_dies(void)
{
	CHECK(!kill(other.pid, SIGKILL));
	CHECK(waitpid(other.pid, NULL, 0) == other.pid);
}

#endif
