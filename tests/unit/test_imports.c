/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: what is still true when the driver has opened is asked once, and of
 * the right file.
 *
 * Promises 1 and 2.  The driver is a fake one (fake_driver.h) in whose open
 * something happens: the exporter dies, the program closes our descriptor, or
 * somebody takes us for dead.  The exporter is a real process.
 */
#include "tests/unit/fake_driver.h"

#include <sys/prctl.h>
#include <sys/stat.h>

#include "shim/driver/context.h"
#include "shim/importer/peers.h"
#include "tests/namespaces/own_mounts.h"

enum { SOON = 5000 };

/* ----------------------------------------------------------------- the exporter */
static struct {
	pid_t pid;
	int line;
	CUipcMemHandle handle;
	uint32_t file_id, record;
} other;

enum { FREE = 'f', AGAIN = 'a' };
static unsigned int addresses; /* that it does not export */
static const char *dir_is;     /* CULIMBO_DIR; NULL: the tests' folder */

/* What its file is to be called, out of which random number; 0: as chance has it. */
static uint32_t wanted_id;
ssize_t __real_getrandom(void *to, size_t size, unsigned int flags);
ssize_t __wrap_getrandom(void *to, size_t size, unsigned int flags);
ssize_t __wrap_getrandom(void *to, size_t size, unsigned int flags)
{
	if (!wanted_id || size != sizeof wanted_id)
		return __real_getrandom(to, size, flags);
	memcpy(to, &wanted_id, size);
	return (ssize_t)size;
}

/* Whenever a name is looked at, another file has come to have it. */
static bool names_pass_on;
int __real_fstatat(int dirfd, const char *name, struct stat *st, int flags);
int __wrap_fstatat(int dirfd, const char *name, struct stat *st, int flags);
int __wrap_fstatat(int dirfd, const char *name, struct stat *st, int flags)
{
	int result = __real_fstatat(dirfd, name, st, flags);

	st->st_ino += names_pass_on;
	return result;
}

/* Exports a block; frees it when it is told to, if nobody holds it, and exports what is there then. */
static void exporter(int line)
{
	CUdeviceptr p;
	char byte;

	start_with(0, CL_COLLECTOR_INLINE);
	if (dir_is)
		cl_options.dir.text = dir_is;
	for (unsigned int i = 0; i < addresses; i++)
		fake_alloc(2048, CONTEXT_A);
	p = fake_alloc(2048, CONTEXT_A);
	other.handle = export_block(p);
	CHECK_EQUAL(write(line, &other.handle, sizeof other.handle), sizeof other.handle);
	while (read(line, &byte, 1) > 0) {
		if (byte == AGAIN) {
			fake_alloc_again(p, CONTEXT_A);
			other.handle = export_block(p);
			CHECK_EQUAL(write(line, &other.handle, sizeof other.handle), sizeof other.handle);
			continue;
		}
		CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
		byte = (char)frees_of(p);
		CHECK_EQUAL(write(line, &byte, 1), 1);
	}
	_exit(cl_process_end(0));
}

static void start(void)
{
	struct cl_stamp stamp;

	other.pid = fork_with_line(&other.line);
	if (!other.pid)
		exporter(other.line);
	CHECK_EQUAL(read(other.line, &other.handle, sizeof other.handle), sizeof other.handle);
	stamp = stamp_of(&other.handle);
	other.file_id = stamp.file_id;
	other.record = stamp.record;
	start_with(0, CL_COLLECTOR_INLINE);
	if (dir_is)
		cl_options.dir.text = dir_is;
}

/* Whether the driver got it back. */
static bool other_frees(void)
{
	char freed = FREE;

	CHECK_EQUAL(write(other.line, &freed, 1), 1);
	CHECK_EQUAL(read(other.line, &freed, 1), 1);
	return freed != 0;
}

/* The driver has given the address to a new block, which has the same handle. */
static CUipcMemHandle other_exports_again(void)
{
	CUipcMemHandle handle;
	char again = AGAIN;

	CHECK_EQUAL(write(other.line, &again, 1), 1);
	CHECK_EQUAL(read(other.line, &handle, sizeof handle), sizeof handle);
	CHECK(!memcmp(&handle, &other.handle, 56) && memcmp(&handle, &other.handle, 64));
	return handle;
}

static void finish(void)
{
	int status;

	close(other.line);
	CHECK(waitpid(other.pid, &status, 0) == other.pid);
}

/* Its file, as we have it open. */
static struct cl_region *peer(void)
{
	bool own;
	const struct cl_region *region = cl_peer_has_open(other.file_id, &own);

	CHECK(region && !own);
	return (struct cl_region *)(uintptr_t)region;
}

/* Our slot there, or -1. */
static int slot(void)
{
	const struct cl_region *region = peer();

	for (unsigned int i = 0; i < region->header->slots_used; i++)
		if (region->slot[i].claim & CL_SLOT_CLAIMED && region->slot[i].who.pid == (uint32_t)getpid())
			return (int)i;
	return -1;
}

/* The process at the other end of a fork sees what locks we have. */
static bool is_locked_by_us(uint32_t file_id, off_t byte)
{
	int fd = -1, status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		char path[128], name[16];
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };

		cl_region_name(name, file_id);
		snprintf(path, sizeof path, "%s/%s", folder, name);
		fd = open(path, O_RDWR | O_CLOEXEC);
		CHECK(fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0);
		_exit(lock.l_type == F_WRLCK && lock.l_pid == getppid() ? 42 : 43);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status) == 42;
}

