/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process whose directory cannot be used records findings in its own memory.  The report at exit has
 * them, and so has a file that can be created later.
 */
#include "tests/unit/report_data.h"

#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/namespaces/own_mounts.h"

enum { SOON = 20000 };

static char parent[100], path[128], report[128];

/* CULIMBO_DIR is in a directory that does not exist. */
static void start_without_directory(void)
{
	start_with(0, CL_COLLECTOR_THREAD);
	snprintf(parent, sizeof parent, "%s/parent-%d", folder, (int)getpid());
	snprintf(path, sizeof path, "%s/limbo", parent);
	snprintf(report, sizeof report, "%s/report-%d", folder, (int)getpid());
	cl_options.dir.text = path;
	cl_options.report_file.text = report;
}

/* Makes the directory usable; returns a block that is exported then. */
static CUdeviceptr later(void)
{
	CUdeviceptr p = 0;

	CHECK(!mkdir(parent, 0700));
	CHECK(COMES_TRUE((p = exported_block(), cl_own.file_id), SOON));
	return p;
}

static void end_with_file(void)
{
	CHECK_EQUAL(cl_process_end(0), 0);
	CHECK(!remove_folder_at(path) && !remove_folder_at(parent));
}

/* An exported block that the program has freed twice.  It is not known which process has it. */
static CUdeviceptr freed_twice(void)
{
	CUdeviceptr p = fake_alloc(1024, CONTEXT_A);
	CUipcMemHandle handle;

	CHECK_EQUAL(export_here(&handle, p), CUDA_SUCCESS);
	CHECK(!cl_handle_stamp(handle.reserved, CL_MEMORY));
	CHECK_EQUAL(free_here(p), CUDA_SUCCESS);
	CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(frees_of(p), 0);
	return p;
}

static void has_the_finding(const struct cl_view *view, CUdeviceptr p)
{
	struct cl_finding finding;

	CHECK_EQUAL(findings_of(view, CL_FINDING_FREED_TWICE, &finding), 1);
	CHECK_EQUAL(finding.key, p);
	CHECK(LEADS_THROUGH(view, finding.stack, free_here));
}

/* The report at exit; the process has ended then. */
static const char *reported(void)
{
	static char text[1 << 16];
	char name[160];
	ssize_t n;
	int fd;

	CHECK_EQUAL(cl_process_end(0), 0);
	snprintf(name, sizeof name, "%s.%d", report, (int)getpid());
	fd = open(name, O_RDONLY);
	CHECK(fd >= 0);
	n = read(fd, text, sizeof text - 1);
	CHECK(n > 0);
	text[n] = 0;
	close(fd);
	unlink(name);
	return text;
}
static void is_in(const char *text, const char *words)
{
	if (!strstr(text, words))
		fprintf(stderr, "not in the report: %s\n%s", words, text);
	CHECK(strstr(text, words));
}

IN_A_CHILD(the_report_has_findings_stacks_and_blocks)
{
	struct cl_view view;
	const char *text;

	start_without_directory();
	has_the_finding((freed_twice(), cl_view_own(&view), &view), DEVICE_BASE);
	CHECK_EQUAL(cl_own.file_id, 0);
	exported_block();
	text = reported();
	is_in(text, " twice");
	is_in(text, "that could not be tracked");
	is_in(text, "test_report_data_without_file+0x");
	is_in(text, "test_report_data_without_file, child of ");
}

IN_A_CHILD(a_file_that_is_made_later_has_what_was_found_before)
{
	struct cl_finding finding;
	struct cl_view view;
	CUdeviceptr early, late;
	uint32_t id;
	pid_t child;

	start_without_directory();
	early = freed_twice();
	late = later();
	cl_view_own(&view);
	has_the_finding(&view, early);
	/* and continues where it was */
	CHECK_EQUAL(cl_memory_free(late), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(late), 1);
	CHECK_EQUAL(free_here(early), CUDA_ERROR_INVALID_VALUE);
	cl_view_own(&view);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_FREED_TWICE, &finding), 2);
	CHECK(LEADS_THROUGH(&view, finding.stack, free_here));
	CHECK_EQUAL(frees_of(early), 0);
	id = cl_own.file_id;
	child = fork();
	if (!child) { /* as a culimbo command does */
		int dir = open(path, O_RDONLY | O_DIRECTORY);

		child_begins();
		CHECK_EQUAL(cl_view_open(&view, dir, id, NULL, NULL), 0);
		CHECK_EQUAL(findings_of(&view, CL_FINDING_FREED_TWICE, &finding), 2);
		CHECK(LEADS_THROUGH(&view, finding.stack, free_here));
		_exit(0);
	}
	child_judge(child);
	is_in(reported(), "that could not be tracked");
	CHECK(!remove_folder_at(path) && !remove_folder_at(parent));
}

