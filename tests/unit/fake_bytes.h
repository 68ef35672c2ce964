/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of the fake driver: the bytes by which culimbo waits as a free does, of the device and of pinned host memory
 * (shim/driver/wait.h).
 */
#ifndef CL_TEST_FAKE_BYTES_H
#define CL_TEST_FAKE_BYTES_H

enum { REST_BYTES = (2 << 20) - (4 << 10) }; /* what culimbo makes first of a piece, so that its byte lies at the end */
#define REST ((char *)0x200000)

static struct {
	_Atomic uint32_t pinned, pinned_made; /* pinned bytes: that are there now, that were made */
	_Atomic uint32_t rests, device, device_made;
	CUresult pinned_result, device_result; /* of making one */
	CUresult small_result;		       /* of making a pinned byte, where the rest of its piece can be had */
	bool misplaced;			       /* the driver has another place for the byte */
	_Atomic int let_through;	       /* if it is not 0: a capture begins after so many calls less one */
	CUresult refusal;		       /* what the capture refuses a call with */
	bool once;			       /* it is spoilt then, and refuses no more */
} fake_bytes;

/* A capture refuses all calls but those of threads in relaxed mode. */
static CUresult capture_refuses(void)
{
	driver_entered();
	if (fake_mode == CU_STREAM_CAPTURE_MODE_RELAXED || !atomic_load(&fake_bytes.let_through))
		return CUDA_SUCCESS;
	if (atomic_load(&fake_bytes.let_through) == 1) {
		atomic_store(&fake_bytes.let_through, !fake_bytes.once);
		return fake_bytes.refusal;
	}
	atomic_fetch_sub(&fake_bytes.let_through, 1);
	return CUDA_SUCCESS;
}

static CUresult fake_mem_alloc(CUdeviceptr *p, size_t size)
{
	CUresult result = capture_refuses();

	(void)size;
	if (result == CUDA_SUCCESS)
		result = fake_bytes.device_result;
	if (result != CUDA_SUCCESS)
		return result;
	atomic_fetch_add(&fake_bytes.device, 1);
	atomic_fetch_add(&fake_bytes.device_made, 1);
	*p = STAND_IN;
	return CUDA_SUCCESS;
}
/* Frees what fake_mem_alloc() has made. */
static CUresult fake_byte_free(void)
{
	CUresult result = capture_refuses();

	if (result != CUDA_SUCCESS)
		return result;
	atomic_fetch_sub(&fake_bytes.device, 1);
	return fake_sync();
}

static CUresult fake_host_alloc(void **p, size_t size, unsigned int flags)
{
	CUresult result = capture_refuses();

	CHECK_EQUAL(flags, CU_MEMHOSTALLOC_WRITECOMBINED);
	if (result == CUDA_SUCCESS)
		result = fake_bytes.pinned_result;
	if (result == CUDA_SUCCESS && size == 1)
		result = fake_bytes.small_result;
	if (result != CUDA_SUCCESS)
		return result;
	if (size > 1) {
		CHECK_EQUAL(size, REST_BYTES);
		atomic_fetch_add(&fake_bytes.rests, 1);
		*p = REST;
	} else {
		atomic_fetch_add(&fake_bytes.pinned, 1);
		atomic_fetch_add(&fake_bytes.pinned_made, 1);
		*p = REST + REST_BYTES - fake_bytes.misplaced;
	}
	return CUDA_SUCCESS;
}
static CUresult fake_host_free(void *p)
{
	CUresult result = capture_refuses();

	if (result != CUDA_SUCCESS)
		return result;
	CHECK(atomic_fetch_sub(p == REST ? &fake_bytes.rests : &fake_bytes.pinned, 1));
	return fake_sync();
}

#endif
