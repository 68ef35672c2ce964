/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: how it is created, and how stamps name it.  It is private, never visible half
 * made, and found by its stamps; it is opened again when the program has closed it.
 *
 * Promises 1, 2 and 4.
 */
#include "tests/unit/region.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

static void a_new_file_is_private_sparse_locked_and_small(void **state)
{
	struct cl_region r = make_region();
	char name[16];
	struct stat st;
	pid_t child;
	int room;

	cl_region_name(name, r.file_id);
	assert_int_equal(count_entries(folder), 1);
	assert_int_equal(fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0600);
	assert_int_equal(st.st_size, CL_FILE_SIZE);
	assert_int_equal(st.st_nlink, 1);
	print_message("# a new exporter file takes %lld bytes of its %lld\n",
		      (long long)st.st_blocks * 512, (long long)st.st_size);
	assert_true(st.st_blocks * 512 < 256 * 1024);
	/* the number is high, but within the descriptor table, whose size depends on our parent process */
	room = descriptor_room() < 1024 ? descriptor_room() : 1024;
	assert_in_range(r.fd, room - 16, room - 1);
	assert_true(fcntl(r.fd, F_GETFD) & FD_CLOEXEC);

	child = fork_checked();
	if (!child) {
		struct cl_region seen;
		const char *why = "unset";

		/* the parent's mapping is not inherited */
		CHECK(msync(r.header, CL_PAGE, MS_ASYNC) && errno == ENOMEM);
		CHECK_EQUAL(cl_region_open(&seen, folder_fd, r.file_id, &why), 0);
		CHECK(!why);
		CHECK_EQUAL(seen.locks->is_locked(&seen, CL_LOCK_EXPORTER), 1);
		CHECK_EQUAL(seen.locks->try_lock(&seen, CL_LOCK_EXPORTER), -EAGAIN);
		CHECK_EQUAL(seen.locks->is_locked(&seen, CL_LOCK_SLOT(0)), 0);
		CHECK_EQUAL(seen.header->record_chunks, 1);
		CHECK(cl_region_has_word(&seen, 0, 0));
		CHECK(!cl_region_has_word(&seen, 1, 0));
		CHECK_EQUAL(seen.header->exporter.pid, getppid());
		CHECK_EQUAL(seen.header->exporter.start_time, me.start_time);
		/* closing it must not take the parent's lock away */
		cl_region_close(&seen);
		CHECK_EQUAL(cl_region_open(&seen, folder_fd, r.file_id, NULL), 0);
		CHECK_EQUAL(seen.locks->is_locked(&seen, CL_LOCK_EXPORTER), 1);
		_exit(0);
	}
	child_judge(child);
	drop_region(&r);
	assert_int_equal(count_entries(folder), 0);
}

/* Every visible name is of a complete file whose exporter is known to live. */
static void a_file_is_never_seen_half_made(void **state)
{
	int seen_n = 0;
	siginfo_t ended = { 0 };
	pid_t child = fork_checked();

	if (!child) {
		while (seen_n < 50) { /* or until its alarm */
			DIR *dir = opendir(folder);
			struct dirent *entry;

			while ((entry = readdir(dir)) != NULL) {
				uint32_t id = cl_region_name_id(entry->d_name);
				struct cl_region r;
				struct stat st;
				const char *why = NULL;
				int err, locked;

				if (entry->d_name[0] == '.' || cl_region_unfinished_id(entry->d_name))
					continue;
				CHECK(id);
				err = cl_region_open(&r, folder_fd, id, &why);
				if (err == -ENOENT)
					continue;
				CHECK_EQUAL(err, 0);
				locked = r.locks->is_locked(&r, CL_LOCK_EXPORTER);
				CHECK(!fstat(r.fd, &st));
				CHECK(locked == 1 || st.st_nlink == 0);
				seen_n += locked == 1;
				cl_region_close(&r);
			}
			closedir(dir);
		}
		_exit(0);
	}
	while (!ended.si_pid) {
		struct cl_region r = make_region();

		sched_yield();
		drop_region(&r);
		assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
	}
	child_judge(child);
}

