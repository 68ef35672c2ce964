/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A report that has more groups than it has room for: what is left is counted in a group of its class and kind, and
 * nothing is lost from the sums.
 */
#include "tests/unit/report_data.h"

#include <sys/resource.h>

#include "shim/report/report_table.h"

enum { MANY = 6000, MANY_EVENTS = 500, UNMAPPED = 40, SIZE = 4096 };

static struct cl_report report; /* looks at the view until its end */
static struct cl_view view;

/* Each is of another exporter, so each would have a group of its own. */
static void add_imports(enum cl_kind kind, unsigned int n, uint32_t pid, uint64_t size)
{
	for (unsigned int i = 0; i < n; i++) {
		struct cl_view_import import = { .kind = kind, .key = i + 1, .size = size, .opens = 1, .since = 1,
						 .file_id = 0xffff, .exporter_pid = pid + i };

		cl_report_add_import(&report, &import, false);
	}
}

/* Blocks that differ in their device alone, which has a group each. */
static void add_blocks(bool is_virtual, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		struct cl_view_block block = { .record = i, .kind = CL_MEMORY, .size = SIZE, .device = i, .exports = 1,
					       .exported = 1, .freed = 1, .is_virtual = is_virtual,
					       .class = CL_VIEW_ORPHANED };

		CHECK(cl_report_add_block(&report, CL_REPORT_ORPHANED, &block));
	}
}

/* Returns the group for the rest of @class and @kind; NULL: it has none. */
static const struct cl_report_group *rest_of(enum cl_report_class class, enum cl_kind kind, bool is_virtual)
{
	const struct cl_report_group *found = NULL;

	for (unsigned int i = 0; i < report.table->n; i++) {
		const struct cl_report_group *g = &report.table->group[i];

		if (!g->others || g->class != class || g->kind != kind || (g->made == CL_MADE_VIRTUAL) != is_virtual)
			continue;
		CHECK(!found); /* one is enough */
		found = g;
	}
	return found;
}

static const char *text_of_report(void)
{
	static char text[1 << 20];
	FILE *to = tmpfile();
	size_t n;

	CHECK(to);
	cl_emit_begin(&report.emit, fileno(to), false);
	cl_report_say(&report, NULL);
	cl_emit_flush(&report.emit);
	rewind(to);
	n = fread(text, 1, sizeof(text) - 1, to);
	text[n] = 0;
	fclose(to);
	/* without the folds of long lines */
	for (char *fold = text; (fold = strstr(fold, "\n        ")) != NULL; fold++) {
		*fold = ' ';
		memmove(fold + 1, fold + 9, strlen(fold + 9) + 1);
	}
	return text;
}

/* Looks at all of it. @few: without memory for more than a few groups. */
static void look(bool few)
{
	struct rlimit was, none;
	CUipcMemHandle handle;

	start_with(HOUR, CL_COLLECTOR_INLINE);
	CHECK_EQUAL(cl_memory_export(&handle, fake_alloc(SIZE, CONTEXT_A)), CUDA_SUCCESS);
	view = own();
	CHECK_EQUAL(getrlimit(RLIMIT_AS, &was), 0);
	none = was;
	none.rlim_cur = 0;
	if (few)
		CHECK_EQUAL(setrlimit(RLIMIT_AS, &none), 0);
	cl_report_begin(&report);
	CHECK_EQUAL(setrlimit(RLIMIT_AS, &was), 0);
	CHECK(!report.table->mapped == few);
	cl_report_look_begin(&report, &view, view.now);
}

IN_A_CHILD(what_has_no_room_is_counted_by_class_and_kind)
{
	const struct cl_report_group *g;
	uint64_t n = 0, bytes = 0;
	const char *text;

	look(false);
	add_imports(CL_MEMORY, MANY, 10000, SIZE);
	add_imports(CL_EVENT, MANY_EVENTS, 30000, 0);
	add_blocks(false, UNMAPPED);
	add_blocks(true, UNMAPPED);
	cl_report_look_end(&report);
	CHECK(report.table->n <= report.table->size);
	CHECK_EQUAL(report.sums.n[CL_REPORT_NOT_CLOSED], MANY + MANY_EVENTS);
	CHECK_EQUAL(report.sums.bytes[CL_REPORT_NOT_CLOSED], (uint64_t)MANY * SIZE);
	CHECK_EQUAL(report.sums.n[CL_REPORT_ORPHANED], 2 * UNMAPPED);
	for (unsigned int i = 0; i < report.table->n; i++)
		if (report.table->group[i].class == CL_REPORT_NOT_CLOSED && !report.table->group[i].others) {
			CHECK_EQUAL(report.table->group[i].n, 1);
			n++;
			bytes += report.table->group[i].bytes;
		}
	/* of the memory some had room, of all that came after it nothing */
	g = rest_of(CL_REPORT_NOT_CLOSED, CL_MEMORY, false);
	CHECK(g && n > 1000 && n < MANY);
	CHECK_EQUAL(g->n, MANY - n);
	CHECK_EQUAL(g->bytes, (uint64_t)MANY * SIZE - bytes);
	g = rest_of(CL_REPORT_NOT_CLOSED, CL_EVENT, false);
	CHECK(g);
	CHECK_EQUAL(g->n, MANY_EVENTS);
	/* other words are said of virtual memory */
	g = rest_of(CL_REPORT_ORPHANED, CL_MEMORY, true);
	CHECK(g);
	CHECK_EQUAL(g->n, UNMAPPED);
	g = rest_of(CL_REPORT_ORPHANED, CL_MEMORY, false);
	CHECK(g);
	CHECK_EQUAL(g->n, UNMAPPED);
	text = text_of_report();
	/* the rest is the largest group, and the others are summed up */
	CHECK(strstr(text, " of another process open, of many places: the largest of them are\n"));
	CHECK(strstr(text, "has 500 events of another process open, of many places: the largest of them are\n"));
	CHECK(strstr(text, " unmapped 40 blocks (160 KiB) that another process still maps, of many places: the largest of them are\n"));
	CHECK(strstr(text, " ended the context of 40 blocks (160 KiB) that another process still maps, of many places:"));
	CHECK(strstr(text, "  and "));
	cl_report_end(&report);
}

IN_A_CHILD(without_memory_a_few_groups_do_and_the_sums_are_the_same)
{
	const struct cl_report_group *g;

	look(true);
	add_imports(CL_MEMORY, 100, 10000, SIZE);
	add_imports(CL_EVENT, MANY_EVENTS, 30000, 0);
	cl_report_look_end(&report);
	CHECK(report.table->n <= report.table->size);
	CHECK_EQUAL(report.sums.n[CL_REPORT_NOT_CLOSED], 100 + MANY_EVENTS);
	CHECK_EQUAL(report.sums.bytes[CL_REPORT_NOT_CLOSED], 100ull * SIZE);
	g = rest_of(CL_REPORT_NOT_CLOSED, CL_MEMORY, false);
	CHECK(g);
	CHECK_EQUAL(g->n, 100 - (report.table->size - 4));
	g = rest_of(CL_REPORT_NOT_CLOSED, CL_EVENT, false);
	CHECK(g);
	CHECK_EQUAL(g->n, MANY_EVENTS);
	CHECK(strstr(text_of_report(), "has 500 events of another process open, of many places: the largest of them are\n"));
	cl_report_end(&report);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_has_no_room_is_counted_by_class_and_kind),
		cmocka_unit_test(without_memory_a_few_groups_do_and_the_sums_are_the_same),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
