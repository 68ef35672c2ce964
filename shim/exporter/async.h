/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory pools of this process under CULIMBO_SHARE=all, which makes them exportable: those that the
 * program makes, and in place of each device's default pool one of ours, its stand-in.
 *
 * What must hold:
 *  - The program sees one default pool of each device, the stand-in, wherever it asks.  What it reads of its
 *    pools is what it has asked for, and what the driver refuses of such pools is refused.
 *  - A stream that captures allocates as without us.  The driver refuses that of an exportable pool
 *    (measured), so there the device's real default pool is used, of which the graph takes only the place.
 *  - A pool from which nothing was shared gives memory back as any other.  Of one that was exported the
 *    driver gives no memory back before its end, and with a low release threshold it doesn't even use
 *    freed memory again (measured).  So from our first export of a pool on, its threshold is the greatest.  The
 *    program reads the threshold that it has set.
 *  - When the driver is asked to destroy a pool, no thread of ours uses the pool, nor does so later.
 *
 * Any thread may call these functions, without a lock of ours.  Fork: cl_async_forget().
 */
#ifndef CL_ASYNC_H
#define CL_ASYNC_H

#include <stdatomic.h>
#include <stdbool.h>
#include "shim/driver/driver.h"

struct cl_exporter;

/* Returns true if pools are made exportable.  The first call finds out whether the driver can. */
bool cl_async_is_on(void);

/* Makes the stand-ins, once: before anything allocates from a default pool or asks for it. */
extern _Atomic bool cl_async_made;
void cl_async_make(void);
static inline void cl_async_need(void)
{
	/* acquire: a thread that sees it set sees the stand-ins */
	if (__builtin_expect(!atomic_load_explicit(&cl_async_made, memory_order_acquire), 0))
		cl_async_make();
}
/* Returns the pool that the program sees for @pool: a stand-in for a default pool. */
CUmemoryPool cl_async_shown(CUmemoryPool pool);
/*
 * Returns the pool that the driver is to be asked about where @pool must seem not exportable: a default
 * pool for one that is exportable only because of us, else @pool itself.
 */
CUmemoryPool cl_async_as_asked(CUmemoryPool pool);
/* Sets the stand-in where a device allocates from its real default pool: after the end of a pool. */
void cl_async_set_again(void);

/* cuMemPoolCreate(): exportable if another process could use it; else as the program asks. */
CUresult cl_async_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props);
/*
 * The program destroys @pool.  begin() comes before the driver's call, and after it end() if the pool was
 * known: @gone says whether the driver, or our limbo in its time, ends it.
 */
struct cl_async_pool;
struct cl_async_pool *cl_async_destroy_begin(struct cl_exporter *ex, CUmemoryPool pool);
void cl_async_destroy_end(struct cl_exporter *ex, struct cl_async_pool *pool, bool gone);
/* Returns the default pool of which @pool is the stand-in, or NULL if it is none. */
CUmemoryPool cl_async_default_of(CUmemoryPool pool);

/*
 * The driver has refused with CUDA_ERROR_NOT_SUPPORTED to allocate @bytes for @stream from @pool, or if that
 * is NULL from the pool of the stream's device.  Allocates as without us, if our making it exportable is why.
 */
CUresult cl_async_alloc_captured(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread);

/*
 * The release threshold of a pool from which something was shared, which only we know.  Both return false if
 * the driver is to be asked.
 */
bool cl_async_threshold_set(CUmemoryPool pool, cuuint64_t threshold);
bool cl_async_threshold_get(CUmemoryPool pool, cuuint64_t *threshold);

/*
 * A handle of a block of @pool is asked for: prepares the pool for that, the first time.  Returns its
 * number, which the handle has; 0 if it can't be exported.
 */
uint64_t cl_async_hand_out(CUmemoryPool pool);
/* Returns true if @pool is exportable only because of us. */
bool cl_async_is_added(CUmemoryPool pool);
/* Returns true if cl_async_hand_out() would succeed, so far as is known. */
bool cl_async_is_shareable(CUmemoryPool pool);
/*
 * Makes a descriptor of the pool @handle, that lives and has @number: another pool may have got its handle.  Returns
 * it, or -errno.
 */
int cl_async_descriptor(uint64_t handle, uint64_t number);

/* Says, once, that there was no memory for what is known of a pool: so nothing of it is shared. */
void cl_async_say_no_memory(void);

void cl_async_forget(void); /* in a forked child */

#endif