static void names_are_the_file_id_and_nothing_else(void **state)
{
	static const char *const not_names[] = { "", "exporter-", "exporter-00000", "exporter-0000001",
		"exporter-00000g", "exporter-00002A", "exporter-000000", "exporter-400001",
		"Exporter-000001", "exporter- 00001", "exporter-0x0001", "exporter-+00001" };
	char name[16];

	cl_region_name(name, 0x2a);
	assert_string_equal(name, "exporter-00002a");
	assert_int_equal(cl_region_name_id(name), 0x2a);
	cl_region_name(name, (1u << CL_STAMP_FILE_BITS) - 1);
	assert_int_equal(cl_region_name_id(name), (1u << CL_STAMP_FILE_BITS) - 1);
	for (size_t i = 0; i < sizeof not_names / sizeof *not_names; i++)
		assert_int_equal(cl_region_name_id(not_names[i]), 0);
}

static void a_stamp_comes_out_as_it_went_in(void **state)
{
	for (int i = 0; i < 10000; i++) {
		struct cl_stamp in = { .file_id = random_next() & ((1u << CL_STAMP_FILE_BITS) - 1),
				       .record = random_next() % (i & 1 ? CL_STAMP_RECORDS : 2 * CL_STAMP_FEW),
				       .generation = random_next() % CL_GENERATIONS,
				       .tag = random_next() % (1u << CL_STAMP_TAG_BITS),
				       .more = random_next() % (1u << CL_STAMP_MORE_BITS) }, out;

		if (i < 8) /* the corners */
			in = (struct cl_stamp){ i & 1 ? (1u << CL_STAMP_FILE_BITS) - 1 : 1,
						i & 2 ? CL_STAMP_RECORDS - 1 : 0,
						i & 4 ? CL_GENERATIONS - 1 : 0,
						i & 1 ? 0 : (1u << CL_STAMP_TAG_BITS) - 1,
						i & 2 ? 0 : (1u << CL_STAMP_MORE_BITS) - 1 };
		out = cl_stamp_unpack(cl_stamp_pack(in));
		assert_int_equal(out.file_id, in.file_id);
		assert_int_equal(out.record, in.record);
		assert_int_equal(out.generation, in.generation);
		assert_int_equal(out.tag, in.tag);
		assert_int_equal(out.more, in.record < CL_STAMP_FEW ? in.more : 0);
		assert_true(cl_stamp_pack(in) != 0 || !in.file_id);
	}
}

static void a_file_knows_its_stamps_and_no_others(void **state)
{
	struct cl_region r = make_region(), again;
	struct cl_stamp s = cl_stamp_unpack(cl_region_stamp(&r, 5, 7)), other = s;

	assert_int_equal(s.file_id, r.file_id);
	assert_int_equal(s.record, 5);
	assert_int_equal(cl_region_open(&again, folder_fd, r.file_id, NULL), 0);
	assert_true(cl_region_has_stamped(&again, &s));
	assert_int_equal(s.generation, 7);
	other.tag ^= 1u << (CL_STAMP_TAG_BITS - 1);
	assert_false(cl_region_has_stamped(&again, &other));
	cl_region_close(&again);
	drop_region(&r);
}

/* Files are created one after the other, so each has the inode of the one before: their stamps differ nevertheless. */
static uint32_t random_is;
ssize_t __real_getrandom(void *to, size_t size, unsigned int flags);
ssize_t __wrap_getrandom(void *to, size_t size, unsigned int flags);
ssize_t __wrap_getrandom(void *to, size_t size, unsigned int flags)
{
	uint32_t word;
	ssize_t n = __real_getrandom(to, size, flags);

	if (random_is && n == sizeof word) {
		memcpy(&word, to, sizeof word);
		word = (word & ~((1u << CL_ID_RANDOM_BITS) - 1)) | random_is;
		memcpy(to, &word, sizeof word);
	}
	return n;
}

