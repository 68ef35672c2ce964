/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: its contents are used only after a check.  A file that is not an exporter file is
 * refused and left unharmed.
 */
#include "tests/unit/region.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "shim/shm/gc.h"
#include "shim/shm/slot.h"

static uint32_t left_file; /* of an exporter that has ended; the damages below are applied to it */

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

		if (rows[i].damage == symbolic_link) { /* a link to a valid file */
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
		alarm(10); /* opening a FIFO must not wait */
		err = cl_region_open(&seen, folder_fd, left_file, &why);
		alarm(0);
		if (err != expected)
			fail_msg("%s: %d instead of %d", rows[i].what, err, expected);
		if (err) {
			assert_int_equal(count_entries("/proc/self/fd"), descriptors);
			assert_int_equal(seen.fd, -1);
			assert_null(seen.header);
			assert_non_null(why);
			/* and it is not removed, because its owner is not known */
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

/* ------------------------------------------------------- files of other versions */
/* A process that makes a file, then without its lock if @closes, and lives until it is killed. */
static pid_t other_version(bool closes)
{
	uint32_t id = 0;
	int done[2];
	pid_t child;

	assert_int_equal(pipe(done), 0);
	child = fork_checked();
	if (child == 0) {
		struct cl_region r;

		cl_identity_self(&me);
		if (cl_region_create(&r, folder_fd, &me))
			_exit(1);
		if (closes)
			close(r.fd);
		if (write(done[1], &r.file_id, sizeof r.file_id) != sizeof r.file_id)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(done[0], &id, sizeof id), sizeof id);
	close(done[0]);
	close(done[1]);
	left_file = id;
	bad_layout();
	return child;
}

static uint64_t now_real(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u;
}

static bool is_left(void)
{
	return faccessat(folder_fd, left_name(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool none_is_open(uint32_t file_id) { return false; }

static void what_a_dead_process_of_another_version_left_goes(void **state)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = CL_LOCK_SLOT(3), .l_len = 1 };

	for (int closes = 0; closes < 2; closes++) {
		pid_t child = other_version(closes), holder;
		int ready[2];
		char byte;

		CHANGE(created, { 1 });
		assert_false(cl_gc_other_version(folder_fd, left_name(), left_file, false));
		assert_int_equal(cl_gc_directory(folder_fd, NULL), 0);
		assert_int_equal(cl_gc_directory(folder_fd, none_is_open), 0);
		assert_true(is_left()); /* it lives, with or without its lock */
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, NULL, 0), child);
		assert_int_equal(pipe(ready), 0);
		holder = fork_checked();
		if (holder == 0) {
			int fd = openat(folder_fd, left_name(), O_RDWR);

			if (fcntl(fd, F_SETLK, &lock) || write(ready[1], "", 1) != 1)
				_exit(1);
			for (;;)
				pause();
		}
		assert_int_equal(read(ready[0], &byte, 1), 1);
		assert_int_equal(cl_gc_directory(folder_fd, NULL), 0); /* an importer of that version has it open */
		kill(holder, SIGKILL);
		assert_int_equal(waitpid(holder, NULL, 0), holder);
		CHANGE(created, { now_real() });
		assert_int_equal(cl_gc_directory(folder_fd, none_is_open), 0); /* the file is new */
		CHANGE(created, { 1 });
		CHANGE(magic, { "CULIMBA" });
		assert_int_equal(cl_gc_directory(folder_fd, NULL), 0);
		CHANGE(magic, { CL_MAGIC });
		assert_true(cl_gc_other_version(folder_fd, left_name(), left_file, true));
		assert_true(is_left());
		assert_int_equal(cl_gc_directory(folder_fd, closes ? NULL : none_is_open), 1);
		assert_false(is_left());
		close(ready[0]);
		close(ready[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_dead_process_of_another_version_left_goes),
		cmocka_unit_test(what_is_not_an_exporter_file_is_refused_without_harm),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
