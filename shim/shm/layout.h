/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter file: what lies where in the shared memory, and its rules.
 *
 * Each process that exports or imports has one file, an importer for reports alone.  It and its
 * importers map the file; the culimbo command reads it.  Each may change what it writes at any
 * time, and may be killed between any two instructions.  So:
 *
 *  1. Who writes what.  The exporter alone writes records (all but `opens` and `pinned`) and what
 *     the header counts of them, and clears ready bits.  An importer writes its slot, its own bit in
 *     the holder words, bits of `word_pages`, ready bits, `slots_used`, `slots_seen`, the words by which it asks
 *     for something (`wake`, those of pressure), and since when the lock of another process has
 *     been free (CL_LOCK_FREE_UNIT_BITS).  The exporter sets one bit in a slot: CL_TOLD_BY_EXPORTER.
 *     An importer adds to `opens` before it sets its bit: whoever sees the bit sees that it opened.
 *     The exporter sets `opens` to 0 with each new generation.  An importer whose handle is
 *     stale may add to the next generation's count.  So `opens` decides only which block goes
 *     first where one must go, never whether a block may go.
 *     A reaper, with the byte lock of a dead slot, acts for the dead importer.  A program that finds a slot
 *     which its process had before an exec marks that as left.
 *
 *  2. A hold is one bit, holder word [slot / 64][record], bit slot % 64.  One atomic instruction
 *     sets it, one clears it.  The number of holders is counted from the bits, never stored.  Two
 *     bits cannot be confused, so there is nothing to repair after a kill: a reaper clears the
 *     dead importer's bits, then frees its slot.  In this order, a killed reaper's work is done
 *     by the next one.
 *
 *  3. Open against free.  The importer sets its bit, makes a full fence, and reads the record's
 *     state.  The exporter writes DYING, makes a full fence, and reads the holder words.  At
 *     least one of the two sees what the other wrote (hazard pointers).  The importer
 *     proceeds only if the state is EXPORTED or LIMBO of its generation; the exporter only if no
 *     bit was set.
 *
 *  4. Memory before use.  The file is sparse and as long as it can ever get.  A process touches
 *     only those parts for which fallocate() has got memory, so that a full file system is an
 *     error return, never SIGBUS.  These are: all that lies before the ready bits, from the
 *     start; record chunks below `record_chunks`, with their ready bits; and holder pages with their
 *     bit in `word_pages`.  These only ever grow.  The parts for reports have memory as far as the
 *     exporter remembers for itself, and other processes read them by pread().
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
#define CL_LAYOUT_VERSION 9u

#define CL_PAGE 4096u
#define CL_SLOTS 1024u			   /* holders of one exporter's blocks, at most */
#define CL_WORDS (CL_SLOTS / 64u)	   /* holder words a record */
#define CL_RECORDS (1u << 20)		   /* that a file has room for */
#define CL_CHUNK (CL_PAGE / 8u)		   /* records a chunk: one page of each holder word */
#define CL_CHUNKS (CL_RECORDS / CL_CHUNK)
#define CL_NO_RECORD UINT32_MAX

/*
 * The stamp, 64 bits of a handle (handle.h says which).  From its lowest bit on:
 *
 *  file id, 18 bits.  It is in the name of the exporter's file.  Its lower 14 bits are
 *     random, its upper 4 are part of the fingerprint.  All versions of culimbo have it
 *     here, so that each finds the other's file and sees that its layout is another.  (Layouts before 9, of
 *     which there was no release, had the stamp of memory elsewhere in the handle.)
 *  record, 20 bits.  One of the first 256 records is 13 bits: its number, and 7 bits more of the
 *     fingerprint below it.  The others follow.  In all there are 1,016,064 records.
 *  generation, 16 bits, exclusive-or'ed with the file's salt.  The salt is random, so that a
 *     handle of an ended exporter does not fit a later one that happens to have the same file
 *     id and pid, and to make the same driver's handle.
 *  tag, 10 bits: the rest of the fingerprint.
 *
 * The fingerprint is 14 bits, or 21, of a hash of the file's place (its directory and the machine's
 * boot, see cl_place_of()) and of the 14 random bits.  An importer may find no such file in a directory
 * whose fingerprint is that of the stamp: then the exporter has ended or has lost its file.  Of the
 * stamps of exporters elsewhere one in 1,048,576 looks the same (one in 8,192 beyond the first 256
 * records), since two places are compared: see cl_self_sight().  64 bits have no room for more.  A good
 * handle that looks so is refused if its exporter is in another PID namespace, too: it cannot be told
 * from a stale one of an exporter that was in this directory and has ended, and the driver may map
 * another process's block for that.
 */
