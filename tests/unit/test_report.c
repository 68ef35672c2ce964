/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the report: escapes that let nothing through, readable sizes and ages, patterns of
 * suppressions, names of files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/report/emit.h"
#include "shim/base/log.h"
#include "shim/report/origin.h"
#include "shim/report/report.h"
#include "shim/report/fit.h"
#include "shim/report/fold.h"
#include "shim/report/suppress.h"

/* What @value becomes, in text or in JSON. */
static const char *emitted(const char *value, bool json)
{
	static struct cl_emit emit;
	static char text[4096];
	int ends[2];
	ssize_t n;

	assert_int_equal(pipe(ends), 0);
	cl_emit_begin(&emit, ends[1], json);
	cl_emit_string(&emit, "k", value, "<", ">");
	cl_emit_flush(&emit);
	close(ends[1]);
	n = read(ends[0], text, sizeof(text) - 1);
	close(ends[0]);
	text[n > 0 ? n : 0] = 0;
	return text;
}

static void nothing_gets_through(void **state)
{
	assert_string_equal(emitted("plain \xc3\xa4", false), "<plain \xc3\xa4>");
	assert_string_equal(emitted("a\nb\033[2J\x7f\\", false), "<a\\nb\\x1b[2J\\x7f\\\\>");
	assert_string_equal(emitted("a\nb\"\\\t", true), "\"k\":\"a\\u000ab\\\"\\\\\\u0009\"");
	/* no UTF-8: alone, cut short, too long, a surrogate, too large */
	assert_string_equal(emitted("\xff\xc3", false), "<\\xff\\xc3>");
	assert_string_equal(emitted("\xc0\xaf", false), "<\\xc0\\xaf>");
	assert_string_equal(emitted("\xed\xa0\x80", false), "<\\xed\\xa0\\x80>");
	assert_string_equal(emitted("\xf5\x80\x80\x80", false), "<\\xf5\\x80\\x80\\x80>");
	assert_string_equal(emitted("\xff", true), "\"k\":\"\\ufffd\"");
	/* letters that viewers obey: C1 controls, line ends, the direction of writing */
	assert_string_equal(emitted("\xc2\x9b\xe2\x80\xa8\xe2\x80\xae", false), "<\\x9b\\u2028\\u202e>");
}

static void long_texts_are_whole(void **state)
{
	static struct cl_emit emit;
	static char part[1000], got[40000];
	FILE *f = tmpfile();
	size_t n;

	assert_non_null(f);
	memset(part, 'x', sizeof(part) - 1);
	cl_emit_begin(&emit, fileno(f), false);
	for (int i = 0; i < 30; i++)
		cl_emit_string(&emit, NULL, part, "", "\n");
	cl_emit_flush(&emit);
	rewind(f);
	n = fread(got, 1, sizeof(got), f);
	fclose(f);
	assert_int_equal(n, 30000);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(got[i], i % 1000 == 999 ? '\n' : 'x');
}

/* The parent reads the pipe only when this process has ended. */
static void who_reads_nothing_is_not_waited_for(void **state)
{
	static struct cl_emit emit;
	static char part[1000], got[4096];
	int ends[2];
	ssize_t n, all = 0;

	assert_int_equal(pipe(ends), 0);
	assert_true(cl_is_writable(ends[1], 0));
	memset(part, 'x', sizeof(part) - 1);
	alarm(20); /* a blocked write would wait forever */
	cl_emit_begin(&emit, ends[1], false);
	emit.patience = 1000000;
	for (int i = 0; i < 300; i++)
		cl_emit_string(&emit, NULL, part, "", "\n");
	cl_emit_flush(&emit);
	alarm(0);
	assert_int_equal(emit.error, ETIMEDOUT);
	assert_false(cl_is_writable(ends[1], 0));
	close(ends[1]);
	while ((n = read(ends[0], got, sizeof(got))) > 0)
		all += n;
	/* everything that fits was written, in whole lines */
	assert_true(all > 4096 && all % 1000 == 0);
	close(ends[0]);
}

