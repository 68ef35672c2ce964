/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process under torture: an exporter (which imports, too) or an importer.  It
 * does what its dice say, one deed after the other, and is killed, stopped, or
 * ends by itself at any of them.
 *
 * The promises: whatever it has open has the block's own bytes at every read
 * (1); a handle of a block that is freed opens as that block or not at all (2),
 * one of a living block always opens.
 *
 * What must hold: a block is written once, before its handle is made; it
 * counts as alive until just before the driver is asked to free it; no wait
 * without a deadline; nothing on stdout.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/cuda_door.h"
#include "tests/torture/torture.h"

#define WINDOW ((uint64_t)256 << 10) /* bytes that are written and read at a time */
#define IMPORTS 12
#define LATER 8
#define EVENTS 6
#define BEGIN_MS 30000
#define PHASE_MS 120000
#define PRESSURE_MS 2000

struct block {
	CUdeviceptr address;
	uint64_t bytes, serial;
	CUipcMemHandle handle;
};

struct import {
	CUdeviceptr address;
	int opens;
	struct gift gift;
};

struct later {
	uint64_t when; /* 0: none */
	struct gift gift;
};

static struct table *table;
static struct place *me;
static uint32_t here, my_life;
static uint64_t seed;
static char **arguments;
static CUcontext context;
static CUstream stream;
static CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t);

static struct block blocks[BLOCKS];
static struct import imports[IMPORTS];
static struct later later[LATER];
static CUevent own_events[EVENTS], open_events[EVENTS];
static uint64_t window[WINDOW / 8];
static const struct gift *looked_at; /* whose bytes are being read, for the complaint; NULL: our own */

#define COUNT(name) atomic_fetch_add(&table->name, 1)

static uint32_t dice(uint32_t sides)
{
	return torture_dice(&seed, sides);
}

static bool exporter(void)
{
	return here < EXPORTERS;
}

static void nap(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	nanosleep(&t, NULL);
}

