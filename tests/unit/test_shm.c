/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: what lies in it is only used after it was checked, no
 * lack of room is more than an error, a hold is never lost, a stale handle
 * never held, and the dead (only they) are reaped.
 *
 * Promises 1, 2 and 4, and of 3 the part that a death leaves to others.
 * Threads or one thread in turn play processes where that is enough; where the
 * kernel must judge (locks, /proc, kills) there are real ones.
 */
#include "tests/unit/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "shim/base/descriptor.h"
#include "shim/shm/gc.h"
#include "shim/base/options.h"
#include "shim/shm/slot.h"
#include "tests/namespaces/own_mounts.h"

#define MS 1000000ull
#define DESCRIPTORS "descriptors" /* the argument of a process that is a test's own, see descriptors_main() */

static char folder[64];
static int folder_fd;
static struct cl_witness me;

/* ----------------------------------------------------------------- helpers */
static struct cl_region make_region(void)
{
	struct cl_region r;

	assert_int_equal(cl_region_create(&r, folder_fd, &me), 0);
	return r;
}

static void drop_region(struct cl_region *r)
{
	cl_region_unlink(r, folder_fd);
	cl_region_close(r);
}

static struct cl_export an_export(uint8_t *handle, uint8_t fill)
{
	memset(handle, fill, 56);
	memset(handle + 56, 0, 8);
	return (struct cl_export){ .kind = CL_MEMORY, .base = 0x7f0000000000u, .size = 1024,
				   .handle = handle, .now = 1 };
}

static uint32_t publish(struct cl_region *r, uint32_t record, uint8_t fill)
{
	uint8_t handle[64];
	struct cl_export what = an_export(handle, fill);

	return cl_record_publish(r, record, &what);
}

static int hold(struct cl_region *r, unsigned int slot, uint32_t record, uint32_t generation,
		uint8_t fill)
{
	uint8_t handle[64] = { 0 };

	memset(handle, fill, 56);
	return cl_record_hold(r, slot, record, generation, handle);
}

static void grow_to(struct cl_region *r, uint32_t chunks)
{
	while (atomic_load(&r->header->record_chunks) < chunks)
		assert_int_equal(cl_region_grow(r), 0);
}

static uint32_t random_next(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

/* ------------------------------------------------------------ making a file */
static pid_t fork_checked(void)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child)
		child_begins();
	return child;
}

/* FDSize of /proc/self/status, by sscanf. */
static int descriptor_room(void)
{
	char line[256];
	int room = -1;
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "FDSize: %d", &room) == 1)
			break;
	if (f)
		fclose(f);
	return room;
}

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
	/* high, within the room of the process's table, which is whatever started us left it */
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

/* Whatever name can be seen is of a whole file whose exporter is known to live. */
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
				       .record = random_next() % CL_RECORDS,
				       .generation = random_next() % CL_GENERATIONS,
				       .tag = random_next() % (1u << CL_STAMP_TAG_BITS) }, out;

		if (i < 8) /* the corners */
			in = (struct cl_stamp){ i & 1 ? (1u << CL_STAMP_FILE_BITS) - 1 : 1,
						i & 2 ? CL_RECORDS - 1 : 0,
						i & 4 ? CL_GENERATIONS - 1 : 0,
						i & 1 ? 0 : (1u << CL_STAMP_TAG_BITS) - 1 };
		out = cl_stamp_unpack(cl_stamp_pack(in));
		assert_int_equal(out.file_id, in.file_id);
		assert_int_equal(out.record, in.record);
		assert_int_equal(out.generation, in.generation);
		assert_int_equal(out.tag, in.tag);
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

/* Of files made in turn, so that each has the number of the one before: their stamps differ all the same. */
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

/* The print of a place: one file's in 16,384 fits another place, and each its own. */
static void a_stamp_tells_its_place_from_others(void **state)
{
	enum { PLACES = 400, FILES = 2000 };
	unsigned int fits = 0;

	for (uint64_t here = 1; here <= PLACES; here++)
		for (int i = 0; i < FILES; i++) {
			struct stat st = { .st_dev = 0x30 + here, .st_ino = 1 + i % 3 }, other = st;
			uint64_t place = cl_place_of(&st);
			struct cl_stamp s = { .file_id = cl_stamp_file_id(place, random_next()) };

			s.tag = cl_stamp_tag(place, s.file_id);
			assert_true(cl_stamp_is_of(s, place));
			assert_false(cl_stamp_is_of(s, 0));
			other.st_dev += 1 + random_next() % 8;
			fits += cl_stamp_is_of(s, cl_place_of(&other));
		}
	print_message("# %u of %u fit another place\n", fits, PLACES * FILES);
	/* 49 are to be expected */
	assert_in_range(fits, 15, 90);
}

static void a_place_has_one_name_for_all_who_see_it(void **state)
{
	struct stat above, st;
	uint64_t made, again;

	assert_int_equal(fstat(folder_fd, &above), 0);
	assert_int_equal(mkdirat(folder_fd, "place", 0700), 0);
	assert_int_equal(fstatat(folder_fd, "place", &st, 0), 0);
	made = cl_place_of(&st);
	assert_int_equal(unlinkat(folder_fd, "place", AT_REMOVEDIR), 0);
	assert_int_equal(mkdirat(folder_fd, "other", 0700), 0); /* which may get its inode */
	assert_int_equal(mkdirat(folder_fd, "place", 0700), 0);
	assert_int_equal(fstatat(folder_fd, "place", &st, 0), 0);
	again = cl_place_of(&st);
	assert_true(made && again && made != again);
	assert_true(cl_place_named(&above, "place") == cl_place_named(&above, "place"));
	assert_true(cl_place_named(&above, "place") != cl_place_named(&above, "place1"));
	assert_true(cl_place_named(&above, "place") != cl_place_named(&st, "place"));
	assert_int_equal(unlinkat(folder_fd, "place", AT_REMOVEDIR), 0);
	assert_int_equal(unlinkat(folder_fd, "other", AT_REMOVEDIR), 0);
}

/* ----------------------------------------------------------------- refusals */
static uint32_t left_file; /* of an exporter that is gone; what the damage below is done to */

static void change(off_t at, const void *bytes, size_t n)
{
	char name[16];
	int fd;

	cl_region_name(name, left_file);
	fd = openat(folder_fd, name, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, n, at), n);
	close(fd);
}
#define CHANGE(field, ...)                                                                      \
	change(offsetof(struct cl_header, field), &(__typeof__(((struct cl_header *)0)->field)) \
	       __VA_ARGS__, sizeof(((struct cl_header *)0)->field))

static const char *left_name(void)
{
	static char name[16];

	cl_region_name(name, left_file);
	return name;
}

static void in_its_place(int (*make)(int dirfd, const char *name))
{
	assert_int_equal(unlinkat(folder_fd, left_name(), 0), 0);
	assert_int_equal(make(folder_fd, left_name()), 0);
}

