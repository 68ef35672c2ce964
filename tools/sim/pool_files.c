/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start and end of a process: makes, maps and removes the two files of device
 * memory, and claims a place in them.
 *
 * What must hold: a flock of the folder covers all of this; the lock that claims the
 * place ends with the process's address space (pool.c says how).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool_state.h"

static int open_folder(void)
{
	struct stat fresh, ours;
	int fd;

	for (int tries = 0; tries < 1000; tries++) {
		if (mkdir(sim_pool.path, 0700) && errno != EEXIST) {
			int error = errno;

			sim_warn("can't make %s: %s; set CULIMBO_SIM_DIR to a folder of your own",
				 sim_pool.path, strerror(error));
			return -error;
		}
		fd = open(sim_pool.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0) {
			if (errno == ENOENT)
				continue;
			sim_warn("can't open %s: %s", sim_pool.path, strerror(errno));
			return -errno;
		}
		while (flock(fd, LOCK_EX) && errno == EINTR)
			;
		/* The last process may have removed the folder while we waited. */
		if (fstat(fd, &ours) == 0 && stat(sim_pool.path, &fresh) == 0 &&
		    ours.st_ino == fresh.st_ino && ours.st_dev == fresh.st_dev) {
			if (ours.st_uid != geteuid() || (ours.st_mode & 022)) {
				sim_warn("%s belongs to somebody else or can be written by others",
					 sim_pool.path);
				close(fd);
				return -EPERM;
			}
			return fd;
		}
		close(fd);
	}
	return -ESTALE;
}

/* It unlocks first, because a child forked meanwhile may have a copy of the descriptor. */
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

