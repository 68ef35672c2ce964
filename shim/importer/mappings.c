/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: what this process opened of others, memory and events.
 *
 * A hold is one of these per record, whatever the number of opens; it owns our
 * bit in the exporter's file from before the driver's first open until after
 * the driver's last close.  A mapping is one per address (event) that the
 * driver gave us.  Both are under cl_imports_lock, which is let go of around
 * the driver's calls; what is in flight meanwhile is counted (pending,
 * closing), so that neither goes away under it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/blocks/blocks.h"
#include "shim/limbo/collector.h"
#include "shim/driver/context.h"
#include "shim/shm/gc.h"
#include "shim/importer/mappings.h"
#include "shim/limbo/limbo.h"
#include "shim/base/log.h"
#include "shim/diag/notes.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"
#include "shim/shm/view.h"

struct mapping {
	struct cl_link link;   /* the newest of its address is in the table, the others behind it */
	struct mapping *older; /* of the same address: in another context, or just being closed */
	struct mapping *newer;
	struct hold *hold;     /* NULL: unmanaged */
	CUcontext ctx;
	CUdevice device;
	uint64_t opens, closing, since, size;
	uint32_t note, stack, exporter_pid; /* for reports: its entry there, of the first open */
	bool primary;
	bool within; /* it is some hold's `first` */
};
struct hold {
	struct cl_link link;
	struct cl_peer *peer;
	uint32_t generation;
	bool pinned;	      /* no bit of ours: the block is kept for good */
	bool stale;	      /* its bit was lost, and its block has gone: not to be opened any more */
	bool aside;	      /* not in the table any more: another of its record is */
	bool gone;	      /* nor is it open: its memory goes with `first` */
	bool mapped;	      /* `first` is in use */
	uint64_t opens;	      /* of all its mappings */
	uint64_t pending;     /* threads in the driver's open with it */
	struct mapping first; /* one allocation for most imports */
};

static struct cl_table holds = CL_TABLE_BEGIN(holds);
static struct cl_table mappings[] = { /* for each enum cl_kind; the key: device address, or the CUevent */
	CL_TABLE_BEGIN(mappings[0]),
	CL_TABLE_BEGIN(mappings[1]),
	CL_TABLE_BEGIN(mappings[2]),
};
static struct cl_context_tally tally; /* of all mappings */
/* What was freed last, for the next: a program that opens and closes in turn needs no allocation. */
#ifdef __has_feature /* clang's way to say so */
#if __has_feature(address_sanitizer)
#define FREED_IS_FREED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(FREED_IS_FREED) /* it is to see what is used when it was freed */
enum { MOST_SPARE = 0 };
#else
enum { MOST_SPARE = 64 };
#endif
static struct cl_link *spare;
static unsigned int spare_n;
static _Atomic bool events_closed;  /* some imported event was destroyed */

static uint64_t tail_of(const void *handle)
{
	uint64_t tail;

	memcpy(&tail, (const char *)handle + 56, sizeof tail);
	return tail;
}

/* -------------------------------------------------------------------- holds */
static uint64_t hold_key(uint32_t file_id, uint32_t record)
{
	return (uint64_t)file_id << 32 | record;
}
static uint32_t file_of(const struct hold *hold)
{
	return (uint32_t)(hold->link.key >> 32);
}
static uint32_t record_of(const struct hold *hold)
{
	return (uint32_t)hold->link.key;
}

static struct hold *hold_new_locked(void)
{
	struct cl_link *link = spare;

	if (!link)
		return malloc(sizeof(struct hold));
	spare = link->next;
	spare_n--;
	return (struct hold *)link;
}

static void hold_free_locked(struct hold *hold)
{
	if (spare_n == MOST_SPARE) {
		free(hold);
		return;
	}
	hold->link.next = spare;
	spare = &hold->link;
	spare_n++;
}

/* Its exporter keeps the block for good, whoever closes it.  0, -ESTALE or -EBADMSG. */
static int pin(struct cl_peer *peer, struct cl_stamp stamp, const void *handle)
{
	int err = cl_record_pin(&peer->region, stamp.record, stamp.generation, handle);

	if (!err)
		cl_count(pinned);
	return err;
}

static bool is_refusal(int err)
{
	return err == -ESTALE || err == -EBADMSG;
}

/*
 * We were taken for dead and have a new slot: holds again what we still have
 * open or are just opening, where its exporter has not given it away.
 */
static void hold_again_locked(struct cl_peer *peer)
{
	struct cl_link *link, *next;
	uint8_t handle[64];
	unsigned int lost = 0;

	CL_TABLE_EACH (&holds, link, next) {
		struct hold *hold = (struct hold *)link;
		struct cl_stamp stamp = { .record = record_of(hold), .generation = hold->generation };
		int err = -EUSERS;

		if (hold->peer != peer || hold->pinned || !(hold->opens || hold->pending))
			continue;
		cl_record_handle(&peer->region, record_of(hold), handle);
		if (peer->slot >= 0)
			err = cl_record_hold(&peer->region, (unsigned int)peer->slot, stamp.record,
					     hold->generation, handle);
		if (!err)
			continue;
		hold->pinned = true; /* no bit of ours to clear */
		/* what is just being opened can still be refused, and is kept if it can't be held */
		if (!hold->opens)
			hold->stale = is_refusal(err) || pin(peer, stamp, handle);
		else
			lost++;
	}
	cl_log(CL_LOG_WARN,
	       "the program closed culimbo's descriptors and was taken for dead by process %u, which is in "
	       "another PID namespace: %u blocks that are open here are not protected any more",
	       peer->region.header->exporter.pid, lost);
}

/* No memory for a hold: its exporter keeps the block. */
static int pin_unnoted(struct cl_peer *peer, struct cl_stamp stamp, const void *handle)
{
	int err = pin(peer, stamp, handle);

	if (!err)
		cl_log_once(CL_LOG_WARN,
			    "no memory to note what is opened here of process %u: it is kept by it until it "
			    "ends, freed or not",
			    peer->region.header->exporter.pid);
	return err;
}

