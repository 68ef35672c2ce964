/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: the meaning of each way to write a value.  Nothing in the environment can do more harm than a
 * message, which explains the error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/base/options.h"

#define S UINT64_C(1000000000)

static char said[4096];
static int said_n;

static void hear(const char *line)
{
	assert_null(strchr(line, '\n'));
	snprintf(said + strlen(said), sizeof(said) - strlen(said), "%s\n", line);
	said_n++;
}

static struct cl_options read_them(const char **environment)
{
	struct cl_options options;

	memset(&options, 0xa5, sizeof(options));
	said[0] = 0;
	said_n = 0;
	cl_options_read(&options, (char **)environment, hear);
	return options;
}

static struct cl_options read_one(const char *entry)
{
	const char *environment[] = { "PATH=/bin", entry, "HOME=/", NULL };

	return read_them(environment);
}

static void defaults_hold_without_a_variable(void **state)
{
	const char *environment[] = { "PATH=/bin", "XCULIMBO_GRACE=9s", "CULIMBO=x", NULL };
	struct cl_options options = read_them(environment);

	assert_int_equal(said_n, 0);
	assert_int_equal(options.disable.number, 0);
	assert_int_equal(options.grace.number, 2 * S);
	assert_string_equal(options.grace.text, "2s");
	assert_int_equal(options.collector.number, CL_COLLECTOR_THREAD);
	assert_string_equal(options.dir.text, "");
	assert_int_equal(options.settle.number, S / 4);
	assert_int_equal(options.max_events.number, 1000);
	assert_int_equal(options.log.number, CL_LOG_WARN);
	assert_int_equal(options.report.number, CL_REPORT_AUTO);
	for (size_t i = 0; i < cl_option_rows_n; i++) {
		const struct cl_option_value *value =
			(const void *)((char *)&options + cl_option_rows[i].offset);

		assert_false(value->from_environment);
		assert_string_equal(value->text, cl_option_rows[i].def);
	}
}

/* A default that cannot be parsed would silently be 0. */
static void every_default_is_a_value_that_may_be_given(void **state)
{
	for (size_t i = 0; i < cl_option_rows_n; i++) {
		char entry[256];
		struct cl_options options, defaults = read_one("A=b");

		snprintf(entry, sizeof(entry), "%s=%s", cl_option_rows[i].name,
			 cl_option_rows[i].def);
		options = read_one(entry);
		assert_string_equal(said, "");
		assert_int_equal(((struct cl_option_value *)((char *)&options +
							      cl_option_rows[i].offset))->number,
				 ((struct cl_option_value *)((char *)&defaults +
							     cl_option_rows[i].offset))->number);
		assert_true(((struct cl_option_value *)((char *)&options +
							cl_option_rows[i].offset))->from_environment);
	}
}

static void the_process_has_defaults_before_it_reads(void **state)
{
	assert_int_equal(cl_options.grace.number, 2 * S);
	assert_int_equal(cl_options.log.number, CL_LOG_WARN);
	assert_string_equal(cl_options.dir.text, "");
}

static void durations_take_units_and_fractions(void **state)
{
	static const struct {
		const char *entry;
		uint64_t number;
	} good[] = {
		{ "CULIMBO_GRACE=0", 0 },
		{ "CULIMBO_GRACE=3", 3 * S },
		{ "CULIMBO_GRACE=1.5s", 3 * S / 2 },
		{ "CULIMBO_GRACE=0.000001", 1000 },
		{ "CULIMBO_GRACE=0.0000019", 1000 },
		{ "CULIMBO_GRACE=1ns", 1 },
		{ "CULIMBO_GRACE=7us", 7000 },
		{ "CULIMBO_GRACE=500ms", S / 2 },
		{ "CULIMBO_GRACE=0.5m", 30 * S },
		{ "CULIMBO_GRACE=1h", 3600 * S },
		{ "CULIMBO_GRACE=60m", 3600 * S },
		{ "CULIMBO_GRACE= 2 s ", 2 * S },
		{ "CULIMBO_GRACE=+2S", 2 * S },
		{ "CULIMBO_GRACE=0000000000000000000000002s", 2 * S },
		{ "CULIMBO_SETTLE=50ms", S / 20 },
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct cl_options options = read_one(good[i].entry);
		struct cl_option_value *value = strstr(good[i].entry, "SETTLE") ? &options.settle :
										  &options.grace;

		assert_string_equal(said, "");
		assert_true(value->from_environment);
		assert_int_equal(value->number, good[i].number);
		assert_string_equal(value->text, strchr(good[i].entry, '=') + 1);
	}
}

