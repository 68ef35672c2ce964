/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What allocations and frees take a process that shares nothing: `hand_over alone` and `hand_over default`.
 *
 * "alone" prints for each kind of memory what one allocation with its free takes, for each batch.  Of stream-ordered
 * memory there are three kinds: of the device's default pool ("async"), of a pool of the program's own that nobody
 * can export ("async-own"), and of one that can be exported ("async-exportable").  Under culimbo's option the default
 * pool is an exportable one.  "virtual-exportable" asks for a descriptor, as "virtual" does under the option.
 *
 * Where a pair is one call and one free, it also prints, as NAME-direct, what the driver's own functions take.  It calls
 * them past any preload, by turns with the functions that a program gets.
 *
 * Two things of the driver differ by chance (measured on H100s and H200s, doc/performance.md).  A process is
 * fast or slow as a whole: a pool's pair takes it 640 to 1,640 ns.  And in one process a pool may take 1 to 3 % more than
 * another one, of whatever kind, depending on how many pools are in use and which was used first.  So each process also
 * prints controls: memory that is made and freed past any preload, which no option changes.  And it makes all its pools
 * in random order, with a random number of controls among them.  The kinds take turns in another order in each batch.
 *
 * A program that shares nothing mostly uses one pool.  So "default" has only one pool in use at any time, by turns: the
 * default pool that the program gets ("default"), and the device's real one, past any preload ("default-direct").  After
 * each turn the pool gives its memory back; "default-left" has the most that was left to it, in bytes.  The line
 * "default-stands-in" has 1 if the first is not the real one.  "default-chunk" is what it takes when the pool takes its
 * chunk from the driver and gives it back.  "default-exportable" and "default-chunk-exportable" are those of a pool that
 * can be exported, past any preload, too: the driver's own price.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/random.h>

#include "tests/bench/hand_over.h"
#include "tests/bench/library_file.h"

static unsigned int rounds;
static CUdeviceptr kept;
static CUresult(CUDAAPI *pool_create)(CUmemoryPool *, const CUmemPoolProps *);
static CUresult(CUDAAPI *get_pool)(CUmemoryPool *, CUdevice);
static CUresult(CUDAAPI *set_pool)(CUdevice, CUmemoryPool);

static CUdeviceptr room; /* a reservation of PIECE bytes */

static void pair_virtual_of(unsigned int types)
{
	CUmemAllocationProp properties = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
					   .requestedHandleTypes = (CUmemAllocationHandleType)types };
	CUmemGenericAllocationHandle memory;

	CUDA(cu.cuMemCreate(&memory, PIECE, &properties, 0));
	CUDA(cu.cuMemMap(room, PIECE, 0, memory, 0));
	hand_over_let_in(room, PIECE);
	CUDA(cu.cuMemUnmap(room, PIECE));
	CUDA(cu.cuMemRelease(memory));
}

static void pair_virtual(void)
{
	pair_virtual_of(CU_MEM_HANDLE_TYPE_NONE);
}

static void pair_virtual_exportable(void)
{
	pair_virtual_of(POSIX_FD);
}

static void pair(void)
{
	CUdeviceptr at;

	CUDA(cu.cuMemAlloc_v2(&at, 4096));
	CUDA(cu.cuMemFree_v2(at));
}

static unsigned int at_random(unsigned int below)
{
	unsigned int number;

	MUST(getrandom(&number, sizeof(number), 0) == sizeof(number));
	return number % below;
}

/* Writes the numbers below @count to @order, in random order. */
static void shuffle(unsigned int *order, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		unsigned int k = at_random(i + 1);

		order[i] = order[k];
		order[k] = i;
	}
}

void hand_over_shift_heap(void)
{
	static char *last;
	char *more = malloc(sizeof(last) + at_random(256) * 16);

	MUST(more);
	memcpy(more, &last, sizeof(last));
	last = more;
}

enum { DEFAULT, OWN, EXPORTABLE, CONTROL, MOST_CONTROLS = 9, POOLS = CONTROL + MOST_CONTROLS };
static CUmemoryPool pools[POOLS];
static unsigned int controls;

/* The driver's own functions, past any preload. */
static struct cuda_door direct;
static CUresult(CUDAAPI *direct_pool_create)(CUmemoryPool *, const CUmemPoolProps *);
static CUresult(CUDAAPI *direct_set_pool)(CUdevice, CUmemoryPool);
static CUresult(CUDAAPI *direct_default_pool)(CUmemoryPool *, CUdevice);
static CUresult(CUDAAPI *direct_pool)(CUmemoryPool *, CUdevice);
static CUresult(CUDAAPI *direct_pool_attribute)(CUmemoryPool, CUmemPool_attribute, void *);

