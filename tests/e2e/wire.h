/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stage (scenes) and the actors (processes that use CUDA) say to each
 * other: one request, one reply, each one packet of a SOCK_SEQPACKET socket
 * that is the actor's standard input.
 *
 * An actor does what it is asked and answers with what the driver said; it
 * judges nothing.  Between two requests it is asleep in read(2).
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

/* X(operation): arguments a[], results v[] (see actor_*.c, which have one function for each) */
#define WIRE_OPERATIONS(X)                                                                         \
	X(begin)	 /* cuInit, the primary context of device 0 */                             \
	X(alloc)	 /* bytes -> address */                                                    \
	X(alloc_kind)	 /* enum alloc_kind, bytes -> what free_kind takes */                      \
	X(free_kind)	 /* enum alloc_kind, it */                                                 \
	X(free)		 /* address */                                                             \
	X(free_async)	 /* address, whether to wait for the stream */                             \
	X(fill)		 /* address, bytes, value */                                               \
	X(check)	 /* address, bytes, value -> bytes that differ, the first that does */     \
	X(claim)	 /* address, bytes, tries, value -> whether got, tries     */    \
	X(export)	 /* address -> handle */                                                   \
	X(open)		 /* handle, flags -> address */                                            \
	X(open_v1)	 /* the same by the form of CUDA 4.1 */                                    \
	X(close)	 /* address */                                                             \
	X(meminfo)	 /* -> free bytes, all bytes */                                            \
	X(hog)		 /* bytes to leave free */                                                 \
	X(need_begin)	 /* what the calls of need, the first excepted, are made with */                  \
	X(need)		 /* enum need: makes that call, and undoes it */                           \
	X(event_create)	 /* flags -> event */                                                      \
	X(event_export)	 /* event -> handle */                                                     \
	X(event_open)	 /* handle -> event */                                                     \
	X(event_destroy) /* event */                                                               \
	X(event_record)	 /* event, in the kernel stream */                                         \
	X(event_sync)	 /* event */                                                               \
	X(event_query)	 /* event */                                                               \
	X(spin)		 /* ns: a kernel in another stream that takes so long */                   \
	X(fill_kernel)	 /* address, words, value, ns: a kernel that writes for so long */         \
	X(kernel_query)	 /* whether the kernels are done: 0, or 600 */                             \
	X(stream_create) /* flags -> stream */                                                     \
	X(stream_spin)	 /* stream, ns: a kernel that takes so long */                            \
	X(stream_query)	 /* stream: whether it is done */                                         \
	X(stream_free)	 /* address, stream, whether by the per-thread form */                     \
	X(stream_capture) /* stream, mode: begins a capture */                                    \
	X(stream_captured) /* stream: ends it */                                                   \
	X(pool_new)	 /* device or node, on the host?, most bytes or 0, whether it gives back what is freed, else it keeps all */ \
	/* -> an exportable pool, its descriptor */ \
	X(pool_take)	 /* pid, descriptor there -> the pool, imported */                        \
	X(pool_destroy)	 /* pool */                                                               \
	X(pool_trim)	 /* pool, bytes to keep */                                                \
	X(pool_alloc)	 /* pool, bytes -> address */                                             \
	X(pool_claim)	 /* as claim, of a pool: pool, address, bytes, tries, value */            \
	X(pool_export)	 /* address -> data */                                                    \
	X(pool_import)	 /* data, pool -> address */                                              \
	X(pool_access)	 /* imported pool, device: that may reach it */                            \
	X(no_context)	 /* no context is current from now on */                                  \
	X(devices)	 /* -> how many there are */                                               \
	X(device)	 /* its number: its primary context is current from now on */              \
	X(kernel_wait)                                                                             \
	X(ctx_reset)	 /* cuDevicePrimaryCtxReset */                                             \
	X(ctx_again)	 /* retain the primary context, make it current */                         \
	X(ctx_release)                                                                             \
	X(ctx_create)	 /* a context of its own, current -> it */                                 \
	X(ctx_destroy)	 /* it; the primary one is current again */                                \
	X(green_begin)	 /* a green context, current -> it; 801 where there are none */            \
	X(green_end)	 /* it, whether none is current then -> whether the primary one is active */ \
	X(fork)		 /* enum ending, whether by clone() -> the child's wait status */          \
	X(fork_calls)	 /* block, import -> what free, export, close, allocate say in a child */   \
	X(exec)		 /* becomes a new image of itself, which must begin again */               \
	X(close_fds)	 /* enum close_which -> how many were open */                              \
	X(jail)		 /* chroot into an empty folder beside CULIMBO_DIR */                     \
	X(user)		 /* effective user, whether for good */                                    \
	X(produce)	 /* threads, rounds, bytes, consumers, pool or 0: exports to them, frees at once */   \
	X(consume)	 /* threads, pool or 0 -> messages, refused, with foreign bytes */                    \
	X(end)		 /* enum ending, exit status; no reply */

enum wire_operation {
#define X(operation) OP_##operation,
	WIRE_OPERATIONS(X)
#undef X
};

enum alloc_kind { ALLOC_PLAIN, ALLOC_PITCH, ALLOC_ASYNC, ALLOC_CREATE };
/* Calls that need device memory without being allocations. */
enum need { NEED_PRIMARY, NEED_CONTEXT, NEED_GREEN, NEED_STACK, NEED_STREAM, NEED_PRIORITY, NEED_MODULE,
	    NEED_MODULE_EX, NEED_INSTANTIATE, NEED_UPLOAD, NEED_LIBRARY, NEED_KERNEL, NEEDS_N };
enum ending { END_EXIT, END_RETURN, END__EXIT, END__Exit, END_QUICK_EXIT, END_EXEC };
enum close_which { CLOSE_ALL, CLOSE_CULIMBO };

struct wire_request {
	uint32_t operation;
	uint32_t pad;
	uint64_t a[6];
	unsigned char handle[64];
};

struct wire_reply {
	int32_t result; /* what the driver said */
	uint32_t pad;
	uint64_t ns; /* how long the driver took */
	uint64_t v[4];
	unsigned char handle[64];
	char complaint[128]; /* what the actor could not do, beside the driver; "" */
};

/* From a producer to a consumer: its handle and what every byte of it is. */
struct wire_gift {
	unsigned char handle[64];
	uint64_t bytes;
	uint32_t value;
	uint32_t pad;
};

/* The descriptor of the socket to the partner, in an actor that has one. */
#define WIRE_PARTNER_FD 3

#endif
