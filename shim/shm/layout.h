/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: what lies where in the shared memory, and its rules.
 *
 * One file per exporter, made at its first export, mapped by itself and by
 * every importer (and read by the culimbo command).  All of it may be changed
 * under our feet by any of them, each of which may be killed between any two
 * instructions.  So:
 *
 *  1. Who writes what.  The exporter alone writes records (all but the holder
 *     words and `pinned`), the header's counts and the ready words' clearing.
 *     An importer writes its slot, its own bit of the holder words, ready
 *     bits, the words by which it asks something (wake, pressure), and since
 *     when slots of the dead have been so (see CL_LOCK_FREE_UNIT_BITS).  It adds
 *     to `opens` before its bit is set: who sees the bit sees that it opened.
 *     The exporter sets `opens` to 0 with each new generation.  An importer whose
 *     handle is stale may add to the next generation's: so `opens` decides only
 *     which block goes first where one must, never whether it may go.
 *     A reaper, with the byte lock of a dead slot, acts for the dead importer.
 *
 *  2. A hold is one bit, holder word [slot / 64][record], bit slot % 64.  It is
 *     set and cleared by one atomic instruction.  The number of holders is
 *     counted from the bits, never stored.  Two bits cannot be confused, so
 *     there is nothing to repair after a kill: the dead one's bits are cleared,
 *     then its slot is freed (in this order: a killed reaper is run again).
 *
 *  3. Open against free.  The importer sets its bit, full fence, reads the
 *     record's state.  The exporter writes DYING, full fence, reads the holder
 *     words.  Of two such, at least one sees the other (hazard pointers).
 *     The importer proceeds only on EXPORTED or LIMBO of its generation; the
 *     exporter only when no bit was set.
 *
 *  4. Memory before use.  The file is sparse and as long as it can ever get.
 *     Only parts that fallocate() has got are ever touched, so that a
 *     full file system is an error return, never SIGBUS.  Which parts: record
 *     chunks below `record_chunks`, and holder pages with their bit in
 *     `word_pages`.  Both only ever grow.
 *
 *  5. Indices, no pointers; fixed widths; little-endian; offsets asserted below.
 */
#ifndef CL_LAYOUT_H
#define CL_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CL_MAGIC "CULIMBO"
#define CL_LAYOUT_VERSION 5u

#define CL_PAGE 4096u
#define CL_SLOTS 1024u			   /* holders of one exporter's blocks, at most */
#define CL_WORDS (CL_SLOTS / 64u)	   /* holder words a record */
#define CL_RECORDS (1u << 20)		   /* live exports of one exporter, at most */
#define CL_CHUNK (CL_PAGE / 8u)		   /* records a chunk: one page of each holder word */
#define CL_CHUNKS (CL_RECORDS / CL_CHUNK)
#define CL_NO_RECORD UINT32_MAX

/*
 * The stamp, bytes 56 to 63 of a handle.  From its lowest bit on:
 *
 *  file id, 18 bits.  It is in the name of the exporter's file.  Its lower 14 bits are
 *     random, its upper 4 are part of the fingerprint.  All versions of culimbo have it
 *     here, so that each finds the other's file and sees that it is of another layout.
 *  record, 20 bits.
 *  generation, 16 bits, exclusive-or'ed with the file's salt.  The salt is random, so
 *     that a handle of an ended exporter does not fit a later one that has come to have
 *     the file id and the pid, and makes the driver's handle again.
 *  tag, 10 bits: the others of the fingerprint.
 *
 * The fingerprint is 14 bits of a hash of the file's place (the directory that it lies in, see
 * cl_place_of()) and of the 14 random bits.  An importer that finds no such file, in
 * a directory whose fingerprint is that of the stamp, knows that the exporter has ended or has
 * lost its file.  Of exporters elsewhere one in 8,192 looks so: two places are compared,
 * see cl_self_sight().
 */
#define CL_STAMP_FILE_BITS 18
#define CL_STAMP_RECORD_BITS 20
#define CL_STAMP_GENERATION_BITS 16
#define CL_STAMP_TAG_BITS 10
#define CL_GENERATIONS (1u << CL_STAMP_GENERATION_BITS)
#define CL_ID_RANDOM_BITS 14
#define CL_ID_PRINT_BITS (CL_STAMP_FILE_BITS - CL_ID_RANDOM_BITS)

/* Names a process beyond the reuse of its pid. */
struct cl_identity {
	uint32_t pid;	     /* as its own PID namespace counts */
	uint32_t time_ns;    /* inode of /proc/self/ns/time, which start_time depends on; 0: not known */
	uint64_t pid_ns;     /* inode of /proc/self/ns/pid; 0: not known */
	uint64_t start_time; /* field 22 of /proc/self/stat: clock ticks since boot */
};

