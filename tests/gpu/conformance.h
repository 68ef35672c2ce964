/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the conformance program (conformance.c) share: the commands of a worker
 * (conformance_worker.c runs them), how to send them (conformance_ask.c), and the list of the
 * stories (conformance_facts.c and the other files).
 */
#ifndef CL_TEST_CONFORMANCE_H
#define CL_TEST_CONFORMANCE_H

#include <sys/types.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define MS UINT64_C(1000000)

#define CRASHED (-1)

/* The commands of a worker, with their arguments -> results. */
enum verb {
	START,
	ALLOC,        /* bytes -> pointer */
	FREE,         /* pointer */
	FREE_ASYNC,   /* pointer; then waits for the stream -> results of an export before and after the wait */
	FREE_BARE,    /* pointer; frees it in a thread without a context */
	ALLOC_ASYNC,  /* bytes -> pointer */
	ALLOC_HOST,   /* bytes -> pointer */
	SET,          /* pointer, value, words */
	READ,         /* pointer -> its first 32-bit word */
	FREE_MEMORY,  /* -> free bytes of the device */
	HANDLE,       /* pointer -> handle */
	HANDLE_BESIDE, /* pointer -> its handle, requested in another context of the device */
	OPEN,         /* handle -> pointer */
	CLOSE,        /* pointer */
	SPIN,         /* nanoseconds; launches on a non-blocking stream and does not wait */
	FILL,         /* pointer, words, value, nanoseconds; does not wait */
	SYNC,
	VMM_NEW,      /* bytes -> pointer, descriptor */
	VMM_END,      /* unmaps and releases the memory of VMM_NEW or VMM_TAKE */
	FABRIC_NEW,   /* -> pointer, 1: the device has fabric handles; a fabric handle; VMM_END unmaps and releases it */
	FABRIC_TAKE,  /* fabric handle -> pointer; likewise */
	VMM_TAKE,     /* pid, descriptor, bytes -> pointer */
	EXPORT_POOL,  /* exports the default pool */
	EVENT_NEW,    /* -> event */
	EVENT_END,    /* event */
	EVENT_RECORD, /* event */
	EVENT_QUERY,  /* event */
	EVENT_HANDLE, /* event -> handle */
	EVENT_BESIDE, /* event -> handle, requested in another context of the device */
	EVENT_OPEN,   /* handle -> event */
	EVENT_MANY,   /* upper limit -> number of events that could be created and exported */
	KILL_WATCH,   /* pid, pointer, value, ns -> when the value was last written, how often */
	TWO_THREADS,  /* pointer, ns -> durations of the free, the allocation and the launch */
	FREE_IN_CAPTURE, /* way, mode (+ 3: already invalid), memory, kind -> result, end of capture: conformance_captures.c */
	CAPTURE,      /* three pointers -> results of frees and ends of captures */
	CONTEXT_IDS,  /* -> handle and id of the primary context, before and after release and retain: see context_ids() */
	EVENT_ROUNDS, /* contexts, events in each, 1: the primary context -> events created in total */
	GREEN_BEGIN,  /* -> see green_begin() */
	GREEN_END,    /* destroys the green context; the primary context is current afterwards */
	GREEN_PUSH,   /* makes the green context current, even when it was destroyed */
	GREEN_LAST,   /* -> is the primary context active after all others released it, and after the green context's end? */
	GREEN_STREAM, /* -> results of recording and awaiting an event of the primary context on a green context's stream */
	GREEN_WRONG,  /* -> result of cuCtxDestroy on the green context */
	CONTEXT_OF,   /* pointer -> 1: of the primary context, 2: of the green one, 0: of another */
	EVENT_BARE,   /* event; destroys it in a thread without a context */
	EVENT_ORPHAN, /* 1: destroys, 0: queries a recorded event whose context has ended */
	OPEN_CAPTURE, /* handle -> results of opening it while this thread captures: see open_capturing() */
	GREEN_UNDER,  /* destroys the green context while it is current -> results: see green_under() */
	GREEN_RESET,  /* resets the primary context while the green one lives -> results: see green_reset() */
	/* pools (conformance_pool_calls.c): a worker has one pool of its own and one imported pool */
	POOL_NEW,     /* release threshold: creates a shareable pool */
	POOL_SHARE,   /* -> descriptor */
	POOL_TAKE,    /* pid, descriptor: imports another process's pool */
	POOL_END,     /* destroys its own pool */
	POOL_LEAVE,   /* destroys the imported pool */
	POOL_TRIM,    /* trims its own pool to 0 */
	POOL_ALLOC,   /* bytes -> pointer from its own pool; waits for the allocation */
	POOL_ALLOC_CURRENT, /* bytes -> pointer by cuMemAllocAsync with its own pool as the device's, 1: it is from that pool */
	POOL_FREE,    /* pointer, stream-ordered; 1: waits for the stream */
	POOL_EXPORT,  /* pointer -> data; bytes that the driver does not write are 0x5a */
	POOL_IMPORT,  /* data -> pointer */
	POOL_ACCESS,  /* lets device 0 into the imported pool */
	POOL_CAPTURE, /* -> see allocate_in_capture() */
	POOL_IN_CAPTURE, /* enum pool_call_in_capture, mode, pointer, 1: in another thread -> results of the call and of the capture's end */
	POOL_NUMBERS, POOL_ACCESS_OF, POOL_TAKE_AGAIN, POOL_RESET, /* conformance_pool_facts.c */
	POOL_COSTS,   /* -> ns of an allocation and its free, from its own pool and from the default pool */
	/* virtual memory (conformance_virtual_calls.c): one reservation of several allocations */
	VIRTUAL_NEW,  /* bytes of each, count, 1: with a descriptor -> base, bytes of each */
	VIRTUAL_EXPORT, /* number -> descriptor */
	VIRTUAL_RETAIN, /* pointer, number -> 1: its handle is the handle of that allocation */
	VIRTUAL_UNMAP, /* number: unmaps and releases it */
	VIRTUAL_END,  /* unmaps and releases everything */
	VIRTUAL_TAKE, /* pid, descriptor, bytes, enum way -> pointer; VMM_END unmaps and releases it */
	SEND_DESCRIPTOR, /* descriptor; sends it by SCM_RIGHTS, and the next receiver gets it */
	CLOSE_DESCRIPTOR, /* descriptor */
	DMA_BUF,      /* pointer, bytes -> descriptor; NOT_SUPPORTED where the device has no dma-buf */
	RANGE,        /* pointer -> base and size from cuMemGetAddressRange */
	ATTRIBUTE,    /* pointer, CUpointer_attribute -> value */
	ASK_CAPTURING, /* pointer, CUstreamCaptureMode -> see ask_in_capture() */
	WHILE_FREEING, /* ns, enum wait -> see while_freeing() */
	LEAVE,
};