static void bad_magic(void) { CHANGE(magic, { "CULIMBA" }); }
static void bad_magic_end(void) { CHANGE(magic, { 'C', 'U', 'L', 'I', 'M', 'B', 'O', 'S' }); }
static void bad_layout(void) { CHANGE(layout, { CL_LAYOUT_VERSION + 1 }); }
static void bad_header_size(void) { CHANGE(header_size, { 0 }); }
static void bad_record_size(void) { CHANGE(record_size, { 64 }); }
static void bad_slot_size(void) { CHANGE(slot_size, { 128 }); }
static void bad_slots(void) { CHANGE(slots, { CL_SLOTS * 2 }); }
static void bad_records(void) { CHANGE(records, { CL_RECORDS * 2 }); }
static void bad_chunk(void) { CHANGE(chunk, { 0 }); }
static void bad_size(void) { CHANGE(file_size, { CL_FILE_SIZE - 1 }); }
static void bad_id(void) { CHANGE(file_id, { left_file ^ 1 }); }
static void bad_tag(void) { CHANGE(tag, { UINT16_MAX }); }
static void bad_stamp_check(void) { CHANGE(stamp_check, { 1 }); }
static void bad_boot(void) { CHANGE(boot_id, { 1, 2, 3 }); }
static void truncated_to(off_t size)
{
	int fd = openat(folder_fd, left_name(), O_WRONLY | O_CLOEXEC);

	assert_int_equal(ftruncate(fd, size), 0);
	close(fd);
}
static void too_short(void) { truncated_to(CL_FILE_SIZE - 1); }
static void empty(void) { truncated_to(0); }
static void too_long(void) { truncated_to(CL_FILE_SIZE + 1); }
static void all_hole(void) { truncated_to(0); truncated_to(CL_FILE_SIZE); }
static void all_zeros(void)
{
	int fd;

	all_hole();
	fd = openat(folder_fd, left_name(), O_WRONLY | O_CLOEXEC);
	assert_int_equal(fallocate(fd, 0, 0, CL_AT_FIXED_END), 0);
	close(fd);
}
static void group_reads(void) { assert_int_equal(fchmodat(folder_fd, left_name(), 0640, 0), 0); }
static void others_write(void) { assert_int_equal(fchmodat(folder_fd, left_name(), 0602, 0), 0); }
static void runs(void) { assert_int_equal(fchmodat(folder_fd, left_name(), 0700, 0), 0); }
static void sets_uid(void) { assert_int_equal(fchmodat(folder_fd, left_name(), 04600, 0), 0); }
static void anothers(void)
{
	if (fchownat(folder_fd, left_name(), 1, -1, 0))
		print_message("# not root: no file of another owner was tried\n");
}
static int make_link(int dirfd, const char *name)
{
	return renameat(dirfd, "spare", dirfd, "target") || symlinkat("target", dirfd, name);
}
static int make_dangling(int dirfd, const char *name) { return symlinkat("nothing", dirfd, name); }
static int make_fifo(int dirfd, const char *name) { return mkfifoat(dirfd, name, 0600); }
static int make_directory(int dirfd, const char *name) { return mkdirat(dirfd, name, 0700); }
static int make_socket(int dirfd, const char *name)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), err;

	snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", folder, name);
	err = bind(fd, (struct sockaddr *)&at, sizeof at);
	close(fd);
	return err || fchmodat(dirfd, name, 0600, 0);
}
static void symbolic_link(void) { in_its_place(make_link); }
static void dangling_link(void) { in_its_place(make_dangling); }
static void fifo(void) { in_its_place(make_fifo); }
static void directory(void) { in_its_place(make_directory); }
static void a_socket(void) { in_its_place(make_socket); }
static void nothing(void) { assert_int_equal(unlinkat(folder_fd, left_name(), 0), 0); }
static void untouched(void) { }

static void what_is_not_an_exporter_file_is_refused_without_harm(void **state)
{
	static const struct {
		const char *what;
		void (*damage)(void);
		int err;
	} rows[] = {
		{ "untouched", untouched, 0 },
		{ "magic", bad_magic, -EBADMSG },
		{ "magic's end", bad_magic_end, -EBADMSG },
		{ "layout version", bad_layout, -EPROTO },
		{ "header size", bad_header_size, -EBADMSG },
		{ "record size", bad_record_size, -EBADMSG },
		{ "slot size", bad_slot_size, -EBADMSG },
		{ "slots", bad_slots, -EBADMSG },
		{ "records", bad_records, -EBADMSG },
		{ "chunk", bad_chunk, -EBADMSG },
		{ "file size", bad_size, -EBADMSG },
		{ "file id", bad_id, -EBADMSG },
		{ "tag", bad_tag, -EBADMSG },
		{ "stamp check", bad_stamp_check, -EBADMSG },
		{ "boot id", bad_boot, -ESTALE },
		{ "too short", too_short, -EBADMSG },
		{ "empty", empty, -EBADMSG },
		{ "too long", too_long, -EBADMSG },
		{ "all hole", all_hole, -EBADMSG },
		{ "all zeros", all_zeros, -EBADMSG },
		{ "group reads", group_reads, -EPERM },
		{ "others write", others_write, -EPERM },
		{ "executable", runs, -EPERM },
		{ "setuid", sets_uid, -EPERM },
		{ "another's", anothers, -EPERM },
		{ "symbolic link", symbolic_link, -EBADMSG },
		{ "dangling link", dangling_link, -EBADMSG },
		{ "fifo", fifo, -EBADMSG },
		{ "directory", directory, -EBADMSG },
		{ "socket", a_socket, -EBADMSG },
		{ "nothing", nothing, -ENOENT },
	};
	bool root = geteuid() == 0;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct cl_region r = make_region(), seen;
		unsigned int descriptors;
		const char *why = NULL;
		int err, expected = rows[i].err;

		if (rows[i].damage == symbolic_link) { /* to a file that is right in itself */
			char name[16];

			cl_region_name(name, r.file_id);
			assert_int_equal(linkat(folder_fd, name, folder_fd, "spare", 0), 0);
		}
		left_file = r.file_id;
		cl_region_close(&r);
		rows[i].damage();
		if (rows[i].damage == anothers && !root)
			expected = 0;
		descriptors = count_entries("/proc/self/fd");
		alarm(10); /* a fifo must not make it wait */
		err = cl_region_open(&seen, folder_fd, left_file, &why);
		alarm(0);
		if (err != expected)
			fail_msg("%s: %d instead of %d", rows[i].what, err, expected);
		if (err) {
			assert_int_equal(count_entries("/proc/self/fd"), descriptors);
			assert_int_equal(seen.fd, -1);
			assert_null(seen.header);
			assert_non_null(why);
			/* nor is it taken away: who knows whose it is (an earlier boot's: nobody's) */
			cl_gc_directory(folder_fd, NULL);
			assert_int_equal(faccessat(folder_fd, left_name(), F_OK, AT_SYMLINK_NOFOLLOW),
					 err == -ENOENT || err == -ESTALE ? -1 : 0);
		} else {
			cl_region_close(&seen);
		}
		if (unlinkat(folder_fd, left_name(), 0))
			unlinkat(folder_fd, left_name(), AT_REMOVEDIR);
		unlinkat(folder_fd, "target", 0);
		unlinkat(folder_fd, "spare", 0);
	}
	assert_int_equal(count_entries(folder), 0);
}

static void only_the_very_file_is_taken_away(void **state)
{
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
	assert_int_equal(count_entries(folder), 0);
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
	assert_int_equal(fstat(number, &st), 0); /* the program's own is left alone */
	close(r.fd);
	assert_int_equal(dup2(other, r.fd), r.fd);
	number = r.fd;
	drop_region(&r);
	assert_int_equal(fstat(number, &st), 0);
	close(number);
	close(other);
}

/* ------------------------------------------------------------------ growing */
static void it_grows_by_chunks_to_a_million_records(void **state)
{
	struct cl_region r = make_region();
	uint8_t handle[64] = { 0 };
	struct stat st;

	assert_true(CL_RECORDS >= 1000000);
	assert_int_equal(hold(&r, 0, CL_CHUNK - 1, 0, 0), -ESTALE); /* there, not exported */
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
	/* a count that somebody has damaged leads nowhere */
	atomic_store(&r.header->record_chunks, UINT32_MAX);
	assert_int_equal(hold(&r, 0, CL_RECORDS - 1, 1, 9), -EBADMSG);
	atomic_store(&r.header->record_chunks, CL_CHUNKS);
	assert_int_equal(fstat(r.fd, &st), 0);
	print_message("# with %u records it takes %lld MiB\n", CL_RECORDS,
		      (long long)st.st_blocks * 512 >> 20);
	drop_region(&r);
}

/* A tmpfs of @size that no other process sees; returns it open. */
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
 * A process with threads is what a larger table costs tens of milliseconds: the kernel waits
 * for all processors.  It is a fresh one (see below), whose table never was larger.
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
	/* (a table that has room for all the numbers below would show nothing) */
	CHECK(room >= 64 && room <= 512);
	CHECK_EQUAL(cl_region_create(&r, folder_fd, &me), 0);
	CHECK_EQUAL(descriptor_room(), room);
	CHECK(r.fd >= room - 16 && r.fd < room);
	CHECK(fcntl(r.fd, F_GETFD) & FD_CLOEXEC);
	/* where the program's own fill it, it has grown: then higher again */
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

	/* what others have handed down, however high */
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
		cl_witness_self(&me);
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

	/* (by its name: under qemu-user the link itself leads to qemu) */
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	execl(self, "test_shm", DESCRIPTORS, folder, NULL);
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
	/* all that it said is there is touched: a SIGBUS would end this child */
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
 * The driver's mappings are next to what was mapped last: see map_place.h.  ThreadSanitizer
 * allows none of its own there.
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