static void find_direct(void)
{
	static const struct file_function called[] = {
		{ "cuMemAlloc_v2", &direct.cuMemAlloc_v2 },
		{ "cuMemFree_v2", &direct.cuMemFree_v2 },
		{ "cuMemAllocAsync", &direct.cuMemAllocAsync },
		{ "cuMemFreeAsync", &direct.cuMemFreeAsync },
		{ "cuMemCreate", &direct.cuMemCreate },
		{ "cuMemMap", &direct.cuMemMap },
		{ "cuMemSetAccess", &direct.cuMemSetAccess },
		{ "cuMemUnmap", &direct.cuMemUnmap },
		{ "cuMemRelease", &direct.cuMemRelease },
		{ "cuMemPoolCreate", &direct_pool_create },
		{ "cuDeviceSetMemPool", &direct_set_pool },
		{ "cuDeviceGetDefaultMemPool", &direct_default_pool },
		{ "cuDeviceGetMemPool", &direct_pool },
		{ "cuMemPoolGetAttribute", &direct_pool_attribute },
	};

	find_functions(hand_over_library, called, sizeof(called) / sizeof(called[0]));
	direct.cuCtxSynchronize = cu.cuCtxSynchronize;
}

/* What is kept spares the driver a new chunk of 2 MiB for each pair, which takes it 70 us and varies. */
static void make_pool(unsigned int i)
{
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
				      .handleTypes = i == EXPORTABLE ? POSIX_FD : CU_MEM_HANDLE_TYPE_NONE };

	hand_over_shift_heap();
	if (i == DEFAULT)
		CUDA(get_pool(&pools[i], 0));
	else
		CUDA((i < CONTROL ? pool_create : direct_pool_create)(&pools[i], &properties));
	CUDA((i < CONTROL ? set_pool : direct_set_pool)(0, pools[i]));
	CUDA((i < CONTROL ? cu.cuMemAllocAsync : direct.cuMemAllocAsync)(&kept, 4096, NULL));
}

/* Makes the pools in random order, with 2 to MOST_CONTROLS controls. */
static void make_pools(void)
{
	unsigned int order[POOLS], count;

	controls = 2 + at_random(MOST_CONTROLS - 1);
	count = CONTROL + controls;
	shuffle(order, count);
	for (unsigned int i = 0; i < count; i++) {
		make_pool(order[i]);
		for (unsigned int k = 0; k < i; k++)
			MUST(pools[order[k]] != pools[order[i]]);
	}
}

static void pair_async(void)
{
	CUdeviceptr at;

	CUDA(cu.cuMemAllocAsync(&at, 4096, NULL));
	CUDA(cu.cuMemFreeAsync(at, NULL));
}

/* Returns how many ns one @op takes, of @times. */
static double timed(void (*op)(void), unsigned int times)
{
	uint64_t start;
	double took;

	op();
	CUDA(cu.cuCtxSynchronize());
	start = hand_over_now_ns();
	for (unsigned int k = 0; k < times; k++)
		op();
	took = (double)(hand_over_now_ns() - start) / times;
	CUDA(cu.cuCtxSynchronize());
	return took;
}

static void say(const char *name, const char *how, const double *took)
{
	printf("%s%s ns", name, how);
	/* the first batch warms up */
	for (unsigned int batch = 1; batch <= rounds; batch++)
		printf(" %.1f", took[batch]);
	printf("\n");
}

static double *batches(void)
{
	double *took = calloc(rounds + 1, sizeof(*took));

	MUST(took);
	return took;
}

static double timed_direct(void (*op)(void), unsigned int times)
{
	const struct cuda_door given = cu;
	double took;

	cu = direct;
	took = timed(op, times);
	cu = given;
	return took;
}

static void stay_here(void)
{
	int processor = sched_getcpu();
	cpu_set_t one;

	MUST(processor >= 0);
	CPU_ZERO(&one);
	CPU_SET((unsigned int)processor, &one);
	MUST(!sched_setaffinity(0, sizeof(one), &one));
}

static void start(unsigned int count)
{
	rounds = count;
	stay_here();
	*(void **)&pool_create = dlsym(hand_over_library, "cuMemPoolCreate");
	*(void **)&set_pool = dlsym(hand_over_library, "cuDeviceSetMemPool");
	*(void **)&get_pool = dlsym(hand_over_library, "cuDeviceGetDefaultMemPool");
	MUST(pool_create && set_pool && get_pool);
	find_direct();
}

/*
 * Times a batch of @pool, which is in use in it and afterwards is not.  @set makes the device allocate from it.  Returns
 * how many ns a pair takes, and in *@chunk those in which the pool takes its chunk from the driver and gives it back.  Raises
 * *@left to what the pool has then.
 */
