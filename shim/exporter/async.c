/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that are made exportable: see async.h. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/hot.h"
#include "shim/base/log.h"
#include "shim/base/options.h"
#include "shim/base/table.h"
#include "shim/descriptors/flight.h"
#include "shim/driver/visit.h"
#include "shim/exporter/async.h"
#include "shim/exporter/virtual.h"
#include "shim/limbo/exporter.h"
#include "shim/self/self.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
enum { DEVICES = CL_ASYNC_DEVICES };
/* ns that a thread waits at most for other threads that are in the driver with a pool. */
#define EXPORT_WAIT 1000000000ull
/* ns that a thread waits at most for another one that makes the stand-ins. */
#define MAKE_WAIT 1000000000ull

struct cl_async_pool {
	struct cl_link link; /* its key: the CUmemoryPool */
	uint64_t number;     /* no other pool of this process has it, nor gets it later */
	int device;
	bool added;	/* it is exportable only because of us: the program did not ask for it */
	bool stand_in;	/* we made it in place of a default pool */
	bool handed;	/* a first handle of its blocks was asked for: what the program sets from then on is kept here */
	bool known;	/* .threshold is the program's; the driver may have ours */
	bool set;	/* the program has set the threshold since .handed became true, and the driver did not get it */
	bool ready;	/* prepare() has succeeded: the driver exports its blocks, and its threshold is the greatest */
	bool ending;	/* the program is destroying it */
	unsigned int exporting; /* threads that have the driver export it */
	unsigned int setting;	/* threads that have the driver set the program's threshold: a first export waits for them */
	cuuint64_t threshold;
};

CL_HOT_DATA _Atomic bool cl_async_made;
static struct cl_table pools = CL_TABLE_BEGIN(pools); /* this and the next three: under cl_exports_lock */
static uint64_t numbers; /* the number of the pool that was added last */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool making; /* a thread is making the stand-ins */
/*
 * By device, or NULL.  The thread that makes the stand-ins writes them before it sets cl_async_made.  Then nobody
 * does, so they are read without a lock.  Who does not look at cl_async_made may read them meanwhile.
 */
static _Atomic(CUmemoryPool) defaults[DEVICES], stand_ins[DEVICES];

static uint64_t key_of(CUmemoryPool pool)
{
	return (uint64_t)(uintptr_t)pool;
}

static struct cl_async_pool *find_locked(CUmemoryPool pool)
{
	return cl_table_find(&pools, key_of(pool));
}

/* Returns true if the program must not see that @pool is exportable.  @pool may be NULL. */
static bool is_hidden(const struct cl_async_pool *pool)
{
	return pool && pool->added && !cl_shares_visibly();
}

/* Returns true while a thread of ours is in the driver with @pool: a destroy waits for that. */
static bool is_in_driver(const struct cl_async_pool *pool)
{
	return pool->exporting || pool->setting;
}

static bool driver_can(void)
{
	return cl_driver.cuMemPoolCreate && cl_driver.cuMemPoolDestroy && cl_driver.cuDeviceGetDefaultMemPool &&
	       cl_driver.cuDeviceGetMemPool && cl_driver.cuDeviceSetMemPool && cl_driver.cuMemPoolExportPointer &&
	       cl_driver.cuMemPoolExportToShareableHandle && cl_driver.cuMemPoolGetAttribute &&
	       cl_driver.cuMemPoolSetAttribute && cl_driver.cuMemAllocFromPoolAsync && cl_driver.cuStreamIsCapturing;
}

bool cl_async_is_on(void)
{
	return cl_virtual_is_on() && driver_can() && !cl_virtual_is_slow_driver();
}

