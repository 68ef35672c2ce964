/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the report: its titles and hints, of groups that are made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "shim/report/hint.h"
#include "shim/report/report_table.h"
#include "shim/report/title.h"

/* The hint for one block of @kind of @class, of a process that lives. */
static const char *hint(enum cl_report_class class, enum cl_kind kind)
{
	static struct cl_report report;
	struct cl_report_group group = { .class = (uint8_t)class, .kind = (uint8_t)kind, .n = 1 };
	static char text[512];

	report.dirfd = -1;
	cl_report_make_hint(&report, &group, text);
	return text;
}

/* The title and the hint for two blocks of 4 KiB of @class, which process 7 has freed, and which nobody holds. */
static const char *told(enum cl_report_class class, bool at_exit, bool dead)
{
	static struct cl_report report;
	struct cl_report_group group = { .class = (uint8_t)class, .kind = CL_MEMORY, .n = 2, .bytes = 4096 };
	static char text[1100], what_to_do[512];

	report = (struct cl_report){ .dirfd = -1, .at_exit = at_exit, .process.who.pid = 7,
				     .process.collects = true, .process.state = dead ? CL_DEAD : CL_ALIVE };
	cl_report_make_title(&report, &group, text);
	cl_report_make_hint(&report, &group, what_to_do);
	strcat(strcat(text, "; "), what_to_do);
	return text;
}

static void what_waits_at_the_end_waits_no_longer(void **state)
{
	const enum cl_report_class waits[] = { CL_REPORT_GRACE, CL_REPORT_LIMBO };

	for (unsigned int i = 0; i < 2; i++) {
		assert_string_equal(told(waits[i], true, false),
				    "WAITED: 2 blocks (4 KiB) freed by process 7, whose end gives them back to the driver; "
				    "nothing to do: its process ends, and the driver has the memory back then");
		assert_string_equal(told(waits[i], false, true),
				    "WAITED: 2 blocks (4 KiB) freed by process 7, whose end gave them back to the driver; "
				    "nothing to do: its process has ended, and the driver has the memory back");
	}
	assert_non_null(strstr(told(CL_REPORT_GRACE, false, false), "waiting out the grace of the last export; nothing to do: a"));
	assert_non_null(strstr(told(CL_REPORT_LIMBO, false, false), "on the way back to the driver; nothing to do"));
}

static void a_block_of_a_pool_is_freed_by_either_call(void **state)
{
	assert_string_equal(hint(CL_REPORT_EXPORTED_AFTER_FREE, CL_POOL),
			    "export it before cudaFree or cudaFreeAsync, or keep it until its importers are done");
	assert_string_equal(hint(CL_REPORT_FREED_TWICE, CL_POOL),
			    "remove one of the two cudaFree or cudaFreeAsync calls: by the second one another block may be there");
	assert_string_equal(hint(CL_REPORT_EXPORTED_AFTER_FREE, CL_MEMORY),
			    "export it before cudaFree, or keep it until its importers are done");
	assert_string_equal(hint(CL_REPORT_EXPORTED_AFTER_FREE, CL_EVENT),
			    "export it before cudaEventDestroy, or keep it until its importers are done");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_waits_at_the_end_waits_no_longer),
		cmocka_unit_test(a_block_of_a_pool_is_freed_by_either_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
