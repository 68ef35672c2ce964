/* SPDX-License-Identifier: Apache-2.0 */
/* `culimbo blocks`: one line for each shared block. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/nearest.h"
#include "tools/commands/blocks_order.h"
#include "tools/commands/commands.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/common/users.h"

enum { OPTION_PID = 128, OPTION_DEVICE, OPTION_STATE, OPTION_HELD, OPTION_SORT, OPTION_LIMIT,
       OPTION_GROUP, OPTION_USER };

enum { BYTES, STATE, PID, COMMAND, DEVICE, ADDRESS, EXPORTED, FREED, HOLDERS, HELDBY, ID, KIND,
       EXPORTS, GENERATION, PINNED, GPU };

static const struct cu_column columns[] = {
	[BYTES] = { "BYTES", CU_BYTES, 0, "its size (0: an event)" },
	[STATE] = { "STATE", CU_TEXT, 0,
		    "exported: not freed, held by nobody; held: not freed; limbo-held: freed, but held; limbo-grace: freed, a handle may be on its way; limbo-free: freed, on its way to the driver; gone: its context ended while it was held" },
	[PID] = { "PID", CU_NUMBER, 0, "its exporter" },
	[COMMAND] = { "COMMAND", CU_TEXT, CU_CUT, "the command line of its exporter" },
	[DEVICE] = { "DEVICE", CU_NUMBER, CU_DROP(2), "the number of its GPU in the exporter" },
	[ADDRESS] = { "ADDRESS", CU_HEX, CU_DROP(4), "its address in the exporter (of an event: the CUevent)" },
	[EXPORTED] = { "EXPORTED", CU_SECONDS, CU_DROP(3), "how long ago it was last exported" },
	[FREED] = { "FREED", CU_SECONDS, CU_DROP(5), "how long ago the program freed it" },
	[HOLDERS] = { "HOLDERS", CU_NUMBER, CU_DROP(1), "how many processes hold it" },
	[HELDBY] = { "HELDBY", CU_TEXT, CU_CUT, "the first of them: pid, name, and whether it has ended" },
	[ID] = { "ID", CU_TEXT, 0, "FILE:RECORD, for `culimbo show`" },
	[KIND] = { "KIND", CU_TEXT, CU_HIDDEN, "memory, pool (shared by its pointer) or event" },
	[EXPORTS] = { "EXPORTS", CU_NUMBER, CU_HIDDEN, "how often it was exported" },
	[GENERATION] = { "GENERATION", CU_NUMBER, CU_HIDDEN, "how many blocks had its record before" },
	[PINNED] = { "PINNED", CU_BOOLEAN, CU_HIDDEN,
		     "a holder could not be recorded, so it stays until the exporter ends" },
	[GPU] = { "GPU", CU_TEXT, CU_HIDDEN, "the GPU's UUID, which is the same for all processes" },
	{ .name = NULL },
};

struct row {
	const struct cu_scan *scan;
	const struct cu_block *block;
	const struct cu_process *process;
};

static const char *holders_text(const struct row *row)
{
	static char text[160];
	size_t at = 0;
	uint32_t i;

	if (!row->block->held)
		return NULL;
	for (i = 0; i < row->block->held && i < 3; i++) {
		const struct cu_holder *h =
			&row->process->holder[row->scan->held_by[row->block->held_at + i]];

		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%u %s%s%s%s", i ? ", " : "",
				       h->who.pid, *h->name ? h->name : "?", h->alive ? "" : " (",
				       h->alive ? "" : cu_holder_word(h), h->alive ? "" : ")");
	}
	if (row->block->held > i)
		snprintf(text + at, sizeof(text) - at, " and %u more", row->block->held - i);
	return text;
}

static void fill(struct cu_cell *cell, unsigned int column, const void *data)
{
	const struct row *row = data;
	const struct cl_view_block *b = &row->block->is;
	static char text[32], gpu[48];

	switch (column) {
	case BYTES:
		cu_cell_number(cell, b->size);
		break;
	case STATE:
		cu_cell_text(cell, cu_class_word(b->class));
		break;
	case PID:
		cu_cell_number(cell, row->process->who.pid);
		break;
	case COMMAND:
		cu_cell_text(cell, row->process->command);
		break;
	case DEVICE:
		if (b->kind != CL_EVENT && b->device != CL_NO_DEVICE)
			cu_cell_number(cell, b->device);
		break;
	case ADDRESS:
		cu_cell_number(cell, b->base);
		break;
	case EXPORTED:
		cu_cell_number(cell, row->scan->now > b->exported ? row->scan->now - b->exported : 0);
		break;
	case FREED:
		if (b->freed)
			cu_cell_number(cell, row->scan->now > b->freed ? row->scan->now - b->freed : 0);
		break;
	case HOLDERS:
		cu_cell_number(cell, row->block->held);
		break;
	case HELDBY:
		cu_cell_text(cell, holders_text(row));
		break;
	case ID:
		cu_block_id(text, row->process->file_id, b->record);
		cu_cell_text(cell, text);
		break;
	case KIND:
		cu_cell_text(cell, b->kind == CL_EVENT ? "event" : b->kind == CL_POOL ? "pool" : "memory");
		break;
	case EXPORTS:
		cu_cell_number(cell, b->exports);
		break;
	case GENERATION:
		cu_cell_number(cell, b->generation);
		break;
	case PINNED:
		cu_cell_number(cell, b->pinned);
		break;
	case GPU:
		if (row->block->has_gpu) {
			cu_gpu_word(gpu, row->block->gpu);
			cu_cell_text(cell, gpu);
		}
		break;
	default:
		break;
	}
}

static int by_bytes(const void *x, const void *y)
{
	const struct cu_block *a = x, *b = y;

	if (a->is.size != b->is.size)
		return a->is.size < b->is.size ? 1 : -1;
	if (a->process != b->process)
		return a->process > b->process ? 1 : -1;
	return (a->is.record > b->is.record) - (a->is.record < b->is.record);
}

struct filter {
	long long pid, device; /* -1: any */
	unsigned int classes;  /* bits */
	bool held;
};

