/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about shared pools while a stream captures, in the exporter or the importer.
 */
#include "probe_pools.h"

#include <string.h>

static const char *const modes[] = { "global", "thread-local", "relaxed" };

/* Makes @call in a capture of each mode; @prepare creates subject anew each time. */
static void in_captures(const char *what, void (*prepare)(void), int (*call)(void))
{
	for (unsigned int m = 0; m < 3; m++) {
		CUgraph graph = NULL;
		int result, over;

		prepare();
		MUST(cu.cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)m));
		result = call();
		over = DO(cu.cuStreamEndCapture(stream, &graph));
		if (graph)
			cu.cuGraphDestroy(graph);
		measured("in a capture of %s mode, %s: %d (end of capture %d); after it the block's range gives %d", modes[m], what, result,
			 over, known(subject));
	}
}

static int call_pool_export(void)
{
	int fd;

	return DO(p.cuMemPoolExportToShareableHandle(&fd, own_pool, POSIX_FD, 0));
}
static int call_alloc_here(void)
{
	CUdeviceptr made;

	return DO(p.cuMemAllocFromPoolAsync(&made, LARGE, own_pool, stream));
}
static int call_alloc_elsewhere(void)
{
	CUdeviceptr made;

	return DO(p.cuMemAllocFromPoolAsync(&made, LARGE, own_pool, other_stream));
}
static int call_free_here(void) { return DO(cu.cuMemFreeAsync(subject, stream)); }
static int call_free_elsewhere(void) { return DO(cu.cuMemFreeAsync(subject, other_stream)); }
static int call_free_null(void) { return DO(cu.cuMemFreeAsync(subject, NULL)); }
static int call_free(void) { return DO(cu.cuMemFree_v2(subject)); }

static void capture_export(void)
{
	begin_exporter();
	in_captures("cuMemPoolExportPointer", prepare_export, call_export);
	in_captures("cuMemPoolExportToShareableHandle", prepare_export, call_pool_export);
}
static void capture_alloc(void)
{
	begin_exporter();
	in_captures("cuMemAllocFromPoolAsync in another stream", prepare_export, call_alloc_elsewhere);
	in_captures("cuMemAllocFromPoolAsync in the capturing stream", prepare_export, call_alloc_here);
}
static void capture_export_free_here(void)
{
	begin_exporter();
	in_captures("cuMemFreeAsync of a pool's block in the capturing stream", prepare_export, call_free_here);
}
static void capture_export_free_elsewhere(void)
{
	begin_exporter();
	in_captures("cuMemFreeAsync of a pool's block in another stream", prepare_export, call_free_elsewhere);
	in_captures("cuMemFreeAsync of a pool's block in the NULL stream", prepare_export, call_free_null);
}
static void capture_export_free(void)
{
	begin_exporter();
	in_captures("cuMemFree of a pool's block", prepare_export, call_free);
}