/* An answer of the driver that bare, too, would be wrong. */
static void complain(const char *call, CUresult result)
{
	const char *name = NULL;

	COUNT(errors);
	cu.cuGetErrorName(result, &name);
	fprintf(stderr, "torture: ERROR %u (pid %d): %s: %s (%d)\n", here, (int)getpid(), call,
		name ? name : "?", result);
}
/* Leaves word of where we are. */
#define CALL(call) (atomic_store(&me->line, __LINE__), (call))
#define SURE(call)                                                                                 \
	({                                                                                         \
		CUresult sure_result = CALL(call);                                                 \
		if (sure_result)                                                                   \
			complain(#call, sure_result);                                              \
		!sure_result;                                                                      \
	})

/* -------------------------------------------------------------------- bytes */
static bool write_block(CUdeviceptr address, uint64_t bytes, uint64_t serial)
{
	for (uint64_t at = 0; at < bytes; at += WINDOW) {
		uint64_t n = bytes - at < WINDOW ? bytes - at : WINDOW;

		for (uint64_t i = 0; i < n / 8; i++)
			window[i] = torture_word(here, serial, at / 8 + i);
		if (!SURE(copy_to_device(address + at, window, n)))
			return false;
	}
	/* such a copy may return before it is in the device's memory, where others read */
	return SURE(cu.cuCtxSynchronize());
}

/* One window of a block, from @at; says whose words are there if not its own. */
static bool read_window(CUdeviceptr address, uint64_t at, uint64_t n, uint32_t place, uint64_t serial,
			const char *when)
{
	if (!SURE(cu.cuMemcpyDtoH_v2(window, address + at, n)))
		return false;
	for (uint64_t i = 0; i < n / 8; i++) {
		if (window[i] == torture_word(place, serial, at / 8 + i))
			continue;
		fprintf(stderr,
			"torture: FOREIGN %u (pid %d), %s: block %llu of %u, byte %llu: "
			"0x%016llx (block %llu of %d); handed out by life %u of it, which is at %u\n",
			here, (int)getpid(), when, (unsigned long long)serial, place,
			(unsigned long long)(at + 8 * i), (unsigned long long)window[i],
			(unsigned long long)(window[i] >> 20 & ((UINT64_C(1) << 38) - 1)),
			(int)(window[i] >> 58) - 1, looked_at ? looked_at->life : my_life,
			(unsigned int)atomic_load(&table->place[place].life));
		COUNT(foreign);
		return false;
	}
	return true;
}

/* All of a small block; of a big one its head, its tail and a window between. */
static bool read_block(CUdeviceptr address, uint64_t bytes, uint32_t place, uint64_t serial,
		       const char *when)
{
	uint64_t part = 4096;

	COUNT(reads);
	if (bytes <= WINDOW)
		return read_window(address, 0, bytes, place, serial, when);
	return read_window(address, 0, part, place, serial, when) &&
	       read_window(address, bytes - part, part, place, serial, when) &&
	       read_window(address, part * dice((uint32_t)((bytes - WINDOW) / part)), WINDOW / 4, place,
			   serial, when);
}

/* -------------------------------------------------------------------- gifts */
/* To whoever it is; one who doesn't read gets no more, that is all. */
static void send_gift(const struct gift *gift, uint32_t to)
{
	ssize_t n = send(table->place[to].inbox[1], gift, sizeof(*gift), MSG_DONTWAIT | MSG_NOSIGNAL);

	(void)n;
}

static void send_somewhere(const struct gift *gift)
{
	/* importers are eight times as likely as other exporters */
	send_gift(gift, dice(9) ? EXPORTERS + dice(IMPORTERS) : dice(EXPORTERS));
}

static void put_by(const struct gift *gift)
{
	struct later *free_one = &later[dice(LATER)];

	for (int i = 0; i < LATER; i++)
		if (!later[i].when)
			free_one = &later[i];
	free_one->gift = *gift;
	/* half of them within the grace, half beyond */
	free_one->when = torture_now() + table->grace_ns * dice(2000) / 1000;
}

static bool gift_alive(const struct gift *gift)
{
	struct place *from = &table->place[gift->place];

	return !atomic_load(&from->doomed) && atomic_load(&from->life) == gift->life &&
	       atomic_load(&from->alive[gift->block]) == gift->serial;
}

/* ------------------------------------------------------------------- blocks */
static struct gift gift_of(uint32_t slot)
{
	struct gift gift = { .kind = GIFT_MEMORY, .place = here, .life = my_life, .block = slot };

	gift.serial = blocks[slot].serial;
	gift.bytes = blocks[slot].bytes;
	memcpy(gift.handle, &blocks[slot].handle, sizeof(gift.handle));
	return gift;
}

static void free_block(uint32_t slot)
{
	struct block *block = &blocks[slot];
	struct gift gift = gift_of(slot);

	read_block(block->address, block->bytes, here, block->serial, "the exporter, before its free");
	atomic_store(&me->alive[slot], 0);
	if (dice(2)) {
		SURE(cu.cuMemFree_v2(block->address));
		COUNT(frees);
	} else {
		SURE(cu.cuMemFreeAsync(block->address, stream));
		if (dice(2))
			SURE(cu.cuStreamSynchronize(stream));
		COUNT(frees_async);
	}
	block->address = 0;
	/* sent late: at once, within the grace, beyond it */
	if (dice(3) == 0)
		send_somewhere(&gift);
	else if (dice(2))
		put_by(&gift);
}

static uint64_t any_size(void)
{
	static const uint64_t small[] = { 256, 1024, 1024, 4096, 65536, 1 << 20 };

	if (dice(4))
		return small[dice(6)];
	return (uint64_t)2 << 20 << dice(table->big_bytes > (8 << 20) ? 5 : 3);
}

static bool make_block(uint32_t slot)
{
	struct block *block = &blocks[slot];
	uint64_t bytes = any_size();
	CUresult result;

	if (bytes > table->big_bytes)
		bytes = table->big_bytes;
	result = CALL(cu.cuMemAlloc_v2(&block->address, bytes));
	if (result) {
		block->address = 0;
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			COUNT(no_memory);
		else
			complain("cuMemAlloc", result);
		return false;
	}
	block->bytes = bytes;
	block->serial = 1 + atomic_fetch_add(&me->serial, 1);
	write_block(block->address, bytes, block->serial);
	if (!SURE(cu.cuIpcGetMemHandle(&block->handle, block->address))) {
		cu.cuMemFree_v2(block->address);
		block->address = 0;
		return false;
	}
	COUNT(exports);
	atomic_store(&me->alive[slot], block->serial);
	return true;
}

static void do_make(void)
{
	uint32_t slot = dice(BLOCKS);
	struct gift gift;

	if (blocks[slot].address)
		free_block(slot);
	if (!make_block(slot))
		return;
	gift = gift_of(slot);
	for (uint32_t n = 1 + dice(3); n; n--)
		send_somewhere(&gift);
}

static void do_tell(void)
{
	uint32_t slot = dice(BLOCKS);
	struct gift gift;

	if (!blocks[slot].address)
		return;
	/* exported once more, or the handle it has */
	if (dice(2) && !SURE(cu.cuIpcGetMemHandle(&blocks[slot].handle, blocks[slot].address)))
		return;
	gift = gift_of(slot);
	send_somewhere(&gift);
}

static void do_free(void)
{
	uint32_t slot = dice(BLOCKS);

	if (blocks[slot].address)
		free_block(slot);
}

/* Memory that is not shared comes and goes, and is written to. */
static void do_noise(void)
{
	CUdeviceptr address;
	uint64_t bytes = 256 << 2 * dice(4);
	CUresult result = CALL(cu.cuMemAlloc_v2(&address, bytes));

	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		COUNT(no_memory);
		return;
	}
	if (!SURE(result))
		return;
	write_block(address, bytes, 0);
	SURE(cu.cuMemFree_v2(address));
}