/* Exports the pool @handle.  *@fd is in flight then: a program that starts meanwhile does not inherit it. */
static CUresult export_pool(CUmemoryPool handle, int *fd)
{
	CL_CALLS_OF_OURS;
	CUresult result;

	cl_flight_begin();
	result = cl_driver.cuMemPoolExportToShareableHandle(fd, handle, FD, 0);
	if (result == CUDA_SUCCESS) {
		*fd = cl_flight_enter(*fd);
		if (*fd < 0) {
			cl_log_once(CL_LOG_WARN, "the program has closed the descriptor of a memory pool, or there was no room "
						 "to keep it: the call that needed it fails as if the process had no "
						 "descriptors left");
			result = CUDA_ERROR_OPERATING_SYSTEM; /* as from the driver when no descriptors are left */
		}
	}
	cl_flight_end();
	return result;
}

static void say_no_memory(void)
{
	cl_log_once(CL_LOG_ERROR, "no host memory to remember a memory pool: what it allocates cannot be shared by handles");
}

/* ------------------------------------------------------------------- the stand-ins */
/* The driver has made @handle: enters @pool for it. */
static void add(struct cl_async_pool *pool, CUmemoryPool handle)
{
	pool->link.key = key_of(handle);
	cl_lock(&cl_exports_lock);
	pool->number = ++numbers;
	cl_table_add(&pools, &pool->link);
	cl_unlock(&cl_exports_lock);
}

/*
 * Makes the stand-in of @device, and sets it as the pool from which the device allocates, if that is the default
 * pool.  Without host memory or if the driver refuses, the device keeps its default pool.
 */
static void make_stand_in(CUdevice device)
{
	const CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .handleTypes = FD,
				       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } };
	CUmemoryPool real, current, ours;
	struct cl_async_pool *pool;

	if (cl_driver.cuDeviceGetDefaultMemPool(&real, device) != CUDA_SUCCESS)
		return;
	defaults[device] = real;
	pool = calloc(1, sizeof *pool);
	if (!pool)
		say_no_memory();
	/* the driver refuses that on a device without pools, or without exportable ones */
	if (!pool || cl_driver.cuMemPoolCreate(&ours, &props) != CUDA_SUCCESS) {
		free(pool);
		return;
	}
	if (cl_driver.cuDeviceGetMemPool(&current, device) != CUDA_SUCCESS ||
	    (current == real && cl_driver.cuDeviceSetMemPool(device, ours) != CUDA_SUCCESS)) {
		cl_driver.cuMemPoolDestroy(ours);
		free(pool);
		return;
	}
	stand_ins[device] = ours;
	pool->device = device;
	pool->added = pool->stand_in = true;
	add(pool, ours);
}

/* Returns false if the driver is not initialised yet. */
static bool make_all(void)
{
	CL_CALLS_OF_OURS;
	int n;

	if (cl_driver.cuDeviceGetCount(&n) != CUDA_SUCCESS)
		return false;
	for (CUdevice device = 0; device < n && device < DEVICES; device++)
		make_stand_in(device);
	return true;
}

void cl_async_make(void)
{
	struct timespec until = cl_after(MAKE_WAIT);
	bool made = true;

	cl_lock(&cl_exports_lock);
	while (making && cl_lock_wait_until(&changed, &cl_exports_lock, &until))
		;
	if (making || cl_async_made) {
		cl_unlock(&cl_exports_lock);
		return;
	}
	making = true;
	cl_unlock(&cl_exports_lock);
	if (cl_async_is_on())
		made = make_all();
	cl_lock(&cl_exports_lock);
	making = false;
	/* release: a thread that sees it set sees the stand-ins */
	atomic_store_explicit(&cl_async_made, made, memory_order_release);
	pthread_cond_broadcast(&changed);
	cl_unlock(&cl_exports_lock);
}

CUmemoryPool cl_async_shown(CUmemoryPool pool)
{
	for (int device = 0; pool && device < DEVICES; device++)
		if (defaults[device] == pool && stand_ins[device])
			return stand_ins[device];
	return pool;
}

CUmemoryPool cl_async_default_of(CUmemoryPool pool)
{
	for (int device = 0; pool && device < DEVICES; device++)
		if (stand_ins[device] == pool)
			return defaults[device];
	return NULL;
}

