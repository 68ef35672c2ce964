/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the host's other exporters for memory: see pressure.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/blocks/blocks.h"
#include "shim/driver/devices.h"
#include "shim/shm/gc.h"
#include "shim/limbo/press.h"
#include "shim/base/options.h"
#include "shim/importer/peers.h"
#include "shim/reclaim/pressure.h"
#include "shim/self/self.h"
#include "shim/diag/trace.h"

/* So many are asked at a time: each takes a descriptor and a mapping. */
enum { ASKED_AT_ONCE = 64 };
/* They answer within some 100 us.  After this time, ns, the next ones are asked, too. */
#define ANSWER_SOON 10000000ull

/* What is to be expected of an exporter. */
enum standing {
	IDLE,	 /* it has nothing that could go */
	COULD,	 /* it has something that could go, and can be asked */
	ASKED,	 /* it has been asked, and may answer yet */
	MUTE,	 /* it has not answered for so long that nobody waits for it */
	LEAVING, /* it is dying: its memory comes back when it is dead */
	DEAD,
};

struct known {
	uint32_t file_id, ticket;  /* ticket: of our last ask */
	uint64_t entered, returned; /* as of the last look */
	uint64_t could_go;
	unsigned int look; /* the number of the last look that saw it */
	enum standing standing;
	bool was_asked;
};

struct cl_pressure {
	uint8_t uuid[CL_UUID];
	bool any; /* no device is named: memory of all counts */
	struct known *known;
	unsigned int n, size, look;
	struct cl_header page; /* the header of a file that is read, not mapped */
};

struct cl_pressure *cl_pressure_begin(const uint8_t uuid[CL_UUID])
{
	/* not on the stack: a thread of the program may have 16 KiB in all */
	struct cl_pressure *pressure = calloc(1, sizeof *pressure);

	if (pressure && uuid)
		memcpy(pressure->uuid, uuid, CL_UUID);
	if (pressure)
		pressure->any = !uuid;
	return pressure;
}

void cl_pressure_end(struct cl_pressure *pressure)
{
	if (pressure)
		free(pressure->known);
	free(pressure);
}

static bool is_own(uint32_t file_id)
{
	bool own;

	cl_lock(&cl_exports_lock);
	own = cl_own.file_id == file_id;
	cl_unlock(&cl_exports_lock);
	return own;
}

static struct known *known_of(struct cl_pressure *pressure, uint32_t file_id)
{
	struct known *known = pressure->known;

	for (unsigned int i = 0; i < pressure->n; i++)
		if (known[i].file_id == file_id)
			return &known[i];
	if (pressure->n == pressure->size) {
		pressure->size = pressure->size ? 2 * pressure->size : 16;
		known = realloc(pressure->known, pressure->size * sizeof *known);
		if (!known) {
			pressure->size = pressure->n;
			return NULL;
		}
		pressure->known = known;
	}
	known[pressure->n] = (struct known){ .file_id = file_id };
	return &known[pressure->n++];
}

/* ------------------------------------------------------------------------- a look */
struct sample {
	uint64_t entered, returned, waits;
	uint32_t asked, done;
	uint64_t unanswered;
	bool locked; /* its exporter has its byte lock, so it lives */
};

/* Returns the device's entry in @h, or CL_ANY_DEVICE if it has none or no device is named. */
static unsigned int entry_of(const struct cl_pressure *pressure, const struct cl_header *h)
{
	/* acquire: a process that sees the count reads the UUIDs */
	uint32_t n = atomic_load_explicit(&h->devices, memory_order_acquire);

	for (uint32_t i = CL_ANY_DEVICE + 1; !pressure->any && i < n && i < CL_DEVICE_LIMBOS; i++)
		if (!memcmp(h->device[i].uuid, pressure->uuid, CL_UUID))
			return i;
	return CL_ANY_DEVICE;
}

