/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: environment variables, from the one table in options.def.
 *
 * A bad value never stops a program: it is warned about once, with what is
 * allowed, and the default holds.  An unknown CULIMBO_ name is warned about
 * with the nearest right one.
 */
#ifndef CL_OPTIONS_H
#define CL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cl_option_kind {
	cl_option_duration, /* uint64_t, nanoseconds; 500ms, 2s, 1m, 1h; a bare number is seconds */
	cl_option_size,	    /* uint64_t, bytes; 64MiB, 1GiB, 4KiB, 4096 */
	cl_option_count,    /* uint64_t */
	cl_option_flag,	    /* uint64_t, 0 or 1 */
	cl_option_text,	    /* const char *, "" for none */
	cl_option_choice,   /* uint64_t, the place of the word in the table's list */
};

/* The places of the words of each choice, as the table lists them. */
enum { CL_COLLECTOR_THREAD, CL_COLLECTOR_INLINE };
enum { CL_LOG_OFF, CL_LOG_ERROR, CL_LOG_WARN, CL_LOG_INFO, CL_LOG_DEBUG };
enum { CL_REPORT_AUTO, CL_REPORT_ALWAYS, CL_REPORT_OFF };
enum { CL_FORMAT_TEXT, CL_FORMAT_JSONL, CL_FORMAT_BOTH };

struct cl_option_value {
	uint64_t number;
	const char *text;     /* of a text option; else the value as it was given, or the default */
	bool from_environment; /* false: the default */
};

/* One member an option, by the field name in options.def. */
struct cl_options {
#define OPTION(field, name, kind, def, min, max, arg, help) struct cl_option_value field;
#include "shim/base/options.def"
#undef OPTION
};

/* The options of this process: defaults until cl_options_read() ran. */
extern struct cl_options cl_options;

/* What the table says of each, in its order, for `culimbo config`. */
struct cl_option_row {
	const char *name, *def, *min, *max, *arg, *help;
	enum cl_option_kind kind;
	size_t offset; /* of its value in struct cl_options */
};
extern const struct cl_option_row cl_option_rows[];
extern const size_t cl_option_rows_n;

/*
 * Reads all options from @environ (a NULL-terminated list of NAME=value) into
 * @options.  Each complaint is one line without a newline, given to @warn
 * (which may be NULL), after all options have been read.  Allocates nothing.
 *
 * The text of each value points into @environment, which the caller keeps
 * alive; but cl_options, the process's own, has copies (programs write over
 * their environment), where a relative FILE or DIR has become absolute
 * (programs change their directory), and %q{VAR} in a FILE's name what it stands for.  Only one thread may read cl_options in.
 */
typedef void cl_warn_fn(const char *line);
void cl_options_read(struct cl_options *options, char **environment, cl_warn_fn *warn);

#endif
