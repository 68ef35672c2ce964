/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory, which all processes of this user share.
 *
 * It has two files in a folder of mode 0700.  "state" says which process has what.
 * "memory" has the bytes; it is sparse, so only touched memory costs anything.
 * Device memory is allocated in slots of 2 MiB.  An allocation (a segment) is a set
 * of slots; the number of the first one is its name.
 *
 * What must hold:
 * - A segment stays while a process holds it (each has one bit) or a descriptor of
 *   it (pool_export_fd) is open anywhere; then its slots come back.  A segment of a pool
 *   of which a block was exported (pool_keep) stays while a descriptor of the pool is open.
 * - A process counts as alive exactly as long as its address space: it maps "state"
 *   through an open file description that has a lock on the process's byte, and
 *   closes the descriptor.  So exit, exec and SIGKILL release the lock, a fork does
 *   not inherit it (MADV_DONTFORK), and a program that closes all descriptors does
 *   not lose it.
 * - A kill at any instruction does no harm: the lock of the state is a robust mutex.
 *   One store makes a segment LIVE, after its slots were taken, and one store ends
 *   that, before they are given back; the next locker undoes anything in between, and
 *   gives back a LIVE segment that nobody holds any more.
 * - The files are made, remade and removed under a flock of the folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool_state.h"

unsigned int pool_devices(void)
{
	return sim_pool.shown;
}

unsigned int pool_devices_here(void)
{
	return sim_pool.state->devices;
}

unsigned int pool_physical(unsigned int device)
{
	return sim_pool.physical[device];
}

int pool_visible(unsigned int physical)
{
	for (unsigned int d = 0; d < sim_pool.shown; d++)
		if (sim_pool.physical[d] == physical)
			return (int)d;
	return -1;
}

int pool_reachable(unsigned int physical)
{
	unsigned int n = sim_options()->reach_shown ? sim_pool.shown : sim_pool.state->devices;

	for (unsigned int d = 0; d < n; d++)
		if (sim_pool.physical[d] == physical)
			return (int)d;
	return -1;
}

bool sim_knows(const CUmemLocation *location)
{
	return location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	       (location->id >= 0 && (unsigned int)location->id < sim_pool.shown);
}

int pool_told(int device)
{
	return device < (int)sim_pool.shown ? device : CU_DEVICE_INVALID;
}

size_t pool_memory(void)
{
	return sim_pool.state->memory;
}

uint32_t pool_client(void)
{
	return sim_pool.state->process[sim_pool.me].client;
}

uint32_t pool_pid(void)
{
	return sim_pool.state->process[sim_pool.me].pid;
}

uint64_t pool_cookie(void)
{
	return sim_pool.state->process[sim_pool.me].cookie;
}

/* ---- taking and giving ---- */

/* Finds the lowest run of @slots free slots of @device, else its lowest free slot. */
static size_t find_run(size_t start, size_t end, size_t slots)
{
	size_t run = 0, lowest = end;

	for (size_t i = start; i < end; i++) {
		if (sim_pool.state->slot[i].segment) {
			run = 0;
			continue;
		}
		if (lowest == end)
			lowest = i;
		if (++run == slots)
			return i + 1 - slots;
	}
	return lowest;
}

int pool_take(unsigned int device, size_t bytes, uint32_t *segment)
{
	struct pool_state *state = sim_pool.state;
	size_t per_device = sim_pool_slots(state), slots = bytes / SIM_PAGE, left = slots;
	struct pool_slot *taken;
	size_t first;

	device = pool_physical(device);
	sim_pool_lock();
	if (state->free_slots[device] < slots)
		sim_pool_reap();
	if (state->free_slots[device] < slots) {
		sim_pool_unlock();
		return -ENOMEM;
	}
	first = find_run(device * per_device, (device + 1) * per_device, slots);
	taken = &state->slot[first];
	taken->state = SEGMENT_TAKING;
	taken->slots = (uint32_t)slots;
	taken->device = device;
	taken->client = state->process[sim_pool.me].client;
	taken->base = 0;
	taken->exported = 0;
	taken->way = 0;
	memset(taken->holders, 0, sizeof(taken->holders));
	sim_pool_hold((uint32_t)first);
	atomic_signal_fence(memory_order_seq_cst);
	for (size_t i = first; left; i++) {
		if (state->slot[i].segment)
			continue;
		state->slot[i].segment = (uint32_t)first + 1;
		left--;
	}
	state->free_slots[device] -= slots;
	atomic_signal_fence(memory_order_seq_cst);
	taken->state = SEGMENT_LIVE;
	sim_pool_unlock();
	*segment = (uint32_t)first;
	return 0;
}

void pool_publish(uint32_t segment, uint64_t base, enum pool_way way)
{
	sim_pool_lock();
	sim_pool.state->slot[segment].serial = sim_pool.state->process[sim_pool.me].serial++;
	sim_pool.state->slot[segment].base = base;
	sim_pool.state->slot[segment].way = way;
	sim_pool_unlock();
}

