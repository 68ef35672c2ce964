/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake driver's virtual memory, for the tests of mirrors.  It knows of each page of 2 MiB what is mapped
 * there, with access for which devices, and checks what the real one would refuse.  A descriptor is a
 * number, which stands for the bytes.  Any call can be made to fail.
 */
#ifndef TEST_MIRRORS_H
#define TEST_MIRRORS_H

#include "tests/unit/fake_driver.h"

#include "shim/importer/mirror_books.h"

#define VM_BASE 0x500000000000ull
#define PAGE (2 * MIB)
enum { VM_PAGES = 1 << 18, VM_RESERVATIONS = 2048 };

struct vm_page {
	int bytes;		 /* the descriptor of the allocation; 0: nothing is mapped */
	uint64_t offset;	 /* in the allocation */
	uint32_t pages;		 /* of the first page of a mapping: its size */
	uint64_t devices;
	bool reserved;
};
static struct {
	struct vm_page page[VM_PAGES];
	struct { uint64_t first, pages; } reserved[VM_RESERVATIONS]; /* .pages 0: it is free */
	uint64_t used;
	unsigned int reservations, mapped, handles; /* how many there are */
	_Atomic unsigned int calls; /* of the driver's virtual memory */
	unsigned int fail_from, fail_to; /* the calls that fail, from 1 on */
	unsigned int failed;
	unsigned int reserves, maps, accesses, unmaps; /* how many there were */
	unsigned int unmap_fails; /* so many unmaps fail */
	uint64_t no_access; /* devices that can't get any */
	bool access_fails;  /* the next call */
	void (*in_map)(int bytes);
	void (*in_reserve)(void);
	void (*in_free)(void); /* called when the address is free */
	unsigned int told; /* calls of cl_mirror_on_unmapped */
} vm;
static pthread_mutex_t vm_lock = PTHREAD_MUTEX_INITIALIZER;

/* At the beginning of each call, and its end. */
static CUresult vm_enter(void)
{
	unsigned int n;

	driver_entered();
	pthread_mutex_lock(&vm_lock);
	n = ++vm.calls;
	if (n < vm.fail_from || n > vm.fail_to)
		return CUDA_SUCCESS;
	vm.failed++;
	return CUDA_ERROR_UNKNOWN;
}
static CUresult vm_leave(CUresult result)
{
	pthread_mutex_unlock(&vm_lock);
	return result;
}
static struct vm_page *vm_pages(CUdeviceptr p, size_t size)
{
	CHECK(p >= VM_BASE && p % PAGE == 0 && size && size % PAGE == 0);
	CHECK((p - VM_BASE + size) / PAGE <= VM_PAGES);
	return &vm.page[(p - VM_BASE) / PAGE];
}

