/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that lock their memory, including later mappings (MCL_FUTURE): their exporter files stay as small
 * as those of others, and so do the files that they import from.
 */
#include "tests/unit/child.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "shim/shm/slot.h"

enum { MOST_KIB = 512 }; /* of a file with one chunk of records */

static char folder[64];
static int folder_fd;
static struct cl_identity me;

static unsigned int size_in_kib(const struct cl_region *r)
{
	struct stat st;

	CHECK(!fstat(r->fd, &st));
	return (unsigned int)(st.st_blocks / 2);
}

static unsigned int locked_kib(void)
{
	char line[256];
	unsigned int kib = UINT32_MAX;
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "VmLck: %u kB", &kib) == 1)
			break;
	CHECK(f && kib != UINT32_MAX);
	fclose(f);
	return kib;
}

/* The process may lock only as much as the limit says, which is too little for the file. */
static void without_the_right(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];
	const rlim_t little = 32u << 20;
	struct rlimit limit;

	CHECK(!syscall(SYS_capget, &header, caps));
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	caps[0].permitted &= ~(1u << CAP_IPC_LOCK);
	CHECK(!syscall(SYS_capset, &header, caps));
	CHECK(!getrlimit(RLIMIT_MEMLOCK, &limit));
	limit.rlim_cur = limit.rlim_cur < little ? limit.rlim_cur : little;
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
}

static void lock_all_that_comes(void)
{
	if (mlockall(MCL_FUTURE))
		CHILD_SKIP("memory cannot be locked here: %s", strerror(errno));
}

/* Acts as the exporter of a file: reads a byte from @line, and ends when that is closed. */
static void be_exporter(int line)
{
	struct cl_region r;
	char word;

	if (cl_region_create(&r, folder_fd, &me))
		_exit(1);
	CHECK(write(line, &r.file_id, sizeof r.file_id) == sizeof r.file_id);
	CHECK(read(line, &word, 1) == 0);
	cl_region_unlink(&r, folder_fd);
	_exit(0);
}

static void exporter_body(void)
{
	unsigned int before;
	struct cl_region r;

	lock_all_that_comes();
	before = locked_kib();
	CHECK_EQUAL(cl_region_create(&r, folder_fd, &me), 0);
	CHECK(size_in_kib(&r) < MOST_KIB);
	CHECK(locked_kib() < before + MOST_KIB);
	/* the file can be used, and can grow */
	CHECK_EQUAL(cl_region_grow(&r), 0);
	r.record[CL_CHUNK].base = 1;
	CHECK(size_in_kib(&r) < 2 * MOST_KIB);
	cl_region_unlink(&r, folder_fd);
	cl_region_close(&r);
}

static void importer_body(void)
{
	struct cl_region r;
	uint32_t id;
	int line;

	if (!fork_with_line(&line))
		be_exporter(line);
	CHECK(read(line, &id, sizeof id) == sizeof id);
	lock_all_that_comes();
	CHECK_EQUAL(cl_region_open(&r, folder_fd, id, NULL), 0);
	CHECK(size_in_kib(&r) < MOST_KIB);
	CHECK_EQUAL(cl_region_need_word(&r, 0, 0), 0);
	CHECK(!atomic_load(cl_region_word(&r, 0, 0)));
	CHECK(size_in_kib(&r) < MOST_KIB);
	close(line);
}

static void exporter_without_the_right_body(void)
{
	without_the_right();
	exporter_body();
}

static void importer_without_the_right_body(void)
{
	without_the_right();
	importer_body();
}

static void an_exporter_that_locks_its_memory_has_a_small_file(void **state)
{
	in_a_child(exporter_body);
}

static void an_importer_that_locks_its_memory_fills_no_file(void **state)
{
	in_a_child(importer_body);
}

static void a_small_limit_of_locked_memory_is_no_hindrance(void **state)
{
	in_a_child(exporter_without_the_right_body);
	in_a_child(importer_without_the_right_body);
}

static int make_folder(void **state)
{
	cl_identity_self(&me);
	if (make_folder_at(folder))
		return -1;
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return folder_fd < 0 ? -1 : 0;
}

static int remove_folder(void **state)
{
	close(folder_fd);
	return remove_folder_at(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_exporter_that_locks_its_memory_has_a_small_file),
		cmocka_unit_test(an_importer_that_locks_its_memory_fills_no_file),
		cmocka_unit_test(a_small_limit_of_locked_memory_is_no_hindrance),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