CUmemoryPool cl_async_as_asked(CUmemoryPool handle)
{
	const struct cl_async_pool *pool;

	cl_lock(&cl_exports_lock);
	pool = find_locked(handle);
	if (is_hidden(pool) && defaults[pool->device])
		handle = defaults[pool->device];
	cl_unlock(&cl_exports_lock);
	return handle;
}

CUmemoryPool cl_async_instead_of(CUmemoryPool handle, CUdevice *device)
{
	const struct cl_async_pool *pool;

	cl_lock(&cl_exports_lock);
	pool = find_locked(handle);
	if (pool)
		*device = pool->device;
	handle = pool && pool->added ? defaults[pool->device] : NULL;
	cl_unlock(&cl_exports_lock);
	return handle;
}

void cl_async_set_again(void)
{
	CL_CALLS_OF_OURS;
	CUmemoryPool current;

	for (CUdevice device = 0; device < DEVICES; device++)
		if (stand_ins[device] && cl_driver.cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS &&
		    current == defaults[device])
			cl_driver.cuDeviceSetMemPool(device, stand_ins[device]);
}

/* ------------------------------------------------------------- pools of the program */
/*
 * Returns true if another process could use memory of a pool with @props.  A usage (hardware decompression, for which RMM
 * asks) does not stand against that: a driver that refuses it beside a handle type is asked again without.
 */
static bool can_be_shared(const CUmemPoolProps *props)
{
	return props && props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && props->location.id >= 0 &&
	       props->location.id < DEVICES && !props->win32SecurityAttributes;
}

CUresult cl_async_pool_create(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct cl_async_pool *pool;

	if (!can_be_shared(props) || !cl_async_is_on())
		return cl_driver.cuMemPoolCreate(handle, props);
	pool = calloc(1, sizeof *pool);
	if (!pool) {
		say_no_memory();
		return cl_driver.cuMemPoolCreate(handle, props);
	}
	/* cl_async_as_asked() needs the real default pool, to hide from the program what we add */
	cl_async_need();
	pool->device = props->location.id;
	if (props->handleTypes == CU_MEM_HANDLE_TYPE_NONE && defaults[pool->device]) {
		CUmemPoolProps more = *props;

		more.handleTypes = FD;
		result = cl_driver.cuMemPoolCreate(handle, &more);
		pool->added = result == CUDA_SUCCESS;
	}
	if (!pool->added && result != CUDA_ERROR_OUT_OF_MEMORY)
		result = cl_driver.cuMemPoolCreate(handle, props);
	if (result == CUDA_SUCCESS && (pool->added || ((unsigned int)props->handleTypes & FD)))
		add(pool, *handle);
	else
		free(pool);
	return result;
}

struct cl_async_pool *cl_async_destroy_begin(struct cl_exporter *ex, CUmemoryPool handle)
{
	struct timespec until = cl_after(EXPORT_WAIT);
	struct cl_async_pool *pool;
	int fd = -1;

	cl_lock(&cl_exports_lock);
	pool = find_locked(handle);
	if (!pool || pool->stand_in || pool->ending) {
		cl_unlock(&cl_exports_lock);
		return NULL;
	}
	pool->ending = true;
	while (is_in_driver(pool) && cl_lock_wait_until(&changed, &cl_exports_lock, &until))
		;
	cl_unlock(&cl_exports_lock);
	/* an importer that opens one of its blocks, which may stay in the limbo, needs a descriptor of the pool */
	if (pool->ready && export_pool(handle, &fd) != CUDA_SUCCESS)
		fd = -1;
	cl_lock(&cl_exports_lock);
	cl_table_remove(&pools, &pool->link);
	/* a fork waits for this lock, too */
	if (cl_flight_leave(fd) && !cl_own_pool_keep(&ex->blocks.own_pools, key_of(handle), fd))
		close(fd);
	cl_unlock(&cl_exports_lock);
	return pool;
}