/* All that is free, for a moment; what is asked for then must come from limbos. */
static void do_pressure(void)
{
	CUdeviceptr all = 0, one[8];
	size_t memory, total;
	uint64_t bytes = 1 << 20, until = torture_now() + PRESSURE_MS * UINT64_C(1000000);
	int n = 0;

	if (!SURE(cu.cuMemGetInfo_v2(&memory, &total)))
		return;
	COUNT(pressures);
	/* (each that fails waits for the limbos of all: tens of them are half a minute on a big device) */
	while (memory > 4 * bytes && CALL(cu.cuMemAlloc_v2(&all, memory - 2 * bytes))) {
		all = 0;
		memory -= memory / 8;
		if (torture_now() > until || atomic_load(&table->phase) != PHASE_PLAY)
			return;
	}
	while (n < 8) {
		CUresult result = CALL(cu.cuMemAlloc_v2(&one[n], 2 * bytes));

		if (result == CUDA_ERROR_OUT_OF_MEMORY) {
			COUNT(no_memory);
			break;
		}
		if (!SURE(result))
			break;
		n++;
	}
	while (n)
		SURE(cu.cuMemFree_v2(one[--n]));
	if (all)
		SURE(cu.cuMemFree_v2(all));
}

/* ------------------------------------------------------------------ imports */
static void close_once(struct import *import)
{
	looked_at = &import->gift;
	read_block(import->address, import->gift.bytes, import->gift.place, import->gift.serial,
		   "before a close");
	looked_at = NULL;
	SURE(cu.cuIpcCloseMemHandle(import->address));
	if (--import->opens == 0)
		import->address = 0;
}

