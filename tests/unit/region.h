/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the exporter file (test_shm_*.c): a folder of their own, a file in it, and
 * its records.
 */
#ifndef CL_TEST_REGION_H
#define CL_TEST_REGION_H

#include "tests/unit/child.h"

#include <fcntl.h>

#include "shim/base/options.h"
#include "shim/shm/slot.h"

#define MS 1000000ull

static char folder[64];
static int folder_fd;
static struct cl_identity me;

static inline struct cl_region make_region(void)
{
	struct cl_region r;

	assert_int_equal(cl_region_create(&r, folder_fd, &me), 0);
	return r;
}

static inline void drop_region(struct cl_region *r)
{
	cl_region_unlink(r, folder_fd);
	cl_region_close(r);
}

static inline struct cl_export an_export(uint8_t *handle, uint8_t fill)
{
	memset(handle, fill, 56);
	memset(handle + 56, 0, 8);
	return (struct cl_export){ .kind = CL_MEMORY, .base = 0x7f0000000000u, .size = 1024,
				   .handle = handle, .now = 1 };
}

static inline uint32_t publish(struct cl_region *r, uint32_t record, uint8_t fill)
{
	uint8_t handle[64];
	struct cl_export what = an_export(handle, fill);

	return cl_record_publish(r, record, &what);
}

static inline int hold(struct cl_region *r, unsigned int slot, uint32_t record, uint32_t generation,
		       uint8_t fill)
{
	uint8_t handle[64] = { 0 };

	memset(handle, fill, 56);
	return cl_record_hold(r, slot, record, generation, handle);
}

static inline void grow_to(struct cl_region *r, uint32_t chunks)
{
	while (atomic_load(&r->header->record_chunks) < chunks)
		assert_int_equal(cl_region_grow(r), 0);
}

static inline uint32_t random_next(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

static inline pid_t fork_checked(void)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child)
		child_begins();
	return child;
}

/* FDSize of /proc/self/status, by sscanf. */
static inline int descriptor_room(void)
{
	char line[256];
	int room = -1;
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "FDSize: %d", &room) == 1)
			break;
	if (f)
		fclose(f);
	return room;
}

__attribute__((unused)) static struct cl_slot_watch watch[CL_SLOTS];

static inline int make_folder(void **state)
{
	char *environment[] = { NULL };

	cl_options_read(&cl_options, environment, NULL);
	cl_identity_self(&me);
	if (make_folder_at(folder))
		return -1;
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return folder_fd < 0 ? -1 : 0;
}
static inline int remove_folder(void **state)
{
	close(folder_fd);
	return remove_folder_at(folder);
}

#endif