/* The same for want of a slot, or of its lock. */
static int pin_unheld(struct cl_peer *peer, struct cl_stamp stamp, const void *handle, int why)
{
	cl_log_once(CL_LOG_WARN,
		    "no room among the holders of process %u (error %d): what is opened here is kept "
		    "by it until it ends, freed or not",
		    peer->region.header->exporter.pid, -why);
	return pin(peer, stamp, handle);
}

/*
 * Our bit keeps its generation.  Where the record of @hold has gone on to another
 * all the same, somebody took us for dead, and it: what is opened now is no matter of
 * what we still have open of that block.  False: the file is damaged.
 */
static bool put_aside_locked(struct hold *hold)
{
	bool lost;

	cl_peer_need_slot(hold->peer, &lost);
	if (lost)
		hold_again_locked(hold->peer);
	if (!hold->pinned)
		return false;
	cl_table_remove(&holds, &hold->link);
	hold->aside = true;
	return true;
}

/*
 * Where @peer has ended, and a later process has its number: what is still open of the
 * one is no matter of what is opened of the other.
 */
static bool put_aside_succeeded_locked(struct cl_peer *peer)
{
	struct cl_link *link, *next;

	if (!cl_peer_is_succeeded(peer))
		return false;
	CL_TABLE_EACH (&holds, link, next) {
		struct hold *hold = (struct hold *)link;

		if (hold->peer != peer)
			continue;
		cl_table_remove(&holds, link);
		hold->aside = true;
	}
	cl_peer_put_aside(peer);
	return true;
}

static bool has_gone_on(const struct hold *hold)
{
	return cl_life_generation(cl_record_life(&hold->peer->region, record_of(hold))) !=
	       hold->generation;
}

/*
 * Takes (or shares) the hold of what @stamp names.  0 with *held set (NULL: it is
 * pinned), or -ESTALE, -EBADMSG.
 */
static int hold_get_locked(struct cl_peer *peer, struct cl_stamp stamp, const void *handle,
			   struct hold **held)
{
	uint64_t key = hold_key(stamp.file_id, stamp.record);
	struct hold *hold = cl_table_find(&holds, key);
	bool lost;
	int err;

	if (hold && __builtin_expect(has_gone_on(hold), 0) && put_aside_locked(hold))
		hold = NULL;
	if (hold) {
		/* our bit keeps its generation: any other is stale, and its bit must not be touched */
		if (hold->generation != stamp.generation)
			return -ESTALE;
		if (!cl_record_is(&hold->peer->region, stamp.record, handle))
			return -EBADMSG;
		cl_record_opened(&hold->peer->region, stamp.record);
		hold->pending++;
		*held = hold;
		return 0;
	}
	hold = hold_new_locked();
	if (!hold)
		return pin_unnoted(peer, stamp, handle);
	hold->link.key = key;
	hold->peer = peer;
	hold->generation = stamp.generation;
	hold->pinned = hold->stale = hold->aside = hold->gone = hold->mapped = false;
	hold->opens = hold->pending = 0;
	cl_table_add(&holds, &hold->link);
	err = cl_peer_need_slot(peer, &lost);
	if (lost)
		hold_again_locked(peer);
	if (!err)
		err = cl_record_hold(&peer->region, (unsigned int)peer->slot, stamp.record,
				     stamp.generation, handle);
	if (err && !is_refusal(err)) {
		err = pin_unheld(peer, stamp, handle, err);
		hold->pinned = !err;
	}
	if (err) {
		cl_table_remove(&holds, &hold->link);
		hold_free_locked(hold);
		return err;
	}
	hold->pending = 1;
	peer->holds++;
	*held = hold;
	return 0;
}

static void hold_put_locked(struct hold *hold)
{
	if (hold->opens || hold->pending)
		return;
	/* a slot that is not ours any more has no bit of ours */
	if (!hold->pinned && cl_peer_has_slot(hold->peer))
		cl_record_unhold(&hold->peer->region, (unsigned int)hold->peer->slot, record_of(hold));
	cl_peer_put(hold->peer);
	if (!hold->aside)
		cl_table_remove(&holds, &hold->link);
	if (hold->mapped)
		hold->gone = true;
	else
		hold_free_locked(hold);
}

/* ------------------------------------------------------------ what a handle names */
/* A handle, and what was made out of it. */
struct named {
	uint8_t *handle;    /* the driver is to have it: as its driver made it, if it is known */
	struct hold *hold;  /* taken of it, if it is known, and not our own; NULL: unmanaged */
	struct cl_stamp stamp;
	uint32_t pid;	    /* of its exporter, as the driver's handle has it */
	int err;	    /* why it may not be opened, or 0 */
	bool known;	    /* the stamp names something of an exporter that we can look at */
	bool own;	    /* ... of this process itself */
	bool fileless;	    /* the stamp's file would be here, and is not */
	enum cl_sight sight; /* where that file would be, if it is not known */
	bool again;	    /* it is open here already: where from, is noted */
};

static bool is_own(uint32_t file_id)
{
	bool own;

	/* with the lock: ours may be just being made, and to open and close it would drop our locks on it */
	pthread_mutex_lock(&cl_exports_lock);
	own = cl_own.header && cl_own.file_id == file_id;
	pthread_mutex_unlock(&cl_exports_lock);
	return own;
}

