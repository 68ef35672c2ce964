/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of pools that were opened by handles: see pool_opens.h. */
#include <stdlib.h>

#include "shim/importer/mappings.h"
#include "shim/limbo/collector.h"
#include "shim/limbo/exporter.h"
#include "shim/limbo/pool_ends.h"
#include "shim/limbo/pool_imports.h"
#include "shim/limbo/pool_opens.h"
#include "shim/self/self.h"

/* The opens of one address in one context. */
struct cl_pool_open {
	struct cl_link link; /* its key: the address */
	struct cl_belongs of;
	uint64_t opens, closing; /* an open whose close is in the driver is counted in both */
	struct cl_imported_pool *pool;
};

_Atomic uint64_t cl_pool_opens_n;
static struct cl_table opens = CL_TABLE_BEGIN(opens); /* under cl_imports_lock */

/* Returns the first open of @address from @link on, or NULL. */
static struct cl_pool_open *next_locked(const struct cl_link *link, CUdeviceptr address)
{
	while (link && link->key != address)
		link = link->next;
	return (struct cl_pool_open *)(void *)(uintptr_t)link;
}

static struct cl_pool_open *first_locked(CUdeviceptr address)
{
	return cl_table_find(&opens, address);
}

/* Returns an open of @address that is not being closed, one of @context if there is any; or NULL. */
static struct cl_pool_open *find_locked(CUdeviceptr address, const struct cl_context *context)
{
	struct cl_pool_open *open, *other = NULL;

	for (open = first_locked(address); open; open = next_locked(open->link.next, address)) {
		if (open->opens <= open->closing)
			continue;
		if (open->of.context == context)
			return open;
		other = open;
	}
	return other;
}

struct cl_pool_open *cl_pool_open_prepare(void)
{
	return calloc(1, sizeof(struct cl_pool_open));
}

void cl_pool_open_discard(struct cl_pool_open *open)
{
	free(open);
}

/* Counts one open by handle more (@by 1) or less (-1) in the import at @address.  The caller holds cl_imports_lock. */
static void count_by_handle(CUdeviceptr address, int by)
{
	struct cl_pool_import *import = cl_pool_import_find_locked(address);

	if (import && (by > 0 || import->by_handle))
		import->by_handle += (uint64_t)by;
}

void cl_pool_open_add(struct cl_pool_open *fresh, CUdeviceptr address, const struct cl_context_name *name,
		      struct cl_imported_pool *pool)
{
	struct cl_context *context;
	struct cl_pool_open *open;

	cl_lock(&cl_imports_lock);
	context = cl_context_get_locked(name, &cl_imports_lock);
	for (open = first_locked(address); open; open = next_locked(open->link.next, address))
		if (open->of.context == context && open->pool == pool)
			break;
	if (!open) {
		open = fresh;
		fresh = NULL;
		open->link.key = address;
		open->pool = pool;
		if (context)
			cl_belongs_to(&open->of, context, &context->pool_opens);
		cl_table_add(&opens, &open->link);
		atomic_fetch_add_explicit(&cl_pool_opens_n, 1, memory_order_relaxed);
	}
	open->opens++;
	count_by_handle(address, 1);
	cl_unlock(&cl_imports_lock);
	free(fresh);
}

void cl_pool_open_gives_up(struct cl_exporter *ex, struct cl_imported_pool *pool)
{
	/* the program destroys nothing: a capture of it must not become invalid */
	CL_CALLS_OF_OURS;
	CUmemoryPool refused = cl_imported_pool_put(pool);

	if (refused)
		cl_pool_end_later(ex, refused);
}

/* Ends a close of @open, which .closing counts. */
static void end_close(struct cl_exporter *ex, struct cl_pool_open *open, bool closed)
{
	struct cl_imported_pool *pool = open->pool;

	cl_lock(&cl_imports_lock);
	open->closing--;
	if (closed)
		open->opens--;
	else
		count_by_handle(open->link.key, 1);
	if (!open->opens && !open->closing) {
		cl_belongs_to_none(&open->of);
		cl_table_remove(&opens, &open->link);
		free(open);
		atomic_fetch_sub_explicit(&cl_pool_opens_n, 1, memory_order_relaxed);
	}
	cl_unlock(&cl_imports_lock);
	if (closed)
		cl_pool_open_gives_up(ex, pool);
}