/* ------------------------------------------------------------------ records */
static void the_life_of_a_record(void **state)
{
	struct cl_region r = make_region();
	uint32_t ready[64];
	uint16_t slots[4] = { 0 };
	uint32_t g;

	atomic_store(&r.header->slots_used, 130);
	assert_int_equal(hold(&r, 0, 5, 0, 1), -ESTALE); /* never exported */
	g = publish(&r, 5, 1);
	assert_int_equal(g, 0);
	assert_int_equal(hold(&r, 0, 5, 1, 1), -ESTALE); /* a generation to come */
	assert_int_equal(hold(&r, 0, 5, 0, 2), -EBADMSG); /* another handle */
	assert_false(cl_record_held(&r, 5));
	assert_int_equal(hold(&r, 0, 5, 0, 1), 0);
	assert_int_equal(hold(&r, 129, 5, 0, 1), 0);
	assert_int_equal(cl_record_holders(&r, 5, slots, 4), 2);
	assert_int_equal(slots[0], 0);
	assert_int_equal(slots[1], 129);
	assert_int_equal(cl_record_holders(&r, 5, slots, 0), 2);
	cl_record_unhold(&r, 0, 5);
	assert_int_equal(hold(&r, 0, 5, 0, 1), 0);
	assert_false(cl_record_any_ready(&r)); /* not in limbo: nobody waits for it */
	cl_record_export_again(&r, 5, 77);
	assert_int_equal(r.record[5].exports, 2);
	assert_int_equal(r.record[5].exported, 77);

	cl_record_to_limbo(&r, 5, 99);
	assert_int_equal(r.record[5].freed, 99);
	assert_int_equal(cl_life_state(cl_record_life(&r, 5)), CL_LIMBO);
	assert_false(cl_record_try_release(&r, 5));
	assert_int_equal(cl_life_state(cl_record_life(&r, 5)), CL_LIMBO);
	cl_record_unhold(&r, 0, 5);
	assert_false(cl_record_any_ready(&r)); /* another one still holds it */
	assert_int_equal(hold(&r, 7, 5, 0, 1), 0); /* a handle that was on its way */
	cl_record_unhold(&r, 7, 5);
	assert_false(cl_record_any_ready(&r));
	cl_record_unhold(&r, 129, 5);
	assert_true(cl_record_any_ready(&r));
	assert_int_equal(cl_record_take_ready(&r, ready, 64), 1);
	assert_int_equal(ready[0], 5);
	assert_false(cl_record_any_ready(&r));

	assert_true(cl_record_try_release(&r, 5));
	assert_int_equal(cl_record_life(&r, 5), cl_life(1, CL_FREE));
	assert_int_equal(hold(&r, 0, 5, 0, 1), -ESTALE);
	assert_int_equal(hold(&r, 0, 5, 1, 1), -ESTALE);
	assert_false(cl_record_held(&r, 5));
	assert_int_equal(publish(&r, 5, 1), 1); /* the driver gave the same handle again */
	assert_int_equal(r.record[5].exports, 1);
	assert_int_equal(r.record[5].freed, 0);
	assert_int_equal(hold(&r, 0, 5, 0, 1), -ESTALE);
	assert_int_equal(hold(&r, 0, 5, 1, 1), 0);

	/* its context went: its holders keep the record, nobody else gets in */
	assert_false(cl_record_gone(&r, 5));
	assert_int_equal(cl_life_state(cl_record_life(&r, 5)), CL_GONE);
	assert_int_equal(hold(&r, 3, 5, 1, 1), -ESTALE);
	assert_false(cl_record_try_release(&r, 5));
	cl_record_unhold(&r, 0, 5);
	assert_int_equal(cl_record_take_ready(&r, ready, 64), 1);
	assert_true(cl_record_try_release(&r, 5));
	assert_int_equal(publish(&r, 5, 3), 2);
	assert_true(cl_record_gone(&r, 5));
	assert_int_equal(cl_record_life(&r, 5), cl_life(3, CL_FREE));
	drop_region(&r);
}

static void a_pinned_block_is_kept(void **state)
{
	struct cl_region r = make_region();
	uint8_t right[64] = { 0 }, wrong[64] = { 0 };

	memset(right, 1, 56);
	memset(wrong, 2, 56);
	assert_int_equal(cl_record_pin(&r, 0, 0, right), -EBADMSG); /* its handle is zeros */
	publish(&r, 0, 1);
	assert_int_equal(cl_record_pin(&r, 0, 0, wrong), -EBADMSG);
	assert_int_equal(cl_record_pin(&r, 0, 1, right), -ESTALE);
	assert_int_equal(cl_record_pin(&r, CL_CHUNK, 0, right), -EBADMSG);
	assert_false(cl_record_held(&r, 0));
	assert_int_equal(cl_record_pin(&r, 0, 0, right), 0);
	assert_true(cl_record_held(&r, 0));
	cl_record_to_limbo(&r, 0, 1);
	assert_false(cl_record_try_release(&r, 0));
	assert_int_equal(cl_record_pin(&r, 0, 0, right), 0); /* in limbo, too */
	/* who holds and lets go of it changes nothing */
	assert_int_equal(hold(&r, 0, 0, 0, 1), 0);
	cl_record_unhold(&r, 0, 0);
	assert_false(cl_record_try_release(&r, 0));
	drop_region(&r);
}

/* Its exporter was killed, or stopped, while it looked whether it may free. */
static void a_record_that_stays_dying_is_refused_in_bounded_time(void **state)
{
	struct cl_region r = make_region();
	uint64_t begun;

	publish(&r, 0, 1);
	atomic_store(&r.record[0].life, cl_life(0, CL_DYING));
	begun = test_now();
	assert_int_equal(hold(&r, 0, 0, 0, 1), -ESTALE);
	print_message("# refused after %.1f ms\n", (double)(test_now() - begun) / 1e6);
	assert_true(test_now() - begun < 1000 * MS);
	assert_int_equal(cl_record_holders(&r, 0, NULL, 0), 0);
	drop_region(&r);
}

static void a_record_whose_generations_are_used_up_is_retired(void **state)
{
	struct cl_region r = make_region();
	struct cl_stamp s;
	uint32_t g;

	atomic_store(&r.header->slots_used, 1);
	atomic_store(&r.record[0].life, cl_life(CL_GENERATIONS - 1, CL_FREE));
	assert_true(cl_record_reusable(&r, 0));
	g = publish(&r, 0, 1);
	assert_int_equal(g, CL_GENERATIONS - 1);
	s = cl_stamp_unpack(cl_stamp_pack((struct cl_stamp){ r.file_id, 0, g, 0 }));
	assert_int_equal(s.generation, g);
	assert_int_equal(hold(&r, 0, 0, s.generation, 1), 0);
	cl_record_to_limbo(&r, 0, 1);
	assert_false(cl_record_try_release(&r, 0));
	cl_record_unhold(&r, 0, 0);
	assert_true(cl_record_try_release(&r, 0));
	/* one more would make generation 0 again in a stamp: the oldest handle would be right */
	assert_false(cl_record_reusable(&r, 0));
	assert_int_equal(cl_stamp_unpack(cl_stamp_pack((struct cl_stamp){ r.file_id, 0, g + 1, 0 })).generation,
			 0);
	assert_int_equal(hold(&r, 0, 0, 0, 1), -ESTALE);
	drop_region(&r);
}

/* ---------------------------------------------------------------- ready map */
static void the_ready_map_is_a_set(void **state)
{
	enum { CHUNKS = 300, RECORDS = CHUNKS * CL_CHUNK, MAX = 400 };
	struct cl_region r = make_region();
	bool *in = test_calloc(RECORDS, sizeof *in);
	unsigned int in_n = 0, full = 0;
	uint32_t out[MAX];

	grow_to(&r, CHUNKS);
	for (int round = 0; round < 4000; round++) {
		/* now few and far apart, now a crowd in one place */
		unsigned int add = random_next() % 8 ? random_next() % 6 : random_next() % 900;
		uint32_t near = random_next() % RECORDS;

		for (unsigned int i = 0; i < add; i++) {
			uint32_t record = add > 6 ? (near + random_next() % 2000) % RECORDS :
						    random_next() % RECORDS;

			cl_record_set_ready(&r, record);
			in_n += !in[record];
			in[record] = true;
		}
		if (random_next() % 2) {
			unsigned int max = random_next() % MAX;
			unsigned int n = cl_record_take_ready(&r, out, max);

			assert_true(n <= max);
			assert_true(n || !in_n || max < 64);
			assert_true(n + 64 > max || n == in_n); /* all, or as many as fit */
			full += n && n + 64 > max;
			for (unsigned int i = 0; i < n; i++) {
				assert_true(out[i] < RECORDS);
				assert_true(in[out[i]]);
				in[out[i]] = false;
			}
			in_n -= n;
		}
		assert_int_equal(cl_record_any_ready(&r), in_n != 0);
	}
	assert_true(full > 10); /* batches beyond the maximum were among them */
	while (in_n) {
		unsigned int n = cl_record_take_ready(&r, out, 64);

		assert_true(n > 0);
		in_n -= n;
		for (unsigned int i = 0; i < n; i++) {
			assert_true(in[out[i]]);
			in[out[i]] = false;
		}
	}
	assert_false(cl_record_any_ready(&r));
	test_free(in);
	drop_region(&r);
}

