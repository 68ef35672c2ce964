/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned host memory: cuMemHostAlloc, cuMemHostRegister and related calls.
 *
 * What must hold: everything here is under sim.lock.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

struct host_range {
	struct host_range *next;
	char *base;
	size_t size;
	unsigned int flags;
	bool registered; /* the program's own memory */
	struct sim_context *context;
	uint64_t id;
};

static struct host_range *host_ranges;

/*
 * The driver makes small write-combined memory of pieces that no other memory is in, from the first free place on
 * (measured).  Here a piece has pages.
 */
enum { COMBINED_PAGE = 4096, COMBINED_PAGES = 512 };
static struct combined_piece {
	struct combined_piece *next;
	char *base;
	bool used[COMBINED_PAGES];
	unsigned int n; /* how many are used */
} *combined_pieces;

/* Returns the first of @pages free pages of @piece that lie side by side, or COMBINED_PAGES. */
static unsigned int combined_find(const struct combined_piece *piece, unsigned int pages)
{
	unsigned int side_by_side = 0;

	for (unsigned int i = 0; i < COMBINED_PAGES; i++) {
		side_by_side = piece->used[i] ? 0 : side_by_side + 1;
		if (side_by_side == pages)
			return i + 1 - pages;
	}
	return COMBINED_PAGES;
}

static void *combined_map(unsigned int pages)
{
	unsigned int first = COMBINED_PAGES;
	struct combined_piece **at = &combined_pieces, *piece;

	for (; (piece = *at) != NULL; at = &piece->next)
		if ((first = combined_find(piece, pages)) < COMBINED_PAGES)
			break;
	if (!piece) {
		piece = calloc(1, sizeof(*piece));
		if (!piece)
			return MAP_FAILED;
		piece->base = mmap(NULL, (size_t)COMBINED_PAGES * COMBINED_PAGE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (piece->base == MAP_FAILED) {
			free(piece);
			return MAP_FAILED;
		}
		*at = piece;
		first = 0;
	}
	memset(piece->used + first, true, pages);
	piece->n += pages;
	return piece->base + (size_t)first * COMBINED_PAGE;
}

static void combined_unmap(const char *base, unsigned int pages)
{
	struct combined_piece **at = &combined_pieces, *piece;

	while (base < (*at)->base || base >= (*at)->base + (size_t)COMBINED_PAGES * COMBINED_PAGE)
		at = &(*at)->next;
	piece = *at;
	memset(piece->used + (base - piece->base) / COMBINED_PAGE, false, pages);
	piece->n -= pages;
	if (piece->n)
		return;
	*at = piece->next;
	munmap(piece->base, (size_t)COMBINED_PAGES * COMBINED_PAGE);
	free(piece);
}

static bool is_combined(size_t size, unsigned int flags)
{
	return flags & CU_MEMHOSTALLOC_WRITECOMBINED && size <= (size_t)COMBINED_PAGES * COMBINED_PAGE;
}
static void *host_map(size_t size, unsigned int flags)
{
	if (is_combined(size, flags))
		return combined_map((unsigned int)(size / COMBINED_PAGE));
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void host_unmap(char *base, size_t size, unsigned int flags)
{
	if (is_combined(size, flags))
		combined_unmap(base, (unsigned int)(size / COMBINED_PAGE));
	else
		munmap(base, size);
}

static struct host_range *host_find(const void *address)
{
	for (struct host_range *h = host_ranges; h; h = h->next)
		if ((const char *)address >= h->base && (const char *)address < h->base + h->size)
			return h;
	return NULL;
}

bool sim_host_at(const void *address, void **base, size_t *size, unsigned int *flags,
		 struct sim_context **context, uint64_t *id)
{
	struct host_range *h = host_find(address);

	if (!h)
		return false;
	*base = h->base;
	*size = h->size;
	*flags = h->flags;
	*context = h->context;
	*id = h->id;
	return true;
}

/* Adds memory of the program at *base, or memory that is made, whose address *base gets. */
static CUresult host_add(void **base, size_t size, unsigned int flags, bool registered)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct host_range *h = NULL;

	if (result)
		return result;
	result = sim_capture_forbids();
	if (result)
		goto out;
	if (registered && host_find(*base)) {
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
		goto out;
	}
	h = calloc(1, sizeof(*h));
	if (h && !registered)
		*base = host_map(size, flags);
	if (!h || *base == MAP_FAILED) {
		free(h);
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	*h = (struct host_range){ host_ranges, *base, size, flags, registered, context, sim_next_id() };
	host_ranges = h;
out:
	sim_leave();
	return result;
}

static void host_drop(struct host_range **at)
{
	struct host_range *h = *at;

	*at = h->next;
	if (!h->registered)
		host_unmap(h->base, h->size, h->flags);
	free(h);
}

static CUresult host_remove(void *base, bool registered)
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	result = sim_capture_forbids();
	if (result)
		goto out;
	sim_context_wait(context);
	result = registered ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
	for (struct host_range **at = &host_ranges; *at; at = &(*at)->next) {
		if ((*at)->base != base || (*at)->registered != registered)
			continue;
		host_drop(at);
		result = CUDA_SUCCESS;
		break;
	}
out:
	sim_leave();
	return result;
}

void sim_host_end(const struct sim_context *context)
{
	struct host_range **at = &host_ranges;

	while (*at)
		if ((*at)->context == context)
			host_drop(at);
		else
			at = &(*at)->next;
}

SIM_CALL(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned int flags))
{
	CUresult result = sim_ready();
	void *at;

	if (result)
		return result;
	if (!pointer || !bytes || flags > 7 || bytes > SIZE_MAX / 2)
		return CUDA_ERROR_INVALID_VALUE;
	result = host_add(&at, (bytes + 4095) / 4096 * 4096, flags, false);
	if (!result)
		*pointer = at;
	return result;
}

SIM_CALL(cuMemAllocHost_v2, (void **pointer, size_t bytes))
{
	return cuMemHostAlloc(pointer, bytes, 0);
}

SIM_CALL(cuMemAllocHost, (void **pointer, unsigned int bytes))
{
	return cuMemHostAlloc(pointer, bytes, 0);
}

SIM_CALL(cuMemFreeHost, (void *pointer))
{
	return host_remove(pointer, false);
}

SIM_CALL(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned int flags))
{
	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return host_add(&pointer, bytes, flags, true);
}

SIM_CALL(cuMemHostRegister, (void *pointer, size_t bytes, unsigned int flags))
{
	return cuMemHostRegister_v2(pointer, bytes, flags);
}

SIM_CALL(cuMemHostUnregister, (void *pointer))
{
	return host_remove(pointer, true);
}

SIM_CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr *dptr, void *pointer, unsigned int flags))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (dptr && !flags && host_find(pointer))
		*dptr = (CUdeviceptr)(uintptr_t)pointer;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}

SIM_CALL(cuMemHostGetFlags, (unsigned int *flags, void *pointer))
{
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct host_range *h;

	if (result)
		return result;
	h = host_find(pointer);
	if (flags && h)
		*flags = h->flags;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	sim_leave();
	return result;
}