static void a_later_file_of_the_number_has_other_stamps(void **state)
{
	enum { FILES = 64 };
	uint64_t stamps[FILES];
	uint32_t id = 0;

	random_is = 0x1234;
	for (int i = 0; i < FILES; i++) {
		struct cl_region r = make_region();

		assert_true(!i || r.file_id == id);
		id = r.file_id;
		stamps[i] = cl_region_stamp(&r, 0, 0);
		drop_region(&r);
	}
	random_is = 0;
	for (int i = 0; i < FILES; i++)
		for (int j = 0, same = 0; j < i; j++) {
			same += stamps[i] == stamps[j];
			assert_true(same <= 1); /* by chance */
		}
}

static const uint8_t boot[16] = { 1, 2, 3, 4 };

/* The fingerprint of a place: one file in 16,384 fits another place, and each its own. */
static void a_stamp_tells_its_place_from_others(void **state)
{
	enum { PLACES = 400, FILES = 2000 };
	unsigned int fits[2] = { 0, 0 }; /* beyond the first records; of these */

	for (uint64_t here = 1; here <= PLACES; here++)
		for (int i = 0; i < FILES; i++) {
			struct stat st = { .st_dev = 0x30 + here, .st_ino = 1 + i % 3 }, other = st;
			uint64_t place = cl_place_of(&st, boot);
			struct cl_stamp s = { .file_id = cl_stamp_file_id(place, random_next()) };

			s.tag = cl_stamp_tag(place, s.file_id);
			s.more = cl_stamp_more(place, s.file_id);
			assert_true(cl_stamp_is_of(s, place));
			assert_false(cl_stamp_is_of(s, 0));
			other.st_dev += 1 + random_next() % 8;
			fits[1] += cl_stamp_is_of(s, cl_place_of(&other, boot));
			s.record = CL_STAMP_FEW;
			fits[0] += cl_stamp_is_of(s, cl_place_of(&other, boot));
		}
	print_message("# %u and %u of %u fit another place\n", fits[0], fits[1], PLACES * FILES);
	/* 49 are to be expected, and 0.4 */
	assert_in_range(fits[0], 15, 90);
	assert_in_range(fits[1], 0, 6);
}

static void a_place_has_one_name_for_all_who_see_it(void **state)
{
	struct stat above, st;
	uint64_t made, again;

	assert_int_equal(fstat(folder_fd, &above), 0);
	assert_int_equal(mkdirat(folder_fd, "place", 0700), 0);
	assert_int_equal(fstatat(folder_fd, "place", &st, 0), 0);
	made = cl_place_of(&st, boot);
	assert_int_equal(unlinkat(folder_fd, "place", AT_REMOVEDIR), 0);
	assert_int_equal(mkdirat(folder_fd, "other", 0700), 0); /* it may get the inode of the removed one */
	assert_int_equal(mkdirat(folder_fd, "place", 0700), 0);
	assert_int_equal(fstatat(folder_fd, "place", &st, 0), 0);
	again = cl_place_of(&st, boot);
	assert_true(made && again && made != again);
	assert_true(cl_place_named(&above, boot, "place") == cl_place_named(&above, boot, "place"));
	assert_true(cl_place_named(&above, boot, "place") != cl_place_named(&above, boot, "place1"));
	assert_true(cl_place_named(&above, boot, "place") != cl_place_named(&st, boot, "place"));
	/* a directory of another machine, or of an earlier boot, may have the same numbers */
	for (int i = 0; i < 16; i++) {
		uint8_t other[16];

		memcpy(other, boot, sizeof other);
		other[i] ^= 0x10;
		assert_true(cl_place_of(&st, other) != again);
		assert_true(cl_place_named(&above, other, "place") != cl_place_named(&above, boot, "place"));
	}
	assert_int_equal(unlinkat(folder_fd, "place", AT_REMOVEDIR), 0);
	assert_int_equal(unlinkat(folder_fd, "other", AT_REMOVEDIR), 0);
}