static void damaged_ready_bits_lead_nowhere(void **state)
{
	struct cl_region r = make_region();
	uint32_t out[128];
	struct stat before, after;

	assert_int_equal(fstat(r.fd, &before), 0);
	memset(r.ready_top, 0xff, sizeof *r.ready_top);
	cl_record_set_ready(&r, 3);
	assert_int_equal(cl_record_take_ready(&r, out, 128), 1);
	assert_int_equal(out[0], 3);
	assert_false(cl_record_any_ready(&r));
	assert_int_equal(fstat(r.fd, &after), 0);
	assert_int_equal(after.st_blocks, before.st_blocks);
	drop_region(&r);
}

enum { SETTERS = 2, SET_RECORDS = 3000, SET_TIMES = 150000 };
static struct setter {
	struct cl_region region;
	pthread_t thread;
	unsigned int number;
	_Atomic uint32_t set[SET_RECORDS]; /* how often; before the ready bit */
} setters[SETTERS];
static atomic_int setting;

static void *set_many(void *setter)
{
	struct setter *s = setter;
	uint64_t state = 12345 + s->number;

	for (int i = 0; i < SET_TIMES; i++) {
		uint32_t record;

		state = state * 6364136223846793005u + 1442695040888963407u;
		record = (uint32_t)(state >> 33) % SET_RECORDS;
		atomic_fetch_add(&s->set[record], 1);
		cl_record_set_ready(&s->region, record);
	}
	atomic_fetch_sub(&setting, 1);
	return NULL;
}

/* What was set after the last time it was taken is still there. */
static void nothing_ready_is_lost_among_threads(void **state)
{
	static uint32_t seen[SETTERS][SET_RECORDS];
	struct cl_region r = make_region();
	uint32_t out[200];
	bool last;

	grow_to(&r, SET_RECORDS / CL_CHUNK + 1);
	atomic_store(&setting, SETTERS);
	for (unsigned int i = 0; i < SETTERS; i++) {
		setters[i].region = r;
		setters[i].number = i;
		assert_int_equal(pthread_create(&setters[i].thread, NULL, set_many, &setters[i]), 0);
	}
	do {
		unsigned int n;

		last = atomic_load(&setting) == 0;
		while ((n = cl_record_take_ready(&r, out, 200)) > 0)
			for (unsigned int i = 0; i < n; i++)
				for (unsigned int s = 0; s < SETTERS; s++)
					seen[s][out[i]] = atomic_load(&setters[s].set[out[i]]);
	} while (!last);
	for (unsigned int i = 0; i < SETTERS; i++) {
		pthread_join(setters[i].thread, NULL);
		for (unsigned int record = 0; record < SET_RECORDS; record++)
			assert_int_equal(seen[i][record], atomic_load(&setters[i].set[record]));
	}
	drop_region(&r);
}

/* -------------------------------------------------------------------- slots */
static uint32_t cleared[64];
static unsigned int cleared_n;
static void note_cleared(void *data, uint32_t record)
{
	assert_ptr_equal(data, &cleared_n);
	cleared[cleared_n++ % 64] = record;
}

static void a_slot_is_cleared_and_what_came_free_is_ready(void **state)
{
	struct cl_region r = make_region();
	uint32_t ready[128];

	grow_to(&r, 3);
	atomic_store(&r.header->slots_used, 71);
	for (uint32_t record = 0; record < 3 * CL_CHUNK; record += CL_CHUNK / 2) {
		publish(&r, record, 1);
		assert_int_equal(hold(&r, 70, record, 0, 1), 0);
		if (record)
			cl_record_to_limbo(&r, record, 1);
	}
	assert_int_equal(hold(&r, 1, CL_CHUNK, 0, 1), 0);
	cleared_n = 0;
	/* exported, in limbo, and in limbo but held by another: 1 + 4 + 1 */
	assert_int_equal(cl_record_clear_slot(&r, 70, note_cleared, &cleared_n), 6);
	assert_int_equal(cleared_n, 6);
	for (unsigned int i = 0; i < 6; i++)
		assert_int_equal(cleared[i], i * CL_CHUNK / 2);
	assert_int_equal(cl_record_take_ready(&r, ready, 128), 4);
	for (unsigned int i = 0; i < 4; i++)
		assert_int_not_equal(ready[i], CL_CHUNK);
	assert_int_equal(cl_record_holders(&r, CL_CHUNK, NULL, 0), 1);
	assert_int_equal(cl_record_clear_slot(&r, 70, NULL, NULL), 0);
	assert_false(cl_record_any_ready(&r));
	drop_region(&r);
}

/* Killed after its bit was gone and before the record was made ready. */
static void a_close_that_was_cut_short_is_finished_by_the_reaper(void **state)
{
	struct cl_region r = make_region();
	uint32_t ready[64];

	publish(&r, 9, 1);
	cl_record_to_limbo(&r, 9, 1);
	atomic_store(&r.slot[4].closing, 9 + 1);
	assert_int_equal(cl_record_clear_slot(&r, 4, NULL, NULL), 0);
	assert_int_equal(cl_record_take_ready(&r, ready, 64), 1);
	assert_int_equal(ready[0], 9);
	assert_true(cl_record_try_release(&r, 9));
	/* a damaged note leads nowhere */
	atomic_store(&r.slot[4].closing, UINT32_MAX);
	assert_int_equal(cl_record_clear_slot(&r, 4, NULL, NULL), 0);
	atomic_store(&r.slot[4].closing, CL_CHUNK + 1);
	assert_int_equal(cl_record_clear_slot(&r, 4, NULL, NULL), 0);
	assert_false(cl_record_any_ready(&r));
	drop_region(&r);
}

/* Processes that this thread plays in turn: who has which byte. */
static uint32_t lock_owner[CL_SLOTS + 1];
static uint32_t playing;

static int played_try_lock(struct cl_region *region, off_t byte)
{
	if (lock_owner[byte] && lock_owner[byte] != playing)
		return -EAGAIN;
	lock_owner[byte] = playing;
	return 0;
}
static int played_unlock(struct cl_region *region, off_t byte)
{
	if (lock_owner[byte] == playing)
		lock_owner[byte] = 0;
	return 0;
}
static int played_is_locked(struct cl_region *region, off_t byte)
{
	return lock_owner[byte] && lock_owner[byte] != playing;
}
static const struct cl_lock_ops played_locks = { played_try_lock, played_unlock, played_is_locked };

static struct cl_witness play(uint32_t process)
{
	playing = process;
	/* of another PID namespace: so that nobody looks for it in /proc */
	return (struct cl_witness){ .pid = process, .pid_ns = 1, .start_time = 100 + process };
}
static void played_death(uint32_t process)
{
	for (unsigned int i = 0; i <= CL_SLOTS; i++)
		if (lock_owner[i] == process)
			lock_owner[i] = 0;
}
static struct cl_slot_watch watch[CL_SLOTS];
static struct cl_region make_played_region(void)
{
	struct cl_region r = make_region();

	r.locks = &played_locks;
	memset(lock_owner, 0, sizeof lock_owner);
	memset(watch, 0, sizeof watch);
	return r;
}

static void slots_are_claimed_once_and_given_back(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_witness w;
	struct cl_reaped reaped;

	for (uint32_t p = 1; p <= 3; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, 10 + p, 50), p - 1);
		assert_int_equal(r.slot[p - 1].who.pid, p);
		assert_int_equal(r.slot[p - 1].since, 10 + p);
		assert_int_equal(r.slot[p - 1].known, r.slot[p - 1].claim >> 8);
		assert_true(r.slot[p - 1].name[0]);
	}
	assert_int_equal(r.header->slots_used, 3);
	play(2);
	cl_holder_release(&r, 1);
	assert_int_equal(lock_owner[CL_LOCK_SLOT(1)], 0);
	play(99);
	reaped = cl_holder_reap(&r, watch, 1000, 50, NULL, NULL);
	assert_int_equal(reaped.alive, 2);
	assert_int_equal(reaped.slots + reaped.settling, 0);
	w = play(4);
	assert_int_equal(cl_holder_claim(&r, &w, 20, 50), 1);
	assert_int_equal(r.slot[1].claim, 2 << 8 | CL_SLOT_CLAIMED); /* an epoch of its own */
	assert_int_equal(r.slot[1].who.pid, 4);
	drop_region(&r);
}

