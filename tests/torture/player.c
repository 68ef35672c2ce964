/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process under torture: an exporter (which also imports) or an importer.  It performs one random
 * operation ("deed") after the other.  At any of them it may be killed, stopped, or end by itself.
 *
 * It checks these promises: Every read of an open block gives the block's own bytes (1).  A handle of
 * a freed block opens as that block or is refused (2); a handle of a live block always opens.
 *
 * Rules: A block is written once, before its handle is exported.  It counts as alive until just before
 * the call that frees it.  No wait is without a deadline.  Nothing is written to stdout.
 */
#include "tests/torture/crash.h"
#include "tests/torture/player.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLAYER_FILE PLAYER

struct table *table;
struct place *me;
uint32_t here, my_life;
static uint64_t seed;
static char **arguments;
static CUcontext context;
CUstream stream;
CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t);
CUresult (*copy_in_stream)(void *, CUdeviceptr, size_t, CUstream);

struct block blocks[BLOCKS];
struct import imports[IMPORTS];

CUevent own_events[EVENTS], open_events[EVENTS];

uint32_t dice(uint32_t sides)
{
	return torture_dice(&seed, sides);
}

bool exporter(void)
{
	return here < EXPORTERS;
}

static void nap(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	nanosleep(&t, NULL);
}

/* Reports a result that would be wrong without culimbo too. */
void complain(const char *call, CUresult result)
{
	const char *name = NULL;

	COUNT(errors);
	cu.cuGetErrorName(result, &name);
	fprintf(stderr, "torture: ERROR %u (pid %d): %s: %s (%d)\n", here, (int)getpid(), call,
		name ? name : "?", result);
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
		/* it waits for most children; the others live on for a moment */
		for (int ms = 0; dice(8) && ms < 200 && waitpid(child, NULL, WNOHANG) == 0; ms++)
			nap(1000000);
		return;
	}
	switch (how) {
	case 0:
		exit(0);
	case 1:
		/* a child cannot free or close what its parent has */
		if (blocks[slot].address && !cu.cuMemFree_v2(blocks[slot].address))
			COUNT(errors);
		if (imports[0].address && !cu.cuIpcCloseMemHandle(imports[0].address))
			COUNT(errors);
		if (!virtual_in_child())
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

/* Marks every block of this life as dead. */
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

/* -------------------------------------------------------------- main */
static CUresult first_calls(const char **call)
{
	CUdevice device;
	CUresult result;

	*call = "cuInit";
	if ((result = CALL(cu.cuInit(0))))
		return result;
	*call = "cuDeviceGet";
	if ((result = cu.cuDeviceGet(&device, 0)))
		return result;
	*call = "cuDevicePrimaryCtxRetain";
	if ((result = CALL(cu.cuDevicePrimaryCtxRetain(&context, device))))
		return result;
	*call = "cuCtxSetCurrent";
	if ((result = cu.cuCtxSetCurrent(context)))
		return result;
	*call = "cuStreamCreate";
	return CALL(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

/*
 * *drivers_own: the call failed as a GPU's driver does, with or without culimbo, when many processes start and
 * are killed at once.  CUDA_ERROR_UNKNOWN occurs bare as often (doc/results, 2026-11-22).
 * CUDA_ERROR_LAUNCH_FAILED occurred once, in a process that had launched nothing (2026-11-23).
 */
static bool do_begin(bool *drivers_own)
{
	uint64_t deadline = torture_now() + BEGIN_MS * UINT64_C(1000000);
	const char *why = cuda_door_open(), *call = NULL;
	char where[64];
	CUresult result;

	if (!why && (!(*(void **)&copy_to_device = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD),
							 "cuMemcpyHtoD_v2")) ||
		     !(*(void **)&copy_in_stream = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD),
							 "cuMemcpyDtoHAsync_v2"))))
		why = dlerror();
	*drivers_own = false;
	COUNT(begins);
	if (why) {
		fprintf(stderr, "torture: ERROR %u: %s\n", here, why);
		return false;
	}
	/* other processes may hold all memory for a moment: do_pressure */
	while ((result = first_calls(&call))) {
		if (result != CUDA_ERROR_OUT_OF_MEMORY || torture_now() > deadline) {
			COUNT(begin_failed);
			if (table->gpu && (result == CUDA_ERROR_UNKNOWN || result == CUDA_ERROR_LAUNCH_FAILED)) {
				COUNT(begin_unknown);
				*drivers_own = true;
				fprintf(stderr, "torture: first calls: %s gave %d\n", call, (int)result);
				return false;
			}
			snprintf(where, sizeof(where), "the first calls, %s", call);
			complain(where, result);
			return false;
		}
		nap(20000000);
	}
	return true;
}

