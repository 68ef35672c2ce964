/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace file (CULIMBO_TRACE): what lies where in it.  doc/tracing.md describes it in full.
 *
 * Each process has one file: a header of one page, then a ring of records of 64 bytes, then room for
 * call stacks.  A process that ends copies these there from its exporter file: modules, then words,
 * as layout.h has them.  The exporter file of a process that is killed stays.  Record
 * number N, from 0 on, lies at place N % records, in the place of record N - records.  The writer may be killed
 * between any two stores, and a slow thread may write over a record of a faster one that is a whole
 * ring ahead.  So each record has a seal, written last: its own number and a check of all its
 * words.  A place without the right seal has no record.
 *
 * Little-endian, fixed widths, no pointers.
 */
#ifndef CL_TRACE_LAYOUT_H
#define CL_TRACE_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>
#include "shim/shm/layout.h"

#define CL_TRACE_MAGIC "CULTRAC" /* 8 bytes with its zero, written last */
#define CL_TRACE_VERSION 2u /* 1: without room for stacks */
#define CL_TRACE_HEADER_SIZE 4096u
#define CL_TRACE_CHECK_BITS 24

/* What happened.  KEY is a device address or the CUevent; a STAMP is file_id, record, generation. */
enum cl_trace_what {
	CL_TRACE_NOTHING,
	CL_TRACE_ALLOCATED, /* KEY, size */
	CL_TRACE_FREED,	    /* KEY: the program's call succeeded; `when` is when it began */
	CL_TRACE_EXPORTED,  /* KEY, size, STAMP; value: the stack, as layout.h names it; 0: none */
	CL_TRACE_OPENED,    /* KEY here, size, the exporter's STAMP and pid; no file_id: unmanaged; value:
			       the stack */
	CL_TRACE_CLOSED,    /* as OPENED; value: how many opens were closed at once (0: one) */
	CL_TRACE_LIMBO,	    /* KEY, record: freed, but not given back; value: bytes in the limbo now;
			       generation: the stack of the free */
	CL_TRACE_HELD,	    /* KEY, record: in the limbo, waits for its holders */
	CL_TRACE_READY,	    /* KEY, record: in the limbo, may go */
	CL_TRACE_RELEASED,  /* KEY, record: the driver has it back; value: bytes in the limbo now */
	CL_TRACE_ORPHANED,	    /* as RELEASED, but it went in another way, also if nobody holds it: its context
			       ended, the program unmapped it, its free was only observed, or another block
			       is at its address */
	CL_TRACE_UNTRACKED,	    /* KEY: freed, but it has no record, so nobody can say who holds it */
	CL_TRACE_WAITED,    /* size: bytes that were missing (0: not known); value: waited so long, ns */
	CL_TRACE_ASKED,	    /* pid, file_id: that exporter was asked for memory; size: what it had
			       in the limbo; value: waited for it so long, ns */
	CL_TRACE_SERVED,    /* this process did what it was asked for */
	CL_TRACE_STALE,	    /* STAMP: a stale handle was refused */
	CL_TRACE_RECLAIMED, /* KEY, size, record; pid: of the dead holder whose hold was taken back */
	CL_TRACE_ENDED,	    /* the process has ended; a killed process has no such record */
	CL_TRACE_WHATS,
};

enum {
	CL_TRACE_AT_ONCE = 1, /* RELEASED: it never was in the limbo, and value is not set */
	CL_TRACE_OWN = 2,     /* OPENED, CLOSED: by the exporter itself */
	CL_TRACE_DONE = 4,    /* WAITED: memory came free; ASKED: it answered in time */
};

struct cl_trace_event {
	uint64_t when;	    /* CLOCK_MONOTONIC, ns */
	uint32_t tid;
	uint8_t what;	    /* enum cl_trace_what */
	uint8_t kind;	    /* enum cl_kind; 0: none */
	uint8_t device;	    /* ordinal as this process counts */
	uint8_t flags;
	uint64_t key, size;
	uint32_t file_id, record, generation;
	uint32_t pid;	    /* of another process */
	uint64_t value;
};
_Static_assert(sizeof(struct cl_trace_event) == 56, "trace version 1");
#define CL_TRACE_WORDS (sizeof(struct cl_trace_event) / 8)

struct cl_trace_record {
	_Atomic uint64_t word[CL_TRACE_WORDS]; /* a struct cl_trace_event */
	_Atomic uint64_t seal;		       /* (number + 1) << 24 | check; 0: never written */
};
_Static_assert(sizeof(struct cl_trace_record) == 64, "trace version 1");

struct cl_trace_header {
	_Atomic uint64_t magic;
	uint32_t version, header_size, record_size, uid;
	uint64_t records;    /* places in the ring */
	uint8_t boot_id[16]; /* zeros: not known */
	struct cl_identity who;
	uint64_t monotonic, realtime; /* the same moment by both clocks, ns */
	char name[16];	    /* /proc/self/comm */
	char command[256];  /* the start of the command line, blanks between */
	uint64_t stacks;    /* where in the file the room for them begins; 0: there is none */
	_Atomic uint32_t modules, stack_words; /* what is there; written last */
	_Alignas(64) _Atomic uint64_t next; /* number of the next record */
};
_Static_assert(sizeof(struct cl_trace_header) <= CL_TRACE_HEADER_SIZE, "trace version 1");
_Static_assert(offsetof(struct cl_trace_header, next) == 384, "trace version 1");

static inline uint64_t cl_trace_seal(uint64_t number, const uint64_t word[CL_TRACE_WORDS])
{
	uint64_t check = number;

	for (unsigned int i = 0; i < CL_TRACE_WORDS; i++) {
		check = (check ^ word[i]) * 0x9e3779b97f4a7c15u;
		check ^= check >> 32;
	}
	return (number + 1) << CL_TRACE_CHECK_BITS | check >> (64 - CL_TRACE_CHECK_BITS);
}

#endif
