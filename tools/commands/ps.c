/* SPDX-License-Identifier: Apache-2.0 */
/* `culimbo ps`: one line for each process that shares GPU memory. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shim/report/origin.h"
#include "tools/commands/blocks_order.h"
#include "tools/commands/commands.h"
#include "tools/commands/ps_gpus.h"
#include "tools/common/container.h"
#include "tools/common/procs.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/users.h"

enum { OPTION_UNPROTECTED = 128, OPTION_USER, OPTION_GPUS, OPTION_PID, OPTION_SORT };
enum { PID, COMMAND, STATE, EXPORTED, HELD, LIMBO, LIMBOBYTES, IMPORTED, PINS, AGE, PROCFILE, NOTE,
       EXPORTEDBYTES, HELDBYTES, IMPORTEDBYTES, HOLDERS, SINCE, DISK, PIDNS, HOSTPID, HOST, POD, CONTAINER, CGROUP,
       REFUSED, FDEXPORTS, FDEXPORTBYTES, FDIMPORTS, FDIMPORTBYTES, FABRIC, USER };

static const struct cu_column columns[] = {
	[PID] = { "PID", CU_NUMBER, 0, "its process id, as its own PID namespace counts" },
	[COMMAND] = { "COMMAND", CU_TEXT, CU_CUT, "its command line; without a file, its name" },
	[STATE] = { "STATE", CU_TEXT, 0,
		    "alive; dead; ending (its GPU work may go on, or it called exec: see NOTE); unsure (its lock is free, no more is known); or the state of its file: damaged, version (of another culimbo), old (of an earlier boot), foreign (another user's), unread" },
	[EXPORTED] = { "EXPORTED", CU_NUMBER, CU_DROP(11), "blocks and events that it exports and has not freed; of a dead process only what others still hold" },
	[HELD] = { "HELD", CU_NUMBER, CU_DROP(8), "its blocks that others hold, freed or not" },
	[LIMBO] = { "LIMBO", CU_NUMBER, CU_DROP(12), "blocks that it has freed and the driver does not have back; of a dead process only what others still hold" },
	[LIMBOBYTES] = { "LIMBOBYTES", CU_BYTES, 0, "the size of these" },
	[IMPORTED] = { "IMPORTED", CU_NUMBER, CU_DROP(7), "blocks of others that it holds" },
	[PINS] = { "PINS", CU_BYTES, 0, "memory of others that it keeps from going back to the driver, since it has it open: blocks that were freed or unmapped, or whose context or process has ended" },
	[AGE] = { "AGE", CU_SECONDS, CU_DROP(6), "for how long it has shared" },
	[PROCFILE] = { "FILE", CU_TEXT, CU_DROP(1), "its file in the directory; -: it has none, but holds blocks of others" },
	[NOTE] = { "NOTE", CU_TEXT, CU_IF_ANY | CU_BELOW, "a fault of the file, that the process has left by exec, where it is, or that no process opens what it exports" },
	[EXPORTEDBYTES] = { "EXPORTEDBYTES", CU_BYTES, CU_HIDDEN, "the size of what it exports and has not freed" },
	[HELDBYTES] = { "HELDBYTES", CU_BYTES, CU_HIDDEN, "the size of its blocks that others hold" },
	[IMPORTEDBYTES] = { "IMPORTEDBYTES", CU_BYTES, CU_HIDDEN, "the size of others' blocks that it holds" },
	[HOLDERS] = { "HOLDERS", CU_NUMBER, CU_HIDDEN, "how many processes hold its blocks" },
	[SINCE] = { "SINCE", CU_TEXT, CU_HIDDEN, "when it began to share: local time, with its distance from UTC" },
	[DISK] = { "DISK", CU_BYTES, CU_HIDDEN, "the space that its file takes" },
	[PIDNS] = { "PIDNS", CU_NUMBER, CU_HIDDEN | CU_LEFT, "the inode of its PID namespace" },
	[HOSTPID] = { "HOSTPID", CU_NUMBER, CU_IF_ANY | CU_DROP(10), "for a process in another PID namespace: its process id in this one" },
	[HOST] = { "HOST", CU_TEXT, CU_IF_ANY | CU_DROP(9), "for such a process: the host name that it sees (its HOSTNAME), in a pod the pod's name" },
	[POD] = { "POD", CU_TEXT, CU_IF_ANY | CU_DROP(2), "for such a process: the UID of its pod in Kubernetes" },
	[CONTAINER] = { "CONTAINER", CU_TEXT, CU_HIDDEN, "the first 12 digits of its container's id" },
	[CGROUP] = { "CGROUP", CU_TEXT, CU_HIDDEN, "its cgroup, which names its container or pod" },
	[REFUSED] = { "REFUSED", CU_NUMBER, CU_IF_ANY, "how often CUDA, or culimbo, made no handle of its memory, or did not open one; `culimbo report` says which memory, and how it can be shared" },
	[FDEXPORTS] = { "FDEXPORTS", CU_NUMBER, CU_IF_ANY | CU_DROP(4), "how often it exported virtual memory or a pool by a descriptor, which CUDA keeps alive by itself" },
	[FDEXPORTBYTES] = { "FDEXPORTBYTES", CU_BYTES, CU_HIDDEN, "the size of these; an allocation that was exported twice counts twice, a pool counts 0" },
	[FDIMPORTS] = { "FDIMPORTS", CU_NUMBER, CU_IF_ANY | CU_DROP(3), "how often it imported virtual memory or a pool by a descriptor" },
	[FDIMPORTBYTES] = { "FDIMPORTBYTES", CU_BYTES, CU_HIDDEN, "the size of these, as far as they were mapped" },
	[FABRIC] = { "FABRIC", CU_NUMBER, CU_IF_ANY | CU_DROP(5), "how often it exported or imported memory by a fabric handle, which culimbo does not cover" },
	[USER] = { "USER", CU_NUMBER, CU_IF_ANY | CU_LEFT, "its user, with --user" },
	{ .name = NULL },
};

/* Returns the pid of @p in this PID namespace; 0: it is not visible. */
static pid_t pid_here(const struct cu_process *p)
{
	return p->elsewhere ? cu_proc_here(p->who.pid, p->who.pid_ns, p->who.start_time) : (pid_t)p->who.pid;
}

