/* SPDX-License-Identifier: Apache-2.0 */
/* Closes imports: see close.h. */
#include "shim/base/hot.h"
#include "shim/diag/happened.h"
#include "shim/diag/report_data.h"
#include "shim/diag/recent_closes.h"
#include "shim/driver/context.h"
#include "shim/importer/close.h"
#include "shim/importer/mappings.h"
#include "shim/self/self.h"

static _Atomic bool events_closed; /* some imported event was destroyed */

/*
 * Finds a mapping at @key that is not just being closed for the last time by another thread; the
 * driver may be done with that, and have given the address to a block or an event of this process.
 * The same holds where its context may be ending: such mappings count only with @going.
 */
CL_HOT_SHARING static struct cl_mapping *find_to_close_locked(enum cl_kind kind, uint64_t key, bool going)
{
	struct cl_mapping *mapping;

	CL_CHAIN_EACH (mapping, cl_mapping_find_locked(kind, key), struct cl_mapping, node)
		if (mapping->opens > mapping->closing && (going || !cl_mapping_is_going(mapping)))
			break;
	return mapping;
}

/*
 * Several contexts have opened @key.  Returns the mapping of the current context if that has one open, else that of
 * the oldest open that is not being closed, or NULL if none is open any more.  Lets go of the lock meanwhile.
 */
static struct cl_mapping *find_of_current(enum cl_kind kind, uint64_t key)
{
	struct cl_context_name current;
	struct cl_mapping *mapping;
	const struct cl_context *context;

	cl_unlock(&cl_imports_lock);
	current = cl_context_name_current();
	cl_lock(&cl_imports_lock);
	context = cl_context_find_locked(&current);
	CL_CHAIN_EACH (mapping, cl_mapping_find_locked(kind, key), struct cl_mapping, node)
		if (mapping->opens > mapping->closing && context && mapping->of.context == context)
			break;
	return mapping ? mapping : find_to_close_locked(kind, key, false);
}

CL_HOT_SHARING struct cl_mapping *cl_close_begin(enum cl_kind kind, uint64_t key, cl_is_own_fn *is_own, bool *last)
{
	struct cl_mapping *mapping;

	cl_lock(&cl_imports_lock);
	mapping = find_to_close_locked(kind, key, false);
	if (mapping && __builtin_expect(mapping->node.prev || mapping->node.next, 0))
		mapping = find_of_current(kind, key);
	/* that context may also live on: the call may only give back another reference to it */
	if (!mapping && (mapping = find_to_close_locked(kind, key, true)) != NULL && is_own(kind, key))
		mapping = NULL;
	if (mapping)
		mapping->closing++;
	*last = mapping && mapping->opens <= mapping->closing;
	cl_unlock(&cl_imports_lock);
	return mapping;
}

CL_HOT_SHARING void cl_close_end(enum cl_kind kind, struct cl_mapping *mapping, bool closed, bool last)
{
	uint32_t stack = closed && last ? cl_stack_write(true) : 0;

	cl_lock(&cl_imports_lock);
	cl_mapping_closed_locked(kind, mapping, closed, stack);
	cl_unlock(&cl_imports_lock);
}

void cl_close_again(CUdeviceptr dptr)
{
	struct cl_about before = { .key = dptr, .kind = CL_MEMORY };

	cl_recent_closes_find(CL_MEMORY, dptr, &before);
	cl_happened(CL_FINDING_CLOSED_TWICE, &before, cl_stack_write(true));
}

bool cl_import_event_destroy(CUevent event, CUresult (*destroy)(CUevent), cl_is_own_fn *is_own,
			     CUresult *result)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct cl_about closed;
	uint32_t stack;
	bool last;
	struct cl_mapping *mapping = cl_close_begin(CL_EVENT, key, is_own, &last);

	if (!mapping)
		return false;
	/* logged before the call: after it another thread's new event may be at this address */
	if (last) {
		stack = cl_stack_write(true);
		cl_lock(&cl_imports_lock);
		cl_mapping_last_close(&closed, CL_EVENT, mapping, stack);
		cl_recent_closes_add_event(&closed);
		/* release: for cl_import_event_created() of an event that the driver makes in its place */
		atomic_store_explicit(&events_closed, true, memory_order_release);
		cl_unlock(&cl_imports_lock);
	}
	*result = destroy(event);
	if (last && *result != CUDA_SUCCESS)
		cl_recent_closes_remove(CL_EVENT, key);
	cl_close_end(CL_EVENT, mapping, *result == CUDA_SUCCESS, false);
	return true;
}

/*
 * This is wrong about one event: one that the program made at such an address past every
 * hook, by the driver's own pointer, and destroys through a hook.  It cannot be told
 * apart: the driver does not say whether an event lives, and crashes on a destroyed one
 * (measured).  A crash would be worse, so this one event stays until its context or the
 * process ends.
 */
bool cl_import_event_destroyed_again(CUevent event)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct cl_about before;

	if (!atomic_load_explicit(&events_closed, memory_order_acquire) ||
	    !cl_recent_closes_find(CL_EVENT, key, &before))
		return false;
	cl_happened(CL_FINDING_EVENT_DESTROYED_TWICE, &before, cl_stack_write(true));
	return true;
}

void cl_import_event_created(CUevent event)
{
	if (atomic_load_explicit(&events_closed, memory_order_acquire))
		cl_recent_closes_remove(CL_EVENT, (uint64_t)(uintptr_t)event);
}