static bool passes(const struct filter *filter, const struct row *row)
{
	bool its = row->process->who.pid == filter->pid;

	for (uint32_t i = 0; i < row->block->held && filter->pid >= 0 && !its; i++)
		its = row->process->holder[row->scan->held_by[row->block->held_at + i]].who.pid ==
		      filter->pid;
	return (filter->pid < 0 || its) &&
	       (filter->device < 0 ||
		(row->block->is.kind != CL_EVENT && row->block->is.device == filter->device)) &&
	       filter->classes >> row->block->is.class & 1 &&
	       (!filter->held || row->block->held || row->block->is.pinned);
}

/*
 * Returns the classes whose word is @word or begins with it and a dash; 0 after an error message.
 */
static unsigned int classes_of(const struct cu_command *command, const char *list)
{
	unsigned int classes = 0;
	const char *end;

	for (;; list = end + 1) {
		size_t length = strcspn(list, ","), best = (size_t)-1;
		const char *nearest = NULL;
		unsigned int found = 0;

		end = list + length;
		for (unsigned int c = 0; c < CL_VIEW_CLASSES; c++) {
			const char *word = cu_class_word(c);
			size_t distance = cl_word_distance(list, length, word, strlen(word));

			if (length && !strncmp(word, list, length) &&
			    (!word[length] || word[length] == '-'))
				found |= 1u << c;
			if (distance < best && cl_word_near(distance, strlen(word))) {
				best = distance;
				nearest = word;
			}
		}
		if (!found && cl_word_near(cl_word_distance(list, length, "limbo", 5), 5) &&
		    cl_word_distance(list, length, "limbo", 5) <= best)
			nearest = "limbo";
		if (!found) {
			if (nearest)
				cu_usage_error(command, "unknown state '%.*s'; did you mean '%s'?",
					       (int)length, list, nearest);
			else
				cu_usage_error(command, "unknown state '%.*s'", (int)length, list);
			return 0;
		}
		classes |= found;
		if (!*end)
			return classes;
	}
}