static void bad_values_are_told_and_the_default_holds(void **state)
{
	static const struct {
		const char *entry, *why;
	} bad[] = {
		{ "CULIMBO_GRACE=", "\"\" is empty" },
		{ "CULIMBO_GRACE=  ", "is empty" },
		{ "CULIMBO_GRACE=-1s", "\"-1s\" is negative" },
		{ "CULIMBO_GRACE=soon", "\"soon\" is not a duration" },
		{ "CULIMBO_GRACE=.5s", "is not a duration" },
		{ "CULIMBO_GRACE=1.s", "is not a duration" },
		{ "CULIMBO_GRACE=0x10", "has an unknown unit" },
		{ "CULIMBO_GRACE=2 weeks", "has an unknown unit" },
		{ "CULIMBO_GRACE=1s2", "has an unknown unit" },
		{ "CULIMBO_GRACE=1,5s", "has an unknown unit" },
		{ "CULIMBO_GRACE=3601s", "is too large" },
		{ "CULIMBO_GRACE=18446744073709551616ns", "is too large" },
		{ "CULIMBO_GRACE=18446744073709551620ns", "is too large" },
		{ "CULIMBO_GRACE=5124095576031h", "is too large" },
		{ "CULIMBO_GRACE=99999999999999999999999999999999999999", "is too large" },
		{ "CULIMBO_GRACE=nan", "is not a duration" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct cl_options options = read_one(bad[i].entry);

		assert_int_equal(said_n, 1);
		/* the name, the value, what is wrong, what is allowed, what holds */
		assert_ptr_equal(strstr(said, "CULIMBO_GRACE=\""), said);
		if (!strstr(said, bad[i].why))
			fail_msg("'%s' is not in: %s", bad[i].why, said);
		assert_non_null(strstr(said, "a duration from 0 to 1h (units ns, us, ms, s, m, h)"));
		assert_non_null(strstr(said, "; using the default, 2s"));
		assert_int_equal(options.grace.number, 2 * S);
		assert_string_equal(options.grace.text, "2s");
		assert_false(options.grace.from_environment);
	}
	read_one("CULIMBO_SETTLE=49ms");
	assert_non_null(strstr(said, "is too small"));
}

static void counts_are_whole_and_within_their_limits(void **state)
{
	assert_int_equal(read_one("CULIMBO_MAX_EVENTS=4000").max_events.number, 4000);
	assert_int_equal(said_n, 0);
	assert_int_equal(read_one("CULIMBO_MAX_EVENTS=4001").max_events.number, 1000);
	assert_non_null(strstr(said, "allowed is a whole number from 0 to 4000"));
	read_one("CULIMBO_MAX_EVENTS=1.5");
	assert_non_null(strstr(said, "is not a whole number"));
	read_one("CULIMBO_MAX_EVENTS=1K");
	assert_non_null(strstr(said, "is not a whole number"));
}

static void flags_take_the_words_people_use(void **state)
{
	static const char *const yes[] = { "1", "yes", "TRUE", "On" };
	static const char *const no[] = { "0", "no", "false", "OFF" };
	char entry[64];

	for (size_t i = 0; i < 4; i++) {
		snprintf(entry, sizeof(entry), "CULIMBO_DISABLE=%s", yes[i]);
		assert_int_equal(read_one(entry).disable.number, 1);
		assert_int_equal(said_n, 0);
		snprintf(entry, sizeof(entry), "CULIMBO_DISABLE=%s", no[i]);
		assert_int_equal(read_one(entry).disable.number, 0);
		assert_int_equal(said_n, 0);
	}
	assert_int_equal(read_one("CULIMBO_DISABLE=2").disable.number, 0);
	assert_non_null(strstr(said, "allowed is 0 or 1; using the default, 0"));
}

static void choices_suggest_the_nearest_word(void **state)
{
	assert_int_equal(read_one("CULIMBO_COLLECTOR=inline").collector.number, CL_COLLECTOR_INLINE);
	assert_int_equal(read_one("CULIMBO_LOG=Debug").log.number, CL_LOG_DEBUG);
	assert_int_equal(said_n, 0);
	assert_int_equal(read_one("CULIMBO_COLLECTOR=inlnie").collector.number, CL_COLLECTOR_THREAD);
	assert_non_null(strstr(said, "one of thread, inline (did you mean inline?); using the default, thread"));
	read_one("CULIMBO_COLLECTOR=zebra");
	assert_non_null(strstr(said, "one of thread, inline; using the default"));
	read_one("CULIMBO_LOG=fof"); /* two letters swapped are one mistake */
	assert_non_null(strstr(said, "(did you mean off?)"));
	read_one("CULIMBO_LOG=in");
	assert_int_equal(said_n, 1);
}

static void unknown_names_suggest_the_nearest_option(void **state)
{
	char long_name[4000];

	read_one("CULIMBO_GRAEC=1s");
	assert_string_equal(said, "CULIMBO_GRAEC is not an option (did you mean CULIMBO_GRACE?): "
				  "ignored; `culimbo config` lists the options\n");
	read_one("CULIMBO_LOGFILE=x");
	assert_non_null(strstr(said, "(did you mean CULIMBO_LOG_FILE?)"));
	read_one("CULIMBO_grace=x");
	assert_non_null(strstr(said, "(did you mean CULIMBO_GRACE?)"));
	read_one("CULIMBO_XYZZY=1");
	assert_non_null(strstr(said, "CULIMBO_XYZZY is not an option: ignored"));
	read_one("CULIMBO_=1");
	assert_int_equal(said_n, 1);
	assert_null(strstr(said, "did you mean"));
	memset(long_name, 'A', sizeof(long_name));
	memcpy(long_name, "CULIMBO_", 8);
	strcpy(long_name + sizeof(long_name) - 4, "=1");
	read_one(long_name);
	assert_int_equal(said_n, 1);
	assert_true(strlen(said) < 200);
}

static void the_simulated_drivers_names_are_known(void **state)
{
	static const char *const names[] = { "MEMORY", "DEVICES", "DIR",
					     "PROC_ADDRESS", "TAIL", "KERNELS", "NEEDED", "POOL_ACCESS" };
	char entry[64];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(entry, sizeof(entry), "CULIMBO_SIM_%s=1", names[i]);
		read_one(entry);
		assert_string_equal(said, "");
	}
	read_one("CULIMBO_SIM_MEMROY=1");
	assert_non_null(strstr(said, "(did you mean CULIMBO_SIM_MEMORY?)"));
}

