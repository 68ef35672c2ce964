/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, maps and grows regions: see region.h for the contract, layout.h for the rules. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/descriptor.h"
#include "shim/base/hot.h"
#include "shim/shm/map_place.h"
#include "shim/shm/region.h"

/* ------------------------------------------------------------------- locks */
static int posix_lock(struct cl_region *region, int cmd, short type, off_t byte, struct flock *lock)
{
	int err;

	/* the program may have closed our descriptor, and reused its number for another file */
	if (!cl_region_fd_intact(region))
		return -EBADF;
	*lock = (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	do
		err = fcntl(region->fd, cmd, lock) ? -errno : 0;
	while (err == -EINTR);
	return err == -EACCES ? -EAGAIN : err;
}
static int posix_try_lock(struct cl_region *region, off_t byte)
{
	struct flock lock;

	return posix_lock(region, F_SETLK, F_WRLCK, byte, &lock);
}
static int posix_unlock(struct cl_region *region, off_t byte)
{
	struct flock lock;

	return posix_lock(region, F_SETLK, F_UNLCK, byte, &lock);
}
static int posix_is_locked(struct cl_region *region, off_t byte)
{
	struct flock lock;
	int err = posix_lock(region, F_GETLK, F_WRLCK, byte, &lock);

	return err ? err : lock.l_type != F_UNLCK;
}
CL_HOT_SHARING bool cl_region_is_locked_by(const struct cl_region *region, off_t byte, uint32_t pid)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	int err;

	do
		err = fcntl(region->fd, F_GETLK, &lock);
	while (err && errno == EINTR);
	/* if the process has the next byte, too, the kernel shows both as one lock */
	return !err && lock.l_type == F_WRLCK && lock.l_start == byte && lock.l_len >= 1 &&
	       lock.l_len <= 2 && lock.l_pid > 0 && (uint32_t)lock.l_pid == pid;
}

const struct cl_lock_ops cl_posix_locks = { posix_try_lock, posix_unlock, posix_is_locked };

/* ------------------------------------------------------------------- names */
static const char finished[] = "exporter-", unfinished[] = "new-", its_socket[] = "serve-";

static void make_name(char name[16], const char *prefix, uint32_t file_id)
{
	snprintf(name, 16, "%s%06x", prefix, file_id & ((1u << CL_STAMP_FILE_BITS) - 1));
}

static uint32_t name_id(const char *name, const char *prefix)
{
	char again[16];
	uint32_t id;

	if (strncmp(name, prefix, strlen(prefix)) != 0 || strlen(name) != strlen(prefix) + 6)
		return 0;
	id = (uint32_t)strtoul(name + strlen(prefix), NULL, 16) & ((1u << CL_STAMP_FILE_BITS) - 1);
	make_name(again, prefix, id);
	return strcmp(again, name) == 0 ? id : 0;
}

void cl_region_name(char name[16], uint32_t file_id)
{
	make_name(name, finished, file_id);
}

uint32_t cl_region_name_id(const char *name)
{
	return name_id(name, finished);
}

void cl_region_unfinished_name(char name[16], uint32_t file_id)
{
	make_name(name, unfinished, file_id);
}

uint32_t cl_region_unfinished_id(const char *name)
{
	return name_id(name, unfinished);
}

void cl_region_socket_name(char name[16], uint32_t file_id)
{
	make_name(name, its_socket, file_id);
}

uint32_t cl_region_socket_id(const char *name)
{
	return name_id(name, its_socket);
}

/* ----------------------------------------------------------------- helpers */
/*
 * Not posix_fallocate(): where the file system can't allocate, glibc writes zeros instead, over
 * what another process may just have written there.
 */
static int allocate(const struct cl_region *region, uint64_t at, uint64_t length)
{
	int err;

	if (!cl_region_fd_intact(region))
		return -EBADF;
	do
		err = fallocate(region->fd, 0, (off_t)at, (off_t)length) ? -errno : 0;
	while (err == -EINTR);
	return err;
}

void cl_boot_id(uint8_t id[16])
{
	char text[40] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	int got = 0;

	memset(id, 0, 16);
	if (fd < 0)
		return;
	if (read(fd, text, sizeof text - 1) < 36)
		text[0] = 0;
	close(fd);
	for (const char *p = text; *p && got < 32; p++) {
		int v = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;

		if (v >= 0) {
			id[got / 2] |= (uint8_t)(got % 2 ? v : v << 4);
			got++;
		}
	}
}