struct choice {
	struct filter filter;
	int sort;	   /* a column; -1: the largest first */
	long long limit;   /* lines; -1: all */
	const char *groups; /* NULL: none */
};

/* Prints the chosen blocks of @scan.  Returns the exit status. */
static int print(const struct cu_command *command, const struct cu_scan *scan, const struct choice *choice,
		 const struct cu_format *format)
{
	struct row *rows = calloc(scan->blocks + 1, sizeof(*rows));
	struct cu_groups *groups = choice->groups ? cu_groups_new(command, choice->groups) : NULL;
	size_t n = 0, limit = choice->limit < 0 ? SIZE_MAX : (size_t)choice->limit;
	struct cu_table *table = NULL;
	bool enough = rows != NULL;
	int status = CU_USAGE;

	if (choice->groups && !groups)
		goto out;
	for (size_t i = 0; i < scan->blocks && enough; i++) {
		rows[n] = (struct row){ scan, &scan->block[i], &scan->process[scan->block[i].process] };
		n += passes(&choice->filter, &rows[n]);
	}
	if (scan->blocks && !n && !format->json && !format->raw)
		fprintf(stderr, scan->blocks == 1 ? "There is 1 block, and it is not what was asked for.\n" :
						    "There are %zu blocks, and none is what was asked for.\n",
			scan->blocks);
	if (enough && choice->sort >= 0)
		enough = cu_sort_rows(rows, n, sizeof(*rows), fill, (unsigned int)choice->sort,
				      columns[choice->sort].type);
	for (size_t i = 0; i < n && enough && groups; i++)
		enough = cu_groups_add(groups, fill, &rows[i], rows[i].block->is.size);
	if (!enough) {
		cu_error(command, "%s", strerror(ENOMEM));
		status = CU_FAILED;
	} else if (groups) {
		status = cu_groups_print(groups, format, limit);
	} else {
		table = cu_table_new(command, "blocks", format, &status);
		for (size_t i = 0; table && i < n && i < limit; i++)
			cu_table_line(table, fill, &rows[i]);
		status = table ? cu_table_end(table) : status;
	}
out:
	cu_groups_free(groups);
	free(rows);
	return status;
}

/*
 * Says on stderr what is shared in other ways; only exports and imports are counted, each on its
 * own.
 */
static void note_descriptors(const struct cu_scan *scan)
{
	struct cu_counters sum = { 0 };
	char out[24], in[24];

	for (size_t i = 0; i < scan->processes; i++) {
		sum.fd_exports += scan->process[i].counters.fd_exports;
		sum.fd_export_bytes += scan->process[i].counters.fd_export_bytes;
		sum.fd_imports += scan->process[i].counters.fd_imports;
		sum.fd_import_bytes += scan->process[i].counters.fd_import_bytes;
		sum.fabric += scan->process[i].counters.fabric;
	}
	cu_bytes_long(out, sum.fd_export_bytes);
	cu_bytes_long(in, sum.fd_import_bytes);
	if (sum.fd_exports || sum.fd_imports)
		cu_note("Besides, by descriptors, which CUDA keeps alive by itself: exported %" PRIu64 " times, %s, "
			"imported %" PRIu64 " times, %s; `culimbo ps` says by whom.",
			sum.fd_exports, out, sum.fd_imports, in);
	if (sum.fabric)
		cu_note("Besides, by fabric handles, which culimbo does not cover: %" PRIu64 " times.", sum.fabric);
}

