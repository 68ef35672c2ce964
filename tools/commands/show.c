/* SPDX-License-Identifier: Apache-2.0 */
/* `culimbo show`: prints everything that is known about one block or process. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands/commands.h"
#include "tools/commands/show_details.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/common/users.h"

enum { OPTION_USER = 128, OPTION_FULL_STACKS };
enum { FOUND_MOST = 64 };

struct match {
	int process; /* index; for a block, its exporter's */
	long block;  /* index; -1: the ID means the process */
};

struct search {
	const struct cu_scan *scan;
	int dirfd;
	struct match match[FOUND_MOST];
	unsigned int n; /* counts beyond FOUND_MOST as well */
};

static void found(struct search *search, int process, long block)
{
	for (unsigned int i = 0; i < search->n && i < FOUND_MOST; i++)
		if (search->match[i].process == process && search->match[i].block == block)
			return;
	if (search->n < FOUND_MOST)
		search->match[search->n] = (struct match){ process, block };
	search->n++;
}

static void find_block(struct search *search, uint32_t file_id, uint32_t record)
{
	const struct cu_scan *scan = search->scan;

	for (size_t i = 0; i < scan->blocks; i++)
		if (scan->block[i].is.record == record &&
		    scan->process[scan->block[i].process].file_id == file_id)
			found(search, (int)scan->block[i].process, (long)i);
}

static bool covers(uint64_t base, uint64_t size, uint64_t address)
{
	return address == base || (address > base && address - base < size);
}

struct imports_look {
	struct search *search;
	const struct cl_view *view;
	uint64_t address;
};

static void look_at_imports(void *data)
{
	struct imports_look *look = data;
	uint32_t n = cl_view_imports(look->view);
	struct cl_view_import import;

	for (uint32_t i = 0; i < n; i++)
		if (cl_view_import(look->view, i, &import) &&
		    covers(import.key, import.size, look->address))
			find_block(look->search, import.file_id, import.record);
}

/* Finds an address in its exporter, or in an importer. */
static void find_address(struct search *search, uint64_t address)
{
	const struct cu_scan *scan = search->scan;

	for (size_t i = 0; i < scan->blocks; i++)
		if (covers(scan->block[i].is.base, scan->block[i].is.size, address))
			found(search, (int)scan->block[i].process, (long)i);
	for (size_t i = 0; i < scan->processes; i++) {
		struct cl_view view;
		struct imports_look look = { search, &view, address };

		if (scan->process[i].error || !scan->process[i].file_id ||
		    cu_view_open(&view, search->dirfd, scan->process[i].file_id, NULL))
			continue;
		cu_guarded(look_at_imports, &look);
		cl_view_close(&view);
	}
}

static void find_file(struct search *search, uint32_t file)
{
	for (size_t i = 0; i < search->scan->processes; i++)
		if (search->scan->process[i].file_id == file)
			found(search, (int)i, -1);
}

/* Returns false if @id has none of the forms. */
static bool find_id(struct search *search, const char *id)
{
	const struct cu_scan *scan = search->scan;
	uint32_t file = cl_region_name_id(id);
	unsigned long long address;
	unsigned int record;
	long long pid;
	char *end, tail;

	if (file) {
		find_file(search, file);
		return true;
	}
	if (strchr(id, ':')) {
		if (!strncmp(id, "exporter-", 9))
			id += 9;
		if (sscanf(id, "%6x:%u%c", &file, &record, &tail) != 2)
			return false;
		find_block(search, file, record);
		return true;
	}
	if (cu_number(id, &pid)) {
		for (size_t i = 0; i < scan->processes; i++)
			if (!scan->process[i].error && scan->process[i].who.pid == pid)
				found(search, (int)i, -1);
		if (!search->n && strlen(id) == 6)
			find_file(search, (uint32_t)strtoul(id, NULL, 16));
		return true;
	}
	errno = 0;
	address = strtoull(id, &end, 16);
	/* check errno before the search, which changes it */
	if (errno || *end || !*id || strspn(id, "0123456789abcdefABCDEFxX") != strlen(id))
		return false;
	find_address(search, address);
	/* only the digits of a file's name, which `culimbo blocks` prints before the colon */
	if (!search->n && strlen(id) == 6 && address)
		find_file(search, (uint32_t)address);
	return true;
}

