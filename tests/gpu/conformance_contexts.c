/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts that are destroyed and created again, and green contexts.
 */
#include "conformance.h"

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>

/* What the end of a context frees, and whether a new context can be told from an old one at its address. */
void contexts(struct worker *unused_a, struct worker *unused_b)
{
	static const char *const whose[] = { "a context", "a primary context" };
	struct worker w;
	struct answer r;

	for (uint64_t in_primary = 0; in_primary < 2; in_primary++) {
		spawn(&w);
		r = ask(&w, EVENT_ROUNDS, 6, 1000, in_primary, 0);
		ok(!r.result && r.v[0] == 6000, "contexts: the end of %s gives back the slots of its interprocess "
		   "events: 1,000 in each of 6, one after the other, not destroyed: %llu (result %d)",
		   whose[in_primary], (unsigned long long)r.v[0], r.result);
		dismiss(&w);
	}
	spawn(&w);
	r = ask(&w, EVENT_NEW, 0, 0, 0, 0);
	r = ask(&w, EVENT_BARE, r.v[0], 0, 0, 0);
	note("measured: cuEventDestroy without a current context: %d (signal %d)", r.result,
	     r.result == CRASHED ? w.signal : 0);
	dismiss(&w);
	for (uint64_t destroy = 0; destroy < 2; destroy++) {
		spawn(&w);
		r = ask(&w, EVENT_ORPHAN, destroy, 0, 0, 0);
		note("measured: %s of an event whose context has ended: %d (signal %d)",
		     destroy ? "cuEventDestroy" : "cuEventQuery", r.result, r.result == CRASHED ? w.signal : 0);
		dismiss(&w);
	}
	spawn(&w);
	r = ask(&w, CONTEXT_IDS, 0, 0, 0, 0);
	if (r.result == CUDA_ERROR_NOT_SUPPORTED)
		ok(true, "contexts # SKIP this driver has no cuCtxGetId");
	else
		ok(!r.result && r.v[0] == r.v[2] && r.v[1] != r.v[3],
		   "contexts: a primary context released and retained again has the same handle and another id "
		   "(%#llx, %#llx; %llu, %llu; result %d)", (unsigned long long)r.v[0], (unsigned long long)r.v[2],
		   (unsigned long long)r.v[1], (unsigned long long)r.v[3], r.result);
	dismiss(&w);
}

/* A green context is a part of the primary context: what is created in it outlives it. */
void green(struct worker *a, struct worker *unused)
{
	static const char *const of[] = { "another context", "the primary context", "the green context" };
	struct worker w, late;
	struct answer r, e;
	uint64_t imported = 0, d, other;
	unsigned char h[64], own[64];
	uint32_t word;
	int result, closed;

	spawn(&w);
	r = ask(&w, GREEN_BEGIN, 0, 0, 0, 0);
	if (r.result == CUDA_ERROR_NOT_SUPPORTED || r.result == CUDA_ERROR_NOT_FOUND) {
		ok(true, "green # SKIP this driver has no green contexts");
		dismiss(&w);
		return;
	}
	ok(!r.result && r.v[1] == 1 && !r.v[3], "green: a block's CU_POINTER_ATTRIBUTE_CONTEXT is %s, its id is "
	   "%sthe primary context's (result %d)", of[r.v[1] % 3], r.v[3] ? "" : "not ", r.result);
	d = r.v[0];
	result = export(&w, d, own);
	e = ask_handle(a, EVENT_OPEN, r.handle);
	ok(!result && !e.result, "green: cuIpcGetMemHandle gives %d; an event made in it opens elsewhere: %d", result,
	   e.result);
	other = alloc(a, 4 * MIB);
	set(a, other, 77, 4 * MIB);
	export(a, other, h);
	result = import(&w, h, &imported);
	note("measured: in a green context: cuIpcOpenMemHandle %d; what it opens is of %s", result,
	     of[ask(&w, CONTEXT_OF, imported, 0, 0, 0).v[0] % 3]);
	result = ask(&w, GREEN_END, 0, 0, 0, 0).result;
	word = get(&w, imported);
	closed = drop(&w, imported);
	ok(!result && word == 77 && !closed, "green: after its end (%d), from the primary context: the import reads %u, "
	   "its close gives %d", result, word, closed);
	set(&w, d, 78, 4 * MIB);
	word = get(&w, d);
	closed = release(&w, d);
	ok(word == 78 && !closed, "green: after its end, the block made in it reads %u, its free gives %d", word, closed);
	result = ask(&w, EVENT_END, r.v[2], 0, 0, 0).result;
	ok(!result, "green: after its end, destroying an event made in it gives %d (signal %d)", result,
	   result == CRASHED ? w.signal : 0);
	dismiss(&w);
	release(a, other);

	spawn(&late);
	ask(&late, GREEN_BEGIN, 0, 0, 0, 0);
	r = ask(&late, GREEN_LAST, 0, 0, 0, 0);
	ok(!r.result && r.v[0] && !r.v[1], "green: all others released the primary context: %s while a green context "
	   "lives, %s after its end (result %d)", r.v[0] ? "active" : "inactive", r.v[1] ? "active" : "inactive", r.result);
	dismiss(&late);
	spawn(&late);
	ask(&late, GREEN_BEGIN, 0, 0, 0, 0);
	ask(&late, GREEN_END, 0, 0, 0, 0);
	result = ask(&late, GREEN_PUSH, 0, 0, 0, 0).result;
	/* with 0 the heap is corrupt afterwards */
	note("measured: making a destroyed green context current gives %d (signal %d)", result,
	     result == CRASHED ? late.signal : 0);
	dismiss(&late);
	spawn(&late);
	ask(&late, GREEN_BEGIN, 0, 0, 0, 0);
	r = ask(&late, GREEN_STREAM, 0, 0, 0, 0);
	ok(!r.result && !r.v[0] && !r.v[1] && !r.v[2], "green: an event of the primary context can be recorded on a stream "
	   "of the green one (%llu), and waited for (%llu, %llu; result %d)", (unsigned long long)r.v[0],
	   (unsigned long long)r.v[1], (unsigned long long)r.v[2], r.result);
	r = ask(&late, GREEN_WRONG, 0, 0, 0, 0);
	note("measured: cuCtxDestroy of a green context gives %llu (signal %d)", (unsigned long long)r.v[0],
	     r.result == CRASHED ? late.signal : 0);
	dismiss(&late);
	spawn(&late);
	ask(&late, GREEN_BEGIN, 0, 0, 0, 0);
	r = ask(&late, GREEN_UNDER, 0, 0, 0, 0);
	note("measured: cuGreenCtxDestroy of what is current gives %llu, cuMemAlloc after it %llu, with %s current "
	     "(result %d)", (unsigned long long)r.v[0], (unsigned long long)r.v[1],
	     r.v[2] == 0 ? "nothing" : r.v[2] == 1 ? "the same" : "another", r.result);
	dismiss(&late);
	spawn(&late);
	ask(&late, GREEN_BEGIN, 0, 0, 0, 0);
	r = ask(&late, GREEN_RESET, 0, 0, 0, 0);
	note("measured: cuDevicePrimaryCtxReset while a green context lives gives %llu, cuMemAlloc in that after it %llu, "
	     "its end %llu (result %d)", (unsigned long long)r.v[0], (unsigned long long)r.v[1],
	     (unsigned long long)r.v[2], r.result);
	dismiss(&late);
}
