/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the directory of exporter files for the subcommands: which processes share,
 * what they share, and which processes hold it.
 *
 * It only reads, and trusts nothing.  A file that is damaged, of another version, or
 * cut while it is read gets a line that says so.  One file is mapped at a time, so
 * neither descriptors nor addresses limit the number of files.
 * The result is a snapshot; processes come and go meanwhile.
 */
#ifndef CU_SCAN_H
#define CU_SCAN_H

#include "shim/shm/view.h"
#include "tools/common/cli.h"
#include "tools/common/counters.h"
#include "tools/common/gpus.h"

/* An option for use beside CU_TABLE_OPTIONS. */
#define CU_DIR_OPTION                                                                 \
	{ "dir", CU_OPTION_DIR, "DIR",                                                \
	  "where exporter files are (default: CULIMBO_DIR, else /dev/shm/culimbo-UID)" }

/* A process that holds blocks of an exporter: a slot of its file. */
struct cu_holder {
	unsigned int slot;
	struct cl_identity who;
	char name[17];
	bool called_exec; /* not alive: its process runs another program now */
	bool alive;	/* false: dead or ending, and not yet reaped */
	uint64_t since; /* CLOCK_MONOTONIC ns */
	uint64_t holds, bytes;
	uint64_t pins, pin_bytes; /* of these, blocks of which cu_block_is_left() is true */
};

/* A process that shares, found by its own file or (file_id 0) by what it holds of others. */
struct cu_process {
	uint32_t file_id;
	int error;	 /* -errno if the file can't be read, with `why`; the rest is then 0 */
	const char *why;
	struct cl_identity who;
	char command[129];
	enum cl_liveness state;
	bool called_exec; /* its process runs another program now */
	bool collects;	   /* a thread of it gives freed blocks back */
	bool never_opened; /* none under culimbo opened any of its exports, older than its grace */
	bool has_user;	  /* --user was given */
	uint32_t user;
	bool elsewhere;	  /* in another PID namespace: its pid can't be looked up here */
	uint64_t age;	  /* of its file, or of its first open; ns */
	uint64_t created; /* CLOCK_REALTIME ns; 0: it has no file */
	uint64_t disk;	  /* bytes of its file */
	uint64_t blocks, bytes; /* exported, and not freed */
	uint64_t held, held_bytes; /* by others, freed or not */
	uint64_t limbo, limbo_bytes;
	uint64_t imported, imported_bytes;
	uint64_t pins, pin_bytes; /* of others, as those of struct cu_holder */
	struct cu_counters counters; /* all 0 without a file */
	struct cu_holder *holder;
	unsigned int holders;
};

struct cu_block {
	struct cl_view_block is;
	uint32_t process; /* index */
	uint32_t held_at, held; /* its holders: `held` entries of scan.held_by from `held_at` on */
	bool has_gpu;		/* its exporter noted the GPU */
	uint8_t gpu[16];	/* the UUID */
};

struct cu_left; /* left.h */

struct cu_scan {
	struct cu_process *process;
	size_t processes;
	struct cu_block *block; /* with CU_SCAN_BLOCKS */
	size_t blocks;
	uint16_t *held_by; /* indices into the holders of the block's process */
	size_t held_by_n;
	struct cu_left *left; /* memory of exporters that have ended, and have no file */
	size_t lefts, left_room;
	uint64_t now; /* CLOCK_MONOTONIC ns */
	struct cl_identity self;
	struct cu_gpus gpus; /* how much of each the limbos of living processes take */
};

enum { CU_SCAN_BLOCKS = 1 };

/*
 * Reads the options from the environment, with messages about bad ones.  If not NULL,
 * @dir replaces CULIMBO_DIR.  To be called once.
 */
void cu_directory_set(const struct cu_command *command, const char *dir);
/* Returns the path of the directory. */
const char *cu_directory(void);
/*
 * Opens the directory.  -ENOENT: it does not exist, so no process shares.  It has printed a
 * message for any other error.
 */
int cu_directory_open(const struct cu_command *command);

/*
 * Reads all files of directory @dirfd (< 0: none).  Returns 0 or -ENOMEM.  Free *scan in both
 * cases.
 */
int cu_scan(struct cu_scan *scan, int dirfd, int flags);
void cu_scan_free(struct cu_scan *scan);

/* Does all three; *status is the exit status if it returns false. */
bool cu_scan_all(const struct cu_command *command, struct cu_scan *scan, const char *dir, int flags,
		 int *status);

/*
 * Returns true if the holders of @block are all that keeps its memory from the driver: its exporter has freed or unmapped
 * it, its context has ended, or its exporter has died or called exec.  False if the driver has it back though they have it
 * open.  Whether it has holders is for the caller to ask.
 */
bool cu_block_is_left(const struct cl_view_block *block, const struct cu_process *exporter);

/* Return words for people. */
const char *cu_state_word(const struct cu_process *process);
const char *cu_liveness_word(enum cl_liveness state);
const char *cu_holder_word(const struct cu_holder *holder);
const char *cu_class_word(enum cl_view_class class);
/* Returns what else to say about it; "" for nothing. */
const char *cu_process_note(const struct cu_process *process);
/* Formats "exporter-0a1b2c", or "-". */
void cu_file_word(char to[16], uint32_t file_id);

/* Formats "0a1b2c:17" into @to of 32 bytes. */
void cu_block_id(char *to, uint32_t file_id, uint32_t record);
/* Say on stderr that no process shares, and which files could not be read. */
void cu_note_nobody(void);
void cu_note_unread(const struct cu_command *command, const struct cu_scan *scan);
/* Parses a number of digits only, 0 to 2^32 - 1.  Returns false if it is none. */
bool cu_number(const char *text, long long *number);
/* Parses a time to wait: 500ms, 2s, 1m, up to an hour; a number without unit is seconds. */
bool cu_read_wait(const char *text, uint64_t *ns);

/*
 * Runs @look, which reads a mapped file.  Returns false if the file was cut meanwhile
 * (SIGBUS).  What @look had allocated is then lost.
 */
bool cu_guarded(void (*look)(void *data), void *data);
/* cl_view_open() and cl_region_open() for a file that may be cut meanwhile. */
int cu_view_open(struct cl_view *view, int dirfd, uint32_t file_id, const char **why);
int cu_region_open(struct cl_region *region, int dirfd, uint32_t file_id, const char **why);

#endif
