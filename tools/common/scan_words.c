/* SPDX-License-Identifier: Apache-2.0 */
/* The words for what a scan has found: see scan.h. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/scan.h"

const char *cu_liveness_word(enum cl_liveness state)
{
	switch (state) {
	case CL_ALIVE:
		return "alive";
	case CL_SETTLING:
		return "unsure";
	case CL_LEAVING:
		return "ending";
	case CL_DEAD:
		return "dead";
	}
	return "unsure";
}

const char *cu_state_word(const struct cu_process *process)
{
	switch (process->error) {
	case 0:
		return cu_liveness_word(process->state);
	case -EPROTO:
		return "version";
	case -ESTALE:
		return "old";
	case -EPERM:
		return "foreign";
	case -EBADMSG:
		return "damaged";
	default:
		return "unread";
	}
}

const char *cu_holder_word(const struct cu_holder *holder)
{
	return holder->alive ? "alive" : holder->called_exec ? "called exec" : "ended";
}

const char *cu_class_word(enum cl_view_class class)
{
	static const char *const word[CL_VIEW_CLASSES] = {
		[CL_VIEW_HELD_LIMBO] = "limbo-held", [CL_VIEW_GRACE] = "limbo-grace",
		[CL_VIEW_LIMBO] = "limbo-free",	     [CL_VIEW_HELD] = "held",
		[CL_VIEW_ORPHANED] = "gone",	     [CL_VIEW_LIVE] = "exported",
	};

	return class < CL_VIEW_CLASSES ? word[class] : "?";
}

const char *cu_process_note(const struct cu_process *process)
{
	if (process->error)
		return process->why ? process->why : strerror(-process->error);
	if (process->called_exec)
		return "has left by exec: its process runs another program now";
	if (process->elsewhere)
		return "in another PID namespace";
	if (process->never_opened)
		return "no export was ever opened under culimbo: are the importers preloaded?";
	return "";
}

void cu_file_word(char to[16], uint32_t file_id)
{
	if (file_id)
		cl_region_name(to, file_id);
	else
		snprintf(to, 16, "-");
}

void cu_block_id(char *to, uint32_t file_id, uint32_t record)
{
	snprintf(to, 32, "%06x:%u", file_id, record);
}
