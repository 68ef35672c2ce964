/* SPDX-License-Identifier: Apache-2.0 */
/* The context objects: see context.h. */
#include <stdatomic.h>
#include <stdlib.h>

#include "shim/base/hot.h"
#include "shim/driver/context.h"
#include "shim/driver/gate.h"
#include "shim/driver/green.h"
#include "shim/driver/visit.h"
#include "shim/self/self.h"

CL_HOT_SHARING_LOCKED struct cl_context cl_context_unknown = { .index = CL_CONTEXT_UNKNOWN };
CL_HOT_SHARING_LOCKED struct cl_list cl_contexts;
struct cl_context *cl_context_at[CL_CONTEXTS] = { [CL_CONTEXT_UNKNOWN] = &cl_context_unknown };
static _Atomic uint64_t made; /* how many objects were made; changes under both locks */
static uint64_t ends_begun;   /* how many ends of contexts have begun */
void (*cl_context_on_lost)(const struct cl_context_end *end);

/* How many calls of this thread may be ending a context.  A thread must not wait for its own call. */
static __thread unsigned int ends __attribute__((tls_model("initial-exec")));

/* Takes both locks that a change of the objects needs. */
static void lock_both(void)
{
	cl_lock(&cl_imports_lock);
	cl_lock(&cl_exports_lock);
}
static void unlock_both(void)
{
	cl_unlock(&cl_exports_lock);
	cl_unlock(&cl_imports_lock);
}

/* ------------------------------------------------------------------- the driver */
/* Sets *@primary to the primary context of @device, NULL: none.  Returns false if the driver won't say. */
static bool ask_for_primary(CUdevice device, CUcontext *primary)
{
	unsigned int flags;
	int active = 0;
	bool ended = false, known = true;

	*primary = NULL;

	/*
	 * Only the retain call says the handle.  It would create an inactive context, so only an
	 * active one is retained, and released at once.
	 */
	if (!cl_driver.cuDevicePrimaryCtxGetState || device < 0 || device >= CL_BORROW_DEVICES)
		return true;
	cl_gate_borrow_begin(device);
	if (cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active) {
		/* there is no primary context */
	} else if (cl_driver.cuDevicePrimaryCtxRetain(primary, device) != CUDA_SUCCESS) {
		*primary = NULL;
		known = false;
	} else {
		if (cl_driver.cuDevicePrimaryCtxRelease_v2)
			cl_driver.cuDevicePrimaryCtxRelease_v2(device);
		else
			cl_driver.cuDevicePrimaryCtxRelease(device);
		/* if the program had released it past our hooks, our release was the last */
		ended = cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
			!active;
	}
	cl_gate_borrow_end(device);
	if (ended && cl_context_on_lost)
		cl_context_on_lost(&(struct cl_context_end){ .device = device, .last = UINT64_MAX });
	return known;
}

/* Sets *@id to the id of @handle, 0: this driver has none.  Returns false if the context has ended. */
static bool ask_for_id(CUcontext handle, uint64_t *id)
{
	unsigned long long says = 0;

	if (cl_driver.cuCtxGetId && cl_driver.cuCtxGetId(handle, &says) != CUDA_SUCCESS)
		return false;
	*id = says;
	return true;
}

/* -------------------------------------------------------------------- the names */
/* If @name is of a green context, makes it the name of its primary context. */
static __attribute__((noinline)) void name_whole(struct cl_context_name *name)
{
	CUdevice device = name->device;

	name->primary = cl_green_resolve(&name->handle);
	/* only in a process that shares does a call that ends the context wait for our borrow */
	if (name->primary && !name->handle && cl_sharing() &&
	    (device >= 0 || cl_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS))
		ask_for_primary(device, &name->handle);
}