enum cl_state {
	CL_FREE = 0,	 /* no export: any handle of it is stale */
	CL_EXPORTED = 1, /* the program has it */
	CL_LIMBO = 2,	 /* the program has freed it; the driver has not */
	CL_DYING = 3,	 /* the exporter is looking whether it may free it: ask again */
	CL_GONE = 4,	 /* the driver has freed it though it was held (context destroyed) */
};

enum cl_kind { CL_MEMORY = 1, CL_EVENT = 2 };

/* Where the counts of exports and opens of a record stop: from there on it means "so many or more". */
#define CL_MANY UINT16_MAX

struct cl_record {
	/* what an export again, a free and a release touch comes first: mostly one cache line */
	_Atomic uint64_t life;	   /* generation << 8 | state, so that one load reads both */
	_Atomic uint64_t exported; /* last export, CLOCK_MONOTONIC, ns */
	_Atomic uint64_t freed;	   /* by the program; 0: not */
	uint16_t exports;	   /* how often it was exported in this generation, at most CL_MANY */
	_Atomic uint16_t opens;	   /* how often it was opened in it, at most CL_MANY; see rule 1 */
	_Atomic uint8_t pinned;	   /* held by somebody we could not give a bit: never free it */
	uint8_t kind;		   /* enum cl_kind */
	uint8_t device;		   /* ordinal as its exporter counts */
	uint8_t unused;
	uint64_t base;		   /* device address, or the exporter's CUevent */
	uint64_t size;		   /* bytes */
	uint8_t handle[56];	   /* the driver's handle, but for its last 8 bytes, where the stamp goes */
	uint32_t export_stack;	   /* for the call stacks; 0: none */
	uint32_t free_stack;
};
/* with its word of holder bits and its ready bit, a block costs less than 128 bytes */
_Static_assert(sizeof(struct cl_record) == 112, "layout 5");
_Static_assert(CL_CHUNK * sizeof(struct cl_record) % CL_PAGE == 0, "a chunk of records is whole pages");

enum cl_slot_state { CL_SLOT_FREE = 0, CL_SLOT_CLAIMED = 1 };

struct cl_slot {
	/* epoch << 8 | state: each claim has an epoch of its own */
	_Atomic uint64_t claim;
	struct cl_identity who;	  /* valid when `known` is the claim's epoch */
	_Atomic uint32_t known;
	_Atomic uint32_t closing; /* record + 1 whose bit is being cleared; see cl_record_unhold */
	uint64_t since;		  /* CLOCK_MONOTONIC, ns */
	char name[16];		  /* for reports: what /proc/self/comm says */
};
_Static_assert(sizeof(struct cl_slot) == 64, "a slot is a cache line");

/*
 * Since when, by those who looked, the lock of a claimed slot has been free; 0: it was not.
 * One word, so that whose it is and since when cannot be of two writers: bits 48 to 63 are of
 * the claim's epoch, 40 to 47 of the time namespace whose clock it is (as the identity has it),
 * 0 to 39 the time, CLOCK_MONOTONIC in units of 2^20 ns, rounded up.
 */
#define CL_LOCK_FREE_EPOCH_SHIFT 48
#define CL_LOCK_FREE_TIME_BITS 40
#define CL_LOCK_FREE_UNIT_BITS 20

/* What a process notes because somebody should know of it. */
enum cl_finding_kind {
	CL_FOUND_NOTHING,
	CL_FOUND_FREED_TWICE,
	CL_FOUND_EXPORTED_AFTER_FREE,
	CL_FOUND_IMPORT_FREED,	     /* cuMemFree of an import */
	CL_FOUND_CLOSED_TWICE,
	CL_FOUND_STALE_REFUSED,	     /* by an importer: its handle's block was freed */
	CL_FOUND_EVENT_DESTROYED_TWICE,
	CL_FOUND_EVENT_FORCED_OUT,   /* destroyed before its importers were done: CULIMBO_MAX_EVENTS */
	CL_FOUND_HOLD_RECLAIMED,     /* by an exporter: its holder died without closing */
	CL_FOUND_HELD_FORCED_OUT,    /* given back though others mapped it: CULIMBO_HELD_BYTES */
	CL_FINDING_KINDS = 16,
};

