/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the environment that cl_options_read() gets.  The first byte says whether
 * the variables are read as the process's own.  Then the variables follow, each ended by a
 * zero byte or the end of the input.
 *
 * Promised: no crash.  A value that is not allowed is not used: numbers are within their
 * limits or the default.  Complaints are short, printable lines.
 */
#include "shim/base/options.h"
#include "tests/fuzz/fuzz.h"

enum { LARGEST = 4096, VARIABLES = 64 };

static unsigned int complaints;

static void warn(const char *line)
{
	size_t length = strlen(line);

	complaints++;
	PROMISE(length > 0 && length < 512);
	for (size_t i = 0; i < length; i++)
		PROMISE((unsigned char)line[i] >= ' ' && line[i] != 0x7f);
}

static void judge(struct cl_options *options)
{
	struct cl_options limits;
	static char text[2][128];
	char *environment[] = { text[0], NULL };

	for (size_t i = 0; i < cl_option_rows_n; i++) {
		const struct cl_option_row *row = &cl_option_rows[i];
		const struct cl_option_value *v = (void *)((char *)options + row->offset);
		const struct cl_option_value *l = (void *)((char *)&limits + row->offset);

		PROMISE(v->text);
		if (row->kind == cl_option_flag)
			PROMISE(v->number <= 1);
		if (row->kind == cl_option_text || row->kind == cl_option_flag ||
		    row->kind == cl_option_choice)
			continue;
		/* a limit is read by the reader itself, as a value that is allowed */
		if (*row->min) {
			snprintf(text[0], sizeof text[0], "%s=%s", row->name, row->min);
			cl_options_read(&limits, environment, NULL);
			PROMISE(l->from_environment && v->number >= l->number);
		}
		if (*row->max) {
			snprintf(text[0], sizeof text[0], "%s=%s", row->name, row->max);
			cl_options_read(&limits, environment, NULL);
			PROMISE(l->from_environment && v->number <= l->number);
		}
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char text[LARGEST + 1];
	char *environment[VARIABLES + 1], *at = text, *end;
	struct cl_options options, *into = &options;
	size_t n = 0;

	if (!size || size > LARGEST)
		return 0;
	memcpy(text, data, size);
	text[size] = 0;
	end = text + size;
	if (*at++ & 1)
		into = &cl_options;
	for (; at < end && n < VARIABLES; at += strlen(at) + 1)
		environment[n++] = at;
	environment[n] = NULL;
	complaints = 0;
	cl_options_read(into, environment, warn);
	/* one for each option, one for each unknown name */
	PROMISE(complaints <= n + cl_option_rows_n);
	judge(into);
	return 0;
}