CL_HOT_SHARING struct cl_context_name cl_context_name_of(CUcontext handle, CUdevice device)
{
	struct cl_context_name name = { .handle = handle, .device = device };

	if (!handle)
		return name;
	if (cl_green_any())
		name_whole(&name);
	if (name.handle && !ask_for_id(name.handle, &name.id))
		name.handle = NULL;
	return name;
}

CL_HOT_SHARING struct cl_context_name cl_context_name_current(void)
{
	CUcontext current = NULL;

	if (cl_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS)
		current = NULL;
	return cl_context_name_of(current, -1);
}

/* ------------------------------------------------------------------ the objects */
/*
 * For a driver without ids: waits while a call may be ending a context with the handle of @name,
 * because @name may mean that context or a new one.  Waits a second at most: that call may in
 * turn wait for this thread, if the thread runs a host function.  Returns UINT64_MAX if
 * the call has not come back by then, else how many ends have begun so far.
 */
static uint64_t await_end(const struct cl_context_name *name)
{
	uint64_t until = cl_now() + CL_DRIVER_WAIT, begun;
	const struct cl_context *context;

	cl_lock(&cl_exports_lock);
	do {
		CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
			if (context->handle == name->handle && context->state != CL_CONTEXT_LIVE)
				break;
	} while (context && !ends && cl_gate_wait_until_locked(until));
	begun = context ? UINT64_MAX : ends_begun;
	cl_unlock(&cl_exports_lock);
	return begun;
}

/*
 * Checks @name against objects with the same handle and another id.  If there is such an object,
 * either its context has ended past our hooks, or @name is out of date.  Returns false if
 * @name is out of date.  Else tells cl_context_on_lost of the ended context and returns true.
 */
static bool is_right(const struct cl_context_name *name)
{
	struct cl_context_end end = { .handle = name->handle };
	const struct cl_context *context;
	uint64_t now;

	cl_lock(&cl_exports_lock);
	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
		if (context->handle == name->handle && context->id != name->id && context->number > end.last)
			end.last = context->number;
	cl_unlock(&cl_exports_lock);
	if (!end.last)
		return true;
	/* one of the two contexts lives, and ids are never reused: so the id of now decides */
	if (!ask_for_id(name->handle, &now) || now != name->id)
		return false;
	if (cl_context_on_lost)
		cl_context_on_lost(&end);
	return true;
}

/* Returns an index that no object has, CL_CONTEXT_NONE: there is none. */
static uint16_t free_index_locked(void)
{
	for (unsigned int i = CL_CONTEXT_UNKNOWN + 1; i < CL_CONTEXTS; i++)
		if (!cl_context_at[i])
			return (uint16_t)i;
	return CL_CONTEXT_NONE;
}

/* Tries to make an object for @name.  Returns false if a context began to end meanwhile: try again. */
static bool meet(const struct cl_context_name *name)
{
	struct cl_context is = { .handle = name->handle, .id = name->id, .device = name->device };
	uint64_t begun = name->id ? 0 : await_end(name);
	CUcontext primary = name->handle;
	struct cl_context *context;
	bool stays;

	if (begun == UINT64_MAX ||
	    (is.device < 0 && cl_driver.cuCtxGetDevice(&is.device) != CUDA_SUCCESS))
		return true;
	/* what is not primary may be a green context that green.c does not know */
	if (!name->primary && !ask_for_primary(is.device, &primary))
		return true;
	is.primary = primary == is.handle;
	if (!is.primary && cl_green_unsure())
		return true;
	if (name->id && !is_right(name))
		return true;
	context = malloc(sizeof *context);
	if (!context)
		return true;
	lock_both();
	stays = name->id || begun == ends_begun;
	is.index = free_index_locked();
	if (stays && is.index != CL_CONTEXT_NONE && !cl_context_find_locked(name)) {
		is.number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
		*context = is;
		cl_context_at[is.index] = context;
		cl_list_add_front(&cl_contexts, &context->node);
		context = NULL;
	}
	unlock_both();
	free(context);
	return stays;
}

