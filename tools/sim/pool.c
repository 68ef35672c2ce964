/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory, shared by all processes of this user.
 *
 * Two files in one 0700 folder: "state" says who has what, "memory" is the
 * bytes, sparse, so that only what is touched costs anything.  Device memory
 * is handed out in slots of 2 MiB; an allocation (a segment) is a set of slots
 * and is named by the first of them.
 *
 * What must hold:
 * - A segment stays while a process holds it (one bit each) or a descriptor of
 *   it (pool_export_fd) is open anywhere; then its slots come back.
 * - A process lives exactly as long as its address space: it maps "state"
 *   through an open file description that has a lock on the process's byte,
 *   and closes the descriptor.  So exit, exec and SIGKILL let go of the lock,
 *   a fork does not inherit it (MADV_DONTFORK), and a program that closes all
 *   descriptors does not lose it.
 * - A kill at any instruction is survivable: the lock of the state is a robust
 *   mutex, and a segment is LIVE in one store, after its slots were taken and
 *   before they are given back; what is neither is undone by the next locker.
 * - Coming and going (making, remaking and removing the files) is under a
 *   flock of the folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

#define POOL_MAGIC UINT64_C(0x6c6f6f706d697363)
#define POOL_VERSION 1
#define POOL_PROCESSES 1024
#define HOLDER_WORDS (POOL_PROCESSES / 64)
#define LOCK_PROCESS ((off_t)1 << 40) /* one byte per process slot */
#define LOCK_SEGMENT ((off_t)1 << 41) /* one byte per segment that a descriptor names */

enum { SEGMENT_NONE, SEGMENT_TAKING, SEGMENT_LIVE, SEGMENT_GIVING };

struct pool_process {
	uint32_t client; /* 0: free */
	uint32_t pid;
	uint64_t cookie;
	uint32_t serial; /* of the next segment it publishes */
	uint32_t pad;
};

struct pool_slot {
	uint32_t segment; /* 1 + the first slot of its segment, 0: free */
	/* the rest is of a segment's first slot only */
	uint32_t state;
	uint32_t slots;
	uint32_t device;
	uint32_t client; /* whose it was, and under ... */
	uint32_t serial;
	uint64_t base; /* ... which address others may open it; 0: not */
	uint32_t exported; /* a descriptor of it was made */
	uint32_t pad;
	uint64_t holders[HOLDER_WORDS];
};

struct pool_state {
	uint64_t magic;
	uint32_t version;
	uint32_t devices;
	uint64_t memory;
	uint32_t next_client;
	uint32_t pad;
	pthread_mutex_t lock;
	uint64_t free_slots[SIM_DEVICES_MAX];
	struct pool_process process[POOL_PROCESSES];
	struct pool_slot slot[];
};

static struct {
	struct pool_state *state;
	size_t state_bytes;
	char *memory; /* all of it, as one mapping: where the others are made from */
	size_t memory_bytes;
	struct sim_event_core *events;
	uint32_t *holds; /* how often this process holds each segment: its bit is for all of them */
	unsigned int me;
	unsigned int shown, physical[SIM_DEVICES_MAX]; /* as CUDA_VISIBLE_DEVICES has it */
	char path[320];
	dev_t device;
	ino_t inode, memory_inode;
} pool;

/* ---- sizes ---- */

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static size_t slots_per_device(const struct pool_state *state)
{
	return state->memory / SIM_PAGE;
}

static size_t events_offset(unsigned int devices, size_t memory)
{
	return round_up(sizeof(struct pool_state) +
				devices * (memory / SIM_PAGE) * sizeof(struct pool_slot),
			65536);
}

#define EVENTS_BYTES (SIM_IPC_EVENTS * sizeof(struct sim_event_core))

static size_t state_size(unsigned int devices, size_t memory)
{
	return events_offset(devices, memory) + POOL_PROCESSES * EVENTS_BYTES;
}

/* ---- locks of bytes, on the description of @fd ---- */

static bool byte_lock(int fd, short type, off_t start)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = 1 };

	return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/* Whether a description other than @fd's has a lock in the range; unsure is yes. */
static bool bytes_locked(int fd, off_t start, off_t length)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length
	};

	if (length == 0)
		return false;
	return fcntl(fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

/* "state", opened anew: a description without locks. -1 when the folder is not ours any more. */
static int open_state(void)
{
	char path[sizeof(pool.path) + 8];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/state", pool.path);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) || st.st_dev != pool.device || st.st_ino != pool.inode) {
		close(fd);
		return -1;
	}
	return fd;
}

