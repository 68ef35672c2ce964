/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options: environment variables, from the one table in options.def.
 *
 * A bad value never stops a program: the default holds, and one warning says which values are
 * allowed.  A warning about an unknown CULIMBO_ name suggests the nearest known name.
 * Any thread may read cl_options: it does not change after it was read from the environment.
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
	cl_option_choice,   /* uint64_t, the index of the word in the table's list */
};

/* The indices of the words of each choice, in the order of the table. */
enum { CL_MODE_PROTECT, CL_MODE_OBSERVE };
enum { CL_SHARE_CUDA, CL_SHARE_ALL, CL_SHARE_ALL_VISIBLE, CL_SHARE_ALL_FORCE, CL_SHARE_ALL_VISIBLE_FORCE };
enum { CL_COLLECTOR_THREAD, CL_COLLECTOR_INLINE };
enum { CL_LOG_OFF, CL_LOG_ERROR, CL_LOG_WARN, CL_LOG_INFO, CL_LOG_DEBUG };
enum { CL_REPORT_AUTO, CL_REPORT_ALWAYS, CL_REPORT_OFF };
enum { CL_COLOR_AUTO, CL_COLOR_ALWAYS, CL_COLOR_NEVER };
enum { CL_FORMAT_TEXT, CL_FORMAT_JSONL, CL_FORMAT_BOTH };

struct cl_option_value {
	uint64_t number;
	const char *text;      /* the value as the environment has it, or the default */
	bool from_environment; /* false: the default */
};

/* One member for each option, with the field name of options.def. */
struct cl_options {
#define OPTION(field, name, kind, def, min, max, arg, help) struct cl_option_value field;
#include "shim/base/options.def"
#undef OPTION
};

/* The options of this process: the defaults until cl_options_read() has run. */
extern struct cl_options cl_options;
/* Returns true under CULIMBO_MODE=observe: findings are made, and nothing is kept or refused. */
#define cl_observes() __builtin_expect(cl_options.mode.number == CL_MODE_OBSERVE, 0)

/* Returns true under CULIMBO_SHARE=all: also what CUDA refuses to share is to be shared.  One load. */
#define cl_shares_all() __builtin_expect(cl_options.share.number != CL_SHARE_CUDA, 0)

/* Returns true if the program may read that such memory can be shared. */
static inline bool cl_shares_visibly(void)
{
	return cl_options.share.number == CL_SHARE_ALL_VISIBLE || cl_options.share.number == CL_SHARE_ALL_VISIBLE_FORCE;
}

/* Returns true if such memory is to be shared also by drivers that are said to become slow by that. */
static inline bool cl_shares_by_force(void)
{
	return cl_options.share.number == CL_SHARE_ALL_FORCE || cl_options.share.number == CL_SHARE_ALL_VISIBLE_FORCE;
}

/* The rows of the table, in its order, for `culimbo config`. */
struct cl_option_row {
	const char *name, *def, *min, *max, *arg, *help;
	enum cl_option_kind kind;
	size_t offset; /* of the value in struct cl_options */
};
extern const struct cl_option_row cl_option_rows[];
extern const size_t cl_option_rows_n;

/*
 * Reads all options from @environment, a NULL-terminated list of NAME=value, into @options.
 * Afterwards calls @warn, which may be NULL, with each warning: one line without a newline.
 * Allocates nothing.
 *
 * The text of a value points into @environment, which the caller keeps alive.  The process's own
 * cl_options has copies instead, because programs overwrite their environment.  In a copy a
 * relative FILE or DIR is absolute, and %q{VAR} in a FILE is replaced by the variable's value.
 * The caller lets only one thread at a time read into cl_options.
 */
typedef void cl_warn_fn(const char *line);
void cl_options_read(struct cl_options *options, char **environment, cl_warn_fn *warn);

#endif