static bool slot_is_locked(void)
{
	int ours = slot();

	CHECK(ours >= 0);
	return is_locked_by_us(other.file_id, CL_LOCK_SLOT(ours));
}

/* ---------------------------------------------------------- amid the driver's open */
static void (*amid)(void);
static CUresult open_amid(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	CUresult result = fake_open(p, handle, flags);

	amid();
	return result;
}
static CUresult import(CUdeviceptr *p, void (*what)(void))
{
	CUresult result;

	amid = what;
	errno = ENOTUNIQ; /* the program's */
	result = cl_memory_import(p, other.handle, 0, open_amid);
	CHECK_EQUAL(errno, ENOTUNIQ);
	return result;
}

static void nothing(void)
{
}

static void exporter_dies(void)
{
	CHECK(!kill(other.pid, SIGKILL));
	CHECK(waitpid(other.pid, NULL, 0) == other.pid);
}

static void descriptor_goes(void)
{
	CHECK(!close(peer()->fd));
}

/* The number is a file of the program's, where another process has a lock of the same shape. */
static pid_t stranger;
static void number_is_anothers(void)
{
	int ours = peer()->fd, fd, ends[2];
	char path[128], byte;

	snprintf(path, sizeof path, "%s/programs-own", folder);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !pipe(ends));
	stranger = fork();
	CHECK(stranger >= 0);
	if (!stranger) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(!fcntl(fd, F_SETLK, &lock));
		CHECK_EQUAL(write(ends[1], "", 1), 1);
		pause();
	}
	CHECK_EQUAL(read(ends[0], &byte, 1), 1);
	CHECK_EQUAL(dup3(fd, ours, O_CLOEXEC), ours);
	close(fd);
}
static void number_is_anothers_and_exporter_dies(void)
{
	number_is_anothers();
	exporter_dies();
}
static void stranger_goes(void)
{
	CHECK(!kill(stranger, SIGKILL));
	CHECK(waitpid(stranger, NULL, 0) == stranger);
}

/* As a reaper does that sees our lock gone and cannot look at our /proc. */
static void taken_for_dead(void)
{
	struct cl_region *region = peer();
	unsigned int mine = (unsigned int)slot();

	descriptor_goes();
	cl_record_clear_slot(region, mine, NULL, NULL);
	atomic_store(&region->slot[mine].claim, region->slot[mine].claim & ~0xffull);
}
static void taken_for_dead_and_freed(void)
{
	taken_for_dead();
	CHECK(other_frees());
}

/* ------------------------------------------------------------------------ tests */
IN_A_CHILD(an_exporter_that_dies_amid_an_open_refuses_it)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, exporter_dies), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(fake.open_calls, 1);
	CHECK_EQUAL(fake.close_calls, 1);
	CHECK_EQUAL(cl_count_get(stale_refused), 1);
	CHECK(!cl_record_held(peer(), other.record));
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS); /* (the fake one says so of any) */
	CHECK_EQUAL(cl_count_get(closes), 0);
}

IN_A_CHILD(a_lock_is_had_again_that_went_amid_an_open)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	CHECK(slot_is_locked());
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(import(&p, descriptor_goes), CUDA_SUCCESS);
	CHECK(slot_is_locked());
	CHECK(!other_frees());
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	finish();
}

IN_A_CHILD(a_file_of_the_programs_in_its_place_is_not_taken_for_it)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, number_is_anothers), CUDA_SUCCESS);
	CHECK(slot_is_locked());
	CHECK(!other_frees());
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	stranger_goes();
	finish();
}

IN_A_CHILD(a_strangers_lock_is_not_the_exporters_life)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, number_is_anothers_and_exporter_dies), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(fake.close_calls, 1);
	CHECK_EQUAL(cl_count_get(stale_refused), 1);
	stranger_goes();
}

IN_A_CHILD(who_was_taken_for_dead_amid_an_open_holds_again)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, taken_for_dead), CUDA_SUCCESS);
	CHECK(slot() >= 0 && slot_is_locked());
	CHECK(cl_record_held(peer(), other.record));
	CHECK(!peer()->record[other.record].pinned);
	CHECK(!other_frees());
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

IN_A_CHILD(what_was_given_away_meanwhile_is_refused)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, taken_for_dead_and_freed), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(fake.close_calls, 1);
	CHECK_EQUAL(cl_count_get(stale_refused), 1);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* What it has open still is one thing, what it opens now another: of one record, one address, one handle. */