void cl_async_destroy_end(struct cl_exporter *ex, struct cl_async_pool *pool, bool gone)
{
	if (!pool)
		return;
	cl_lock(&cl_exports_lock);
	if (gone) {
		/* a thread that was waited for in vain still ends its call: it stays */
		if (!is_in_driver(pool))
			free(pool);
		cl_unlock(&cl_exports_lock);
		return;
	}
	cl_own_pool_keep(&ex->blocks.own_pools, pool->link.key, -1);
	pool->ending = false;
	cl_table_add(&pools, &pool->link);
	cl_unlock(&cl_exports_lock);
}

/* ---------------------------------------------------------------- the threshold */
/*
 * The program sets the threshold.  *@ours: we keep it, and the driver is not asked.  Else returns the pool, whose
 * .setting the caller counts down when the driver has answered, or NULL if the pool is not known.
 */
static struct cl_async_pool *begin_setting_locked(CUmemoryPool handle, cuuint64_t threshold, bool *ours)
{
	struct cl_async_pool *pool = find_locked(handle);

	*ours = pool && pool->handed;
	if (*ours) {
		pool->threshold = threshold;
		pool->known = pool->set = true;
		return NULL;
	}
	if (pool)
		pool->setting++;
	return pool;
}

CUresult cl_async_threshold_set(CUmemoryPool handle, cuuint64_t threshold)
{
	struct cl_async_pool *pool;
	CUresult result;
	bool ours;

	cl_lock(&cl_exports_lock);
	pool = begin_setting_locked(handle, threshold, &ours);
	cl_unlock(&cl_exports_lock);
	if (ours)
		return CUDA_SUCCESS;
	result = cl_driver.cuMemPoolSetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	if (pool) {
		cl_lock(&cl_exports_lock);
		if (!--pool->setting)
			pthread_cond_broadcast(&changed);
		cl_unlock(&cl_exports_lock);
	}
	return result;
}

/* Returns true, and the program's threshold, if the driver may have ours. */
static bool threshold_known(CUmemoryPool handle, cuuint64_t *threshold)
{
	const struct cl_async_pool *pool;
	bool known;

	cl_lock(&cl_exports_lock);
	pool = find_locked(handle);
	known = pool && pool->known;
	if (known)
		*threshold = pool->threshold;
	cl_unlock(&cl_exports_lock);
	return known;
}

CUresult cl_async_threshold_get(CUmemoryPool handle, cuuint64_t *threshold)
{
	CUresult result;

	if (threshold_known(handle, threshold))
		return CUDA_SUCCESS;
	result = cl_driver.cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold);
	/* another thread may have raised it before the driver answered: then it has made the program's known before that */
	if (result == CUDA_SUCCESS)
		threshold_known(handle, threshold);
	return result;
}

/* ------------------------------------------------------------------------- sharing */
/*
 * The caller is about to have the driver export the pool @handle: a destroy waits until end_export_locked().
 * Returns NULL if the pool is not known or is being destroyed.
 */
static struct cl_async_pool *begin_export_locked(CUmemoryPool handle)
{
	struct cl_async_pool *pool = find_locked(handle);

	if (!pool || pool->ending)
		return NULL;
	pool->exporting++;
	return pool;
}

static void end_export_locked(struct cl_async_pool *pool)
{
	pool->exporting--;
	pthread_cond_broadcast(&changed);
}

/*
 * Has the driver export @pool, whose CUmemoryPool is @handle, for the first time, and sets its release threshold to the
 * greatest, so that the pool keeps its memory.  The program's threshold is made known before that: from then on
 * no thread reads the driver's.  Returns false if the driver refuses.
 */