static int blocks(const struct cu_command *command, int argc, char **argv)
{
	struct choice choice = { .filter = { .pid = -1, .device = -1, .classes = ~0u }, .sort = -1, .limit = -1 };
	struct filter *filter = &choice.filter;
	struct cu_format format = { 0 };
	const char *dir = NULL;
	struct cu_users users = { .given = false };
	struct cu_scan scan;
	int got, status;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case CU_OPTION_DIR:
			dir = optarg;
			break;
		case OPTION_PID:
		case OPTION_DEVICE:
		case OPTION_LIMIT: {
			long long *to = got == OPTION_PID    ? &filter->pid :
					got == OPTION_DEVICE ? &filter->device :
							       &choice.limit;

			if (!cu_number(optarg, to))
				return cu_usage_error(command, "'%s' is not a number", optarg);
			if (!choice.limit)
				return cu_usage_error(command, "--limit: at least 1 line; without it, all");
			break;
		}
		case OPTION_STATE:
			filter->classes = classes_of(command, optarg);
			if (!filter->classes)
				return CU_USAGE;
			break;
		case OPTION_HELD:
			filter->held = true;
			break;
		case OPTION_SORT:
			choice.sort = cu_sort_column(command, optarg);
			if (choice.sort < 0)
				return CU_USAGE;
			break;
		case OPTION_GROUP:
			choice.groups = optarg;
			break;
		case OPTION_USER:
			if (!cu_users_read(command, optarg, &users))
				return CU_USAGE;
			break;
		default:
			if (!cu_format_option(&format, got))
				return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (choice.groups && choice.sort >= 0)
		return cu_usage_error(command, "--sort and --group-by exclude each other: groups have the most bytes first");
	if (!cu_users_scan(command, &scan, &users, dir, CU_SCAN_BLOCKS, &status))
		return status;
	if (scan.blocks)
		qsort(scan.block, scan.blocks, sizeof(*scan.block), by_bytes);
	status = print(command, &scan, &choice, &format);
	if (status == CU_OK && !scan.processes && !format.json && !format.raw)
		cu_note_nobody();
	else if (status == CU_OK && !scan.blocks && !format.json && !format.raw)
		cu_note("No blocks are shared, and none wait: the processes of `culimbo ps` export nothing now.");
	if (status == CU_OK && !format.json && !format.raw)
		note_descriptors(&scan);
	if (status != CU_USAGE)
		cu_note_unread(command, &scan);
	cu_scan_free(&scan);
	return status;
}

static const struct cu_option options[] = {
	{ "pid", OPTION_PID, "PID", "only blocks that this process exports or holds" },
	{ "device", OPTION_DEVICE, "N", "only blocks of this GPU" },
	{ "state", OPTION_STATE, "exported|held|limbo|limbo-held|limbo-grace|limbo-free|gone",
	  "only blocks in this state, or in one of a list (limbo: any of its three)" },
	{ "held", OPTION_HELD, NULL, "only those that somebody holds" },
	{ "sort", OPTION_SORT, "COL", "sort by this column: numbers from the largest, texts from A to Z" },
	{ "limit", OPTION_LIMIT, "N", "only the first N lines, at least 1" },
	{ "group-by", OPTION_GROUP, "COL[,..]", "one line for all blocks that are equal in these columns, with their number and size" },
	CU_USERS_OPTION(OPTION_USER),
	CU_TABLE_OPTIONS,
	CU_DIR_OPTION,
	{ .name = NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo blocks --state=limbo-held", "freed blocks that are still held, and who holds them" },
	{ "culimbo blocks --pid=4711 -o +EXPORTS", "all blocks that process 4711 exports or holds" },
	{ "culimbo blocks --group-by=PID,STATE,HELDBY", "number and size of blocks by exporter, state and holder" },
	{ "culimbo blocks --sort=FREED --state=limbo-held --limit=5", "the five that have waited longest" },
	{ "culimbo blocks --json | jq '.blocks[0]'", "the largest block" },
	{ .line = NULL },
};

const struct cu_command cu_blocks = {
	.name = "blocks",
	.arguments = "",
	.summary = "list the blocks of GPU memory that are shared or wait in limbo",
	.help = "Lists each block (and event) that a process exports, or has freed and cannot give\n"
		"back yet; the largest first.  How much is shared by descriptors and fabric handles\n"
		"is said below: that is only counted.",
	.options = options,
	.columns = columns,
	.examples = examples,
	.run = blocks,
};