static void all_slots_may_be_taken_and_the_dead_make_room(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_witness w;

	assert_true(CL_SLOTS >= 1024);
	publish(&r, 8, 1);
	for (uint32_t p = 1; p <= CL_SLOTS; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, 1, 50), p - 1);
		assert_int_equal(hold(&r, p - 1, 8, 0, 1), 0);
	}
	assert_int_equal(cl_record_holders(&r, 8, NULL, 0), CL_SLOTS);
	cl_record_to_limbo(&r, 8, 1);
	w = play(5000);
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	played_death(700);
	/* settling: it may yet be alive, as far as can be told */
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	assert_int_equal(cl_holder_claim(&r, &w, 1050 * MS - 1, 50 * MS), -EUSERS);
	assert_int_equal(cl_record_holders(&r, 8, NULL, 0), CL_SLOTS);
	/* a time in the file is rounded up to a millisecond or so, never down */
	assert_int_equal(cl_holder_claim(&r, &w, 1052 * MS, 50 * MS), 699);
	assert_int_equal(cl_record_holders(&r, 8, NULL, 0), CL_SLOTS - 1);
	assert_int_equal(r.slot[699].who.pid, 5000);
	for (uint32_t p = 1; p <= CL_SLOTS; p++)
		played_death(p);
	play(6000);
	assert_int_equal(cl_holder_reap(&r, watch, 2000, 50, NULL, NULL).settling, CL_SLOTS - 1);
	assert_int_equal(cl_holder_reap(&r, watch, 2050, 50, NULL, NULL).slots, CL_SLOTS - 1);
	assert_false(cl_record_held(&r, 8));
	assert_true(cl_record_any_ready(&r));
	assert_true(cl_record_try_release(&r, 8));
	drop_region(&r);
}

/*
 * Importers elsewhere that are killed one after the other, as a server of weights has them: each
 * is a process of its own that comes for a moment, so no one of them sees a slot twice.
 */
static void the_dead_make_room_before_all_slots_are_taken(void **state)
{
	struct cl_region r = make_played_region();
	unsigned int highest = 0;

	for (uint32_t p = 1; p <= 5 * CL_SLOTS; p++) {
		struct cl_witness w = play(p);
		int slot = cl_holder_claim(&r, &w, p * MS, 50 * MS);

		assert_in_range(slot, 0, CL_SLOTS - 1);
		highest = (unsigned int)slot > highest ? (unsigned int)slot : highest;
		played_death(p);
	}
	/* where there are few nobody looks: it is for the exporter to tell of those that did not close */
	assert_in_range(highest, CL_CROWD, CL_SLOTS - 1);
	for (unsigned int i = 0; i <= CL_SLOTS; i++)
		assert_int_equal(lock_owner[i], 0);
	drop_region(&r);
}

/* All of them at once: who comes first can't know yet, and leaves what he saw to who comes next. */
static void who_finds_all_slots_taken_tells_the_next(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_witness w;

	for (uint32_t p = 1; p <= CL_SLOTS; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, MS, 50 * MS), p - 1);
	}
	for (uint32_t p = 1; p <= CL_SLOTS; p++)
		played_death(p);
	w = play(5000);
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	w = play(5001);
	assert_int_equal(cl_holder_claim(&r, &w, 1010 * MS, 50 * MS), -EUSERS);
	/* another clock says nothing about this one */
	w = play(5002);
	w.time_ns = 1;
	assert_int_equal(cl_holder_claim(&r, &w, 9000 * MS, 50 * MS), -EUSERS);
	w = play(5003);
	assert_int_equal(cl_holder_claim(&r, &w, 9010 * MS, 50 * MS), -EUSERS);
	w = play(5004);
	assert_true(cl_holder_claim(&r, &w, 9062 * MS, 50 * MS) >= 0);
	drop_region(&r);
}

/* What is left in the file of a slot is of one claim of it, and never of a time to come. */
static void what_is_left_of_one_claim_is_not_of_the_next(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_witness w;

	for (uint32_t p = 1; p <= CL_SLOTS; p++) {
		w = play(p);
		assert_int_equal(cl_holder_claim(&r, &w, MS, 50 * MS), p - 1);
	}
	played_death(1);
	w = play(5000);
	assert_int_equal(cl_holder_claim(&r, &w, 1000 * MS, 50 * MS), -EUSERS);
	assert_int_not_equal(r.lock_free[0], 0);
	/* the exporter has it back meanwhile, and another takes it and dies */
	play(6000);
	cl_holder_reap(&r, watch, 1000 * MS, 0, NULL, NULL);
	w = play(5001);
	assert_int_equal(cl_holder_claim(&r, &w, 1040 * MS, 50 * MS), 0);
	played_death(5001);
	w = play(5002);
	assert_int_equal(cl_holder_claim(&r, &w, 1060 * MS, 50 * MS), -EUSERS);
	assert_int_equal(cl_holder_claim(&r, &w, 1112 * MS, 50 * MS), 0);
	/* one that somebody wrote */
	played_death(5002);
	w = play(5003);
	assert_int_equal(cl_holder_claim(&r, &w, 2000 * MS, 50 * MS), -EUSERS);
	r.lock_free[0] |= 0xffffffff;
	assert_int_equal(cl_holder_claim(&r, &w, 2010 * MS, 50 * MS), -EUSERS);
	assert_int_equal(cl_holder_claim(&r, &w, 2062 * MS, 50 * MS), 0);
	/* a lock that is had again is none that was free */
	played_death(5003);
	w = play(5004);
	assert_int_equal(cl_holder_claim(&r, &w, 3000 * MS, 50 * MS), -EUSERS);
	lock_owner[CL_LOCK_SLOT(0)] = 5000;
	assert_int_equal(cl_holder_claim(&r, &w, 3010 * MS, 50 * MS), -EUSERS);
	assert_int_equal(r.lock_free[0], 0);
	lock_owner[CL_LOCK_SLOT(0)] = 0;
	assert_int_equal(cl_holder_claim(&r, &w, 3100 * MS, 50 * MS), -EUSERS);
	drop_region(&r);
}

/* A lock that is free for a moment only is no death, and settling begins anew for each claim. */
static void settling_begins_anew(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_witness w = play(1);
	struct cl_reaped reaped;

	assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 0);
	play(9);
	lock_owner[CL_LOCK_SLOT(0)] = 0;
	assert_int_equal(cl_holder_reap(&r, watch, 100, 50, NULL, NULL).settling, 1);
	lock_owner[CL_LOCK_SLOT(0)] = 1;
	assert_int_equal(cl_holder_reap(&r, watch, 140, 50, NULL, NULL).alive, 1);
	lock_owner[CL_LOCK_SLOT(0)] = 0;
	assert_int_equal(cl_holder_reap(&r, watch, 160, 50, NULL, NULL).settling, 1);
	play(1);
	assert_int_equal(played_try_lock(&r, CL_LOCK_SLOT(0)), 0);
	cl_holder_release(&r, 0);
	w = play(2);
	assert_int_equal(cl_holder_claim(&r, &w, 170, 50), 0);
	played_death(2);
	play(9);
	reaped = cl_holder_reap(&r, watch, 211, 50, NULL, NULL);
	assert_int_equal(reaped.settling, 1); /* 211 is over 160 + 50, but that was another */
	assert_int_equal(cl_holder_reap(&r, watch, 261, 50, NULL, NULL).slots, 1);
	drop_region(&r);
}

/* Killed between claiming and saying who it is: its lock alone tells. */
static void a_claim_without_a_witness_is_reaped_by_its_lock(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_witness w = me;

	playing = 1; /* a live process's witness, left from a claim before */
	assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 0);
	cl_holder_release(&r, 0);
	atomic_store(&r.slot[0].claim, 2 << 8 | CL_SLOT_CLAIMED);
	lock_owner[CL_LOCK_SLOT(0)] = 1;
	playing = 2;
	assert_int_equal(cl_holder_reap(&r, watch, 10, 50, NULL, NULL).alive, 1);
	played_death(1);
	assert_int_equal(cl_holder_reap(&r, watch, 20, 50, NULL, NULL).settling, 1);
	assert_int_equal(cl_holder_reap(&r, watch, 70, 50, NULL, NULL).slots, 1);
	drop_region(&r);
}