static void add_to_sample(struct sample *sample, const struct cl_device_limbo *of)
{
	/* acquire, in this order: what `returned` counts, `entered` counts too */
	sample->returned += atomic_load_explicit(&of->returned, memory_order_acquire);
	sample->waits += atomic_load_explicit(&of->waits, memory_order_acquire);
	sample->entered += atomic_load_explicit(&of->entered, memory_order_acquire);
}

/* Adds up the device's entry and that of all devices without one, which may be this device. */
static void take_sample(const struct cl_pressure *pressure, const struct cl_header *h,
			struct sample *sample)
{
	unsigned int entry = entry_of(pressure, h);

	*sample = (struct sample){ .entered = 0 };
	for (unsigned int i = 0; i < CL_DEVICE_LIMBOS; i++)
		if (pressure->any || i == entry || i == CL_ANY_DEVICE)
			add_to_sample(sample, &h->device[i]);
	sample->done = atomic_load_explicit(&h->pressure_done, memory_order_acquire);
	sample->asked = atomic_load_explicit(&h->pressure_asked, memory_order_relaxed);
	sample->unanswered = atomic_load_explicit(&h->unanswered, memory_order_relaxed);
}

/*
 * Reads the counts of exporter file @file_id.  Returns false if there is no such file, or it is not
 * one of this layout.  A file that this process has open is read through its mapping: to open it
 * again and close it would drop the locks on it.
 */
static bool sample_file(struct cl_pressure *pressure, int dirfd, uint32_t file_id,
			struct sample *sample)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = CL_LOCK_EXPORTER,
			      .l_len = 1 };
	struct cl_header *h = &pressure->page;
	struct cl_peer *peer;
	char name[16];
	bool got = false;
	int fd;

	cl_lock(&cl_imports_lock);
	peer = cl_peer_find(file_id);
	if (peer) {
		take_sample(pressure, peer->region.header, sample);
		/* an error counts as locked: in doubt, it lives */
		sample->locked = peer->region.locks->is_locked(&peer->region, CL_LOCK_EXPORTER) != 0;
		got = true;
		goto out;
	}
	cl_region_name(name, file_id);
	fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		goto out;
	/* cl_region_open() checks the rest before anything is done with the file */
	if (pread(fd, h, sizeof *h, CL_AT_HEADER) == sizeof *h && h->layout == CL_LAYOUT_VERSION &&
	    !memcmp(h->magic, CL_MAGIC, sizeof CL_MAGIC)) {
		take_sample(pressure, h, sample);
		sample->locked = fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
		got = true;
	}
	close(fd);
out:
	cl_unlock(&cl_imports_lock);
	return got;
}

static bool is_before(uint32_t done, uint32_t ticket)
{
	return (int32_t)(done - ticket) < 0;
}

/*
 * Returns true if the exporter has been asked, by any process, and has not answered for as long as
 * this process would wait.  A time in the future was written by another clock: then false.
 */
static bool is_mute(const struct sample *sample, uint64_t now)
{
	return is_before(sample->done, sample->asked) && sample->unanswered &&
	       sample->unanswered <= now &&
	       now - sample->unanswered >= cl_options.pressure_wait.number;
}

/* Judges an exporter whose lock is free, by one look at /proc.  Removes its file if it is dead. */
static enum standing judge(uint32_t file_id)
{
	enum standing standing = DEAD;
	struct cl_peer *peer;
	int err;

	cl_lock(&cl_imports_lock);
	peer = cl_peer_get(file_id, &err);
	if (peer) {
		if (cl_gc_judge(&peer->region) != CL_DEAD)
			standing = LEAVING;
		cl_peer_drop_unused(peer);
	}
	cl_unlock(&cl_imports_lock);
	return standing;
}

/*
 * Files of dead exporters that stay for reports (CULIMBO_KEEP_DEAD).  Their memory is back, so that
 * an exporter is news once, when this process finds it dead, and not to each allocation that fails
 * as long as its file is there.  An entry is overwritten by a later one: then it is news once more.
 */