/* Their file is asked for more of a part only when the entries of before do not leave room. */
IN_A_CHILD(what_was_written_before_does_not_hide_what_comes_after)
{
	struct cl_finding finding;
	struct cl_view view;
	CUdeviceptr p;

	start_without_directory();
	p = freed_twice();
	while (cl_own.header->findings < CL_PAGE / sizeof(struct cl_finding))
		CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	later();
	for (int i = 0; i < 3; i++)
		CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	cl_view_own(&view);
	CHECK_EQUAL(findings_of(&view, CL_FINDING_FREED_TWICE, &finding), CL_PAGE / sizeof(struct cl_finding) + 3);
	end_with_file();
}

IN_A_CHILD(a_forked_child_begins_without_its_parents)
{
	struct cl_view view;
	pid_t child;
	CUdeviceptr p;

	start_without_directory();
	p = freed_twice();
	child = fork();
	if (!child) {
		CUdeviceptr mine;

		child_begins();
		CHECK_EQUAL(cl_own.header->finding_counts[CL_FINDING_FREED_TWICE], 0);
		mine = freed_twice();
		cl_view_own(&view);
		has_the_finding(&view, mine);
		CHECK_EQUAL(view.region.header->exporter.pid, getpid());
		_exit(0);
	}
	child_judge(child);
	cl_view_own(&view);
	has_the_finding(&view, p);
	CHECK_EQUAL(view.region.header->exporter.pid, getpid());
}

/* ------------------------------------------------------------------ what it takes */
/* As /proc/self/status says of @what, "VmSize:". */
static uint64_t kib_of(const char *what)
{
	uint64_t kib = UINT64_MAX;
	char line[256];
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, what, strlen(what)))
			kib = strtoull(line + strlen(what), NULL, 10);
	CHECK(f && kib != UINT64_MAX);
	fclose(f);
	return kib;
}

static void address_space_of(uint64_t more_kib)
{
	struct rlimit limit;

	CHECK(!getrlimit(RLIMIT_AS, &limit));
	limit.rlim_cur = (kib_of("VmSize:") + more_kib) << 10;
	CHECK(!setrlimit(RLIMIT_AS, &limit));
}

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define BARE_ONLY CHILD_SKIP("a sanitizer needs address space")
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BARE_ONLY CHILD_SKIP("a sanitizer needs address space")
#endif
#endif
#ifndef BARE_ONLY
#define BARE_ONLY
#endif

/* Too little address space for a file, but enough to record findings. */
IN_A_CHILD(little_address_space_is_enough)
{
	struct cl_view view;

	BARE_ONLY;
	start_without_directory();
	CHECK(!mkdir(parent, 0700));
	exported_block(); /* all that the test itself needs is mapped */
	cl_own_forget();
	cl_report_data_forget();
	CHECK(!remove_folder_at(path));
	address_space_of(32 << 10);
	freed_twice();
	CHECK_EQUAL(cl_own.file_id, 0);
	cl_view_own(&view);
	has_the_finding(&view, DEVICE_BASE + DEVICE_STEP);
	CHECK(!remove_folder_at(path) && !remove_folder_at(parent));
}

/* Then exports work as bare, one message says so, and findings are counted. */
IN_A_CHILD(without_address_space_there_are_counts)
{
	struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
	struct cl_finding finding;
	struct cl_view view;
	CUdeviceptr p;

	BARE_ONLY;
	start_without_directory();
	address_space_of(8 << 10);
	p = freed_twice();
	freed_twice();
	CHECK_EQUAL(logged("cannot make this process's exporter file"), 1);
	cl_view_own(&view);
	CHECK_EQUAL(cl_view_finding_count(&view, CL_FINDING_FREED_TWICE), 2);
	CHECK_EQUAL(cl_view_findings(&view), 0);
	/* with a file it is like any other process */
	CHECK(!setrlimit(RLIMIT_AS, &none));
	later();
	CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	cl_view_own(&view);
	CHECK_EQUAL(cl_view_finding_count(&view, CL_FINDING_FREED_TWICE), 3);
	CHECK_EQUAL(cl_view_findings(&view), 1);
	CHECK(cl_view_finding(&view, 0, &finding));
	CHECK(LEADS_THROUGH(&view, finding.stack, free_here));
	end_with_file();
}

/* Neither all that is mapped, nor huge pages. */
IN_A_CHILD(little_memory_is_taken)
{
	uint64_t before;

	BARE_ONLY;
	start_without_directory();
	if (mlockall(MCL_FUTURE))
		CHILD_SKIP("memory cannot be locked here: %s", strerror(errno));
	exported_block();
	before = kib_of("VmRSS:");
	CHECK(kib_of("VmLck:") < 4096);
	freed_twice();
	CHECK(kib_of("VmRSS:") < before + 1024);
	CHECK(kib_of("VmLck:") < 4096);
}

/* ------------------------------------------------------- a file system that is full */
/* Mounts a tmpfs at @parent, which no other process sees. */
static void mount_parent(void)
{
	int err = own_mounts();

	if (err)
		CHILD_SKIP("no mount namespace may be made (%s)", strerror(-err));
	CHECK(!mkdir(parent, 0700));
	if (mount("tmpfs", parent, "tmpfs", 0, "size=32m,mode=700"))
		CHILD_SKIP("a tmpfs cannot be mounted (%s)", strerror(errno));
}

