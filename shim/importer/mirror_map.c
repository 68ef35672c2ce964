/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver does for mirrors: see mirror_map.h. */
#include <stdlib.h>

#include "shim/importer/mirror_map.h"
#include "shim/self/self.h"

void (*cl_mirror_on_unmapped)(const struct cl_mirror_name *name, uint64_t id);

bool cl_mirror_driver_can(void)
{
	return cl_driver.cuMemAddressReserve && cl_driver.cuMemAddressFree && cl_driver.cuMemMap &&
	       cl_driver.cuMemUnmap && cl_driver.cuMemSetAccess && cl_driver.cuMemRelease &&
	       cl_driver.cuMemImportFromShareableHandle;
}

static CUresult map(CUdeviceptr base, struct cl_mirror_piece *piece)
{
	CUmemGenericAllocationHandle handle;
	CUresult result, released;

	if (piece->memory) {
		result = cl_driver.cuMemMap(base + piece->offset, piece->size, piece->from, piece->memory, 0);
		piece->mapped = result == CUDA_SUCCESS;
		return result;
	}
	result = cl_driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)piece->fd,
							  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result)
		return result;
	result = cl_driver.cuMemMap(base + piece->offset, piece->size, piece->from, handle, 0);
	piece->mapped = result == CUDA_SUCCESS;
	/* the mapping keeps the memory */
	released = cl_driver.cuMemRelease(handle);
	if (released)
		cl_driver.cuMemRelease(handle); /* unmaps what this open mapped, since it fails */
	return result ? result : released;
}

static CUresult set_access(CUdeviceptr begin, uint64_t size, uint64_t devices)
{
	CUmemAccessDesc access[CL_MIRROR_DEVICES];
	size_t n = 0;

	for (int device = 0; device < CL_MIRROR_DEVICES; device++)
		if (devices >> device & 1)
			access[n++] = (CUmemAccessDesc){
				.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
				.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			};
	return size && n ? cl_driver.cuMemSetAccess(begin, size, access, n) : CUDA_SUCCESS;
}

/*
 * Gives @must and @others access to @run of @mirror.  Returns the driver's answer for @must: one of the others may be
 * out of reach of the memory's device, though it reaches the opener's.  Such a one is entered in .lacks.
 */
static CUresult give_access(struct cl_mirror *mirror, struct cl_mirror_run run, uint64_t must, uint64_t others)
{
	CUdeviceptr begin = mirror->base + run.begin;
	uint64_t size = run.end - run.begin;
	CUresult result = set_access(begin, size, must | others);

	if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY || !(others & ~must))
		return result;
	result = set_access(begin, size, must);
	for (int device = 0; result == CUDA_SUCCESS && device < CL_MIRROR_DEVICES; device++)
		if (set_access(begin, size, others & ~must & UINT64_C(1) << device))
			mirror->lacks |= UINT64_C(1) << device;
	return result;
}

CUresult cl_mirror_give_access(struct cl_mirror *mirror, uint64_t must, uint64_t others)
{
	CUresult result = CUDA_SUCCESS;
	struct cl_mirror_run run = { 0, 0 };

	for (uint64_t i = 0; (must || others) && i < mirror->pieces && !result; i++) {
		const struct cl_mirrored *piece = &mirror->piece[i];

		if (piece->offset != run.end) {
			result = give_access(mirror, run, must, others);
			run.begin = piece->offset;
		}
		run.end = piece->offset + piece->size;
	}
	return result ? result : give_access(mirror, run, must, others);
}

CUresult cl_mirror_sweep(struct cl_mirror *mirror)
{
	CUresult result, first = CUDA_SUCCESS;
	uint64_t left = 0;

	cl_rank_none();
	for (uint64_t i = 0; i < mirror->pieces; i++) {
		struct cl_mirrored *piece = &mirror->piece[i];

		result = piece->imports ? CUDA_SUCCESS :
					  cl_driver.cuMemUnmap(mirror->base + piece->offset, piece->size);
		first = first ? first : result;
		if (piece->imports || result)
			mirror->piece[left++] = *piece;
		else if (cl_mirror_on_unmapped)
			cl_mirror_on_unmapped(&mirror->of->name, piece->id);
	}
	cl_lock(&cl_imports_lock);
	cl_mirror_pieces_n -= mirror->pieces - left;
	mirror->pieces = left;
	mirror->refused = first != CUDA_SUCCESS;
	if (left) { /* each import has something */
		cl_unlock(&cl_imports_lock);
		return first;
	}
	/* another thread may get the address as soon as it is free */
	cl_mirror_unlist_locked(mirror);
	cl_unlock(&cl_imports_lock);
	result = cl_driver.cuMemAddressFree(mirror->base, mirror->size);
	cl_lock(&cl_imports_lock);
	if (result) {
		cl_mirror_list_locked(mirror);
	} else {
		cl_list_remove(&mirror->of->mirrors, &mirror->node);
		cl_mirrors_gone_locked(1);
	}
	cl_unlock(&cl_imports_lock);
	if (!result) {
		free(mirror->piece);
		free(mirror->import);
		free(mirror);
	}
	return first ? first : result;
}

/* Returns what @mirror has mapped at the offset of @piece, or NULL; *at is where to look for the next one. */
static const struct cl_mirrored *find(const struct cl_mirror *mirror, const struct cl_mirror_piece *piece, uint64_t *at)
{
	while (*at < mirror->pieces && mirror->piece[*at].offset < piece->offset)
		++*at;
	return *at < mirror->pieces && mirror->piece[*at].offset == piece->offset ? &mirror->piece[*at] : NULL;
}

CUresult cl_mirror_map(struct cl_mirror *mirror, struct cl_mirror_piece *piece, uint64_t pieces, uint64_t must,
		       uint64_t others)
{
	struct cl_mirror_run run = { 0, 0 };
	CUresult result;
	uint64_t at = cl_mirror_piece_from(mirror, piece[0].offset);

	cl_rank_none();
	if (!mirror->base) {
		result = cl_driver.cuMemAddressReserve(&mirror->base, mirror->size, 0, 0, 0);
		if (result) {
			mirror->base = 0;
			return result;
		}
		cl_lock(&cl_imports_lock);
		cl_mirror_list_locked(mirror);
		cl_list_add(&mirror->of->mirrors, &mirror->node);
		cl_unlock(&cl_imports_lock);
	}
	for (uint64_t i = 0; i < pieces; i++) {
		const struct cl_mirrored *mapped = find(mirror, &piece[i], &at);

		/* one without an import is of an open that failed, perhaps before it had access */
		if (mapped && mapped->imports)
			continue;
		result = mapped ? CUDA_SUCCESS : map(mirror->base, &piece[i]);
		if (!result && piece[i].offset != run.end) {
			result = give_access(mirror, run, must, mirror->devices | others);
			run.begin = piece[i].offset;
		}
		if (result)
			return result;
		run.end = cl_mirror_piece_end(&piece[i]);
	}
	result = give_access(mirror, run, must, mirror->devices | others);
	if (result)
		return result;
	/* pieces that an earlier open mapped */
	result = cl_mirror_give_access(mirror, must & (~mirror->devices | mirror->lacks), others & ~mirror->devices);
	if (!result)
		mirror->lacks &= ~must;
	return result;
}
