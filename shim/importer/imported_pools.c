/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of other processes: see imported_pools.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/clock.h"
#include "shim/descriptors/ask.h"
#include "shim/driver/visit.h"
#include "shim/importer/imported_pools.h"
#include "shim/importer/pool_uses.h"
#include "shim/importer/turns.h"
#include "shim/importer/virtual.h"
#include "shim/self/own_file.h"
#include "shim/self/self.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

struct cl_imported_pool {
	struct cl_link link; /* its key: see key_of() */
	uint64_t exporter, number; /* number: the exporter gives it to no other pool */
	uint64_t users;	  /* references; 0: the thread that has its turn destroys it */
	uint64_t devices; /* a bit for each device that has opened a block of it, or became a peer of such a one later */
	CUmemoryPool handle;
};
static struct cl_table pools = CL_TABLE_BEGIN(pools); /* under cl_imports_lock */

static uint64_t key_of(uint64_t exporter, uint64_t number)
{
	return cl_hash_word(exporter) ^ number;
}

/*
 * The key of the turn that imports and destroys a pool: even, so that it is no pointer's (cl_turn_key()).  So one pool is
 * not imported twice, nor imported while it is being destroyed.  Another pool of the same exporter has another key: the
 * import of one may take seconds.
 */
static uint64_t turn_key(uint64_t exporter, uint64_t number)
{
	/* mixed, since the numbers of an exporter's pools differ in the last bits only */
	return cl_mix(key_of(exporter, number)) << 2 | 2;
}

static struct cl_imported_pool *find_locked(uint64_t exporter, uint64_t number)
{
	uint64_t key = key_of(exporter, number);
	struct cl_link *link = cl_table_find(&pools, key);

	for (; link; link = link->next) {
		struct cl_imported_pool *pool = (struct cl_imported_pool *)(void *)link;

		if (link->key == key && pool->exporter == exporter && pool->number == number)
			return pool;
	}
	return NULL;
}

/* ------------------------------------------------------------- what a handle names */
/*
 * Reads the export data of @resolved->handle from its record in @region.  Returns false if the record's block is not the
 * one that the handle names.
 */
static bool read_data(struct cl_pool_resolved *resolved, const struct cl_region *region)
{
	uint32_t chunks = atomic_load_explicit(&region->header->record_chunks, memory_order_acquire);
	uint32_t record = resolved->stamp.record;
	uint8_t handle[64];

	/* from here on @resolved->stamp has the generation as the file counts it */
	if (!cl_region_has_stamped(region, &resolved->stamp))
		return false;
	if (record >= CL_RECORDS || chunks > CL_CHUNKS || record / CL_CHUNK >= chunks ||
	    region->record[record].kind != CL_POOL)
		return false;
	cl_record_handle(region, record, handle);
	resolved->size = region->record[record].size;
	memset(&resolved->form, 0, sizeof resolved->form);
	memcpy(resolved->form.data, handle + 8, CL_POOL_DRIVERS);
	/* the record may be another block's by now: then the generation is over, and the handle is refused as stale */
	if (cl_pool_fingerprint(resolved->form.data) != resolved->handle.fingerprint)
		return false;
	cl_pool_put_stamp(resolved->form.data, resolved->handle.fingerprint, resolved->handle.stamp,
			  resolved->handle.pid);
	return true;
}

/*
 * Reads the export data of @resolved->handle from the file of another process, and keeps that file open until
 * cl_pool_resolved_put().  An earlier exporter may have had the file's number, and we may still know that one: then its
 * successor is read instead, as in all other opens.
 */
static bool read_of_peer_locked(struct cl_pool_resolved *resolved)
{
	const struct cl_stamp stamp = resolved->stamp;
	int err = 0;

	for (int tries = 0; tries < 2; tries++) {
		struct cl_peer *peer = cl_peer_get(stamp.file_id, &err);

		if (!peer)
			return false;
		resolved->stamp = stamp;
		if (read_data(resolved, &peer->region)) {
			resolved->peer = peer;
			peer->holds++;
			return true;
		}
		if (tries || !cl_hold_succeeded_locked(peer))
			return false;
	}
	return false;
}

int cl_pool_resolve(struct cl_pool_resolved *resolved, const void *handle)
{
	bool read = false, own = false;

	memcpy(&resolved->handle, handle, sizeof resolved->handle);
	resolved->stamp = cl_stamp_unpack(resolved->handle.stamp);
	resolved->peer = NULL;
	if (!resolved->stamp.file_id || resolved->handle.bytes || resolved->handle.more || resolved->handle.zero)
		return -ENOENT;
	cl_lock(&cl_imports_lock);
	if (cl_own_may_be(resolved->stamp.file_id)) {
		cl_lock(&cl_exports_lock);
		own = cl_own.file_id == resolved->stamp.file_id;
		read = own && read_data(resolved, &cl_own);
		cl_unlock(&cl_exports_lock);
	}
	if (!own)
		read = read_of_peer_locked(resolved);
	cl_unlock(&cl_imports_lock);
	return read ? 0 : -ENOENT;
}