/* ------------------------------------------------------------------------ all */
static int show_match(const struct cu_command *command, const struct search *search,
		      const struct cu_format *format)
{
	const struct cu_scan *scan = search->scan;
	struct cu_emit to = { .json = format->json, .bytes = format->bytes };
	struct cu_show show = {
		.to = &to, .scan = scan, .dirfd = search->dirfd,
		.process = &scan->process[search->match[0].process],
		.block = search->match[0].block < 0 ? NULL : &scan->block[search->match[0].block],
	};
	int status = CU_OK;

	if (show.process->error) {
		char name[16];

		cu_file_word(name, show.process->file_id);
		cu_error(command, "%s cannot be read: %s", name, cu_process_note(show.process));
		return CU_FAILED;
	}
	show.view.region.fd = -1;
	if (show.process->file_id &&
	    cu_view_open(&show.view, search->dirfd, show.process->file_id, NULL)) {
		cu_error(command, "process %u has just ended", show.process->who.pid);
		return CU_FAILED;
	}
	if (show.block || show.process->imported)
		show.symbols = cu_symbols_new();
	cu_emit_open(&to, NULL, '{');
	if (!cu_guarded(show.block ? cu_show_block : cu_show_process, &show)) {
		cu_error(command, "the file was cut while it was read");
		status = CU_FAILED;
	}
	if (status == CU_OK)
		cu_emit_close(&to, '}');
	cl_view_close(&show.view);
	cu_symbols_free(show.symbols);
	return status;
}

static void list_matches(const struct cu_command *command, const struct search *search,
			 const char *id)
{
	cu_error(command, "'%s' may be one of %u: name one of these", id, search->n);
	for (unsigned int i = 0; i < search->n && i < FOUND_MOST; i++) {
		const struct match *match = &search->match[i];
		const struct cu_process *process = &search->scan->process[match->process];
		char name[32], size[24];

		if (match->block < 0) {
			cu_file_word(name, process->file_id);
			fprintf(stderr, "  %-16s process %u (%s, %s)\n", name, process->who.pid,
				process->command, cu_process_note(process));
			continue;
		}
		cu_block_id(name, process->file_id, search->scan->block[match->block].is.record);
		cu_bytes_long(size, search->scan->block[match->block].is.size);
		fprintf(stderr, "  %-16s %s, %s, of process %u (%s)\n", name, size,
			cu_class_word(search->scan->block[match->block].is.class), process->who.pid,
			process->command);
	}
	if (search->n > FOUND_MOST)
		fprintf(stderr, "  and %u more\n", search->n - FOUND_MOST);
}

static int show(const struct cu_command *command, int argc, char **argv)
{
	struct search search = { 0 };
	struct cu_format format = { 0 };
	struct cu_users users = { .given = false };
	const char *dir = NULL, *id;
	struct cu_scan scan;
	int got, status;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		if (got == CU_OPTION_DIR)
			dir = optarg;
		else if (got == OPTION_FULL_STACKS) {
			if (setenv("CULIMBO_FULL_STACKS", "1", 1))
				return CU_FAILED;
		} else if (got == OPTION_USER) {
			if (!cu_users_read(command, optarg, &users))
				return CU_USAGE;
		} else if (!cu_format_option(&format, got))
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
	if (optind >= argc)
		return cu_usage_error(command, "which process or block?");
	id = argv[optind++];
	if (optind < argc)
		return cu_usage_error(command, "one at a time: '%s' is too many", argv[optind]);
	if (!cu_users_become(command, &users, &status) ||
	    !cu_scan_all(command, &scan, dir, CU_SCAN_BLOCKS, &status))
		return status;
	search.scan = &scan;
	search.dirfd = cu_directory_open(command);
	status = CU_FAILED;
	if (!find_id(&search, id))
		status = cu_usage_error(command,
					"'%s' is not a pid, an address (0x...) or FILE:RECORD", id);
	else if (!search.n)
		cu_error(command, "'%s' is not in %s: see `culimbo ps` and `culimbo blocks`", id,
			 cu_directory());
	else if (search.n > 1)
		list_matches(command, &search, id);
	else
		status = show_match(command, &search, &format);
	if (search.dirfd >= 0)
		close(search.dirfd);
	cu_scan_free(&scan);
	return status;
}

static const struct cu_option options[] = {
	CU_JSON_OPTION,
	CU_BYTES_OPTION,
	{ "full-stacks", OPTION_FULL_STACKS, NULL, "show all frames, also those around the program's own" },
	CU_USER_OPTION(OPTION_USER),
	CU_DIR_OPTION,
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "it was shown" },
	{ CU_FAILED, "there is no such process or block, or there are several (stderr lists them)" },
	{ CU_USAGE, "the command line is wrong" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo show 4711", "a process: what it shares, with whom, and what it has open of others" },
	{ "culimbo show 0x7f21a5e02000", "the block at (or around) an address of its exporter or importer" },
	{ "culimbo show 0a1b2c:17", "a block as `culimbo blocks` names it" },
	{ .line = NULL },
};

const struct cu_command cu_show = {
	.name = "show",
	.arguments = "ID",
	.summary = "show everything about one process or block",
	.help = "Shows all that is known about a process or a block: who exports it and who holds it,\n"
		"since when, from where in the code, and what to do.  The ID of a process is its pid,\n"
		"or the name of its file (exporter-0a1b2c or 0a1b2c).  The ID of a block is an\n"
		"address in hexadecimal, or FILE:RECORD as `culimbo blocks` shows it.  If several\n"
		"match, they are listed.",
	.options = options,
	.exits = exits,
	.examples = examples,
	.run = show,
};