/* ---- segments; all of these under the lock of the state ---- */

static bool held(const struct pool_slot *segment)
{
	for (unsigned int i = 0; i < HOLDER_WORDS; i++)
		if (segment->holders[i])
			return true;
	return false;
}

static void count_free(struct pool_state *state)
{
	size_t per_device = slots_per_device(state);

	for (unsigned int d = 0; d < state->devices; d++) {
		uint64_t n = 0;

		for (size_t i = 0; i < per_device; i++)
			n += !state->slot[d * per_device + i].segment;
		state->free_slots[d] = n;
	}
}

/* How many slots from @i on, at most @most, are of the segment @first. */
static size_t run_length(size_t i, uint32_t first, size_t most)
{
	size_t end = (pool.state->slot[first].device + 1) * slots_per_device(pool.state);
	size_t run = 0;

	while (run < most && i + run < end && pool.state->slot[i + run].segment == first + 1)
		run++;
	return run;
}

static void give_back(uint32_t first)
{
	struct pool_slot *segment = &pool.state->slot[first];
	size_t end = (segment->device + 1) * slots_per_device(pool.state);
	size_t left = segment->slots;

	segment->state = SEGMENT_GIVING;
	atomic_signal_fence(memory_order_seq_cst);
	for (size_t i = first; i < end && left; i++) {
		size_t run = run_length(i, first, left);

		if (!run)
			continue;
		/* Emptied before it is free: the next owner must not lose what it writes. */
		madvise(pool.memory + i * SIM_PAGE, run * SIM_PAGE, MADV_REMOVE);
		left -= run;
		while (run--)
			pool.state->slot[i++].segment = 0;
		i--;
	}
	pool.state->free_slots[segment->device] += segment->slots - left;
	memset(segment->holders, 0, sizeof(segment->holders));
	segment->base = 0;
	segment->exported = 0;
	atomic_signal_fence(memory_order_seq_cst);
	segment->state = SEGMENT_NONE;
}

/* After a process died with the lock: every segment is LIVE or gone. */
static void repair(void)
{
	struct pool_state *state = pool.state;
	size_t slots = state->devices * slots_per_device(state);

	for (size_t i = 0; i < slots; i++) {
		uint32_t segment = state->slot[i].segment;

		if (!segment || state->slot[segment - 1].state == SEGMENT_LIVE)
			continue;
		madvise(pool.memory + i * SIM_PAGE, SIM_PAGE, MADV_REMOVE);
		state->slot[i].segment = 0;
	}
	for (size_t i = 0; i < slots; i++) {
		struct pool_slot *slot = &state->slot[i];

		if (slot->state == SEGMENT_TAKING || slot->state == SEGMENT_GIVING) {
			memset(slot->holders, 0, sizeof(slot->holders));
			slot->base = 0;
			slot->exported = 0;
			slot->state = SEGMENT_NONE;
		}
	}
	count_free(state);
}

static void lock_state(void)
{
	if (pthread_mutex_lock(&pool.state->lock) == EOWNERDEAD) {
		repair();
		pthread_mutex_consistent(&pool.state->lock);
	}
}

static void unlock_state(void)
{
	pthread_mutex_unlock(&pool.state->lock);
}

static void hold(uint32_t first)
{
	pool.holds[first]++;
	pool.state->slot[first].holders[pool.me / 64] |= UINT64_C(1) << (pool.me % 64);
}

static void maybe_give_back(uint32_t first, int fd)
{
	struct pool_slot *segment = &pool.state->slot[first];

	if (segment->state != SEGMENT_LIVE || held(segment))
		return;
	if (segment->exported && (fd < 0 || bytes_locked(fd, LOCK_SEGMENT + first, 1)))
		return;
	give_back(first);
}

/* Everything that process slot @process had; its number is free afterwards. */
static void bury(unsigned int process, int fd)
{
	struct pool_state *state = pool.state;
	size_t slots = state->devices * slots_per_device(state);
	uint32_t client = state->process[process].client;
	uint64_t bit = UINT64_C(1) << (process % 64);

	for (size_t i = 0; i < slots; i++) {
		struct pool_slot *segment = &state->slot[i];

		if (segment->state != SEGMENT_LIVE)
			continue;
		if (segment->client == client)
			segment->base = 0;
		if (segment->holders[process / 64] & bit) {
			segment->holders[process / 64] &= ~bit;
			maybe_give_back((uint32_t)i, fd);
		}
	}
	state->process[process].client = 0;
}