/* How VIRTUAL_TAKE gets the descriptor. */
enum way { BY_PIDFD, BY_MESSAGE, BY_PROC };

/* What WHILE_FREEING does during the free. */
enum wait { WAIT_NONE, WAIT_ALLOC, WAIT_EVENT };

/* The calls that do not wait behind a cuMemFree that waits for a kernel: see while_freeing(). */
#define NOT_WAITING(X)                                                                             \
	X(cuIpcGetMemHandle)                                                                       \
	X(cuMemExportToShareableHandle)                                                            \
	X(cuMemRetainAllocationHandle)                                                             \
	X(cuMemCreate)                                                                             \
	X(cuMemPoolExportPointer)                                                                  \
	X(cuMemAllocFromPoolAsync)                                                                 \
	X(cuMemGetAddressRange)                                                                    \
	X(cuMemAddressReserve)                                                                     \
	X(cuMemGetInfo)                                                                            \
	X(cuCtxGetId)
enum not_waiting {
#define X(call) WHILE_##call,
	NOT_WAITING(X)
#undef X
};

struct question {
	enum verb verb;
	uint64_t a[4];
	unsigned char handle[64];
};

struct answer {
	int result; /* a CUresult, or CRASHED, or NO_REPLY */
	uint64_t v[9];
	uint64_t ns; /* duration of the call */
	unsigned char handle[64];
};

struct worker {
	pid_t pid; /* 0: no process */
	int to, from;
	int signal; /* the signal that ended it */
};

