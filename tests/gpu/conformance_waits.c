/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a free waits for, how a free fails, when a killed process's kernels stop, and which calls
 * are allowed while a stream captures.
 */
#include "conformance.h"

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>

void synchronises(struct worker *a, struct worker *b)
{
	static const struct {
		uint64_t bytes;
		const char *name;
	} sizes[] = { { KIB, "1 KiB" }, { MIB, "1 MiB" }, { 16 * MIB, "16 MiB" } };
	unsigned char h[64];
	struct answer r;
	uint64_t d, p;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t keep = alloc(a, KIB);

		d = alloc(a, sizes[i].bytes);
		ask(a, SPIN, 200 * MS, 0, 0, 0);
		r = ask(a, HANDLE, d, 0, 0, 0);
		ok(!r.result && r.ns < 100 * MS, "synchronises: cuIpcGetMemHandle of %s does not wait (%.1f ms)",
		   sizes[i].name, (double)r.ns / 1e6);
		r = ask(a, ALLOC, sizes[i].bytes, 0, 0, 0);
		ok(!r.result && r.ns < 100 * MS, "synchronises: cuMemAlloc of %s does not wait (%.1f ms)",
		   sizes[i].name, (double)r.ns / 1e6);
		p = r.v[0];
		r = ask(a, FREE, d, 0, 0, 0);
		ok(!r.result && r.ns > 100 * MS, "synchronises: cuMemFree of %s waits (%.1f ms)",
		   sizes[i].name, (double)r.ns / 1e6);
		release(a, p);
		release(a, keep);
	}
	d = alloc(a, 16 * MIB);
	export(a, d, h);
	if (!import(b, h, &p)) {
		ask(b, SPIN, 200 * MS, 0, 0, 0);
		r = ask(b, CLOSE, p, 0, 0, 0);
		ok(!r.result && r.ns > 100 * MS, "synchronises: cuIpcCloseMemHandle waits (%.1f ms)",
		   (double)r.ns / 1e6);
	}
	release(a, d);
}

void death(struct worker *a, struct worker *unused)
{
	uint64_t d = alloc(a, MIB), p, worst = 0, t0;
	unsigned char h[64];
	bool stopped = true;

	export(a, d, h);
	for (int round = 0; round < 3; round++) {
		struct worker c;
		struct answer r;

		spawn(&c);
		set(a, d, 0, MIB);
		if (import(&c, h, &p)) {
			dismiss(&c);
			break;
		}
		ask(&c, FILL, p, 256, 1234, 3000 * MS);
		for (t0 = now_ns(); get(a, d) != 1234 && now_ns() - t0 < 2000 * MS;)
			nap(MS);
		ok(get(a, d) == 1234, "death: an importer's kernel writes into the block");
		r = ask(a, KILL_WATCH, (uint64_t)c.pid, d, 1234, 300 * MS);
		bury(&c);
		dismiss(&c);
		note("measured: last write of a killed importer's kernel: %.2f ms after the kill (%llu seen)",
		     (double)r.v[0] / 1e6, (unsigned long long)r.v[1]);
		if (r.v[0] > worst)
			worst = r.v[0];
		if (r.result || r.v[0] > 250 * MS)
			stopped = false;
	}
	ok(stopped, "death: 250 ms after the kill nothing is written any more");
	release(a, d);
}

void errors_of_free(struct worker *a, struct worker *b)
{
	uint64_t keep = alloc(a, KIB), d = alloc(a, KIB), big = alloc(a, 4 * MIB), p;
	unsigned char h[64];

	note("measured: cuMemFree of NULL: %d", release(a, 0));
	note("measured: cuMemFree of an unknown pointer: %d", release(a, 0x1000));
	note("measured: cuMemFree of an interior pointer, small: %d", release(a, d + 512));
	note("measured: cuMemFree of an interior pointer, 4 MiB: %d", release(a, big + MIB));
	export(a, d, h);
	if (!import(b, h, &p)) {
		note("measured: cuMemFree of an imported pointer: %d", release(b, p));
		drop(b, p);
	}
	note("measured: cuMemFree without a current context: %d", ask(a, FREE_BARE, d, 0, 0, 0).result);
	note("measured: cuMemFree of it afterwards: %d", release(a, d));
	note("measured: cuMemFree once more, small: %d", release(a, d));
	note("measured: cuMemFree of 4 MiB: %d", release(a, big));
	note("measured: cuMemFree once more, 4 MiB: %d", release(a, big));
	note("measured: cuMemFree of NULL without a current context: %d", ask(a, FREE_BARE, 0, 0, 0, 0).result);
	release(a, keep);
}

void blocking(struct worker *a, struct worker *unused)
{
	struct answer r = ask(a, TWO_THREADS, alloc(a, 4 * MIB), 400 * MS, 0, 0);

	note("measured: behind a 400 ms kernel: cuMemFree %.1f ms; meanwhile in another thread cuMemAlloc "
	     "%.1f ms, launch %.1f ms, wait for it %.1f ms (result %d)",
	     (double)r.v[0] / 1e6, (double)r.v[1] / 1e6, (double)r.v[2] / 1e6, (double)r.v[3] / 1e6,
	     r.result);
}

