/* SPDX-License-Identifier: Apache-2.0 */
/* Closing: see close.h. */
#include "shim/diag/happened.h"
#include "shim/diag/notes.h"
#include "shim/diag/recent_closes.h"
#include "shim/importer/close.h"
#include "shim/importer/mappings.h"
#include "shim/self/self.h"

static _Atomic bool events_closed; /* some imported event was destroyed */

/*
 * One that another thread is not closing for the last time already, or with its context
 * (@going): the driver may have done so, and given the address to a block (an event) of
 * this process.
 */
static struct cl_mapping *find_to_close_locked(enum cl_kind kind, uint64_t key, bool going)
{
	struct cl_mapping *mapping;

	CL_CHAIN_EACH (mapping, cl_mapping_find_locked(kind, key), struct cl_mapping, node)
		if (mapping->opens > mapping->closing && (going || !cl_mapping_is_going(mapping)))
			break;
	return mapping;
}

struct cl_mapping *cl_close_begin(enum cl_kind kind, uint64_t key, cl_is_own_fn *is_own, bool *last)
{
	struct cl_mapping *mapping;

	cl_lock(&cl_imports_lock);
	mapping = find_to_close_locked(kind, key, false);
	/* its context may live on: it was another's reference to it that was given back */
	if (!mapping && (mapping = find_to_close_locked(kind, key, true)) != NULL && is_own(kind, key))
		mapping = NULL;
	if (mapping)
		mapping->closing++;
	*last = mapping && mapping->opens <= mapping->closing;
	cl_unlock(&cl_imports_lock);
	return mapping;
}

void cl_close_end(enum cl_kind kind, struct cl_mapping *mapping, bool closed, bool last)
{
	uint32_t stack = closed && last ? cl_notes_stack(true) : 0;

	cl_lock(&cl_imports_lock);
	cl_mapping_closed_locked(kind, mapping, closed, stack);
	cl_unlock(&cl_imports_lock);
}

void cl_close_again(CUdeviceptr dptr)
{
	struct cl_about before = { .key = dptr, .kind = CL_MEMORY };

	cl_notes_find_closed(CL_MEMORY, dptr, &before);
	cl_happened(CL_FOUND_CLOSED_TWICE, &before, cl_notes_stack(true));
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
	/* noted before: once the driver has it, another thread's new event may be there */
	if (last) {
		stack = cl_notes_stack(true);
		cl_lock(&cl_imports_lock);
		cl_mapping_last_close(&closed, CL_EVENT, mapping, stack);
		cl_notes_closed_event(&closed);
		/* release: with who makes an event where the driver has destroyed this one */
		atomic_store_explicit(&events_closed, true, memory_order_release);
		cl_unlock(&cl_imports_lock);
	}
	*result = destroy(event);
	if (last && *result != CUDA_SUCCESS)
		cl_notes_not_closed(CL_EVENT, key);
	cl_close_end(CL_EVENT, mapping, *result == CUDA_SUCCESS, false);
	return true;
}

/*
 * It is wrong about one event: that the program made past every hook, by a pointer of
 * its own to the driver, where such an import was, and destroys by a hook.  That cannot
 * be known: the driver says of no event whether it lives, it reads what it is given, and
 * crashes on what is destroyed (measured).  So of the two it is the crash that is ruled
 * out; that one event stays until its context, or the process, ends.
 */
bool cl_import_event_destroyed_again(CUevent event)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct cl_about before;

	if (!atomic_load_explicit(&events_closed, memory_order_acquire) ||
	    !cl_notes_find_closed(CL_EVENT, key, &before))
		return false;
	cl_happened(CL_FOUND_EVENT_DESTROYED_TWICE, &before, cl_notes_stack(true));
	return true;
}

void cl_import_event_is_new(CUevent event)
{
	if (atomic_load_explicit(&events_closed, memory_order_acquire))
		cl_notes_not_closed(CL_EVENT, (uint64_t)(uintptr_t)event);
}