IN_A_CHILD(who_was_taken_for_dead_opens_what_has_the_record_now)
{
	CUipcMemHandle stale, now;
	CUdeviceptr p, q;

	start();
	stale = other.handle;
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	taken_for_dead();
	CHECK(other_frees());
	now = other_exports_again();
	CHECK_EQUAL(import(&q, nothing), CUDA_ERROR_INVALID_VALUE);
	other.handle = now;
	CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
	CHECK_EQUAL(q, p);
	CHECK(cl_record_held(peer(), other.record));
	CHECK(!peer()->record[other.record].pinned);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK(cl_record_held(peer(), other.record));
	other.handle = stale;
	CHECK_EQUAL(import(&p, nothing), CUDA_ERROR_INVALID_VALUE);
	CHECK(!other_frees());
	CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* Of 16,384 numbers that files of a directory have, one comes again at times. */
static uint32_t start_as(uint32_t random)
{
	wanted_id = random;
	start();
	wanted_id = 0;
	return other.file_id;
}

IN_A_CHILD(a_later_exporter_of_the_same_number_is_another)
{
	CUdeviceptr p, q;

	for (int round = 0; round < 4; round++) {
		bool stays_open = round & 1, goes_on = round & 2;
		uint32_t id;

		addresses = 0;
		id = start_as(0x12345);
		if (goes_on) { /* to the next generation of its record */
			CHECK(other_frees());
			other.handle = other_exports_again();
		}
		CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
		if (!stays_open)
			CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		finish();
		addresses = 1;
		CHECK_EQUAL(start_as(0x12345), id);
		CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		CHECK(slot() >= 0 && slot_is_locked());
		CHECK(!other_frees());
		if (stays_open)
			CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		CHECK(cl_record_held(peer(), other.record));
		CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
		CHECK(!cl_record_held(peer(), other.record));
		finish();
	}
	CHECK_EQUAL(cl_count_get(stale_refused) + cl_count_get(unmanaged_imports), 0);
}

IN_A_CHILD(what_is_stale_is_refused_whoever_comes_to_have_the_number)
{
	CUdeviceptr p;

	start();
	CHECK(other_frees());
	exporter_dies();
	names_pass_on = true;
	CHECK_EQUAL(import(&p, nothing), CUDA_ERROR_INVALID_VALUE);
	names_pass_on = false;
	CHECK_EQUAL(cl_count_get(stale_refused), 1);
	CHECK_EQUAL(cl_count_get(unmanaged_imports), 0);
}

/*
 * Two containers with folders of their own, each its own file system: of an exporter there nothing
 * can be known.  Some are taken for ended ones of here by chance; they are to be very few.
 */
IN_A_CHILD(hardly_any_handle_from_elsewhere_seems_to_be_of_an_ended_exporter)
{
	enum { CONTAINERS = 100, EXPORTERS = 200 };
	unsigned int wrong = 0;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	for (uint64_t container = 0; container < CONTAINERS; container++) {
		struct stat st = { .st_dev = 0x1000 + container, .st_ino = 2 };
		uint64_t place = cl_place_named(&st, "culimbo-0");

		for (uint32_t i = 0; i < EXPORTERS; i++) {
			struct cl_stamp stamp = { .file_id = cl_stamp_file_id(place, i * 2654435761u >> 8) };

			stamp.tag = cl_stamp_tag(place, stamp.file_id);
			wrong += cl_self_sight(stamp) == CL_HERE;
		}
	}
	printf("# %u of %u\n", wrong, CONTAINERS * EXPORTERS);
	/* two places are compared: 2.4 are to be expected; with 8 bits 156 */
	CHECK(wrong <= 12);
}

/* By whatever path it is seen, and when it was taken away; not by who does not see it any more. */
IN_A_CHILD(a_handle_of_here_is_told_by_any_path)
{
	char inside[96], roundabout[200], link[96];
	struct cl_stamp stamp, elsewhere;
	struct cl_places places;
	struct stat st;

	start_with(0, CL_COLLECTOR_INLINE);
	snprintf(inside, sizeof inside, "%s/inside-%d", folder, (int)getpid());
	snprintf(link, sizeof link, "%s/link-%d", folder, (int)getpid());
	CHECK(!mkdir(inside, 0700) && !symlink(folder, link) && !stat(inside, &st));
	cl_options.dir.text = inside;
	CHECK(cl_self_start());
	stamp.file_id = cl_stamp_file_id(cl_place_of(&st), 0x2345);
	stamp.tag = cl_stamp_tag(cl_place_of(&st), stamp.file_id);
	elsewhere = stamp;
	elsewhere.tag ^= 1;
	CHECK_EQUAL(cl_self_sight(stamp), CL_HERE);
	CHECK_EQUAL(cl_self_sight(elsewhere), CL_ELSEWHERE);
	snprintf(roundabout, sizeof roundabout, "%s/inside-%d//", link, (int)getpid());
	cl_options.dir.text = roundabout;
	CHECK_EQUAL(cl_self_sight(stamp), CL_HERE);
	/* it is taken away: what was exported there has ended */
	cl_options.dir.text = inside;
	CHECK(!rmdir(inside));
	CHECK_EQUAL(cl_self_sight(stamp), CL_HERE);
	CHECK_EQUAL(cl_self_sight(elsewhere), CL_ELSEWHERE);
	/* so it has where it is made again by its name, if that is what its stamps say */
	places = cl_self_find_places();
	stamp.file_id = cl_stamp_file_id(places.named, 0x2345);
	stamp.tag = cl_stamp_tag(places.named, stamp.file_id);
	CHECK(!mkdir(inside, 0700));
	CHECK_EQUAL(cl_self_sight(stamp), CL_HERE);
	cl_options.dir.text = "/nowhere/at/all";
	CHECK_EQUAL(cl_self_sight(stamp), CL_OUT_OF_SIGHT);
	CHECK(!rmdir(inside) && !unlink(link));
}

/* What is not known goes to the driver as it came, with its stamp. */
static CUresult open_as_it_came(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	CHECK(stamp_of(&handle).file_id == other.file_id);
	memset(handle.reserved + 56, 0, 8);
	return fake_open(p, handle, flags);
}

/* What is exported with another CULIMBO_DIR opens as bare, though its pid is that of no process. */
IN_A_CHILD(what_is_exported_elsewhere_is_as_bare)
{
	char inside[96];
	CUdeviceptr p;

	start();
	exporter_dies();
	snprintf(inside, sizeof inside, "%s/inside-%d", folder, (int)getpid());
	CHECK(!mkdir(inside, 0700));
	cl_options.dir.text = inside;
	CHECK_EQUAL(cl_memory_import(&p, other.handle, 0, open_as_it_came), CUDA_SUCCESS);
	CHECK_EQUAL(cl_count_get(unmanaged_imports), 1);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	cl_process_end(0); /* its own file is there, with its notes */
	CHECK(!rmdir(inside));
}

/*
 * A daemon that gives up root's rights, or takes another user's for a moment: by then it sees
 * neither the files of root's exporters nor, in /proc, what they map.
 */
IN_A_CHILD(who_is_another_user_now_says_what_is_not_protected)
{
	enum { NOBODY = 65534 };
	CUdeviceptr p;

	if (geteuid())
		CHILD_SKIP("only root can be two users");
	if (own_mounts() || mount("shm", "/dev/shm", "tmpfs", 0, "mode=1777"))
		CHILD_SKIP("no /dev/shm of its own may be had");
	CHECK((!mkdir(folder, 0700) || errno == EEXIST) && !chmod(folder, 0777));
	dir_is = "";
	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_count_get(unmanaged_imports), 0);
	start(); /* one that it has not met */
	CHECK(!seteuid(NOBODY));
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(cl_memory_import(&p, other.handle, 0, open_as_it_came), CUDA_SUCCESS);
		CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	}
	CHECK_EQUAL(cl_count_get(unmanaged_imports), 2);
	CHECK(!seteuid(0));
	CHECK_EQUAL(logged("began to share as user 0 and is user 65534 now"), 1);
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	CHECK(cl_record_held(peer(), other.record));
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_count_get(unmanaged_imports), 2);
	CHECK_EQUAL(logged("culimbo["), 1);
	finish();
}

