/* SPDX-License-Identifier: Apache-2.0 */
/* Opens virtual handles: see virtual.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shim/base/clock.h"
#include "shim/base/log.h"
#include "shim/descriptors/ask.h"
#include "shim/driver/visit.h"
#include "shim/driver/wait.h"
#include "shim/importer/mirror_map.h"
#include "shim/importer/mirror_known.h"
#include "shim/importer/virtual.h"
#include "shim/self/self.h"
#include "shim/shm/gc.h"
#include "shim/shm/liveness.h"
#include "shim/shm/virtual_handle.h"

/* ----------------------------------------------------------- holds of what is mapped */
/* An exporter's allocation that is mapped here, or is about to be.  Under cl_imports_lock. */
struct allocation {
	struct cl_link link;  /* its key: see key_of() */
	uint64_t exporter, id; /* id: record and generation */
	struct cl_hold *hold; /* NULL: there was no memory for a hold, so the exporter's block is only pinned */
	uint64_t times;	      /* how often it is mapped, or is about to be */
};
static struct cl_table allocations = CL_TABLE_BEGIN(allocations);

static uint64_t key_of(uint64_t exporter, uint64_t id)
{
	return cl_hash_word(exporter) ^ id;
}

static struct allocation *find_locked(uint64_t exporter, uint64_t id)
{
	uint64_t key = key_of(exporter, id);
	struct cl_link *link = cl_table_find(&allocations, key);

	for (; link; link = link->next) {
		struct allocation *allocation = (struct allocation *)(void *)link;

		if (link->key == key && allocation->exporter == exporter && allocation->id == id)
			return allocation;
	}
	return NULL;
}

/*
 * Takes a hold on the record that @stamp names, for a first mapping of it.  Returns 0; -EBADMSG if @peer's file has no
 * such record; -ENOMEM; or an error of cl_hold_get_locked().
 */
static int hold_new_locked(struct cl_peer *peer, uint64_t exporter, uint64_t id, const struct cl_stamp *stamp)
{
	uint32_t chunks = atomic_load_explicit(&peer->region.header->record_chunks, memory_order_acquire);
	struct allocation *allocation;
	uint8_t handle[64];
	int err;

	if (stamp->record >= CL_RECORDS || chunks > CL_CHUNKS || stamp->record / CL_CHUNK >= chunks)
		return -EBADMSG;
	allocation = calloc(1, sizeof *allocation);
	if (!allocation)
		return -ENOMEM;
	cl_record_handle(&peer->region, stamp->record, handle);
	err = cl_hold_get_locked(peer, stamp, handle, &allocation->hold);
	if (err) {
		free(allocation);
		return err;
	}
	if (allocation->hold) {
		allocation->hold->pending--;
		allocation->hold->opens++;
	}
	allocation->exporter = exporter;
	allocation->id = id;
	allocation->times = 1;
	allocation->link.key = key_of(exporter, id);
	cl_table_add(&allocations, &allocation->link);
	return 0;
}

/* One mapping of the allocation less: gives up its hold if that was the last. */
static void drop_locked(uint64_t exporter, uint64_t id)
{
	struct allocation *allocation = find_locked(exporter, id);

	if (!allocation || --allocation->times)
		return;
	cl_table_remove(&allocations, &allocation->link);
	if (allocation->hold) {
		allocation->hold->opens--;
		cl_hold_put_locked(allocation->hold);
	}
	free(allocation);
}

static void on_unmapped(const struct cl_mirror_name *name, uint64_t id)
{
	cl_lock(&cl_imports_lock);
	drop_locked(name->exporter, id);
	cl_unlock(&cl_imports_lock);
}

/* ------------------------------------------------------------ what the exporter hands over */
/* What an open has got from the exporter's service so far. */
struct getting {
	struct cl_peer *peer;
	uint32_t file_id, pid;
	uint32_t record; /* of the piece that the handle names */
	uint64_t exporter;
	bool all;	 /* the driver imports each piece, also those that seem to be mapped here already */
	uint64_t known;	 /* so many of the pieces were mapped here before the exporter was asked: the first ones */
	struct cl_serve_run *run; /* the ranges that these cover */
	CUresult result; /* of the driver's last import */
	struct cl_mirror_piece *piece;
	uint64_t n, room;
};

static bool make_room(struct getting *get)
{
	uint64_t room = get->n == get->room ? 2 * get->room + 16 : get->room;
	struct cl_mirror_piece *wide = room == get->room ? get->piece : realloc(get->piece, room * sizeof *wide);

	if (!wide)
		return false;
	get->piece = wide;
	get->room = room;
	return true;
}