/* conformance_ask.c */
uint64_t now_ns(void);
void nap(uint64_t ns);
extern unsigned int tests, failed;
__attribute__((format(printf, 2, 3))) bool ok(bool good, const char *format, ...);
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);
void too_late(int signal_number);
void bury(struct worker *w);
struct answer ask(struct worker *w, enum verb verb, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
struct answer ask_handle(struct worker *w, enum verb verb, const unsigned char *handle);
void spawn(struct worker *w);
/* Spawns a worker that is process 1 of a PID namespace; false where namespaces are not allowed. */
bool spawn_apart(struct worker *w);
/* For SEND_DESCRIPTOR: call it before the first worker is spawned. */
bool connect_workers(void);
void dismiss(struct worker *w);
uint64_t alloc(struct worker *w, uint64_t bytes);
int release(struct worker *w, uint64_t pointer);
void set(struct worker *w, uint64_t pointer, uint32_t value, uint64_t bytes);
uint32_t get(struct worker *w, uint64_t pointer);
int export(struct worker *w, uint64_t pointer, unsigned char *handle);
int import(struct worker *w, const unsigned char *handle, uint64_t *pointer);
int drop(struct worker *w, uint64_t pointer);
/* Closes a descriptor of the worker. */
void close_descriptor(struct worker *w, uint64_t descriptor);
uint64_t free_memory(struct worker *w);
unsigned int differing(const unsigned char *a, const unsigned char *b, int *first, int *last);

/* conformance_facts.c */
void fact_1(struct worker *a, struct worker *b);
void fact_3(struct worker *a, struct worker *b);
void fact_4(struct worker *a, struct worker *b);
void fact_5(struct worker *a, struct worker *b);
void fact_7(struct worker *a, struct worker *unused);
void fact_8(struct worker *a, struct worker *b);
void fact_9(struct worker *unused_a, struct worker *unused_b);
void fact_10(struct worker *a, struct worker *b);
void fact_2_sync(struct worker *a, struct worker *b);
void fact_2_async(struct worker *a, struct worker *b);
void fact_6_exit(struct worker *a, struct worker *b);
void fact_6_kill(struct worker *a, struct worker *b);

/* conformance_pools.c */
#define KEEP_ALL UINT64_MAX /* a release threshold: freed memory stays in the pool */
/* Creates a pool in @a and imports it in @b. */
bool share_pool(struct worker *a, struct worker *b, uint64_t threshold);
void end_pool(struct worker *a);
uint64_t pool_alloc(struct worker *w, uint64_t bytes);
int pool_free(struct worker *w, uint64_t pointer);
int pool_export(struct worker *w, uint64_t pointer, unsigned char *data);
int pool_import(struct worker *w, const unsigned char *data, uint64_t *pointer);
/* Writes only the words that are read later: the simulated driver allocates what is touched. */
void set_word(struct worker *w, uint64_t pointer, uint32_t value);
void pool_reuse(struct worker *a, struct worker *b);
void pool_data(struct worker *a, struct worker *b);
void pool_exports(struct worker *a, struct worker *b);
void pool_twice(struct worker *a, struct worker *b);
void pool_large(struct worker *a, struct worker *unused);
void pool_ends(struct worker *a, struct worker *b);
void pool_waits(struct worker *a, struct worker *b);
void pool_captures(struct worker *a, struct worker *unused);

enum pool_call_in_capture {
	CAPTURED_EXPORT,
	CAPTURED_DESCRIPTOR,
	CAPTURED_IMPORT, /* of what was imported last, again */
	CAPTURED_ALLOC,
	CAPTURED_FREE,
	CAPTURED_FREE_OTHER,
	CAPTURED_FREE_SAME, /* in the capturing stream */
	CAPTURED_FREE_PRIVATE, /* in the capturing stream; of a block of the default pool, which is not shareable */
	CAPTURED_DESTROY, /* of a pool without blocks */
	CAPTURED_DESTROY_USED, /* of a pool with a block that is not freed */
	CAPTURED_EXPORT_NONE, /* of an address where there is no memory */
};
void pool_calls_in_captures(struct worker *a, struct worker *b);
void pool_of_other_device(struct worker *a, struct worker *b);

/* conformance_pool_facts.c */
void pool_numbers(struct worker *a, struct worker *b);
void pool_imported_again(struct worker *a, struct worker *b);
void pool_imported_twice(struct worker *a, struct worker *unused);
void pool_early(struct worker *unused_a, struct worker *unused_b);
void pool_after_reset(struct worker *unused, struct worker *b);

/* conformance_pool_memory.c */
void pool_memory_back(struct worker *a, struct worker *b);
void pool_threshold(struct worker *a, struct worker *unused);
void pool_memory_of_exported(struct worker *unused, struct worker *b);
void pool_pending(struct worker *a, struct worker *b);

/* conformance_virtual.c */
void virtual_handles(struct worker *a, struct worker *unused);
void virtual_ranges(struct worker *a, struct worker *unused);
void virtual_descriptors(struct worker *a, struct worker *b);
void virtual_lifetime(struct worker *a, struct worker *b);
void fabric(struct worker *a, struct worker *b);
void dma_buf(struct worker *a, struct worker *unused);
void containers(struct worker *unused, struct worker *b);

/* conformance_handles.c */
void handle_bytes(struct worker *a, struct worker *unused);
void handles_elsewhere(struct worker *a, struct worker *b);
void counting(struct worker *a, struct worker *b);
void event_of_another_context(struct worker *unused_a, struct worker *unused_b);
void event_handle_bytes(struct worker *a, struct worker *unused);

/* conformance_waits.c */
void synchronises(struct worker *a, struct worker *b);
void death(struct worker *a, struct worker *unused);
void errors_of_free(struct worker *a, struct worker *b);
void blocking(struct worker *a, struct worker *unused);
void while_freeing_others(struct worker *a, struct worker *unused);
void capturing(struct worker *a, struct worker *unused);
void frees_in_captures(struct worker *a, struct worker *unused);
void opening_while_capturing(struct worker *a, struct worker *b);
void asking_while_capturing(struct worker *a, struct worker *unused);

/* conformance_contexts.c */
void contexts(struct worker *unused_a, struct worker *unused_b);
void green(struct worker *a, struct worker *unused);

#endif