/* What @text becomes when it is written folded, in pieces of @piece bytes. */
static const char *folded(const char *text, size_t piece)
{
	static struct cl_emit emit;
	static char got[8192], part[64];
	int ends[2];
	ssize_t n;

	assert_int_equal(pipe(ends), 0);
	cl_emit_begin(&emit, ends[1], false);
	emit.fold = true;
	for (; *text; text += strlen(part)) {
		snprintf(part, piece + 1 < sizeof(part) ? piece + 1 : sizeof(part), "%s", text);
		cl_emit_words(&emit, "%s", part);
	}
	cl_emit_flush(&emit);
	close(ends[1]);
	n = read(ends[0], got, sizeof(got) - 1);
	close(ends[0]);
	got[n > 0 ? n : 0] = 0;
	return got;
}

#define FORTY "forty forty forty forty forty forty fort"

static void long_lines_are_folded(void **state)
{
	char word[3000], line[3200];

	for (size_t piece = 1; piece < 60; piece += 29) {
		assert_string_equal(folded("short\n\n  lines\n", piece), "short\n\n  lines\n");
		assert_string_equal(folded("no end", piece), "no end");
		/* 100 columns fit, 101 do not */
		assert_string_equal(folded(FORTY FORTY " 34567890123456789\n", piece), FORTY FORTY " 34567890123456789\n");
		assert_string_equal(folded(FORTY FORTY " 3456789 123456789 1\n", piece),
				    FORTY FORTY " 3456789 123456789 1\n");
		assert_string_equal(folded(FORTY FORTY " 3456789 123456789 12\n", piece),
				    FORTY FORTY " 3456789 123456789\n        12\n");
		/* what is one fact stays together, if that is far enough to the right */
		assert_string_equal(folded(FORTY " forty forty; " FORTY " forty forty\n", piece),
				    FORTY " forty forty;\n        " FORTY " forty forty\n");
		assert_string_equal(folded(FORTY FORTY " forty, forty forty forty\n", piece),
				    FORTY FORTY " forty,\n        forty forty forty\n");
		assert_string_equal(folded("forty; " FORTY " forty forty forty " FORTY "\n", piece),
				    "forty; " FORTY " forty forty forty forty forty forty forty forty\n        forty fort\n");
		/* frames and numbers stay whole */
		assert_string_equal(folded("culimbo: SUMMARY " FORTY FORTY FORTY " a=1\n", piece),
				    "culimbo: SUMMARY " FORTY FORTY FORTY " a=1\n");
		assert_string_equal(folded("      #0 " FORTY FORTY FORTY " a b c\n", piece),
				    "      #0 " FORTY FORTY FORTY " a b c\n");
		/* letters of several bytes, and colours */
		assert_string_equal(folded("\033[1;31m" FORTY FORTY " \xc3\xbc\xc3\xbc 678 0123456789\033[0m\n", piece),
				    "\033[1;31m" FORTY FORTY " \xc3\xbc\xc3\xbc 678 0123456789\033[0m\n");
	}
	/* a word of any length is not broken, and nothing is lost */
	memset(word, 'x', sizeof(word) - 1);
	word[sizeof(word) - 1] = 0;
	snprintf(line, sizeof(line), "%s\n", word);
	assert_string_equal(folded(line, 50), line);
	word[150] = 0;
	snprintf(line, sizeof(line), "  %s y\n", word);
	assert_memory_equal(folded(line, 50), line, 152);
	assert_string_equal(folded(line, 50) + 152, "\n        y\n");
	assert_int_equal(cl_fold_lines(line, strlen(line)), 2);
	assert_int_equal(cl_fold_lines("a\n", 2), 1);
}

static void sizes_and_ages_are_for_people(void **state)
{
	char text[32];

	assert_string_equal(cl_emit_format_bytes(text, 0), "0 B");
	assert_string_equal(cl_emit_format_bytes(text, 1023), "1023 B");
	assert_string_equal(cl_emit_format_bytes(text, 1536), "1.5 KiB");
	assert_string_equal(cl_emit_format_bytes(text, 64u << 20), "64 MiB");
	assert_string_equal(cl_emit_format_bytes(text, UINT64_MAX), "15.9 EiB");
	assert_string_equal(cl_emit_format_age(text, 999999), "0 ms");
	assert_string_equal(cl_emit_format_age(text, 1500000000), "1.5 s");
	assert_string_equal(cl_emit_format_age(text, 600000000000), "10 min");
	assert_string_equal(cl_emit_format_age(text, 3u * 3600 * UINT64_C(1000000000)), "3 h 0 min");
}