/*
 * Leaves out the piece that came last, which the driver does not import since this process cannot reach its device.  It
 * lies beside the one that the handle names.  No behaviour of CUDA says what to do here, since no legacy handle is of
 * memory of several devices.
 */
static void leave_out(struct getting *get)
{
	cl_log_once(CL_LOG_INFO,
		    "memory of process %u is opened without some that lies beside it, on a device that this process cannot "
		    "reach",
		    get->pid);
	cl_lock(&cl_imports_lock);
	drop_locked(get->exporter, get->piece[--get->n].id);
	cl_unlock(&cl_imports_lock);
}

/*
 * Takes one piece from the service: holds its record, and has the driver import @fd unless the allocation is mapped
 * here already.  CUDA_VISIBLE_DEVICES makes no difference, as for a legacy handle (cudaIpcOpenMemHandle()'s
 * documentation).  A piece whose device this process cannot reach at all (one outside its container or cgroup) is left
 * out, unless the handle names it: it stays a hole in the mirror.
 * Returns 0, -EIO if the driver refuses, or another -errno.
 */
static int take(void *arg, const struct cl_piece *piece, int fd)
{
	struct getting *get = arg;
	struct cl_stamp stamp = { .file_id = get->file_id, .record = piece->record, .generation = piece->generation };
	uint64_t id = (uint64_t)piece->record << 32 | piece->generation;
	struct cl_hold_wait wait = { 0 };
	struct cl_mirror_piece *mine;
	struct allocation *allocation;
	bool known;
	int err;

	if (!make_room(get))
		return -ENOMEM;
	do {
		err = 0;
		cl_lock(&cl_imports_lock);
		allocation = find_locked(get->exporter, id);
		known = allocation;
		if (allocation)
			allocation->times++;
		else
			err = hold_new_locked(get->peer, get->exporter, id, &stamp);
		cl_unlock(&cl_imports_lock);
	} while (err == -EAGAIN && cl_hold_wait(&wait));
	if (err)
		return err == -EAGAIN ? -ESTALE : err;
	mine = &get->piece[get->n++];
	*mine = (struct cl_mirror_piece){ .offset = piece->offset, .size = piece->size, .id = id, .fd = -1 };
	if (known && !get->all)
		return 0;
	get->result = cl_driver.cuMemImportFromShareableHandle(&mine->memory, (void *)(intptr_t)fd,
							       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (get->result == CUDA_ERROR_INVALID_DEVICE && piece->record != get->record) {
		get->result = CUDA_SUCCESS;
		leave_out(get);
	}
	return get->result == CUDA_SUCCESS ? 0 : -EIO;
}

/* Returns true if the exporter has the allocation @id mapped. */
static bool is_mapped_there(const struct getting *get, uint64_t id)
{
	uint64_t life = cl_record_life(&get->peer->region, (uint32_t)(id >> 32));

	return cl_life_generation(life) == (uint32_t)id && cl_life_state(life) == CL_EXPORTED;
}

/* Keeps those of the first @n pieces that are held here, and that the exporter still has mapped. */
static void keep_known(struct getting *get, uint64_t n)
{
	cl_lock(&cl_imports_lock);
	for (uint64_t i = 0; i < n; i++) {
		struct allocation *allocation = find_locked(get->exporter, get->piece[i].id);

		if (!allocation || !is_mapped_there(get, allocation->id))
			continue;
		allocation->times++;
		get->piece[get->known++] = get->piece[i];
	}
	cl_unlock(&cl_imports_lock);
	get->n = get->known;
}

/*
 * Finds what this process has mapped already of what @handle names, so that the exporter makes no descriptors of that.
 * Takes holds as take() does.  Without memory the exporter is asked for all.
 */
static void begin_with_known(struct getting *get, const struct cl_virtual_handle *handle, struct cl_asking *asking)
{
	const struct cl_mirror_name name = { get->exporter, handle->reservation };
	uint64_t began = cl_now(), n;

	asking->run = NULL;
	asking->runs = 0;
	if (get->all)
		return;
	n = get->room = cl_mirror_known(&name, handle->size, handle->offset, &get->piece);
	/* another thread has had the turn with the reservation: that was not the exporter */
	cl_patience_excuse(&asking->wait, cl_now() - began);
	get->run = n ? malloc(n * sizeof *get->run) : NULL;
	if (!get->run)
		return;
	keep_known(get, n);
	for (uint64_t i = 0; i < get->known; i++) {
		const struct cl_mirror_piece *piece = &get->piece[i];

		if (asking->runs && get->run[asking->runs - 1].end == piece->offset)
			get->run[asking->runs - 1].end += piece->size;
		else
			get->run[asking->runs++] = (struct cl_serve_run){ piece->offset, piece->offset + piece->size };
	}
	asking->run = get->run;
}

/* All has come.  Returns 0, -ENOMEM, or -ESTALE if what was known before is not mapped there any more. */
static int end_with_known(struct getting *get)
{
	for (uint64_t i = 0; i < get->known; i++)
		if (!is_mapped_there(get, get->piece[i].id))
			return -ESTALE;
	return cl_mirror_merge(get->piece, get->known, get->n - get->known);
}

/*
 * Ends an open, done or failed: gives up the holds of the pieces that it has not mapped, and releases all imported
 * handles, since the driver has its own reference to what is mapped.
 */
static void let_go(struct getting *get)
{
	for (uint64_t i = 0; i < get->n; i++)
		if (get->piece[i].memory)
			cl_driver.cuMemRelease(get->piece[i].memory);
	cl_lock(&cl_imports_lock);
	for (uint64_t i = 0; i < get->n; i++)
		if (!get->piece[i].mapped)
			drop_locked(get->exporter, get->piece[i].id);
	cl_unlock(&cl_imports_lock);
	free(get->piece);
	free(get->run);
	get->piece = NULL;
	get->run = NULL;
	get->n = get->room = get->known = 0;
}

/* ----------------------------------------------------------------------- errors */
/* Returns true if @err says that the exporter has no service now. */
static bool has_no_service(int err)
{
	return err == -ENOENT || err == -ECONNREFUSED || err == -ECONNRESET;
}

CUresult cl_virtual_say(uint32_t pid, int err)
{
	cl_log_once(CL_LOG_WARN,
		    "memory of process %u cannot be opened by its handle: %s (error %d)", pid,
		    err == -ETIMEDOUT ? "it does not answer; is it stopped?" :
		    err == -ETOOMANYREFS ? "too many of this user's descriptors wait in sockets for others to take them; is a process "
					   "stopped that opens such memory?" :
		    err == -EBUSY     ? "what is mapped there changes too often, or its driver refuses it" :
		    err == -EMFILE    ? "there are no descriptors left, here or there" :
		    err == -EPERM     ? "it is another user's, or another process listens in its place" :
		    err == -EPROTO    ? "it has another version of culimbo" :
		    has_no_service(err) ? "it has no descriptor service: it ends, or has lost its socket" :
					strerror(-err),
		    -err);
	return err == -ENOMEM || err == -EMFILE ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cl_virtual_say_refused(uint32_t pid, CUresult result)
{
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return cl_virtual_say(pid, -ENOMEM);
	if (cl_driver_works()) /* else it shuts down */
		cl_log_once(CL_LOG_WARN,
			    "memory of process %u cannot be opened by its handle: the driver refuses to import it or to map it "
			    "for this device (CUDA error %d)",
			    pid, (int)result);
	/* to our caller this error means that the handle is stale */
	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

/* What a handle leads to. */
struct target {
	struct cl_peer *peer;
	uint32_t record, generation;
};
static struct target target_of(const struct cl_resolved *resolved)
{
	return (struct target){ resolved->hold->peer, resolved->stamp.record, resolved->stamp.generation };
}

/* Returns true if the handle of @target is still good: then an answer of -ESTALE was about another piece. */
static bool lives(const struct target *target)
{
	uint64_t life = cl_record_life(&target->peer->region, target->record);

	return cl_life_generation(life) == target->generation && cl_life_state(life) == CL_EXPORTED;
}

/* Returns true if @err says that the handle of @target is stale for good, or that its exporter is dead. */
static bool has_gone(const struct target *target, int err)
{
	if (err == -ESRCH || err == -ESTALE || err == -EBADMSG)
		return true;
	/* an exporter may have lost its service and live on */
	return has_no_service(err) && (!lives(target) || cl_gc_judge(&target->peer->region) == CL_DEAD);
}

/*
 * Returns true if the exporter has removed its file, which it does at its end; its process may live on.  Returns false
 * if somebody else has removed it (logind's RemoveIPC): then the exporter lives, and may make another service.
 */
static bool has_removed_its_file(const struct cl_region *region)
{
	return cl_region_has_no_name(region) &&
	       !cl_liveness_is_exporter(region->header->exporter.pid, region->file_id, false);
}

/*
 * Asking is over, and the last answer was @err.  Returns true if the handle of @target is stale.  If its exporter's file
 * has gone, so has the exporter's service, and the socket of its successor is another process's (-EPERM).  An exporter
 * that has left its file serves nobody, even if the driver takes seconds to let go of it, for which has_gone() waits.
 */
static bool is_stale(const struct target *target, int err)
{
	return has_gone(target, err) ||
	       ((has_no_service(err) || err == -EPERM) && has_removed_its_file(&target->peer->region)) ||
	       (has_no_service(err) &&
		cl_liveness_has_left(&target->peer->region.header->exporter, target->peer->region.file_id));
}

/* Returns true if @err says that the exporter gave nothing in time. */
static bool has_come_late(int err)
{
	return err == -ETIMEDOUT || err == -ETOOMANYREFS;
}

/*
 * @peer has no service now.  Returns true if an open should still wait for one, false if @peer has had none for
 * CL_VIRTUAL_NO_SERVICE.  That time is for all opens together: a program may open thousands of handles of an exporter
 * that has lost its socket for good.
 */
static bool may_be_served(struct cl_peer *peer)
{
	uint64_t now = cl_now(), since = atomic_load(&peer->unserved);

	if (!since && atomic_compare_exchange_strong(&peer->unserved, &since, now))
		since = now;
	return now < since + CL_VIRTUAL_NO_SERVICE;
}

/*
 * The exporter has answered with @err.  Returns true if the importer should ask again: another piece was mapped or
 * unmapped meanwhile, or the exporter lives but has no service.  An exporter that is ending has no service for some time
 * before it is dead, and one that has lost its service makes another at its next export.
 */
static bool may_come(const struct target *target, int err)
{
	if (!has_no_service(err)) {
		atomic_store(&target->peer->unserved, 0);
		/* the exporter answers: callers of cl_virtual_ask() that have waited for a turn wait for it in full */
		if (!has_come_late(err))
			atomic_store(&target->peer->in_vain, 0);
		return err == -ESTALE && lives(target);
	}
	return !has_gone(target, err) && may_be_served(target->peer);
}

/* ------------------------------------------------------------------------- peers */
/* For each device, a bit for each device that has peer access to it.  Bits are only set. */
static _Atomic uint64_t peers[CL_MIRROR_DEVICES];

void cl_virtual_peer(CUdevice of, CUdevice device)
{
	CL_CALLS_OF_OURS;

	if (of < 0 || of >= CL_MIRROR_DEVICES || device < 0 || device >= CL_MIRROR_DEVICES)
		return;
	atomic_fetch_or(&peers[of], UINT64_C(1) << device);
	if (cl_mirrors_any())
		cl_mirrors_add_device(of, device);
}

uint64_t cl_virtual_peers(CUdevice device)
{
	return atomic_load(&peers[device]);
}

/* Gives access to each device that has become a peer of @of since @had was read from peers[]. */
static void add_new_peers(CUdevice of, uint64_t had)
{
	uint64_t new = atomic_load(&peers[of]) & ~had;

	for (CUdevice device = 0; device < CL_MIRROR_DEVICES; device++)
		if (new >> device & 1)
			cl_mirrors_add_device(of, device);
}

/* ------------------------------------------------------------------------- opens */
/*
 * Asks the exporter once, and maps what it hands over.  *@err is 0, or -errno if the exporter or the import has failed.
 * Returns the driver's result; CUDA_ERROR_NOT_FOUND if a piece that was mapped here has been unmapped meanwhile.
 */
static CUresult get_and_map(const struct cl_resolved *resolved, struct cl_asking *asking, CUdevice device,
			    CUdeviceptr *address, int *err)
{
	struct getting *get = asking->arg;
	struct cl_virtual_handle handle;
	struct cl_mirror_want want;
	uint64_t with = atomic_load(&peers[device]);
	CUresult result;

	memcpy(&handle, resolved->handle, sizeof handle);
	asking->offset = handle.offset;
	begin_with_known(get, &handle, asking);
	*err = cl_ask(asking);
	if (*err >= 0)
		*err = end_with_known(get);
	if (*err < 0) {
		result = get->result;
		let_go(get);
		return result;
	}
	want = (struct cl_mirror_want){ .name = { get->exporter, handle.reservation },
					.size = handle.size,
					.offset = handle.offset,
					.device = device,
					.devices = with,
					.piece = get->piece,
					.pieces = get->n };
	result = cl_mirror_open(&want, address);
	if (result == CUDA_SUCCESS)
		add_new_peers(device, with);
	let_go(get);
	return result;
}

/* Sets the exporter to ask, and for how long from @begin on. */
static void begin_asking(struct cl_asking *asking, struct cl_peer *peer, uint64_t begin)
{
	asking->region = &peer->region;
	asking->wait = (struct cl_patience){ .until = begin + CL_VIRTUAL_WAIT,
					     .more = CL_VIRTUAL_WAIT,
					     .latest = begin + CL_VIRTUAL_LONGEST };
	asking->queues = true;
}

CUresult cl_virtual_map(const struct cl_resolved *resolved, CUdevice device, CUdeviceptr *address)
{
	CL_CALLS_OF_OURS;
	const struct target target = target_of(resolved);
	struct cl_peer *peer = resolved->hold->peer;
	struct getting get = { .peer = peer, .file_id = resolved->stamp.file_id, .pid = resolved->pid,
				.record = resolved->stamp.record };
	struct cl_asking asking = { .record = resolved->stamp.record,
				    .generation = resolved->stamp.generation,
				    .take = take,
				    .arg = &get };
	const struct timespec pause = { 0, 1000000 };
	unsigned int starts = 1;
	CUresult result;
	int err;

	if (device < 0 || device >= CL_MIRROR_DEVICES || !cl_mirror_driver_can())
		return CUDA_ERROR_NOT_SUPPORTED;
	get.exporter = (uint64_t)get.file_id << 32 | (uint32_t)cl_mix(peer->region.header->created);
	/* under the lock, so that a thread that unmaps something later sees it */
	cl_lock(&cl_imports_lock);
	if (cl_mirror_on_unmapped != on_unmapped)
		cl_mirror_on_unmapped = on_unmapped;
	cl_unlock(&cl_imports_lock);
	begin_asking(&asking, peer, cl_now());
	for (;;) {
		get.result = CUDA_SUCCESS;
		result = get_and_map(resolved, &asking, device, address, &err);
		/* an allocation that was mapped here has been unmapped since: imports all of them the next time */
		get.all = result == CUDA_ERROR_NOT_FOUND;
		if (!may_come(&target, err) && !get.all)
			break;
		if (cl_patience_is_over(&asking.wait)) {
			result = CUDA_SUCCESS;
			err = -EBUSY;
			break;
		}
		/* what is asked for anew takes its time anew */
		if (starts++ < CL_VIRTUAL_STARTS)
			asking.most = 0;
		else
			asking.queues = false;
		nanosleep(&pause, NULL);
	}
	/* it has answered, and was asked anew */
	if (err == -ETIMEDOUT && starts > 1)
		err = -EBUSY;
	if (err && result == CUDA_SUCCESS)
		result = is_stale(&target, err) ? CUDA_ERROR_INVALID_HANDLE : cl_virtual_say(resolved->pid, err);
	else if (result == CUDA_ERROR_NOT_MAPPED) /* nothing is mapped at that offset any more */
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (result != CUDA_SUCCESS)
		result = cl_virtual_say_refused(resolved->pid, result);
	return result;
}

CUresult cl_virtual_ask(struct cl_asking *asking, struct cl_peer *peer, uint32_t pid, uint64_t since)
{
	const struct target target = { peer, asking->record, asking->generation };
	const struct timespec pause = { 0, 1000000 };
	unsigned int starts = 1;
	int err;

	begin_asking(asking, peer, atomic_load(&peer->in_vain) > since ? since : cl_now());
	while ((err = cl_ask(asking)), may_come(&target, err) && !cl_patience_is_over(&asking->wait)) {
		asking->queues = starts++ < CL_VIRTUAL_STARTS;
		nanosleep(&pause, NULL);
	}
	if (has_come_late(err))
		atomic_store(&peer->in_vain, cl_now());
	if (err >= 0 || err == -EIO)
		return CUDA_SUCCESS;
	return is_stale(&target, err) ? CUDA_ERROR_INVALID_HANDLE : cl_virtual_say(pid, err);
}

/* ------------------------------------------------------------------------ closes */
bool cl_virtual_unmap(CUdeviceptr address, CUresult *result)
{
	/* the driver's close of a legacy handle spoils no capture (measured) */
	CL_CALLS_OF_OURS;
	CUdeviceptr base;
	uint64_t size;

	if (!cl_mirror_find(address, &base, &size, NULL))
		return false;
	/* the driver's close of a legacy handle waits as a free does, and an unmap does not (measured) */
	cl_wait_as_a_free_here();
	return cl_mirror_close(address, result);
}

void cl_virtual_imports_forget(void)
{
	allocations = (struct cl_table)CL_TABLE_BEGIN(allocations);
	memset(peers, 0, sizeof peers);
	cl_mirrors_forget();
}