/* Takes back what dead processes had and what closed descriptors kept. */
static void reap(void)
{
	struct pool_state *state = pool.state;
	size_t slots = state->devices * slots_per_device(state);
	int fd = open_state();

	if (fd < 0)
		return;
	for (unsigned int i = 0; i < POOL_PROCESSES; i++)
		if (i != pool.me && state->process[i].client &&
		    !bytes_locked(fd, LOCK_PROCESS + i, 1))
			bury(i, fd);
	for (size_t i = 0; i < slots; i++)
		if (state->slot[i].state == SEGMENT_LIVE && state->slot[i].exported)
			maybe_give_back((uint32_t)i, fd);
	close(fd);
}

/* ---- coming and going ---- */

static int open_folder(void)
{
	struct stat fresh, ours;
	int fd;

	for (int tries = 0; tries < 1000; tries++) {
		if (mkdir(pool.path, 0700) && errno != EEXIST) {
			int error = errno;

			sim_warn("can't make %s: %s; set CULIMBO_SIM_DIR to a folder of your own",
				 pool.path, strerror(error));
			return -error;
		}
		fd = open(pool.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0) {
			if (errno == ENOENT)
				continue;
			sim_warn("can't open %s: %s", pool.path, strerror(errno));
			return -errno;
		}
		while (flock(fd, LOCK_EX) && errno == EINTR)
			;
		/* The last process may have removed it while we waited. */
		if (fstat(fd, &ours) == 0 && stat(pool.path, &fresh) == 0 &&
		    ours.st_ino == fresh.st_ino && ours.st_dev == fresh.st_dev) {
			if (ours.st_uid != geteuid() || (ours.st_mode & 022)) {
				sim_warn("%s belongs to somebody else or can be written by others", pool.path);
				close(fd);
				return -EPERM;
			}
			return fd;
		}
		close(fd);
	}
	return -ESTALE;
}

/* Unlocks first: a child forked meanwhile may have a copy of the descriptor. */
static void close_folder(int fd)
{
	flock(fd, LOCK_UN);
	close(fd);
}

static void remove_files(int folder)
{
	unlinkat(folder, "state", 0);
	unlinkat(folder, "memory", 0);
}