static void patterns_match_as_those_of_leaksanitizer(void **state)
{
	static const struct {
		const char *pattern, *name;
		bool matches;
	} of[] = {
		{ "foo", "a_foo_b", true },	{ "foo", "fo", false },
		{ "^foo", "foobar", true },	{ "^foo", "xfoo", false },
		{ "foo$", "xfoo", true },	{ "foo$", "foox", false },
		{ "foo$", "foofoo", true },	{ "^foo$", "foo", true },
		{ "a*c", "xxabbcxx", true },	{ "a*c", "ca", false },
		{ "^a*c$", "abcbc", true },	{ "^a*b*c$", "a_c_b", false },
		{ "*", "x", true },		{ "*x", "aax", true },
		{ "a$b", "a$b", true },		{ "foo", "", false },
		{ "lib*.so", "/usr/lib/libx.so.1", true },
	};

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (cl_suppress_match(of[i].pattern, of[i].name) != of[i].matches)
			fail_msg("%s and %s", of[i].pattern, of[i].name);
	assert_false(cl_suppress_match("x", NULL));
}

static unsigned int complaints;
static void complain(const char *path, unsigned int line, const char *what)
{
	complaints += line;
}

static void files_of_suppressions_are_read(void **state)
{
	char path[] = "/tmp/culimbo-test-report-XXXXXX";
	const char *names[] = { "one", "of two" };
	struct cl_suppressions s;
	int fd = mkstemp(path);
	static const char text[] = "# a comment\n\n  leak:two  \r\nleak:\nrace:x\nleak:three\n"
				   "held:leak:two\nhelt:stack:^x$\ngrace:leak:two\nheld:stack:;";

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	assert_int_equal(cl_suppress_read(&s, path, complain), 0);
	assert_int_equal(s.n, 3);
	assert_int_equal(complaints, 4 + 5 + 8 + 9 + 10); /* their lines */
	assert_int_equal(s.unknown, 2); /* grace is no finding */
	assert_string_equal(s.list[0].pattern, "two");
	assert_string_equal(s.list[1].pattern, "three");
	assert_ptr_equal(cl_suppress_find(&s, NULL, names, 2), &s.list[0]);
	assert_null(cl_suppress_find(&s, NULL, names, 1));
	assert_string_equal(s.list[2].class, "held");
	assert_ptr_equal(cl_suppress_find(&s, "held", names, 2), &s.list[2]);
	assert_null(cl_suppress_find(&s, "not-closed", names, 2));
	cl_suppress_free(&s);
	close(fd);
	unlink(path);
	assert_true(cl_suppress_read(&s, path, complain) < 0);
	assert_int_equal(s.n, 0);
	cl_suppress_free(&s);
}

static const char *const two_stacks[] = {
	"inner", "/lib/a.so", NULL, "middle", "/bin/prog", "/bin/prog+0x10", NULL, "main", NULL, NULL,
	"free_it", NULL, "main", NULL, "other", NULL, "main", NULL, "main", NULL, NULL,
};

static void a_stack_is_suppressed_only_as_a_whole(void **state)
{
	static const struct {
		const char *pattern;
		bool matches;
	} of[] = {
		{ "^inner$;^middle$;^main$", true }, { "^inner$;^main$", false },
		{ "^inner$;...;^main$", true },	     { "...;^main$", true },
		{ "^middle$", false },		     { "...;^middle$;^main$", true },
		{ "^inner$", true },		     { "...;...;^middle$", true },
		{ "^middle$;^inner$", false },	     { "^inner$;^other$", false },
		{ "^inner$;^free_it$", false },	     { "^free_it$;^main$", true },
		{ "...;^main$;^free_it$", false },   { "^inner$;/a.so", false },
		{ "/a.so;/prog+0x10$", true },	     { "^inner$;^middle$;^main$;^main$", false },
		{ "...;^main$;^main$", true },	     { "^inner;...", true },
	};
	/* what a frame without a name calls is another place than what its caller calls */
	static const char *const nameless[] = {
		"inner", NULL, CL_SUPPRESS_NAMELESS, NULL, "middle", NULL, "main", NULL, NULL,
	};
	struct cl_suppression one = { .stack = true };
	struct cl_suppressions s = { .list = &one, .n = 1 };

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		one.pattern = of[i].pattern;
		if (!!cl_suppress_find(&s, NULL, two_stacks, sizeof(two_stacks) / sizeof(two_stacks[0])) != of[i].matches)
			fail_msg("%s", of[i].pattern);
	}
	for (unsigned int i = 0; i < 4; i++) {
		static const char *const patterns[] = { "^middle$", "^inner$;^middle$", "^inner$;...;^main$", "^inner$;*;^main$" };

		one.pattern = patterns[i];
		assert_int_equal(!!cl_suppress_find(&s, NULL, nameless, sizeof(nameless) / sizeof(nameless[0])), i == 2);
	}
}

