/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated CUDA driver: the declarations that its files share.
 *
 * A libcuda.so.1 whose device memory is a sparse file that all processes of this
 * user share.  It behaves as measured on a GPU, hazards included (the facts of
 * tests/gpu/conformance.c and doc/measurements.md).  So programs that share memory
 * between processes can be tested without a GPU.  It runs only the two kernels of
 * tests/gpu/conformance.c.
 *
 * What must hold:
 * - one lock, sim.lock, protects everything that belongs to this process; a wait
 *   (for a stream, an event) releases it;
 * - the pool (pool.c, pool_files.c, pool_state.c) has its own lock, taken inside
 *   sim.lock and never the other way round; the only system call under it is the
 *   one that gives back pages;
 * - in a forked child of a process that had called cuInit, every call fails
 *   with CUDA_ERROR_NOT_INITIALIZED and touches neither lock nor pool.
 */
#ifndef CULIMBO_SIM_H
#define CULIMBO_SIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include "names.h"
#include "calls.h"

#define X(base, symbol, version, flags) SIM_LISTED_##symbol = 1,
enum { SIM_CALLS(X) };
#undef X

/*
 * Declares and defines a driver call, which must be in calls.h.  The exported symbol of that name
 * is a stub (stubs.S) that jumps here; calls of @name in the same file come here directly.
 */
