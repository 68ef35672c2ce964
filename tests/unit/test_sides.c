/* SPDX-License-Identifier: Apache-2.0 */
/* What two processes report about the same blocks: merged only where it is the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/sides.h"

#define EXPORTER "{\"type\":\"process\",\"pid\":10,\"when\":\"exit\",\"state\":\"ending\",\"file\":\"exporter-00000a\"}\n"
#define IMPORTER "{\"type\":\"process\",\"pid\":20,\"when\":\"exit\",\"state\":\"ending\",\"file\":\"exporter-000014\"}\n"
#define LIVING "{\"type\":\"process\",\"pid\":20,\"when\":\"look\",\"state\":\"alive\",\"file\":\"exporter-000014\"}\n"
#define NOT_CLOSED(n)                                                                                     \
	"{\"type\":\"group\",\"pid\":20,\"class\":\"not-closed\",\"kind\":\"memory\",\"finding\":true,\"count\":" n \
	",\"items\":[{\"record\":3,\"generation\":7}],\"exporter\":{\"pid\":10,\"file\":\"exporter-00000a\"}}\n"
#define RECLAIMED(n)                                                                                          \
	"{\"type\":\"group\",\"pid\":10,\"class\":\"reclaimed\",\"kind\":\"memory\",\"finding\":true,\"count\":" n \
	",\"items\":[{\"record\":3,\"generation\":7}],\"other\":{\"pid\":20,\"name\":\"x\"},"                  \
	"\"other_stack\":[{\"address\":\"0x1\",\"module\":\"/a]b\"}]}\n"
#define FREED(record)                                                                                      \
	"{\"type\":\"group\",\"pid\":10,\"class\":\"freed-while-mapped\",\"kind\":\"memory\",\"finding\":true," \
	"\"count\":1,\"items\":[{\"record\":" record ",\"generation\":7}],\"other\":{\"pid\":20,\"name\":\"x\"}," \
	"\"stack\":[{\"address\":\"0x1\"}]}\n"
#define HELD                                                                                              \
	"{\"type\":\"group\",\"pid\":10,\"class\":\"held-in-limbo\",\"kind\":\"memory\",\"finding\":true,\"count\":2," \
	"\"items\":[{\"record\":3,\"generation\":7}],\"holders\":[{\"pid\":20,\"name\":\"x\",\"blocks\":1},"   \
	"{\"pid\":30,\"name\":\"y\",\"blocks\":1}]}\n"
#define FREED_LINES "  LEAK: x\n    freed from\n      #0 0x1 (/a+0x1)\n      #1 0x2 (/a+0x2)\n    HINT: x\n"

static struct cu_sides *learned(const char *exporter, const char *importer)
{
	struct cu_sides *sides = cu_sides_new();
	char *copy;

	assert_non_null(sides);
	copy = strdup(exporter);
	cu_sides_learn(sides, copy);
	assert_string_equal(copy, exporter);
	free(copy);
	copy = strdup(importer);
	cu_sides_learn(sides, copy);
	free(copy);
	return sides;
}

/* Which process reports @group of the exporter, when these are the reports. */
static uint32_t told_by(const char *exporter, const char *importer, const char *group)
{
	struct cu_sides *sides = learned(exporter, importer);
	struct cu_side side;
	uint32_t by;

	cu_side_begin(&side, EXPORTER);
	by = cu_sides_told_by(sides, &side, group);
	cu_sides_free(sides);
	return by;
}

static void a_leak_is_told_by_its_importer(void **state)
{
	struct cu_sides *sides = learned(EXPORTER FREED_LINES RECLAIMED("2"), IMPORTER NOT_CLOSED("2"));
	const char *ended, *text, *json;
	struct cu_side side;

	cu_side_begin(&side, IMPORTER);
	assert_int_equal(side.pid, 20);
	assert_true(cu_sides_stands_for(sides, &side, NOT_CLOSED("2"), &ended, &text, &json));
	assert_string_equal(text, "      #0 0x1 (/a+0x1)\n      #1 0x2 (/a+0x2)\n");
	assert_string_equal(json, "[{\"address\":\"0x1\",\"module\":\"/a]b\"}]");
	cu_side_begin(&side, EXPORTER);
	assert_int_equal(cu_sides_told_by(sides, &side, RECLAIMED("2")), 20);
	cu_sides_free(sides);
}

/* The stack is there whatever the report says that happened to the block. */
static void memory_that_was_unmapped_or_destroyed_has_its_stack(void **state)
{
	static const char *const lines[] = {
		"  UNMAPPED: x\n    unmapped from\n      #0 0x1 (/a+0x1)\n    HINT: x\n",
		"  LEAK: x\n    destroyed from\n      #0 0x1 (/a+0x1)\n    HINT: x\n",
	};

	(void)state;
	for (unsigned int i = 0; i < sizeof lines / sizeof *lines; i++) {
		const char *ended, *text, *json;
		char report[2048];
		struct cu_sides *sides;
		struct cu_side side;

		snprintf(report, sizeof report, "%s%s%s", EXPORTER, lines[i], RECLAIMED("2"));
		sides = learned(report, IMPORTER NOT_CLOSED("2"));
		cu_side_begin(&side, IMPORTER);
		assert_true(cu_sides_stands_for(sides, &side, NOT_CLOSED("2"), &ended, &text, &json));
		assert_string_equal(text, "      #0 0x1 (/a+0x1)\n");
		assert_string_equal(ended, i ? "destroyed" : "unmapped");
		cu_sides_free(sides);
	}
}

static void what_the_importer_does_not_tell_stays(void **state)
{
	/* in turn: the importer reports fewer blocks, it lives and uses them, it reports nothing */
	assert_int_equal(told_by(EXPORTER RECLAIMED("3"), IMPORTER NOT_CLOSED("2"), RECLAIMED("3")), 0);
	assert_int_equal(told_by(EXPORTER RECLAIMED("2"), LIVING NOT_CLOSED("2"), RECLAIMED("2")), 0);
	assert_int_equal(told_by(EXPORTER RECLAIMED("2"), IMPORTER, RECLAIMED("2")), 0);
	/* one of two holders reports nothing */
	assert_int_equal(told_by(EXPORTER HELD, IMPORTER NOT_CLOSED("2"), HELD), 0);
}

static void a_block_that_was_closed_later_is_another_bug(void **state)
{
	assert_int_equal(told_by(EXPORTER RECLAIMED("1") FREED("3"), IMPORTER NOT_CLOSED("1"), FREED("3")), 20);
	assert_int_equal(told_by(EXPORTER RECLAIMED("1") FREED("4"), IMPORTER NOT_CLOSED("1"), FREED("4")), 0);
	assert_int_equal(told_by(EXPORTER FREED("3"), IMPORTER, FREED("3")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_leak_is_told_by_its_importer),
		cmocka_unit_test(memory_that_was_unmapped_or_destroyed_has_its_stack),
		cmocka_unit_test(what_the_importer_does_not_tell_stays),
		cmocka_unit_test(a_block_that_was_closed_later_is_another_bug),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