static void a_new_image_reaps_what_its_former_one_held(void **state)
{
	struct cl_region r = make_played_region();
	struct cl_witness w = play(1), other;

	publish(&r, 0, 1);
	assert_int_equal(cl_holder_claim(&r, &w, 1, 50), 0);
	assert_int_equal(hold(&r, 0, 0, 0, 1), 0);
	other = play(2);
	assert_int_equal(cl_holder_claim(&r, &other, 1, 50), 1);
	assert_int_equal(hold(&r, 1, 0, 0, 1), 0);
	cl_record_to_limbo(&r, 0, 1);
	/* exec: same process, its locks and its context gone; no settling needed */
	played_death(1);
	w = play(1);
	assert_int_equal(cl_holder_claim(&r, &w, 2, 1000000), 0);
	assert_int_equal(r.slot[0].claim, 2 << 8 | CL_SLOT_CLAIMED);
	assert_int_equal(cl_record_holders(&r, 0, NULL, 0), 1); /* the other one's is left */
	/* the same number after a reuse of the pid, or in another namespace, is another */
	w.start_time++;
	playing = 3;
	assert_int_equal(cl_holder_claim(&r, &w, 2, 1000000), 2);
	w.pid_ns++;
	playing = 4;
	assert_int_equal(cl_holder_claim(&r, &w, 2, 1000000), 3);
	drop_region(&r);
}

/* ----------------------------------------------------------- real processes */
/* Claims a slot in @file_id and holds its first @holds records; never returns. */
struct importer {
	pid_t pid;
	int said; /* a pipe from it: its slot */
};

static struct cl_region importer_region;
static void import_or_die(uint32_t file_id, uint32_t holds, int tell)
{
	struct cl_witness self;
	int slot;

	child_begins();
	CHECK_EQUAL(cl_region_open(&importer_region, folder_fd, file_id, NULL), 0);
	cl_witness_self(&self);
	slot = cl_holder_claim(&importer_region, &self, cl_now(), 50 * MS);
	CHECK(slot >= 0);
	for (uint32_t i = 0; i < holds; i++)
		CHECK_EQUAL(hold(&importer_region, (unsigned int)slot, i, 0, 1), 0);
	CHECK(write(tell, &slot, sizeof slot) == sizeof slot);
}
static void *sit(void *unused)
{
	for (;;)
		pause();
	return unused;
}
static void then_wait(void)
{
	sit(NULL);
}
static void then_close_all(void)
{
	close_range(0, ~0u, 0);
	then_wait();
}
static void then_exec(void)
{
	int ends[2];

	if (pipe(ends) || dup2(ends[0], 0) < 0)
		_exit(1);
	/* it keeps the writing end as well, and so sleeps until it is killed */
	execlp("cat", "cat", (char *)NULL);
	_exit(127);
}
static void then_leader_ends(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, sit, NULL));
	pthread_exit(NULL);
}
static void then_new_namespace(void)
{
	then_wait();
}

static pid_t *inner_pid; /* shared with children */

static struct importer start_importer(uint32_t file_id, uint32_t holds, void (*then)(void))
{
	struct importer importer;
	int ends[2], slot = -1;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	importer.pid = fork();
	assert_true(importer.pid >= 0);
	if (!importer.pid) {
		pid_t inner = 0;

		if (then == then_new_namespace) {
			if (unshare(CLONE_NEWPID) || (inner = fork()) < 0) {
				slot = -2;
				CHECK(write(ends[1], &slot, sizeof slot) == sizeof slot);
				_exit(0);
			}
			if (inner) {
				*inner_pid = inner;
				waitpid(inner, NULL, 0);
				_exit(0);
			}
			close(ends[0]);
		}
		import_or_die(file_id, holds, ends[1]);
		then();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &slot, sizeof slot), sizeof slot);
	close(ends[0]);
	importer.said = slot;
	return importer;
}
static void end_importer(struct importer *importer)
{
	kill(importer->pid, SIGKILL);
	kill(importer->pid, SIGCONT);
	waitpid(importer->pid, NULL, 0);
}

enum { HELD = 100 };
/* A driver that uses all 64 bytes: @tail is of @record's handle, the rest the same in all. */
static uint32_t publish_whole(struct cl_region *r, uint32_t record, uint64_t tail)
{
	uint8_t handle[64];
	struct cl_export what = an_export(handle, 9);
	uint32_t generation;

	memcpy(handle + 56, &tail, 8);
	generation = cl_record_publish(r, record, &what);
	assert_int_equal(cl_region_need_by_handle(r), 0);
	cl_record_index(r, record, handle);
	return generation;
}

static int find_whole(const struct cl_region *r, uint64_t tail, uint32_t *record)
{
	uint8_t handle[64], is[64];
	uint32_t generation;
	int err;

	an_export(handle, 9);
	memcpy(handle + 56, &tail, 8);
	err = cl_record_find(r, handle, record, &generation);
	if (!err) {
		assert_true(cl_record_is(r, *record, handle));
		cl_record_handle(r, *record, is);
		assert_memory_equal(is, handle, 64);
	}
	return err;
}

static int64_t disk_of(const struct cl_region *r)
{
	struct stat st;

	assert_int_equal(fstat(r->fd, &st), 0);
	return (int64_t)st.st_blocks * 512;
}

static void records_are_found_by_their_whole_handle(void **state)
{
	enum { BEFORE = 3, AFTER = CL_CHUNK + 3, LAST = AFTER + 1 };
	struct cl_region r = make_region();
	uint32_t record = 0;
	uint8_t handle[64];
	int64_t before;

	/* one whose handle has room for a stamp: its tail is 0, without an index and with */
	publish(&r, 0, 9);
	an_export(handle, 9);
	assert_true(cl_record_is(&r, 0, handle));
	assert_int_equal(find_whole(&r, 0, &record), -ENOENT);

	before = disk_of(&r);
	publish_whole(&r, BEFORE, 111);
	assert_int_equal(disk_of(&r), before + CL_BUCKETS * 4 + CL_CHUNK * sizeof(struct cl_chain));
	assert_true(cl_record_is(&r, 0, handle));
	/* what it grows by from then on has its chains, too */
	before = disk_of(&r);
	assert_int_equal(cl_region_grow(&r), 0);
	assert_int_equal(disk_of(&r), before + CL_CHUNK * (sizeof(struct cl_record) + sizeof(struct cl_chain)));
	publish_whole(&r, AFTER, 222);
	publish_whole(&r, LAST, 333);

	assert_int_equal(find_whole(&r, 111, &record), 0);
	assert_int_equal(record, BEFORE);
	assert_int_equal(find_whole(&r, 222, &record), 0);
	assert_int_equal(record, AFTER);
	assert_int_equal(find_whole(&r, 333, &record), 0);
	assert_int_equal(record, LAST);
	assert_int_equal(find_whole(&r, 444, &record), -ENOENT);
	/* another tail is another handle, whatever else is equal */
	assert_false(cl_record_is(&r, BEFORE, handle));

	cl_record_unindex(&r, AFTER);
	assert_int_equal(find_whole(&r, 222, &record), -ENOENT);
	assert_int_equal(find_whole(&r, 111, &record), 0);
	assert_int_equal(find_whole(&r, 333, &record), 0);
	/* a record that is used again is found by its new handle alone */
	cl_record_unindex(&r, LAST);
	assert_true(cl_record_try_release(&r, LAST));
	publish_whole(&r, LAST, 555);
	assert_int_equal(find_whole(&r, 333, &record), -ENOENT);
	assert_int_equal(find_whole(&r, 555, &record), 0);
	assert_int_equal(record, LAST);
	/* or by its stamp, where its new handle has room for one: nothing is left of the old one's tail */
	cl_record_unindex(&r, LAST);
	assert_true(cl_record_try_release(&r, LAST));
	publish(&r, LAST, 9);
	an_export(handle, 9);
	assert_true(cl_record_is(&r, LAST, handle));
	drop_region(&r);
}