/* A file that the code of some stack lies in, as it was mapped. */
struct cl_module {
	uint64_t start, end;	/* addresses */
	uint64_t bias;		/* address less this: as the file itself counts */
	uint8_t build_id[20];
	uint8_t build_id_length; /* 0: it has none */
	uint8_t unused[3];
	char path[208];		/* cut at the front, with "...", when longer */
};
_Static_assert(sizeof(struct cl_module) == 256, "layout 5");

/*
 * A stack is named by the index of its first word, never 0: how many frames
 * (bits 0 to 7), then so many return addresses, innermost first.  Equal stacks
 * are there once.
 *
 * One of another process, copied: the number is in bits 8 to 15, bits 0 to 7 are
 * 0; a frame's address is 48 bits, and above them is the index of its module + 1.
 * No address of this process leads to such a module: its start and end are 0.
 */
#define CL_STACK_FRAMES 64u /* at most */
#define CL_FOREIGN_SHIFT 8u
#define CL_FOREIGN_ADDRESS_BITS 48u
#define CL_FOREIGN_NO_MODULE 0xffffu

/* One thing that this process has open of another. */
struct cl_import_note {
	_Atomic uint64_t opens;	     /* not closed yet; 0: the entry is free */
	uint64_t key;		     /* device address, or the CUevent */
	uint64_t size;		     /* bytes; 0: not known, or an event */
	uint64_t since;		     /* first opened, CLOCK_MONOTONIC ns */
	uint32_t file_id, record, generation; /* file_id 0: unmanaged */
	uint32_t stack;		     /* of the first open */
	uint32_t exporter_pid;	     /* as its own PID namespace counts; 0: not known */
	uint8_t kind, device;	     /* ordinal as this process counts */
	uint8_t unused[10];
};
_Static_assert(sizeof(struct cl_import_note) == 64, "layout 5");

struct cl_finding {
	_Atomic uint32_t kind;	/* enum cl_finding_kind; written last */
	uint32_t pid;		/* of the other process, where there is one */
	uint64_t when;		/* CLOCK_MONOTONIC, ns */
	uint64_t key;		/* device address, or the CUevent */
	uint64_t size;
	uint32_t stack;		/* where it happened */
	uint32_t other_stack;	/* where what it clashes with had happened: the first free, the last close */
	uint32_t file_id, record, generation;
	uint8_t block_kind, device;
	uint8_t unused[2];
	uint64_t other_when;	/* of other_stack; 0: not known */
	char name[16];		/* of the other process */
	uint8_t unused2[48];
};
_Static_assert(sizeof(struct cl_finding) == 128, "layout 5");

/*
 * What lies in limbo of one device, for those who need memory of it.  Bytes are counted as
 * what a block may take of the device: whole pages of 2 MiB, for small blocks share pages,
 * and one of them keeps its page.  The exporter alone writes all but `asked` and
 * `needed_until`.
 */
struct cl_device_limbo {
	_Atomic uint64_t entered;  /* ever put into the limbo; only grows */
	_Atomic uint64_t returned; /* of these, what the driver has back; only grows */
	/* Of what is in the limbo: cannot go just now, whoever asks.  Held, or its stream has not got there. */
	_Atomic uint64_t waits;
	_Atomic uint32_t asked;	   /* how often others have asked for this device's memory */
	uint32_t unused;
	uint8_t uuid[16];	   /* as cuDeviceGetUuid says; written before `devices` counts it */
	/* CLOCK_MONOTONIC, ns: till then whoever asked may need what is freed, see cl_limbo_press() */
	_Atomic uint64_t needed_until;
	uint8_t unused2[8];
};
_Static_assert(sizeof(struct cl_device_limbo) == 64, "a device is a cache line");
#define CL_DEVICE_LIMBOS 32u
/* The one of all blocks whose device has no entry; who asks for its memory asks for that of all devices. */
#define CL_ANY_DEVICE 0u

struct cl_header {
	char magic[8];
	uint32_t layout, header_size, record_size, slot_size;
	uint32_t slots, records, chunk, file_id;
	uint64_t file_size;
	uint8_t boot_id[16]; /* zeros: not known */
	struct cl_identity exporter;
	uint32_t uid;
	uint16_t tag, salt;  /* of its stamps */
	uint64_t created;    /* CLOCK_REALTIME, ns */
	char command[128];    /* for reports: the start of its command line */
	uint64_t stamp_check; /* of file_id, tag and salt: see cl_stamp_check() */

	/* how far it has grown: only up */
	_Alignas(64) _Atomic uint32_t record_chunks;
	_Atomic uint32_t slots_used; /* slots from this one on were never claimed */
	_Atomic uint32_t slots_seen; /* only grows: modulo slots_used, the next to be looked at by who claims one */