static double timed_pool(CUresult(CUDAAPI *set)(CUdevice, CUmemoryPool), CUmemoryPool pool, double *chunk, cuuint64_t *left)
{
	CUdeviceptr at;
	cuuint64_t has;
	uint64_t start;
	double took;

	CUDA(set(0, pool));
	start = hand_over_now_ns();
	CUDA(cu.cuMemAllocAsync(&at, 4096, NULL));
	*chunk = (double)(hand_over_now_ns() - start);
	took = timed(pair_async, 400);
	start = hand_over_now_ns();
	CUDA(cu.cuMemFreeAsync(at, NULL));
	CUDA(cu.cuCtxSynchronize());
	*chunk += (double)(hand_over_now_ns() - start);
	CUDA(direct_pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &has));
	if (has > *left)
		*left = has;
	return took;
}

void hand_over_default(unsigned int count)
{
	const struct cuda_door given = cu;
	static const char *const names[] = { "-direct", "", "-exportable" };
	enum { REAL, GIVEN, OTHER, TURNS };
	const CUmemPoolProps exportable = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
					    .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
					    .handleTypes = POSIX_FD };
	CUmemoryPool pool[TURNS], in_use;
	cuuint64_t left = 0;
	double *took[TURNS], *chunk[TURNS];

	start(count);
	for (unsigned int i = 0; i < TURNS; i++) {
		took[i] = batches();
		chunk[i] = batches();
	}
	CUDA(get_pool(&pool[GIVEN], 0));
	CUDA(direct_default_pool(&pool[REAL], 0));
	CUDA(direct_pool_create(&pool[OTHER], &exportable));
	CUDA(set_pool(0, pool[GIVEN]));
	CUDA(direct_pool(&in_use, 0));
	for (unsigned int batch = 0; batch <= rounds; batch++)
		for (unsigned int turn = 0; turn < TURNS; turn++) {
			/* each of the six orders in turn, so that none of the three always follows another */
			unsigned int i = (batch + (batch & 1 ? TURNS - turn : turn)) % TURNS;

			cu = i == GIVEN ? given : direct;
			took[i][batch] = timed_pool(i == GIVEN ? set_pool : direct_set_pool, pool[i], &chunk[i][batch], &left);
		}
	cu = given;
	printf("default-stands-in ns %d\ndefault-left ns %llu\n", in_use != pool[REAL], (unsigned long long)left);
	for (unsigned int i = 0; i < TURNS; i++) {
		say("default", names[i], took[i]);
		say("default-chunk", names[i], chunk[i]);
		free(took[i]);
		free(chunk[i]);
	}
}

/* The batches of all kinds take turns on one processor.  They are short, so that many of them meet no interrupt. */
void hand_over_alone(unsigned int count)
{
	static const struct {
		const char *name;
		void (*op)(void);
		int pool;
		unsigned int times; /* in a batch */
		const char *direct; /* the driver's own functions take turns with it, and this is behind the name then */
	} ops[] = { { "virtual", pair_virtual, DEFAULT, 4, "-control" },
		    { "virtual-exportable", pair_virtual_exportable, DEFAULT, 4, NULL },
		    { "plain", pair, DEFAULT, 200, "-direct" },
		    { "async", pair_async, DEFAULT, 400, "-direct" },
		    { "async-own", pair_async, OWN, 400, "-direct" },
		    { "async-exportable", pair_async, EXPORTABLE, 400, "-direct" } };
	enum { OPS = sizeof(ops) / sizeof(ops[0]) };
	double *took[OPS], *past[OPS], *control[MOST_CONTROLS];

	start(count);
	for (unsigned int i = 0; i < OPS; i++) {
		took[i] = batches();
		past[i] = batches();
	}
	for (unsigned int i = 0; i < MOST_CONTROLS; i++)
		control[i] = batches();
	CUDA(cu.cuMemAddressReserve(&room, PIECE, 0, 0, 0));
	CUDA(cu.cuMemAlloc_v2(&kept, 4096));
	make_pools();
	for (unsigned int batch = 0; batch <= rounds; batch++) {
		unsigned int order[OPS];

		shuffle(order, OPS);
		for (unsigned int n_th = 0; n_th < OPS; n_th++) {
			unsigned int i = order[n_th];

			CUDA(set_pool(0, pools[ops[i].pool]));
			for (unsigned int turn = 0; turn < 2; turn++) {
				if (!((turn ^ batch) & 1))
					took[i][batch] = timed(ops[i].op, ops[i].times);
				else if (ops[i].direct)
					past[i][batch] = timed_direct(ops[i].op, ops[i].times);
			}
		}
		for (unsigned int i = 0; i < controls; i++) {
			CUDA(direct_set_pool(0, pools[CONTROL + i]));
			control[i][batch] = timed_direct(pair_async, 400);
		}
	}
	for (unsigned int i = 0; i < OPS; i++) {
		say(ops[i].name, "", took[i]);
		if (ops[i].direct)
			say(ops[i].name, ops[i].direct, past[i]);
		free(took[i]);
		free(past[i]);
	}
	for (unsigned int i = 0; i < MOST_CONTROLS; i++) {
		char name[24];

		snprintf(name, sizeof(name), "pool-control-%u", i);
		if (i < controls)
			say(name, "", control[i]);
		free(control[i]);
	}
}