void cl_known_boot_id(struct cl_known *known, uint8_t id[16])
{
	if (!known) {
		cl_boot_id(id);
		return;
	}
	/* acquire and release: a reader that sees the flag reads both words */
	if (!atomic_load_explicit(&known->has_boot_id, memory_order_acquire)) {
		uint64_t words[2];

		cl_boot_id((uint8_t *)words);
		/* what could not be read now (no descriptor) can be later */
		if (!words[0] && !words[1]) {
			memset(id, 0, 16);
			return;
		}
		atomic_store_explicit(&known->boot_id[0], words[0], memory_order_relaxed);
		atomic_store_explicit(&known->boot_id[1], words[1], memory_order_relaxed);
		atomic_store_explicit(&known->has_boot_id, true, memory_order_release);
	}
	for (int i = 0; i < 2; i++) {
		uint64_t word = atomic_load_explicit(&known->boot_id[i], memory_order_relaxed);

		memcpy(id + 8 * i, &word, 8);
	}
}

/*
 * Maps @size bytes of the file @fd, or of memory if that is -1, without touching any.  Returns
 * MAP_FAILED with errno if it cannot.  In a process that locks what it maps
 * (mlockall(MCL_FUTURE)), mmap() of the whole file would allocate all of it, the holes too.  So
 * this maps one page that nobody may access, unlocks it, and lets the mapping grow, which stays
 * unlocked then.  One page also fits any limit of locked memory.
 */
static void *map_alone(int fd, uint32_t number, size_t size)
{
	/* private, because an anonymous mapping that is shared cannot grow */
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, err;
	char *page = cl_map_away(number, CL_PAGE, PROT_NONE, flags | MAP_NORESERVE, fd), *at;

	if (page == MAP_FAILED)
		return MAP_FAILED;
	munlock(page, CL_PAGE);
	at = mremap(page, CL_PAGE, size, MREMAP_MAYMOVE);
	if (at == MAP_FAILED) {
		err = errno;
		munmap(page, CL_PAGE);
		errno = err;
		return MAP_FAILED;
	}
	if (mprotect(at, size, PROT_READ | PROT_WRITE)) {
		err = errno;
		munmap(at, size);
		errno = err;
		return MAP_FAILED;
	}
	/* a forked child starts without: it has none of its parent's holds */
	madvise(at, size, MADV_DONTFORK);
	madvise(at, size, MADV_DONTDUMP);
	return at;
}

int cl_region_map(struct cl_region *region)
{
	char *at = map_alone(region->fd, region->file_id, CL_FILE_SIZE);

	if (at == MAP_FAILED)
		return -errno;
	region->header = (struct cl_header *)(at + CL_AT_HEADER);
	region->word_pages = (_Atomic uint64_t *)(at + CL_AT_WORD_PAGES);
	region->ready_top = (struct cl_ready_top *)(at + CL_AT_READY_TOP);
	region->slot = (struct cl_slot *)(at + CL_AT_SLOTS);
	region->lock_free = (_Atomic uint64_t *)(at + CL_AT_LOCK_FREE);
	region->ready = (_Atomic uint64_t *)(at + CL_AT_READY);
	region->record = (struct cl_record *)(at + CL_AT_RECORDS);
	region->holders = (_Atomic uint64_t *)(at + CL_AT_HOLDERS);
	return 0;
}

void cl_region_unmap(struct cl_region *region)
{
	if (region->header)
		munmap(region->header, CL_FILE_SIZE);
	region->header = NULL;
}

/* --------------------------------------------------------------- in memory */
/* The report data (report_data.h) in the order of the layout, but without the imports, which lie before the findings. */
#define BEFORE_IMPORTS (CL_AT_IMPORTS - CL_AT_MODULES)
#define REPORT_DATA (BEFORE_IMPORTS + CL_FILE_SIZE - CL_AT_FINDINGS)

static int get_report_data(struct cl_region *region)
{
	if (!region->report_data) {
		region->report_data = map_alone(-1, 0, REPORT_DATA);
		/* else the first word that is written would take a huge page */
		if (region->report_data != MAP_FAILED)
			madvise(region->report_data, REPORT_DATA, MADV_NOHUGEPAGE);
	}
	return region->report_data == MAP_FAILED ? -ENOMEM : 0;
}

void cl_region_unmap_report_data(struct cl_region *region)
{
	if (region->report_data && region->report_data != MAP_FAILED)
		munmap(region->report_data, REPORT_DATA);
	region->report_data = NULL;
}

void *cl_region_at(const struct cl_region *region, uint64_t at)
{
	if (region->file_id || at < CL_AT_MODULES)
		return (char *)region->header + at;
	return region->report_data + (at < CL_AT_IMPORTS ? at - CL_AT_MODULES : at - CL_AT_FINDINGS + BEFORE_IMPORTS);
}