/* Opened and closed in any order of its mappings, and while another context has it. */
IN_A_CHILD(a_hold_lasts_as_long_as_any_of_its_mappings)
{
	CUdeviceptr p, q;

	start();
	for (int round = 0; round < 3; round++) {
		CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
		fake_stack[fake_depth] = CONTEXT_B;
		CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		CHECK_EQUAL(p, q);
		if (round == 1) /* the first one goes with its context */
			cl_context_end_done(CONTEXT_A, 0, true);
		else
			CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		CHECK(cl_record_held(peer(), other.record));
		if (round == 2) /* what is left may be opened on */
			CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		for (int i = 0; i <= (round == 2); i++) {
			CHECK(cl_record_held(peer(), other.record));
			CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
		}
		CHECK(!cl_record_held(peer(), other.record));
		fake_stack[fake_depth] = CONTEXT_A;
	}
	finish();
}

static CUresult no_device(CUdevice *device)
{
	driver_entered();
	*device = 7;
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* What comes to the address of a context that has ended is asked for anew. */
IN_A_CHILD(the_device_is_asked_once_for_a_context)
{
	CUcontext ctx;
	CUdevice device;
	uint32_t asked;
	bool primary;

	start();
	CHECK(cl_self_start());
	asked = fake.device_calls;
	for (int i = 0; i < 3; i++) {
		CHECK(cl_context_current(&ctx, &device, &primary));
		CHECK(ctx == CONTEXT_A);
		CHECK_EQUAL(device, 0);
		CHECK_EQUAL(fake.device_calls, asked + 1);
	}
	cl_context_end_begin(CONTEXT_A, 0);
	fake.device = 3;
	/* (another thread may have another there before the end is known) */
	CHECK(cl_context_current(&ctx, &device, &primary));
	CHECK_EQUAL(device, 3);
	fake.device = 2;
	cl_context_end_done(CONTEXT_A, 0, true);
	CHECK(cl_context_current(&ctx, &device, &primary));
	CHECK_EQUAL(device, 2);
	fake_stack[fake_depth] = CONTEXT_B;
	fake.device = 1;
	CHECK(cl_context_current(&ctx, &device, &primary));
	CHECK(ctx == CONTEXT_B);
	CHECK_EQUAL(device, 1);
	fake_stack[fake_depth] = NULL;
	CHECK(!cl_context_current(&ctx, &device, &primary));
	CHECK(!ctx && !device && !primary);
	/* (one that a thread has just come to, and that the driver says nothing of) */
	fake_stack[fake_depth] = CONTEXT_A;
	cl_driver.cuCtxGetDevice = no_device;
	ctx = CONTEXT_B;
	CHECK(!cl_context_current(&ctx, &device, &primary));
	CHECK(!ctx && !device && !primary);
	cl_driver.cuCtxGetDevice = fake_device;
	finish();
}

/* Before a process shares, contexts end unseen. */
static _Atomic bool b_is_primary;
static CUresult retain_a_or_b(CUcontext *ctx, CUdevice device)
{
	driver_entered();
	*ctx = b_is_primary ? CONTEXT_B : CONTEXT_A;
	return CUDA_SUCCESS;
}

IN_A_CHILD(of_contexts_that_end_unseen_nothing_is_remembered)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	start();
	cl_driver.cuDevicePrimaryCtxRetain = retain_a_or_b;
	CHECK(!cl_sharing());
	fake_stack[fake_depth] = CONTEXT_B;
	CHECK(cl_context_current(&ctx, &device, &primary));
	CHECK(ctx == CONTEXT_B && !device && !primary);
	/* it ends, and the primary context is made at its address */
	b_is_primary = true;
	CHECK(cl_context_current(&ctx, &device, &primary));
	CHECK(ctx == CONTEXT_B && !device && primary);
	/* it is reset, and another, of another device, is made there; now the process shares */
	b_is_primary = false;
	fake.device = 1;
	CHECK(cl_self_start() && cl_sharing());
	CHECK(cl_context_current(&ctx, &device, &primary));
	CHECK(ctx == CONTEXT_B && device == 1 && !primary);
	finish();
}

