/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the conformance program (conformance.c) agree here: what a worker can be
 * asked (conformance_worker.c does it), how it is asked (conformance_ask.c), and which
 * stories are told (conformance_facts.c and the others).
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

/* What a worker can be asked. */
enum verb {
	START,
	ALLOC,        /* bytes -> pointer */
	FREE,         /* pointer */
	FREE_ASYNC,   /* pointer; then waits for the stream -> results of exporting it before and after that */
	FREE_BARE,    /* pointer, in a thread without a context */
	ALLOC_ASYNC,  /* bytes -> pointer */
	ALLOC_HOST,   /* bytes -> pointer */
	SET,          /* pointer, value, words */
	READ,         /* pointer -> its first word */
	FREE_MEMORY,  /* -> bytes */
	HANDLE,       /* pointer -> handle */
	HANDLE_BESIDE, /* pointer -> its handle, asked for in another context of the device */
	OPEN,         /* handle -> pointer */
	CLOSE,        /* pointer */
	SPIN,         /* nanoseconds, on a non-blocking stream; does not wait */
	FILL,         /* pointer, words, value, nanoseconds; does not wait */
	SYNC,
	VMM_NEW,      /* bytes -> pointer, descriptor */
	VMM_END,      /* unmaps and releases it */
	VMM_TAKE,     /* pid, descriptor, bytes -> pointer */
	EXPORT_POOL,  /* the default pool */
	EVENT_NEW,    /* -> event */
	EVENT_END,    /* event */
	EVENT_RECORD, /* event */
	EVENT_QUERY,  /* event */
	EVENT_HANDLE, /* event -> handle */
	EVENT_BESIDE, /* event -> handle, asked for in another context of the device */
	EVENT_OPEN,   /* handle -> event */
	EVENT_MANY,   /* how many at most -> how many could be made and exported */
	KILL_WATCH,   /* pid, pointer, value, ns -> when the value was last written, how often */
	TWO_THREADS,  /* pointer, ns -> free's, alloc's and launch's duration */
	FREE_IN_CAPTURE, /* way, mode (3 more: spoilt), memory, kind -> result, end of capture: conformance_captures.c */
	CAPTURE,      /* three pointers -> results of frees and ends of captures */
	CONTEXT_IDS,  /* -> of the primary context, ended and made again: see context_ids() */
	EVENT_ROUNDS, /* how many contexts, events in each, 1: the primary one -> events made in all */
	GREEN_BEGIN,  /* -> see green_begin() */
	GREEN_END,    /* destroys it; the primary context is current then */
	GREEN_PUSH,   /* makes the green context current, destroyed or not */
	GREEN_LAST,   /* -> whether the primary context is active once all others let go of it, and after that */
	GREEN_STREAM, /* -> results of recording an event of the primary context on a stream of the green one, of a wait for it */
	GREEN_WRONG,  /* -> what cuCtxDestroy says of it */
	CONTEXT_OF,   /* pointer -> 1, the primary one's, 2, the green one's, 0, another's */
	EVENT_BARE,   /* event: destroys it in a thread without a context */
	EVENT_ORPHAN, /* 1: destroys, else asks about an event that was recorded, of a context that has ended */
	OPEN_CAPTURE, /* handle -> results of opening it while this thread captures, see open_capturing() */
	GREEN_UNDER,  /* destroys it while it is current -> results, see green_under() */
	GREEN_RESET,  /* -> results of a reset of the primary context while it lives, see green_reset() */
	/* pools (conformance_pool_calls.c): a worker has one pool of its own, and one that it imported */
	POOL_NEW,     /* release threshold: one that can be shared */
	POOL_SHARE,   /* -> descriptor */
	POOL_TAKE,    /* pid, descriptor: imports somebody's pool */
	POOL_END,     /* destroys its own one */
	POOL_TRIM,    /* its own one, to 0 */
	POOL_ALLOC,   /* bytes -> pointer, from its own one; waits for it */
	POOL_ALLOC_CURRENT, /* bytes -> pointer, by cuMemAllocAsync with its own one as the device's; its pool is that? */
	POOL_FREE,    /* pointer, in the stream's order; 1: waits for the stream */
	POOL_EXPORT,  /* pointer -> data; what the driver does not write is 0x5a */
	POOL_IMPORT,  /* data -> pointer */
	POOL_COSTS,   /* -> ns of an allocation and its free from its own pool, and from the default one */
	/* virtual memory (conformance_virtual_calls.c): one reservation of several allocations */
	VIRTUAL_NEW,  /* bytes of each, how many, 1: with a descriptor -> base, bytes of each */
	VIRTUAL_EXPORT, /* number -> descriptor */
	VIRTUAL_RETAIN, /* pointer, number -> 1: its handle is that allocation's */
	VIRTUAL_UNMAP, /* number: unmaps and releases it */
	VIRTUAL_END,  /* all of it */
	VIRTUAL_TAKE, /* pid, descriptor, bytes, enum way -> pointer; VMM_END unmaps and releases it */
	SEND_DESCRIPTOR, /* descriptor, by SCM_RIGHTS: who takes it next gets it */
	CLOSE_DESCRIPTOR, /* descriptor */
	DMA_BUF,      /* pointer, bytes -> descriptor; NOT_SUPPORTED where the device has none */
	RANGE,        /* pointer -> base, size by cuMemGetAddressRange */
	ATTRIBUTE,    /* pointer, CUpointer_attribute -> value */
	ASK_CAPTURING, /* pointer, CUstreamCaptureMode -> see ask_in_capture() */
	WHILE_FREEING, /* ns, enum wait -> see while_freeing() */
	LEAVE,
};

