/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events, private ones and those that processes share.
 *
 * What must hold:
 * - a bad event handle, or a destroyed event's, always crashes (fact 9); for that, a
 *   destroyed event's memory is not used again for a long time;
 * - an interprocess event has one of its maker's 4,096 places in the pool
 *   (fact 10), and its handle can be opened after it was destroyed;
 * - asking for an event's handle while another context is current crashes (measured);
 * - the end of a context gives back the places of the interprocess events made
 *   in it, and destroying one of them after that crashes (both measured; here
 *   this holds for any event of that context).
 *
 * The handle: bytes 0-3 the maker's pid, 8-15 its cookie, 16-19 the place;
 * 4-7 and 20-63 are zero and not read.  An impossible place crashes the process
 * that opens it, as in the real driver.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define EVENT_MAGIC UINT32_C(0x65766e30)
#define EVENT_GONE UINT32_C(0x676f6e65)
#define QUARANTINE 65536

struct sim_event {
	uint32_t magic;
	unsigned int flags;
	struct sim_event_core *core;
	struct sim_event_core own;
	struct sim_context *context;
	bool maker; /* this process made it as an interprocess event */
	bool opened;
	uint32_t index;
	struct sim_event *next, **at; /* in the list of live events; in quarantine only `next` */
};

static struct sim_event *living;

static struct sim_event *maker_of[SIM_IPC_EVENTS]; /* who has that place */
static unsigned int next_index;
static struct sim_event *gone_head, *gone_tail;
static unsigned int gone;

static struct sim_event *event_of(CUevent handle)
{
	struct sim_event *event = (struct sim_event *)handle;

	if (!event || (uintptr_t)event % sizeof(void *) || event->magic != EVENT_MAGIC)
		sim_crash();
	return event;
}

static struct sim_event *event_new(struct sim_context *context, unsigned int flags)
{
	struct sim_event *event;

	if (gone > QUARANTINE) {
		event = gone_head;
		gone_head = event->next;
		gone--;
	} else {
		event = malloc(sizeof(*event));
	}
	if (!event)
		return NULL;
	memset(event, 0, sizeof(*event));
	event->magic = EVENT_MAGIC;
	event->flags = flags;
	event->context = context;
	event->core = &event->own;
	event->next = living;
	event->at = &living;
	if (living)
		living->at = &event->next;
	living = event;
	return event;
}

/* Puts it aside, so that its memory is not used again for a long time. */
static void event_end(struct sim_event *event)
{
	event->magic = EVENT_GONE;
	if (event->maker)
		maker_of[event->index] = NULL;
	*event->at = event->next;
	if (event->next)
		event->next->at = event->at;
	event->next = NULL;
	if (gone)
		gone_tail->next = event;
	else
		gone_head = event;
	gone_tail = event;
	gone++;
}

SIM_CALL(cuEventCreate, (CUevent *handle, unsigned int flags))
{
	const unsigned int known =
		CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_event *event;
	unsigned int i;

	if (result)
		return result;
	if (!handle || flags & ~known ||
	    ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))) {
		result = CUDA_ERROR_INVALID_VALUE;
		goto out;
	}
	if (flags & CU_EVENT_INTERPROCESS) {
		sim_memory_wait_frees(context); /* fact 34 */
		for (i = 0; i < SIM_IPC_EVENTS; i++)
			if (!maker_of[(next_index + i) % SIM_IPC_EVENTS])
				break;
		if (i == SIM_IPC_EVENTS) {
			result = CUDA_ERROR_OUT_OF_MEMORY;
			goto out;
		}
		i = (next_index + i) % SIM_IPC_EVENTS;
	}
	event = event_new(context, flags);
	if (!event) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	if (flags & CU_EVENT_INTERPROCESS) {
		maker_of[i] = event;
		next_index = i + 1;
		event->maker = true;
		event->index = i;
		event->core = pool_event(i);
		/*
		 * The number only grows, so a process that has the place's last event open is not
		 * confused.
		 */
		atomic_store(&event->core->done, atomic_load(&event->core->recorded));
		atomic_store(&event->core->recorder, 0);
		atomic_store(&event->core->flags, flags);
	}
	*handle = (CUevent)event;