static void a_boot_id_that_could_not_be_read_is_asked_for_again(void **state)
{
	static struct cl_known known;
	const uint8_t none[16] = { 0 };
	struct rlimit limit, no_more;
	uint8_t is[16], read_now[16];

	cl_boot_id(read_now);
	if (!memcmp(read_now, none, 16)) {
		print_message("# no boot id here: nothing was tried\n");
		return;
	}
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	no_more = (struct rlimit){ 0, limit.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &no_more), 0);
	cl_known_boot_id(&known, is);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_memory_equal(is, none, 16);
	cl_known_boot_id(&known, is);
	assert_memory_equal(is, read_now, 16);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &no_more), 0);
	cl_known_boot_id(&known, is); /* now it is known */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_memory_equal(is, read_now, 16);
}

static void only_the_very_file_is_taken_away(void **state)
{
	/* files that a failed test has left: under qemu one test fails */
	unsigned int others = count_entries(folder);
	struct cl_region r = make_region();
	char name[16];
	int fd;

	cl_region_name(name, r.file_id);
	assert_int_equal(renameat(folder_fd, name, folder_fd, "aside"), 0);
	assert_int_equal(cl_region_unlink(&r, folder_fd), -ENOENT);
	fd = openat(folder_fd, name, O_CREAT | O_EXCL | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(cl_region_unlink(&r, folder_fd), -ESTALE);
	assert_int_equal(faccessat(folder_fd, name, F_OK, 0), 0);
	assert_int_equal(cl_region_fd_restore(&r, folder_fd), -ESTALE);
	assert_int_equal(renameat(folder_fd, "aside", folder_fd, name), 0);
	assert_int_equal(cl_region_unlink(&r, folder_fd), 0);
	assert_int_equal(count_entries(folder), others);
	cl_region_close(&r);
}

static void a_descriptor_that_the_program_closed_is_noticed_and_regained(void **state)
{
	struct cl_region r = make_region();
	int number = r.fd, other = open("/dev/null", O_RDWR);
	uint32_t chunks = atomic_load(&r.header->record_chunks);
	struct stat st;

	close(number);
	assert_false(cl_region_fd_intact(&r));
	assert_int_equal(cl_region_grow(&r), -EBADF);
	assert_int_equal(dup2(other, number), number);
	assert_false(cl_region_fd_intact(&r));
	assert_int_equal(cl_region_grow(&r), -EBADF);
	assert_int_equal(cl_region_need_word(&r, 3, 0), -EBADF);
	assert_int_equal(r.locks->try_lock(&r, CL_LOCK_EXPORTER), -EBADF);
	assert_int_equal(r.locks->is_locked(&r, CL_LOCK_EXPORTER), -EBADF);
	assert_int_equal(r.locks->unlock(&r, CL_LOCK_EXPORTER), -EBADF);
	assert_int_equal(atomic_load(&r.header->record_chunks), chunks);
	assert_false(cl_region_has_word(&r, 3, 0));
	assert_int_equal(cl_region_fd_restore(&r, folder_fd), 0);
	assert_true(cl_region_fd_intact(&r));
	assert_int_equal(r.locks->try_lock(&r, CL_LOCK_EXPORTER), 0);
	assert_int_equal(cl_region_grow(&r), 0);
	assert_int_equal(fstat(number, &st), 0); /* the program's own descriptor is left alone */
	close(r.fd);
	assert_int_equal(dup2(other, r.fd), r.fd);
	number = r.fd;
	drop_region(&r);
	assert_int_equal(fstat(number, &st), 0);
	close(number);
	close(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_new_file_is_private_sparse_locked_and_small),
		cmocka_unit_test(a_file_is_never_seen_half_made),
		cmocka_unit_test(names_are_the_file_id_and_nothing_else),
		cmocka_unit_test(a_stamp_comes_out_as_it_went_in),
		cmocka_unit_test(a_file_knows_its_stamps_and_no_others),
		cmocka_unit_test(a_later_file_of_the_number_has_other_stamps),
		cmocka_unit_test(a_stamp_tells_its_place_from_others),
		cmocka_unit_test(a_place_has_one_name_for_all_who_see_it),
		cmocka_unit_test(a_boot_id_that_could_not_be_read_is_asked_for_again),
		cmocka_unit_test(only_the_very_file_is_taken_away),
		cmocka_unit_test(a_descriptor_that_the_program_closed_is_noticed_and_regained),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