#define CL_STAMP_FILE_BITS 18
#define CL_STAMP_RECORD_BITS 20
#define CL_STAMP_GENERATION_BITS 16
#define CL_STAMP_TAG_BITS 10
#define CL_STAMP_MORE_BITS 7
#define CL_STAMP_FEW 256u /* records whose stamps have these bits */
#define CL_STAMP_RECORDS (CL_RECORDS - (CL_STAMP_FEW << CL_STAMP_MORE_BITS) + CL_STAMP_FEW) /* live exports, at most */
#define CL_GENERATIONS (1u << CL_STAMP_GENERATION_BITS)
#define CL_ID_RANDOM_BITS 14
#define CL_ID_FINGERPRINT_BITS (CL_STAMP_FILE_BITS - CL_ID_RANDOM_BITS)

/* Identifies a process, also after its pid is reused, and the program that it runs. */
struct cl_identity {
	uint32_t pid;	     /* as its own PID namespace counts */
	uint32_t time_ns;    /* inode of /proc/self/ns/time, which start_time depends on; 0: not known */
	uint32_t pid_ns;     /* inode of /proc/self/ns/pid; 0: not known */
	uint32_t image;	     /* of the program: made of the time when it was first asked for; 0: not known */
	uint64_t start_time; /* field 22 of /proc/self/stat: clock ticks since boot */
};

enum cl_state {
	CL_FREE = 0,	 /* not exported: every handle of it is stale */
	CL_EXPORTED = 1, /* the program has it */
	CL_LIMBO = 2,	 /* the program has freed it; the driver has not */
	CL_DYING = 3,	 /* the exporter is finding out whether it may free it: importers ask again for a while */
	/*
	 * the driver has freed it although it was held: its context ended, or see .given_back; or the program has
	 * unmapped it (virtual memory)
	 */
	CL_ORPHANED = 4,
};

/*
 * A block of a pool, shared by a pointer, is a kind of its own: its handle is export data, and its
 * importers close it by a free.  So is an allocation of virtual memory: its handle is ours
 * (virtual_handle.h), and CUDA keeps its bytes as long as somebody maps them.
 */
enum cl_kind { CL_MEMORY = 1, CL_EVENT = 2, CL_POOL = 3, CL_VIRTUAL = 4, CL_KINDS };

/* Why the driver has freed a block before its holders were done, when its context had not ended. */
enum cl_given_back {
	CL_FORCED_OUT = 1,    /* its exporter gave it back: CULIMBO_HELD_BYTES; an event, which stays in LIMBO: CULIMBO_MAX_EVENTS */
	CL_FREED_OBSERVED = 2 /* its program freed it under CULIMBO_MODE=observe */
};

/* The counts of exports and opens of a record stop at this number, which means "so many or more". */
#define CL_MANY UINT16_MAX

struct cl_record {
	/* what an export again, a free and a release touch is first: mostly one cache line */
	_Atomic uint64_t life;	   /* generation << 8 | state, so that one load reads both */
	_Atomic uint64_t exported; /* last export, CLOCK_MONOTONIC, ns */
	_Atomic uint64_t freed;	   /* by the program; 0: not */
	uint16_t exports;	   /* how often it was exported in this generation, at most CL_MANY */
	_Atomic uint16_t opens;	   /* how often it was opened in it, at most CL_MANY; see rule 1 */
	_Atomic uint8_t pinned;	   /* an importer without a bit has it: never free it */
	uint8_t kind;		   /* enum cl_kind */
	uint8_t device;		   /* ordinal as its exporter counts */
	/*
	 * Of what is ORPHANED: enum cl_given_back; 0: its context ended, or the program has unmapped it.
	 * Of an event in LIMBO: the same; 0: the driver has not got it back.
	 */
	uint8_t given_back;
	uint64_t base;		   /* device address, or the exporter's CUevent */
	uint64_t size;		   /* bytes */
	uint8_t handle[56];	   /* the driver's handle without a stamp, and without its last 8 bytes; see pool_data.h */
	uint32_t export_stack;	   /* see CL_STACK_FRAMES; 0: none */
	_Atomic uint32_t free_stack;
};
/* with its word of holder bits and its ready bit, a block costs less than 128 bytes */
_Static_assert(sizeof(struct cl_record) == 112, "layout 9");
_Static_assert(CL_CHUNK * sizeof(struct cl_record) % CL_PAGE == 0, "a chunk of records is whole pages");