static void fill(struct cu_cell *cell, unsigned int column, const void *row)
{
	const struct cu_process *p = row;
	static char text[512], word[40];
	struct tm tm;
	time_t when;
	pid_t here;

	switch (column) {
	case STATE:
		cu_cell_text(cell, cu_state_word(p));
		return;
	case PROCFILE:
		cu_file_word(text, p->file_id);
		cu_cell_text(cell, p->file_id ? text : NULL);
		return;
	case NOTE:
		cu_cell_text(cell, cu_process_note(p));
		return;
	default:
		break;
	}
	if (p->error)
		return;
	switch (column) {
	case PID:
		cu_cell_number(cell, p->who.pid);
		break;
	case COMMAND:
		cu_cell_text(cell, p->command);
		break;
	case EXPORTED:
		cu_cell_number(cell, p->blocks);
		break;
	case HELD:
		cu_cell_number(cell, p->held);
		break;
	case LIMBO:
		cu_cell_number(cell, p->limbo);
		break;
	case LIMBOBYTES:
		cu_cell_number(cell, p->limbo_bytes);
		break;
	case IMPORTED:
		cu_cell_number(cell, p->imported);
		break;
	case PINS:
		cu_cell_number(cell, p->pin_bytes);
		break;
	case AGE:
		cu_cell_number(cell, p->age);
		break;
	case EXPORTEDBYTES:
		cu_cell_number(cell, p->bytes);
		break;
	case HELDBYTES:
		cu_cell_number(cell, p->held_bytes);
		break;
	case IMPORTEDBYTES:
		cu_cell_number(cell, p->imported_bytes);
		break;
	case HOLDERS:
		cu_cell_number(cell, p->holders);
		break;
	case SINCE:
		when = (time_t)(p->created / 1000000000);
		if (p->created && localtime_r(&when, &tm) &&
		    strftime(word, sizeof(word), "%Y-%m-%dT%H:%M:%S%z", &tm) > 5) {
			/* +hh:mm, as in RFC 3339; strftime() writes +hhmm */
			size_t minutes = strlen(word) - 2;

			snprintf(text, sizeof(text), "%.*s:%s", (int)minutes, word, word + minutes);
			cu_cell_text(cell, text);
		}
		break;
	case DISK:
		if (p->file_id)
			cu_cell_number(cell, p->disk);
		break;
	case PIDNS:
		if (p->who.pid_ns)
			cu_cell_number(cell, p->who.pid_ns);
		break;
	case HOSTPID:
		if (p->elsewhere && p->state != CL_DEAD && (here = pid_here(p)) > 0)
			cu_cell_number(cell, (uint64_t)here);
		break;
	case HOST:
		if (!p->elsewhere || p->state == CL_DEAD || (here = pid_here(p)) <= 0)
			break;
		cu_proc_host(here, text, sizeof(text));
		cu_cell_text(cell, text);
		break;
	case POD:
	case CONTAINER:
	case CGROUP:
		/*
		 * only processes in another PID namespace get a POD, so without any the column is
		 * left out
		 */
		if (p->state == CL_DEAD || (column == POD && !p->elsewhere) || (here = pid_here(p)) <= 0)
			break;
		cu_proc_cgroup(here, text, sizeof(text));
		if (column == POD)
			cu_pod_of(text, word);
		else if (column == CONTAINER)
			cl_report_take_container(text, word);
		if (column != CGROUP) {
			cu_cell_text(cell, word);
			break;
		}
		cu_cell_text(cell, text);
		break;
	case REFUSED:
		if (p->counters.refused_by_cuda)
			cu_cell_number(cell, p->counters.refused_by_cuda);
		break;
	case FDEXPORTS:
		if (p->counters.fd_exports)
			cu_cell_number(cell, p->counters.fd_exports);
		break;
	case FDEXPORTBYTES:
		cu_cell_number(cell, p->counters.fd_export_bytes);
		break;
	case FDIMPORTS:
		if (p->counters.fd_imports)
			cu_cell_number(cell, p->counters.fd_imports);
		break;
	case FDIMPORTBYTES:
		cu_cell_number(cell, p->counters.fd_import_bytes);
		break;
	case FABRIC:
		if (p->counters.fabric)
			cu_cell_number(cell, p->counters.fabric);
		break;
	case USER:
		if (p->has_user)
			cu_cell_number(cell, p->user);
		break;
	default:
		break;
	}
}