/* Opens the state that living processes use; -ENOENT if there is no usable one. */
static int open_living(int folder, uint32_t *devices, uint64_t *memory)
{
	struct pool_state head;
	struct stat st;
	int fd = openat(folder, "state", O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return -ENOENT;
	if (sim_pool_bytes_locked(fd, LOCK_PROCESS, 2 * LOCK_SEGMENT) &&
	    pread(fd, &head, sizeof(head), 0) == (ssize_t)sizeof(head) && fstat(fd, &st) == 0 &&
	    head.magic == POOL_MAGIC && head.version == POOL_VERSION && head.devices >= 1 &&
	    head.devices <= SIM_DEVICES_MAX && head.memory >= SIM_PAGE &&
	    (uint64_t)st.st_size == sim_pool_state_size(head.devices, head.memory)) {
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
	if (ftruncate(fd, (off_t)sim_pool_state_size(devices, memory))) {
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
	sim_pool_count_free(state);
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
	sim_pool.memory_inode = st.st_ino;
	sim_pool.memory_bytes = devices * memory;
	sim_pool.memory = mmap(NULL, sim_pool.memory_bytes, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_NORESERVE, bytes_fd, 0);
	close(bytes_fd);
	if (sim_pool.memory == MAP_FAILED)
		return -errno;
	madvise(sim_pool.memory, sim_pool.memory_bytes, MADV_DONTFORK);
	madvise(sim_pool.memory, sim_pool.memory_bytes, MADV_DONTDUMP);
	sim_pool.state_bytes = sim_pool_state_size(devices, memory);
	sim_pool.state = mmap(NULL, sim_pool.state_bytes, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (sim_pool.state == MAP_FAILED) {
		int error = errno;

		sim_pool.state = NULL;
		munmap(sim_pool.memory, sim_pool.memory_bytes);
		return -error;
	}
	madvise(sim_pool.state, sim_pool.state_bytes, MADV_DONTFORK);
	sim_pool.holds = calloc(devices * (memory / SIM_PAGE), sizeof(*sim_pool.holds));
	if (!sim_pool.holds) {
		munmap(sim_pool.state, sim_pool.state_bytes);
		munmap(sim_pool.memory, sim_pool.memory_bytes);
		sim_pool.state = NULL;
		return -ENOMEM;
	}
	return 0;
}

/* Claims a process slot by its lock, on the description of @fd. */
static int claim(int fd)
{
	unsigned int i;

	for (i = 0; i < POOL_PROCESSES; i++)
		if (sim_pool_byte_lock(fd, F_WRLCK, LOCK_PROCESS + i))
			break;
	if (i == POOL_PROCESSES) {
		sim_warn("more than %d processes at a time", POOL_PROCESSES);
		return -EAGAIN;
	}
	sim_pool.me = i;
	return 0;
}

/*
 * Reads the list up to the first entry that is no device here, or is repeated, as the driver
 * does; UUIDs are not known.
 */
static void show_devices(unsigned int devices)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	unsigned int n;
	char *end;

	sim_pool.shown = 0;
	if (!list) {
		for (; sim_pool.shown < devices; sim_pool.shown++)
			sim_pool.physical[sim_pool.shown] = sim_pool.shown;
		return;
	}
	for (;; list = end + 1) {
		unsigned long number = strtoul(list, &end, 10);

		if (end == list || number >= devices || pool_visible((unsigned int)number) >= 0)
			break;
		sim_pool.physical[sim_pool.shown++] = (unsigned int)number;
		end += strspn(end, " ");
		if (*end != ',')
			break;
	}
	n = sim_pool.shown;
	for (unsigned int physical = 0; physical < devices; physical++)
		if (pool_visible(physical) < 0)
			sim_pool.physical[n++] = physical;
}

int pool_attach(void)
{
	const struct sim_options *options = sim_options();
	uint32_t devices = options->devices;
	uint64_t memory = options->memory;
	struct pool_process *process;
	int folder, fd, error;
	struct stat st;

	snprintf(sim_pool.path, sizeof(sim_pool.path), "%s", options->directory);
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
	sim_pool.device = st.st_dev;
	sim_pool.inode = st.st_ino;
	error = map_files(folder, fd, devices, memory);
	if (error)
		goto out_fd;
	if (made)
		init_state(sim_pool.state, devices, memory);
	show_devices(devices);
	error = claim(fd);
	if (error)
		goto out_map;

	sim_pool.events = sim_pool_events(sim_pool.me);
	sim_pool_lock();
	process = &sim_pool.state->process[sim_pool.me];
	if (process->client)
		sim_pool_bury(sim_pool.me, -1);
	madvise(sim_pool.events, SIM_POOL_EVENTS_BYTES, MADV_REMOVE);
	process->pid = (uint32_t)getpid();
	if (syscall(SYS_getrandom, &process->cookie, sizeof(process->cookie), GRND_NONBLOCK) !=
	    (ssize_t)sizeof(process->cookie))
		process->cookie = sim_now_ns() * UINT64_C(0x9e3779b97f4a7c15);
	process->cookie &= ~(uint64_t)0xff; /* a handle has a counter there */
	process->serial = 0;
	sim_pool.state->next_client++;
	process->client = sim_pool.state->next_client << 10 | sim_pool.me;
	sim_pool_reap();
	sim_pool_unlock();
	error = 0;
	goto out_fd;
out_map:
	munmap(sim_pool.state, sim_pool.state_bytes);
	munmap(sim_pool.memory, sim_pool.memory_bytes);
	sim_pool.state = NULL;
out_fd:
	close(fd); /* the mapping keeps the open file description, and so our lock */
out_folder:
	close_folder(folder);
	if (error)
		sim_warn("no device memory in %s: %s", sim_pool.path, strerror(-error));
	return error;
}

/*
 * Closes the descriptors of segments that this process still has open, which would outlive it
 * otherwise.
 */
static void close_exports(int state_fd)
{
	struct stat st;

	for (int fd = 0; fd < 4096; fd++)
		if (fd != state_fd && fstat(fd, &st) == 0 && st.st_dev == sim_pool.device &&
		    st.st_ino == sim_pool.inode)
			close(fd);
}

void pool_detach(void)
{
	int folder, fd;

	if (!sim_pool.state)
		return;
	folder = open_folder();
	sim_pool_lock();
	sim_pool_bury(sim_pool.me, -1);
	sim_pool_unlock();
	if (folder < 0)
		return;
	fd = sim_pool_open_state();
	if (fd >= 0) {
		if (sim_pool_bytes_locked(fd, LOCK_SEGMENT, LOCK_SEGMENT))
			close_exports(fd);
		/* Our own lock is on another open file description, so skip its byte. */
		if (!sim_pool_bytes_locked(fd, LOCK_PROCESS, sim_pool.me) &&
		    !sim_pool_bytes_locked(fd, LOCK_PROCESS + sim_pool.me + 1, 2 * LOCK_SEGMENT)) {
			remove_files(folder);
			rmdir(sim_pool.path);
		}
		close(fd);
	}
	close_folder(folder);
}