/* How VIRTUAL_TAKE comes by the descriptor. */
enum way { BY_PIDFD, BY_MESSAGE, BY_PROC };

/* What WHILE_FREEING does meanwhile. */
enum wait { WAIT_NONE, WAIT_ALLOC, WAIT_EVENT };

/* The calls that don't wait behind a cuMemFree which waits for a kernel; see while_freeing(). */
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
	uint64_t ns; /* what the call took */
	unsigned char handle[64];
};

struct worker {
	pid_t pid; /* 0: none */
	int to, from;
	int signal; /* that ended it */
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
/* One that is process 1 of a PID namespace; false where there may be none. */
bool spawn_apart(struct worker *w);
/* For SEND_DESCRIPTOR: to be called before any worker is spawned. */
bool connect_workers(void);
void dismiss(struct worker *w);
uint64_t alloc(struct worker *w, uint64_t bytes);
int release(struct worker *w, uint64_t pointer);
void set(struct worker *w, uint64_t pointer, uint32_t value, uint64_t bytes);
uint32_t get(struct worker *w, uint64_t pointer);
int export(struct worker *w, uint64_t pointer, unsigned char *handle);
int import(struct worker *w, const unsigned char *handle, uint64_t *pointer);
int drop(struct worker *w, uint64_t pointer);
/* Closes a descriptor of the worker's. */
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
void pool_reuse(struct worker *a, struct worker *b);
void pool_data(struct worker *a, struct worker *b);
void pool_exports(struct worker *a, struct worker *b);
void pool_twice(struct worker *a, struct worker *b);
void pool_large(struct worker *a, struct worker *unused);
void pool_memory_back(struct worker *a, struct worker *b);
void pool_ends(struct worker *a, struct worker *b);
void pool_threshold(struct worker *a, struct worker *unused);
void pool_waits(struct worker *a, struct worker *b);

/* conformance_virtual.c */
void virtual_handles(struct worker *a, struct worker *unused);
void virtual_ranges(struct worker *a, struct worker *unused);
void virtual_descriptors(struct worker *a, struct worker *b);
void virtual_lifetime(struct worker *a, struct worker *b);
void dma_buf(struct worker *a, struct worker *unused);
void containers(struct worker *unused, struct worker *b);

/* conformance_handles.c */
void handle_bytes(struct worker *a, struct worker *unused);
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