/* Closes one open of @open, of which .closing counts this call. */
static CUresult close_one(struct cl_exporter *ex, struct cl_pool_open *open, bool *wake)
{
	CUresult result = CUDA_SUCCESS;

	if (!cl_pool_import_free(ex, open->link.key, &result, wake))
		result = cl_driver.cuMemFree_v2(open->link.key);
	/*
	 * the driver has no such import any more: there was no memory to remember it, and another close has ended it; or
	 * the program has unmapped it past our hooks
	 */
	if (result == CUDA_ERROR_INVALID_VALUE)
		result = CUDA_SUCCESS;
	end_close(ex, open, result == CUDA_SUCCESS);
	return result;
}

bool cl_pool_open_close(struct cl_exporter *ex, CUdeviceptr address, CUresult *result, bool *wake)
{
	struct cl_context_name name = cl_context_name_current();
	struct cl_pool_open *open;

	cl_lock(&cl_imports_lock);
	open = find_locked(address, cl_context_find_locked(&name));
	if (open) {
		open->closing++;
		count_by_handle(address, -1);
	}
	cl_unlock(&cl_imports_lock);
	if (open)
		*result = close_one(ex, open, wake);
	return open;
}

bool cl_pool_open_is_open_locked(CUdeviceptr address)
{
	return cl_pool_opens_any() && find_locked(address, NULL);
}

bool cl_pool_open_is_open(CUdeviceptr address)
{
	bool is;

	cl_lock(&cl_imports_lock);
	is = cl_pool_open_is_open_locked(address);
	cl_unlock(&cl_imports_lock);
	return is;
}

bool cl_pool_open_refuses_free(CUdeviceptr address)
{
	const struct cl_pool_import *import;
	bool refuses;

	cl_lock(&cl_imports_lock);
	import = cl_pool_import_find_locked(address);
	refuses = import && import->by_handle && import->mapping.opens <= import->by_handle;
	cl_unlock(&cl_imports_lock);
	return refuses;
}

bool cl_pool_open_find(CUdeviceptr address, CUdeviceptr *base, size_t *size, CUcontext *context)
{
	const struct cl_pool_open *open;

	if (cl_driver.cuMemGetAddressRange_v2(base, size, address) != CUDA_SUCCESS)
		return false;
	cl_lock(&cl_imports_lock);
	open = first_locked(*base);
	*context = open && open->of.context ? open->of.context->handle : NULL;
	cl_unlock(&cl_imports_lock);
	return open;
}

void cl_pool_opens_lost(struct cl_exporter *ex, struct cl_context *context)
{
	struct cl_pool_open *open;
	bool wake = false;
	uint64_t n;

	cl_lock(&cl_imports_lock);
	while ((open = CL_LIST_FIRST(&context->pool_opens, struct cl_pool_open, of.node)) != NULL) {
		CUdeviceptr address = open->link.key;

		cl_belongs_to_none(&open->of);
		n = open->opens - open->closing;
		open->closing += n;
		for (uint64_t i = 0; i < n; i++)
			count_by_handle(address, -1);
		cl_unlock(&cl_imports_lock);
		for (; n; n--)
			close_one(ex, open, &wake);
		cl_lock(&cl_imports_lock);
	}
	cl_unlock(&cl_imports_lock);
	if (wake)
		cl_collector_wake(ex);
}

void cl_pool_opens_outlive(struct cl_context *context)
{
	struct cl_pool_open *open;

	cl_lock(&cl_imports_lock);
	while ((open = CL_LIST_FIRST(&context->pool_opens, struct cl_pool_open, of.node)) != NULL)
		cl_belongs_to_none(&open->of);
	cl_unlock(&cl_imports_lock);
}

void cl_pool_opens_forget(void)
{
	opens = (struct cl_table)CL_TABLE_BEGIN(opens);
	cl_pool_opens_n = 0;
}
