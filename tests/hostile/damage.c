/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenes that damage the exporter file of a running process: its header, its kind, its
 * numbers.  Also how all scenes here begin and end; see scenes.c.
 */
#include "hostile.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shim/shm/layout.h"

char path[300]; /* the only exporter file */
char aside[320];
static const char *file(void)
{
	DIR *folder = opendir(limbo_folder());
	struct dirent *entry;

	path[0] = 0;
	while (folder && (entry = readdir(folder)) != NULL)
		if (!strncmp(entry->d_name, "exporter-", 9))
			snprintf(path, sizeof path, "%s/%s", limbo_folder(), entry->d_name);
	if (folder)
		closedir(folder);
	if (!path[0])
		break_off("P has no exporter file");
	snprintf(aside, sizeof aside, "%s/aside", limbo_folder());
	return path;
}

void must(bool holds, const char *what)
{
	if (!holds)
		break_off("%s: %s", what, strerror(errno));
}

void poke(uint64_t at, const void *bytes, size_t n)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	must(fd >= 0 && pwrite(fd, bytes, n, (off_t)at) == (ssize_t)n, "pwrite");
	close(fd);
}
static void poke32(uint64_t at, uint32_t value)
{
	poke(at, &value, sizeof value);
}

/* ------------------------------------------------------------------- damages */
#define AT(field) offsetof(struct cl_header, field)

static void magic(void) { poke(AT(magic), "culimbo", 7); }
static void layout(void) { poke32(AT(layout), CL_LAYOUT_VERSION + 1); }
static void sizes(void) { poke32(AT(record_size), 64); }
static void number(void) { poke32(AT(file_id), 1); }
static void all_header(void)
{
	static const char zeros[256];

	poke(0, zeros, sizeof zeros);
}
static void extended(void) { must(!truncate(path, (off_t)CL_FILE_SIZE + 4096), "truncate"); }
static void group_may_write(void) { must(!chmod(path, 0660), "chmod"); }
static void others_may_write(void) { must(!chmod(path, 0602), "chmod"); }
static void others_own(void) { must(!chown(path, NOBODY, (gid_t)-1), "chown"); }
void in_its_place(void) { must(!rename(path, aside), "rename"); }
static void link_to_it(void)
{
	in_its_place();
	must(!symlink("aside", path), "symlink");
}
static void dangling(void)
{
	in_its_place();
	must(!symlink("nothing", path), "symlink");
}
static void a_directory(void)
{
	in_its_place();
	must(!mkdir(path, 0700), "mkdir");
}
static void a_fifo(void)
{
	in_its_place();
	must(!mkfifo(path, 0600), "mkfifo");
}
static void a_socket(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	in_its_place();
	must(strlen(path) < sizeof at.sun_path, "a short path");
	memcpy(at.sun_path, path, strlen(path));
	must(!bind(fd, (struct sockaddr *)&at, sizeof at) && !chmod(path, 0600), "bind");
	close(fd);
}
static void empty_file(void)
{
	int fd;

	in_its_place();
	fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	must(fd >= 0, "creat");
	close(fd);
}
static void short_copy(void)
{
	empty_file();
	must(!truncate(path, 4096), "truncate");
}

static const struct damage {
	const char *what, *reason; /* C's message about it */
	void (*do_it)(void);
} damages[] = {
	{ "its magic number is another", "no culimbo header", magic },
	{ "another layout version", "another version of culimbo", layout },
	{ "sizes of another layout", "sizes are not those", sizes },
	{ "the file id is another", "not the one it was made with", number },
	{ "the header is all zeros", "no culimbo header", all_header },
	{ "extended", "right size", extended },
	{ "mode 0660", "not this user's alone", group_may_write },
	{ "mode 0602", "not this user's alone", others_may_write },
	{ "another user's", "not this user's alone", others_own },
	{ "a link to it", "symbolic link", link_to_it },
	{ "a link to nothing", "symbolic link", dangling },
	{ "a directory", "", a_directory },
	{ "a fifo", "not a regular file", a_fifo },
	{ "a socket", "", a_socket },
	{ "an empty file", "right size", empty_file },
	{ "a short file", "right size", short_copy },
};

int lines_of(const struct actor *actor, const char *text)
{
	return count_said(actor, text);
}

void wait_out(double from)
{
	while (watch_until(from + GRACE_MS + 50))
		;
}

/* Requires one message, not two. */
void once(const struct actor *c, const char *what)
{
	ok(lines_of(c, "\n") == 1, "%s: and nothing else", what);
}

/* Starts P, and D, which holds a block of P.  Then the scene damages P's file. */
struct actor *p, *d;
uint64_t block, at_d;
struct handle handle;

void begin(void)
{
	uint64_t neighbour;

	p = ENTER("P", .env = ENV);
	d = ENTER("D", .env = ENV);
	neighbour = alloc(p, SMALL);
	(void)neighbour;
	block = alloc_filled(p, SMALL, OWN);
	handle = export_block(p, block);
	at_d = open_block(d, &handle);
	file();
}

/*
 * P frees the block.  It stays while D holds it, and then its memory comes back.  If another
 * file has the name of P's, others may have opened the block unseen, so it stays for ever.
 */