static void open_memory(const struct gift *gift)
{
	bool own = gift->place == here && gift->life == my_life;
	struct import *import = &imports[dice(IMPORTS)];
	bool alive_before, alive_after, right;
	CUipcMemHandle handle;
	CUdeviceptr address;
	CUresult result;

	for (int i = 0; i < IMPORTS; i++)
		if (!imports[i].address)
			import = &imports[i];
	while (import->address)
		close_once(import);
	memcpy(&handle, gift->handle, sizeof(handle));
	alive_before = gift_alive(gift);
	result = CALL(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	alive_after = gift_alive(gift);
	if (result) {
		if (!alive_before || !alive_after || (own && table->control)) {
			COUNT(refused);
		} else {
			COUNT(refused_alive);
			complain("cuIpcOpenMemHandle of a living block", result);
		}
		/* the driver's own words: wrong value, not permitted, gone, one's own, none left */
		if (result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_NOT_PERMITTED &&
		    result != CUDA_ERROR_INVALID_HANDLE && result != CUDA_ERROR_INVALID_CONTEXT)
			complain("cuIpcOpenMemHandle", result);
		return;
	}
	COUNT(opens);
	if (own)
		COUNT(opens_own);
	if (!alive_after)
		COUNT(opens_freed);
	import->address = address;
	import->gift = *gift;
	import->opens = 1;
	looked_at = gift;
	right = read_block(address, gift->bytes, gift->place, gift->serial, "just opened");
	looked_at = NULL;
	if (!right)
		return;
	if (dice(4))
		return;
	/* (what is open may be opened again, freed or not) */
	if (CALL(cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))) {
		if (alive_after && gift_alive(gift))
			complain("cuIpcOpenMemHandle, the second time", CUDA_ERROR_UNKNOWN);
		return;
	}
	COUNT(opens);
	COUNT(opens_twice);
	import->opens++;
	if (address != import->address) {
		fprintf(stderr, "torture: ERROR %u: opened twice, at two addresses\n", here);
		COUNT(errors);
	}
}

static void open_event(const struct gift *gift)
{
	CUipcEventHandle handle;
	uint32_t slot = dice(EVENTS);
	CUresult result;

	if (gift->place == here)
		return;
	memcpy(&handle, gift->handle, sizeof(handle));
	if (open_events[slot]) {
		SURE(cu.cuEventDestroy_v2(open_events[slot]));
		open_events[slot] = NULL;
	}
	result = CALL(cu.cuIpcOpenEventHandle(&open_events[slot], handle));
	if (result) {
		open_events[slot] = NULL;
		COUNT(events_refused);
		return;
	}
	COUNT(events);
	result = cu.cuEventQuery(open_events[slot]);
	if (result && result != CUDA_ERROR_NOT_READY)
		complain("cuEventQuery of an event that was opened", result);
}

static void open_gift(const struct gift *gift)
{
	if (gift->kind == GIFT_EVENT)
		open_event(gift);
	else
		open_memory(gift);
}

static void do_hear(void)
{
	struct gift gift;

	if (recv(me->inbox[0], &gift, sizeof(gift), MSG_DONTWAIT) != sizeof(gift))
		return;
	switch (dice(8)) {
	case 0:
		put_by(&gift);
		break;
	case 1:
		send_somewhere(&gift);
		break;
	default:
		open_gift(&gift);
	}
}

/* What was put by: opened now, or sent. */
static void do_late(void)
{
	uint64_t now = torture_now();

	for (int i = 0; i < LATER; i++) {
		if (!later[i].when || later[i].when > now)
			continue;
		later[i].when = 0;
		if (exporter() && dice(4))
			send_somewhere(&later[i].gift);
		else
			open_gift(&later[i].gift);
	}
}

static void do_open_own(void)
{
	uint32_t slot = dice(BLOCKS);
	struct gift gift;

	if (!blocks[slot].address)
		return;
	gift = gift_of(slot);
	open_memory(&gift);
	if (dice(4) == 0 && blocks[slot].address)
		free_block(slot);
}

static void do_read(void)
{
	struct import *import = &imports[dice(IMPORTS)];

	looked_at = &import->gift;
	if (import->address)
		read_block(import->address, import->gift.bytes, import->gift.place,
			   import->gift.serial, "while open");
	looked_at = NULL;
}

static void do_close(void)
{
	struct import *import = &imports[dice(IMPORTS)];

	if (import->address)
		close_once(import);
}

/* ------------------------------------------------------------------- events */
static void do_event(void)
{
	struct gift gift = { .kind = GIFT_EVENT, .place = here, .life = my_life };
	uint32_t slot = dice(EVENTS);
	CUipcEventHandle handle;

	if (own_events[slot]) {
		SURE(cu.cuEventDestroy_v2(own_events[slot]));
		own_events[slot] = NULL;
		return;
	}
	if (!SURE(cu.cuEventCreate(&own_events[slot],
				   CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)) ||
	    !SURE(cu.cuIpcGetEventHandle(&handle, own_events[slot])))
		return;
	SURE(cu.cuEventRecord(own_events[slot], stream));
	memcpy(gift.handle, &handle, sizeof(gift.handle));
	send_somewhere(&gift);
	send_somewhere(&gift);
}

