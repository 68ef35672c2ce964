/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: what is still true when the driver has opened is asked once, and of
 * the right file.
 *
 * Promises 1 and 2.  The driver is a fake one (fake_driver.h) in whose open
 * something happens: the exporter dies, the program closes our descriptor, or
 * somebody takes us for dead.  The exporter is a real process.
 */
#include "tests/unit/imports.h"

#include <sys/prctl.h>

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

IN_A_CHILD(an_exporter_that_dies_amid_an_open_refuses_it)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, exporter_dies), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(fake.open_calls, 1);
	CHECK_EQUAL(fake.close_calls, 1);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_STALE_REFUSED]), 1);
	CHECK(!cl_record_held(peer(), other.record));
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS); /* the fake driver accepts a close of any address */
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
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_STALE_REFUSED]), 1);
	stranger_goes();
}

/* @p is held by our slot, not pinned, and not held any more once it is closed: then the exporter ends. */
static void check_held_until_closed(CUdeviceptr p)
{
	CHECK(cl_record_held(peer(), other.record));
	CHECK(!peer()->record[other.record].pinned);
	CHECK(!other_frees());
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

IN_A_CHILD(who_was_taken_for_dead_amid_an_open_holds_again)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, taken_for_dead), CUDA_SUCCESS);
	CHECK(slot() >= 0 && slot_is_locked());
	check_held_until_closed(p);
}

IN_A_CHILD(what_was_given_away_meanwhile_is_refused)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, taken_for_dead_and_freed), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(fake.close_calls, 1);
	CHECK_EQUAL(cl_count_get(findings[CL_FINDING_STALE_REFUSED]), 1);
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* Whether the exporter has left its file (linked in by --wrap): reading /proc waits for the exporter's own memory calls. */
static unsigned int asked;
bool __real_cl_liveness_has_left(const struct cl_identity *exporter, uint32_t file_id);
bool __wrap_cl_liveness_has_left(const struct cl_identity *exporter, uint32_t file_id);
bool __wrap_cl_liveness_has_left(const struct cl_identity *exporter, uint32_t file_id)
{
	CHECK(cl_try_lock(&cl_imports_lock));
	cl_unlock(&cl_imports_lock);
	CHECK(cl_try_lock(&cl_exports_lock));
	cl_unlock(&cl_exports_lock);
	asked++;
	return __real_cl_liveness_has_left(exporter, file_id);
}

IN_A_CHILD(a_stale_open_keeps_no_lock_while_it_looks_at_its_exporter)
{
	CUipcMemHandle stale, now;
	CUdeviceptr p;

	start();
	stale = other.handle;
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK(other_frees());
	now = other_exports_again();
	CHECK_EQUAL(import(&p, nothing), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(asked, 1);
	CHECK(memcmp(&stale, &now, sizeof stale) != 0);
	finish();
}

/* An import that is still open differs from a new one of the same record, address and handle. */
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

/* Each time there is one more open of that address.  Only the newest one's hold counts, so it must go last. */
IN_A_CHILD(who_was_taken_for_dead_twice_holds_what_the_record_has_now_to_the_last_close)
{
	CUipcMemHandle now;
	CUdeviceptr p, q;

	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	for (int times = 0; times < 2; times++) {
		taken_for_dead_and_freed();
		now = other_exports_again();
		CHECK_EQUAL(import(&q, nothing), CUDA_ERROR_INVALID_VALUE);
		other.handle = now;
		CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		CHECK_EQUAL(q, p);
	}
	for (int opens = 3; opens; opens--) {
		CHECK(cl_record_held(peer(), other.record));
		CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	}
	CHECK(!cl_record_held(peer(), other.record));
	finish();
}

/* Opened and closed in any order of its mappings, and while another context has it open. */
IN_A_CHILD(a_hold_lasts_as_long_as_any_of_its_mappings)
{
	CUdeviceptr p, q;

	start();
	for (int round = 0; round < 3; round++) {
		CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
		fake_stack[fake_depth] = CONTEXT_B;
		CHECK_EQUAL(import(&q, nothing), CUDA_SUCCESS);
		CHECK_EQUAL(p, q);
		if (round == 1) { /* the first one ends with its context */
			context_ends(CONTEXT_A, 0);
			context_ended(CONTEXT_A, 0, true);
		} else {
			CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
		}
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

/* A process's first export creates its file while another thread reads the directory. */
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
	/* the driver uses all 64 bytes, or the exporter has ended: all files are searched */
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

/* ------------------------------------------- the exporter may be freeing the block */
/* What happens each time when an open waits for that (linked in by --wrap). */
static void (*amid_wait)(void);
static unsigned int waits;

static void waited(void)
{
	waits++;
	amid_wait();
}

int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
	if (amid_wait)
		waited();
	return __real_sched_yield();
}

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	if (amid_wait)
		waited();
	return __real_nanosleep(time, left);
}

static _Atomic uint64_t *life;
static CUipcMemHandle of_another; /* another exporter's */

/* Has the exporter find out whether it may free its block. */
static void exporter_stops_dying(void)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	life = &peer()->record[other.record].life;
	atomic_store(life, cl_life(cl_life_generation(*life), CL_DYING));
}