/* What others write over never makes us read where nothing is mapped. */
static void damaged_chains_lead_nowhere(void **state)
{
	struct cl_region r = make_region();
	uint32_t record = 0;
	int64_t before;

	publish(&r, 0, 9);
	/* of a file that says it has more records than there can be, no more chains are got than there can be */
	before = disk_of(&r);
	atomic_store(&r.header->record_chunks, 2 * CL_CHUNKS);
	assert_int_equal(cl_region_need_by_handle(&r), 0);
	assert_int_equal(disk_of(&r), before + CL_BUCKETS * 4 + CL_RECORDS * sizeof(struct cl_chain));
	atomic_store(&r.header->record_chunks, 1);

	/* one bucket's */
	publish_whole(&r, 1, 111);
	publish_whole(&r, 2, 111);
	atomic_store(&r.header->record_chunks, UINT32_MAX);
	r.chain[2].next = UINT32_MAX / 4;
	cl_record_unindex(&r, 1);
	assert_int_equal(find_whole(&r, 222, &record), -ENOENT);
	drop_region(&r);
}

static struct cl_region make_region_with(uint32_t exported)
{
	struct cl_region r = make_region();

	for (uint32_t i = 0; i < exported; i++)
		publish(&r, i, 1);
	memset(watch, 0, sizeof watch);
	return r;
}
static struct cl_reaped look(struct cl_region *r, uint64_t settle)
{
	return cl_holder_reap(r, watch, cl_now(), settle, NULL, NULL);
}

static void the_killed_are_reaped_zombie_or_not(void **state)
{
	for (int wait_for_it = 0; wait_for_it < 2; wait_for_it++) {
		struct cl_region r = make_region_with(HELD);
		struct importer importer = start_importer(r.file_id, HELD, then_wait);
		struct cl_reaped sum = { 0 };
		uint64_t killed, took;

		assert_int_equal(look(&r, 50 * MS).alive, 1);
		for (uint32_t i = 0; i < HELD; i++)
			cl_record_to_limbo(&r, i, 1);
		assert_false(cl_record_try_release(&r, HELD - 1));
		kill(importer.pid, SIGKILL);
		killed = test_now();
		if (wait_for_it)
			waitpid(importer.pid, NULL, 0);
		/* no settling is needed where /proc can tell: an hour of it must not matter */
		assert_true(COMES_TRUE((sum = look(&r, 3600000 * MS)).slots == 1, 5000));
		took = test_now() - killed;
		print_message("# a killed importer%s was reaped after %.1f ms\n",
			      wait_for_it ? "" : ", a zombie,", (double)took / 1e6);
		assert_true(took < 500 * MS);
		assert_int_equal(sum.holds, HELD);
		for (uint32_t i = 0; i < HELD; i++)
			assert_true(cl_record_try_release(&r, i));
		assert_int_equal(cl_life_state(r.slot[importer.said].claim), CL_SLOT_FREE);
		end_importer(&importer);
		drop_region(&r);
	}
}

/* Looks for longer than the settling time, at least 20 times, that nothing is reaped. */
static void assert_lives(struct cl_region *r)
{
	uint64_t until = test_now() + 150 * MS;
	int looks = 0;

	while (test_now() < until || looks < 20) {
		struct cl_reaped sum = look(r, 50 * MS);

		assert_int_equal(sum.slots, 0);
		assert_int_equal(sum.alive, 1);
		looks++;
		test_moment();
	}
	assert_int_equal(cl_record_holders(r, HELD - 1, NULL, 0), 1);
}

static void the_stopped_are_not_reaped(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_wait);
	int status;

	assert_int_equal(kill(importer.pid, SIGSTOP), 0);
	assert_int_equal(waitpid(importer.pid, &status, WUNTRACED), importer.pid);
	assert_true(WIFSTOPPED(status));
	assert_lives(&r);
	end_importer(&importer);
	drop_region(&r);
}

/* A process that ends lives on for a moment, and has the file mapped. */
static void who_has_ended_its_file_is_no_exporter_of_it(void **state)
{
	int dir = open(folder, O_RDONLY | O_DIRECTORY);
	struct cl_region ended = make_region_with(1), removed = make_region_with(1);
	uint32_t pid = (uint32_t)getpid();

	assert_true(cl_liveness_is_exporter(pid, ended.file_id, false));
	assert_int_equal(cl_region_end(&ended, dir), 0);
	assert_false(cl_liveness_is_exporter(pid, ended.file_id, false));
	/* whose file somebody else removed is one still */
	assert_int_equal(cl_region_unlink(&removed, dir), 0);
	assert_true(cl_liveness_is_exporter(pid, removed.file_id, false));
	cl_region_close(&ended);
	cl_region_close(&removed);
	close(dir);
}

static void who_closed_all_descriptors_is_not_reaped(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_close_all);

	assert_true(COMES_TRUE(!r.locks->is_locked(&r, CL_LOCK_SLOT(importer.said)), 5000));
	assert_lives(&r);
	kill(importer.pid, SIGKILL);
	assert_true(COMES_TRUE(look(&r, 50 * MS).slots == 1, 5000));
	end_importer(&importer);
	drop_region(&r);
}

static void whose_first_thread_ended_is_not_reaped(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_leader_ends);
	char path[64], line[256];

	snprintf(path, sizeof path, "/proc/%d/stat", (int)importer.pid);
	assert_true(COMES_TRUE(({
		FILE *f = fopen(path, "r");
		bool zombie = f && fgets(line, sizeof line, f) && strstr(line, ") Z ");

		if (f)
			fclose(f);
		zombie;
	}), 5000));
	assert_lives(&r);
	end_importer(&importer);
	drop_region(&r);
}

static void who_called_exec_is_reaped_after_settling(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_exec);
	struct cl_reaped sum;
	uint64_t settling_from = 0;

	while (!settling_from || test_now() < settling_from + 10000 * MS) {
		uint64_t now = cl_now();

		sum = cl_holder_reap(&r, watch, now, 80 * MS, NULL, NULL);
		if (sum.slots)
			break;
		if (sum.settling && !settling_from)
			settling_from = now;
		test_moment();
	}
	assert_int_equal(sum.slots, 1);
	assert_int_equal(sum.holds, HELD);
	assert_true(cl_now() >= settling_from + 80 * MS);
	assert_int_equal(kill(importer.pid, 0), 0); /* and it lives on */
	end_importer(&importer);
	drop_region(&r);
}

static void another_pid_namespace_is_judged_by_lock_and_settling(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_new_namespace);
	struct cl_reaped sum = { 0 };
	uint64_t from = 0;

	if (importer.said == -2) {
		print_message("# skipped: no PID namespace may be made\n");
		end_importer(&importer);
		drop_region(&r);
		skip();
	}
	assert_int_equal(r.slot[importer.said].who.pid, 1);
	assert_lives(&r);
	assert_true(*inner_pid > 0);
	assert_int_equal(kill(*inner_pid, SIGKILL), 0);
	assert_int_equal(waitpid(importer.pid, NULL, 0), importer.pid);
	while (!from || test_now() < from + 5000 * MS) {
		uint64_t now = cl_now();

		sum = cl_holder_reap(&r, watch, now, 80 * MS, NULL, NULL);
		if (sum.slots)
			break;
		if (sum.settling && !from)
			from = now;
		test_moment();
	}
	assert_int_equal(sum.slots, 1);
	assert_true(cl_now() >= from + 80 * MS);
	drop_region(&r);
}

/* The reaper may be killed anywhere: bits first, slot last, so it is simply run again. */
static void die_at_the_50th(void *data, unsigned int slot, uint32_t record)
{
	if (++*(int *)data == 50)
		_exit(0);
}
static void a_reaper_that_was_killed_is_run_again(void **state)
{
	struct cl_region r = make_region_with(HELD);
	struct importer importer = start_importer(r.file_id, HELD, then_wait);
	struct cl_reaped sum = { 0 };
	uint32_t left = 0;
	pid_t child;

	for (uint32_t i = 0; i < HELD; i++)
		cl_record_to_limbo(&r, i, 1);
	end_importer(&importer);
	child = fork_checked();
	if (!child) {
		struct cl_region mine;
		int told = 0;

		CHECK_EQUAL(cl_region_open(&mine, folder_fd, r.file_id, NULL), 0);
		COMES_TRUE(cl_holder_reap(&mine, watch, cl_now(), 50 * MS, die_at_the_50th,
					  &told).slots, 5000);
		CHECK(!"the reaper was to die");
	}
	child_judge(child);
	for (uint32_t i = 0; i < HELD; i++)
		left += cl_record_holders(&r, i, NULL, 0);
	assert_int_equal(left, HELD - 49);
	assert_true(COMES_TRUE((sum = look(&r, 50 * MS)).slots == 1, 5000));
	assert_int_equal(sum.holds, HELD - 49);
	for (uint32_t i = 0; i < HELD; i++)
		assert_true(cl_record_try_release(&r, i));
	drop_region(&r);
}