/* ------------------------------------------------------------ forks and ends */
static void gather_children(void)
{
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

static void do_fork(void)
{
	uint32_t how = dice(6), slot = dice(BLOCKS);
	pid_t child;

	fflush(stderr);
	child = CALL(fork());
	if (child < 0)
		return;
	if (child) {
		COUNT(forks);
		/* most of them are waited for; the others live on beside us for a moment */
		for (int ms = 0; dice(8) && ms < 200 && waitpid(child, NULL, WNOHANG) == 0; ms++)
			nap(1000000);
		return;
	}
	switch (how) {
	case 0:
		exit(0);
	case 1:
		/* what is its parent's it can't free or close */
		if (blocks[slot].address && !cu.cuMemFree_v2(blocks[slot].address))
			COUNT(errors);
		if (imports[0].address && !cu.cuIpcCloseMemHandle(imports[0].address))
			COUNT(errors);
		_exit(0);
	case 2:
		raise(SIGKILL);
		break;
	case 3:
		execl("/bin/true", "true", (char *)NULL);
		break;
	case 4:
		nap(50000000);
		quick_exit(0);
	default:
		break;
	}
	_exit(0);
}

/* Nothing of this life is alive any more. */
static void end_life(void)
{
	atomic_fetch_add(&me->life, 1);
	atomic_store(&me->state, STATE_BEGINS);
}

static void do_exec(void)
{
	end_life();
	COUNT(execs);
	execv("/proc/self/exe", arguments);
	fprintf(stderr, "torture: ERROR: exec: %s\n", strerror(errno));
	COUNT(errors);
	_exit(1);
}

static void do_end(void)
{
	end_life();
	COUNT(exits);
	switch (dice(3)) {
	case 0:
		_exit(0);
	case 1:
		quick_exit(0);
	default:
		exit(0);
	}
}

/* -------------------------------------------------------------- the whole of it */
/*
 * *drivers_own: it failed as a GPU's driver does, bare too, when many processes
 * begin and are killed at once (doc/results, 2026-11-22).
 */
static bool do_begin(bool *drivers_own)
{
	uint64_t deadline = torture_now() + BEGIN_MS * UINT64_C(1000000);
	const char *why = cuda_door_open();
	CUdevice device;
	CUresult result;

	if (!why && !(*(void **)&copy_to_device = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD),
							"cuMemcpyHtoD_v2")))
		why = dlerror();
	*drivers_own = false;
	COUNT(begins);
	if (why) {
		fprintf(stderr, "torture: ERROR %u: %s\n", here, why);
		return false;
	}
	/* (others may have taken all of the memory for a moment: do_pressure) */
	while ((result = CALL(cu.cuInit(0))) || (result = cu.cuDeviceGet(&device, 0)) ||
	       (result = CALL(cu.cuDevicePrimaryCtxRetain(&context, device))) ||
	       (result = cu.cuCtxSetCurrent(context)) ||
	       (result = CALL(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)))) {
		if (result != CUDA_ERROR_OUT_OF_MEMORY || torture_now() > deadline) {
			COUNT(begin_failed);
			if (table->gpu && result == CUDA_ERROR_UNKNOWN) {
				COUNT(begin_unknown);
				*drivers_own = true;
				return false;
			}
			complain("the first calls", result);
			return false;
		}
		nap(20000000);
	}
	return true;
}

/* How often of 1,000 (exporters, importers); what is left over is nothing but do_late(). */
static const struct {
	enum deed deed;
	uint32_t of_exporter, of_importer;
	void (*does)(void);
} deeds[] = {
	{ DEED_fork, 4, 4, do_fork },	    { DEED_exec, 2, 2, do_exec },
	{ DEED_end, 3, 3, do_end },	    { DEED_pressure, 6, 0, do_pressure },
	{ DEED_make, 285, 0, do_make },	    { DEED_tell, 150, 0, do_tell },
	{ DEED_free, 150, 0, do_free },	    { DEED_open_own, 60, 0, do_open_own },
	{ DEED_event, 40, 0, do_event },    { DEED_noise, 100, 0, do_noise },
	{ DEED_hear, 60, 551, do_hear },    { DEED_read, 80, 240, do_read },
	{ DEED_close, 60, 200, do_close },
};