/* The frequency of each deed, of 1,000 (exporters, importers); the rest is do_late(). */
static const struct {
	enum deed deed;
	uint32_t of_exporter, of_importer;
	void (*does)(void);
} deeds[] = {
	{ DEED_fork, 4, 4, do_fork },	    { DEED_exec, 2, 2, do_exec },
	{ DEED_end, 3, 3, do_end },	    { DEED_pressure, 6, 0, do_pressure },
	{ DEED_make, 225, 0, do_make },	    { DEED_tell, 130, 0, do_tell },
	{ DEED_free, 130, 0, do_free },	    { DEED_open_own, 50, 0, do_open_own },
	{ DEED_pool, 8, 0, do_pool },	    { DEED_virtual, 130, 60, do_virtual },
	{ DEED_event, 40, 0, do_event },    { DEED_noise, 62, 0, do_noise },
	{ DEED_hear, 60, 491, do_hear },    { DEED_read, 80, 240, do_read },
	{ DEED_close, 60, 200, do_close },  { DEED_async, 8, 0, do_async },
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

/* Frees and closes everything.  Other processes may have these blocks open, and this one may have theirs. */
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
	end_pools();
	end_async();
	end_virtual();
	SURE(cu.cuStreamSynchronize(stream));
}

/*
 * A process without a collector thread releases blocks during its own driver calls.  So it makes one
 * now and then, an allocation and a free, until all processes may end.  All say what their default pools keep.
 */
static void do_drain(bool calls)
{
	uint64_t deadline = torture_now() + PHASE_MS * UINT64_C(1000000);
	CUdeviceptr block;

	while (atomic_load(&table->phase) < PHASE_LEAVE && torture_now() < deadline) {
		CUresult result = calls ? CALL(cu.cuMemAlloc_v2(&block, 256)) : CUDA_SUCCESS;

		if (result)
			complain("cuMemAlloc during the final release", result);
		else if (calls)
			SURE(cu.cuMemFree_v2(block));
		async_tell();
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

	/* a child that outlives its parent ends by itself */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	table = shared;
	here = place;
	me = &table->place[here];
	arguments = argv;
	setvbuf(stderr, NULL, _IOLBF, 512);
	crash_tell("torture", &me->doomed);
	my_life = 1 + atomic_fetch_add(&me->life, 1);
	seed = torture_seed(table->seed, (uint64_t)here << 32 | my_life);
	for (int i = 0; i < BLOCKS; i++)
		atomic_store(&me->alive[i], 0);
	for (int i = 0; i < REGIONS * REGION_SLOTS; i++)
		atomic_store(&me->mapped[i / REGION_SLOTS][i % REGION_SLOTS], 0);
	atomic_store(&me->pool_kept, 0);
	atomic_store(&me->pool_used, 0);
	atomic_store(&me->doing, DEED_begin);
	if (!do_begin(&drivers_own))
		return drivers_own ? 0 : 3;
	atomic_store(&me->state, STATE_READY);
	wait_for(PHASE_PLAY);
	while (atomic_load(&table->phase) == PHASE_PLAY) {
		play_once();
		gather_children();
		atomic_fetch_add(&me->beat, 1);
		/* a pause, so that 32 processes leave CPU time to others */
		if (dice(4))
			nap(dice(6000) * UINT64_C(1000));
	}
	atomic_store(&me->doing, DEED_finish);
	do_finish();
	atomic_store(&me->state, STATE_EMPTY);
	/* exporters stay: this shows that they release blocks without ending */
	if (exporter()) {
		wait_for(PHASE_DRAIN);
		atomic_store(&me->doing, DEED_drain);
		do_drain(inline_only && !table->control);
		atomic_store(&me->doing, DEED_leave);
		wait_for(PHASE_LEAVE);
	}
	/* the late list is forgotten; remaining children end soon */
	gather_children();
	return 0;
}
