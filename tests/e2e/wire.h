/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between the stage (scenes) and the actors (processes that use CUDA): one request, one
 * reply, each a packet of a SOCK_SEQPACKET socket that is the actor's standard input.
 *
 * An actor does what it is asked and replies with the driver's result; it checks nothing.  Between two
 * requests it sleeps in read(2).
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

/* X(operation): arguments a[], results v[]; actor_*.c have one function for each */
#define WIRE_OPERATIONS(X)                                                                         \
	X(begin)	 /* cuInit, the primary context of device 0 */                             \
	X(alloc)	 /* bytes -> address */                                                    \
	X(alloc_kind)	 /* enum alloc_kind, bytes -> the argument of free_kind */                 \
	X(free_kind)	 /* enum alloc_kind, what alloc_kind gave */                               \
	X(is_known)	 /* address; result 0 when the driver knows it */                          \
	X(free)		 /* address */                                                             \
	X(free_async)	 /* address, whether to wait for the stream */                             \
	X(fill)		 /* address, bytes, value */                                               \
	X(check)	 /* address, bytes, value -> number of other bytes, the first of them */   \
	X(claim)	 /* address, bytes, tries, value -> 1: got it, tries */          \
	X(export)	 /* address -> handle */                                                   \
	X(open)		 /* handle, flags, 1: with nowhere to write the address -> address */     \
	X(open_v1)	 /* the same by the call of CUDA 4.1 */                                    \
	X(close)	 /* address */                                                             \
	X(meminfo)	 /* -> free bytes, total bytes */                                          \
	X(hog)		 /* bytes to leave free */                                                 \
	X(share_cycle)	 /* how often to allocate, export and free a block, of how many bytes */   \
	X(need_begin)	 /* creates what the calls of need use (all but the first) */                     \
	X(need)		 /* enum need: makes that call and undoes it */                            \
	X(event_create)	 /* flags -> event */                                                      \
	X(event_export)	 /* event -> handle */                                                     \
	X(event_open)	 /* handle -> event */                                                     \
	X(event_destroy) /* event */                                                               \
	X(event_record)	 /* event; records it in the kernel stream */                              \
	X(event_sync)	 /* event */                                                               \
	X(event_query)	 /* event */                                                               \
	X(spin)		 /* ns: runs a kernel of this duration in another stream */                \
	X(fill_kernel)	 /* address, words, value, ns: a kernel that writes for so long */         \
	X(kernel_query)	 /* result 0 when the kernels are done, else 600 */                        \
	X(stream_create) /* flags -> stream */                                                     \
	X(stream_spin)	 /* stream, ns: runs a kernel of this duration */                         \
	X(stream_query)	 /* stream; result 0 when it is done */                                   \
	X(stream_free)	 /* address, stream, 1: by the per-thread form */                          \
	X(stream_capture) /* stream, mode: begins a capture */                                    \
	X(stream_mode)	 /* mode: of the thread, for captures */                                   \
	X(stream_captured) /* stream: ends the capture */                                          \
	X(stream_launched) /* stream: ends the capture, launches its graph and waits for it */     \
	X(pool_new)	 /* device or node, on the host?, most bytes or 0, 1: it gives back what is freed, 0: it keeps all */ \
	/* -> an exportable pool, its descriptor */ \
	X(pool_take)	 /* pid, descriptor there -> the imported pool */                         \
	X(pool_destroy)	 /* pool, its descriptor, which is closed first, or 0 */                  \
	X(pool_trim)	 /* pool, bytes to keep */                                                \
	X(pool_alloc)	 /* pool, bytes -> address */                                             \
	X(pool_claim)	 /* like claim, for a pool: pool, address, bytes, tries, value */         \
	X(pool_export)	 /* address -> data */                                                    \
	X(pool_import)	 /* data, pool -> address */                                              \
	X(pool_access)	 /* imported pool, device: gives the device access */                      \
	X(a_pools)	 /* device -> its default pool, its pool */                               \
	X(a_set_pool)	 /* device, pool: the device allocates from it */                          \
	X(a_new_pool)	 /* device, handle types -> a pool */                                      \
	X(a_attribute)	 /* pool, attribute, 1: sets it, value -> value */                         \
	X(a_access)	 /* pool, device -> 3: it may read and write there, 0: it may not */        \
	X(a_export_pool) /* pool: exports a descriptor of it, and closes that */                   \
	X(a_alloc)	 /* bytes, stream -> address */                                            \
	X(a_alloc_from)	 /* pool, bytes, stream -> address */                                      \
	X(a_keep)	 /* handle, number: keeps it for a_together */                              \
	X(a_together)	 /* threads, rounds, value of the first byte of handle 0, 1: they wait for each other */ \
	/* thread i opens, reads and closes handle i % 2, whose first byte is that value + i % 2 -> opens, wrong bytes */ \
	X(v_reserve)	 /* bytes -> address of a reservation */                                   \
	X(v_free)	 /* address, bytes of the reservation */                                   \
	X(v_create)	 /* bytes, handle types -> allocation on the current context's device */    \
	X(v_release)	 /* allocation */                                                          \
	X(v_map)	 /* address, bytes, allocation */                                          \
	X(v_unmap)	 /* address, bytes */                                                      \
	X(v_export)	 /* allocation: exports a descriptor of it, and closes that */                \
	X(v_types)	 /* allocation, address -> handle types by its properties, and of the pointer */ \
	X(v_range)	 /* address -> base, size; start and size of the range that attributes tell */ \
	X(v_ask)	 /* address, attribute of a pointer -> value */                            \
	X(v_ask_two)	 /* the same, by the call for several -> value, type of memory */           \
	X(v_access)	 /* address, device -> 3: it may read and write there, 0: it may not */    \
	X(peer)		 /* device: the current context gets access to its primary one */          \
	X(v_many)	 /* address, n, bytes, value: n allocations side by side, the i-th with value + i */ \
	X(v_check_many)	 /* the same -> how many have other bytes */                               \
	X(v_exportable)	 /* the same; makes allocations for descriptors, and keeps them for v_give */        \
	X(v_give)	 /* n: sends descriptors of the first n of these to the partner */          \
	X(v_take)	 /* n, bytes: takes n from the partner and maps them side by side -> address */ \
	X(no_context)	 /* makes no context current */                                           \
	X(devices)	 /* -> number of devices */                                                \
	X(device)	 /* number; makes its primary context current */                           \
	X(kernel_wait)                                                                             \
	X(ctx_reset)	 /* cuDevicePrimaryCtxReset */                                             \
	X(ctx_again)	 /* retain the primary context, make it current */                         \
	X(ctx_release)                                                                             \
	X(ctx_create)	 /* creates a context and makes it current -> context */                   \
	X(ctx_destroy)	 /* context; then the primary one is current */                            \
	X(green_begin)	 /* -> a green context, current; result 801 where there are none */        \
	X(green_end)	 /* green context, 1: none is current then -> is the primary one active */   \
	X(fork)		 /* enum ending, 1: by clone() -> the child's wait status */               \
	X(fork_stays)	 /* 0: forks a child that stays, 1: ends it */                             \
	X(fork_outlives) /* -> the pid of a forked child that lives until the stage ends, or it is killed */ \
	X(fork_calls)	 /* block, import -> results of free, export, close, allocate in a child */ \
	X(exec)		 /* becomes a new image of itself, which must begin again */               \
	X(close_fds)	 /* enum close_which -> how many were open */                              \
	X(descriptors)	 /* 1: takes all descriptors that there are, 0: gives them back */         \
	X(jail)		 /* chroot into an empty folder beside CULIMBO_DIR */                     \
	X(user)		 /* effective user, 1: permanently */                                      \
	X(produce)	 /* threads, rounds, bytes, consumers, pool, 0, 1 for virtual or 2 for stream-ordered memory: exports to them, frees at once */   \
	X(consume)	 /* threads, pool or 0 -> messages, refused, with foreign bytes */                    \
	X(end)		 /* enum ending, exit status; no reply */

