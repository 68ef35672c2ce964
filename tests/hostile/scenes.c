/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged and hostile files under real processes (the actors of tests/e2e).
 *
 * In each scene D holds a block of P while P's file or its folder is damaged.  What must
 * hold then: C, which comes later, uses the driver's own result and says once why culimbo
 * does not protect it.  P and D go on.  D's block is given to no other before D closes it.
 * Files that are not P's are still there at the end.
 */
#include "hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/shm/layout.h"

/* ------------------------------------------------------------------- deleted */
enum deletion { DELETED, MADE_AGAIN, PUT_ASIDE };
static void deleted(enum deletion how)
{
	static const char *const names[] = { "deleted", "deleted and made again",
					     "put aside and made again" };
	const char *what = names[how];
	struct actor *c;
	uint64_t second, at_c = 0;
	double now;
	bool kept;
	int result;

	begin();
	second = alloc_filled(p, SMALL, OWN + 1);
	handle = export_block(p, second);
	if (how != DELETED) { /* copy the file byte by byte */
		char command[800];
		int fd;

		in_its_place();
		snprintf(command, sizeof command, "cp -p --sparse=always '%s' '%s'", aside, path);
		must(system(command) == 0, "cp");
		fd = open(path, O_RDWR | O_CLOEXEC);
		must(fd >= 0 && !fallocate(fd, 0, 0, CL_AT_FIXED_END), "a copy");
		must(how == PUT_ASIDE || !unlink(aside), "unlink");
		close(fd);
	} else {
		must(!unlink(path), "unlink");
	}
	/* export once more: P could notice now */
	handle = export_block(p, second);
	c = ENTER("C", .env = ENV);
	result = try_open(c, &handle, &at_c);
	ok(!result && reads(c, at_c, SMALL, OWN + 1, NULL), "%s: C, who comes later, opens and reads", what);
	free_block(p, second);
	now = now_ms();
	wait_out(now);
	kept = !claim(p, second, SMALL, NEXT) && reads(c, at_c, SMALL, OWN + 1, NULL);
	ok(kept, "%s: what C opened is given to nobody", what);
	ok(lines_of(p, "\n") == 1 && lines_of(p, "removed or replaced") == 1, "%s: P says so, once", what);
	if (how == DELETED)
		ok(!lines_of(c, "\n"), "%s: C has nothing to say", what);
	else
		ok(lines_of(c, "\n") == 1 && lines_of(c, "is a copy"), "%s: C says so, once", what);
	close_block(c, at_c);
	/* processes that were there before go on sharing, new blocks as well */
	second = alloc_filled(p, SMALL, OWN + 2);
	handle = export_block(p, second);
	at_c = open_block(d, &handle);
	free_block(p, second);
	now = now_ms();
	wait_out(now);
	ok(!claim(p, second, SMALL, NEXT) && reads(d, at_c, SMALL, OWN + 2, NULL),
	   "%s: D, who was there before, goes on sharing", what);
	close_block(d, at_c);
	free_block(p, block);
	wait_out(now_ms());
	ok(!claim(p, block, SMALL, NEXT) && reads(d, at_d, SMALL, OWN, NULL),
	   "%s: what D holds is given to nobody", what);
	close_block(d, at_d);
	leave(c);
	leave(d);
	leave(p);
	ok(how == DELETED || !unlink(path), "%s: what is not P's file is not taken away", what);
	unlink(aside);
	ok(files() == 0, "%s: no file is left", what);
}
static void deleted_file(void)
{
	deleted(DELETED);
}
static void made_again(void)
{
	deleted(MADE_AGAIN);
	deleted(PUT_ASIDE);
}