static void complaints_are_short_and_printable(void **state)
{
	char entry[4000];

	read_one("CULIMBO_GRACE=\033[2J\n\x7f");
	assert_non_null(strstr(said, "=\"?[2J??\""));
	memset(entry, 'x', sizeof(entry));
	memcpy(entry, "CULIMBO_GRACE=", 14);
	entry[sizeof(entry) - 1] = 0;
	read_one(entry);
	assert_int_equal(said_n, 1);
	assert_non_null(strstr(said, "xxx...\" is not a duration"));
	assert_non_null(strstr(said, "; using the default, 2s"));
	assert_true(strlen(said) < 300);
}

static void a_files_name_is_complained_of_once_of_a_kind(void **state)
{
	read_one("CULIMBO_REPORT_FILE=/tmp/%z%y%x%q{CULIMBO_NO_SUCH_VARIABLE}%q{CULIMBO_NOR_THIS}");
	assert_int_equal(said_n, 2); /* of each kind */
}

static void the_first_of_two_counts_as_for_getenv(void **state)
{
	const char *environment[] = { "CULIMBO_GRACE=1s", "CULIMBO_GRACE=5s", NULL };

	assert_int_equal(read_them(environment).grace.number, S);
}

static int level_at_complaint = -1;

static void keep_level(const char *line)
{
	level_at_complaint = (int)cl_options.log.number;
}

static void complaints_come_when_all_options_hold(void **state)
{
	const char *environment[] = { "CULIMBO_GRACE=bad", "CULIMBO_LOG=off", NULL };

	cl_options_read(&cl_options, (char **)environment, keep_level);
	assert_int_equal(level_at_complaint, CL_LOG_OFF);
}

static void nobody_need_listen(void **state)
{
	const char *environment[] = { "CULIMBO_GRACE=bad", "CULIMBO_NO=1", "CULIMBO_LOG", NULL };
	struct cl_options options;

	cl_options_read(&options, (char **)environment, NULL);
	cl_options_read(&options, NULL, hear);
	assert_int_equal(options.grace.number, 2 * S);
}