out:
	sim_leave();
	return result;
}

void sim_events_end(struct sim_context *context)
{
	struct sim_event *event, *next;

	for (event = living; event; event = next) {
		next = event->next;
		if (event->context == context)
			event_end(event);
	}
}

SIM_CALL(cuEventDestroy_v2, (CUevent handle))
{
	CUresult result = sim_ready();
	struct sim_event *event;

	if (result)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_HANDLE;
	event = event_of(handle);
	pthread_mutex_lock(&sim.lock);
	event_end(event);
	sim_leave();
	return CUDA_SUCCESS;
}

SIM_CALL(cuEventDestroy, (CUevent handle))
{
	return cuEventDestroy_v2(handle);
}

static void run_record(struct sim_operation *op)
{
	uint64_t done = atomic_load(&op->core->done);

	/* of two streams' recordings the later one counts, even if it is done first */
	if (done < op->a[0])
		atomic_store(&op->core->time_ns, sim_now_ns());
	while (done < op->a[0] && !atomic_compare_exchange_weak(&op->core->done, &done, op->a[0]))
		;
}

SIM_CALL(cuEventRecordWithFlags, (CUevent handle, CUstream stream_handle, unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;
	struct sim_operation *op;
	struct sim_event *event;

	if (result)
		return result;
	event = event_of(handle);
	result = sim_stream_get(context, stream_handle, &stream);
	if (!result && flags > 1)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && sim_stream_context(stream) != event->context && !event->opened)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result) {
		op = sim_operation_new(run_record);
		if (op) {
			op->core = event->core;
			op->is_record = true;
			op->a[0] = atomic_fetch_add(&event->core->recorded, 1) + 1;
			atomic_store(&event->core->recorder, pool_client());
		}
		result = sim_submit(stream, op, NULL);
	}
	sim_leave();
	return result;
}

SIM_CALL(cuEventRecordWithFlags_ptsz, (CUevent handle, CUstream stream, unsigned int flags))
{
	return cuEventRecordWithFlags(handle, SIM_PER_THREAD(stream), flags);
}

SIM_CALL(cuEventRecord, (CUevent handle, CUstream stream))
{
	return cuEventRecordWithFlags(handle, stream, 0);
}

SIM_CALL(cuEventRecord_ptsz, (CUevent handle, CUstream stream))
{
	return cuEventRecordWithFlags(handle, SIM_PER_THREAD(stream), 0);
}

SIM_CALL(cuEventQuery, (CUevent handle))
{
	CUresult result = sim_ready();
	struct sim_event *event;

	if (result)
		return result;
	event = event_of(handle);
	pthread_mutex_lock(&sim.lock);
	result = sim_capture_forbids();
	if (!result)
		result = sim_core_done(event->core, atomic_load(&event->core->recorded))
				 ? event->context->sticky
				 : CUDA_ERROR_NOT_READY;
	sim_leave();
	return result;
}

SIM_CALL(cuEventSynchronize, (CUevent handle))
{
	CUresult result = sim_ready();
	struct sim_event_core *core;
	struct sim_event *event;
	uint64_t recorded;

	if (result)
		return result;
	event = event_of(handle);
	pthread_mutex_lock(&sim.lock);
	core = event->core;
	recorded = atomic_load(&core->recorded);
	result = sim_capture_forbids();
	if (result)
		goto out;
	while (!sim_core_done(core, recorded))
		sim_wait_changed(core == &event->own ? 0 : 100000);
	sim_memory_waited();
	result = event->context->sticky;
out:
	sim_leave();
	return result;
}