/* Bytes of a new exporter file, with nothing in it. */
static uint64_t size_of_file(void)
{
	int dir = open(parent, O_RDONLY | O_DIRECTORY);
	struct cl_region region;
	struct stat st;

	CHECK(dir >= 0);
	CHECK_EQUAL(cl_region_create(&region, dir, &cl_self.identity), 0);
	CHECK(!fstat(region.fd, &st));
	CHECK(!cl_region_unlink(&region, dir));
	cl_region_close(&region);
	close(dir);
	return (uint64_t)st.st_blocks * 512;
}

/* Fills the file system of @parent, but for @left bytes. */
static void fill_parent(uint64_t left)
{
	struct statvfs st;
	char filler[128];
	int fd;

	snprintf(filler, sizeof filler, "%s/filler", parent);
	fd = open(filler, O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0 && !statvfs(parent, &st));
	CHECK(st.f_bfree * st.f_bsize > left);
	CHECK_EQUAL(fallocate(fd, 0, 0, (off_t)(st.f_bfree * st.f_bsize - left)), 0);
	close(fd);
}

/* Bytes of stacks and modules, as the end of a traced process copies them into its trace. */
static void copy_stacks(uint32_t *modules, uint32_t *words)
{
	static char to[1 << 20];

	cl_lock(&cl_exports_lock);
	cl_report_data_copy_stacks_locked(to, sizeof to, modules, words);
	cl_unlock(&cl_exports_lock);
}

/* What was written to memory has no room in the file that is made later: nothing touches its place there. */
IN_A_CHILD(what_a_full_file_has_no_room_for_is_not_touched)
{
	uint32_t modules, words;
	uint64_t size;
	CUdeviceptr p;

	BARE_ONLY;
	start_without_directory();
	mount_parent();
	size = size_of_file();
	CHECK(snprintf(path, sizeof path, "%s/none/limbo", parent) < (int)sizeof path);
	p = freed_twice();
	CHECK_EQUAL(cl_own.file_id, 0);
	copy_stacks(&modules, &words);
	CHECK(modules && words > 1);
	fill_parent(size);
	CHECK(snprintf(path, sizeof path, "%s/limbo", parent) < (int)sizeof path);
	CHECK(COMES_TRUE((exported_block(), cl_own.file_id), SOON));
	/* reading and writing stacks, findings and notes: a SIGBUS would end this child */
	copy_stacks(&modules, &words);
	CHECK_EQUAL(modules, 0);
	CHECK_EQUAL(words, 0);
	CHECK_EQUAL(free_here(p), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cl_own.header->stack_words, 0);
	CHECK_EQUAL(cl_own.header->findings, 0);
	is_in(reported(), " twice");
}

/* Of a file without any stack not even the first word is read, which names none. */
IN_A_CHILD(a_full_file_without_stacks_is_not_touched)
{
	static const struct cl_finding finding = { .kind = CL_FINDING_FREED_TWICE };
	uint32_t modules, words;

	start_without_directory();
	mount_parent();
	cl_options.stack.number = 0;
	fill_parent(size_of_file());
	exported_block();
	CHECK(cl_own.file_id);
	cl_lock(&cl_exports_lock);
	CHECK(!cl_finding_add_locked(&finding));
	cl_unlock(&cl_exports_lock);
	copy_stacks(&modules, &words);
	CHECK_EQUAL(modules, 0);
	CHECK_EQUAL(words, 0);
}

/* -------------------------------------------------------------- by its own file */
/* The program has closed our descriptor, and the file cannot be opened again. */
IN_A_CHILD(a_report_without_a_descriptor_has_the_blocks)
{
	CUdeviceptr p, own_open = 0;
	CUipcMemHandle handle;
	int dir;

	start_without_directory();
	p = later();
	handle = export_block(p);
	CHECK_EQUAL(cl_memory_import(&own_open, handle, 0, fake_open), CUDA_SUCCESS);
	CHECK_EQUAL(cl_memory_free(p), CUDA_SUCCESS);
	CHECK_EQUAL(frees_of(p), 0);
	dir = open(path, O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0 && !cl_region_unlink(&cl_own, dir));
	/* by the kernel's call: ThreadSanitizer would report that the collector uses a descriptor of ours */
	CHECK_EQUAL(syscall(SYS_dup3, 0, cl_own.fd, 0), cl_own.fd);
	is_in(reported(), "opened in this process itself: 1 time");
	close(dir);
	CHECK(!remove_folder_at(path) && !remove_folder_at(parent));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_report_has_findings_stacks_and_blocks),
		cmocka_unit_test(a_file_that_is_made_later_has_what_was_found_before),
		cmocka_unit_test(what_was_written_before_does_not_hide_what_comes_after),
		cmocka_unit_test(a_forked_child_begins_without_its_parents),
		cmocka_unit_test(little_address_space_is_enough),
		cmocka_unit_test(without_address_space_there_are_counts),
		cmocka_unit_test(little_memory_is_taken),
		cmocka_unit_test(what_a_full_file_has_no_room_for_is_not_touched),
		cmocka_unit_test(a_full_file_without_stacks_is_not_touched),
		cmocka_unit_test(a_report_without_a_descriptor_has_the_blocks),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