static void no_suppression_is_made_of_what_all_programs_have(void **state)
{
	struct cl_pattern p = { .cut = false };

	cl_pattern_add(&p, "ffi_call", "/usr/lib/x86_64-linux-gnu/libffi.so.8", 0x7000);
	cl_pattern_add(&p, "PyCFuncPtr_call", "/usr/lib/python3.11/lib-dynload/_ctypes.cpython-311.so", 1);
	cl_pattern_add(&p, "_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0", 2);
	cl_pattern_add(&p, "Py_BytesMain", "/usr/bin/python3.11", 3);
	cl_pattern_add(&p, "cudaIpcGetMemHandle", "/usr/local/cuda/lib64/libcudart.so.12", 4);
	cl_pattern_add(&p, "c10::alloc", "/x/libc10_cuda.so", 4);
	cl_pattern_add(&p, "", "/lib/x86_64-linux-gnu/libc.so.6", 5);
	assert_string_equal(p.text, "");
	cl_pattern_add(&p, "main", "/srv/prog", 0x14b1);
	assert_string_equal(p.text, "...;/prog+0x14b1$");
	/* code without a name, made at run time: its callers stand in other stacks, too */
	p = (struct cl_pattern){ .cut = false };
	cl_pattern_add(&p, "ffi_call", "/usr/lib/libffi.so.8", 0x20);
	cl_pattern_add(&p, "", "", 0x20);
	cl_pattern_add(&p, "work", "/srv/prog", 2);
	cl_pattern_add(&p, "main", "/srv/prog", 2);
	assert_string_equal(p.text, "");
	p = (struct cl_pattern){ .cut = false };
	cl_pattern_add(&p, "load", "/srv/prog", 1);
	cl_pattern_add(&p, "", "", 0x20);
	cl_pattern_add(&p, "main", "/srv/prog", 2);
	assert_string_equal(p.text, "^load$;...;^main$");
	p = (struct cl_pattern){ .cut = false };
	cl_pattern_add(&p, "load", "/srv/prog", 1);
	cl_pattern_add(&p, "", "/srv/prog", 0x20);
	cl_pattern_add(&p, "ffi_call", "/usr/lib/libffi.so.8", 0x20);
	cl_pattern_add(&p, "main", "/srv/prog", 2);
	cl_pattern_add(&p, "_start", "/srv/prog", 2);
	assert_string_equal(p.text, "^load$;/prog+0x20$;...;^main$");
	for (int i = 0; i < 100 && !p.cut; i++)
		cl_pattern_add(&p, "a_function_of_a_program_that_has_a_long_name", "/srv/prog", 2);
	assert_true(p.cut);
	assert_int_equal(p.text[strlen(p.text) - 1], '$');
}