SIM_CALL(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end))
{
	CUresult result = sim_ready();
	struct sim_event *from, *to;

	if (result)
		return result;
	from = event_of(start);
	to = event_of(end);
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING || !atomic_load(&from->core->recorded) ||
	    !atomic_load(&to->core->recorded))
		return CUDA_ERROR_INVALID_HANDLE;
	if (atomic_load(&from->core->done) < atomic_load(&from->core->recorded) ||
	    atomic_load(&to->core->done) < atomic_load(&to->core->recorded))
		return CUDA_ERROR_NOT_READY;
	*milliseconds = (float)((double)(int64_t)(atomic_load(&to->core->time_ns) -
						  atomic_load(&from->core->time_ns)) /
				1e6);
	return CUDA_SUCCESS;
}

SIM_CALL(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end))
{
	return cuEventElapsedTime(milliseconds, start, end);
}

static void run_nothing(struct sim_operation *op)
{
}

SIM_CALL(cuStreamWaitEvent, (CUstream stream_handle, CUevent handle, unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;
	struct sim_event *event;

	if (result)
		return result;
	event = event_of(handle);
	result = sim_stream_get(context, stream_handle, &stream);
	if (!result)
		result = sim_submit_after(stream, sim_operation_new(run_nothing), event->core,
					  atomic_load(&event->core->recorded), NULL);
	sim_leave();
	return result;
}

SIM_CALL(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent handle, unsigned int flags))
{
	return cuStreamWaitEvent(SIM_PER_THREAD(stream), handle, flags);
}

/* ---- between processes ---- */

SIM_CALL(cuIpcGetEventHandle, (CUipcEventHandle *handle, CUevent event_handle))
{
	CUresult result = sim_ready();
	struct sim_context *context;
	struct sim_event *event;
	uint64_t cookie;
	uint32_t pid;

	if (result)
		return result;
	event = event_of(event_handle);
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_enter(&context)) {
		sim_leave();
		if (event->context != context)
			sim_crash();
	}
	if (!event->maker)
		return CUDA_ERROR_INVALID_HANDLE;
	memset(handle, 0, sizeof(*handle));
	pid = pool_pid();
	cookie = pool_cookie();
	memcpy(handle->reserved, &pid, 4);
	memcpy(handle->reserved + 8, &cookie, 8);
	memcpy(handle->reserved + 16, &event->index, 4);
	if (sim_options()->random_tail) {
		uint64_t tail = sim_handle_tail(event->index);

		memcpy(handle->reserved + 56, &tail, sizeof(tail));
	}
	return CUDA_SUCCESS;
}

SIM_CALL(cuIpcOpenEventHandle, (CUevent *event_handle, CUipcEventHandle handle))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_event_core *core;
	struct sim_event *event;
	uint32_t pid, index;
	uint64_t cookie;
	bool known;

	if (result)
		return result;
	memcpy(&pid, handle.reserved, 4);
	memcpy(&cookie, handle.reserved + 8, 8);
	memcpy(&index, handle.reserved + 16, 4);
	if (!event_handle) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (pid == pool_pid()) {
		/*
		 * this process's own, or one of the same pid in another PID namespace: the driver
		 * can't tell (fact 28)
		 */
		result = CUDA_ERROR_INVALID_CONTEXT;
	} else {
		if (index >= SIM_IPC_EVENTS) {
			sim_leave();
			sim_crash();
		}
		core = pool_find_event(pid, cookie, index, &known);
		if (!core && !known && pool_has_cookie(cookie)) {
			result = CUDA_ERROR_MAP_FAILED; /* the maker's pid was changed (fact 28) */
		} else if (!core || !atomic_load(&core->flags)) {
			result = CUDA_ERROR_INVALID_VALUE;
		} else {
			event = event_new(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
			if (event) {
				event->core = core;
				event->opened = true;
				*event_handle = (CUevent)event;
			} else {
				result = CUDA_ERROR_OUT_OF_MEMORY;
			}
		}
	}
	sim_leave();
	return result;
}