	/* what lies in limbo: for tools, and so that others know whether asking pays */
	_Alignas(64) _Atomic uint64_t limbo_blocks;
	_Atomic uint64_t limbo_bytes;
	_Atomic uint64_t live_blocks; /* exported and not freed */

	/* the collector's bed: a futex that it sleeps on while `sleeping` */
	_Alignas(64) _Atomic uint32_t wake;
	_Atomic uint32_t sleeping;

	/*
	 * Somebody's allocation fails: first `asked` of the device goes up, then this one;
	 * `done` follows when it was served.
	 */
	_Alignas(64) _Atomic uint32_t pressure_asked;
	_Atomic uint32_t pressure_done; /* a futex */
	_Atomic uint32_t serving;	/* a collector runs, so asking pays */
	/* since when, by those who looked, the exporter's lock has been free; 0: it was not */
	_Atomic uint64_t exporter_lock_free;

	/* notes: how far each part has grown, only up; see CL_AT_MODULES */
	_Alignas(64) _Atomic uint32_t modules;	     /* entries */
	_Atomic uint32_t stack_words;		     /* words */
	_Atomic uint32_t imports;		     /* entries that were ever used */
	_Atomic uint32_t findings;		     /* entries */
	_Atomic uint32_t found[CL_FINDING_KINDS];    /* of each kind, also those that found no entry */

	uint64_t inode; /* of this very file, so that a copy in its place is told from it; 0: not known */
	uint64_t grace; /* its CULIMBO_GRACE, ns, for reports; set before its first record is used */

	/*
	 * Since when an ask has been without an answer, CLOCK_MONOTONIC, ns; 0: not known.  Who
	 * asks writes it where it is 0, and the exporter clears it: one that is stopped is
	 * waited for once, not by each who needs memory.
	 */
	_Alignas(64) _Atomic uint64_t unanswered;
	_Atomic uint32_t devices; /* entries of `device` in use, the first one with them; only grows */
	_Atomic uint32_t asked_all; /* how often all that could go was asked for, events too */
	_Alignas(64) struct cl_device_limbo device[CL_DEVICE_LIMBOS];
};
_Static_assert(sizeof(struct cl_header) <= CL_PAGE, "the header is a page");
_Static_assert(offsetof(struct cl_header, stamp_check) == 232, "layout 5");
_Static_assert(offsetof(struct cl_header, record_chunks) == 256, "layout 5");
_Static_assert(offsetof(struct cl_header, limbo_blocks) == 320, "layout 5");
_Static_assert(offsetof(struct cl_header, wake) == 384, "layout 5");
_Static_assert(offsetof(struct cl_header, pressure_asked) == 448, "layout 5");
_Static_assert(offsetof(struct cl_header, grace) == 600, "layout 5");
_Static_assert(offsetof(struct cl_header, unanswered) == 640, "layout 5");
_Static_assert(offsetof(struct cl_header, device) == 704, "layout 5");

/*
 * The ready map: bit [record] says that its last holder may have gone.  Two
 * levels above it say which words to look at.  Set from the bottom up, taken
 * from the top down, so that a bit that is not yet visible at the top is not
 * lost, only late; one whose setter is killed on the way is set again by the
 * reaper (the slot's `closing`).
 */
struct cl_ready_top {
	_Atomic uint64_t top[CL_RECORDS / 64 / 64 / 64];
	_Atomic uint64_t middle[CL_RECORDS / 64 / 64];
};

/* Where the parts lie in the file. */
#define CL_AT_HEADER 0u
#define CL_AT_WORD_PAGES (CL_AT_HEADER + CL_PAGE)
#define CL_AT_READY_TOP (CL_AT_WORD_PAGES + CL_WORDS * CL_CHUNKS / 8u)
#define CL_AT_SLOTS (CL_AT_READY_TOP + CL_PAGE)
#define CL_AT_LOCK_FREE (CL_AT_SLOTS + CL_SLOTS * 64u) /* a word a slot, see CL_LOCK_FREE_UNIT_BITS */
#define CL_AT_FIXED_END (CL_AT_LOCK_FREE + CL_SLOTS * 8u) /* all before this is there from the start */
#define CL_AT_READY CL_AT_FIXED_END
#define CL_AT_RECORDS (CL_AT_READY + CL_RECORDS / 8u)
#define CL_AT_HOLDERS (CL_AT_RECORDS + (uint64_t)CL_RECORDS * 112u)
/*
 * Notes: what reports tell beyond what safety needs.  Written by the file's own
 * process alone (an importer has a file too, for these), read by reports; no
 * hold, free or open is ever decided by them.  Grown like the rest: only what is
 * below the header's counts, or what fallocate() has got, is touched.
 */