/* Deletes the whole folder, as logind's RemoveIPC does. */
static void folder_deleted(void)
{
	struct actor *q, *c;
	uint64_t at_c = 0;
	char command[600];

	begin();
	snprintf(command, sizeof command, "rm -r '%s'", limbo_folder());
	must(!system(command), command);
	free_block(p, block);
	wait_out(now_ms());
	ok(!claim(p, block, SMALL, NEXT) && reads(d, at_d, SMALL, OWN, NULL),
	   "the folder deleted: what D holds is given to nobody");
	close_block(d, at_d);
	wait_out(now_ms());
	ok(!claim(p, block, SMALL, NEXT) && lines_of(p, "\n") == 1,
	   "the folder deleted: nor after D closed, for others may have it unseen, and P says so");
	q = ENTER("Q", .env = ENV);
	c = ENTER("C", .env = ENV);
	block = alloc_filled(q, SMALL, OWN);
	handle = export_block(q, block);
	at_c = open_block(c, &handle);
	free_block(q, block);
	wait_out(now_ms());
	ok(!claim(q, block, SMALL, NEXT) && reads(c, at_c, SMALL, OWN, NULL),
	   "the folder deleted: a new exporter makes it again, and is protected");
	close_block(c, at_c);
	leave(c);
	leave(q);
	leave(d);
	leave(p);
	ok(files() == 0, "the folder deleted: no file is left");
}

/* -------------------------------------------------------------- odd neighbours */
static void neighbours(void)
{
	struct actor *c;
	char name[340];
	uint64_t at_c;

	must(!mkdir(limbo_folder(), 0700), "mkdir");
	for (int i = 1; i <= 4; i++) {
		snprintf(name, sizeof name, "%s/exporter-%06x", limbo_folder(), (unsigned int)i);
		must(i == 1 ? !mkfifo(name, 0600) : i == 2 ? !mkdir(name, 0700) :
		     i == 3 ? !symlink("/dev/zero", name) : !symlink("exporter-000004", name), name);
	}
	begin();
	c = ENTER("C", .env = ENV);
	at_c = open_block(c, &handle);
	ok(reads(c, at_c, SMALL, OWN, NULL), "a fifo, a directory and links beside it: C opens and reads");
	/* after an allocation fails, culimbo asks all exporters of the folder for memory */
	ASK(p, alloc, (uint64_t)1 << 50);
	ASK(c, alloc, (uint64_t)1 << 50);
	ok(lines_of(p, "\n") <= 1 && lines_of(c, "\n") <= 1, "a fifo and others beside it: one line at most");
	close_block(c, at_c);
	d_keeps("a fifo and others beside it");
	leave(c);
	leave(d);
	leave(p);
	ok(files() == 4, "a fifo and others beside it: they are still there, and nothing else");
}

/*
 * P closes every descriptor that it does not know, and sleeps.  It has no lock any more, but
 * it lives and maps its file.  Others check it twice, with the settling time in between.
 */
static void no_descriptor(void)
{
	struct actor *q, *c;
	uint64_t at_c;

	begin();
	close_block(d, at_d);
	ASK(p, close_fds, CLOSE_CULIMBO);
	for (int i = 0; i < 2; i++) {
		double until = now_ms() + 400; /* settling is 250 ms */

		q = ENTER("Q", .env = ENV);
		export_block(q, alloc(q, SMALL));
		leave(q);
		while (watch_until(until))
			;
	}
	ok(access(path, F_OK) == 0, "P has closed all descriptors and sleeps: its file is not taken away");
	c = ENTER("C", .env = ENV);
	at_c = open_block(c, &handle);
	free_block(p, block);
	wait_out(now_ms());
	ok(!claim(p, block, SMALL, NEXT) && reads(c, at_c, SMALL, OWN, NULL),
	   "P has closed all descriptors and sleeps: what C opens then is given to nobody");
	leave(c);
	leave(d);
	leave(p);
}

