/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor service of this process (descriptors/server.h).  It hands descriptors of the memory that our
 * handles name (virtual memory, and blocks of pools) over to importers.
 *
 * Any thread may call these functions.  It must hold no lock of ours.
 */
#ifndef CL_SERVICE_H
#define CL_SERVICE_H

#include <stdbool.h>
#include "shim/descriptors/protocol.h"

struct cl_exporter;

/* Answers a request for a record of one kind.  Arguments and results are those of a cl_serve_export (server.h). */
typedef int cl_service_pieces(struct cl_exporter *ex, const struct cl_request *request, struct cl_piece *piece, int *fds,
			      uint32_t *total);

/*
 * Comes before a handle of @record, whose kind is @kind, leaves this process: makes sure that the service runs, and
 * that @pieces answers requests for this kind.  Returns false if there is no service; logs why, unless the process
 * is ending.
 */
bool cl_service_need(uint32_t record, enum cl_kind kind, cl_service_pieces *pieces);
/*
 * The same for one more handle of a record, for which cl_service_need() has returned true before.  @now is the time.
 * As a rule it makes no system call: cl_server_was_up().
 */
bool cl_service_need_again(uint32_t record, enum cl_kind kind, uint64_t now);
/* Ends the service for good, before the exporter's file is removed.  Waits up to @wait ns: see cl_server_end(). */
void cl_service_end(uint64_t wait);
void cl_service_forget(void); /* in a forked child */

#endif