/*
 * A context has ended, and another has its address at once, which another thread
 * uses before its end is noted: when it is, nothing of the old one is remembered.
 */
enum { ENDS = 100000, ENDS_AT_LEAST = 100, ENDS_MS = 3000 /* where the two never run at once each takes long */ };
#define NO_MORE UINT32_MAX
static _Atomic uint32_t another_there, end_noted, seen;

/* (without giving the processor away at once: the two are to meet within some ns) */
static void spin_until(const _Atomic uint32_t *what, uint32_t at_least)
{
	for (unsigned int i = 1; *what < at_least; i++)
		if (i % 4096 == 0)
			sched_yield();
}

static void *use_another(void *unused)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	fake_stack[fake_depth] = CONTEXT_B;
	for (uint32_t round = 1;; round++) {
		spin_until(&another_there, round);
		if (another_there == NO_MORE)
			return unused;
		do
			CHECK(cl_context_current(&ctx, &device, &primary));
		while (end_noted != round);
		CHECK(cl_context_current(&ctx, &device, &primary));
		CHECK_EQUAL(primary, b_is_primary);
		seen = round;
	}
}

IN_A_CHILD(what_is_remembered_of_a_context_goes_before_its_end_is_counted)
{
	uint64_t until = cl_now() + ENDS_MS * MS;
	pthread_t thread;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_a_or_b;
	CHECK(cl_self_start());
	CHECK(!pthread_create(&thread, NULL, use_another, NULL));
	for (uint32_t round = 1; round <= ENDS && (round <= ENDS_AT_LEAST || cl_now() < until); round++) {
		bool was = b_is_primary;

		cl_context_end_begin(was ? NULL : CONTEXT_B, 0);
		b_is_primary = !was;
		another_there = round;
		cl_context_end_done(was ? NULL : CONTEXT_B, 0, true);
		end_noted = round;
		spin_until(&seen, round);
	}
	another_there = NO_MORE;
	CHECK(!pthread_join(thread, NULL));
}

/* Asking which context is primary and giving back the last reference to it keep out of each other's way. */
static _Atomic uint32_t retains;
static void (*amid_retain)(void);
static CUresult retain_amid(CUcontext *ctx, CUdevice device)
{
	retains++;
	if (amid_retain)
		amid_retain();
	return fake_retain(ctx, device);
}