/* Most in limbo first, then most exported, then by pid; files that can't be read last. */
static int by_weight(const void *x, const void *y)
{
	const struct cu_process *a = x, *b = y;

	if (!a->error != !b->error)
		return a->error ? 1 : -1;
	if (a->limbo_bytes != b->limbo_bytes)
		return a->limbo_bytes < b->limbo_bytes ? 1 : -1;
	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? 1 : -1;
	if (a->who.pid != b->who.pid)
		return a->who.pid > b->who.pid ? 1 : -1;
	return (a->file_id > b->file_id) - (a->file_id < b->file_id);
}

/* ---------------------------------------- processes that use CUDA without culimbo */
struct unprotected {
	struct cu_table *table;
	size_t n;
};

static void list_unprotected(void *data, pid_t pid)
{
	struct unprotected *list = data;
	struct cu_process process = { .who.pid = (uint32_t)pid, .state = CL_ALIVE };
	uint64_t start = cu_proc_start(pid);

	if (cu_proc_maps(pid) != CU_MAPS_CUDA)
		return;
	process.age = cu_proc_age(start);
	cu_proc_command(pid, process.command, sizeof(process.command));
	if (!start || cu_proc_start(pid) != start)
		return;
	cu_table_line(list->table, fill, &process);
	list->n++;
}

static int unprotected(const struct cu_command *command, struct cu_format *format,
		       const struct cu_users *users)
{
	struct unprotected list = { .n = 0 };
	int status;

	/* nothing else is known about such a process */
	if (!format->output)
		format->output = "PID,AGE,COMMAND";
	list.table = cu_table_new(command, "processes", format, &status);
	if (!list.table)
		return status;
	cu_proc_each(users->given ? users->uid : geteuid(), users->all, list_unprotected, &list);
	if (!list.n && !format->json)
		cu_note("No process%s uses CUDA without culimbo.",
			users->all ? "" : users->given ? " of this user" : " of yours");
	return cu_table_end(list.table);
}