/* --------------------------------------------------------- what the dead left */
static void a_dead_exporters_file_is_taken_away_a_live_ones_is_not(void **state)
{
	struct cl_region live = make_region(), seen;
	unsigned int files = count_entries(folder);
	uint32_t id;
	int ends[2];
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork_checked();
	if (!child) {
		struct cl_region r;
		struct cl_witness self;

		cl_witness_self(&self);
		CHECK_EQUAL(cl_region_create(&r, folder_fd, &self), 0);
		CHECK(write(ends[1], &r.file_id, sizeof id) == sizeof id);
		then_wait();
	}
	assert_int_equal(read(ends[0], &id, sizeof id), sizeof id);
	assert_int_equal(cl_region_open(&seen, folder_fd, id, NULL), 0);
	assert_int_equal(cl_gc_file(&seen, folder_fd), -EBUSY);
	kill(child, SIGKILL);
	assert_true(COMES_TRUE(cl_gc_file(&seen, folder_fd) == 0, 5000));
	waitpid(child, NULL, 0);
	cl_region_close(&seen);
	assert_int_equal(count_entries(folder), files);
	child = fork_checked();
	if (!child) {
		struct cl_region r;
		struct cl_witness self;

		cl_witness_self(&self);
		CHECK_EQUAL(cl_region_create(&r, folder_fd, &self), 0);
		_exit(0); /* without taking it away, as the killed do */
	}
	child_judge(child);
	child = fork_checked();
	if (!child) {
		/* in another process: closing the live one's file here would drop its lock */
		CHECK_EQUAL(cl_gc_directory(folder_fd, NULL), 1);
		CHECK_EQUAL(cl_gc_directory(folder_fd, NULL), 0);
		_exit(0);
	}
	child_judge(child);
	assert_int_equal(count_entries(folder), files);
	close(ends[0]);
	close(ends[1]);
	drop_region(&live);
}

/* As it is named until it is whole and locked: of the living it stays, of the dead it goes. */
static void an_unfinished_file_goes_with_its_maker(void **state)
{
	unsigned int files = count_entries(folder);
	char name[16], unfinished[16] = "";
	int ends[2];
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork_checked();
	if (!child) {
		struct cl_region r;
		struct cl_witness self;

		cl_witness_self(&self);
		CHECK_EQUAL(cl_region_create(&r, folder_fd, &self), 0);
		cl_region_name(name, r.file_id);
		snprintf(unfinished, sizeof unfinished, "new-%s", name + strlen("exporter-"));
		CHECK_EQUAL(renameat(folder_fd, name, folder_fd, unfinished), 0);
		CHECK(write(ends[1], unfinished, sizeof unfinished) == sizeof unfinished);
		then_wait();
	}
	assert_int_equal(read(ends[0], unfinished, sizeof unfinished), sizeof unfinished);
	assert_int_equal(cl_region_name_id(unfinished), 0); /* nobody imports from it */
	assert_true(cl_region_unfinished_id(unfinished) != 0);
	assert_int_equal(cl_gc_directory(folder_fd, NULL), 0);
	assert_int_equal(count_entries(folder), files + 1);
	kill(child, SIGKILL);
	assert_true(COMES_TRUE(cl_gc_directory(folder_fd, NULL) == 1, 5000));
	waitpid(child, NULL, 0);
	assert_int_equal(count_entries(folder), files);
	close(ends[0]);
	close(ends[1]);
	/* not yet anything in it: left alone while somebody may be about to */
	close(openat(folder_fd, "new-00002a", O_CREAT | O_EXCL | O_WRONLY, 0600));
	assert_int_equal(cl_gc_directory(folder_fd, NULL), 0);
	assert_int_equal(unlinkat(folder_fd, "new-00002a", 0), 0);
}

static int make_folder(void **state)
{
	char *environment[] = { NULL };

	inner_pid = mmap(NULL, CL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (inner_pid == MAP_FAILED)
		return -1;

	cl_options_read(&cl_options, environment, NULL);
	cl_witness_self(&me);
	snprintf(folder, sizeof folder, "/dev/shm/culimbo-unit-XXXXXX");
	if (!mkdtemp(folder)) {
		snprintf(folder, sizeof folder, "/tmp/culimbo-unit-XXXXXX");
		if (!mkdtemp(folder))
			return -1;
	}
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return folder_fd < 0 ? -1 : 0;
}
static int remove_folder(void **state)
{
	close(folder_fd);
	return remove_folder_at(folder);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], DESCRIPTORS))
		return descriptors_main(argv[2]);

	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_new_file_is_private_sparse_locked_and_small),
		cmocka_unit_test(a_file_is_never_seen_half_made),
		cmocka_unit_test(names_are_the_file_id_and_nothing_else),
		cmocka_unit_test(a_stamp_comes_out_as_it_went_in),
		cmocka_unit_test(a_file_knows_its_stamps_and_no_others),
		cmocka_unit_test(a_later_file_of_the_number_has_other_stamps),
		cmocka_unit_test(a_stamp_tells_its_place_from_others),
		cmocka_unit_test(a_place_has_one_name_for_all_who_see_it),
		cmocka_unit_test(what_is_not_an_exporter_file_is_refused_without_harm),
		cmocka_unit_test(only_the_very_file_is_taken_away),
		cmocka_unit_test(a_descriptor_that_the_program_closed_is_noticed_and_regained),
		cmocka_unit_test(its_descriptor_is_high_and_makes_no_larger_table),
		cmocka_unit_test(it_grows_by_chunks_to_a_million_records),
		cmocka_unit_test(no_room_is_an_error_and_leaves_nothing),
		cmocka_unit_test(too_little_room_is_an_error_and_never_sigbus),
		cmocka_unit_test(a_file_is_mapped_away_from_what_the_kernel_places),
		cmocka_unit_test(a_file_size_limit_is_an_error_and_never_sigxfsz),
		cmocka_unit_test(the_life_of_a_record),
		cmocka_unit_test(a_pinned_block_is_kept),
		cmocka_unit_test(records_are_found_by_their_whole_handle),
		cmocka_unit_test(damaged_chains_lead_nowhere),
		cmocka_unit_test(a_record_that_stays_dying_is_refused_in_bounded_time),
		cmocka_unit_test(a_record_whose_generations_are_used_up_is_retired),
		cmocka_unit_test(the_ready_map_is_a_set),
		cmocka_unit_test(damaged_ready_bits_lead_nowhere),
		cmocka_unit_test(nothing_ready_is_lost_among_threads),
		cmocka_unit_test(a_slot_is_cleared_and_what_came_free_is_ready),
		cmocka_unit_test(a_close_that_was_cut_short_is_finished_by_the_reaper),
		cmocka_unit_test(slots_are_claimed_once_and_given_back),
		cmocka_unit_test(all_slots_may_be_taken_and_the_dead_make_room),
		cmocka_unit_test(the_dead_make_room_before_all_slots_are_taken),
		cmocka_unit_test(who_finds_all_slots_taken_tells_the_next),
		cmocka_unit_test(what_is_left_of_one_claim_is_not_of_the_next),
		cmocka_unit_test(settling_begins_anew),
		cmocka_unit_test(a_claim_without_a_witness_is_reaped_by_its_lock),
		cmocka_unit_test(a_new_image_reaps_what_its_former_one_held),
		cmocka_unit_test(the_killed_are_reaped_zombie_or_not),
		cmocka_unit_test(the_stopped_are_not_reaped),
		cmocka_unit_test(who_has_ended_its_file_is_no_exporter_of_it),
		cmocka_unit_test(who_closed_all_descriptors_is_not_reaped),
		cmocka_unit_test(whose_first_thread_ended_is_not_reaped),
		cmocka_unit_test(who_called_exec_is_reaped_after_settling),
		cmocka_unit_test(another_pid_namespace_is_judged_by_lock_and_settling),
		cmocka_unit_test(a_reaper_that_was_killed_is_run_again),
		cmocka_unit_test(a_dead_exporters_file_is_taken_away_a_live_ones_is_not),
		cmocka_unit_test(an_unfinished_file_goes_with_its_maker),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
