/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor service of this process: see service.h. */
#include <string.h>

#include "shim/base/log.h"
#include "shim/blocks/blocks.h"
#include "shim/descriptors/server.h"
#include "shim/exporter/service.h"
#include "shim/limbo/exporter.h"
#include "shim/self/self.h"

static cl_service_pieces *_Atomic pieces_of[CL_KINDS]; /* set by the first export of each kind */

/* Passes @request on to the function that answers for the kind of its record: a cl_serve_export. */
static int export_pieces(void *arg, const struct cl_request *request, struct cl_piece *piece, int *fds,
			 uint32_t *total)
{
	struct cl_exporter *ex = arg;
	cl_service_pieces *pieces = NULL;
	const struct cl_block *block;

	cl_lock(&cl_exports_lock);
	block = cl_block_of_record(&ex->blocks, request->record);
	if (block)
		pieces = pieces_of[block->kind];
	cl_unlock(&cl_exports_lock);
	return pieces ? pieces(ex, request, piece, fds, total) : -ESTALE;
}

static struct cl_server server = CL_SERVER_INIT(&cl_own, export_pieces, &cl_exporter);

bool cl_service_need(uint32_t record, enum cl_kind kind, cl_service_pieces *pieces)
{
	int err;

	pieces_of[kind] = pieces;
	err = cl_server_need(&server, record);
	if (err && err != -ESHUTDOWN)
		cl_log_once(CL_LOG_ERROR,
			    "virtual memory and memory of pools cannot be shared by handles: no socket or thread for "
			    "their descriptors: %s; cuIpcGetMemHandle refuses them, as without culimbo",
			    strerror(-err));
	return !err;
}

bool cl_service_need_again(uint32_t record, enum cl_kind kind, uint64_t now)
{
	return cl_server_was_up(&server, record, now) || cl_service_need(record, kind, pieces_of[kind]);
}

void cl_service_end(uint64_t wait)
{
	cl_server_end(&server, wait);
}

void cl_service_forget(void)
{
	cl_server_forget(&server);
}