/* The exporters of the host, one after the other: for drivers that leave no room for a stamp. */
static struct cl_peer *find_by_whole_handle_locked(struct named *named)
{
	int fd = cl_self_open_dir(false), err;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	struct cl_peer *found = NULL;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	while (!found && (entry = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(entry->d_name);
		struct cl_peer *peer =
			id && !is_own(id) ? cl_peer_get_if(dirfd(dir), id,
							   offsetof(struct cl_header, by_handle), &err) :
					    NULL;

		if (!peer || cl_record_find(&peer->region, named->handle, &named->stamp.record,
					    &named->stamp.generation))
			continue;
		named->stamp.file_id = id;
		found = peer;
	}
	closedir(dir);
	return found;
}

/* @handle without its stamp. */
static void unstamp(uint8_t handle[64])
{
	memset(handle + 56, 0, 8);
}

/*
 * Whether the tail of @named is a stamp of @peer, whose file its file id names.
 * Where one says that it finds records by their whole handle, it is if it leads to
 * just this handle: somebody may have damaged that word.
 */
static bool is_stamped(const struct named *named, const struct cl_peer *peer)
{
	uint32_t record = named->stamp.record, chunks;
	uint8_t handle[64];

	/* acquire: pairs with cl_region_need_by_handle() */
	if (!atomic_load_explicit(&peer->region.header->by_handle, memory_order_acquire))
		return true;
	chunks = atomic_load_explicit(&peer->region.header->record_chunks, memory_order_acquire);
	memcpy(handle, named->handle, 64);
	unstamp(handle);
	return chunks <= CL_CHUNKS && record / CL_CHUNK < chunks &&
	       cl_record_is(&peer->region, record, handle);
}

/* Whether it is of this process itself.  Returns whether it names the file of this process, of whatever block. */
static bool look_up_own(struct named *named)
{
	bool ours = false;

	pthread_mutex_lock(&cl_exports_lock);
	if (cl_own.header) {
		ours = cl_own.file_id == named->stamp.file_id;
		named->own = cl_own_by_handle ?
				     cl_record_find(&cl_own, named->handle, &named->stamp.record,
						    &named->stamp.generation) == 0 :
				     ours && cl_region_has_stamped(&cl_own, &named->stamp);
		if (named->own && !cl_own_by_handle)
			unstamp(named->handle);
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return ours;
}

/*
 * Where @peer, to whose file the handle with @tail led, refuses it: another may have that
 * file's number by now.  True: so it is, and is to be looked up.
 */
static __attribute__((noinline)) bool look_up_successor_locked(struct named *named, struct cl_peer *peer,
								uint64_t tail, int *err)
{
	if (!put_aside_succeeded_locked(peer))
		return false;
	memcpy(named->handle + 56, &tail, sizeof tail);
	named->stamp = cl_stamp_unpack(tail);
	named->err = *err = 0;
	return true;
}

/* What is not of this process itself, whose file's number @ours says that the handle has. */
static inline void look_up_others_locked(struct named *named, bool ours, uint64_t tail, int *err)
{
	for (int tries = 0; tries < 2; tries++) {
		struct cl_peer *peer = ours ? NULL : cl_peer_get(named->stamp.file_id, err);
		struct cl_peer *stamped = peer && is_stamped(named, peer) ? peer : NULL;

		if (stamped && __builtin_expect(!cl_region_has_stamped(&stamped->region, &named->stamp), 0)) {
			/* of another file of that number, which is not here */
			*err = -ENOENT;
			if (tries || !look_up_successor_locked(named, stamped, tail, err))
				return;
			continue;
		}
		if (stamped)
			/* the driver gets its handle as it made it */
			unstamp(named->handle);
		else
			/* what is not known goes to the driver as it came: it ignores a stamp (measured) */
			peer = find_by_whole_handle_locked(named);
		named->known = peer != NULL;
		if (peer)
			named->err = hold_get_locked(peer, named->stamp, named->handle, &named->hold);
		/* (once: what the successor refuses is refused, whoever may have its number by now) */
		if (__builtin_expect(!is_refusal(named->err), 1) || !stamped || tries ||
		    !look_up_successor_locked(named, stamped, tail, err))
			return;
	}
}

/*
 * What @handle, 64 bytes which become those for the driver, names, and the hold of it that an
 * open is to have.
 */
static void look_up(struct named *named, void *handle, enum cl_kind kind)
{
	uint64_t tail = tail_of(handle);
	bool ours = false; /* the file that it names */
	int err = 0;

	*named = (struct named){ .handle = handle };
	memcpy(&named->pid, named->handle + (kind == CL_MEMORY ? 8 : 0), sizeof named->pid);
	if (!tail)
		return;
	named->stamp = cl_stamp_unpack(tail);
	pthread_mutex_lock(&cl_imports_lock);
	if (cl_own_may_be(named->stamp.file_id))
		ours = look_up_own(named);
	named->known = named->own;
	if (named->own)
		goto out;
	if (ours && !cl_own_by_handle)
		err = -ENOENT;
	look_up_others_locked(named, ours, tail, &err);
	named->again = named->hold && named->hold->opens;
out:
	pthread_mutex_unlock(&cl_imports_lock);
	if (named->known || !tail)
		return;
	if (err != -ENOENT)
		return;
	named->sight = cl_self_sight(named->stamp);
	named->fileless = named->sight == CL_HERE;
}

struct opening {
	struct hold *hold;
	CUcontext ctx;
	CUdevice device;
	uint32_t stack;
	bool primary;
	enum cl_sight sight; /* where its exporter's file would be, of what is unmanaged */
};

/* ----------------------------------------------------------------- mappings */
/*
 * A context that some thread is ending.  The driver may be done with it, and have given
 * its address to another context and its mappings' to others, before we hear of that:
 * what was opened when it began is its own, what is opened from then on is not.
 */
struct ending {
	struct ending *next;
	CUcontext ctx; /* NULL: the primary one of @device */
	CUdevice device;
	pthread_t thread;
	uint64_t began;
};
static struct ending *endings;

static bool goes_with(const struct mapping *mapping, const struct ending *ending)
{
	return mapping->since <= ending->began &&
	       (ending->ctx ? mapping->ctx == ending->ctx :
			      mapping->primary && mapping->device == ending->device);
}

static bool is_going(const struct mapping *mapping)
{
	for (const struct ending *ending = endings; ending; ending = ending->next)
		if (goes_with(mapping, ending))
			return true;
	return false;
}

static struct mapping *mapping_find_locked(enum cl_kind kind, uint64_t key)
{
	return cl_table_find(&mappings[kind], key);
}

/* At @key, as @o says; not open yet. */
static struct mapping *mapping_new_locked(uint64_t key, const struct opening *o, uint32_t exporter_pid)
{
	struct hold *hold = o->hold;
	bool within = hold && !hold->mapped;
	struct mapping *mapping = within ? &hold->first : malloc(sizeof *mapping);

	if (!mapping)
		return NULL;
	if (within)
		hold->mapped = true;
	mapping->link.key = key;
	mapping->older = mapping->newer = NULL;
	mapping->hold = hold;
	mapping->ctx = o->ctx;
	mapping->device = o->device;
	mapping->opens = mapping->closing = 0;
	mapping->since = cl_now();
	mapping->size = hold ? hold->peer->region.record[record_of(hold)].size : 0;
	mapping->stack = o->stack;
	mapping->exporter_pid = hold ? hold->peer->region.header->exporter.pid : exporter_pid;
	mapping->primary = o->primary;
	mapping->within = within;
	cl_context_tally(&tally, mapping->ctx, mapping->device, mapping->primary, 1);
	return mapping;
}

static void mapping_delete_locked(struct mapping *mapping)
{
	struct hold *hold;

	cl_context_tally(&tally, mapping->ctx, mapping->device, mapping->primary, -1);
	if (!mapping->within) {
		free(mapping);
		return;
	}
	hold = (struct hold *)((char *)mapping - offsetof(struct hold, first));
	hold->mapped = false;
	if (hold->gone)
		hold_free_locked(hold);
}

/* Into our own file, for reports. */
static void mapping_note_locked(enum cl_kind kind, struct mapping *mapping)
{
	const struct hold *hold = mapping->hold;

	mapping->note = cl_notes_import(&(struct cl_import_note){
		.key = mapping->link.key,
		.size = mapping->size,
		.since = mapping->since,
		.file_id = hold ? file_of(hold) : 0,
		.record = hold ? record_of(hold) : 0,
		.generation = hold ? hold->generation : 0,
		.stack = mapping->stack,
		.exporter_pid = mapping->exporter_pid,
		.kind = (uint8_t)kind,
		.device = (uint8_t)mapping->device });
}

/*
 * Of an open that has just succeeded; @newest is what mapping_find_locked() says.
 * False: no memory for it.
 */
static bool mapping_add_locked(enum cl_kind kind, uint64_t key, struct mapping *newest,
			       const struct opening *o, uint32_t exporter_pid)
{
	struct hold *hold = o->hold;
	struct mapping *mapping;

	for (mapping = newest; mapping; mapping = mapping->older)
		if (mapping->hold == hold && mapping->ctx == o->ctx && !is_going(mapping))
			break;
	if (!mapping) {
		mapping = mapping_new_locked(key, o, exporter_pid);
		if (!mapping)
			return false; /* the hold stays until we end: kept, not freed early */
		if (newest) {
			mapping->newer = newest;
			mapping->older = newest->older;
			if (newest->older)
				newest->older->newer = mapping;
			newest->older = mapping;
		} else {
			cl_table_add(&mappings[kind], &mapping->link);
		}
	}
	/* (one that is just being closed for the last time has no entry any more) */
	if (!mapping->opens++)
		mapping_note_locked(kind, mapping);
	else
		cl_notes_import_opens(mapping->note, mapping->opens);
	return true;
}

/* What the trace says of an open or a close here; @hold NULL: unmanaged. */
#define cl_trace_mapping(what_, kind_, key_, hold, ...)                                  \
	cl_trace(what_, .kind = (uint8_t)(kind_), .key = (key_),                         \
		 .size = (hold) ? (hold)->peer->region.record[record_of(hold)].size : 0, \
		 .file_id = (hold) ? file_of(hold) : 0,                            \
		 .record = (hold) ? record_of(hold) : CL_NO_RECORD,                   \
		 .generation = (hold) ? (hold)->generation : 0,                          \
		 .pid = (hold) ? (hold)->peer->region.header->exporter.pid : 0, ##__VA_ARGS__)

/* Takes @mapping away once nothing is left of it. */
static void mapping_put_locked(enum cl_kind kind, struct mapping *mapping)
{
	struct mapping *newer = mapping->newer, *older = mapping->older;

	if (mapping->opens || mapping->closing)
		return;
	if (older)
		older->newer = newer;
	if (newer) {
		newer->older = older;
	} else if (older) {
		cl_table_replace(&mappings[kind], &mapping->link, &older->link);
	} else {
		cl_table_remove(&mappings[kind], &mapping->link);
	}
	mapping_delete_locked(mapping);
}

static void say_last_close(struct cl_closed *to, enum cl_kind kind, const struct mapping *mapping,
			   uint32_t stack)
{
	const struct hold *hold = mapping->hold;

	*to = (struct cl_closed){ .key = mapping->link.key,
				  .size = mapping->size,
				  .when = cl_now_roughly(),
				  .stack = stack,
				  .file_id = hold ? file_of(hold) : 0,
				  .record = hold ? record_of(hold) : 0,
				  .generation = hold ? hold->generation : 0,
				  .pid = mapping->exporter_pid,
				  .kind = (uint8_t)kind,
				  .device = (uint8_t)mapping->device };
}

/* The driver has closed @mapping once (or not, when !@closed), at @stack. */
static void mapping_closed_locked(enum cl_kind kind, struct mapping *mapping, bool closed,
				  uint32_t stack)
{
	struct hold *hold = mapping->hold;

	mapping->closing--;
	if (closed) {
		cl_trace_mapping(CL_TRACE_CLOSED, kind, mapping->link.key, hold);
		if (mapping->opens) {
			cl_notes_import_opens(mapping->note, --mapping->opens);
			if (!mapping->opens && kind == CL_MEMORY)
				say_last_close(cl_notes_closed_memory(), kind, mapping, stack);
		}
		if (hold) {
			hold->opens--;
			hold_put_locked(hold);
		}
		cl_count_locked(closes);
	}
	mapping_put_locked(kind, mapping);
}

/* ------------------------------------------------------------------- opening */
/* Whether @hold is open at this address, and has been all the while: an address maps one thing. */
static bool is_open(const struct mapping *newest, const struct hold *hold)
{
	for (const struct mapping *mapping = newest; mapping; mapping = mapping->older)
		/* a close that is in the driver may be done there */
		if (mapping->hold == hold && mapping->opens > mapping->closing && !is_going(mapping))
			return true;
	return false;
}

/* The lock of our slot may have gone with our descriptor: then it is had again, or @hold is pinned. */
static void keep_held_locked(const struct named *named, struct hold *hold)
{
	struct cl_peer *peer = hold->peer;
	bool lost;
	int err = cl_peer_keep_slot(peer, &lost);

	if (lost)
		hold_again_locked(peer);
	if (!err || hold->pinned)
		return;
	if (pin_unheld(peer, named->stamp, named->handle, err)) {
		hold->stale = !hold->opens;
		return;
	}
	if (cl_peer_has_slot(peer))
		cl_record_unhold(&peer->region, (unsigned int)peer->slot, record_of(hold));
	hold->pinned = true;
}

static bool is_in_our_pid_ns(const struct cl_region *region)
{
	uint64_t pid_ns = region->header->exporter.pid_ns;

	return pid_ns && pid_ns == cl_self.witness.pid_ns;
}

/*
 * Whether the exporter of what the driver has just opened is still there, and our
 * hold of it stands.
 *
 * The driver may open a dead process's handle, too, and map a later process's
 * block (seen in the torture on a GPU, doc/measurements.md).  As long as the exporter lives that cannot
 * be, so it is enough to ask afterwards.
 *
 * One system call, for the living: a lock by its process on just that byte says
 * that it lives, and that our descriptor is still of its file, so that our own lock
 * stands, too.  (The program may have closed ours, and got its number for a file of
 * its own.  Did that process have such a lock there, too, it would live all the
 * same, and in one PID namespace nobody takes who maps the file for dead, lock or
 * no lock: it is only asked so there.)
 */
static bool is_there_locked(const struct named *named, struct hold *hold)
{
	struct cl_peer *peer = hold->peer;
	const struct cl_witness *exporter = &peer->region.header->exporter;

	if (cl_peer_has_slot(peer) && is_in_our_pid_ns(&peer->region) &&
	    cl_region_is_locked_by(&peer->region, CL_LOCK_EXPORTER, exporter->pid))
		return !hold->stale;
	if (peer->slot >= 0 && !hold->pinned)
		keep_held_locked(named, hold);
	if (hold->stale)
		return false;
	/*
	 * A descriptor that is gone tells nothing.  Where only time can tell whether the exporter
	 * lives, and its lock is free, it has ended: else it would have lost its lock just now.
	 */
	return peer->region.locks->is_locked(&peer->region, CL_LOCK_EXPORTER) != 0 ||
	       cl_gc_judge(&peer->region) == CL_ALIVE ||
	       /* somebody has put another file in the place of its own */
	       (is_in_our_pid_ns(&peer->region) &&
		cl_liveness_is_exporter(exporter->pid, named->stamp.file_id, true));
}

/*
 * The file of the exporter of @named would be here, and is not.  Either the exporter has ended,
 * or it lives and has lost its file (logind's RemoveIPC).  The second is rare: where /proc
 * does not show it (another PID namespace; no /proc), the exporter has ended.
 */
static bool has_lost_its_file(const struct named *named)
{
	return cl_liveness_is_exporter(named->pid, named->stamp.file_id, false);
}

/* A handle that this process made itself.  0, or -errno. */
static int open_own(const struct named *named, CUdeviceptr *dptr)
{
	struct cl_stamp stamp = named->stamp;
	struct cl_block *block;
	int err = -ESTALE;

	pthread_mutex_lock(&cl_exports_lock);
	block = cl_block_of_record(stamp.record);
	if (block && block->place != CL_PLACE_GONE && block->place != CL_PLACE_BUSY &&
	    cl_life_generation(cl_record_life(&cl_own, stamp.record)) == stamp.generation &&
	    cl_block_has_handle(block, named->handle)) {
		block->own_opens++;
		cl_record_opened(&cl_own, stamp.record);
		cl_trace_block(CL_TRACE_OPENED, block, .generation = stamp.generation, .flags = CL_TRACE_OWN);
		*dptr = (CUdeviceptr)block->link.key;
		err = 0;
	}
	pthread_mutex_unlock(&cl_exports_lock);
	return err;
}

/* Where and when what @named leads to was freed, if its exporter's file still says so. */
static void find_free(const struct named *named, struct cl_finding *finding)
{
	struct cl_view view = { .now = cl_now() };
	const struct cl_region *region;
	uint32_t stack;
	bool own;

	pthread_mutex_lock(&cl_imports_lock);
	pthread_mutex_lock(&cl_exports_lock);
	region = named->known ? cl_view_has_open(named->stamp.file_id, &own) : NULL;
	/* (it is read by its descriptor, which the program may have closed) */
	if (region && cl_region_fd_intact(region)) {
		view.region = *region;
		if (cl_view_freed(&view, named->stamp.record, named->stamp.generation, named->handle,
				  &finding->other_when, &stack))
			finding->other_stack = own ? stack : cl_notes_stack_of_locked(&view, stack);
	}
	pthread_mutex_unlock(&cl_exports_lock);
	pthread_mutex_unlock(&cl_imports_lock);
}

static CUresult refuse(const struct named *named, enum cl_kind kind)
{
	struct cl_stamp stamp = named->stamp;
	struct cl_finding finding = { .kind = CL_FOUND_STALE_REFUSED,
				      .pid = named->pid,
				      .stack = cl_notes_stack(true),
				      .file_id = stamp.file_id,
				      .record = stamp.record,
				      .generation = stamp.generation,
				      .block_kind = (uint8_t)kind };

	cl_count(stale_refused);
	find_free(named, &finding);
	cl_notes_finding(&finding);
	cl_trace(CL_TRACE_STALE, .file_id = stamp.file_id, .record = stamp.record,
		 .generation = stamp.generation);
	if (named->fileless)
		cl_log(CL_LOG_INFO,
		       "refused a stale handle of process %u: its exporter has ended, or has lost its file %06x "
		       "and is in another PID namespace, where it cannot be asked whether it lives",
		       named->pid, stamp.file_id);
	else
		cl_log(CL_LOG_INFO,
		       "refused a stale handle (exporter file %06x, record %u, generation %u): its block has "
		       "been freed",
		       stamp.file_id, stamp.record, stamp.generation);
	/* (a refusal of ours spoils no capture: whether the driver's own would is not measured) */
	return cl_context_refusal();
}

/*
 * The exporter's file has something else where the handle leads.  A handle that
 * a process made which had that file's number before is stale; else it is the file
 * that can't be trusted.
 */
static bool is_damaged(const struct named *named)
{
	const struct cl_region *region;
	bool own, is_its, here;

	pthread_mutex_lock(&cl_imports_lock);
	region = cl_view_has_open(named->stamp.file_id, &own);
	is_its = region && !own && region->header->exporter.pid == named->pid;
	here = !region || is_in_our_pid_ns(region);
	pthread_mutex_unlock(&cl_imports_lock);
	return here ? cl_liveness_is_exporter(named->pid, named->stamp.file_id, true) : is_its;
}

/* As open_begin(), of what there is no hold of: it is refused, unmanaged, or kept without one. */
static CUresult open_unheld(struct opening *o, const struct named *named, enum cl_kind kind)
{
	/* most that have ended are seen before the driver is asked */
	if (named->fileless && !has_lost_its_file(named))
		return refuse(named, kind);
	if (named->err == -ESTALE || (named->err == -EBADMSG && !is_damaged(named)))
		return refuse(named, kind);
	if (named->err == -EBADMSG)
		cl_log_once(CL_LOG_WARN,
			    "exporter file %06x has something else in record %u than the handle that leads "
			    "there, though its process %u lives: it is damaged. What is imported so is not "
			    "protected, as without culimbo",
			    named->stamp.file_id, named->stamp.record, named->pid);
	else
		/* what lies elsewhere is worth a word; an exporter that is just ending is not */
		o->sight = named->sight;
	cl_count(unmanaged_imports);
	return CUDA_SUCCESS;
}

/* The first half of an open.  CUDA_SUCCESS: ask the driver, then open_end(). */
static inline CUresult open_begin(struct opening *o, const struct named *named, enum cl_kind kind)
{
	*o = (struct opening){ .hold = named->hold };
	return o->hold ? CUDA_SUCCESS : open_unheld(o, named, kind);
}

/* What is not opened after all. */
static void open_give_up(const struct opening *o)
{
	if (!o->hold)
		return;
	pthread_mutex_lock(&cl_imports_lock);
	o->hold->pending--;
	hold_put_locked(o->hold);
	pthread_mutex_unlock(&cl_imports_lock);
}

/*
 * Its exporter's context has ended: what we have of it stays ours, and may be opened again where
 * the driver says that it is that very mapping; else it has opened what is there now.
 */
static bool went_with_context(const struct hold *hold)
{
	return cl_life_state(cl_record_life(&hold->peer->region, record_of(hold))) == CL_GONE;
}

/* Of what was opened though its exporter's file is not where we look. */
static void say_unprotected(enum cl_sight sight)
{
	unsigned int user = geteuid(), was = cl_self.user;

	if (sight == CL_OUT_OF_SIGHT)
		cl_log_once(CL_LOG_WARN,
			    "this process does not see the directory of exporter files any more (chroot?): what "
			    "it opens from now on of exporters that it has not met is not protected, as without "
			    "culimbo, and may be of one that has ended");
	else if (user != was)
		/* root's files, say, are nothing to who has given up root's rights */
		cl_log_once(CL_LOG_WARN,
			    "this process began to share as user %u and is user %u now: what it opens of user "
			    "%u's exporters that it has not met is not protected, as without culimbo, and may be "
			    "of one that has ended",
			    was, user, was);
	else
		cl_log_once(CL_LOG_WARN,
			    "opened something that a process under culimbo exported, but found no exporter "
			    "file of it: it is another user's, or has another CULIMBO_DIR or /dev/shm. What is "
			    "imported so is not protected, as without culimbo");
}

/* The second half: the driver has opened @key.  False: it must be closed again, and refused. */
static bool open_end(struct opening *o, const struct named *named, enum cl_kind kind, uint64_t key)
{
	struct mapping *newest;
	bool there = true, noted = true;

	if (named->fileless)
		there = has_lost_its_file(named);
	if (!there)
		return false;
	cl_context_current(&o->ctx, &o->device, &o->primary);
	if (!named->again)
		o->stack = cl_notes_stack(true);
	pthread_mutex_lock(&cl_imports_lock);
	newest = mapping_find_locked(kind, key);
	/* of another directory, or without culimbo: nothing is known */
	if (o->hold)
		there = is_open(newest, o->hold) ||
			(is_there_locked(named, o->hold) && !went_with_context(o->hold));
	if (there) {
		if (o->hold) {
			o->hold->pending--;
			o->hold->opens++;
		}
		cl_trace_mapping(CL_TRACE_OPENED, kind, key, o->hold, .device = (uint8_t)o->device);
		noted = mapping_add_locked(kind, key, newest, o, named->pid);
		cl_count_locked(imports);
	}
	pthread_mutex_unlock(&cl_imports_lock);
	if (!there)
		return false;
	/* what was closed at its address is none of it: its own close may find no note of it to say so */
	if (kind == CL_EVENT)
		cl_event_is_new((CUevent)(uintptr_t)key);
	else if (!noted)
		cl_notes_not_closed(kind, key);
	if (__builtin_expect(o->sight != CL_HERE, 0))
		say_unprotected(o->sight);
	return true;
}

/*
 * A handle of this process's own, which the driver refuses with "no context" (measured).  What it
 * refuses before it looks at the handle (the flags, that there is no context, a capture) is
 * refused with us, too.
 */
static CUresult import_own(const struct named *named, CUdeviceptr *dptr, CUipcMemHandle handle,
			   unsigned int flags,
			   CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	CUdeviceptr opened;
	CUcontext ctx = NULL;
	CUresult result = open(&opened, handle, flags);

	if (result == CUDA_SUCCESS)
		cl_driver.cuIpcCloseMemHandle(opened);
	else if (result != CUDA_ERROR_INVALID_CONTEXT ||
		 cl_driver.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
		return result;
	return open_own(named, dptr) ? refuse(named, CL_MEMORY) : CUDA_SUCCESS;
}

CUresult cl_memory_import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
			  CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned int))
{
	CL_UNCANCELLED;
	struct named named;
	struct opening o;
	CUresult result;

	if (!cl_self_start())
		return open(dptr, handle, flags);
	look_up(&named, &handle, CL_MEMORY);
	if (named.own && dptr)
		return import_own(&named, dptr, handle, flags, open);
	result = open_begin(&o, &named, CL_MEMORY);
	if (result != CUDA_SUCCESS)
		return result;
	result = open(dptr, handle, flags);
	if (result == CUDA_SUCCESS) {
		if (open_end(&o, &named, CL_MEMORY, (uint64_t)*dptr))
			return result;
		cl_driver.cuIpcCloseMemHandle(*dptr);
		result = refuse(&named, CL_MEMORY);
	}
	open_give_up(&o);
	return result;
}

CUresult cl_event_import(CUevent *event, CUipcEventHandle handle)
{
	CL_UNCANCELLED;
	struct named named;
	struct opening o;
	CUresult result;

	if (!cl_self_start())
		return cl_driver.cuIpcOpenEventHandle(event, handle);
	look_up(&named, &handle, CL_EVENT);
	if (named.own) /* the driver refuses a process's own; it knows how */
		return cl_driver.cuIpcOpenEventHandle(event, handle);
	result = open_begin(&o, &named, CL_EVENT);
	if (result != CUDA_SUCCESS)
		return result;
	result = cl_driver.cuIpcOpenEventHandle(event, handle);
	if (result == CUDA_SUCCESS) {
		if (open_end(&o, &named, CL_EVENT, (uint64_t)(uintptr_t)*event))
			return result;
		cl_driver.cuEventDestroy_v2(*event);
		result = refuse(&named, CL_EVENT);
	}
	open_give_up(&o);
	return result;
}

/* ------------------------------------------------------------------- closing */
/*
 * One that another thread is not closing for the last time already, or with its context
 * (@going): the driver may have done so, and given the address to a block (an event) of
 * this process.
 */
static struct mapping *find_to_close_locked(enum cl_kind kind, uint64_t key, bool going)
{
	struct mapping *mapping;

	for (mapping = mapping_find_locked(kind, key); mapping; mapping = mapping->older)
		if (mapping->opens > mapping->closing && (going || !is_going(mapping)))
			break;
	return mapping;
}

/* Whether @key is our own: a block that open_own() has opened, an event that was exported. */
static bool is_own_key(enum cl_kind kind, uint64_t key)
{
	const struct cl_block *block;
	bool own;

	pthread_mutex_lock(&cl_exports_lock);
	block = cl_block_find(kind, key);
	own = block && (kind == CL_EVENT || block->own_opens);
	pthread_mutex_unlock(&cl_exports_lock);
	return own;
}

/* *last: nothing of it stays open, as far as can be said now. */
static struct mapping *close_begin(enum cl_kind kind, uint64_t key, bool *last)
{
	struct mapping *mapping;

	pthread_mutex_lock(&cl_imports_lock);
	mapping = find_to_close_locked(kind, key, false);
	/* (its context may live on: it was another's reference to it that was given back) */
	if (!mapping && endings && !is_own_key(kind, key))
		mapping = find_to_close_locked(kind, key, true);
	if (mapping)
		mapping->closing++;
	*last = mapping && mapping->opens <= mapping->closing;
	pthread_mutex_unlock(&cl_imports_lock);
	return mapping;
}

static void close_end(enum cl_kind kind, struct mapping *mapping, bool closed, bool last)
{
	uint32_t stack = closed && last ? cl_notes_stack(true) : 0;

	pthread_mutex_lock(&cl_imports_lock);
	mapping_closed_locked(kind, mapping, closed, stack);
	pthread_mutex_unlock(&cl_imports_lock);
}

/* A close of what open_own() gave.  False: it gave nothing there. */
static bool close_own(CUdeviceptr dptr)
{
	struct cl_block *block;
	bool wake = false, ours = false;

	pthread_mutex_lock(&cl_exports_lock);
	block = cl_block_find(CL_MEMORY, dptr);
	if (block && block->own_opens) {
		ours = true;
		cl_trace_block(CL_TRACE_CLOSED, block, .flags = CL_TRACE_OWN);
		if (--block->own_opens == 0) {
			cl_limbo_look_again_locked(block);
			wake = block->place == CL_PLACE_DUE;
		}
	}
	pthread_mutex_unlock(&cl_exports_lock);
	if (wake)
		cl_collector_wake();
	return ours;
}

/* @before: the close that was one too few, NULL: not known. */
static void note_closed_again(enum cl_finding_kind as, enum cl_kind kind, uint64_t key,
			      const struct cl_closed *before)
{
	struct cl_finding finding = { .kind = as,
				      .key = key,
				      .stack = cl_notes_stack(true),
				      .block_kind = (uint8_t)kind };

	if (before) {
		finding.pid = before->pid;
		finding.size = before->size;
		finding.other_stack = before->stack;
		finding.other_when = before->when;
		finding.file_id = before->file_id;
		finding.record = before->record;
		finding.generation = before->generation;
		finding.device = before->device;
	}
	cl_notes_finding(&finding);
}

static void closed_again(CUdeviceptr dptr)
{
	struct cl_closed before;
	bool known = cl_notes_find_closed(CL_MEMORY, dptr, &before);

	cl_count(closed_twice);
	note_closed_again(CL_FOUND_CLOSED_TWICE, CL_MEMORY, dptr, known ? &before : NULL);
}

CUresult cl_memory_close(CUdeviceptr dptr)
{
	CL_UNCANCELLED;
	struct mapping *mapping;
	CUresult result;
	bool last;

	if (cl_self_is_copy()) {
		cl_self_begin_anew();
		return cl_driver.cuIpcCloseMemHandle(dptr);
	}
	mapping = close_begin(CL_MEMORY, dptr, &last);
	if (!mapping && close_own(dptr))
		return CUDA_SUCCESS;
	cl_collector_called();
	result = cl_driver.cuIpcCloseMemHandle(dptr);
	if (mapping)
		close_end(CL_MEMORY, mapping, result == CUDA_SUCCESS, last);
	else if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_MAP_FAILED)
		closed_again(dptr);
	return result;
}

/* For cl_event_destroy(): an imported event is closed by destroying it. */
bool cl_import_event_destroy(CUevent event, CUresult (*destroy)(CUevent), CUresult *result)
{
	uint64_t key = (uint64_t)(uintptr_t)event;
	struct cl_closed closed;
	uint32_t stack;
	bool last;
	struct mapping *mapping = close_begin(CL_EVENT, key, &last);

	if (!mapping)
		return false;
	/* noted before: once the driver has it, another thread's new event may be there */
	if (last) {
		stack = cl_notes_stack(true);
		pthread_mutex_lock(&cl_imports_lock);
		say_last_close(&closed, CL_EVENT, mapping, stack);
		cl_notes_closed_event(&closed);
		/* release: with who makes an event where the driver has destroyed this one */
		atomic_store_explicit(&events_closed, true, memory_order_release);
		pthread_mutex_unlock(&cl_imports_lock);
	}
	*result = destroy(event);
	if (last && *result != CUDA_SUCCESS)
		cl_notes_not_closed(CL_EVENT, key);
	close_end(CL_EVENT, mapping, *result == CUDA_SUCCESS, false);
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
	struct cl_closed before;

	if (!atomic_load_explicit(&events_closed, memory_order_acquire) ||
	    !cl_notes_find_closed(CL_EVENT, key, &before))
		return false;
	cl_count(events_destroyed_twice);
	note_closed_again(CL_FOUND_EVENT_DESTROYED_TWICE, CL_EVENT, key, &before);
	cl_log(CL_LOG_INFO, "event %p was destroyed twice", (void *)event);
	return true;
}

void cl_event_is_new(CUevent event)
{
	CL_UNCANCELLED;

	if (atomic_load_explicit(&events_closed, memory_order_acquire))
		cl_notes_not_closed(CL_EVENT, (uint64_t)(uintptr_t)event);
}

/* ---------------------------------------------------------------------- rest */
/* Each mapping; @each may take away the one that it is given. */
static void mappings_each_locked(void (*each)(enum cl_kind kind, struct mapping *mapping, void *data),
				 void *data)
{
	for (int kind = CL_MEMORY; kind <= CL_EVENT; kind++) {
		struct cl_link *newest, *next;
		struct mapping *mapping, *older;

		CL_TABLE_EACH (&mappings[kind], newest, next)
			for (mapping = (struct mapping *)newest; mapping; mapping = older) {
				older = mapping->older;
				each((enum cl_kind)kind, mapping, data);
			}
	}
}

static void drop_if_gone(enum cl_kind kind, struct mapping *mapping, void *gone)
{
	if (!goes_with(mapping, gone))
		return;
	cl_trace_mapping(CL_TRACE_CLOSED, kind, mapping->link.key, mapping->hold, .value = mapping->opens);
	if (mapping->hold) {
		mapping->hold->opens -= mapping->opens;
		hold_put_locked(mapping->hold);
		mapping->hold = NULL;
	}
	if (mapping->opens)
		cl_notes_import_opens(mapping->note, 0);
	mapping->opens = 0;
	mapping_put_locked(kind, mapping);
}

void cl_imports_context_ends(CUcontext ctx, CUdevice device)
{
	struct ending *ending = malloc(sizeof *ending);

	if (!ending) /* then all that is there when it has ended goes with it */
		return;
	pthread_mutex_lock(&cl_imports_lock);
	*ending = (struct ending){ endings, ctx, device, pthread_self(), cl_now() };
	endings = ending;
	pthread_mutex_unlock(&cl_imports_lock);
}

void cl_imports_context_ended(CUcontext ctx, CUdevice device, bool gone)
{
	struct ending **at, *ending, unnoted = { .ctx = ctx, .device = device, .began = UINT64_MAX };

	pthread_mutex_lock(&cl_imports_lock);
	for (at = &endings; (ending = *at) != NULL; at = &ending->next)
		if (ending->ctx == ctx && ending->device == device &&
		    pthread_equal(ending->thread, pthread_self()))
			break;
	if (gone && cl_context_has_any(&tally, ctx, device))
		mappings_each_locked(drop_if_gone, ending ? ending : &unnoted);
	if (ending)
		*at = ending->next;
	pthread_mutex_unlock(&cl_imports_lock);
	free(ending);
}

struct telling {
	void (*each)(const struct cl_import *import, void *data);
	void *data;
};
static struct cl_import describe_locked(enum cl_kind kind, const struct mapping *mapping)
{
	const struct hold *hold = mapping->hold;
	struct cl_import import = { .key = mapping->link.key,
				    .size = mapping->size,
				    .opens = mapping->opens,
				    .since = mapping->since,
				    .exporter_pid = mapping->exporter_pid,
				    .stack = mapping->stack,
				    .device = (uint8_t)mapping->device,
				    .kind = kind,
				    .managed = hold != NULL };