static int ps(const struct cu_command *command, int argc, char **argv)
{
	struct cu_format format = { 0 };
	struct cu_table *table;
	const char *dir = NULL;
	struct cu_scan scan;
	struct cu_users users = { .given = false };
	bool bare = false, gpus = false, there = false;
	int got, status, sort = -1;
	long long pid = -1;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		if (got == CU_OPTION_DIR)
			dir = optarg;
		else if (got == OPTION_UNPROTECTED)
			bare = true;
		else if (got == OPTION_GPUS)
			gpus = true;
		else if (got == OPTION_PID) {
			if (!cu_number(optarg, &pid))
				return cu_usage_error(command, "--pid: '%s' is no process id", optarg);
		} else if (got == OPTION_SORT) {
			sort = cu_sort_column(command, optarg);
			if (sort < 0)
				return CU_USAGE;
		} else if (got == OPTION_USER) {
			if (!cu_users_read(command, optarg, &users))
				return CU_USAGE;
		}
		else if (!cu_format_option(&format, got))
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	if ((bare || gpus) && (pid >= 0 || sort >= 0 || (bare && gpus)))
		return cu_usage_error(command, "--%s goes without --pid, --sort and --%s", bare ? "unprotected" : "gpus",
				      bare ? "gpus" : "unprotected");
	if (gpus)
		return cu_ps_gpus(command, &format, &users, dir);
	if (bare)
		return unprotected(command, &format, &users);
	table = cu_table_new(command, "processes", &format, &status);
	if (!table)
		return status;
	if (!cu_users_scan(command, &scan, &users, dir, 0, &status)) {
		cu_table_drop(table);
		return status;
	}
	if (scan.processes)
		qsort(scan.process, scan.processes, sizeof(*scan.process), by_weight);
	if (sort >= 0 && !cu_sort_rows(scan.process, scan.processes, sizeof(*scan.process), fill, (unsigned int)sort,
				       columns[sort].type)) {
		cu_error(command, "%s", strerror(ENOMEM));
		cu_scan_free(&scan);
		cu_table_drop(table);
		return CU_FAILED;
	}
	for (size_t i = 0; i < scan.processes; i++)
		if (pid < 0 || (!scan.process[i].error && scan.process[i].who.pid == (uint64_t)pid)) {
			cu_table_line(table, fill, &scan.process[i]);
			there = true;
		}
	if (scan.processes && !there && !format.json && !format.raw)
		cu_note("No process %lld shares GPU memory under culimbo; `culimbo ps` lists those that do.", pid);
	if (!scan.processes && !format.json && !format.raw)
		cu_note_nobody();
	cu_scan_free(&scan);
	return cu_table_end(table);
}

static const struct cu_option options[] = {
	{ "unprotected", OPTION_UNPROTECTED, NULL, "list this user's processes that use CUDA without the library instead" },
	{ "gpus", OPTION_GPUS, NULL, "list the GPUs instead: used and free memory, and what is shared of it" },
	{ "pid", OPTION_PID, "PID", "this process only" },
	{ "sort", OPTION_SORT, "COL", "sort by this column: numbers from the largest, texts from A to Z" },
	CU_USERS_OPTION(OPTION_USER),
	CU_TABLE_OPTIONS, CU_DIR_OPTION, { .name = NULL }
};

static const struct cu_example examples[] = {
	{ "culimbo ps", "who shares GPU memory, and how much waits in limbo" },
	{ "culimbo ps -o +HELDBYTES,SINCE", "more columns" },
	{ "culimbo ps -o PID,PINS,COMMAND --sort=PINS", "who keeps freed memory of others" },
	{ "culimbo ps --gpus", "used and free memory of each GPU, and how much of it is shared" },
	{ "culimbo ps --unprotected", "processes that use CUDA without culimbo" },
	{ "culimbo ps --json | jq '[.processes[].limbo_bytes] | add'", "bytes in limbo on this host" },
	{ .line = NULL },
};

const struct cu_command cu_ps = {
	.name = "ps",
	.arguments = "",
	.summary = "list the processes that share GPU memory",
	.help = "Lists each process of this user that exports or imports GPU memory under the\n"
		"library, living or dead, most bytes in limbo first.  Unreadable files are listed\n"
		"with the reason.\n"
		"\n"
		"With --unprotected: lists each process of this user that has libcuda.so mapped but\n"
		"not libculimbo.so.  Blocks that it opens may be freed meanwhile, and what it exports\n"
		"is not protected.\n"
		"\n"
		"With --gpus: lists each GPU.  GPU: its number, as nvidia-smi counts; NAME; USED, FREE: its\n"
		"memory, by libnvidia-ml.so.1; EXPORTED, HELD: blocks of processes, and those that others\n"
		"hold; LIMBO: the size of living processes' limbos, in whole pages of the driver; PINNED:\n"
		"blocks that others hold, and that were freed or unmapped, or whose context or process\n"
		"has ended; UUID.",
	.options = options,
	.columns = columns,
	.examples = examples,
	.run = ps,
};