static CUresult vm_reserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr wanted,
			   unsigned long long flags)
{
	uint64_t pages = size / PAGE, first = 0;
	int i = 0;

	if (vm.in_reserve)
		vm.in_reserve();
	if (vm_enter())
		return vm_leave(CUDA_ERROR_UNKNOWN);
	CHECK(!alignment && !wanted && !flags && size && size % PAGE == 0);
	/* as the real one: an address that was freed is used again */
	while (first < vm.used && (vm.page[first].reserved || first + pages > vm.used))
		first++;
	for (uint64_t k = first; k < first + pages && k < vm.used; k++)
		if (vm.page[k].reserved)
			first = vm.used;
	CHECK(first + pages <= VM_PAGES);
	if (first + pages > vm.used)
		vm.used = first + pages;
	while (vm.reserved[i].pages)
		CHECK(++i < VM_RESERVATIONS);
	vm.reserved[i].first = first;
	vm.reserved[i].pages = pages;
	for (uint64_t k = 0; k < pages; k++)
		vm.page[first + k].reserved = true;
	vm.reservations++;
	vm.reserves++;
	*p = VM_BASE + first * PAGE;
	return vm_leave(CUDA_SUCCESS);
}
static CUresult vm_free(CUdeviceptr p, size_t size)
{
	struct vm_page *page = vm_pages(p, size);
	int i = 0;

	if (vm_enter())
		return vm_leave(CUDA_ERROR_UNKNOWN);
	while (!vm.reserved[i].pages || vm.reserved[i].first != (p - VM_BASE) / PAGE)
		CHECK(++i < VM_RESERVATIONS);
	CHECK_EQUAL(vm.reserved[i].pages, size / PAGE);
	vm.reserved[i].pages = 0;
	for (uint64_t k = 0; k < size / PAGE; k++) {
		CHECK(page[k].reserved && !page[k].bytes);
		page[k].reserved = false;
	}
	vm.reservations--;
	vm_leave(CUDA_SUCCESS);
	if (vm.in_free)
		vm.in_free();
	return CUDA_SUCCESS;
}
static CUresult vm_import(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)
{
	if (vm_enter())
		return vm_leave(CUDA_ERROR_UNKNOWN);
	CHECK_EQUAL(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CHECK((intptr_t)shareable > 0);
	*handle = (CUmemGenericAllocationHandle)(intptr_t)shareable;
	vm.handles++;
	return vm_leave(CUDA_SUCCESS);
}
static CUresult vm_release(CUmemGenericAllocationHandle handle)
{
	if (vm_enter())
		return vm_leave(CUDA_ERROR_UNKNOWN);
	CHECK(vm.handles > 0);
	vm.handles--;
	return vm_leave(CUDA_SUCCESS);
}
static CUresult vm_map(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		       unsigned long long flags)
{
	struct vm_page *page = vm_pages(p, size);

	if (vm.in_map)
		vm.in_map((int)handle);
	if (vm_enter())
		return vm_leave(CUDA_ERROR_UNKNOWN);
	for (uint64_t k = 0; k < size / PAGE; k++) {
		CHECK(page[k].reserved && !page[k].bytes);
		page[k] = (struct vm_page){ .bytes = (int)handle, .offset = offset + k * PAGE, .reserved = true };
	}
	page->pages = (uint32_t)(size / PAGE);
	vm.mapped++;
	vm.maps++;
	return vm_leave(CUDA_SUCCESS);
}
static CUresult vm_unmap(CUdeviceptr p, size_t size)
{
	struct vm_page *page = vm_pages(p, size);

	if (vm_enter())
		return vm_leave(CUDA_ERROR_UNKNOWN);
	if (vm.unmap_fails) {
		vm.unmap_fails--;
		return vm_leave(CUDA_ERROR_UNKNOWN);
	}
	CHECK_EQUAL(page->pages, size / PAGE);
	for (uint64_t k = 0; k < size / PAGE; k++)
		page[k] = (struct vm_page){ .reserved = true };
	vm.mapped--;
	vm.unmaps++;
	return vm_leave(CUDA_SUCCESS);
}
static CUresult vm_access(CUdeviceptr p, size_t size, const CUmemAccessDesc *access, size_t n)
{
	struct vm_page *page = vm_pages(p, size);

	/* a call for several devices fails for the one that must have access, too */
	if (vm_enter() || vm.access_fails) {
		vm.access_fails = n > 1;
		return vm_leave(CUDA_ERROR_UNKNOWN);
	}
	for (size_t i = 0; i < n; i++) {
		CHECK_EQUAL(access[i].location.type, CU_MEM_LOCATION_TYPE_DEVICE);
		CHECK_EQUAL(access[i].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		if (vm.no_access >> access[i].location.id & 1)
			return vm_leave(CUDA_ERROR_INVALID_DEVICE);
		for (uint64_t k = 0; k < size / PAGE; k++) {
			CHECK(page[k].bytes);
			page[k].devices |= 1ull << access[i].location.id;
		}
	}
	vm.accesses++;
	return vm_leave(CUDA_SUCCESS);
}

static void vm_told(const struct cl_mirror_name *name, uint64_t id)
{
	driver_entered();
	CHECK(name->exporter && id);
	pthread_mutex_lock(&vm_lock);
	vm.told++;
	pthread_mutex_unlock(&vm_lock);
}

static inline void start_mirrors(void)
{
	start_with(HOUR, CL_COLLECTOR_INLINE);
	cl_driver.cuMemAddressReserve = vm_reserve;
	cl_driver.cuMemAddressFree = vm_free;
	cl_driver.cuMemImportFromShareableHandle = vm_import;
	cl_driver.cuMemRelease = vm_release;
	cl_driver.cuMemMap = vm_map;
	cl_driver.cuMemUnmap = vm_unmap;
	cl_driver.cuMemSetAccess = vm_access;
	cl_mirror_on_unmapped = vm_told;
}

/* The bytes that a program reads at @p, as the first device; 0: nothing is mapped there. */
static inline int bytes_at(CUdeviceptr p)
{
	const struct vm_page *page = &vm.page[(p - VM_BASE) / PAGE];

	CHECK(!page->bytes || (page->devices & 1));
	return page->bytes;
}

#define CHECK_NOTHING_IS_LEFT()              \
	do {                                 \
		CHECK_EQUAL(vm.mapped, 0);       \
		CHECK_EQUAL(vm.reservations, 0); \
		CHECK_EQUAL(vm.handles, 0);      \
		CHECK(!cl_mirrors_any());        \
	} while (0)

/* ------------------------------------------------------------------------ helpers */
enum { MOST = 64 };
/* An open of a reservation, all of whose pages a text describes: a letter for an allocation, a dot for a hole. */
struct opening {
	struct cl_mirror_want want;
	struct cl_mirror_piece piece[MOST];
	CUdeviceptr p;
};

/* A letter is also the descriptor and, with a generation, the id; a small one has no descriptor. */
static inline void describe(struct opening *o, uint64_t reservation, const char *text, uint64_t page)
{
	memset(o, 0, sizeof *o);
	o->want.name.exporter = 1;
	o->want.name.reservation = reservation;
	o->want.size = strlen(text) * PAGE;
	o->want.offset = page * PAGE;
	o->want.devices = 1;
	o->want.piece = o->piece;
	for (uint64_t i = 0; text[i]; i++) {
		struct cl_mirror_piece *piece = &o->piece[o->want.pieces];

		if (text[i] == '.')
			continue;
		if (i && text[i] == text[i - 1]) {
			piece[-1].size += PAGE;
			continue;
		}
		CHECK(o->want.pieces++ < MOST);
		piece->offset = i * PAGE;
		piece->size = PAGE;
		piece->id = UINT64_C(7) << 32 | (uint64_t)(text[i] & ~0x20);
		piece->fd = text[i] & 0x20 ? -1 : text[i];
	}
}
static inline CUresult try_open(struct opening *o, uint64_t reservation, const char *text, uint64_t page)
{
	describe(o, reservation, text, page);
	return cl_mirror_open(&o->want, &o->p);
}
static inline CUdeviceptr opened(uint64_t reservation, const char *text, uint64_t page)
{
	struct opening o;

	CHECK_EQUAL(try_open(&o, reservation, text, page), CUDA_SUCCESS);
	return o.p;
}
static inline CUresult closed(CUdeviceptr p)
{
	CUresult result;

	CHECK(cl_mirror_close(p, &result));
	return result;
}
static inline bool is_open(CUdeviceptr p)
{
	CUdeviceptr base;
	uint64_t size;

	return cl_mirror_find(p, &base, &size, NULL) && base == p;
}
/* Checks what is mapped from the page of @p on. */
#define CHECK_READS(p, text)                                                                    \
	for (uint64_t i_ = 0; (text)[i_]; i_++)                                                 \
		CHECK_EQUAL(bytes_at((p) + i_ * PAGE), (text)[i_] == '.' ? 0 : (text)[i_])
/* Checks what cuMemGetAddressRange() says of @p. */
#define CHECK_RANGE(p, base_, pages)                   \
	do {                                           \
		CUdeviceptr found_;                    \
		uint64_t size_;                        \
		CHECK(cl_mirror_find(p, &found_, &size_, NULL)); \
		CHECK_EQUAL(found_, base_);            \
		CHECK_EQUAL(size_, (pages) * PAGE);    \
	} while (0)

static inline uint64_t devices_at(CUdeviceptr p)
{
	return vm.page[(p - VM_BASE) / PAGE].devices;
}

#endif