#define SIM_CALL(name, params)                                                                     \
	_Static_assert(SIM_LISTED_##name, "in calls.h");                                           \
	__attribute__((visibility("hidden"))) CUresult CUDAAPI name params                         \
		__asm__("sim_call_" #name);                                                        \
	CUresult CUDAAPI name params

#define SIM_PAGE ((size_t)2 << 20) /* the device's allocation granularity, in bytes */
#define SIM_UNIT ((size_t)512)     /* the granularity inside a shared 2 MiB chunk */
#define SIM_UNITS (SIM_PAGE / SIM_UNIT)
#define SIM_DEVICES_MAX 16
#define SIM_IPC_EVENTS 4096 /* interprocess events that one process may have */

/* ---- settings (options.c) ---- */

struct sim_options {
	size_t memory; /* bytes per device */
	size_t needed; /* bytes, see sim_memory_needed() */
	unsigned int devices;
	bool thunks;       /* cuGetProcAddress returns other addresses than dlsym */
	bool random_tail;  /* bytes of handles are in use that others leave zero */
	bool pool_access; /* other devices reach a pool's memory only if they are let in */
	bool reach_shown; /* a device that CUDA_VISIBLE_DEVICES hides can't be reached */
	bool kernels_linger; /* a dead process's kernel goes on writing for a moment */
	char directory[256];
};

/* The options are read at cuInit, or earlier by cuGetProcAddress. */
const struct sim_options *sim_options(void);
/*
 * Returns bytes that others leave zero, for CULIMBO_SIM_TAIL=random, always the same in one process.
 * Their lowest 18 bits are 0, as in no stamp of culimbo.  Otherwise one in 8,192 handles would look
 * to an importer like the stamp of an exporter that has ended.
 */
uint64_t sim_handle_tail(uint64_t of);
__attribute__((format(printf, 1, 2))) void sim_warn(const char *format, ...);

/* ---- device memory of all processes (pool.c, pool_files.c) ---- */

/* An event that processes share, with its recordings requested and done. */
struct sim_event_core {
	_Atomic uint64_t recorded;
	_Atomic uint64_t done;
	_Atomic uint64_t time_ns; /* CLOCK_MONOTONIC of the last one done */
	_Atomic uint32_t recorder; /* client number of the process that recorded last */
	_Atomic uint32_t flags;    /* the exporter's cuEventCreate flags, 0: never made */
};

int pool_attach(void);
void pool_detach(void);
/*
 * Returns how many devices CUDA_VISIBLE_DEVICES shows this process, which has its own numbers for
 * them.
 */
unsigned int pool_devices(void);
/* Returns the number of @device for all processes.  @device must be less than pool_devices(). */
unsigned int pool_physical(unsigned int device);
/* Returns how many devices there are, hidden ones included. */
unsigned int pool_devices_here(void);
/* Returns this process's number of such a device; -1 if it is not shown. */
int pool_visible(unsigned int physical);
/*
 * Returns a number of such a device in this process, also of one that CUDA_VISIBLE_DEVICES hides, which no call of the
 * program takes or gives; -1 if CULIMBO_SIM_REACH says that this process can't reach it.
 */
int pool_reachable(unsigned int physical);
/* Returns what the driver says to the program for the number @device of pool_reachable(). */
int pool_told(int device);
/* Returns true unless @location is a device that this process does not see.  Calls about access refuse that (our choice). */
bool sim_knows(const CUmemLocation *location);
size_t pool_memory(void);
uint32_t pool_client(void);
uint32_t pool_pid(void);
uint64_t pool_cookie(void);
/* Takes @bytes (a multiple of SIM_PAGE) of @device.  Returns 0 and *segment, or -ENOMEM. */
int pool_take(unsigned int device, size_t bytes, uint32_t *segment);
/* The ways in which others may open a segment. */
enum pool_way { POOL_BY_HANDLE = 1, POOL_BY_POINTER, POOL_BY_FABRIC };
/* Lets others open @segment as (our client, @base) in this way. */
void pool_publish(uint32_t segment, uint64_t base, enum pool_way way);
/* From now on no process may open it. */
void pool_unpublish(uint32_t segment);
/* Drops this process's hold on the segment; the last process to do so gives it back. */
void pool_drop(uint32_t segment);
/*
 * Adds a hold.  With @number it is a block's of this process's pool of that number that was exported:
 * the segment also stays while a descriptor of the pool is open.
 */
void pool_keep(uint32_t segment, uint32_t number);
size_t pool_segment_bytes(uint32_t segment);
/* @device has the number for all processes. */
unsigned int pool_segment_device(uint32_t segment);
unsigned int pool_segment_serial(uint32_t segment);
/* Maps @bytes at @offset of @segment to the address @at.  Returns 0 or -errno. */
int pool_map(uint32_t segment, size_t offset, size_t bytes, void *at);
void pool_usage(unsigned int device, size_t *free_bytes);
/*
 * Finds the segment (client, base), @bytes long, published in this way, and holds it for this
 * process.  Returns 0; -ESRCH if the process has ended; -ENOENT if there is none; -EINVAL if
 * @cookie is not NULL and is not the owner's.
 */
int pool_open(uint32_t client, uint64_t base, size_t bytes, enum pool_way way,
	      const uint64_t *cookie, uint32_t *segment);
bool pool_client_alive(uint32_t client);
/* The kinds of things that our descriptors name. */
enum pool_name { POOL_NAME_SEGMENT = 1, POOL_NAME_DMA_BUF, POOL_NAME_MEMPOOL };
/* Returns a descriptor that keeps @segment until its last copy is closed, or -errno. */
int pool_export_fd(uint32_t segment, enum pool_name what);
/*
 * Holds the segment of a descriptor from pool_export_fd().  Returns 0; -ENOENT if the file is
 * ours but names nothing, as when it was opened again by its path (fact 24); -EINVAL.
 */
int pool_import_fd(int fd, uint32_t *segment);
/*
 * Returns a descriptor of this process's pool @number, less than 1 << 25, on @device (the number
 * for all processes).
 */
int pool_export_mempool(uint32_t number, unsigned int device);
/* Returns the same errors as pool_import_fd(). */
int pool_import_mempool(int fd, uint32_t *client, uint32_t *number, unsigned int *device);
struct sim_event_core *pool_event(uint32_t index);
/* Returns the event (client with this cookie, index) of a live process, or NULL. */
struct sim_event_core *pool_find_event(uint32_t pid, uint64_t cookie, uint32_t index,
				       bool *known);
/* Returns true if a live process has this cookie, whatever its pid. */
bool pool_has_cookie(uint64_t cookie);

/* ---- contexts (core.c, context.c) ---- */

#define SIM_CONTEXT_MAGIC UINT32_C(0x63747830)
#define SIM_STACK_DEPTH 64

struct sim_stream;
struct sim_region;

struct sim_context {
	uint32_t magic;
	int device;
	bool primary;
	bool alive;
	struct sim_context *whole; /* of a green context: the primary one, the owner of all made in it */
	struct sim_context *earlier; /* in sim_contexts; green ones are not there */
	bool listed;
	unsigned int references; /* of a primary context */
	unsigned int flags;
	unsigned int api_version;
	uint64_t id;
	CUresult sticky; /* an error that every later call returns, or 0 */
	struct sim_stream *streams; /* the first is the legacy default stream */
	struct sim_region *regions;
	unsigned int freeing; /* waiting cuMemFree calls, for which allocations wait */
	uint64_t peers; /* a bit for each device that this context may access, see sim_has_room_for_peer() */
	/* the place of the last freed block: the next one of the same size goes there */
	struct sim_region *last_chunk;
	unsigned int last_unit, last_units;
	size_t limits[16];
};

struct sim {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an operation of a stream is done */
	_Atomic int *here;      /* 1 in the process that called cuInit; a fork wipes it */
	_Atomic int initialised;
	atomic_bool exiting;
	atomic_int running; /* operations that workers run now */
};
extern struct sim sim;

extern struct sim_context *sim_contexts; /* all that were ever made, the latest first; under sim.lock */

/* The contexts that the calling thread has pushed; the last is current. */
struct sim_current {
	struct sim_context *stack[SIM_STACK_DEPTH];
	int depth;
};
extern __thread struct sim_current sim_current;

/* Returns 0 if this process may use the driver, else the error to return. */
CUresult sim_ready(void);
/* Crashes, where the real driver uses memory that is gone. */
void sim_crash(void);
/*
 * Gets the calling thread's context (for a green one the primary) and takes sim.lock; or returns
 * an error, without the lock.
 */
CUresult sim_enter(struct sim_context **context);
static inline void sim_leave(void)
{
	pthread_mutex_unlock(&sim.lock);
}
/* Waits for sim.changed, or for @ns if another process may cause the change. */
void sim_wait_changed(uint64_t ns);
uint64_t sim_now_ns(void);
struct sim_context *sim_context_of(CUcontext handle);
struct sim_context *sim_context_current(void);
/* Returns the current green context, or NULL. */
struct sim_context *sim_green_current(void);
/*
 * Retain and release the primary context of @device: the first retain begins it, the last release
 * ends it.
 */
CUresult sim_primary_retain(struct sim_context **context, CUdevice device);
CUresult sim_primary_release(CUdevice device);
/* Makes @green a part of @whole, which is primary. */
void sim_context_begin_green(struct sim_context *green, struct sim_context *whole);

/* ---- devices (device.c) ---- */

/* Returns 0 if this process may use the driver and has @device, else the error to return. */
CUresult sim_check_device(CUdevice device);

/* ---- addresses and blocks (address_space.c) ---- */

enum sim_kind {
	SIM_BLOCK,    /* cuMemAlloc of 2 MiB or more */
	SIM_CHUNK,    /* 2 MiB that smaller blocks share */
	SIM_ASYNC,    /* cuMemAllocAsync of 2 MiB or more */
	SIM_ASYNC_CHUNK,
	SIM_MANAGED,
	SIM_ARRAY,    /* counted, never mapped */
	SIM_IMPORT,   /* another process's, by a handle */
	SIM_POOL_IMPORT, /* another process's, by a pool's pointer */
	SIM_RESERVED, /* cuMemAddressReserve */
};

/* One allocation, as cuMemGetAddressRange reports it. */
struct sim_block {
	uint64_t base;
	size_t size;
	uint64_t id;
	struct sim_region *region;
};

struct sim_chunk {
	unsigned int free_units, lowest_free;
	uint64_t used[SIM_UNITS / 64];
	uint64_t doomed[SIM_UNITS / 64]; /* freed in stream order, not given back yet */
	uint16_t units[SIM_UNITS]; /* the length of the block that starts here, else 0 */
	uint32_t size[SIM_UNITS];  /* as requested */
	uint64_t id[SIM_UNITS];
};

struct sim_import {
	uint64_t offset;
	unsigned int count;
	/* the rest is for a pool's pointer */
	bool doomed; /* freed in stream order, still mapped */
	uint64_t size, id;
};

struct sim_vmm_map {
	struct sim_vmm_map *next;
	struct sim_vmm *vmm;
	uint64_t base;
	size_t size;
	uint64_t id;
	uint64_t access; /* a bit for each device that cuMemSetAccess() has let in; here that is only told */
};

#define SIM_MEMPOOL_MAGIC UINT32_C(0x6d706c30)
#define SIM_MEMPOOL_ATTRIBUTES 16

/*
 * The target of a CUmemoryPool.  It is never freed: a block may refer to it longer than the
 * program.
 */
struct sim_memory_pool {
	uint32_t magic; /* 0: destroyed */
	int device;
	bool is_default;
	bool exportable, exported;
	unsigned int types; /* of SIM_HANDLE_TYPES */
	bool imported; /* another process's, which the next two name */
	unsigned int times; /* how often it was imported and not destroyed */
	struct sim_memory_pool *next_imported;
	uint32_t client;
	uint32_t number; /* among its process's */
	uint64_t reach;	/* a bit for each other device that cuMemPoolSetAccess() has let in */
	bool on_host;	/* a pool on the host; here its memory is the device's all the same */
	size_t most;	/* bytes that it may have; 0: no limit */
	size_t reserved; /* bytes of the device that it has, for blocks and cached */
	uint64_t still_used; /* bytes that cuMemFree() has freed: USED_MEM_CURRENT counts them for good (measured) */
	size_t lost; /* bytes that it has given back, and the device has not got: a block of them was exported */
	uint32_t *kept; /* segments that it holds until it is destroyed, because a block was exported or imported */
	unsigned int kept_segments;
	struct sim_memory_pool *graphs; /* has what captures have allocated from this one */
	struct sim_memory_pool *of; /* the pool whose .graphs this is; the program sees that */
	uint64_t attribute[SIM_MEMPOOL_ATTRIBUTES];
};

/* A range of this process's device address space, whole pages. */
struct sim_region {
	enum sim_kind kind;
	uint64_t base;
	size_t pages;
	uint32_t segment;
	int device;
	struct sim_context *context; /* NULL: it belongs to no context (reserved ranges) */
	struct sim_region *next;     /* in its context */
	size_t size;                 /* as asked for, of a block of its own */
	uint64_t id;
	unsigned int sync_memops;
	bool doomed; /* as in struct sim_chunk, of a block of its own */
	struct sim_memory_pool *pool; /* that it came from */
	bool cached; /* the pool keeps it; no block is in it */
	struct sim_region *next_cached; /* the one that was freed before this one */
	struct sim_chunk *chunk;
	uint32_t client; /* of an import: its exporter */
	uint64_t their_base; /* of an import by a pool's pointer */
	struct sim_import *imports;
	unsigned int import_slots;
	struct sim_vmm_map *maps; /* of a reserved range */
};

CUresult sim_address_space_init(void);
/* Finds free pages in the address space at a multiple of @alignment.  Returns 0 if it is full. */
uint64_t sim_address_take(size_t pages, size_t alignment);
void sim_address_give(uint64_t base, size_t pages);
void sim_address_set(uint64_t base, size_t pages, struct sim_region *region);
void sim_unmap(uint64_t base, size_t bytes);
struct sim_region *sim_region_at(uint64_t address);
struct sim_region *sim_region_new(struct sim_context *context, enum sim_kind kind, uint64_t base,
				  size_t pages, uint32_t segment);
void sim_region_free(struct sim_region *region);
/* Takes pages of the device and maps them, into *region. */
CUresult sim_region_take(struct sim_context *context, enum sim_kind kind, size_t pages,
			 struct sim_region **region);

/* ---- blocks (blocks.c) ---- */

/* The same, but gives back what pools have cached if too little is free. */
CUresult sim_memory_take(struct sim_context *context, enum sim_kind kind, size_t pages,
			 struct sim_region **region);
/* Finds the allocation that contains @address. */
bool sim_block_at(uint64_t address, struct sim_block *block);
/* Returns true if @bytes from @address on are device memory that can be touched. */
bool sim_device_range(uint64_t address, size_t bytes);
/*
 * Returns the stand-in for a context that owns pools' memory on @device, and imports of it.  That
 * memory belongs to no context and survives all of them.
 */
struct sim_context *sim_pool_owner(int device);
CUresult sim_memory_alloc(struct sim_context *context, enum sim_kind kind, size_t bytes,
			  struct sim_memory_pool *pool, uint64_t *address);
/* Frees the block that starts at @address at once, without waiting. */
CUresult sim_memory_free(uint64_t address);
/*
 * The first returns true if the block was given to cuMemFreeAsync; the second sets that mark, or
 * removes it.
 */
bool sim_memory_doomed(const struct sim_block *block);
void sim_memory_doom(const struct sim_block *block, bool doom);
/* Returns true if the region is of a pool, of this process or imported. */
bool sim_memory_of_pool(const struct sim_region *region);
/*
 * Gives back what @pool (NULL: each pool) has cached, as long as the pool has more than @keep
 * bytes.
 */
void sim_memory_trim(struct sim_memory_pool *pool, size_t keep);
/* Returns the bytes of the blocks that @pool has given out. */
uint64_t sim_memory_used(const struct sim_memory_pool *pool);
/*
 * To be called when the program has waited for something: pools give back what is over their
 * release thresholds.
 */
void sim_memory_waited(void);
/* Waits for pending cuMemFree calls, for allocations and copies from pageable memory. */
void sim_memory_wait_frees(struct sim_context *context);
void sim_memory_free_context(struct sim_context *context);
uint64_t sim_next_id(void);
/*
 * A pool holds all memory of which it has exported or imported a block until it is destroyed
 * (measured).  The first returns false without memory; the second is for the destroy.
 */
bool sim_mempool_keep(struct sim_memory_pool *pool, uint32_t segment);
/* Returns true if @segment is so kept by @pool. */
static inline bool sim_mempool_keeps(const struct sim_memory_pool *pool, uint32_t segment)
{
	for (unsigned int i = 0; i < pool->kept_segments; i++)
		if (pool->kept[i] == segment)
			return true;
	return false;
}
void sim_mempool_let_go(struct sim_memory_pool *pool);
/* Returns the pool of a valid handle, or NULL. */
struct sim_memory_pool *sim_mempool_of(CUmemoryPool handle);
/* Returns true unless @region is of a pool of another device that @device may not access (mempool_share.c). */
bool sim_pool_reaches(const struct sim_region *region, int device);
/*
 * For a call that takes device memory on a GPU without being an allocation; here it takes none.
 * Returns OUT_OF_MEMORY if less of @device is free than CULIMBO_SIM_NEEDED says.
 */
CUresult sim_memory_needed(int device);
/* Pinned host memory (host_memory.c). */
bool sim_host_at(const void *address, void **base, size_t *size, unsigned int *flags,
		 struct sim_context **context, uint64_t *id);
/* The driver ends pinned memory of whatever kind with the context in which it was made (measured). */
void sim_host_end(const struct sim_context *context);

/* Returns the handle types of the memory mapped at @address, in a reserved range (vmm.c). */
unsigned int sim_vmm_types(const struct sim_region *region, uint64_t address);
/* Returns the device of the allocation that is mapped at @address of @region, as pool_reachable() has it; 0: none is. */
int sim_vmm_device(const struct sim_region *region, uint64_t address);

/* ---- peers (current.c) ---- */

/* So many other devices a context may access, or have opened memory of by legacy handles (the Programming Guide's limit). */
#define SIM_PEERS 8
/* Returns true unless @device would be one more than these.  That opens count is our choice: no machine at hand has so many. */
bool sim_has_room_for_peer(const struct sim_context *context, int device);

/* ---- fabric handles (vmm.c, mempool_share.c) ---- */

/* CU_MEM_HANDLE_TYPE_FABRIC and the size of a CUmemFabricHandle: cuda.h has them from 12.3 on. */
enum { SIM_FABRIC = 8, SIM_FABRIC_BYTES = 64, SIM_HANDLE_TYPES = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | SIM_FABRIC };
enum { SIM_FABRIC_SEGMENT = 0x66736d31, SIM_FABRIC_POOL };

/* The first bytes of a CUmemFabricHandle. */
struct sim_fabric_handle {
	uint32_t kind, client;
	uint64_t id;	/* of a pool: its number */
	uint64_t bytes; /* of a pool: its device, by the number for all processes */
};

static inline bool sim_is_handle_type(CUmemAllocationHandleType type)
{
	return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (unsigned int)type == SIM_FABRIC;
}

/* ---- code (module.c, library.c) ---- */

/* Makes a module from @image, which is PTX.  Under sim.lock. */
CUresult sim_module_load(struct sim_context *context, const char *image, CUmodule *handle);
CUresult sim_module_function(CUmodule handle, const char *name, CUfunction *function);
/* Returns the contents of the file at @path, to be freed; NULL: it can't be read. */
char *sim_read_file(const char *path);

/* ---- streams and events (queue.c, graph.c, event.c) ---- */

struct sim_dependency {
	struct sim_stream *stream; /* wait until it is done up to `ticket`; or ... */
	struct sim_event_core *core; /* ... until it is recorded up to `ticket` */
	uint64_t ticket;
};

struct sim_operation {
	struct sim_operation *next;
	void (*run)(struct sim_operation *op);
	bool by_worker;    /* it takes time or calls the program, so the caller never runs it */
	bool under_lock;  /* it runs with sim.lock held */
	bool is_record;	  /* cuStreamQuery() of a stream that waits with it for the legacy stream says idle (measured) */
	struct sim_context *context;
	struct sim_event_core *core;
	uint64_t a[6];
	void *p[2];
	uint64_t ticket;
	unsigned int dependencies;
	struct sim_dependency dependency[];
};

struct sim_operation *sim_operation_new(void (*run)(struct sim_operation *op));
/*
 * Makes a stream of @context, within the green context @green if that is not NULL.  Under
 * sim.lock.
 */
CUresult sim_stream_create(CUstream *handle, struct sim_context *context, struct sim_context *green,
			   unsigned int flags, int priority);
/* Makes the graph of a capture, without its operations. */
CUresult sim_graph_new(CUgraph *graph);
/* Finds the stream of a handle in the current context, or returns an error. */
CUresult sim_stream_get(struct sim_context *context, CUstream handle, struct sim_stream **stream);
/* Queues @op and owns it.  If @ticket is not NULL, *ticket becomes the number to wait for. */
CUresult sim_submit(struct sim_stream *stream, struct sim_operation *op, uint64_t *ticket);
CUresult sim_submit_after(struct sim_stream *stream, struct sim_operation *op,
			  struct sim_event_core *core, uint64_t recorded, uint64_t *ticket);
void sim_stream_wait(struct sim_stream *stream, uint64_t ticket);
struct sim_context *sim_stream_context(struct sim_stream *stream);
uint64_t sim_stream_id(struct sim_stream *stream);
/* Waits until everything that was submitted to the context so far is done. */
void sim_context_wait(struct sim_context *context);
/*
 * For calls that are not allowed while a stream is captured, under sim.lock.  Returns
 * 0, or the error to return; then it has spoiled the captures that forbid the call.
 */
CUresult sim_capture_forbids(void);
/* The same for calls that wait for a whole context, whatever the modes are. */
CUresult sim_capture_forbids_all(struct sim_context *context);
/* Notes a block that cuMemFreeAsync freed, to be given back when @stream is synchronised. */
bool sim_stream_owes(struct sim_stream *stream, uint64_t address);
void sim_streams_init(struct sim_context *context);
void sim_streams_end(struct sim_context *context);
/* Gives back the places of interprocess events made in a context that ends.  Under sim.lock. */
void sim_events_end(struct sim_context *context);
bool sim_core_done(struct sim_event_core *core, uint64_t recorded);
#define SIM_PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* ---- kernels (module.c, linger.c) ---- */

struct sim_kernel {
	bool fill;
	uint64_t destination; /* device address */
	uint64_t words;
	uint32_t value;
	uint64_t ns;
};
void sim_kernel_run(const struct sim_kernel *kernel);
/* Runs it so that it outlives the process for a moment.  Returns false if that is impossible. */
bool sim_linger_run(const struct sim_kernel *kernel);
void sim_linger_begin(void); /* at cuInit() */
void sim_linger_stop(void);

#endif