static bool prepare(struct cl_async_pool *pool, CUmemoryPool handle)
{
	cuuint64_t threshold = 0, most = UINT64_MAX;
	int fd;

	if (export_pool(handle, &fd) != CUDA_SUCCESS)
		return false;
	cl_flight_close(fd);
	if (cl_driver.cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) != CUDA_SUCCESS)
		threshold = 0;
	cl_lock(&cl_exports_lock);
	if (!pool->known)
		pool->threshold = threshold;
	pool->known = true;
	cl_unlock(&cl_exports_lock);
	return cl_driver.cuMemPoolSetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &most) == CUDA_SUCCESS;
}

/* prepare() has failed, and the driver has the program's threshold: gives it what the program has set meanwhile. */
static void give_back_locked(struct cl_async_pool *pool, CUmemoryPool handle)
{
	cuuint64_t threshold;

	while (pool->set) {
		pool->set = false;
		threshold = pool->threshold;
		cl_unlock(&cl_exports_lock);
		cl_driver.cuMemPoolSetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
		cl_lock(&cl_exports_lock);
	}
	pool->known = pool->handed = false;
}

/*
 * Does what the first handle of @pool needs.  Returns false if the driver refuses, or has not answered other
 * threads that set the threshold by @until: it would get theirs after ours.
 */
static bool make_ready_locked(struct cl_async_pool *pool, CUmemoryPool handle, const struct timespec *until)
{
	bool done = false;

	pool->handed = true;
	pool->set = false;
	while (pool->setting && cl_lock_wait_until(&changed, &cl_exports_lock, until))
		;
	if (!pool->setting) {
		cl_unlock(&cl_exports_lock);
		done = prepare(pool, handle);
		cl_lock(&cl_exports_lock);
	}
	if (!done)
		give_back_locked(pool, handle);
	pool->ready = done;
	return done;
}

uint64_t cl_async_hand_out(CUmemoryPool handle)
{
	struct timespec until = cl_after(EXPORT_WAIT);
	struct cl_async_pool *pool;
	uint64_t number = 0;

	cl_lock(&cl_exports_lock);
	pool = begin_export_locked(handle);
	if (!pool) {
		cl_unlock(&cl_exports_lock);
		return 0;
	}
	/* another thread makes the pool ready */
	while (pool->handed && !pool->ready && cl_lock_wait_until(&changed, &cl_exports_lock, &until))
		;
	if (pool->handed ? pool->ready : make_ready_locked(pool, handle, &until))
		number = pool->number;
	end_export_locked(pool);
	cl_unlock(&cl_exports_lock);
	return number;
}

bool cl_async_is_added(CUmemoryPool handle)
{
	const struct cl_async_pool *pool;
	bool added;

	cl_lock(&cl_exports_lock);
	pool = find_locked(handle);
	added = pool && pool->added;
	cl_unlock(&cl_exports_lock);
	return added;
}

bool cl_async_is_shareable(CUmemoryPool handle)
{
	bool known;

	cl_lock(&cl_exports_lock);
	known = handle && find_locked(handle);
	cl_unlock(&cl_exports_lock);
	return known;
}

int cl_async_descriptor(uint64_t handle, uint64_t number)
{
	CUmemoryPool of = (CUmemoryPool)(uintptr_t)handle;
	struct cl_async_pool *pool;
	CUresult result;
	int fd = -1;

	cl_lock(&cl_exports_lock);
	pool = find_locked(of);
	pool = pool && pool->number == number ? begin_export_locked(of) : NULL;
	cl_unlock(&cl_exports_lock);
	if (!pool)
		return -ESTALE;
	result = export_pool(of, &fd);
	cl_lock(&cl_exports_lock);
	end_export_locked(pool);
	cl_unlock(&cl_exports_lock);
	return result == CUDA_SUCCESS ? fd : cl_driver_no_descriptor(result);
}

void cl_async_forget(void)
{
	pools = (struct cl_table)CL_TABLE_BEGIN(pools);
	changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	making = false;
	memset(defaults, 0, sizeof defaults);
	memset(stand_ins, 0, sizeof stand_ins);
	cl_async_made = false;
}
