/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of exporter files, as the subcommands see it: who shares, what,
 * and who holds it.
 *
 * Reads only, and believes nothing: a file that is damaged, of another version,
 * or cut while it is read costs a line that says so.  One file is mapped at a
 * time, so that neither descriptors nor addresses limit how many there may be.
 * What is found is a snapshot; processes come and go meanwhile.
 */
#ifndef CU_SCAN_H
#define CU_SCAN_H

#include "shim/shm/view.h"
#include "tools/common/cli.h"
#include "tools/common/counters.h"
#include "tools/common/gpus.h"

/* To stand beside CU_TABLE_OPTIONS. */
#define CU_DIR_OPTION                                                                 \
	{ "dir", CU_OPTION_DIR, "DIR",                                                \
	  "where exporter files are (default: CULIMBO_DIR, else /dev/shm/culimbo-UID)" }

/* Who holds blocks of an exporter: a slot of its file. */
struct cu_holder {
	unsigned int slot;
	struct cl_identity who;
	char name[17];
	bool alive;	/* false: dead or ending, and not yet reaped */
	uint64_t since; /* CLOCK_MONOTONIC ns */
	uint64_t holds, bytes;
	uint64_t pins, pin_bytes; /* of these, blocks that their exporter has freed, or that it left when it died */
};

/* One that shares: by its own file, or (file_id 0) by what it holds of others. */
struct cu_process {
	uint32_t file_id;
	int error;	 /* the file can't be read: -errno, and why; then all else is 0 */
	const char *why;
	struct cl_identity who;
	char command[129];
	enum cl_liveness state;
	bool never_opened; /* for longer than its grace it exports, and nobody under culimbo has opened any of it */
	bool has_user;	  /* it was asked for with --user */
	uint32_t user;
	bool elsewhere;	  /* in another PID namespace: its pid is not ours to look up */
	uint64_t age;	  /* of its file, or of its first open; ns */
	uint64_t created; /* CLOCK_REALTIME ns; 0: it has no file */
	uint64_t disk;	  /* bytes that its file takes */
	uint64_t blocks, bytes; /* exported, and not freed */
	uint64_t held, held_bytes; /* by others, freed or not */
	uint64_t limbo, limbo_bytes;
	uint64_t imported, imported_bytes;
	uint64_t pins, pin_bytes; /* blocks of others, freed or left by the dead, whose memory it alone or with others keeps */
	struct cu_counters counters; /* all 0 without a file */
	struct cu_holder *holder;
	unsigned int holders;
};

struct cu_block {
	struct cl_view_block is;
	uint32_t process; /* index */
	uint32_t held_at, held; /* its holders: so many from there in scan.held_by */
	bool has_gpu;		/* its exporter has said whose memory it is */
	uint8_t gpu[16];	/* the UUID */
};

struct cu_scan {
	struct cu_process *process;
	size_t processes;
	struct cu_block *block; /* with CU_SCAN_BLOCKS */
	size_t blocks;
	uint16_t *held_by; /* indices into the holders of the block's process */
	size_t held_by_n;
	uint64_t now; /* CLOCK_MONOTONIC ns */
	struct cl_identity self;
	struct cu_gpus gpus; /* what the limbos of the living take of each */
};

enum { CU_SCAN_BLOCKS = 1 };

/*
 * Reads the options of the environment (complaining), and @dir if not NULL in
 * the place of CULIMBO_DIR.  To be called once.
 */
void cu_directory_set(const struct cu_command *command, const char *dir);
/* Its path. */
const char *cu_directory(void);
/*
 * Opens it.  -ENOENT: there is none, so nobody shares; any other error has been
 * complained about.
 */
int cu_directory_open(const struct cu_command *command);

/* All of directory @dirfd (< 0: nothing).  0, or -ENOMEM.  *scan is to be freed in each case. */
int cu_scan(struct cu_scan *scan, int dirfd, int flags);
void cu_scan_free(struct cu_scan *scan);

/* The three at once: *status is the exit status when it returns false. */
bool cu_scan_all(const struct cu_command *command, struct cu_scan *scan, const char *dir, int flags,
		 int *status);

/* Words for people. */
const char *cu_state_word(const struct cu_process *process);
const char *cu_liveness_word(enum cl_liveness state);
const char *cu_class_word(enum cl_view_class class);
/* What else is to be said of it: "" for nothing. */
const char *cu_process_note(const struct cu_process *process);
/* "exporter-0a1b2c", or "-". */
void cu_file_word(char to[16], uint32_t file_id);

/* "0a1b2c:17" into @to of 32 bytes. */
void cu_block_id(char *to, uint32_t file_id, uint32_t record);
/* On stderr: that no process shares; which files could not be read. */
void cu_note_nobody(void);
void cu_note_unread(const struct cu_command *command, const struct cu_scan *scan);
/* A number of digits alone, 0 to 2^32 - 1; false: it is none. */
bool cu_number(const char *text, long long *number);
/* A time to wait: 500ms, 2s, 1m, up to an hour; a bare number is seconds. */
bool cu_read_wait(const char *text, uint64_t *ns);

/*
 * Runs @look, which reads a mapped file.  False: the file was cut under it
 * (SIGBUS).  What @look had allocated is then lost.
 */
bool cu_guarded(void (*look)(void *data), void *data);
/* cl_view_open() and cl_region_open() of a file that may be cut meanwhile. */
int cu_view_open(struct cl_view *view, int dirfd, uint32_t file_id, const char **why);
int cu_region_open(struct cl_region *region, int dirfd, uint32_t file_id, const char **why);

#endif