static _Atomic uint64_t known_dead[32];
static _Atomic unsigned int known_dead_next;

static uint64_t dead_key(uint32_t file_id, uint64_t entered)
{
	/* with what entered its limbo, a later file of this number is another */
	return cl_mix(entered) ^ file_id;
}

static bool is_known_dead(uint64_t key)
{
	/* relaxed: a lost entry costs one more try of an allocation */
	for (unsigned int i = 0; i < sizeof(known_dead) / sizeof(known_dead[0]); i++)
		if (atomic_load_explicit(&known_dead[i], memory_order_relaxed) == key)
			return true;
	return false;
}

static void remember_dead(uint64_t key)
{
	unsigned int at = atomic_fetch_add_explicit(&known_dead_next, 1, memory_order_relaxed);

	atomic_store_explicit(&known_dead[at % (sizeof(known_dead) / sizeof(known_dead[0]))], key,
			      memory_order_relaxed);
}

/* Takes @sample over.  Returns true if it is news, as in cl_pressure_seen. */
static bool update(struct known *known, const struct sample *sample)
{
	bool news = known->entered != sample->entered || known->returned != sample->returned;
	uint64_t now = cl_now(), gone = sample->returned + sample->waits;
	enum standing before = known->standing;

	known->entered = sample->entered;
	known->returned = sample->returned;
	known->could_go = sample->entered > gone ? sample->entered - gone : 0;
	if (before == ASKED && !is_before(sample->done, known->ticket)) {
		news = true; /* it answered */
		before = IDLE;
	}
	if (before == DEAD)
		return news;
	if (!sample->locked && sample->entered != sample->returned)
		known->standing = judge(known->file_id);
	else if (is_mute(sample, now))
		known->standing = MUTE;
	else if (before == ASKED)
		known->standing = ASKED;
	else
		/*
		 * What waits may have lost its last holder or reached its fence, and the exporter
		 * may not have looked yet.  No other process can tell, so the exporter is asked
		 * once.
		 */
		known->standing = known->could_go || (sample->waits && !known->was_asked) ? COULD : IDLE;
	return news || known->standing == DEAD;
}

struct cl_pressure_seen cl_pressure_look(struct cl_pressure *pressure)
{
	struct cl_pressure_seen seen = { .news = false };
	int fd = pressure ? cl_self_open_dir(false) : -1;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return seen;
	}
	pressure->look++;
	while ((entry = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(entry->d_name);
		struct sample sample;
		struct known *known;

		if (!id || is_own(id) || !sample_file(pressure, dirfd(dir), id, &sample))
			continue;
		if (!sample.locked && is_known_dead(dead_key(id, sample.entered)))
			continue;
		/* a process that only imports has a file, too, and never has a limbo */
		known = sample.entered ? known_of(pressure, id) : NULL;
		if (!known)
			continue;
		known->look = pressure->look;
		if (update(known, &sample))
			seen.news = true;
		if (known->standing == DEAD)
			remember_dead(dead_key(id, sample.entered));
	}
	closedir(dir);
	for (unsigned int i = 0; i < pressure->n; i++) {
		struct known *known = &pressure->known[i];

		seen.entered += known->entered;
		seen.returned += known->returned;

		if (known->look != pressure->look && known->standing != DEAD) {
			/* its file is gone: it has ended, and its memory is back */
			known->standing = DEAD;
			seen.news = true;
		}
		seen.may_come |= known->standing == COULD || known->standing == ASKED ||
				 known->standing == LEAVING;
	}
	return seen;
}

unsigned int cl_pressure_keep(const struct cl_pressure *pressure, uint32_t *files, unsigned int max)
{
	unsigned int n = 0;

	for (unsigned int i = 0; pressure && i < pressure->n && n < max; i++)
		if (pressure->known[i].standing != DEAD &&
		    pressure->known[i].entered - pressure->known[i].returned > pressure->known[i].could_go)
			files[n++] = pressure->known[i].file_id;
	return n;
}