void pool_unpublish(uint32_t segment)
{
	sim_pool_lock();
	sim_pool.state->slot[segment].base = 0;
	sim_pool_unlock();
}

void pool_drop(uint32_t segment)
{
	struct pool_slot *slot = &sim_pool.state->slot[segment];
	int fd = -1;

	sim_pool_lock();
	if (--sim_pool.holds[segment] == 0) {
		slot->holders[sim_pool.me / 64] &= ~(UINT64_C(1) << (sim_pool.me % 64));
		if (slot->exported && !sim_pool_held(slot))
			fd = sim_pool_open_state();
		sim_pool_maybe_give_back(segment, fd);
	}
	sim_pool_unlock();
	if (fd >= 0)
		close(fd);
}

void pool_keep(uint32_t segment, uint32_t number)
{
	sim_pool_lock();
	sim_pool_hold(segment);
	if (number)
		sim_pool.state->slot[segment].exported = number;
	sim_pool_unlock();
}

size_t pool_segment_bytes(uint32_t segment)
{
	return sim_pool.state->slot[segment].slots * SIM_PAGE;
}

unsigned int pool_segment_device(uint32_t segment)
{
	return sim_pool.state->slot[segment].device;
}

unsigned int pool_segment_serial(uint32_t segment)
{
	return sim_pool.state->slot[segment].serial;
}

/*
 * Maps @bytes at @offset of device memory to @to, as a second mapping of the same
 * pages, which needs neither a descriptor nor the file; only valgrind refuses that.
 */
static int map_run(size_t offset, size_t bytes, char *to)
{
	char path[sizeof(sim_pool.path) + 8];
	struct stat st;
	void *at;
	int fd;

	if (mremap(sim_pool.memory + offset, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
		   to) != MAP_FAILED)
		return 0;
	snprintf(path, sizeof(path), "%s/memory", sim_pool.path);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || st.st_dev != sim_pool.device || st.st_ino != sim_pool.memory_inode) {
		close(fd);
		return -ENOENT;
	}
	at = mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
		  (off_t)offset);
	close(fd);
	if (at == MAP_FAILED)
		return -errno;
	madvise(at, bytes, MADV_DONTFORK);
	madvise(at, bytes, MADV_DONTDUMP);
	return 0;
}

int pool_map(uint32_t segment, size_t offset, size_t bytes, void *at)
{
	struct pool_state *state = sim_pool.state;
	size_t skip = offset / SIM_PAGE, left = bytes / SIM_PAGE;
	char *to = at;

	/* The slots of a segment that we hold don't change, so this needs no lock. */
	for (size_t i = segment; left; i++) {
		size_t run;
		int error;

		if (state->slot[i].segment != segment + 1)
			continue;
		if (skip) {
			skip--;
			continue;
		}
		run = sim_pool_run_length(i, segment, left);
		error = map_run(i * SIM_PAGE, run * SIM_PAGE, to);
		if (error)
			return error;
		to += run * SIM_PAGE;
		left -= run;
		i += run - 1;
	}
	return 0;
}

void pool_usage(unsigned int device, size_t *free_bytes)
{
	sim_pool_lock();
	sim_pool_reap();
	*free_bytes = sim_pool.state->free_slots[pool_physical(device)] * SIM_PAGE;
	sim_pool_unlock();
}

/* ---- segments that others may open ---- */

static bool client_lives(uint32_t client, int fd)
{
	unsigned int process = client % POOL_PROCESSES;

	return client && sim_pool.state->process[process].client == client &&
	       (process == sim_pool.me || fd < 0 || sim_pool_bytes_locked(fd,
									  LOCK_PROCESS + process,
									  1));
}

bool pool_client_alive(uint32_t client)
{
	int fd = sim_pool_open_state();
	bool alive = client_lives(client, fd);

	if (fd >= 0)
		close(fd);
	return alive;
}

int pool_open(uint32_t client, uint64_t base, size_t bytes, enum pool_way way,
	      const uint64_t *cookie, uint32_t *segment)
{
	struct pool_state *state = sim_pool.state;
	size_t slots = state->devices * sim_pool_slots(state);
	int fd = sim_pool_open_state();
	int error = -ENOENT;

	sim_pool_lock();
	/* a pool that was imported outlives its process (measured) */
	if (way != POOL_BY_POINTER && !client_lives(client, fd)) {
		error = -ESRCH;
		goto out;
	}
	if (!base)
		goto out;
	if (cookie && state->process[client % POOL_PROCESSES].cookie != *cookie) {
		error = -EINVAL;
		goto out;
	}
	for (size_t i = 0; i < slots; i++) {
		struct pool_slot *slot = &state->slot[i];

		if (slot->state != SEGMENT_LIVE || slot->client != client || slot->base != base ||
		    slot->way != way)
			continue;
		if (slot->slots * SIM_PAGE != bytes)
			break;
		sim_pool_hold((uint32_t)i);
		*segment = (uint32_t)i;
		error = 0;
		break;
	}
out:
	sim_pool_unlock();
	if (fd >= 0)
		close(fd);
	return error;
}