/* The calls come 50 ms after the start of a 200 ms kernel, while another thread's cuMemFree waits for it. */
void while_freeing_others(struct worker *a, struct worker *unused)
{
	static const char *const names[] = {
#define X(call) #call,
		NOT_WAITING(X)
#undef X
	};
	struct answer r = ask(a, WHILE_FREEING, 200 * MS, WAIT_NONE, 0, 0);

	ok(!r.result && r.v[2] > 150 * MS, "fact 34: cuMemFree in another thread waits for the kernel (%.1f ms, result %d)",
	   (double)r.v[2] / 1e6, r.result);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		ok(!r.result && !(r.v[0] >> i & 1), "fact 34: meanwhile %s does not wait%s", names[i],
		   r.v[3] >> i & 1 ? " # SKIP this driver has no such call" : "");
	note("measured: the slowest of these took %.1f ms", (double)r.v[1] / 1e6);
	r = ask(a, WHILE_FREEING, 200 * MS, WAIT_ALLOC, 0, 0);
	ok(!r.result && r.v[1] > 75 * MS, "fact 34: meanwhile cuMemAlloc waits (%.1f ms)", (double)r.v[1] / 1e6);
	r = ask(a, WHILE_FREEING, 200 * MS, WAIT_EVENT, 0, 0);
	ok(!r.result && r.v[1] > 75 * MS, "fact 34: meanwhile cuEventCreate of an interprocess event waits (%.1f ms)",
	   (double)r.v[1] / 1e6);
}

void capturing(struct worker *a, struct worker *unused)
{
	struct answer r = ask(a, CAPTURE, alloc(a, 4 * MIB), alloc(a, 4 * MIB), alloc(a, 1024), 0);

	if (r.result == CUDA_ERROR_NOT_SUPPORTED) {
		ok(true, "capture # SKIP this driver does not capture");
		return;
	}
	note("measured: during a global-mode capture, cuMemFree in another thread: in its default mode %llu "
	     "(end of capture %llu), in RELAXED mode %llu (end of capture %llu), result %d",
	     (unsigned long long)r.v[0], (unsigned long long)r.v[3], (unsigned long long)r.v[1],
	     (unsigned long long)r.v[2], r.result);
	ok(r.v[4] == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && r.v[5] == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
	   "while a stream of the thread captures, cuMemFreeAsync of a cuMemAlloc block on another is refused "
	   "(%llu), and the capture spoilt (%llu)", (unsigned long long)r.v[4], (unsigned long long)r.v[5]);
	ok(r.v[6] == CUDA_ERROR_INVALID_VALUE && r.v[7] == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
		   r.v[8] == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
	   "cuMemAlloc of 0 bytes is %llu, while a stream of the thread captures %llu (end of capture %llu)",
	   (unsigned long long)r.v[6], (unsigned long long)r.v[7], (unsigned long long)r.v[8]);
}

/* An open does not invalidate a capture. */
void opening_while_capturing(struct worker *a, struct worker *b)
{
	static const char *const modes[] = { "global", "thread-local", "relaxed" };
	uint64_t block = alloc(a, 4 * MIB);
	unsigned char handle[64];
	struct answer r;

	export(a, block, handle);
	r = ask_handle(b, OPEN_CAPTURE, handle);
	for (unsigned int i = 0; i < 3; i++)
		ok(!r.result && !r.v[2 * i] && !r.v[2 * i + 1],
		   "capture-open: while this thread captures in %s mode, cuIpcOpenMemHandle gives %llu (end of "
		   "capture %llu; result %d)", modes[i], (unsigned long long)r.v[2 * i],
		   (unsigned long long)r.v[2 * i + 1], r.result);
	release(a, block);
}

/* After a refusal culimbo asks how the memory was allocated.  That does not invalidate a capture either. */
void asking_while_capturing(struct worker *a, struct worker *unused)
{
	static const char *const modes[] = { "global", "thread-local", "relaxed" };
	struct answer made = ask(a, VIRTUAL_NEW, 2 * MIB, 1, 0, 0), r;

	if (!ok(!made.result, "capture-ask: virtual memory (%d)", made.result))
		return;
	r = ask(a, ATTRIBUTE, made.v[0], CU_POINTER_ATTRIBUTE_CONTEXT, 0, 0);
	ok(!r.result && !r.v[0], "capture-ask: virtual memory belongs to no context (%#llx, result %d)",
	   (unsigned long long)r.v[0], r.result);
	for (unsigned int i = 0; i < 3; i++) {
		r = ask(a, ASK_CAPTURING, made.v[0], i, 0, 0);
		ok(!r.result && r.v[0] == CUDA_ERROR_INVALID_VALUE && !r.v[1],
		   "capture-ask: while this thread captures in %s mode, cuIpcGetMemHandle of it gives %llu (end of capture "
		   "%llu; result %d)", modes[i], (unsigned long long)r.v[0], (unsigned long long)r.v[1], r.result);
		ok(!r.result && !r.v[2] && !r.v[3],
		   "capture-ask: its address range and attributes are told (%llu), and the capture is good (%llu)",
		   (unsigned long long)r.v[2], (unsigned long long)r.v[3]);
		ok(!r.result && r.v[4] == CUDA_ERROR_INVALID_VALUE && !r.v[5],
		   "capture-ask: of an unknown address they are refused (%llu), and the capture is good (%llu)",
		   (unsigned long long)r.v[4], (unsigned long long)r.v[5]);
	}
	ask(a, VIRTUAL_END, 0, 0, 0, 0);
}