/* Programs overwrite their environment to set their title, and change their directory. */
static void the_process_keeps_its_own_copy(void **state)
{
	char dir[] = "CULIMBO_DIR=/some/where", file[] = "CULIMBO_LOG_FILE=a/%p.log";
	char grace[] = "CULIMBO_GRACE=3s", cwd[PATH_MAX], expected[PATH_MAX + 32];
	const char *environment[] = { dir, file, grace, NULL };

	cl_options_read(&cl_options, (char **)environment, hear);
	memset(dir, 'z', sizeof(dir) - 1);
	memset(file, 'z', sizeof(file) - 1);
	memset(grace, 'z', sizeof(grace) - 1);
	assert_string_equal(cl_options.dir.text, "/some/where");
	assert_string_equal(cl_options.grace.text, "3s");
	assert_non_null(getcwd(cwd, sizeof(cwd)));
	snprintf(expected, sizeof(expected), "%s/a/%%p.log", cwd);
	assert_string_equal(cl_options.log_file.text, expected);
}

static void what_is_too_long_to_keep_is_told(void **state)
{
	static char entry[20 * PATH_MAX];
	const char *environment[] = { entry, "CULIMBO_REPORT_FILE=/r", NULL };

	memset(entry, '/', sizeof(entry) - 1);
	memcpy(entry, "CULIMBO_DIR=", 12);
	said[0] = 0;
	cl_options_read(&cl_options, (char **)environment, hear);
	assert_non_null(strstr(said, "is too long"));
	assert_string_equal(cl_options.dir.text, "");
	assert_false(cl_options.dir.from_environment);
	assert_string_equal(cl_options.report_file.text, "/r");
}

/* In a process that may only read, write and exit: any other system call kills it. */
static void reading_makes_no_system_call(void **state)
{
	const char *without[] = { "PATH=/bin", "HOME=/", NULL };
	const char *with[] = { "CULIMBO_GRACE=1s", "CULIMBO_DIR=/x", "CULIMBO_MAX_EVENTS=bad", NULL };
	int status;
	pid_t child;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* the sanitizer makes calls of its own */
#endif
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0))
			_exit(77);
		cl_options_read(&cl_options, (char **)without, hear);
		cl_options_read(&cl_options, (char **)with, hear);
		syscall(SYS_exit, cl_options.grace.number == S ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip(); /* no seccomp here */
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void reading_allocates_nothing(void **state)
{
#if __GLIBC_PREREQ(2, 33) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	const char *environment[] = { "CULIMBO_GRACE=bad", "CULIMBO_NO=1", "CULIMBO_DIR=rel", NULL };
	size_t before = mallinfo2().uordblks;

	cl_options_read(&cl_options, (char **)environment, keep_level);
	assert_int_equal(mallinfo2().uordblks, before);
#else
	skip();
#endif
}

/*
 * A hook may be called before any constructor of culimbo has run.  For this test the program starts itself
 * again and reads its options from .preinit_array.
 */
#define EARLY "--read-early"

static void read_early(int argc, char **argv, char **environment)
{
	const char *ours[] = { "CULIMBO_GRACE=7s", NULL };

	if (argc == 2 && !strcmp(argv[1], EARLY))
		cl_options_read(&cl_options, (char **)ours, NULL);
}
__attribute__((section(".preinit_array"), used)) static void (*const early)(int, char **, char **) =
	read_early;

static void what_was_read_early_holds(void **state)
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child) {
		execl("/proc/self/exe", "test_options", EARLY, NULL);
		_exit(99);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_process_has_defaults_before_it_reads),
		cmocka_unit_test(defaults_hold_without_a_variable),
		cmocka_unit_test(every_default_is_a_value_that_may_be_given),
		cmocka_unit_test(durations_take_units_and_fractions),
		cmocka_unit_test(bad_values_are_told_and_the_default_holds),
		cmocka_unit_test(counts_are_whole_and_within_their_limits),
		cmocka_unit_test(flags_take_the_words_people_use),
		cmocka_unit_test(choices_suggest_the_nearest_word),
		cmocka_unit_test(unknown_names_suggest_the_nearest_option),
		cmocka_unit_test(the_simulated_drivers_names_are_known),
		cmocka_unit_test(complaints_are_short_and_printable),
		cmocka_unit_test(a_files_name_is_complained_of_once_of_a_kind),
		cmocka_unit_test(the_first_of_two_counts_as_for_getenv),
		cmocka_unit_test(complaints_come_when_all_options_hold),
		cmocka_unit_test(nobody_need_listen),
		cmocka_unit_test(the_process_keeps_its_own_copy),
		cmocka_unit_test(what_is_too_long_to_keep_is_told),
		cmocka_unit_test(reading_makes_no_system_call),
		cmocka_unit_test(reading_allocates_nothing),
		cmocka_unit_test(what_was_read_early_holds),
	};

	if (argc == 2 && !strcmp(argv[1], EARLY))
		return cl_options.grace.number == 7 * S ? 0 : 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