/*
 * Descriptors.  The position in the file says what a descriptor names.  Its copies share the
 * position; a file that is opened again begins at 0.  Bits 0-1 are the kind.  For a segment, bits
 * 2-63 are its number.  For a pool, bits 2-5 are the device, 6-30 its number, 31-62 the client.
 */

/*
 * Returns the position of @fd if it is a descriptor of the state's file, else an error of
 * pool_import_fd().
 */
static int read_name(int fd, enum pool_name what, uint64_t *name)
{
	struct stat st;
	off_t position;

	if (fstat(fd, &st) || st.st_dev != sim_pool.device || st.st_ino != sim_pool.inode)
		return -EINVAL;
	position = lseek(fd, 0, SEEK_CUR);
	if (position <= 0 || (position & 3) != (off_t)what)
		return position == 0 ? -ENOENT : -EINVAL;
	*name = (uint64_t)position >> 2;
	return 0;
}

static bool write_name(int fd, enum pool_name what, uint64_t name)
{
	return lseek(fd, (off_t)(name << 2 | what), SEEK_SET) > 0;
}

int pool_export_mempool(uint32_t number, unsigned int device)
{
	int fd = sim_pool_open_state();

	if (fd < 0)
		return -ENOENT;
	/* the lock is the reference that keeps the memory of exported blocks; it ends with the last copy */
	if (sim_pool_byte_lock(fd, F_RDLCK, sim_pool_mempool_byte(pool_client(), number)) &&
	    write_name(fd, POOL_NAME_MEMPOOL,
		       device | (uint64_t)number << 4 | (uint64_t)pool_client() << 29))
		return fd;
	close(fd);
	return -EIO;
}

int pool_import_mempool(int fd, uint32_t *client, uint32_t *number, unsigned int *device)
{
	uint64_t name;
	int error = read_name(fd, POOL_NAME_MEMPOOL, &name);

	if (error)
		return error;
	*device = name & 15;
	*number = (uint32_t)(name >> 4) & ((1U << 25) - 1);
	*client = (uint32_t)(name >> 29);
	return *device < sim_pool.state->devices ? 0 : -EINVAL;
}

int pool_export_fd(uint32_t segment, enum pool_name what)
{
	int fd = sim_pool_open_state();

	if (fd < 0)
		return -ENOENT;
	/* The lock is the reference: copies of the descriptor share it, too. */
	if (!sim_pool_byte_lock(fd, F_RDLCK, LOCK_SEGMENT + segment) ||
	    !write_name(fd, what, segment)) {
		close(fd);
		return -EIO;
	}
	sim_pool_lock();
	sim_pool.state->slot[segment].exported = 1;
	sim_pool_unlock();
	return fd;
}

int pool_import_fd(int fd, uint32_t *segment)
{
	struct pool_state *state = sim_pool.state;
	size_t slots = state->devices * sim_pool_slots(state);
	uint64_t name;
	int error = read_name(fd, POOL_NAME_SEGMENT, &name);

	if (error)
		return error;
	if (name >= slots)
		return -EINVAL;
	error = -EINVAL;
	*segment = (uint32_t)name;
	sim_pool_lock();
	if (state->slot[*segment].state == SEGMENT_LIVE && state->slot[*segment].exported) {
		sim_pool_hold(*segment);
		error = 0;
	}
	sim_pool_unlock();
	return error;
}

bool pool_has_cookie(uint64_t cookie)
{
	struct pool_state *state = sim_pool.state;
	int fd = sim_pool_open_state();
	bool has = false;

	sim_pool_lock();
	for (unsigned int i = 0; i < POOL_PROCESSES && !has; i++)
		has = state->process[i].client && state->process[i].cookie == cookie &&
		      client_lives(state->process[i].client, fd);
	sim_pool_unlock();
	if (fd >= 0)
		close(fd);
	return has;
}

struct sim_event_core *pool_event(uint32_t index)
{
	return &sim_pool.events[index];
}

struct sim_event_core *pool_find_event(uint32_t pid, uint64_t cookie, uint32_t index, bool *known)
{
	struct pool_state *state = sim_pool.state;
	struct sim_event_core *core = NULL;
	int fd = sim_pool_open_state();

	*known = false;
	sim_pool_lock();
	for (unsigned int i = 0; i < POOL_PROCESSES; i++) {
		struct pool_process *process = &state->process[i];

		if (!process->client || process->pid != pid || process->cookie != cookie ||
		    !client_lives(process->client, fd))
			continue;
		*known = true;
		if (index < SIM_IPC_EVENTS)
			core = &sim_pool_events(i)[index];
		break;
	}
	sim_pool_unlock();
	if (fd >= 0)
		close(fd);
	return core;
}
