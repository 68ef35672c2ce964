/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo collect`: asks an exporter to give back blocks that no process holds, in
 * the way another process does when its allocation fails (shim/reclaim/pressure.c): by a
 * word in its file, a futex, and an answer.  Held blocks stay.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/commands/commands.h"
#include "tools/common/emit.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"

enum { OPTION_WAIT = 128, NO_ANSWER = 3 };

struct collect {
	struct cl_region *region;
	uint64_t wait, took; /* ns */
	uint64_t blocks, bytes; /* in limbo, before */
	uint64_t blocks_left, bytes_left;
	bool serving, answered;
};

static void ask(void *data)
{
	struct collect *c = data;
	struct cl_header *h = c->region->header;
	uint64_t start = cl_now(), until = start + c->wait;
	struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
	uint32_t ticket, done;

	c->blocks = atomic_load(&h->limbo_blocks);
	c->bytes = atomic_load(&h->limbo_bytes);
	c->serving = atomic_load(&h->serving);
	if (c->blocks) {
		atomic_fetch_add(&h->asked_all, 1);
		ticket = atomic_fetch_add(&h->pressure_asked, 1) + 1;
		cl_region_wake(c->region);
		for (;;) {
			done = atomic_load(&h->pressure_done);
			c->answered = (int32_t)(done - ticket) >= 0;
			if (c->answered || cl_now() >= until)
				break;
			syscall(SYS_futex, &h->pressure_done, FUTEX_WAIT_BITSET, done, &t, NULL,
				FUTEX_BITSET_MATCH_ANY);
		}
	}
	c->took = cl_now() - start;
	c->blocks_left = atomic_load(&h->limbo_blocks);
	c->bytes_left = atomic_load(&h->limbo_bytes);
}

/* Returns the state letter of /proc/PID/stat; 0: no such process. */
static char proc_state(uint32_t pid)
{
	char path[48], line[512];
	const char *end;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	line[fread(line, 1, sizeof(line) - 1, file)] = 0;
	fclose(file);
	end = strrchr(line, ')');
	return end && end[1] == ' ' ? end[2] : '?';
}

/* Returns 1 if it maps the library, 0 if not, -1 if that is not known. */
static int maps_library(uint32_t pid)
{
	char path[48], *line = NULL;
	size_t size = 0;
	int maps = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/maps", pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (!maps && getline(&line, &size, file) > 0)
		maps = strstr(line, "/libculimbo.so") != NULL;
	free(line);
	fclose(file);
	return maps;
}

static void say_no_file(const struct cu_command *command, uint32_t pid)
{
	char state = proc_state(pid);

	if (!state) {
		cu_error(command, "there is no process %u: `culimbo ps` lists those that share", pid);
		return;
	}
	switch (maps_library(pid)) {
	case 1:
		cu_error(command,
			 "process %u has exported nothing, so nothing of it waits (or it uses another directory than %s, which --dir can name; or it has CULIMBO_DISABLE=1)",
			 pid, cu_directory());
		break;
	case 0:
		cu_error(command, "process %u runs without culimbo: start it by `culimbo run -- CMD`", pid);
		break;
	default:
		cu_error(command,
			 "process %u has no file in %s, and may not be looked at (another user's?)", pid,
			 cu_directory());
	}
}

/* Returns the index of the process that @id names, or -1 after an error message. */
static long find_process(const struct cu_command *command, const struct cu_scan *scan, const char *id,
			 long long pid)
{
	uint32_t file = cl_region_name_id(id);
	long found = -1;
	unsigned int n = 0;

	for (size_t i = 0; i < scan->processes; i++) {
		const struct cu_process *p = &scan->process[i];

		if (file ? p->file_id != file : p->error || p->who.pid != pid)
			continue;
		found = (long)i;
		n++;
	}
	if (n == 1)
		return found;
	if (!n && file) {
		cu_error(command, "there is no %s in %s", id, cu_directory());
	} else if (!n) {
		say_no_file(command, (uint32_t)pid);
	} else {
		cu_error(command, "%u processes have the id %s: name the file of one", n, id);
		for (size_t i = 0; i < scan->processes; i++) {
			const struct cu_process *p = &scan->process[i];
			char name[16];

			if (p->error || p->who.pid != pid)
				continue;
			cu_file_word(name, p->file_id);
			fprintf(stderr, "  %s  %s (%s)\n", name, p->command, cu_state_word(p));
		}
	}
	return -1;
}

/* Counts the waiting blocks of each holder of process @process; NULL: no memory, or no holder. */
static uint64_t *holds_of(const struct cu_scan *scan, uint32_t process)
{
	uint64_t *n = calloc(scan->process[process].holders, sizeof(*n));

	for (size_t i = 0; n && i < scan->blocks; i++) {
		const struct cu_block *block = &scan->block[i];

		if (block->process != process || block->is.class != CL_VIEW_HELD_LIMBO)
			continue;
		for (uint32_t j = 0; j < block->held; j++)
			n[scan->held_by[block->held_at + j]]++;
	}
	return n;
}

static void say_holders(struct cu_emit *to, const struct cu_scan *scan, uint32_t file_id)
{
	for (size_t i = 0; i < scan->processes; i++) {
		const struct cu_process *p = &scan->process[i];
		uint64_t *holds;
		unsigned int n = 0;

		if (p->file_id != file_id)
			continue;
		holds = holds_of(scan, (uint32_t)i);
		if (to)
			cu_emit_open(to, "held_by", '[');
		for (unsigned int j = 0; holds && j < p->holders; j++) {
			if (!holds[j]) /* its blocks are not freed */
				continue;
			n++;
			if (to) {
				cu_emit_open(to, NULL, '{');
				cu_emit_number(to, "pid", p->holder[j].who.pid);
				cu_emit_text(to, "name", p->holder[j].name);
				cu_emit_number(to, "blocks", holds[j]);
				cu_emit_close(to, '}');
			} else if (n <= 10) {
				printf("  process %u (%s%s) holds %" PRIu64 " of them\n",
				       p->holder[j].who.pid, p->holder[j].name,
				       p->holder[j].alive ? "" : ", ended", holds[j]);
			}
		}
		if (to)
			cu_emit_close(to, ']');
		else if (n > 10)
			printf("  and %u more\n", n - 10);
		free(holds);
	}
}

/* Of what it holds of others nothing comes back by a collection. */
static void say_pinned(const struct cu_scan *scan, const struct cu_process *of)
{
	for (size_t i = 0; i < scan->processes; i++) {
		const struct cu_process *p = &scan->process[i];
		char size[24];

		if (p->who.pid != of->who.pid || p->who.start_time != of->who.start_time || !p->pins)
			continue;
		cu_bytes_long(size, p->pin_bytes);
		printf("  it keeps %" PRIu64 " block%s of others from the driver, %s: `culimbo show %u` names %s\n", p->pins,
		       p->pins == 1 ? "" : "s", size, p->who.pid, p->pins == 1 ? "it" : "them");
	}
}

static int say(const struct cu_command *command, const struct collect *c, const struct cu_process *p,
	       bool json)
{
	uint64_t blocks = c->blocks > c->blocks_left ? c->blocks - c->blocks_left : 0;
	uint64_t bytes = c->bytes > c->bytes_left ? c->bytes - c->bytes_left : 0;
	struct cu_emit to = { .json = true };
	char size[24], left[24], took[24];
	struct cu_scan scan;
	int status, fd;

	cu_bytes_long(size, bytes);
	cu_bytes_long(left, c->bytes_left);
	cu_duration(took, c->took);
	fd = cu_directory_open(command);
	if (cu_scan(&scan, fd, CU_SCAN_BLOCKS))
		cu_scan_free(&scan);
	if (fd >= 0)
		close(fd);
	if (json) {
		cu_emit_open(&to, NULL, '{');
		cu_emit_number(&to, "pid", p->who.pid);
		cu_emit_bool(&to, "answered", c->answered || !c->blocks);
		cu_emit_ago(&to, "took", c->took);
		cu_emit_number(&to, "collected_blocks", blocks);
		cu_emit_number(&to, "collected_bytes", bytes);
		cu_emit_number(&to, "limbo_blocks", c->blocks_left);
		cu_emit_number(&to, "limbo_bytes", c->bytes_left);
		say_holders(&to, &scan, p->file_id);
		cu_emit_close(&to, '}');
	} else if (!c->blocks) {
		char line[400];

		snprintf(line, sizeof(line), "Nothing of process %u (%s) waits in limbo.", p->who.pid, p->command);
		cu_put_line(stdout, 0, 2, line);
		say_pinned(&scan, p);
	} else {
		char line[400];

		snprintf(line, sizeof(line), "Process %u (%s) gave back %" PRIu64 " block%s, %s, in %s; %" PRIu64
			 " block%s, %s, still wait%s.",
			 p->who.pid, p->command, blocks, blocks == 1 ? "" : "s", size, took,
			 c->blocks_left, c->blocks_left == 1 ? "" : "s", left,
			 c->blocks_left == 1 ? "s" : "");
		cu_put_line(stdout, 0, 2, line);
		if (c->blocks_left)
			say_holders(NULL, &scan, p->file_id);
	}
	status = c->answered || !c->blocks ? CU_OK : NO_ANSWER;
	if (status == NO_ANSWER && proc_state(p->who.pid) == 'T')
		cu_error(command, "process %u is stopped: it collects when it goes on (kill -CONT %u)",
			 p->who.pid, p->who.pid);
	else if (status == NO_ANSWER && !c->serving)
		cu_error(command,
			 "process %u has no collector thread (CULIMBO_COLLECTOR=inline, or it could not start one): it releases what nobody holds when its program next calls culimbo",
			 p->who.pid);
	else if (status == NO_ANSWER)
		cu_error(command,
			 "process %u did not answer within %s: it is in the driver, or its machine is busy; it collects as soon as it can, or ask again with --wait=1m",
			 p->who.pid, took);
	cu_scan_free(&scan);
	return status;
}

static int collect(const struct cu_command *command, int argc, char **argv)
{
	struct collect c = { .wait = 2000000000 };
	struct cl_region region;
	const char *dir = NULL, *id, *why = NULL;
	struct cu_process process;
	struct cu_scan scan;
	long long pid = -1;
	bool json = false;
	int got, status, fd, error;
	long at;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case CU_OPTION_DIR:
			dir = optarg;
			break;
		case CU_OPTION_JSON:
			json = true;
			break;
		case OPTION_WAIT:
			if (!cu_read_wait(optarg, &c.wait))
				return cu_usage_error(command,
						      "'%s' is not a time to wait: 500ms, 2s, 1m, up to 1 hour",
						      optarg);
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (optind >= argc)
		return cu_usage_error(command, "which process?");
	id = argv[optind++];
	if (optind < argc)
		return cu_usage_error(command, "one at a time: '%s' is too many", argv[optind]);
	if (!cl_region_name_id(id) && !cu_number(id, &pid))
		return cu_usage_error(command, "'%s' is not a process id", id);
	if (!cu_scan_all(command, &scan, dir, 0, &status))
		return status;
	at = find_process(command, &scan, id, pid);
	if (at >= 0)
		process = scan.process[at];
	cu_scan_free(&scan);
	if (at < 0)
		return CU_FAILED;
	process.holder = NULL;
	process.holders = 0;
	if (process.error || process.state == CL_DEAD) {
		cu_error(command, "%s: %s: `culimbo gc`", id,
			 process.error ? cu_process_note(&process) :
					 "that process has ended, and its memory went back with it");
		return CU_FAILED;
	}
	if (!process.file_id) {
		cu_error(command,
			 "process %u (%s) only imports, so nothing of its own waits; ask the exporters of the blocks that it holds",
			 process.who.pid, process.command);
		return CU_FAILED;
	}
	fd = cu_directory_open(command);
	if (fd < 0)
		return CU_FAILED;
	error = cu_region_open(&region, fd, process.file_id, &why);
	close(fd);
	if (error) {
		cu_error(command, "process %u: its file: %s", process.who.pid,
			 why ? why : strerror(-error));
		return CU_FAILED;
	}
	c.region = &region;
	if (!cu_guarded(ask, &c)) {
		cu_error(command, "process %u: its file was cut while it was read", process.who.pid);
		cl_region_close(&region);
		return CU_FAILED;
	}
	cl_region_close(&region);
	return say(command, &c, &process, json);
}

static const struct cu_option options[] = {
	{ "wait", OPTION_WAIT, "DURATION", "how long to wait for its answer (default 2s)" },
	CU_JSON_OPTION,
	CU_DIR_OPTION,
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "it has collected, or nothing waited" },
	{ CU_FAILED, "it could not be asked: stderr says why, and what to do" },
	{ CU_USAGE, "the command line is wrong" },
	{ NO_ANSWER, "it was asked, and did not answer in time" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo collect 4711", "releases now what waits only for its grace" },
	{ .line = NULL },
};

const struct cu_command cu_collect = {
	.name = "collect",
	.arguments = "PID",
	.summary = "ask a process to release memory that nobody holds",
	.help = "Asks process PID to end the grace of the blocks in its limbo, and to release to the\n"
		"driver all that nobody holds.  Then says what was released, and who holds the rest.\n"
		"Held blocks stay.  The library does the same when an allocation fails.\n"
		"If several processes have that PID (in containers), name the file of one, as\n"
		"`culimbo ps` shows it.",
	.options = options,
	.exits = exits,
	.examples = examples,
	.run = collect,
};