/*
 * For reports: which side, holder or exporter, has listed in its report at exit all that the slot's process
 * had open.  The other side then does not report the same again.  An older culimbo clears these bits at each
 * claim and never sets them.
 */
enum cl_told { CL_TOLD_BY_HOLDER = 1, CL_TOLD_BY_EXPORTER = 2 };

enum cl_slot_state {
	CL_SLOT_FREE = 0,
	CL_SLOT_CLAIMED = 1,
	/*
	 * claimed by a program that has called exec, as the next one of its process says, which maps the file again.  It is
	 * dead, but a process that it forked may keep its contexts alive.
	 */
	CL_SLOT_LEFT = 2,
};

struct cl_slot {
	/* epoch << 8 | state: each claim has its own epoch */
	_Atomic uint64_t claim;
	struct cl_identity who;	  /* valid if `known` is the claim's epoch */
	_Atomic uint32_t known;
	_Atomic uint32_t closing; /* record + 1 whose bit is being cleared; see cl_record_unhold */
	uint64_t since;		  /* CLOCK_MONOTONIC, ns */
	char name[15];		  /* for reports: what /proc/self/comm says; a name of 15 bytes has no 0 at its end */
	_Atomic uint8_t told;	  /* bits of enum cl_told */
};
_Static_assert(sizeof(struct cl_slot) == 64, "a slot is a cache line");

/*
 * For each claimed slot, since when its lock has been free, as far as the processes know that
 * looked at it; 0: it was not free.  It is one word, so that a reader never combines one writer's
 * slot with another's time.  Bits 48 to 63 are of the claim's epoch, 40 to 47 of the time
 * namespace whose clock it is (from the identity), 0 to 39 the time, CLOCK_MONOTONIC in units of
 * 2^20 ns, rounded up.
 */
#define CL_LOCK_FREE_EPOCH_SHIFT 48
#define CL_LOCK_FREE_TIME_BITS 40
#define CL_LOCK_FREE_UNIT_BITS 20

/* What a finding is of: misuse, or something else that a user should know. */
enum cl_finding_kind {
	CL_FINDING_NONE,
	CL_FINDING_FREED_TWICE,
	CL_FINDING_EXPORTED_AFTER_FREE,
	CL_FINDING_IMPORT_FREED,	     /* cuMemFree of an import */
	CL_FINDING_CLOSED_TWICE,
	CL_FINDING_STALE_REFUSED,	     /* by an importer: the block of its handle was freed */
	CL_FINDING_EVENT_DESTROYED_TWICE,
	CL_FINDING_EVENT_FORCED_OUT,   /* destroyed although importers had it: CULIMBO_MAX_EVENTS */
	CL_FINDING_HOLD_RECLAIMED,     /* by an exporter: a holder died without closing */
	CL_FINDING_HELD_FORCED_OUT,    /* given back although others mapped it: CULIMBO_HELD_BYTES */
	CL_FINDING_FREED_WHILE_MAPPED, /* by an exporter: another process had it open (CULIMBO_STRICT, or virtual memory) */
	CL_FINDING_OPENED_AFTER_FREE,  /* by an importer: its exporter had freed it (CULIMBO_STRICT, or CULIMBO_MODE=observe) */
	CL_FINDING_REFUSED,	     /* a note: memory was not shared or not opened, by CUDA or culimbo */
	CL_FINDING_DESCRIPTOR,	     /* a note: the program shared memory by a descriptor or fabric handle */
	CL_FINDING_KINDS = 16,
};
/* Notes are no findings: nobody need do anything, and they count as nothing wrong. */
static inline bool cl_finding_is_note(uint32_t kind)
{
	return kind >= CL_FINDING_REFUSED;
}