static void *open_and_close_another(void *unused)
{
	CUdeviceptr p;

	CHECK_EQUAL(cl_memory_import(&p, of_another, 0, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	return NULL;
}

static void others_go_on_and_it_may_not(void)
{
	pthread_t thread;

	amid_wait = NULL;
	CHECK(cl_try_lock(&cl_imports_lock));
	cl_unlock(&cl_imports_lock);
	CHECK(!pthread_create(&thread, NULL, open_and_close_another, NULL) && !pthread_join(thread, NULL));
	atomic_store(life, cl_life(cl_life_generation(*life), CL_EXPORTED));
}

IN_A_CHILD(an_open_that_waits_for_its_exporter_keeps_no_other_thread)
{
	CUdeviceptr p;

	start();
	of_another = other.handle;
	exporter_stops_dying();
	amid_wait = others_go_on_and_it_may_not;
	CHECK_EQUAL(import(&p, nothing), CUDA_SUCCESS);
	CHECK_EQUAL(waits, 1);
	CHECK_EQUAL(cl_record_holders(peer(), other.record, NULL, 0), 1);
	CHECK_EQUAL(cl_memory_close(p), CUDA_SUCCESS);
	CHECK_EQUAL(cl_record_holders(peer(), other.record, NULL, 0), 0);
}

enum { ENOUGH = 80 };
static void time_passes(void)
{
	if (waits == ENOUGH)
		turn_clock(30 * MS);
	CHECK(waits <= ENOUGH);
}

/* It was killed just there, or stopped. */
IN_A_CHILD(an_open_does_not_wait_for_ever_for_its_exporter)
{
	CUdeviceptr p;

	exporter_stops_dying();
	amid_wait = time_passes;
	CHECK_EQUAL(import(&p, nothing), CUDA_ERROR_INVALID_VALUE);
	amid_wait = NULL;
	CHECK(waits);
	CHECK_EQUAL(cl_record_holders(peer(), other.record, NULL, 0), 0);
}

/* Its exporter tries to give the block back, since our bit is gone, and at the fourth look has given up. */
static void gives_up(void)
{
	if (waits == 3)
		atomic_store(life, cl_life(cl_life_generation(*life), CL_EXPORTED));
}
static void taken_for_dead_and_tried(void)
{
	taken_for_dead();
	life = &peer()->record[other.record].life;
	atomic_store(life, cl_life(cl_life_generation(*life), CL_DYING));
	amid_wait = gives_up;
}

IN_A_CHILD(who_was_taken_for_dead_holds_again_what_its_exporter_may_not_free)
{
	CUdeviceptr p;

	start();
	CHECK_EQUAL(import(&p, taken_for_dead_and_tried), CUDA_SUCCESS);
	amid_wait = NULL;
	CHECK_EQUAL(waits, 3);
	check_held_until_closed(p);
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
		cmocka_unit_test(a_stale_open_keeps_no_lock_while_it_looks_at_its_exporter),
		cmocka_unit_test(who_was_taken_for_dead_opens_what_has_the_record_now),
		cmocka_unit_test(who_was_taken_for_dead_twice_holds_what_the_record_has_now_to_the_last_close),
		cmocka_unit_test(a_hold_lasts_as_long_as_any_of_its_mappings),
		cmocka_unit_test(a_file_of_ours_that_is_just_made_is_not_looked_into),
		cmocka_unit_test(an_open_that_waits_for_its_exporter_keeps_no_other_thread),
		cmocka_unit_test(an_open_does_not_wait_for_ever_for_its_exporter),
		cmocka_unit_test(who_was_taken_for_dead_holds_again_what_its_exporter_may_not_free),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