struct cl_context *cl_context_make_locked(const struct cl_context_name *name, struct cl_lock *lock)
{
	uint64_t until = cl_now() + CL_DRIVER_WAIT;

	cl_unlock(lock);
	/* beside a thread that ends contexts in a loop a try may fail often; most take a microsecond */
	while (!meet(name) && cl_now() < until)
		;
	cl_lock(lock);
	return cl_context_find_locked(name);
}

/* --------------------------------------------------------------------- the ends */
static bool is_of(const struct cl_context *context, const struct cl_context_end *end)
{
	return context->number <= end->last && (end->handle ? context->handle == end->handle :
							      context->primary && context->device == end->device);
}

/* Returns true if another thread is in a visit to a context that @end may end, or borrows that context. */
static bool others_are_inside_locked(const struct cl_context_end *end)
{
	const struct cl_context *context;

	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
		if (context->visitors && is_of(context, end) && context->visitors > cl_visits_of_mine(context))
			return true;
	/* a visit to the unknown context may be in any context */
	return cl_context_unknown.visitors > cl_visits_of_mine(&cl_context_unknown) ||
	       (!end->handle && cl_gate_is_borrowed_locked(end->device));
}

CL_HOT_SHARING uint64_t cl_context_last(void)
{
	return atomic_load_explicit(&made, memory_order_relaxed);
}

struct cl_context_end cl_context_close(CUcontext handle, CUdevice device)
{
	struct cl_context_end end = { .handle = handle, .device = device, .closed = true };
	struct cl_context *context;

	lock_both();
	ends_begun++;
	end.last = cl_context_last();
	CL_LIST_EACH (context, &cl_contexts, struct cl_context, node)
		if (is_of(context, &end)) {
			context->state = CL_CONTEXT_ENDING;
			context->ending++;
		}
	if (!handle)
		cl_gate_primary_ends_locked(device, 1);
	cl_unlock(&cl_imports_lock);
	while (others_are_inside_locked(&end))
		cl_gate_wait_locked();
	cl_unlock(&cl_exports_lock);
	ends++;
	return end;
}

void cl_context_open(const struct cl_context_end *end, bool gone, struct cl_list *dead)
{
	struct cl_context *context, *next;

	lock_both();
	CL_LIST_EACH_REMOVING (context, next, &cl_contexts, struct cl_context, node) {
		if (!is_of(context, end))
			continue;
		context->ending -= end->closed;
		if (!context->ending)
			context->state = CL_CONTEXT_LIVE;
		if (gone) {
			context->state = CL_CONTEXT_DEAD;
			cl_list_remove(&cl_contexts, &context->node);
			cl_list_add(dead, &context->node);
		}
	}
	if (end->closed && !end->handle)
		cl_gate_primary_ends_locked(end->device, -1);
	cl_gate_changed_locked();
	unlock_both();
	ends -= end->closed;
}

void cl_context_free_locked(struct cl_context *context)
{
	context->forgotten = true;
	cl_context_at[context->index] = NULL;
	if (!context->visitors)
		free(context);
}

void cl_contexts_forget(void)
{
	cl_contexts = (struct cl_list){ 0 }; /* their memory is leaked: see cl_exporter_begin() */
	cl_context_unknown = (struct cl_context){ .index = CL_CONTEXT_UNKNOWN };
	for (unsigned int i = CL_CONTEXT_UNKNOWN + 1; i < CL_CONTEXTS; i++)
		cl_context_at[i] = NULL;
	ends = 0;
	cl_green_forget();
}

CUresult cl_context_pool_free_refusal(void)
{
	CUresult result = cl_driver.cuMemFree_v2(CL_NO_MEMORY);

	return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;
}

CUresult cl_context_refusal(void)
{
	CUdeviceptr base;
	size_t size;
	CUresult result = cl_driver.cuMemGetAddressRange_v2(&base, &size, 0);

	return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND ? CUDA_ERROR_INVALID_VALUE :
									  result;
}