bool cl_region_device_uuid(const struct cl_region *region, unsigned int ordinal, uint8_t uuid[16])
{
	const struct cl_header *h = region->header;
	/* acquire: a reader that sees the count reads the UUIDs */
	uint32_t n = atomic_load_explicit(&h->devices, memory_order_acquire);

	/* CL_ANY_DEVICE stands for devices with unknown UUIDs */
	for (uint32_t i = CL_ANY_DEVICE + 1; i < n && i < CL_DEVICE_LIMBOS; i++)
		if (h->device[i].ordinal == ordinal + 1) {
			memcpy(uuid, h->device[i].uuid, sizeof h->device[i].uuid);
			return true;
		}
	return false;
}

/* ----------------------------------------------------------------- opening */
static int check(struct cl_region *region, uint32_t file_id, struct cl_known *known, const char **why)
{
	const struct cl_header *h = region->header;
	uint8_t boot[16], none[16] = { 0 };

	*why = "it has no culimbo header";
	if (memcmp(h->magic, CL_MAGIC, sizeof CL_MAGIC))
		return -EBADMSG;
	*why = "it was made by another version of culimbo";
	if (h->layout != CL_LAYOUT_VERSION)
		return -EPROTO;
	*why = "its sizes are not those of its layout version";
	if (h->header_size != CL_HEADER_SIZE || h->record_size != sizeof(struct cl_record) ||
	    h->slot_size != sizeof(struct cl_slot) || h->slots != CL_SLOTS ||
	    h->records != CL_RECORDS || h->chunk != CL_CHUNK || h->file_size != CL_FILE_SIZE)
		return -EBADMSG;
	*why = "its name is not the one it was made with";
	if (h->file_id != file_id)
		return -EBADMSG;
	*why = "it is a copy of the file that its exporter made";
	if (h->inode && h->inode != region->ino)
		return -EBADMSG;
	region->tag = h->tag;
	region->salt = h->salt;
	*why = "what tells its handles from others is damaged";
	if (h->stamp_check != cl_stamp_check(file_id, region->tag, region->salt))
		return -EBADMSG;
	*why = "it was made before this machine was last started";
	cl_known_boot_id(known, boot);
	/*
	 * No lock outlives a boot.  So an exporter that has its lock lives; its boot id differs
	 * because its container has its own (systemd-nspawn), or because it is damaged.
	 */
	if (memcmp(boot, none, 16) && memcmp(h->boot_id, none, 16) &&
	    memcmp(boot, h->boot_id, 16) && region->locks->is_locked(region, CL_LOCK_EXPORTER) != 1)
		return -ESTALE;
	*why = NULL;
	return 0;
}

static int open_at(struct cl_region *region, int dirfd, const char *name, uint32_t file_id,
		   struct cl_known *known, const char **why)
{
	const char *unsaid;
	struct stat st;
	uint64_t fixed_blocks = CL_AT_FIXED_END / 512;
	int err;

	if (!why)
		why = &unsaid;
	*why = NULL;
	*region = (struct cl_region){ .fd = -1, .locks = &cl_posix_locks, .file_id = file_id };
	/* O_NONBLOCK: open() would wait for ever on a fifo that somebody put there */
	region->fd = openat(dirfd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (region->fd < 0) {
		err = -errno;
		*why = err == -ELOOP ? "it is a symbolic link" : "it cannot be opened";
		return err == -ELOOP || err == -EISDIR || err == -ENXIO ? -EBADMSG : err;
	}
	region->fd = cl_fd_move_high(region->fd, known ? &known->room : NULL);
	err = fstat(region->fd, &st) ? -errno : 0;
	if (!err && (!S_ISREG(st.st_mode) || st.st_size != (off_t)CL_FILE_SIZE ||
		     (uint64_t)st.st_blocks < fixed_blocks)) {
		*why = "it is not a regular file of the right size";
		err = -EBADMSG;
	}
	if (!err && (st.st_uid != geteuid() || (st.st_mode & 07177))) {
		*why = "it is not this user's alone (owner, mode 0600)";
		err = -EPERM;
	}
	if (err)
		goto close_it;
	region->dev = st.st_dev;
	region->ino = st.st_ino;
	err = cl_region_map(region);
	if (err) {
		*why = "it cannot be mapped";
		goto close_it;
	}
	err = check(region, file_id, known, why);
	if (!err)
		return 0;
	cl_region_unmap(region);
close_it:
	close(region->fd);
	region->fd = -1;
	region->header = NULL;
	return err;
}

int cl_region_open_knowing(struct cl_region *region, int dirfd, uint32_t file_id,
			   struct cl_known *known, const char **why)
{
	char name[16];

