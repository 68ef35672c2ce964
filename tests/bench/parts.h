/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of parts (parts.c): the null driver, the helper process, and the
 * measurements.
 */
#ifndef CL_BENCH_PARTS_H
#define CL_BENCH_PARTS_H

#include "shim/shim.h"
#include "tests/bench/harness.h"

#include <stdatomic.h>
#include <sys/wait.h>

#define FIRST_BLOCK 0x7f0000000000ull
#define REFUSED_BLOCK 0x7e0000000000ull /* the driver makes no handle of it */
#define BLOCK_STEP 512u
#define MAPPED_AT 0x10000000000ull
#define PINNED 0x20000000000ull /* the driver's pinned memory, and what it has before the last page of a piece */
#define PINNED_REST ((2 << 20) - 4096)
#define CONTEXT ((CUcontext)0xa0)
#define STREAM ((CUstream)0x0f)

struct board {
	_Atomic uint32_t step; /* how many commands the helper has got, and has done */
	_Atomic uint32_t done;
	_Atomic uint64_t first, n; /* which blocks */
	_Atomic uint64_t ready;
	uint64_t taken[1024]; /* ns that each of many processes took */
	CUipcMemHandle handle[];
};
extern struct board *board;

/* parts_driver.c */
NULL_DRIVER CUresult null_open(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags);
extern char folder[];
void prepare(void);
void make_board(uint64_t handles);
void moment(void);
void wait_for(_Atomic uint32_t *what, uint32_t value);
void helper_do(uint64_t first, uint64_t n);
void helper_wait(uint32_t step);
void helper_did(uint32_t step);
pid_t helper_start(void (*body)(void));
uint64_t file_bytes(void);
uint64_t heap_bytes(void);
double rollup(const char *what);

/* parts.c */
CUdeviceptr block_at(uint64_t i);
extern uint64_t n_blocks; /* blocks that wait in the limbo, or are held */
extern uint64_t used; /* the first spare block that is not used up */
void op_export_new(uint64_t run);
void op_export_again(uint64_t run);
void op_free_other(uint64_t run);

/* parts_many.c */
int stopped(int argc, char **argv);
int holders(int argc, char **argv);
int starts(int argc, char **argv);

/* parts_pool.c */
int pool_exporter(int argc, char **argv);
int pool_importer(int argc, char **argv);

/* parts_virtual.c */
int virtual_exporter(int argc, char **argv);

/* parts_async.c */
int async_exporter(int argc, char **argv);

/* parts_pieces.c */
int pieces(int argc, char **argv);

#endif