static void play_once(void)
{
	uint32_t what = dice(1000);

	COUNT(operations);
	for (size_t i = 0; i < sizeof(deeds) / sizeof(deeds[0]); i++) {
		uint32_t share = exporter() ? deeds[i].of_exporter : deeds[i].of_importer;

		if (what < share) {
			atomic_store(&me->doing, deeds[i].deed);
			deeds[i].does();
			break;
		}
		what -= share;
	}
	atomic_store(&me->doing, DEED_late);
	do_late();
}

/* Frees and closes all: what is freed here may be open elsewhere, and the other way round. */
static void do_finish(void)
{
	for (uint32_t slot = 0; slot < BLOCKS; slot++)
		if (blocks[slot].address)
			free_block(slot);
	for (int i = 0; i < IMPORTS; i++)
		while (imports[i].address)
			close_once(&imports[i]);
	for (int i = 0; i < EVENTS; i++) {
		if (own_events[i])
			SURE(cu.cuEventDestroy_v2(own_events[i]));
		if (open_events[i])
			SURE(cu.cuEventDestroy_v2(open_events[i]));
	}
	SURE(cu.cuStreamSynchronize(stream));
}

/*
 * One that has no collector gives back in calls of its own, so there is one now
 * and then until all may leave: an allocation, and its free.
 */
static void do_drain(void)
{
	uint64_t deadline = torture_now() + PHASE_MS * UINT64_C(1000000);
	CUdeviceptr block;

	while (atomic_load(&table->phase) < PHASE_LEAVE && torture_now() < deadline) {
		CUresult result = CALL(cu.cuMemAlloc_v2(&block, 256));

		if (result == CUDA_SUCCESS)
			SURE(cu.cuMemFree_v2(block));
		else
			complain("cuMemAlloc while all is drained", result);
		nap(5000000);
	}
}

static void wait_for(enum phase phase)
{
	uint64_t deadline = torture_now() + PHASE_MS * UINT64_C(1000000);

	while (atomic_load(&table->phase) < phase && torture_now() < deadline)
		nap(2000000);
}

int torture_play(void *shared, uint32_t place, char **argv)
{
	const char *collector = getenv("CULIMBO_COLLECTOR");
	bool inline_only = collector && !strcmp(collector, "inline"), drivers_own;

	/* (a child that outlives its parent ends by itself) */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	table = shared;
	here = place;
	me = &table->place[here];
	arguments = argv;
	setvbuf(stderr, NULL, _IOLBF, 512);
	my_life = 1 + atomic_fetch_add(&me->life, 1);
	seed = torture_seed(table->seed, (uint64_t)here << 32 | my_life);
	for (int i = 0; i < BLOCKS; i++)
		atomic_store(&me->alive[i], 0);
	atomic_store(&me->doing, DEED_begin);
	if (!do_begin(&drivers_own))
		return drivers_own ? 0 : 3;
	atomic_store(&me->state, STATE_READY);
	wait_for(PHASE_PLAY);
	while (atomic_load(&table->phase) == PHASE_PLAY) {
		play_once();
		gather_children();
		atomic_fetch_add(&me->beat, 1);
		/* the pace: so that 32 of us leave the machine to others */
		if (dice(4))
			nap(dice(6000) * UINT64_C(1000));
	}
	atomic_store(&me->doing, DEED_finish);
	do_finish();
	atomic_store(&me->state, STATE_EMPTY);
	/* exporters stay, so that it is seen that they need not end to give back */
	if (exporter()) {
		wait_for(PHASE_DRAIN);
		atomic_store(&me->doing, DEED_drain);
		if (inline_only && !table->control)
			do_drain();
		atomic_store(&me->doing, DEED_leave);
		wait_for(PHASE_LEAVE);
	}
	/* (what is in the late list is forgotten; children that are left end soon) */
	gather_children();
	return 0;
}
