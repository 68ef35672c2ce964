/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an importer and the descriptor service of an exporter say to each other.
 *
 * The service listens on a Unix socket (SOCK_SEQPACKET) beside the exporter's file.  A request names
 * a live record, by file id, record and generation, and the first piece that the importer lacks.  The
 * answer is one message with at most CL_SERVE_BATCH pieces and as many descriptors.  The importer
 * asks again for the next ones.  So of each connection one batch at most is under way.
 *
 * The exporter may map and unmap pieces between two batches.  So a batch begins at an offset, not at a
 * number: a piece that stays mapped comes exactly once.  The total may change.
 *
 * An importer that has mapped some of the pieces already names the ranges that they cover.  What lies in one of them
 * neither comes nor counts.  If there are more ranges than a request has room for, it asks for what lies before the
 * end of the last one, and then goes on from there.
 *
 * All structs have fixed sizes, and are sent whole.  What lies before `total` lies there in all
 * versions.  Each side refuses another version with -EPROTO, and reads nothing else of its message.
 * Errors are -errno, the same number at both sides, which are on one machine.
 */
#ifndef CL_SERVE_PROTOCOL_H
#define CL_SERVE_PROTOCOL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "shim/shm/layout.h"

#define CL_SERVE_MAGIC "CULSERV"
#define CL_SERVE_VERSION 2u
#define CL_SERVE_BATCH 64u	   /* descriptors a message, at most; the kernel takes 253 */
#define CL_SERVE_RUNS 64u	   /* ranges of a request, at most */
#define CL_SERVE_PIECES CL_RECORDS /* pieces of one request, at most: each is a record */

struct cl_serve_head {
	char magic[8];
	uint32_t version, size; /* bytes of the whole message */
};

/* A range without holes that the importer has, from .begin to below .end. */
struct cl_serve_run {
	uint64_t begin, end;
};

struct cl_request {
	struct cl_serve_head head;
	uint32_t file_id, record, generation; /* what the handle names */
	uint32_t first;			      /* piece that the importer lacks; it has all before that */
	uint64_t offset;		      /* from the handle; only the exporter's callback reads it, and .from */
	uint64_t from;			      /* where the last piece that has come ends, or 0 */
	uint64_t until;			      /* pieces that begin here or above count, and don't come */
	uint32_t most;			      /* descriptors, at most; 1 or more */
	uint32_t runs;
	struct cl_serve_run run[CL_SERVE_RUNS]; /* in order; no two overlap */
};
_Static_assert(sizeof(struct cl_request) == 64 + 16 * CL_SERVE_RUNS, "service 2");

/* One allocation.  Each has a record of its own. */
struct cl_piece {
	uint64_t offset, size; /* bytes */
	uint32_t record, generation;
};
_Static_assert(sizeof(struct cl_piece) == 24, "service 2");

struct cl_answer {
	struct cl_serve_head head;
	int32_t error;	/* 0, or why there is no piece */
	uint32_t total; /* pieces of what was asked for: .first, and those from .from on that lie in no range */
	uint32_t first, count;
	struct cl_piece piece[CL_SERVE_BATCH];
};
_Static_assert(offsetof(struct cl_answer, error) == 16, "all versions");
_Static_assert(sizeof(struct cl_answer) == 32 + 24 * CL_SERVE_BATCH, "service 2");

static inline void cl_serve_head_set(struct cl_serve_head *head, uint32_t size)
{
	memcpy(head->magic, CL_SERVE_MAGIC, sizeof head->magic);
	head->version = CL_SERVE_VERSION;
	head->size = size;
}

/*
 * Returns 0 if a message of @got bytes that begins with @head is one of @size bytes of this version,
 * -EPROTO if it is of another version, -EBADMSG if it is none.
 */
static inline int cl_serve_head_check(const struct cl_serve_head *head, size_t got, uint32_t size)
{
	if (got < sizeof *head || memcmp(head->magic, CL_SERVE_MAGIC, sizeof head->magic))
		return -EBADMSG;
	if (head->version != CL_SERVE_VERSION)
		return -EPROTO;
	return got == size && head->size == size ? 0 : -EBADMSG;
}

/* Returns true if the numbers in @request, which has the right head, can be those of a request. */
static inline bool cl_serve_request_check(const struct cl_request *request)
{
	uint64_t end = 0;

	if (!request->most || request->runs > CL_SERVE_RUNS)
		return false;
	for (uint32_t i = 0; i < request->runs; i++) {
		if (request->run[i].begin < end || request->run[i].end <= request->run[i].begin)
			return false;
		end = request->run[i].end;
	}
	return true;
}

#endif
