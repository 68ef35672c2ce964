/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor service of this process (descriptors/server.h), which hands over what its handles of virtual
 * memory and of pools' blocks name.
 */
#ifndef CL_SERVICE_H
#define CL_SERVICE_H

#include <stdbool.h>
#include "shim/descriptors/protocol.h"

struct cl_exporter;

/* What a request for a record of some kind is answered with; as a cl_serve_export. */
typedef int cl_service_pieces(struct cl_exporter *ex, const struct cl_request *request, struct cl_piece *piece, int *fds,
			      uint32_t *total);

/*
 * Comes before a handle of @record leaves, of @kind, for which @pieces answers.  Returns false, and logs why, if there
 * is no service.
 */
bool cl_service_need(uint32_t record, enum cl_kind kind, cl_service_pieces *pieces);
/* At the end of the process, before its file goes. */
void cl_service_end(uint64_t wait);
void cl_service_forget(void); /* in a forked child */

#endif