	cl_region_name(name, file_id);
	return open_at(region, dirfd, name, file_id, known, why);
}

int cl_region_open(struct cl_region *region, int dirfd, uint32_t file_id, const char **why)
{
	return cl_region_open_knowing(region, dirfd, file_id, NULL, why);
}

int cl_region_open_unfinished(struct cl_region *region, int dirfd, uint32_t file_id)
{
	char name[16];

	make_name(name, unfinished, file_id);
	return open_at(region, dirfd, name, file_id, NULL, NULL);
}

int cl_region_open_path(struct cl_region *region, const char *path, uint32_t file_id,
			struct cl_known *known, const char **why)
{
	return open_at(region, AT_FDCWD, path, file_id, known, why);
}

void cl_region_close_descriptor(struct cl_region *region)
{
	if (cl_region_fd_intact(region))
		close(region->fd);
	region->fd = -1;
}

void cl_region_close(struct cl_region *region)
{
	cl_region_unmap(region);
	/* if the program closed our descriptor, the number may be that of a file of its own */
	if (region->fd >= 0 && cl_region_fd_intact(region))
		close(region->fd);
	region->fd = -1;
}

static bool is_file_of(const struct cl_region *region, const struct stat *st)
{
	return st->st_dev == region->dev && st->st_ino == region->ino;
}

CL_HOT_SHARING bool cl_region_stat(const struct cl_region *region, struct stat *st)
{
	return region->fd >= 0 && fstat(region->fd, st) == 0 && is_file_of(region, st);
}

bool cl_region_fd_intact(const struct cl_region *region)
{
	struct stat st;

	return cl_region_stat(region, &st);
}

int cl_region_fd_restore(struct cl_region *region, int dirfd)
{
	char name[16];
	struct stat st;
	int fd;

	cl_region_name(name, region->file_id);
	fd = openat(dirfd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !is_file_of(region, &st)) {
		close(fd);
		return -ESTALE;
	}
	region->fd = cl_fd_move_high(fd, NULL);
	return 0;
}

/* ----------------------------------------------------------------- growing */
int cl_region_grow(struct cl_region *region)
{
	/* relaxed: only the exporter changes it, under its own lock */
	uint32_t n = atomic_load_explicit(&region->header->record_chunks, memory_order_relaxed);
	int err = 0;

	if (n >= CL_CHUNKS)
		return -ENFILE;
	if (n % CL_READY_PAGE_CHUNKS == 0)
		err = allocate(region, CL_AT_READY + (uint64_t)n * CL_CHUNK / 8u, CL_PAGE);
	if (!err)
		err = allocate(region, CL_AT_RECORDS + (uint64_t)n * CL_CHUNK * sizeof(struct cl_record),
			       (uint64_t)CL_CHUNK * sizeof(struct cl_record));
	if (err)
		return err;
	/* release: a reader that sees the count may touch the chunk */
	atomic_store_explicit(&region->header->record_chunks, n + 1, memory_order_release);
	return 0;
}

int cl_region_get_word(struct cl_region *region, unsigned int word, uint32_t record)
{
	uint32_t chunk = record / CL_CHUNK;
	int err;

	err = allocate(region,
		       CL_AT_HOLDERS + ((uint64_t)word * CL_RECORDS + (uint64_t)chunk * CL_CHUNK) * 8u,
		       CL_PAGE);
	if (err)
		return err;
	/* release: a reader that sees the bit may touch the page */
	atomic_fetch_or_explicit(&region->word_pages[word * (CL_CHUNKS / 64) + chunk / 64],
				 1ull << (chunk % 64), memory_order_release);
	return 0;
}

int cl_region_get(struct cl_region *region, uint64_t at, uint64_t length)
{
	return region->file_id ? allocate(region, at, length) : get_report_data(region);
}

/* ---------------------------------------------------------------- removing */
static int unlink_named(const struct cl_region *region, int dirfd, const char *prefix)
{
	char name[16], socket[16];
	struct stat st;

	make_name(name, prefix, region->file_id);
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (!is_file_of(region, &st))
		return -ESTALE;
	cl_region_socket_name(socket, region->file_id);
	unlinkat(dirfd, socket, 0);
	return unlinkat(dirfd, name, 0) ? -errno : 0;
}

int cl_region_unlink(const struct cl_region *region, int dirfd)
{
	int err = unlink_named(region, dirfd, finished);

	return err == -ENOENT ? unlink_named(region, dirfd, unfinished) : err;
}

bool cl_region_has_no_name(const struct cl_region *region)
{
	struct stat st;

	return region->fd >= 0 && !fstat(region->fd, &st) && is_file_of(region, &st) && !st.st_nlink;
}

int cl_region_end(const struct cl_region *region, int dirfd)
{
	char name[16], ending[16];
	struct stat st;

	make_name(name, finished, region->file_id);
	make_name(ending, unfinished, region->file_id);
	/* if it is killed here, a gc removes the file; if the rename fails, the moment is short */
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && is_file_of(region, &st))
		renameat2(dirfd, name, dirfd, ending, RENAME_NOREPLACE);
	return cl_region_unlink(region, dirfd);
}
