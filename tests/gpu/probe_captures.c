/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about pools that processes share while a stream captures, on either side.
 */
#include "probe_pools.h"

static const char *const modes[] = { "global", "thread-local", "relaxed" };

/* Makes @call in a capture of each mode; subject is made anew by @prepare. */
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
	/* imported already, it is the same */
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

const struct pool_question capture_questions[] = {
	{ "pool-capture-export", capture_export },
	{ "pool-capture-alloc", capture_alloc },
	{ "pool-capture-export-free-here", capture_export_free_here },
	{ "pool-capture-export-free-elsewhere", capture_export_free_elsewhere },
	{ "pool-capture-export-free-sync", capture_export_free },
	{ "pool-capture-import", capture_import },
	{ "pool-capture-import-free-here", capture_import_free_here },
	{ "pool-capture-import-free-elsewhere", capture_import_free_elsewhere },
	{ "pool-capture-import-free-sync", capture_import_free },
	{ NULL, NULL },
};