/* How the memory of a note was made, as far as the driver says. */
enum cl_made {
	CL_MADE_UNKNOWN,	/* the driver knows no memory at that address */
	CL_MADE_ALLOC,		/* cuMemAlloc: CUDA shares it by legacy handles */
	CL_MADE_VIRTUAL,	/* cuMemCreate, with a type of handle to share it by */
	CL_MADE_VIRTUAL_ALONE,	/* cuMemCreate, without one: it can't be shared at all */
	CL_MADE_POOL,		/* stream-ordered: cuMemAllocAsync, cuMemAllocFromPoolAsync */
	CL_MADE_MANAGED,
	CL_MADE_HOST,
	CL_MADE_IMPORT,		/* another process has made it */
	CL_MADE_OTHER,		/* device memory of another kind: of a module, a graph, another API */
	CL_MADE_KINDS,
};

/* What a note of a refusal says besides the driver's result. */
enum cl_why {
	CL_WHY_RESULT_ALONE,
	CL_WHY_ARGUMENTS,    /* of an open: its flags, or where its result was to go, and not its handle */
	/* of a handle: the process had CULIMBO_SHARE=all, and yet got none */
	CL_WHY_ALL,
	CL_WHY_ALL_OBSERVES, /* under CULIMBO_MODE=observe */
	CL_WHY_ALL_OLD,	     /* on a driver that is asked for descriptors only by force */
	CL_WHYS,
};

/* The call that a note is of.  Behind each that shares by a descriptor is the one by a fabric handle. */
enum cl_call {
	CL_CALL_GET_HANDLE,  /* cuIpcGetMemHandle */
	CL_CALL_OPEN_HANDLE, /* cuIpcOpenMemHandle */
	CL_CALL_EXPORT,	     /* cuMemExportToShareableHandle */
	CL_CALL_EXPORT_FABRIC,
	CL_CALL_IMPORT,	     /* cuMemImportFromShareableHandle */
	CL_CALL_IMPORT_FABRIC,
	CL_CALL_POOL_EXPORT, /* cuMemPoolExportToShareableHandle */
	CL_CALL_POOL_EXPORT_FABRIC,
	CL_CALL_POOL_IMPORT, /* cuMemPoolImportFromShareableHandle */
	CL_CALL_POOL_IMPORT_FABRIC,
	CL_CALLS,
};

static inline bool cl_call_is_by_descriptor(uint32_t call)
{
	return call >= CL_CALL_EXPORT && call < CL_CALLS;
}
static inline bool cl_call_is_by_fabric(uint32_t call)
{
	return cl_call_is_by_descriptor(call) && call % 2;
}
static inline bool cl_call_is_import(uint32_t call)
{
	return call == CL_CALL_IMPORT || call == CL_CALL_IMPORT_FABRIC || call == CL_CALL_POOL_IMPORT ||
	       call == CL_CALL_POOL_IMPORT_FABRIC;
}

#define CL_NO_DEVICE 0xff /* memory of the host; of a note or an import also: the device is not known, or has no number here */

/* A mapped file, of the program or a library, that has code of some stack. */
struct cl_module {
	uint64_t start, end;	/* addresses */
	uint64_t bias;		/* subtracted from an address, gives the address in the file */
	uint8_t build_id[20];
	uint8_t build_id_length; /* 0: it has none */
	uint8_t unused[3];
	char path[208];		/* cut at the front, with "...", when longer */
};
_Static_assert(sizeof(struct cl_module) == 256, "layout 9");

/*
 * A stack is named by the index of its first word, never 0.  That word has the number of
 * frames in bits 0 to 7; as many return addresses follow, innermost first.  Equal stacks are
 * stored once.
 *
 * A stack that was copied from another process has its number of frames in bits 8 to 15, and
 * bits 0 to 7 are 0.  A frame's address is 48 bits, and the bits above them are the index of
 * its module + 1.  Such a module has start and end 0, so that no address of this process
 * leads to it.
 */
#define CL_STACK_FRAMES 64u /* at most */
#define CL_FOREIGN_SHIFT 8u
#define CL_FOREIGN_ADDRESS_BITS 48u
#define CL_FOREIGN_NO_MODULE 0xffffu
/*
 * A stack may have Python frames besides: bits 16 to 23 of its first word are their number, and
 * behind the return addresses follows a word for each, innermost first: bits 0 to 31 are the index
 * of the first word of its text, bits 32 to 63 its line, 0 if that is not known.  Bit 24: the thread
 * may have run Python, and its frames could not be read.
 *
 * Bit 25: the outermost frame is the program's _start, so main() and the C library lead to it.
 *
 * A text lies among the stacks.  Of its first word, bits 0 to 15 are 0, so that it is no stack;
 * bits 16 to 31 are the number of words that follow, with the function's name in UTF-8 and
 * then the file's; bits 32 to 47 and 48 to 63 are the bytes of the two.  Equal texts are stored once.
 *
 * A reader that does not know Python frames sees the same stacks without them.
 */