static void d_keeps_and(const char *what, bool stays)
{
	double now;
	bool kept;

	free_block(p, block);
	now = now_ms();
	wait_out(now);
	kept = !claim(p, block, SMALL, NEXT) && reads(d, at_d, SMALL, OWN, NULL);
	ok(kept, "%s: what D holds is given to nobody", what);
	close_block(d, at_d);
	if (stays) {
		wait_out(now_ms());
		ok(!claim(p, block, SMALL, NEXT) && lines_of(p, "removed or replaced") == 1,
		   "%s: nor after D closed, for others may have it unseen, and P says so", what);
		return;
	}
	ok(claim_within(p, block, SMALL, NEXT, SOON_MS, NULL), "%s: and comes back when D closes", what);
}
void d_keeps(const char *what)
{
	d_keeps_and(what, false);
}

static void damaged(const struct damage *damage)
{
	struct actor *c;
	struct stat st;
	uint64_t at_c = 0;
	int result, said_so;

	if (damage->do_it == others_own && geteuid()) {
		printf("ok - %s # SKIP only root can make another user's file\n", damage->what);
		return;
	}
	begin();
	damage->do_it();
	c = ENTER("C", .env = ENV);
	result = try_open(c, &handle, &at_c);
	ok(!result && reads(c, at_c, SMALL, OWN, NULL), "%s: C opens and reads it, as bare", damage->what);
	said_so = lines_of(c, "not protected, as without culimbo");
	ok(said_so > 0 && strstr(said(c), damage->reason), "%s: C says why it is not looked after",
	   damage->what);
	if (!said_so)
		note("C said: %.200s", said(c));
	once(c, damage->what);
	close_block(c, at_c);
	d_keeps_and(damage->what, access(aside, F_OK) == 0);
	leave(c);
	leave(d);
	leave(p);
	if (lstat(aside, &st) == 0)
		ok(lstat(path, &st) == 0, "%s: what is not P's file is not taken away", damage->what);
	unlink(aside);
	if (unlink(path))
		rmdir(path);
}

void damaged_header(void)
{
	for (int i = 0; i < 5; i++)
		damaged(&damages[i]);
}
void damaged_file(void)
{
	for (int i = 5; i < 9; i++)
		damaged(&damages[i]);
}
void replaced_by_link(void)
{
	for (int i = 9; i < 12; i++)
		damaged(&damages[i]);
}
void replaced_by_other(void)
{
	for (int i = 12; i < 16; i++)
		damaged(&damages[i]);
}

/* --------------------------------------------------------- numbers that lie */
static const struct {
	const char *what;
	uint64_t at;
	uint32_t value;
	enum { HOLDS, TOLD, REFUSED } outcome; /* C is protected, is not, is refused */
} numbers[] = {
	{ "no record chunks", AT(record_chunks), 0, TOLD },
	{ "too many record chunks", AT(record_chunks), UINT32_MAX, TOLD },
	{ "record chunks that are not there", AT(record_chunks), CL_CHUNKS, HOLDS },
	{ "no slots used", AT(slots_used), 0, HOLDS },
	{ "too many slots used", AT(slots_used), UINT32_MAX, HOLDS },
	{ "another boot id", AT(boot_id), 0x12345678, HOLDS },
	{ "another exporter's pid", AT(exporter.pid), 1, HOLDS },
	{ "a collector that always sleeps", AT(sleeping), 1, HOLDS },
	{ "another handle in the record", CL_AT_RECORDS + offsetof(struct cl_record, handle) + 8, 7, TOLD },
	{ "another generation", CL_AT_RECORDS + offsetof(struct cl_record, life), 5 << 8 | CL_EXPORTED, REFUSED },
};

void numbers_lie(void)
{
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
		struct actor *c;
		uint64_t at_c = 0;
		bool works, others = true;
		int result;

		begin();
		poke32(numbers[i].at, numbers[i].value);
		c = ENTER("C", .env = ENV);
		result = try_open(c, &handle, &at_c);
		works = !result && reads(c, at_c, SMALL, OWN, NULL);
		if (numbers[i].outcome == REFUSED)
			ok(result == 1, "%s: C is refused, as with a stale handle", numbers[i].what);
		else
			ok(works, "%s: C opens and reads it%s", numbers[i].what,
			   numbers[i].outcome == TOLD ? ", as bare" : "");
		if (numbers[i].outcome == TOLD)
			ok(lines_of(c, "it is damaged") == 1, "%s: C says that the file is damaged",
			   numbers[i].what);
		/* P goes on and exports more than a chunk of records */
		for (int n = 0; n < 600; n++) {
			struct handle more;
			uint64_t other = alloc(p, SMALL);

			others = others && !try_export(p, other, &more);
		}
		ok(others, "%s: P exports 600 more", numbers[i].what);
		if (numbers[i].outcome != HOLDS || result) {
			if (!result)
				close_block(c, at_c);
			d_keeps(numbers[i].what);
		} else { /* C holds the block as D does */
			struct actor *first = d;

			close_block(d, at_d);
			d = c;
			at_d = at_c;
			d_keeps(numbers[i].what);
			c = first;
		}
		leave(c);
		leave(d);
		leave(p);
		ok(files() == 0, "%s: no file is left", numbers[i].what);
	}
}

/*
 * On a second export P compares the block with its shared record.  If the record is
 * damaged, P treats the block as new and drops its holders.
 */
void exported_again(void)
{
	double now;
	bool kept;

	begin();
	poke32(CL_AT_RECORDS + offsetof(struct cl_record, handle) + 8, 7);
	handle = export_block(p, block);
	free_block(p, block);
	now = now_ms();
	wait_out(now);
	kept = !claim(p, block, SMALL, NEXT) && reads(d, at_d, SMALL, OWN, NULL);
	ok(kept, "a damaged handle, exported again: what D holds is given to nobody");
	close_block(d, at_d);
	leave(d);
	leave(p);
	ok(files() == 0, "a damaged handle, exported again: no file is left");
}