	if (hold) {
		const struct cl_region *region = &hold->peer->region;

		import.file_id = file_of(hold);
		import.record = record_of(hold);
		import.generation = hold->generation;
		import.stays = cl_life_state(cl_record_life(region, record_of(hold))) != CL_EXPORTED;
	}
	return import;
}

static void tell(enum cl_kind kind, struct mapping *mapping, void *data)
{
	const struct telling *telling = data;
	struct cl_import import = describe_locked(kind, mapping);

	telling->each(&import, telling->data);
}

bool cl_import_find(CUdeviceptr dptr, struct cl_import *import)
{
	const struct mapping *mapping;

	pthread_mutex_lock(&cl_imports_lock);
	mapping = mapping_find_locked(CL_MEMORY, dptr);
	if (mapping)
		*import = describe_locked(CL_MEMORY, mapping);
	pthread_mutex_unlock(&cl_imports_lock);
	return mapping != NULL;
}

void cl_imports_each(void (*each)(const struct cl_import *import, void *data), void *data)
{
	struct telling telling = { each, data };

	mappings_each_locked(tell, &telling);
}

void cl_imports_forget(void)
{
	/* their memory is left: another thread of the parent may have been in the middle of it */
	holds = (struct cl_table)CL_TABLE_BEGIN(holds);
	for (size_t kind = 0; kind < sizeof mappings / sizeof mappings[0]; kind++)
		mappings[kind] = (struct cl_table)CL_TABLE_BEGIN(mappings[kind]);
	memset(&tally, 0, sizeof tally);
	spare = NULL;
	spare_n = 0;
	endings = NULL;
	cl_peers_forget();
}