#define CL_PYTHON_FRAMES 32u /* at most */
#define CL_PYTHON_TEXT 255u  /* bytes of a name */
#define CL_PYTHON_SHIFT 16u
#define CL_PYTHON_UNREAD (1u << 24)
#define CL_STACK_FROM_START (1u << 25)
#define CL_TEXT_WORDS_SHIFT 16u
#define CL_TEXT_FUNCTION_SHIFT 32u
#define CL_TEXT_FILE_SHIFT 48u

/* An entry of the import log: one import that this process has open. */
struct cl_import_entry {
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
_Static_assert(sizeof(struct cl_import_entry) == 64, "layout 9");

struct cl_finding {
	_Atomic uint32_t kind;	/* enum cl_finding_kind; written last */
	uint32_t pid;		/* of the other process, where there is one; of a note about several, 0 */
	uint64_t when;		/* CLOCK_MONOTONIC, ns */
	uint64_t key;		/* device address, or the CUevent */
	uint64_t size;
	uint32_t stack;		/* where it happened */
	uint32_t other_stack;	/* of what it clashes with: the first free, the last close */
	uint32_t file_id, record, generation;
	uint8_t block_kind, device;
	uint8_t made, call;	/* of a note: enum cl_made, enum cl_call; .made also of a block freed while mapped */
	uint64_t other_when;	/* when what it clashes with happened; 0: not known */
	char name[16];		/* of the other process */
	uint64_t until;		/* of a block freed while mapped: when its last holder closed it; 0: not known */
	/* of a note, which counts what happened again at the same place; its `key`, `size` and `when` are of the first time */
	_Atomic uint64_t times; /* how often it happened; 0 in findings, each of which happened once */
	_Atomic uint64_t bytes; /* the sum of their sizes */
	uint32_t result;	/* of a refusal, and of an open after the free: the driver's CUresult */
	uint8_t exporter_gone;	/* of a stale handle: its exporter had ended, and need not have freed the block */
	uint8_t told;		/* of a hold that was taken back: its process had reported it */
	uint8_t why;		/* of a refusal: enum cl_why */
	uint8_t unused[17];
};
_Static_assert(sizeof(struct cl_finding) == 128, "layout 9");

/*
 * What one device has in the limbo, for processes that need its memory.  A block counts as
 * what it may take of the device: whole pages of 2 MiB, since small blocks share pages and
 * each of them keeps its page.  The exporter alone writes all but `asked` and `needed_until`.
 */
struct cl_device_limbo {
	_Atomic uint64_t entered;  /* bytes that were ever put into the limbo; only grows */
	_Atomic uint64_t returned; /* of these, bytes that went back to the driver; only grows */
	/* bytes in the limbo that cannot go yet, whoever asks: held, or behind a fence */
	_Atomic uint64_t waits;
	_Atomic uint32_t asked;	   /* how often others have asked for this device's memory */
	uint32_t ordinal;	   /* + 1, as its exporter counts; 0: not known */
	uint8_t uuid[16];	   /* from cuDeviceGetUuid; written before `devices` counts it */
	/* CLOCK_MONOTONIC, ns: until then the asker may need what is freed, see cl_limbo_press() */
	_Atomic uint64_t needed_until;
	uint8_t unused2[8];
};
_Static_assert(sizeof(struct cl_device_limbo) == 64, "a device is a cache line");
#define CL_DEVICE_LIMBOS 32u
/* The entry for all devices without one.  A process that asks for memory of such a device asks for all. */
#define CL_ANY_DEVICE 0u
#define CL_LIVE_ROOM 16u

/*
 * What lies before `command` lies there in all versions, and byte CL_LOCK_EXPORTER is locked by each
 * version's exporter: so each takes away the files that dead processes of the others have left.
 */
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

