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
		cmocka_unit_test(a_block_of_a_pool_is_freed_by_either_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