void cl_pool_resolved_put(struct cl_pool_resolved *resolved)
{
	if (!resolved->peer)
		return;
	cl_lock(&cl_imports_lock);
	cl_peer_put(resolved->peer);
	cl_unlock(&cl_imports_lock);
	resolved->peer = NULL;
}

/* -------------------------------------------------------------------------- access */
/* Lets @device reach @pool, if it does not yet. */
static CUresult give_access(CUmemoryPool pool, CUdevice device)
{
	CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemAccess_flags has = CU_MEM_ACCESS_FLAGS_PROT_NONE;

	if (cl_driver.cuMemPoolGetAccess && cl_driver.cuMemPoolGetAccess(&has, pool, &access.location) == CUDA_SUCCESS &&
	    has == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		return CUDA_SUCCESS;
	return cl_driver.cuMemPoolSetAccess ? cl_driver.cuMemPoolSetAccess(pool, &access, 1) : CUDA_ERROR_NOT_SUPPORTED;
}

/*
 * Lets @device, which opens a block, and its peers reach @pool.  Returns the driver's answer for @device: a peer
 * of it may be out of reach of the pool's device.
 */
static CUresult give_all_access(CUmemoryPool pool, CUdevice device)
{
	CUresult result = give_access(pool, device);
	uint64_t peers = cl_virtual_peers(device);

	for (CUdevice peer = 0; result == CUDA_SUCCESS && peer < CL_MIRROR_DEVICES; peer++)
		if (peers >> peer & 1)
			give_access(pool, peer);
	return result;
}

CUresult cl_imported_pool_give_access(struct cl_imported_pool *pool, CUdevice device)
{
	CL_CALLS_OF_OURS;

	return give_all_access(pool->handle, device);
}

void cl_imported_pools_add_device(CUdevice of, CUdevice device, void (*give_up)(struct cl_imported_pool *pool))
{
	CL_CALLS_OF_OURS;
	struct cl_imported_pool *some[16];
	struct cl_link *link, *next;
	unsigned int n;

	if (of < 0 || of >= CL_MIRROR_DEVICES || device < 0 || device >= CL_MIRROR_DEVICES)
		return;
	/* sixteen at a time, since the driver is called without the lock: .devices says which pools are done */
	do {
		n = 0;
		cl_lock(&cl_imports_lock);
		CL_TABLE_EACH (&pools, link, next) {
			struct cl_imported_pool *pool = (struct cl_imported_pool *)(void *)link;

			if (n < 16 && pool->users && (pool->devices >> of & 1) && !(pool->devices >> device & 1)) {
				pool->devices |= UINT64_C(1) << device;
				pool->users++; /* nobody destroys it meanwhile */
				some[n++] = pool;
			}
		}
		cl_unlock(&cl_imports_lock);
		for (unsigned int i = 0; i < n; i++) {
			give_access(some[i]->handle, device);
			give_up(some[i]);
		}
	} while (n == 16);
}

/* ------------------------------------------------------------------------- imports */
struct getting {
	CUmemoryPool pool;
	CUresult result; /* the driver's, if it was asked */
};

static int take(void *arg, const struct cl_piece *piece, int fd)
{
	struct getting *get = arg;

	(void)piece;
	if (get->pool)
		return -EBADMSG;
	get->result = cl_pool_use_begin(CL_POOL_OPENS, &get->pool, (void *)(intptr_t)fd, FD, 0);
	if (get->result != CUDA_SUCCESS)
		get->pool = NULL;
	return get->result == CUDA_SUCCESS ? 0 : -EIO;
}

/*
 * Has the exporter hand the pool of @resolved over, and the driver import it.  The caller has waited for the pool's turn
 * since @since.  Errors are cl_imported_pool_get()'s.
 */
static CUresult import(const struct cl_pool_resolved *resolved, uint64_t since, CUmemoryPool *handle)
{
	struct getting get = { .result = CUDA_ERROR_OPERATING_SYSTEM };
	struct cl_asking asking = { .record = resolved->stamp.record,
				    .generation = resolved->stamp.generation,
				    .take = take,
				    .arg = &get };
	CUresult result;
	bool refused;

	result = cl_virtual_ask(&asking, resolved->peer, resolved->handle.pid, since);
	if (result == CUDA_SUCCESS && get.result != CUDA_SUCCESS)
		result = cl_virtual_say_refused(resolved->handle.pid, get.result);
	if (result != CUDA_SUCCESS && get.pool)
		cl_pool_use_end(CL_POOL_OPENS, get.pool, &refused);
	*handle = get.pool;
	return result;
}

/* Takes a reference to the pool of @resolved, for @device, if the pool is here already.  Else returns NULL. */
static struct cl_imported_pool *use_locked(const struct cl_pool_resolved *resolved, uint64_t exporter, CUdevice device)
{
	struct cl_imported_pool *pool = find_locked(exporter, resolved->handle.pool);

	if (!pool || !pool->users)
		return NULL;
	pool->users++;
	pool->devices |= UINT64_C(1) << device;
	return pool;
}

/*
 * Imports the pool of @resolved as *@pool, which has one reference, for @device.  The caller has the pool's turn, for which
 * it has waited since @since.
 */
static CUresult import_new(const struct cl_pool_resolved *resolved, uint64_t exporter, CUdevice device, uint64_t since,
			   struct cl_imported_pool **pool)
{
	struct cl_imported_pool *fresh = calloc(1, sizeof *fresh);
	CUresult result;

	if (!fresh)
		return cl_virtual_say(resolved->handle.pid, -ENOMEM);
	result = import(resolved, since, &fresh->handle);
	if (result != CUDA_SUCCESS) {
		free(fresh);
		return result;
	}
	fresh->exporter = exporter;
	fresh->number = resolved->handle.pool;
	fresh->users = 1;
	fresh->devices = UINT64_C(1) << device;
	fresh->link.key = key_of(exporter, fresh->number);
	cl_lock(&cl_imports_lock);
	cl_table_add(&pools, &fresh->link);
	cl_unlock(&cl_imports_lock);
	*pool = fresh;
	return CUDA_SUCCESS;
}

static CUresult get(const struct cl_pool_resolved *resolved, CUdevice device, struct cl_imported_pool **pool)
{
	uint64_t created = resolved->peer->region.header->created;
	uint64_t exporter = (uint64_t)resolved->stamp.file_id << 32 | (uint32_t)cl_mix(created);
	CUresult result = CUDA_SUCCESS;
	struct cl_turn turn;
	uint64_t since;

	cl_lock(&cl_imports_lock);
	*pool = use_locked(resolved, exporter, device);
	if (*pool) {
		cl_unlock(&cl_imports_lock);
		return result;
	}
	/* another thread may be importing or destroying it */
	since = cl_now();
	cl_turn_begin_locked(&turn, turn_key(exporter, resolved->handle.pool));
	*pool = use_locked(resolved, exporter, device);
	cl_unlock(&cl_imports_lock);
	if (!*pool)
		result = import_new(resolved, exporter, device, since, pool);
	cl_turn_end(&turn);
	return result;
}

CUresult cl_imported_pool_get(const struct cl_pool_resolved *resolved, CUdevice device, struct cl_imported_pool **pool)
{
	CL_CALLS_OF_OURS;

	if (device < 0 || device >= CL_MIRROR_DEVICES || !cl_driver.cuMemPoolImportFromShareableHandle ||
	    !cl_driver.cuMemPoolImportPointer || !cl_driver.cuMemPoolDestroy)
		return CUDA_ERROR_NOT_SUPPORTED;
	return get(resolved, device, pool);
}

CUmemoryPool cl_imported_pool_handle(const struct cl_imported_pool *pool)
{
	return pool->handle;
}

CUmemoryPool cl_imported_pool_put(struct cl_imported_pool *pool)
{
	CUmemoryPool handle = pool->handle;
	bool last, refused = false;
	struct cl_turn turn;

	cl_lock(&cl_imports_lock);
	if (pool->users > 1) {
		pool->users--;
		cl_unlock(&cl_imports_lock);
		return NULL;
	}
	/* the reference is given back only in the turn: until then nobody frees @pool */
	cl_turn_begin_locked(&turn, turn_key(pool->exporter, pool->number));
	last = !--pool->users;
	cl_unlock(&cl_imports_lock);
	if (last) {
		cl_pool_use_end(CL_POOL_OPENS, handle, &refused);
		cl_lock(&cl_imports_lock);
		cl_table_remove(&pools, &pool->link);
		cl_unlock(&cl_imports_lock);
		free(pool);
	}
	cl_turn_end(&turn);
	return refused ? handle : NULL;
}

void cl_imported_pools_forget(void)
{
	pools = (struct cl_table)CL_TABLE_BEGIN(pools);
	cl_pool_uses_forget();
}