	/* how far the file has grown: these only grow */
	_Alignas(64) _Atomic uint32_t record_chunks;
	_Atomic uint32_t slots_used; /* slots from this one on were never claimed */
	_Atomic uint32_t slots_seen; /* only grows; modulo slots_used: where a claimant looks next */

	/* what lies in the limbo: for tools, and so that others know whether asking pays */
	_Alignas(64) _Atomic uint64_t limbo_blocks;
	_Atomic uint64_t limbo_bytes;
	_Atomic uint64_t live_blocks; /* exported and not freed */

	/* the futex that the collector sleeps on, and whether it does */
	_Alignas(64) _Atomic uint32_t wake;
	_Atomic uint32_t sleeping;

	/*
	 * A process whose allocation fails adds to `asked` of the device, then to this word;
	 * `pressure_done` follows it when that was served.
	 */
	_Alignas(64) _Atomic uint32_t pressure_asked;
	_Atomic uint32_t pressure_done; /* a futex */
	_Atomic uint32_t serving;	/* a collector runs, so asking pays */
	/* since when the exporter's lock has been free, by those who looked; 0: it was not */
	_Atomic uint64_t exporter_lock_free;

	/* how far the parts for reports have grown, only up; see CL_AT_MODULES */
	_Alignas(64) _Atomic uint32_t modules;	     /* entries */
	_Atomic uint32_t stack_words;		     /* words */
	_Atomic uint32_t imports;		     /* entries that were ever used */
	_Atomic uint32_t findings;		     /* entries */
	_Atomic uint32_t finding_counts[CL_FINDING_KINDS]; /* how often each kind was found; an entry may be missing */

	uint64_t inode; /* of this file, so that a copy put in its place is noticed; 0: not known */
	uint64_t grace; /* its CULIMBO_GRACE, ns, for reports; set before its first record is used */

	/*
	 * Since when nobody has answered those who ask, CLOCK_MONOTONIC, ns; 0: not known.  An
	 * asker writes it where it is 0, and the exporter clears it.  So a stopped exporter is
	 * waited for once, and not by each process that needs memory.
	 */
	_Alignas(64) _Atomic uint64_t unanswered;
	_Atomic uint32_t devices; /* entries of `device` in use, with CL_ANY_DEVICE; only grows */
	_Atomic uint32_t asked_all; /* how often all that could go was asked for, events too */
	_Alignas(64) struct cl_device_limbo device[CL_DEVICE_LIMBOS];

	_Atomic uint64_t live[CL_LIVE_ROOM]; /* counts for others to read; not in header_size: see live.h */
};
_Static_assert(sizeof(struct cl_header) <= CL_PAGE, "the header is a page");
_Static_assert(offsetof(struct cl_header, exporter) == 64, "all layouts");
_Static_assert(offsetof(struct cl_header, created) == 96, "all layouts");
_Static_assert(offsetof(struct cl_header, stamp_check) == 232, "layout 9");
_Static_assert(offsetof(struct cl_header, record_chunks) == 256, "layout 9");
_Static_assert(offsetof(struct cl_header, limbo_blocks) == 320, "layout 9");
_Static_assert(offsetof(struct cl_header, wake) == 384, "layout 9");
_Static_assert(offsetof(struct cl_header, pressure_asked) == 448, "layout 9");
_Static_assert(offsetof(struct cl_header, grace) == 600, "layout 9");
_Static_assert(offsetof(struct cl_header, unanswered) == 640, "layout 9");
_Static_assert(offsetof(struct cl_header, device) == 704, "layout 9");
_Static_assert(offsetof(struct cl_header, live) == 2752, "layout 9");
#define CL_HEADER_SIZE 2752u /* what header_size says */