/* ------------------------------------------------------------------ the folder */
static void bad_folder(const char *what, mode_t mode, uid_t owner)
{
	struct actor *c;
	uint64_t at_c = 0;
	int result;

	if (owner && geteuid()) {
		printf("ok - %s # SKIP only root can make another user's folder\n", what);
		return;
	}
	begin();
	must(!chmod(limbo_folder(), mode) && (!owner || !chown(limbo_folder(), owner, (gid_t)-1)), "chmod");
	c = ENTER("C", .env = ENV);
	result = try_open(c, &handle, &at_c);
	ok(!result && reads(c, at_c, SMALL, OWN, NULL), "%s: C opens and reads it, as bare", what);
	ok(lines_of(c, "its directory is another user") == 1, "%s: C says so", what);
	once(c, what);
	close_block(c, at_c);
	d_keeps(what);
	/* a process that exports would make a file there */
	block = alloc_filled(c, SMALL, OWN);
	handle = export_block(c, block);
	at_d = open_block(d, &handle);
	ok(is_unstamped(&handle) && lines_of(c, "cannot make this process's exporter file") == 1,
	   "%s: who exports makes no file there, and says so", what);
	close_block(d, at_d);
	must(!chown(limbo_folder(), geteuid(), (gid_t)-1) && !chmod(limbo_folder(), 0700), "chmod");
	leave(c);
	leave(d);
	leave(p);
	ok(files() == 0, "%s: no file is left", what);
}
static void folder_open_to_others(void)
{
	bad_folder("a folder others may write", 0777, 0);
	bad_folder("a folder the group may write", 0770, 0);
}
static void folder_of_another(void)
{
	bad_folder("another user's folder", 0755, NOBODY);
	bad_folder("another user's sticky folder", 01777, NOBODY);
}

/* --------------------------------------------------------------- other users */
/* Tries what another user could try; each line must fail. */
static int tries_all(void)
{
	char other[340];
	int wrong = 0, fd;

	snprintf(other, sizeof other, "%s/exporter-0000aa", limbo_folder());
	wrong |= (fd = open(path, O_RDONLY | O_CLOEXEC)) >= 0 ? 1 : 0;
	wrong |= (fd = open(path, O_RDWR | O_CLOEXEC)) >= 0 ? 2 : 0;
	wrong |= !unlink(path) ? 4 : 0;
	wrong |= !rename(path, other) ? 8 : 0;
	wrong |= !rename(other, path) ? 16 : 0;
	wrong |= !truncate(path, 0) ? 32 : 0;
	wrong |= !chmod(path, 0666) ? 64 : 0;
	(void)fd;
	return wrong;
}
static int as_nobody(int (*body)(void))
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	must(child >= 0, "fork");
	if (!child) {
		if (setgid(NOBODY) || setuid(NOBODY))
			_exit(200);
		_exit(body());
	}
	must(waitpid(child, &status, 0) == child, "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}
static int squats(void)
{
	char name[340];

	for (int i = 1; i <= 32; i++) {
		int fd;

		snprintf(name, sizeof name, "%s/exporter-%06x", limbo_folder(), (unsigned int)i);
		fd = open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, i % 2 ? 0600 : 0666);
		if (fd < 0 || ftruncate(fd, (off_t)CL_FILE_SIZE))
			return 1;
		fchmod(fd, i % 2 ? 0600 : 0666);
		close(fd);
	}
	snprintf(name, sizeof name, "%s/exporter-000030", limbo_folder());
	return mkfifo(name, 0666) ? 1 : 0;
}