static pthread_t beside;
static atomic_int beside_id;
static atomic_bool beside_done;
static void *end_primary(void *unused)
{
	beside_id = gettid();
	cl_context_end_begin(NULL, 0);
	beside_done = true;
	cl_context_end_done(NULL, 0, false);
	return unused;
}
static void primary_ends_amid(void)
{
	CHECK(!pthread_create(&beside, NULL, end_primary, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
}
static void *ask(void *unused)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	beside_id = gettid();
	CHECK(cl_context_current(&ctx, &device, &primary) && ctx == CONTEXT_A && primary);
	return unused;
}

IN_A_CHILD(a_primary_context_does_not_end_by_a_question)
{
	CUcontext ctx;
	CUdevice device;
	bool primary;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_amid;
	CHECK(cl_self_start());
	fake_stack[fake_depth] = CONTEXT_B;
	amid_retain = primary_ends_amid;
	CHECK(cl_context_current(&ctx, &device, &primary) && !primary);
	CHECK(!pthread_join(beside, NULL) && beside_done);

	amid_retain = NULL;
	retains = 0;
	beside_id = 0;
	cl_context_end_begin(NULL, 0);
	CHECK(!pthread_create(&beside, NULL, ask, NULL));
	CHECK(COMES_TRUE(retains || sleeps_in_a_futex(beside_id), SOON));
	CHECK_EQUAL(retains, 0);
	cl_context_end_done(NULL, 0, false);
	CHECK(!pthread_join(beside, NULL));
	CHECK_EQUAL(retains, 1);
}

/* Nor by one in a process that does not share: there nobody who gives it back would wait. */
static bool is_exported_event(CUevent event)
{
	bool is;

	cl_lock(&cl_exports_lock);
	is = cl_block_find(CL_EVENT, (uint64_t)(uintptr_t)event);
	cl_unlock(&cl_exports_lock);
	return is;
}

IN_A_CHILD(who_does_not_share_asks_no_such_question)
{
	CUipcEventHandle handle;
	CUevent event = fake_event();

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_amid;
	amid_retain = NULL;
	CHECK(!cl_sharing());
	cl_event_created(event);
	CHECK_EQUAL(retains, 0);
	/* it is asked when that matters: the event goes with its context */
	CHECK_EQUAL(cl_event_export(&handle, event), CUDA_SUCCESS);
	CHECK_EQUAL(retains, 1);
	CHECK(is_exported_event(event));
	cl_context_end_begin(NULL, 0);
	cl_context_end_done(NULL, 0, true);
	CHECK(!is_exported_event(event));
}

/* Which context is primary is remembered, too: not of one whose address another may have. */
static void *is_b_primary(void *is)
{
	beside_id = gettid();
	*(bool *)is = cl_context_is_primary(CONTEXT_B, 0);
	beside_done = true;
	return NULL;
}

IN_A_CHILD(what_comes_to_a_contexts_address_amid_its_end_is_asked_for)
{
	bool is = true;

	start_with(0, CL_COLLECTOR_INLINE);
	cl_driver.cuDevicePrimaryCtxRetain = retain_a_or_b;
	CHECK(cl_self_start());
	CHECK(!cl_context_is_primary(CONTEXT_B, 0));
	cl_context_end_begin(CONTEXT_B, -1);
	b_is_primary = true;
	CHECK(cl_context_is_primary(CONTEXT_B, 0));
	cl_context_end_done(CONTEXT_B, -1, true);
	CHECK(cl_context_is_primary(CONTEXT_B, 0));
	/* and the other way round (who asks waits until no primary one ends) */
	cl_context_end_begin(NULL, 0);
	b_is_primary = false;
	CHECK(!pthread_create(&beside, NULL, is_b_primary, &is));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	cl_context_end_done(NULL, 0, true);
	CHECK(!pthread_join(beside, NULL) && !is);
}

/*
 * A primary context that is made anew as soon as the old one has ended is active when
 * that is asked about: so it is not made before, nor is one ended amid a making.
 */
static void *make_beside(void *unused)
{
	struct cl_context_making making;

	beside_id = gettid();
	making = cl_context_make_begin(0);
	beside_done = true;
	cl_context_make_end(&making);
	return unused;
}
static void *end_beside(void *unused)
{
	beside_id = gettid();
	cl_context_end_begin(NULL, 0);
	beside_done = true;
	cl_context_end_done(NULL, 0, true);
	return unused;
}

IN_A_CHILD(no_primary_context_is_made_before_it_is_known_whether_the_last_has_ended)
{
	struct cl_context_making making;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_self_start());
	cl_context_end_begin(NULL, 0);
	making = cl_context_make_begin(1); /* (another device's is none of it) */
	cl_context_make_end(&making);
	CHECK(!pthread_create(&beside, NULL, make_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
	cl_context_end_done(NULL, 0, true);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	beside_done = false;
	beside_id = 0;
	making = cl_context_make_begin(0);
	CHECK(!pthread_create(&beside, NULL, end_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(!beside_done);
	cl_context_make_end(&making);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	/* no such device: nothing is noted */
	for (int i = -1; i <= 64; i += 65) {
		making = cl_context_make_begin(i);
		cl_context_make_end(&making);
	}
}

/*
 * Of a call that takes the primary context or gives it back, from before this process shares
 * until after, nobody hears: who ends that context waits, or it would not be known which of
 * the two was the last that had it.
 */
static struct ending {
	CUcontext ctx;
	CUdevice device;
} ending;
static void *end_that_beside(void *unused)
{
	beside_id = gettid();
	cl_context_end_begin(ending.ctx, ending.device);
	beside_done = true;
	cl_context_end_done(ending.ctx, ending.device, false);
	return unused;
}
/* Whether it waits; then it is under way yet. */
static bool end_waits(CUcontext ctx, CUdevice device)
{
	ending = (struct ending){ ctx, device };
	beside_done = false;
	beside_id = 0;
	CHECK(!pthread_create(&beside, NULL, end_that_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	if (!beside_done)
		return true;
	CHECK(!pthread_join(beside, NULL));
	return false;
}

IN_A_CHILD(who_ends_a_context_waits_for_calls_that_nobody_watches)
{
	struct cl_context_making making;
	struct cl_context_call call;

	start_with(0, CL_COLLECTOR_INLINE);
	call = cl_context_call_begin(0); /* (what it had is given back) */
	cl_context_call_end(&call);
	call = cl_context_call_begin(0);
	making = cl_context_make_begin(1);
	CHECK(call.unwatched && making.call.unwatched && !making.begun);
	CHECK(cl_self_start() && cl_sharing());
	CHECK(!cl_context_call_begin(0).unwatched);
	CHECK(!end_waits(NULL, 2));
	CHECK(end_waits(NULL, 0));
	cl_context_call_end(&call);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	CHECK(end_waits(NULL, 1));
	cl_context_make_end(&making);
	CHECK(!pthread_join(beside, NULL) && beside_done);
	CHECK(!end_waits(NULL, 0));
	making = cl_context_make_begin(0);
	CHECK(!making.call.unwatched && making.begun);
	cl_context_make_end(&making);
	/* a forked process does not share yet, nor are its parent's calls in it */
	cl_contexts_forget();
	cl_gate_forget();
	call = cl_context_call_begin(0);
	CHECK(call.unwatched);
	cl_context_call_end(&call);
}

/* And nobody else waits meanwhile: it has not begun yet. */
static CUdeviceptr free_beside_p;
static void *free_beside(void *unused)
{
	beside_id = gettid();
	CHECK_EQUAL(cl_memory_free(free_beside_p), CUDA_SUCCESS);
	beside_done = true;
	return unused;
}
IN_A_CHILD(who_waits_for_such_calls_holds_nobody_up)
{
	struct cl_context_call call;
	pthread_t ends;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	call = cl_context_call_begin(0);
	free_beside_p = fake_alloc(1024, CONTEXT_A);
	export_block(free_beside_p);
	CHECK(end_waits(NULL, 0));
	ends = beside;
	beside_id = 0;
	CHECK(!pthread_create(&beside, NULL, free_beside, NULL));
	CHECK(COMES_TRUE(beside_done || sleeps_in_a_futex(beside_id), SOON));
	CHECK(beside_done);
	cl_context_call_end(&call);
	CHECK(!pthread_join(beside, NULL) && !pthread_join(ends, NULL));
}

IN_A_CHILD(who_ends_any_context_waits_for_a_call_of_no_known_device)
{
	struct cl_context_call call;

	start_with(0, CL_COLLECTOR_INLINE);
	call = cl_context_call_begin(-1);
	CHECK(cl_self_start());
	CHECK(end_waits(NULL, 0));
	cl_context_call_end(&call);
	CHECK(!pthread_join(beside, NULL));
	CHECK(!end_waits(CONTEXT_B, -1));
}

/* One that never ends keeps nobody for ever. */
static CUresult no_state(CUdevice device, unsigned int *flags, int *active)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}
IN_A_CHILD(who_ends_a_context_does_not_wait_for_ever)
{
	uint64_t began;

	start_with(0, CL_COLLECTOR_INLINE);
	CHECK(cl_context_call_begin(0).unwatched);
	CHECK(cl_self_start());
	began = cl_now();
	cl_context_end_begin(NULL, 0);
	cl_context_end_done(NULL, 0, false);
	CHECK(cl_now() - began >= 900 * MS);
	/* nor in a process that was forked amid one, where the driver does nothing */
	cl_driver.cuDevicePrimaryCtxGetState = no_state;
	CHECK(!end_waits(NULL, 0));
}

/*
 * The driver has ended a context, and given its address to another and its addresses
 * to others, before its end is noted: what is opened, closed and exported meanwhile is
 * none of what goes with it.
 */
static CUdeviceptr given;
static CUresult open_at_given(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	*p = given;
	return CUDA_SUCCESS;
}

IN_A_CHILD(what_is_opened_at_a_contexts_address_does_not_go_with_it)
{
	CUdeviceptr p, q;

	start();
	for (int gone = 0; gone <= 1; gone++) {
		fake_stack[fake_depth] = CONTEXT_B;
		CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
		cl_context_end_begin(CONTEXT_B, -1);
		CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		CHECK_EQUAL(p, q);
		cl_context_end_done(CONTEXT_B, -1, gone);
		CHECK(cl_record_held(peer(), other.record));
		CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
		CHECK_EQUAL(cl_record_held(peer(), other.record), !gone);
		if (!gone)
			CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		CHECK(!cl_record_held(peer(), other.record));
	}
	CHECK_EQUAL(cl_count_get(closed_twice), 0);
	finish();
}

/* (A is the primary one of device 0: such an end names the device alone) */
IN_A_CHILD(what_is_open_in_a_primary_context_goes_with_it)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	cl_context_end_begin(NULL, 1); /* another device's */
	cl_context_end_done(NULL, 1, true);
	CHECK(cl_record_held(peer(), other.record));
	cl_context_end_begin(NULL, 0);
	cl_context_end_done(NULL, 0, true);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

IN_A_CHILD(a_close_is_of_what_is_there_now)
{
	CUipcMemHandle own;
	CUdeviceptr p, q;

	start();
	fake_stack[fake_depth] = CONTEXT_B;
	given = fake_alloc(1024, CONTEXT_A);
	own = export_block(given);
	CHECK_EQUAL(cl_memory_import(&p, other.handle, 0, open_at_given), CUDA_SUCCESS);
	cl_context_end_begin(CONTEXT_B, -1);
	/* (the fake driver knows no import at that address) */
	CHECK_EQUAL(cl_memory_import(&q, own, 0, fake_open), CUDA_SUCCESS);
	CHECK(p == q && q == given);
	CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
	CHECK_EQUAL(fake.close_calls, 0);
	cl_context_end_done(CONTEXT_B, -1, true);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* The handle leads to whatever the driver has made there since. */
IN_A_CHILD(what_is_made_where_an_ended_context_was_is_not_opened)
{
	CUdeviceptr p, q;

	start();
	CHECK_EQUAL(cl_memory_import(&p, other.handle, 0, fake_open), CUDA_SUCCESS);
	CHECK(!cl_record_gone(peer(), other.record));
	given = p + DEVICE_STEP;
	CHECK_EQUAL(cl_memory_import(&q, other.handle, 0, open_at_given), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(fake.close_calls, 1);
	/* but where the driver says that it is what is mapped already */
	CHECK_EQUAL(cl_memory_import(&q, other.handle, 0, fake_open), CUDA_SUCCESS);
	CHECK(p == q);
	CHECK_EQUAL(cl_memory_close(q), CUDA_SUCCESS);
	/* what a refusal says is what the driver says first */
	fake.none_result = CUDA_ERROR_INVALID_CONTEXT;
	CHECK_EQUAL(cl_memory_import(&q, other.handle, 0, open_at_given), CUDA_ERROR_INVALID_CONTEXT);
	fake.none_result = CUDA_SUCCESS;
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* It may live on: of a primary context a reference was given back, and not the last one. */
IN_A_CHILD(what_is_closed_while_a_context_may_be_ending_is_closed)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	cl_context_end_begin(NULL, 0);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	cl_context_end_done(NULL, 0, false);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

static CUdeviceptr exported_there;
static atomic_int exporter_id;
static atomic_bool is_exported;
static void *export_there(void *unused)
{
	exporter_id = gettid();
	export_block(exported_there);
	is_exported = true;
	return unused;
}

IN_A_CHILD(what_is_exported_at_a_contexts_address_does_not_go_with_it)
{
	pthread_t thread;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	export_block(fake_alloc(1024, CONTEXT_B));
	exported_there = fake_alloc(1024, CONTEXT_B);
	cl_context_end_begin(CONTEXT_B, -1);
	CHECK(!pthread_create(&thread, NULL, export_there, NULL));
	CHECK(COMES_TRUE(is_exported || sleeps_in_a_futex(exporter_id), SOON));
	cl_context_end_done(CONTEXT_B, -1, true);
	CHECK(!pthread_join(thread, NULL) && is_exported);
	/* somebody may have its handle */
	CHECK_EQUAL(cl_memory_free(exported_there), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(exported_there), 0);
	CHECK_EQUAL(cl_process_end(0), 0);
}

/* The first export of a process makes its file; another thread goes through the directory just then. */
static pthread_t looker;
static atomic_int looker_id;
static atomic_bool looked;
static CUresult open_nothing(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	return CUDA_ERROR_INVALID_VALUE;
}
static void *look_around(void *unused)
{
	CUipcMemHandle handle = { { 0 } };
	CUdeviceptr p;

	looker_id = gettid();
	/* a driver that uses all 64 bytes, or an exporter that has ended: all files are looked at */
	memset(&handle, 0x5a, sizeof handle);
	CHECK_EQUAL(cl_memory_import(&p, handle, 0, open_nothing), CUDA_ERROR_INVALID_VALUE);
	looked = true;
	return unused;
}

static bool stop_at_name;
int __real_renameat2(int from, const char *old, int to, const char *name, unsigned int flags);
int __wrap_renameat2(int from, const char *old, int to, const char *name, unsigned int flags);
int __wrap_renameat2(int from, const char *old, int to, const char *name, unsigned int flags)
{
	int err = __real_renameat2(from, old, to, name, flags);

	if (!err && stop_at_name && cl_region_name_id(name)) {
		stop_at_name = false;
		CHECK(!pthread_create(&looker, NULL, look_around, NULL));
		CHECK(COMES_TRUE(looked || sleeps_in_a_futex(looker_id), SOON));
	}
	return err;
}

IN_A_CHILD(a_file_of_ours_that_is_just_made_is_not_looked_into)
{
	CUipcMemHandle handle;

	start_with(0, CL_COLLECTOR_INLINE);
	stop_at_name = true;
	handle = export_block(fake_alloc(1024, CONTEXT_A));
	CHECK(!stop_at_name && !pthread_join(looker, NULL));
	CHECK(is_locked_by_us(stamp_of(&handle).file_id, CL_LOCK_EXPORTER));
	CHECK_EQUAL(cl_process_end(0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_exporter_that_dies_amid_an_open_refuses_it),
		cmocka_unit_test(a_lock_is_had_again_that_went_amid_an_open),
		cmocka_unit_test(a_file_of_the_programs_in_its_place_is_not_taken_for_it),
		cmocka_unit_test(a_strangers_lock_is_not_the_exporters_life),
		cmocka_unit_test(who_was_taken_for_dead_amid_an_open_holds_again),
		cmocka_unit_test(what_was_given_away_meanwhile_is_refused),
		cmocka_unit_test(who_was_taken_for_dead_opens_what_has_the_record_now),
		cmocka_unit_test(a_later_exporter_of_the_same_number_is_another),
		cmocka_unit_test(what_is_stale_is_refused_whoever_comes_to_have_the_number),
		cmocka_unit_test(hardly_any_handle_from_elsewhere_seems_to_be_of_an_ended_exporter),
		cmocka_unit_test(a_handle_of_here_is_told_by_any_path),
		cmocka_unit_test(what_is_exported_elsewhere_is_as_bare),
		cmocka_unit_test(who_is_another_user_now_says_what_is_not_protected),
		cmocka_unit_test(a_hold_lasts_as_long_as_any_of_its_mappings),
		cmocka_unit_test(the_device_is_asked_once_for_a_context),
		cmocka_unit_test(of_contexts_that_end_unseen_nothing_is_remembered),
		cmocka_unit_test(what_is_remembered_of_a_context_goes_before_its_end_is_counted),
		cmocka_unit_test(a_primary_context_does_not_end_by_a_question),
		cmocka_unit_test(who_does_not_share_asks_no_such_question),
		cmocka_unit_test(what_comes_to_a_contexts_address_amid_its_end_is_asked_for),
		cmocka_unit_test(no_primary_context_is_made_before_it_is_known_whether_the_last_has_ended),
		cmocka_unit_test(who_ends_a_context_waits_for_calls_that_nobody_watches),
		cmocka_unit_test(who_waits_for_such_calls_holds_nobody_up),
		cmocka_unit_test(who_ends_any_context_waits_for_a_call_of_no_known_device),
		cmocka_unit_test(who_ends_a_context_does_not_wait_for_ever),
		cmocka_unit_test(what_is_opened_at_a_contexts_address_does_not_go_with_it),
		cmocka_unit_test(what_is_open_in_a_primary_context_goes_with_it),
		cmocka_unit_test(a_close_is_of_what_is_there_now),
		cmocka_unit_test(what_is_made_where_an_ended_context_was_is_not_opened),
		cmocka_unit_test(what_is_closed_while_a_context_may_be_ending_is_closed),
		cmocka_unit_test(what_is_exported_at_a_contexts_address_does_not_go_with_it),
		cmocka_unit_test(a_file_of_ours_that_is_just_made_is_not_looked_into),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