/*
 * The ready map.  Bit [record] says that the record's last holder may have gone; the two
 * levels above say which words to look at.  Bits are set from the bottom up and taken from the
 * top down, so that a bit that is not yet visible at the top is late, not lost.  If its setter
 * is killed on the way, the reaper sets it again (`closing` of the slot).
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
#define CL_AT_FIXED_END (CL_AT_LOCK_FREE + CL_SLOTS * 8u) /* all before this has memory from the start */
#define CL_AT_READY CL_AT_FIXED_END
#define CL_AT_RECORDS (CL_AT_READY + CL_RECORDS / 8u)
#define CL_AT_HOLDERS (CL_AT_RECORDS + (uint64_t)CL_RECORDS * 112u)
/*
 * The part for reports: modules, stacks, the import log and findings.  Only the file's own
 * process writes it (an importer has a file, too, for this), and reports read it.  No hold, free
 * or open is ever decided by it.  It grows like the rest: only what lies below the header's
 * counts, or what fallocate() has got, is touched.
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
	uint32_t more; /* of the first CL_STAMP_FEW records, else not used */
};
static inline uint64_t cl_mix(uint64_t v)
{
	v = (v ^ v >> 32) * 0x9e3779b97f4a7c15u;
	v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9u;
	return v ^ v >> 32;
}
/* The 14 bits of the fingerprint of a file in @place. */
static inline uint32_t cl_stamp_fingerprint(uint64_t place, uint32_t file_id)
{
	return (uint32_t)(cl_mix(place + (file_id & ((1u << CL_ID_RANDOM_BITS) - 1))) >>
			  (64 - CL_ID_FINGERPRINT_BITS - CL_STAMP_TAG_BITS));
}
/* Makes a file id in @place out of 14 bits of @random. */
static inline uint32_t cl_stamp_file_id(uint64_t place, uint32_t random)
{
	uint32_t id = random & ((1u << CL_ID_RANDOM_BITS) - 1);

	return id | (cl_stamp_fingerprint(place, id) >> CL_STAMP_TAG_BITS) << CL_ID_RANDOM_BITS;
}
static inline uint32_t cl_stamp_tag(uint64_t place, uint32_t file_id)
{
	return cl_stamp_fingerprint(place, file_id) & ((1u << CL_STAMP_TAG_BITS) - 1);
}
static inline uint32_t cl_stamp_more(uint64_t place, uint32_t file_id)
{
	return (uint32_t)(cl_mix(place + (file_id & ((1u << CL_ID_RANDOM_BITS) - 1))) >>
			  (64 - CL_ID_FINGERPRINT_BITS - CL_STAMP_TAG_BITS - CL_STAMP_MORE_BITS)) &
	       ((1u << CL_STAMP_MORE_BITS) - 1);
}
/* Returns true if @s is of a file in @place; false if not, and for place 0 (not known). */
static inline bool cl_stamp_is_of(struct cl_stamp s, uint64_t place)
{
	return place && cl_stamp_file_id(place, s.file_id) == s.file_id &&
	       cl_stamp_tag(place, s.file_id) == s.tag &&
	       (s.record >= CL_STAMP_FEW || cl_stamp_more(place, s.file_id) == s.more);
}
/* A check over what stamps are made of: a damaged salt or tag must not make good handles stale. */
static inline uint64_t cl_stamp_check(uint32_t file_id, uint32_t tag, uint32_t salt)
{
	return cl_mix(cl_mix(file_id) + tag + ((uint64_t)salt << 32));
}
/* Never returns 0, since no file id is 0. */
static inline uint64_t cl_stamp_pack(struct cl_stamp s)
{
	uint32_t record = s.record < CL_STAMP_FEW ? s.record << CL_STAMP_MORE_BITS | s.more :
						    s.record + CL_RECORDS - CL_STAMP_RECORDS;

	return (uint64_t)s.file_id | (uint64_t)(record & (CL_RECORDS - 1)) << CL_STAMP_FILE_BITS |
	       (uint64_t)s.generation << (CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS) |
	       (uint64_t)s.tag << (64 - CL_STAMP_TAG_BITS);
}
static inline struct cl_stamp cl_stamp_unpack(uint64_t v)
{
	uint32_t record = v >> CL_STAMP_FILE_BITS & (CL_RECORDS - 1);
	bool few = record < CL_STAMP_FEW << CL_STAMP_MORE_BITS;

	return (struct cl_stamp){
		.file_id = v & ((1u << CL_STAMP_FILE_BITS) - 1),
		.record = few ? record >> CL_STAMP_MORE_BITS : record - (CL_RECORDS - CL_STAMP_RECORDS),
		.more = few ? record & ((1u << CL_STAMP_MORE_BITS) - 1) : 0,
		.generation = (uint32_t)(v >> (CL_STAMP_FILE_BITS + CL_STAMP_RECORD_BITS)) &
			      (CL_GENERATIONS - 1),
		.tag = (uint32_t)(v >> (64 - CL_STAMP_TAG_BITS)),
	};
}

#endif