#define CL_AT_MODULES (CL_AT_HOLDERS + (uint64_t)CL_WORDS * CL_RECORDS * 8u)
#define CL_AT_STACKS (CL_AT_MODULES + CL_MODULES * 256u)
#define CL_AT_IMPORTS (CL_AT_STACKS + CL_STACK_WORDS * 8u)
#define CL_AT_FINDINGS (CL_AT_IMPORTS + (uint64_t)CL_IMPORTS * 64u)
#define CL_FILE_SIZE (CL_AT_FINDINGS + CL_FINDINGS * 128u)
#define CL_MODULES 1024u		/* program and libraries that stacks lead through */
#define CL_STACK_WORDS (1u << 21)
#define CL_IMPORTS (1u << 20)
#define CL_FINDINGS 512u		/* the first ones; later ones are counted */
#define CL_READY_PAGE_CHUNKS (CL_PAGE * 8u / CL_CHUNK) /* chunks whose ready bits share a page */

_Static_assert(sizeof(struct cl_ready_top) <= CL_PAGE, "the ready map's upper levels are a page");
_Static_assert(CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS + CL_STAMP_GENERATION_BITS +
			       CL_STAMP_TAG_BITS == 64, "a stamp");
_Static_assert(1u << CL_STAMP_RECORD_BITS == CL_RECORDS, "a stamp names each record");
_Static_assert(CL_WORDS * CL_CHUNKS / 8u == CL_PAGE, "one page of holder page bits");

static inline uint64_t cl_life(uint64_t generation, enum cl_state state)
{
	return generation << 8 | (uint64_t)state;
}
static inline enum cl_state cl_life_state(uint64_t life)
{
	return (enum cl_state)(life & 0xff);
}
static inline uint32_t cl_life_generation(uint64_t life)
{
	return (uint32_t)(life >> 8);
}

struct cl_stamp {
	uint32_t file_id, record, generation, tag;
};
static inline uint64_t cl_mix(uint64_t v)
{
	v = (v ^ v >> 32) * 0x9e3779b97f4a7c15u;
	v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9u;
	return v ^ v >> 32;
}
/* The 14 bits of the fingerprint. */
static inline uint32_t cl_stamp_print(uint64_t place, uint32_t file_id)
{
	return (uint32_t)(cl_mix(place + (file_id & ((1u << CL_ID_RANDOM_BITS) - 1))) >>
			  (64 - CL_ID_PRINT_BITS - CL_STAMP_TAG_BITS));
}
/* A file id in @place, out of @random. */
static inline uint32_t cl_stamp_file_id(uint64_t place, uint32_t random)
{
	uint32_t id = random & ((1u << CL_ID_RANDOM_BITS) - 1);

	return id | (cl_stamp_print(place, id) >> CL_STAMP_TAG_BITS) << CL_ID_RANDOM_BITS;
}
static inline uint32_t cl_stamp_tag(uint64_t place, uint32_t file_id)
{
	return cl_stamp_print(place, file_id) & ((1u << CL_STAMP_TAG_BITS) - 1);
}
/* Whether the exporter's file lies in @place; 0, not known: no. */
static inline bool cl_stamp_is_of(struct cl_stamp s, uint64_t place)
{
	return place && cl_stamp_file_id(place, s.file_id) == s.file_id &&
	       cl_stamp_tag(place, s.file_id) == s.tag;
}
/* So that a damaged salt or tag does not make good handles stale. */
static inline uint64_t cl_stamp_check(uint32_t file_id, uint32_t tag, uint32_t salt)
{
	return cl_mix(cl_mix(file_id) + tag + ((uint64_t)salt << 32));
}
/* Never 0, since a file id is not. */
static inline uint64_t cl_stamp_pack(struct cl_stamp s)
{
	return (uint64_t)s.file_id | (uint64_t)s.record << CL_STAMP_FILE_BITS |
	       (uint64_t)s.generation << (CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS) |
	       (uint64_t)s.tag << (64 - CL_STAMP_TAG_BITS);
}
static inline struct cl_stamp cl_stamp_unpack(uint64_t v)
{
	return (struct cl_stamp){
		.file_id = v & ((1u << CL_STAMP_FILE_BITS) - 1),
		.record = v >> CL_STAMP_FILE_BITS & (CL_RECORDS - 1),
		.generation = (uint32_t)(v >> (CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS)) &
			      (CL_GENERATIONS - 1),
		.tag = (uint32_t)(v >> (64 - CL_STAMP_TAG_BITS)),
	};
}

#endif