/* ------------------------------------------------------------------------- asking */
struct asked {
	struct known *known;
	struct cl_peer *peer;
};

/* Waits for the answer.  Returns false if there is none by @until. */
static bool await(const struct asked *asked, uint64_t until)
{
	struct cl_header *h = asked->peer->region.header;
	struct timespec t = cl_clock_kernel(until);

	for (;;) {
		uint32_t done = atomic_load_explicit(&h->pressure_done, memory_order_acquire);

		if (!is_before(done, asked->known->ticket))
			return true;
		if (cl_now() >= until)
			return false;
		syscall(SYS_futex, &h->pressure_done, FUTEX_WAIT_BITSET, done, &t, NULL,
			FUTEX_BITSET_MATCH_ANY);
	}
}

/* Asks one exporter.  Returns false if its file cannot be had: then there is nothing to wait for. */
static bool ask_locked(const struct cl_pressure *pressure, struct asked *asked, struct known *known,
		       uint64_t began)
{
	uint64_t none = 0, now = cl_now();
	struct cl_device_limbo *of;
	struct cl_header *h;
	int err;

	known->standing = IDLE; /* if it can't be asked */
	known->was_asked = true;
	asked->known = known;
	asked->peer = cl_peer_get(known->file_id, &err);
	if (!asked->peer)
		return false;
	h = asked->peer->region.header;
	of = &h->device[entry_of(pressure, h)];
	/* relaxed: a process whose time is overwritten asks again before that time */
	atomic_store_explicit(&of->needed_until, cl_limbo_press_until(began, now), memory_order_relaxed);
	atomic_fetch_add_explicit(&of->asked, 1, memory_order_relaxed);
	/* release: a process that sees the new number sees which device's memory was asked for */
	known->ticket = atomic_fetch_add_explicit(&h->pressure_asked, 1, memory_order_acq_rel) + 1;
	/* relaxed: it is only a time */
	atomic_compare_exchange_strong_explicit(&h->unanswered, &none, now, memory_order_relaxed,
						memory_order_relaxed);
	known->standing = ASKED;
	cl_region_wake(&asked->peer->region);
	asked->peer->holds++; /* keeps it open while we wait without the lock */
	return true;
}

/* Gives that hold back.  Closes the peer if it was opened just to ask it. */
static void put_back_locked(struct cl_peer *peer)
{
	bool goes = peer->detached && peer->holds == 1; /* cl_peer_put() frees it */

	cl_peer_put(peer);
	if (!goes)
		cl_peer_drop_unused(peer);
}

static void ask_some(struct asked *asked, unsigned int n, uint64_t until)
{
	uint64_t began = cl_now();
	bool answered;

	if (until > began + ANSWER_SOON)
		until = began + ANSWER_SOON;
	for (unsigned int i = 0; i < n; i++) {
		answered = await(&asked[i], until);
		cl_trace(CL_TRACE_ASKED, .pid = asked[i].peer->region.header->exporter.pid,
			 .file_id = asked[i].known->file_id, .size = asked[i].known->could_go,
			 .value = cl_now() - began, .flags = answered ? CL_TRACE_DONE : 0);
	}
	cl_lock(&cl_imports_lock);
	for (unsigned int i = 0; i < n; i++)
		put_back_locked(asked[i].peer);
	cl_unlock(&cl_imports_lock);
}

void cl_pressure_ask(struct cl_pressure *pressure, uint64_t began, uint64_t until)
{
	struct asked asked[ASKED_AT_ONCE];
	unsigned int n;

	for (unsigned int i = 0; i < pressure->n;) {
		cl_lock(&cl_imports_lock);
		for (n = 0; i < pressure->n && n < ASKED_AT_ONCE; i++)
			if (pressure->known[i].standing == COULD)
				n += ask_locked(pressure, &asked[n], &pressure->known[i], began);
		cl_unlock(&cl_imports_lock);
		ask_some(asked, n, until);
	}
}
