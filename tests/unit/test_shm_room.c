/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: it grows, takes little memory, and a lack of room is never more than an error.
 */
#include "tests/unit/region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "shim/base/descriptor.h"
#include "shim/base/options.h"
#include "shim/shm/slot.h"
#include "tests/namespaces/own_mounts.h"

#define DESCRIPTORS "descriptors" /* the argument of a process that is a test's own, see descriptors_main() */

static void it_grows_by_chunks_to_a_million_records(void **state)
{
	struct cl_region r = make_region();
	uint8_t handle[64] = { 0 };
	struct stat st;

	assert_true(CL_RECORDS >= 1000000);
	assert_int_equal(hold(&r, 0, CL_CHUNK - 1, 0, 0), -ESTALE); /* the record exists, and is not exported */
	assert_int_equal(hold(&r, 0, CL_CHUNK, 0, 0), -EBADMSG);
	assert_int_equal(hold(&r, 0, CL_RECORDS - 1, 0, 0), -EBADMSG);
	assert_int_equal(hold(&r, 0, CL_RECORDS, 0, 0), -EBADMSG);
	assert_int_equal(hold(&r, 0, CL_NO_RECORD, 0, 0), -EBADMSG);
	assert_int_equal(cl_record_pin(&r, CL_RECORDS, 0, handle), -EBADMSG);
	assert_int_equal(cl_region_grow(&r), 0);
	assert_int_equal(publish(&r, CL_CHUNK, 7), 0);
	assert_int_equal(hold(&r, 0, CL_CHUNK, 0, 7), 0);
	assert_int_equal(hold(&r, 0, 2 * CL_CHUNK, 0, 7), -EBADMSG);
	grow_to(&r, CL_CHUNKS);
	assert_int_equal(cl_region_grow(&r), -ENFILE);
	for (uint32_t record = CL_CHUNK - 1; record < CL_RECORDS; record += CL_CHUNK * 63)
		publish(&r, record, 9);
	publish(&r, CL_RECORDS - 1, 9);
	assert_int_equal(hold(&r, CL_SLOTS - 1, CL_RECORDS - 1, 0, 9), 0);
	atomic_store(&r.header->slots_used, CL_SLOTS);
	cl_record_to_limbo(&r, CL_RECORDS - 1, 1);
	assert_false(cl_record_try_release(&r, CL_RECORDS - 1));
	cl_record_unhold(&r, CL_SLOTS - 1, CL_RECORDS - 1);
	assert_true(cl_record_try_release(&r, CL_RECORDS - 1));
	/* a damaged count does no harm */
	atomic_store(&r.header->record_chunks, UINT32_MAX);
	assert_int_equal(hold(&r, 0, CL_RECORDS - 1, 1, 9), -EBADMSG);
	atomic_store(&r.header->record_chunks, CL_CHUNKS);
	assert_int_equal(fstat(r.fd, &st), 0);
	print_message("# with %u records it takes %lld MiB\n", CL_RECORDS,
		      (long long)st.st_blocks * 512 >> 20);
	drop_region(&r);
}

