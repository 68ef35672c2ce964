/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: see context.h. */
#include <stdlib.h>

#include "shim/driver/context.h"
#include "shim/driver/gate.h"
#include "shim/driver/green.h"
#include "shim/driver/visit.h"
#include "shim/self/self.h"

struct cl_context cl_context_unknown;
struct cl_context *cl_contexts;
static uint64_t made, ends_begun; /* how many objects, and how many ends of contexts */
enum { TRIES = 10 };		  /* to ask about a context while others end all the time */
void (*cl_context_lost)(const struct cl_context_end *end);

/* How many calls of this thread may be ending a context: it does not wait for itself. */
static __thread unsigned int ends __attribute__((tls_model("initial-exec")));

/* The objects are about to change. */
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
/* *primary: the primary context of @device, NULL: it has none.  False: it has one, and does not say which. */
static bool ask_for_primary(CUdevice device, CUcontext *primary)
{
	unsigned int flags;
	int active = 0;
	bool ended = false, known = true;

	*primary = NULL;

	/*
	 * Retaining an inactive one would make it; an active one is only counted,
	 * and counted back.
	 */
	if (!cl_driver.cuDevicePrimaryCtxGetState || device < 0 || device >= CL_ASKED_DEVICES)
		return true;
	cl_gate_borrow_begin(device);
	if (cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active) {
		/* it has none */
	} else if (cl_driver.cuDevicePrimaryCtxRetain(primary, device) != CUDA_SUCCESS) {
		*primary = NULL;
		known = false;
	} else {
		if (cl_driver.cuDevicePrimaryCtxRelease_v2)
			cl_driver.cuDevicePrimaryCtxRelease_v2(device);
		else
			cl_driver.cuDevicePrimaryCtxRelease(device);
		/* the program may have released it past our hooks, so that ours was the last */
		ended = cl_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
			!active;
	}
	cl_gate_borrow_end(device);
	if (ended && cl_context_lost)
		cl_context_lost(&(struct cl_context_end){ .device = device, .last = UINT64_MAX });
	return known;
}

/* False: the driver has ids, and says none of @handle: that has ended. */
static bool ask_for_id(CUcontext handle, uint64_t *id)
{
	unsigned long long says = 0;

	if (cl_driver.cuCtxGetId && cl_driver.cuCtxGetId(handle, &says) != CUDA_SUCCESS)
		return false;
	*id = says;
	return true;
}

/* -------------------------------------------------------------------- the names */
/* Of a green context that is *name: the primary one that it is a part of. */
static __attribute__((noinline)) void name_whole(struct cl_context_name *name)
{
	CUdevice device = name->device;

	name->primary = cl_green_resolve(&name->handle);
	/* Who does not share asks no such question: nobody waits there who gives the context back. */
	if (name->primary && !name->handle && cl_sharing() &&
	    (device >= 0 || cl_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS))
		ask_for_primary(device, &name->handle);
}

struct cl_context_name cl_context_name_of(CUcontext handle, CUdevice device)
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

struct cl_context_name cl_context_name_current(void)
{
	CUcontext current = NULL;

	if (cl_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS)
		current = NULL;
	return cl_context_name_of(current, -1);
}

/* ------------------------------------------------------------------ the objects */
/*
 * Without ids, while a call may be ending the context that has the handle of @name, nobody can say
 * whether that is it.  Waits until none is, a second at most: who ends it may wait for this very
 * thread, which then runs a host function.  Returns how many ends have begun by now.
 */
static uint64_t await_end(const struct cl_context_name *name)
{
	uint64_t until = cl_now() + 5 * CL_END_WAIT, begun;
	const struct cl_context *context;

	cl_lock(&cl_exports_lock);
	do {
		context = cl_contexts;
		while (context && (context->handle != name->handle || context->state == CL_CONTEXT_LIVE))
			context = context->next;
	} while (context && !ends && cl_gate_wait_until_locked(until));
	begun = context ? UINT64_MAX : ends_begun;
	cl_unlock(&cl_exports_lock);
	return begun;
}

/*
 * An object that has the handle of @name, and another id: its context has ended past our hooks,
 * or @name is old.  Returns whether @name is right.
 */
static bool is_right(const struct cl_context_name *name)
{
	struct cl_context_end end = { .handle = name->handle };
	uint64_t now;

	cl_lock(&cl_exports_lock);
	for (const struct cl_context *context = cl_contexts; context; context = context->next)
		if (context->handle == name->handle && context->id != name->id && context->number > end.last)
			end.last = context->number;
	cl_unlock(&cl_exports_lock);
	if (!end.last)
		return true;
	/* asked after that: of the two contexts one lives, and an id is never given again */
	if (!ask_for_id(name->handle, &now) || now != name->id)
		return false;
	if (cl_context_lost)
		cl_context_lost(&end);
	return true;
}

/* Sees to it that there is an object of @name.  False: without ids, a context began to end meanwhile. */
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
	/* what is not primary may be a green one that we have no note of */
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
	if (stays && !cl_context_find_locked(name)) {
		is.number = ++made;
		is.next = cl_contexts;
		*context = is;
		cl_contexts = context;
		context = NULL;
	}
	unlock_both();
	free(context);
	return stays;
}

struct cl_context *cl_context_meet_locked(const struct cl_context_name *name, struct cl_lock *lock)
{
	cl_unlock(lock);
	for (int i = 0; i < TRIES && !meet(name); i++)
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

/* Whether another thread is inside with what @end is of. */
static bool others_are_inside_locked(const struct cl_context_end *end)
{
	for (const struct cl_context *context = cl_contexts; context; context = context->next)
		if (context->visitors && is_of(context, end) && context->visitors > cl_visits_of_mine(context))
			return true;
	/* what it is of is not known: so it may be this */
	return cl_context_unknown.visitors > cl_visits_of_mine(&cl_context_unknown) ||
	       (!end->handle && cl_gate_is_borrowed_locked(end->device));
}

struct cl_context_end cl_context_close(CUcontext handle, CUdevice device)
{
	struct cl_context_end end = { .handle = handle, .device = device, .closed = true };

	lock_both();
	ends_begun++;
	end.last = made;
	for (struct cl_context *context = cl_contexts; context; context = context->next)
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

struct cl_context *cl_context_open(const struct cl_context_end *end, bool gone)
{
	struct cl_context **at = &cl_contexts, *context, *dead = NULL;

	lock_both();
	while ((context = *at) != NULL) {
		if (is_of(context, end)) {
			context->ending -= end->closed;
			if (!context->ending)
				context->state = CL_CONTEXT_LIVE;
			if (gone) {
				*at = context->next;
				context->state = CL_CONTEXT_DEAD;
				context->next = dead;
				dead = context;
				continue;
			}
		}
		at = &context->next;
	}
	if (end->closed && !end->handle)
		cl_gate_primary_ends_locked(end->device, -1);
	cl_gate_changed_locked();
	unlock_both();
	ends -= end->closed;
	return dead;
}

void cl_context_free_locked(struct cl_context *context)
{
	context->forgotten = true;
	if (!context->visitors)
		free(context);
}

void cl_contexts_forget(void)
{
	cl_contexts = NULL; /* their memory is left, see cl_blocks_forget() */
	cl_context_unknown = (struct cl_context){ .handle = NULL };
	ends = 0;
	cl_green_forget();
}

CUresult cl_context_refusal(void)
{
	CUdeviceptr base;
	size_t size;
	CUresult result = cl_driver.cuMemGetAddressRange_v2(&base, &size, 0);

	return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND ? CUDA_ERROR_INVALID_VALUE :
									  result;
}