static void begin_importer(void)
{
	subject = begin_with_import();
	MUST(cu.cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
}
static void prepare_import(void)
{
	/* a second import gives the same pointer */
	must(import_again(&subject), "cuMemPoolImportPointer");
}
static void prepare_no_import(void)
{
	cu.cuMemFree_v2(subject);
}
static int call_import(void) { return import_again(&subject); }

static void capture_import(void)
{
	begin_importer();
	in_captures("cuMemPoolImportPointer", prepare_no_import, call_import);
}
static void capture_import_free_here(void)
{
	begin_importer();
	in_captures("cuMemFreeAsync of an import in the capturing stream", prepare_import, call_free_here);
}
static void capture_import_free_elsewhere(void)
{
	begin_importer();
	in_captures("cuMemFreeAsync of an import in another stream", prepare_import, call_free_elsewhere);
	in_captures("cuMemFreeAsync of an import in the NULL stream", prepare_import, call_free_null);
}
static void capture_import_free(void)
{
	begin_importer();
	in_captures("cuMemFree of an import", prepare_import, call_free);
}

/* ---- which error comes first, for cuMemAlloc memory ---- */

enum subject_kind { LIVE_SMALL, LIVE_LARGE, FREED_SMALL, FREED_LARGE, FREED_ASYNC_SMALL, FREED_ASYNC_LARGE, UNKNOWN, SUBJECTS };
static const char *const subject_names[] = { "live, small", "live, large", "freed by cuMemFree, small", "freed by cuMemFree, large",
					     "freed by cuMemFreeAsync, small", "freed by cuMemFreeAsync, large", "unknown" };

static CUdeviceptr subject_of(enum subject_kind kind)
{
	CUdeviceptr made = 0x10000;

	if (kind == UNKNOWN)
		return made;
	MUST(cu.cuMemAlloc_v2(&made, kind % 2 ? LARGE : SMALL));
	if (kind == FREED_SMALL || kind == FREED_LARGE)
		MUST(cu.cuMemFree_v2(made));
	if (kind == FREED_ASYNC_SMALL || kind == FREED_ASYNC_LARGE) {
		MUST(cu.cuMemFreeAsync(made, other_stream));
		MUST(cu.cuStreamSynchronize(other_stream));
	}
	return made;
}

static void refusals_of(CUstream capturing, const char *kind_of_stream, enum subject_kind kind, unsigned int mode, bool spoilt)
{
	static const char *const calls[] = { "cuMemFree", "cuMemFreeAsync in the NULL stream", "in another", "in the capturing one" };
	char line[256] = "";

	for (unsigned int c = 0; c < 4; c++) {
		CUdeviceptr made = subject_of(kind), none;
		CUgraph graph = NULL;
		size_t used = strlen(line);
		int result, over;

		MUST(cu.cuStreamBeginCapture_v2(capturing, (CUstreamCaptureMode)mode));
		if (spoilt) /* invalidated by a call that does so in each mode */
			(void)DO(mode == CU_STREAM_CAPTURE_MODE_RELAXED ? cu.cuStreamQuery(capturing) : cu.cuMemAlloc_v2(&none, SMALL));
		result = DO(!c ? cu.cuMemFree_v2(made) : cu.cuMemFreeAsync(made, c == 1 ? NULL : c == 2 ? other_stream : capturing));
		over = DO(cu.cuStreamEndCapture(capturing, &graph));
		if (graph)
			cu.cuGraphDestroy(graph);
		snprintf(line + used, sizeof(line) - used, "%s %s %d (%d)", used ? "," : "", calls[c], result, over);
		cu.cuCtxSynchronize();
	}
	measured("%s stream, %s%s, memory %s:%s", kind_of_stream, modes[mode], spoilt ? ", spoilt" : "", subject_names[kind], line);
}

static void refusals(void)
{
	CUstream blocking;

	begin();
	MUST(cu.cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
	MUST(cu.cuStreamCreate(&blocking, 0));
	for (unsigned int m = 0; m < 3; m++)
		for (int spoilt = 0; spoilt < 2; spoilt++)
			for (int kind = 0; kind < SUBJECTS; kind++) {
				refusals_of(stream, "a non-blocking", (enum subject_kind)kind, m, spoilt);
				refusals_of(blocking, "a blocking", (enum subject_kind)kind, m, spoilt);
			}
}

/* The same without a capture. */
static void refusals_alone(void)
{
	begin();
	MUST(cu.cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
	for (int kind = 0; kind < SUBJECTS; kind++) {
		CUdeviceptr made = subject_of((enum subject_kind)kind);
		int first = kind >= FREED_SMALL ? DO(cu.cuMemFreeAsync(made, NULL)) : 0;

		measured("no capture, memory %s: cuMemFreeAsync in the NULL stream %d, then cuMemFree %d", subject_names[kind], first,
			 DO(cu.cuMemFree_v2(made)));
	}
}

const struct more_question capture_questions[] = {
	{ "capture-refusals", refusals, 0 },
	{ "capture-none-refusals", refusals_alone, 0 },
	{ "pool-capture-export", capture_export, 0 },
	{ "pool-capture-alloc", capture_alloc, 0 },
	{ "pool-capture-export-free-here", capture_export_free_here, 0 },
	{ "pool-capture-export-free-elsewhere", capture_export_free_elsewhere, 0 },
	{ "pool-capture-export-free-sync", capture_export_free, 0 },
	{ "pool-capture-import", capture_import, 0 },
	{ "pool-capture-import-free-here", capture_import_free_here, 0 },
	{ "pool-capture-import-free-elsewhere", capture_import_free_elsewhere, 0 },
	{ "pool-capture-import-free-sync", capture_import_free, 0 },
	{ NULL, NULL, 0 },
};