/* Mounts a tmpfs of @size that no other process sees; returns it open. */
static int tiny_tmpfs(const char *size)
{
	char option[32];
	int fd;
	int err = own_mounts();

	if (err)
		CHILD_SKIP("no mount namespace may be made (%s)", strerror(-err));
	snprintf(option, sizeof option, "size=%s,mode=700", size);
	if (mount("tmpfs", folder, "tmpfs", 0, option))
		CHILD_SKIP("a tmpfs cannot be mounted (%s)", strerror(errno));
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

/*
 * A larger descriptor table costs a process with threads tens of milliseconds: the kernel waits for all
 * processors.  This is a fresh process (see below), whose table never was larger.
 */
static void *sleep_on(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void descriptors_body(void)
{
	int room = descriptor_room(), more[400], fd = -1;
	struct cl_region r, other;
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, sleep_on, NULL));
	/* with a larger table, growth would not show */
	CHECK(room >= 64 && room <= 512);
	CHECK_EQUAL(cl_region_create(&r, folder_fd, &me), 0);
	CHECK_EQUAL(descriptor_room(), room);
	CHECK(r.fd >= room - 16 && r.fd < room);
	CHECK(fcntl(r.fd, F_GETFD) & FD_CLOEXEC);
	/* the program's own descriptors make the table grow; then a higher number is used again */
	for (int i = 0; i < 400; i++)
		CHECK((more[i] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
	CHECK(descriptor_room() > room);
	room = descriptor_room();
	CHECK(more[399] < room - 16);
	fd = cl_fd_move_high(more[0], NULL);
	CHECK(fd > more[399] && fd < room);
	CHECK_EQUAL(cl_region_create(&other, folder_fd, &me), 0);
	CHECK(other.fd >= room - 16 && other.fd < room);
	CHECK_EQUAL(descriptor_room(), room);
	drop_region(&other);
	drop_region(&r);
}

/*
 * As main() of a new image.  exec keeps the table as large as it was; a forked child's has
 * room for what is open.
 */
static int descriptors_main(const char *path)
{
	char *environment[] = { NULL };
	DIR *open_ones = opendir("/proc/self/fd");
	int status;
	pid_t child;

	/* descriptors inherited from any parent */
	for (struct dirent *entry; open_ones && (entry = readdir(open_ones)) != NULL;)
		if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(open_ones))
			close(atoi(entry->d_name));
	if (open_ones)
		closedir(open_ones);
	cl_options_read(&cl_options, environment, NULL);
	folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	child = fork();
	if (!child) {
		child_begins();
		cl_identity_self(&me);
		descriptors_body();
		_exit(0);
	}
	return child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ?
		       1 :
		       WEXITSTATUS(status);
}

static void descriptors_exec(void)
{
	char self[4096] = "";

	/* by its name: under qemu-user the link itself leads to qemu */
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	execl(self, "test_shm_room", DESCRIPTORS, folder, NULL);
	CHECK(!"exec");
}

static void its_descriptor_is_high_and_makes_no_larger_table(void **state)
{
	in_a_child(descriptors_exec);
}

static void no_room_body(void)
{
	int dir = tiny_tmpfs("64k");
	struct cl_region r;

	CHECK_EQUAL(cl_region_create(&r, dir, &me), -ENOSPC);
	CHECK_EQUAL(r.fd, -1);
	CHECK(!r.header);
	CHECK_EQUAL(count_entries(folder), 0);
}

static void little_room_body(void)
{
	int dir = tiny_tmpfs("512k");
	struct cl_region r, other;
	uint32_t n;
	int err;

	CHECK_EQUAL(cl_region_create(&r, dir, &me), 0);
	while ((err = cl_region_grow(&r)) == 0)
		CHECK(atomic_load(&r.header->record_chunks) < 100);
	CHECK_EQUAL(err, -ENOSPC);
	n = atomic_load(&r.header->record_chunks);
	CHECK(n > 1);
	/* the holder pages that still fit, then none */
	err = 0;
	for (unsigned int w = 1; !err; w++) {
		CHECK(w < CL_WORDS);
		err = cl_region_need_word(&r, w, 0);
	}
	CHECK_EQUAL(err, -ENOSPC);
	/* touches everything that it claims to exist: a SIGBUS would end this child */
	CHECK_EQUAL(cl_region_open(&other, dir, r.file_id, NULL), 0);
	for (uint32_t record = 0; record < n * CL_CHUNK; record++) {
		publish(&r, record, 5);
		for (unsigned int w = 0; w < CL_WORDS; w++) {
			bool there = cl_region_has_word(&r, w, record);

			err = hold(&other, w * 64, record, 0, 5);
			CHECK(err == 0 || (err == -ENOSPC && !there));
			if (!err) {
				cl_record_to_limbo(&r, record, 1);
				atomic_store(&r.header->slots_used, w * 64 + 1);
				CHECK(!cl_record_try_release(&r, record));
				cl_record_unhold(&other, w * 64, record);
				CHECK(cl_record_try_release(&r, record));
				publish(&r, record, 5);
				CHECK_EQUAL(hold(&other, 0, record, 0, 5), -ESTALE);
				atomic_store(&r.record[record].life, cl_life(0, CL_EXPORTED));
			}
		}
	}
	CHECK_EQUAL(hold(&other, 0, n * CL_CHUNK, 0, 5), -EBADMSG);
}

static void no_room_is_an_error_and_leaves_nothing(void **state)
{
	in_a_child(no_room_body);
}
static void too_little_room_is_an_error_and_never_sigbus(void **state)
{
	in_a_child(little_room_body);
}

static void size_limit_body(void)
{
	struct rlimit limit = { 1 << 20, 1 << 20 };
	struct cl_region r, own;

	CHECK_EQUAL(cl_region_create(&own, folder_fd, &me), 0);
	signal(SIGXFSZ, SIG_DFL);
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
	CHECK_EQUAL(cl_region_create(&r, folder_fd, &me), -EFBIG);
	CHECK_EQUAL(r.fd, -1);
	CHECK_EQUAL(count_entries(folder), 1);
	/* what exists can still be used and grown: it is as long as it will ever be */
	CHECK_EQUAL(cl_region_open(&r, folder_fd, own.file_id, NULL), 0);
	CHECK_EQUAL(cl_region_grow(&own), 0);
	publish(&own, CL_CHUNK, 1);
	CHECK_EQUAL(hold(&r, 200, CL_CHUNK, 0, 1), 0);
	CHECK_EQUAL(cl_region_unlink(&own, folder_fd), 0);
}
/*
 * The driver places its mappings beside the latest one: see map_place.h.  ThreadSanitizer does not
 * allow mappings there.
 */
static void a_file_is_mapped_away_from_what_the_kernel_places(void **state)
{
	struct cl_region r = make_region();
	char *theirs = mmap(NULL, CL_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(theirs != MAP_FAILED);
#ifndef __SANITIZE_THREAD__
	assert_true((char *)r.header + CL_FILE_SIZE < theirs - (1ull << 40));
#endif
	munmap(theirs, CL_PAGE);
	drop_region(&r);
}

static void a_file_size_limit_is_an_error_and_never_sigxfsz(void **state)
{
	in_a_child(size_limit_body);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], DESCRIPTORS))
		return descriptors_main(argv[2]);

	const struct CMUnitTest tests[] = {
		cmocka_unit_test(its_descriptor_is_high_and_makes_no_larger_table),
		cmocka_unit_test(it_grows_by_chunks_to_a_million_records),
		cmocka_unit_test(no_room_is_an_error_and_leaves_nothing),
		cmocka_unit_test(too_little_room_is_an_error_and_never_sigbus),
		cmocka_unit_test(a_file_is_mapped_away_from_what_the_kernel_places),
		cmocka_unit_test(a_file_size_limit_is_an_error_and_never_sigxfsz),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
