/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests promises 1 and 4 when an exporter file becomes full while it is in use.  Its 1,024
 * holder slots run out, or its file system has no room for one more page of holder words, or
 * for one more chunk of records.
 *
 * judge.h says what must hold.  In addition the block is kept, a warning says so, and no
 * foreign byte is read.  Each test runs again with one holder or page less.  Then there is no
 * warning and the memory comes back, so the first run did reach the limit.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/shm/slot.h"
#include "tests/faults/judge.h"
#include "tests/namespaces/own_mounts.h"

__attribute__((noreturn)) static void cannot(const char *what, int error)
{
	fprintf(stderr, "limits: %s: %s\n", what, strerror(error));
	_exit(92);
}

/* ------------------------------------------------------------------- many holders */
static unsigned int others; /* holders that have a slot before the importer */

static struct cl_region open_exporters_file(void)
{
	int dir = open(judge_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = dir < 0 ? NULL : fdopendir(dup(dir));
	struct cl_region region;
	struct dirent *entry;
	uint32_t id = 0;
	int err;

	while (entries && !id && (entry = readdir(entries)) != NULL)
		id = cl_region_name_id(entry->d_name);
	err = id ? cl_region_open(&region, dir, id, NULL) : -ENOENT;
	if (err)
		cannot("the exporter's file", -err);
	closedir(entries);
	close(dir);
	return region;
}

/* One process takes all slots: a slot needs a lock that another process has, which it has. */
static void hold_slots(int told)
{
	struct cl_region region = open_exporters_file();
	struct cl_identity who = { .pid = (uint32_t)getpid() };
	int err;

	for (unsigned int i = 0; i < others; i++) {
		err = cl_holder_claim(&region, &who, cl_now(), 1000000000u);
		if (err != (int)i)
			cannot("a holder slot", err < 0 ? -err : EEXIST);
	}
	if (write(told, "h", 1) != 1)
		cannot("write", errno);
	for (;;)
		pause();
}

static pid_t come_after_others_who_live(void)
{
	int told[2];
	pid_t child;
	char word;

	if (pipe(told))
		cannot("pipe", errno);
	child = fork();
	switch (child) {
	case -1:
		cannot("fork", errno);
	case 0:
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(told[0]);
		hold_slots(told[1]);
	}
	close(told[1]);
	if (read(told[0], &word, 1) != 1)
		cannot("the other holders", ECHILD);
	close(told[0]);
	return child;
}

static void come_after_others(void)
{
	come_after_others_who_live();
}

/*
 * The holders are dead.  Only their locks show it, since their identity names no namespace.
 * Other processes try before us, for a moment each, until one of them gets a slot.
 */
static void come_after_the_dead(void)
{
	static const struct timespec moment = { 0, 1000000 };
	pid_t dead = come_after_others_who_live(), child;
	int status = 0;

	if (kill(dead, SIGKILL) || waitpid(dead, NULL, 0) != dead)
		cannot("kill", errno);
	for (int tries = 0; tries < 5000; tries++) {
		child = fork();
		if (!child) {
			struct cl_region region = open_exporters_file();
			struct cl_identity who = { .pid = (uint32_t)getpid() };
			int slot = cl_holder_claim(&region, &who, cl_now(), 50000000u);

			if (slot >= 0)
				cl_holder_release(&region, (unsigned int)slot);
			_exit(slot >= 0 ? 0 : 77);
		}
		if (child < 0 || waitpid(child, &status, 0) != child)
			cannot("fork", errno);
		if (!status)
			return;
		nanosleep(&moment, NULL);
	}
	cannot("a slot of the dead", EUSERS);
}

/* -------------------------------------------------------------------- a full tmpfs */
static void fill_folder(void)
{
	static const char page[4096];
	char path[600];
	int fd;

	snprintf(path, sizeof path, "%s/filler", judge_folder());
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		cannot(path, errno);
	while (write(fd, page, sizeof page) == sizeof page)
		;
	if (errno != ENOSPC)
		cannot("filling it", errno);
	close(fd);
}

static void come_after_others_to_a_full_folder(void)
{
	come_after_others();
	fill_folder();
}

static bool own_folder(void)
{
	if (own_mounts())
		return false;
	mkdir(judge_folder(), 0700);
	if (mount("tmpfs", judge_folder(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700,size=4m") == 0)
		return true;
	if (errno != EPERM && errno != EACCES)
		cannot("mount", errno);
	return false;
}

/* ---------------------------------------------------------------------------- runs */
static void judge(const char *name, bool beyond)
{
	const char *wrong = judge_what(false);
	bool said = judge_warned(&exporter) || judge_warned(&importer);

	if (!wrong && importer.verdict.foreign)
		wrong = "foreign bytes are read";
	if (!wrong && said != beyond)
		wrong = said ? "something is said" : "nobody says a word";
	if (!wrong && !beyond && exporter.verdict.kept)
		wrong = "memory is kept";
	ok(!wrong, "%s: as bare, protected%s%s%s%s", name, beyond ? ", said so" : "",
	   exporter.verdict.kept ? ", memory is kept" : "", wrong ? ": " : "", wrong ? wrong : "");
	if (wrong)
		judge_show();
}

static void play(const char *name, const struct run *run, bool own, bool beyond)
{
	int found = memfd_create("found", MFD_CLOEXEC), status;
	pid_t child;

	judge_empty_folder();
	if (!own) {
		judge_run(run);
		judge(name, beyond);
		close(found);
		return;
	}
	fflush(stdout);
	child = fork();
	if (child == 0) {
		if (!own_folder())
			_exit(77);
		judge_run(run);
		_exit(write(found, &exporter, sizeof exporter) != sizeof exporter ||
		      write(found, &importer, sizeof importer) != sizeof importer);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
		ok(false, "%s: the run comes to its end", name);
	else if (WEXITSTATUS(status) == 77)
		skip("%s: the kernel forbids it here", name);
	else if (pread(found, &exporter, sizeof exporter, 0) != sizeof exporter ||
		 pread(found, &importer, sizeof importer, sizeof exporter) != sizeof importer)
		ok(false, "%s: the run can be judged", name);
	else
		judge(name, beyond);
	close(found);
}

int main(void)
{
	const struct run plain = { 0 }, crowd = { .importer_condition = come_after_others },
			 dead = { .importer_condition = come_after_the_dead },
			 full = { .importer_condition = come_after_others_to_a_full_folder };

	if (!judge_folder()) {
		fprintf(stderr, "limits: run.sh starts me\n");
		return 2;
	}
	others = CL_SLOTS - 1;
	play("the 1,024th holder", &crowd, false, false);
	others = CL_SLOTS;
	play("the 1,025th holder", &crowd, false, true);
	play("the 1,025th holder, those before it dead", &dead, false, false);
	others = 63;
	play("the 64th holder, the file system full", &full, true, false);
	others = 64;
	play("the 65th holder needs a page, the file system is full", &full, true, true);

	/* the file begins with one chunk of records, and three are in use */
	scenario_later = fill_folder;
	scenario_more_blocks = CL_CHUNK - 4;
	play("the 512th export, the file system full", &plain, true, false);
	scenario_more_blocks = CL_CHUNK + 8;
	play("exports beyond the 512th, the file system is full", &plain, true, true);
	scenario_later = NULL;
	play("exports beyond the 512th", &plain, false, false);
	judge_empty_folder();
	return judge_end();
}