enum wire_operation {
#define X(operation) OP_##operation,
	WIRE_OPERATIONS(X)
#undef X
};

enum alloc_kind { ALLOC_PLAIN, ALLOC_PITCH, ALLOC_ASYNC, ALLOC_CREATE, ALLOC_PINNED, ALLOC_COMBINED };
/* Calls that need device memory but are not allocations. */
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
	int32_t result; /* the driver's result */
	uint32_t pad;
	uint64_t ns; /* duration of the driver call */
	uint64_t v[4];
	unsigned char handle[64];
	char complaint[128]; /* what failed in the actor itself; "" when nothing did */
};

/* A message from a producer to a consumer: a handle and the value of every byte of the block. */
struct wire_gift {
	unsigned char handle[64];
	uint64_t bytes;
	uint32_t value;
	uint32_t answer; /* of enum wire_answer: when the consumer answers */
	uint32_t producer, round; /* who waits for the answer, and in which of its rounds */
};

/* What a consumer says to the producer of a block: nothing, that its open begins, or how it has ended. */
enum wire_answer { WIRE_NO_ANSWER, WIRE_BEGINS, WIRE_OPENED };

struct wire_taken {
	uint32_t producer, round;
	int32_t result; /* of the open; 0 if it only begins */
};

/* The descriptor of the socket to the partner, in an actor that has a partner. */
#define WIRE_PARTNER_FD 3

#endif