static void stacks_fit(void **state)
{
	unsigned int more, lines, left_out, shown, hidden;

	/* up to 11 lines of other things (a group has 10), and up to 6 stacks of up to 40 frames, of which some are other holders' */
	for (unsigned int others = 2; others <= 11; others++)
		for (unsigned int n = 1; n <= 6; n++)
			for (unsigned int depth = 1; depth <= 40; depth++) {
				struct cl_fit fit = { .n = n };

				lines = others;
				left_out = 0;
				for (unsigned int i = 0; i < n; i++)
					fit.stack[i] = (struct cl_fit_stack){ .lines = 1 + (depth + 7 * i) % 40,
									      .last = i && i < 3 };
				cl_fit(&fit, others);
				for (unsigned int i = 0; i < n; i++) {
					const struct cl_fit_stack *stack = &fit.stack[i];

					left_out += !stack->shown;
					if (!stack->shown)
						continue;
					lines += 1 + stack->shown;
					shown = hidden = 0;
					for (unsigned int f = 0; f < stack->lines; f++) {
						shown += (unsigned int)cl_fit_is_shown(stack, f, &more);
						hidden += more;
					}
					assert_int_equal(shown + hidden, stack->lines);
					assert_int_equal(shown + !!hidden, stack->shown);
					assert_int_not_equal(hidden, 1); /* it would take no less room */
					/* the innermost frame, and if there is room the outermost */
					assert_true(cl_fit_is_shown(stack, 0, &more));
					if (stack->shown > 3)
						assert_true(cl_fit_is_shown(stack, stack->lines - 1, &more));
				}
				assert_int_equal(left_out, fit.left_out);
				assert_true(fit.stack[0].shown);
				assert_true(lines + !!left_out <= CL_FIT_LINES);
				if (fit.n == 1 && others + 1 + fit.stack[0].lines <= CL_FIT_LINES)
					assert_int_equal(fit.stack[0].shown, fit.stack[0].lines);
			}
}

static void paths_have_names(void **state)
{
	char path[256], expected[256], host[128];

	assert_int_equal(cl_path_expand(path, sizeof(path), "%e.%p"), 0);
	snprintf(expected, sizeof(expected), "test_report.%d", (int)getpid());
	assert_string_equal(path, expected);
	assert_int_equal(cl_path_expand(path, sizeof(path), "%h"), 0);
	assert_int_equal(gethostname(host, sizeof(host)), 0);
	assert_string_equal(path, host);
	assert_int_equal(cl_path_expand(path, sizeof(path), "%n"), 0);
	assert_string_equal(path, "test_report");
	assert_int_equal(cl_path_expand(path, 5, "%n"), -36 /* ENAMETOOLONG */);
	assert_true(cl_path_has_pid("a%%%p"));
	assert_false(cl_path_has_pid("a%%p%"));
}

static void origins_are_read(void **state)
{
	static const struct {
		uint64_t seconds;
		const char *text;
	} times[] = {
		{ 0, "1970-01-01T00:00:00Z" },		{ 951782399, "2000-02-28T23:59:59Z" },
		{ 951782400, "2000-02-29T00:00:00Z" },	{ 1709251200, "2024-03-01T00:00:00Z" },
		{ 1795391999, "2026-11-22T23:59:59Z" }, { 4107542399, "2100-02-28T23:59:59Z" },
		{ 4107542400, "2100-03-01T00:00:00Z" },
	};
	char text[64], id[16];

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		cl_report_format_time(times[i].seconds, text, sizeof(text));
		assert_string_equal(text, times[i].text);
	}
	cl_report_take_container("0::/system.slice/docker-"
				 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope\n", id);
	assert_string_equal(id, "0123456789ab");
	cl_report_take_container("1:cpu:/\n0::/user.slice/user-1000.slice/0123456789abcdef\n", id);
	assert_string_equal(id, "");
	cl_report_take_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Nov 1\nGCC version: 12.2",
			      text, sizeof(text));
	assert_string_equal(text, "580.159.04");
	cl_report_take_driver("no version\n1.2", text, sizeof(text));
	assert_string_equal(text, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_gets_through),
		cmocka_unit_test(long_texts_are_whole),
		cmocka_unit_test(who_reads_nothing_is_not_waited_for),
		cmocka_unit_test(long_lines_are_folded),
		cmocka_unit_test(sizes_and_ages_are_for_people),
		cmocka_unit_test(patterns_match_as_those_of_leaksanitizer),
		cmocka_unit_test(files_of_suppressions_are_read),
		cmocka_unit_test(a_stack_is_suppressed_only_as_a_whole),
		cmocka_unit_test(no_suppression_is_made_of_what_all_programs_have),
		cmocka_unit_test(stacks_fit),
		cmocka_unit_test(paths_have_names),
		cmocka_unit_test(origins_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