/* The state of living processes, or -ENOENT when there is none that can be used. */
static int open_living(int folder, uint32_t *devices, uint64_t *memory)
{
	struct pool_state head;
	struct stat st;
	int fd = openat(folder, "state", O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return -ENOENT;
	if (bytes_locked(fd, LOCK_PROCESS, 2 * LOCK_SEGMENT) &&
	    pread(fd, &head, sizeof(head), 0) == (ssize_t)sizeof(head) && fstat(fd, &st) == 0 &&
	    head.magic == POOL_MAGIC && head.version == POOL_VERSION && head.devices >= 1 &&
	    head.devices <= SIM_DEVICES_MAX && head.memory >= SIM_PAGE &&
	    (uint64_t)st.st_size == state_size(head.devices, head.memory)) {
		*devices = head.devices;
		*memory = head.memory;
		return fd;
	}
	close(fd);
	return -ENOENT;
}

static int make_new(int folder, uint32_t devices, uint64_t memory)
{
	int fd, bytes_fd, error;

	remove_files(folder);
	bytes_fd = openat(folder, "memory", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (bytes_fd < 0)
		return -errno;
	error = ftruncate(bytes_fd, (off_t)(devices * memory)) ? errno : 0;
	close(bytes_fd);
	if (error)
		return -error;
	fd = openat(folder, "state", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)state_size(devices, memory))) {
		error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

static void init_state(struct pool_state *state, uint32_t devices, uint64_t memory)
{
	pthread_mutexattr_t attr;

	state->devices = devices;
	state->memory = memory;
	state->version = POOL_VERSION;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&state->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	count_free(state);
	atomic_signal_fence(memory_order_seq_cst);
	state->magic = POOL_MAGIC;
}

static int map_files(int folder, int fd, uint32_t devices, uint64_t memory)
{
	int bytes_fd = openat(folder, "memory", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	struct stat st;

	if (bytes_fd < 0)
		return -errno;
	if (fstat(bytes_fd, &st)) {
		close(bytes_fd);
		return -EIO;
	}
	pool.memory_inode = st.st_ino;
	pool.memory_bytes = devices * memory;
	pool.memory = mmap(NULL, pool.memory_bytes, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_NORESERVE, bytes_fd, 0);
	close(bytes_fd);
	if (pool.memory == MAP_FAILED)
		return -errno;
	madvise(pool.memory, pool.memory_bytes, MADV_DONTFORK);
	madvise(pool.memory, pool.memory_bytes, MADV_DONTDUMP);
	pool.state_bytes = state_size(devices, memory);
	pool.state = mmap(NULL, pool.state_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			  fd, 0);
	if (pool.state == MAP_FAILED) {
		int error = errno;

		pool.state = NULL;
		munmap(pool.memory, pool.memory_bytes);
		return -error;
	}
	madvise(pool.state, pool.state_bytes, MADV_DONTFORK);
	pool.holds = calloc(devices * (memory / SIM_PAGE), sizeof(*pool.holds));
	if (!pool.holds) {
		munmap(pool.state, pool.state_bytes);
		munmap(pool.memory, pool.memory_bytes);
		pool.state = NULL;
		return -ENOMEM;
	}
	return 0;
}

/* Claims a process slot by its lock, on the description of @fd. */
static int claim(int fd)
{
	unsigned int i;

	for (i = 0; i < POOL_PROCESSES; i++)
		if (byte_lock(fd, F_WRLCK, LOCK_PROCESS + i))
			break;
	if (i == POOL_PROCESSES) {
		sim_warn("more than %d processes at a time", POOL_PROCESSES);
		return -EAGAIN;
	}
	pool.me = i;
	return 0;
}

/* Up to the first that is none of ours, or twice, as the driver reads it; UUIDs are none here. */
static void show_devices(unsigned int devices)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	char *end;

	pool.shown = 0;
	if (!list) {
		for (; pool.shown < devices; pool.shown++)
			pool.physical[pool.shown] = pool.shown;
		return;
	}
	for (;; list = end + 1) {
		unsigned long number = strtoul(list, &end, 10);

		if (end == list || number >= devices || pool_visible((unsigned int)number) >= 0)
			break;
		pool.physical[pool.shown++] = (unsigned int)number;
		end += strspn(end, " ");
		if (*end != ',')
			break;
	}
}

int pool_attach(void)
{
	const struct sim_options *options = sim_options();
	uint32_t devices = options->devices;
	uint64_t memory = options->memory;
	struct pool_process *process;
	int folder, fd, error;
	struct stat st;

	snprintf(pool.path, sizeof(pool.path), "%s", options->directory);
	folder = open_folder();
	if (folder < 0)
		return folder;
	bool made = false;
	fd = open_living(folder, &devices, &memory);
	if (fd < 0) {
		fd = make_new(folder, devices, memory);
		made = true;
	}
	error = fd;
	if (fd < 0)
		goto out_folder;
	error = fstat(fd, &st) ? -errno : 0;
	if (error)
		goto out_fd;
	pool.device = st.st_dev;
	pool.inode = st.st_ino;
	error = map_files(folder, fd, devices, memory);
	if (error)
		goto out_fd;
	if (made)
		init_state(pool.state, devices, memory);
	show_devices(devices);
	error = claim(fd);
	if (error)
		goto out_map;

	pool.events = (struct sim_event_core *)((char *)pool.state + events_offset(devices, memory)) +
		      (size_t)pool.me * SIM_IPC_EVENTS;
	lock_state();
	process = &pool.state->process[pool.me];
	if (process->client)
		bury(pool.me, -1);
	madvise(pool.events, EVENTS_BYTES, MADV_REMOVE);
	process->pid = (uint32_t)getpid();
	if (getrandom(&process->cookie, sizeof(process->cookie), GRND_NONBLOCK) !=
	    (ssize_t)sizeof(process->cookie))
		process->cookie = sim_now_ns() * UINT64_C(0x9e3779b97f4a7c15);
	process->serial = 0;
	pool.state->next_client++;
	process->client = pool.state->next_client << 10 | pool.me;
	reap();
	unlock_state();
	error = 0;
	goto out_fd;
out_map:
	munmap(pool.state, pool.state_bytes);
	munmap(pool.memory, pool.memory_bytes);
	pool.state = NULL;
out_fd:
	close(fd); /* the mapping keeps the description, and with it our lock */
out_folder:
	close_folder(folder);
	if (error)
		sim_warn("no device memory in %s: %s", pool.path, strerror(-error));
	return error;
}

/* Descriptors of segments that this process still has open would outlive it otherwise. */
static void close_exports(int state_fd)
{
	struct stat st;

	for (int fd = 0; fd < 4096; fd++)
		if (fd != state_fd && fstat(fd, &st) == 0 && st.st_dev == pool.device &&
		    st.st_ino == pool.inode)
			close(fd);
}

void pool_detach(void)
{
	int folder, fd;

	if (!pool.state)
		return;
	folder = open_folder();
	lock_state();
	bury(pool.me, -1);
	unlock_state();
	if (folder < 0)
		return;
	fd = open_state();
	if (fd >= 0) {
		if (bytes_locked(fd, LOCK_SEGMENT, LOCK_SEGMENT))
			close_exports(fd);
		/* Our own lock is on another description: look beside it. */
		if (!bytes_locked(fd, LOCK_PROCESS, pool.me) &&
		    !bytes_locked(fd, LOCK_PROCESS + pool.me + 1, 2 * LOCK_SEGMENT)) {
			remove_files(folder);
			rmdir(pool.path);
		}
		close(fd);
	}
	close_folder(folder);
}

unsigned int pool_devices(void)
{
	return pool.shown;
}

unsigned int pool_physical(unsigned int device)
{
	return pool.physical[device];
}

int pool_visible(unsigned int physical)
{
	for (unsigned int d = 0; d < pool.shown; d++)
		if (pool.physical[d] == physical)
			return (int)d;
	return -1;
}

size_t pool_memory(void)
{
	return pool.state->memory;
}

uint32_t pool_client(void)
{
	return pool.state->process[pool.me].client;
}

uint32_t pool_pid(void)
{
	return pool.state->process[pool.me].pid;
}

uint64_t pool_cookie(void)
{
	return pool.state->process[pool.me].cookie;
}

/* ---- taking and giving ---- */

/* The lowest run of @slots free ones of @device, else its lowest free slot. */
static size_t find_run(size_t start, size_t end, size_t slots)
{
	size_t run = 0, lowest = end;

	for (size_t i = start; i < end; i++) {
		if (pool.state->slot[i].segment) {
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
	struct pool_state *state = pool.state;
	size_t per_device = slots_per_device(state), slots = bytes / SIM_PAGE, left = slots;
	struct pool_slot *taken;
	size_t first;

	device = pool_physical(device);
	lock_state();
	if (state->free_slots[device] < slots)
		reap();
	if (state->free_slots[device] < slots) {
		unlock_state();
		return -ENOMEM;
	}
	first = find_run(device * per_device, (device + 1) * per_device, slots);
	taken = &state->slot[first];
	taken->state = SEGMENT_TAKING;
	taken->slots = (uint32_t)slots;
	taken->device = device;
	taken->client = state->process[pool.me].client;
	taken->base = 0;
	taken->exported = 0;
	memset(taken->holders, 0, sizeof(taken->holders));
	hold((uint32_t)first);
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
	unlock_state();
	*segment = (uint32_t)first;
	return 0;
}

void pool_publish(uint32_t segment, uint64_t base)
{
	lock_state();
	pool.state->slot[segment].serial = pool.state->process[pool.me].serial++;
	pool.state->slot[segment].base = base;
	unlock_state();
}

void pool_unpublish(uint32_t segment)
{
	lock_state();
	pool.state->slot[segment].base = 0;
	unlock_state();
}

void pool_drop(uint32_t segment)
{
	struct pool_slot *slot = &pool.state->slot[segment];
	int fd = -1;

	lock_state();
	if (--pool.holds[segment] == 0) {
		slot->holders[pool.me / 64] &= ~(UINT64_C(1) << (pool.me % 64));
		if (slot->exported && !held(slot))
			fd = open_state();
		maybe_give_back(segment, fd);
	}
	unlock_state();
	if (fd >= 0)
		close(fd);
}

size_t pool_segment_bytes(uint32_t segment)
{
	return pool.state->slot[segment].slots * SIM_PAGE;
}

unsigned int pool_segment_device(uint32_t segment)
{
	return pool.state->slot[segment].device;
}

unsigned int pool_segment_serial(uint32_t segment)
{
	return pool.state->slot[segment].serial;
}

/*
 * Maps @bytes at @offset of all memory to @to.  A second mapping of the same
 * pages needs no descriptor and no file any more; only valgrind refuses it.
 */
static int map_run(size_t offset, size_t bytes, char *to)
{
	char path[sizeof(pool.path) + 8];
	struct stat st;
	void *at;
	int fd;

	if (mremap(pool.memory + offset, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED)
		return 0;
	snprintf(path, sizeof(path), "%s/memory", pool.path);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || st.st_dev != pool.device || st.st_ino != pool.memory_inode) {
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
	struct pool_state *state = pool.state;
	size_t skip = offset / SIM_PAGE, left = bytes / SIM_PAGE;
	char *to = at;

	/* The slots of a segment that we hold don't change: no lock. */
	for (size_t i = segment; left; i++) {
		size_t run;
		int error;

		if (state->slot[i].segment != segment + 1)
			continue;
		if (skip) {
			skip--;
			continue;
		}
		run = run_length(i, segment, left);
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
	lock_state();
	reap();
	*free_bytes = pool.state->free_slots[pool_physical(device)] * SIM_PAGE;
	unlock_state();
}

/* ---- what others may open ---- */

static bool client_lives(uint32_t client, int fd)
{
	unsigned int process = client % POOL_PROCESSES;

	return client && pool.state->process[process].client == client &&
	       (process == pool.me || fd < 0 || bytes_locked(fd, LOCK_PROCESS + process, 1));
}

bool pool_client_alive(uint32_t client)
{
	int fd = open_state();
	bool alive = client_lives(client, fd);

	if (fd >= 0)
		close(fd);
	return alive;
}

int pool_open(uint32_t client, uint64_t base, size_t bytes, const uint64_t *cookie,
	      uint32_t *segment)
{
	struct pool_state *state = pool.state;
	size_t slots = state->devices * slots_per_device(state);
	int fd = open_state();
	int error = -ENOENT;

	lock_state();
	if (!client_lives(client, fd)) {
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

		if (slot->state != SEGMENT_LIVE || slot->client != client || slot->base != base)
			continue;
		if (slot->slots * SIM_PAGE != bytes)
			break;
		hold((uint32_t)i);
		*segment = (uint32_t)i;
		error = 0;
		break;
	}
out:
	unlock_state();
	if (fd >= 0)
		close(fd);
	return error;
}

int pool_export_fd(uint32_t segment)
{
	int fd = open_state();

	if (fd < 0)
		return -ENOENT;
	/* The lock is the reference, the position the name: copies share both. */
	if (!byte_lock(fd, F_RDLCK, LOCK_SEGMENT + segment) ||
	    lseek(fd, (off_t)segment * (off_t)SIM_PAGE, SEEK_SET) < 0) {
		close(fd);
		return -EIO;
	}
	lock_state();
	pool.state->slot[segment].exported = 1;
	unlock_state();
	return fd;
}

int pool_import_fd(int fd, uint32_t *segment)
{
	struct pool_state *state = pool.state;
	size_t slots = state->devices * slots_per_device(state);
	struct stat st;
	off_t position;
	int error = -EINVAL;

	if (fstat(fd, &st) || st.st_dev != pool.device || st.st_ino != pool.inode)
		return -EINVAL;
	position = lseek(fd, 0, SEEK_CUR);
	if (position < 0 || position % (off_t)SIM_PAGE || (size_t)position / SIM_PAGE >= slots)
		return -EINVAL;
	*segment = (uint32_t)((size_t)position / SIM_PAGE);
	lock_state();
	if (state->slot[*segment].state == SEGMENT_LIVE && state->slot[*segment].exported) {
		hold(*segment);
		error = 0;
	}
	unlock_state();
	return error;
}

struct sim_event_core *pool_event(uint32_t index)
{
	return &pool.events[index];
}

struct sim_event_core *pool_find_event(uint32_t pid, uint64_t cookie, uint32_t index, bool *known)
{
	struct pool_state *state = pool.state;
	struct sim_event_core *core = NULL;
	int fd = open_state();

	*known = false;
	lock_state();
	for (unsigned int i = 0; i < POOL_PROCESSES; i++) {
		struct pool_process *process = &state->process[i];

		if (!process->client || process->pid != pid || process->cookie != cookie ||
		    !client_lives(process->client, fd))
			continue;
		*known = true;
		if (index < SIM_IPC_EVENTS)
			core = (struct sim_event_core *)((char *)state +
							 events_offset(state->devices, state->memory)) +
			       (size_t)i * SIM_IPC_EVENTS + index;
		break;
	}
	unlock_state();
	if (fd >= 0)
		close(fd);
	return core;
}
