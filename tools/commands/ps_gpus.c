/* SPDX-License-Identifier: Apache-2.0 */
/* `culimbo ps --gpus`: see ps_gpus.h. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/commands/ps_gpus.h"
#include "tools/common/left.h"

enum { GPU, NAME, USED, FREE, EXPORTED, HELD, LIMBO, PINNED, UUID };

static const struct cu_column columns[] = {
	[GPU] = { "GPU", CU_NUMBER, CU_LEFT, "its number, as nvidia-smi counts" },
	[NAME] = { "NAME", CU_TEXT, CU_IF_ANY | CU_CUT, "its name, by NVIDIA's library" },
	[USED] = { "USED", CU_BYTES, CU_KEY_BYTES, "memory of it that all processes of the machine use" },
	[FREE] = { "FREE", CU_BYTES, CU_KEY_BYTES, "memory of it that is free" },
	[EXPORTED] = { "EXPORTED", CU_BYTES, CU_KEY_BYTES, "blocks that processes export and have not freed" },
	[HELD] = { "HELD", CU_BYTES, CU_KEY_BYTES, "blocks that processes other than the exporter hold" },
	[LIMBO] = { "LIMBO", CU_BYTES, CU_KEY_BYTES, "the size of the limbos, in whole pages of the driver" },
	[PINNED] = { "PINNED", CU_BYTES, CU_KEY_BYTES, "blocks that others hold, and that were freed or unmapped, or whose context or process has ended" },
	[UUID] = { "UUID", CU_TEXT, CU_DROP(1), "as nvidia-smi -L prints it" },
	{ .name = NULL },
};

struct line {
	const struct cu_gpu *gpu; /* NULL: of blocks whose exporters did not note the GPU, or have ended and left no file */
	uint64_t exported, held, pinned;
};

static void fill(struct cu_cell *cell, unsigned int column, const void *row)
{
	const struct line *line = row;
	static char text[48];

	switch (column) {
	case EXPORTED:
		cu_cell_number(cell, line->exported);
		return;
	case HELD:
		cu_cell_number(cell, line->held);
		return;
	case PINNED:
		cu_cell_number(cell, line->pinned);
		return;
	default:
		break;
	}
	if (!line->gpu)
		return;
	switch (column) {
	case LIMBO:
		cu_cell_number(cell, line->gpu->limbo);
		return;
	case UUID:
		cu_gpu_word(text, line->gpu->uuid);
		cu_cell_text(cell, text);
		return;
	default:
		break;
	}
	if (!line->gpu->known)
		return;
	if (column == GPU)
		cu_cell_number(cell, line->gpu->index);
	else if (column == NAME)
		cu_cell_text(cell, line->gpu->name);
	else if (column == USED)
		cu_cell_number(cell, line->gpu->used);
	else if (column == FREE)
		cu_cell_number(cell, line->gpu->free);
}

static void add(struct line *line, const struct cu_scan *scan, const struct cu_block *block)
{
	const struct cu_process *exporter = &scan->process[block->process];
	bool dead = exporter->state == CL_DEAD;
	bool live = block->is.class == CL_VIEW_LIVE || block->is.class == CL_VIEW_HELD;

	/* of a dead process's memory the driver has back what nobody holds */
	if (live && !dead)
		line->exported += block->is.size;
	if (!block->held && !block->is.pinned)
		return;
	line->held += block->is.size;
	if (cu_block_is_left(&block->is, exporter))
		line->pinned += block->is.size;
}

int cu_ps_gpus(const struct cu_command *command, const struct cu_format *format, const struct cu_users *users,
	       const char *dir)
{
	struct line line[CU_GPUS_MOST + 1] = { { .gpu = NULL } }, *unknown = &line[CU_GPUS_MOST];
	struct cu_command gpus = *command;
	struct cu_table *table;
	struct cu_scan scan;
	const char *why;
	int status;

	gpus.columns = columns;
	table = cu_table_new(&gpus, "gpus", format, &status);
	if (!table)
		return status;
	if (!cu_users_scan(command, &scan, users, dir, CU_SCAN_BLOCKS, &status)) {
		cu_table_drop(table);
		return status;
	}
	/* dead processes have no limbo, but their blocks name a GPU, too */
	for (size_t i = 0; i < scan.blocks; i++)
		if (scan.block[i].has_gpu)
			cu_gpus_find(&scan.gpus, scan.block[i].gpu);
	why = cu_gpus_ask(&scan.gpus);
	for (size_t i = 0; i < scan.blocks; i++) {
		const struct cu_block *block = &scan.block[i];
		struct cu_gpu *gpu = block->has_gpu ? cu_gpus_find(&scan.gpus, block->gpu) : NULL;

		add(gpu ? &line[gpu - scan.gpus.gpu] : unknown, &scan, block);
	}
	for (size_t i = 0; i < scan.lefts; i++)
		if (!scan.left[i].again) {
			unknown->held += scan.left[i].is.size;
			unknown->pinned += scan.left[i].is.size;
		}
	for (unsigned int i = 0; i < scan.gpus.n; i++) {
		line[i].gpu = &scan.gpus.gpu[i];
		cu_table_line(table, fill, &line[i]);
	}
	if (unknown->exported || unknown->held)
		cu_table_line(table, fill, unknown);
	if (!scan.gpus.n && !unknown->exported && !unknown->held && !format->json && !format->raw) {
		if (scan.processes)
			cu_note("No memory of a GPU is shared: the processes of `culimbo ps` share events, or nothing now.");
		else
			cu_note_nobody();
	}
	status = cu_table_end(table);
	if (why && !format->json && !format->raw) {
		fflush(stdout);
		cu_note("Used and free memory are not known: %s", why);
	}
	cu_scan_free(&scan);
	return status;
}
