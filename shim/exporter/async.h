/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory pools of this process under CULIMBO_SHARE=all, which makes stream-ordered memory shareable.  The
 * pools that the program creates are made exportable.  The driver's default pool of a device is not
 * exportable, so we make one that is, the device's stand-in, and the program gets that instead.
 *
 * What must hold:
 *  - Wherever the program asks for the default pool of a device, it gets the stand-in.  What it reads of its
 *    pools is what it asked for.  What the driver would refuse of the pools that it asked for is refused.
 *  - An allocation in a stream that is being captured succeeds as without us.  The driver refuses it from an
 *    exportable pool (measured), so it is made from the device's real default pool.  The graph takes only the
 *    device from the pool.
 *  - A pool from which nothing was shared gives memory back as any other.  From a pool that was exported the
 *    driver gives no memory back before the pool's end, and with a low release threshold it does not even
 *    use freed memory again (measured).  So our first export of a pool sets its threshold to the greatest.
 *    The program still reads the threshold that it has set.
 *  - When the driver is asked to destroy a pool, no thread of ours uses the pool, nor does so later.  The
 *    destroy waits up to a second for such threads.
 *
 * Any thread may call these functions.  It must hold no lock of ours.  Fork: cl_async_forget().
 */
#ifndef CL_ASYNC_H
#define CL_ASYNC_H

#include <stdatomic.h>
#include <stdbool.h>
#include "shim/driver/driver.h"

struct cl_exporter;

enum { CL_ASYNC_DEVICES = 64 }; /* devices from this number on keep their pools */

/*
 * Returns true if pools are made exportable: the options ask for it, the driver has all calls for it, and it is not one
 * that becomes slow by it (cl_virtual_is_slow_driver()).
 */
bool cl_async_is_on(void);

/*
 * Makes the stand-ins, once in a process, unless pools stay as they are.  Comes before each call of the program
 * that allocates from a default pool or asks for one.  If another thread is making them, waits for it, up to a
 * second.  If the driver is not initialised yet, does nothing, and the next call tries again.
 */
extern _Atomic bool cl_async_made;
void cl_async_make(void);
static inline void cl_async_need(void)
{
	/* acquire: a thread that sees it set sees the stand-ins */
	if (__builtin_expect(!atomic_load_explicit(&cl_async_made, memory_order_acquire), 0))
		cl_async_make();
}
/* The driver has answered with @pool.  Returns what the program gets: the stand-in if it is a default pool. */
CUmemoryPool cl_async_shown(CUmemoryPool pool);
/*
 * The program asks for something that needs an exportable pool.  Returns the pool that the driver is to be
 * asked about: if @pool is exportable only because of us, and CULIMBO_SHARE is not all,visible, the real
 * default pool of its device, which the driver refuses; else @pool.
 */
CUmemoryPool cl_async_as_asked(CUmemoryPool pool);
/*
 * If @pool is exportable only because of us, returns the real default pool of its device, *@device.  Else returns
 * NULL.
 */
CUmemoryPool cl_async_instead_of(CUmemoryPool pool, CUdevice *device);
/*
 * Comes after the driver has destroyed a pool, which sets the devices that allocated from it to their real
 * default pools: sets the stand-ins there.
 */
void cl_async_set_again(void);

/*
 * In place of cuMemPoolCreate(), with its results.  Makes the pool exportable by descriptor if another process could
 * use it and the program has asked for no handle type.  If the driver refuses that with any error but
 * CUDA_ERROR_OUT_OF_MEMORY, asks again for what the program wants.
 */
CUresult cl_async_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props);
/*
 * The program destroys @pool.  begin() comes before the driver's call: from then on no handle of the pool's blocks
 * is made, and if handles of them were, it keeps a descriptor of the pool for their importers.  Returns NULL if the
 * pool is not known, or another thread is destroying it.  end() comes after the driver's call, with what begin()
 * has returned.  @gone: the driver has destroyed the pool, or the limbo will; else the pool is as it was before.
 */
struct cl_async_pool;
struct cl_async_pool *cl_async_destroy_begin(struct cl_exporter *ex, CUmemoryPool pool);
void cl_async_destroy_end(struct cl_exporter *ex, struct cl_async_pool *pool, bool gone);
/* Returns the real default pool whose stand-in @pool is, or NULL if @pool is no stand-in. */
CUmemoryPool cl_async_default_of(CUmemoryPool pool);

/*
 * The driver has refused to allocate @bytes in @stream with CUDA_ERROR_NOT_SUPPORTED, from @pool, or if @pool is
 * NULL from the current pool of the stream's device.  If the stream is being captured and the pool is exportable
 * only because of us, allocates from the device's real default pool, and returns the driver's result.  Else returns
 * CUDA_ERROR_NOT_SUPPORTED.  @per_thread: the program called the _ptsz form.
 */
CUresult cl_async_alloc_captured(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread);

/*
 * The program sets or reads the release threshold of @pool.  If something of the pool was shared, the driver has
 * our threshold, and we keep the program's.  Else the driver is asked.  While another thread makes the pool's first
 * handle, a set and a read give what the program has set, too.  Return what the program gets.
 */
CUresult cl_async_threshold_set(CUmemoryPool pool, cuuint64_t threshold);
CUresult cl_async_threshold_get(CUmemoryPool pool, cuuint64_t *threshold);

/*
 * The program asks for a handle of a block of @pool.  The first call has the driver export the pool, and raises its
 * threshold.  It waits, up to a second, for threads that set the threshold.  Other calls wait, up to a second, for the
 * first one.  Returns the pool's number, which goes into the handle.  Returns 0 if the pool is not known, is being
 * destroyed, or the driver refuses to export it.
 */
uint64_t cl_async_hand_out(CUmemoryPool pool);
/* Returns true if @pool is exportable only because of us. */
bool cl_async_is_added(CUmemoryPool pool);
/* Returns true if @pool is known and exportable; the driver may still refuse cl_async_hand_out().  @pool may be NULL. */
bool cl_async_is_shareable(CUmemoryPool pool);
/*
 * Has the driver make a descriptor of the pool whose CUmemoryPool is @handle and whose number is @number: another
 * pool may have got its handle.  Returns it, for the caller to close; -ESTALE if the pool is not known, is being
 * destroyed, or ends with this process; -EMFILE if no descriptor is left; -EIO if the driver refuses.
 */
int cl_async_descriptor(uint64_t handle, uint64_t number);

void cl_async_forget(void); /* in a forked child */

#endif