static void other_users(void)
{
	struct actor *c;
	uint64_t at_c;
	struct stat st;
	int wrong;

	if (geteuid()) {
		printf("ok - other users # SKIP only root can be two users\n");
		return;
	}
	/* open its parent, so that it is the folder itself that stops them */
	must(!chmod(getenv("E2E_TMP"), 0755) && !chmod(getenv("E2E_SCENE_DIR"), 0755), "chmod");
	begin();
	must(!stat(limbo_folder(), &st), "stat");
	ok((st.st_mode & 07777) == 0700, "the folder that culimbo makes is its user's alone");
	must(!stat(path, &st), "stat");
	ok((st.st_mode & 07777) == 0600, "and so is the file");
	wrong = as_nobody(tries_all);
	ok(wrong == 0, "another user can't open, move, cut or delete it (%#x)", (unsigned int)wrong);
	/* in a sticky folder, where everybody may write, the file's own rights count */
	must(!chmod(limbo_folder(), 01777), "chmod");
	wrong = as_nobody(tries_all);
	ok(wrong == 0, "nor in a sticky folder (%#x)", (unsigned int)wrong);
	must(as_nobody(squats) == 0, "another user's files");
	c = ENTER("C", .env = ENV);
	at_c = open_block(c, &handle);
	ok(reads(c, at_c, SMALL, OWN, NULL) && !lines_of(c, "\n"),
	   "a sticky folder full of another user's files: C opens and reads, nothing to say");
	close_block(c, at_c);
	d_keeps("a sticky folder full of another user's files");
	ASK(c, alloc, (uint64_t)1 << 50);
	ok(lines_of(c, "\n") <= 1, "a sticky folder full of another user's files: one line at most");
	leave(c);
	leave(d);
	leave(p);
	ok(files() == 33, "a sticky folder full of another user's files: they are left alone");
}

/* ------------------------------------------------------------ the same user */
/* Truncates P's file.  doc/security.md allows it: kill(2) does the same harm. */
static void same_user(void)
{
	int status;

	begin();
	must(!truncate(path, 0), "truncate");
	tell(p, OP_free, NULL, (const uint64_t[6]){ block });
	must(waitpid(p->pid, &status, 0) == p->pid, "waitpid");
	p->ended = true;
	ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS,
	   "a process of the same user can end P by cutting its file, as it can by kill(2)");
	kill_actor(d);
	unlink(path);
}

/* The importers themselves wrote the names that P reports. */
static void names_in_reports(void)
{
	static const char name[16] = "\033]0;x\a\nculimbo";
	const char *report;

	begin();
	poke(CL_AT_SLOTS + offsetof(struct cl_slot, name), name, sizeof name);
	leave(p);
	report = said(p);
	ok(strstr(report, "held by process"), "a name of control characters: P's report names its holder");
	ok(!strchr(report, '\033'), "a name of control characters: P's report has no escape in it");
	ok(!strstr(report, "\nculimbo,"), "a name of control characters: nor a line break of it");
	leave(d);
}

const struct scene memory_scenes[] = {
	{ "damaged-header", damaged_header, 0 },
	{ "damaged-file", damaged_file, 0 },
	{ "replaced-by-link", replaced_by_link, 0 },
	{ "replaced-by-other", replaced_by_other, 0 },
	{ "numbers-lie", numbers_lie, 0 },
	{ "exported-again", exported_again, 0 },
	{ "deleted", deleted_file, 0 },
	{ "made-again", made_again, 0 },
	{ "folder-deleted", folder_deleted, 0 },
	{ "neighbours", neighbours, 0 },
	{ "no-descriptor", no_descriptor, 0 },
	{ "folder-open-to-others", folder_open_to_others, 0 },
	{ "folder-of-another", folder_of_another, 0 },
	{ "other-users", other_users, 0 },
	{ "same-user", same_user, 0 },
	{ "names-in-reports", names_in_reports, 0 },
	{ .name = NULL },
};
/* The stage wants a list for each of its kinds; here there is one. */
const struct scene death_scenes[] = { { .name = NULL } }, pressure_scenes[] = { { .name = NULL } },
	event_scenes[] = { { .name = NULL } }, process_scenes[] = { { .name = NULL } },
	exec_scenes[] = { { .name = NULL } },
	device_scenes[] = { { .name = NULL } },
	green_scenes[] = { { .name = NULL } },
	odd_scenes[] = { { .name = NULL } }, report_scenes[] = { { .name = NULL } },
	random_scenes[] = { { .name = NULL } }, stream_scenes[] = { { .name = NULL } },
	pool_scenes[] = { { .name = NULL } }, virtual_scenes[] = { { .name = NULL } },
	async_scenes[] = { { .name = NULL } }, shared_scenes[] = { { .name = NULL } };
