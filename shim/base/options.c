/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the options (options.def) from the environment.
 *
 * This runs in the constructor of every program under the preload, long
 * before it is known whether the program will share anything.  So these rules always hold:
 *  - Nothing is allocated, the locale and stdio's streams are not used, and no
 *    system call is made, except for one getcwd(2) for each relative file name.
 *  - A bad value never stops the program: the default holds, and a warning says so.
 *  - Warnings come after all options have been read, so that CULIMBO_LOG and
 *    CULIMBO_LOG_FILE already say where warnings go.
 *  - The environment may be hostile or damaged: a value is cut and made
 *    printable before a warning shows it.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim/base/hot.h"
#include "shim/base/nearest.h"
#include "shim/base/options.h"

#define PREFIX "CULIMBO_"
#define PREFIX_LENGTH (sizeof(PREFIX) - 1)

/* How many bytes of a value a warning shows. */
#define SHOWN 64

CL_HOT_DATA struct cl_options cl_options;

const struct cl_option_row cl_option_rows[] = {
#define OPTION(field, name, kind, def, min, max, arg, help) \
	{ name, def, min, max, arg, help, cl_option_##kind, offsetof(struct cl_options, field) },
#include "shim/base/options.def"
#undef OPTION
};
const size_t cl_option_rows_n = sizeof(cl_option_rows) / sizeof(cl_option_rows[0]);
#define ROWS_N (sizeof(cl_option_rows) / sizeof(cl_option_rows[0]))

/* Options of the simulated driver (tools/sim/), which reads them itself: no warning for these. */
static const char *const sim_names[] = {
	PREFIX "SIM_MEMORY", PREFIX "SIM_DEVICES",	PREFIX "SIM_DIR",
	PREFIX "SIM_TAIL",   PREFIX "SIM_PROC_ADDRESS", PREFIX "SIM_KERNELS",
	PREFIX "SIM_NEEDED", PREFIX "SIM_POOL_ACCESS",    PREFIX "SIM_REACH",
};

struct unit {
	const char *name;
	uint64_t scale;
};

static const struct unit duration_units[] = {
	{ "", 1000000000 },    { "ns", 1 },
	{ "us", 1000 },	       { "ms", 1000000 },
	{ "s", 1000000000 },   { "m", 60 * UINT64_C(1000000000) },
	{ "h", 3600 * UINT64_C(1000000000) },
	{ NULL, 0 },
};

static const struct unit size_units[] = {
	{ "", 1 },
	{ "B", 1 },
	{ "K", UINT64_C(1) << 10 }, { "KiB", UINT64_C(1) << 10 },
	{ "M", UINT64_C(1) << 20 }, { "MiB", UINT64_C(1) << 20 },
	{ "G", UINT64_C(1) << 30 }, { "GiB", UINT64_C(1) << 30 },
	{ "T", UINT64_C(1) << 40 }, { "TiB", UINT64_C(1) << 40 },
	{ NULL, 0 },
};

static const struct unit count_units[] = { { "", 1 }, { NULL, 0 } };

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static const char *skip_blanks(const char *s)
{
	while (*s == ' ' || *s == '\t')
		s++;
	return s;
}

static const char *not_one_of(const struct unit *units)
{
	return units == count_units ? "is not a number" : units == size_units ? "is not a size" : "is not a duration";
}

/*
 * Reads a number with a unit.  Only six places of a fraction count, and later ones are dropped:
 * 10^6 times the largest scale still fits 64 bits.
 * Returns NULL, or what is wrong with @text.
 */
static const char *parse_number(const char *text, const struct unit *units, uint64_t *number)
{
	const char *s = skip_blanks(text);
	const struct unit *unit;
	uint64_t whole = 0, part = 0, part_of = 1, value;
	bool overflow = false;
	size_t length;

	if (!*s)
		return "is empty";
	if (*s == '-')
		return "is negative";
	if (*s == '+')
		s++;
	if (!is_digit(*s))
		return not_one_of(units);
	for (; is_digit(*s); s++)
		overflow |= __builtin_mul_overflow(whole, 10, &whole) ||
			    __builtin_add_overflow(whole, (uint64_t)(*s - '0'), &whole);
	if (*s == '.') {
		if (units == count_units)
			return "is not a whole number";
		if (!is_digit(*++s))
			return not_one_of(units);
		for (; is_digit(*s); s++)
			if (part_of < 1000000) {
				part = part * 10 + (uint64_t)(*s - '0');
				part_of *= 10;
			}
	}
	s = skip_blanks(s);
	for (length = strlen(s); length && (s[length - 1] == ' ' || s[length - 1] == '\t');)
		length--;
	for (unit = units; unit->name; unit++)
		if (cl_same_word(s, length, unit->name, strlen(unit->name)))
			break;
	if (!unit->name)
		return units == count_units ? "is not a whole number" : "has an unknown unit";
	if (overflow || __builtin_mul_overflow(whole, unit->scale, &value) ||
	    __builtin_add_overflow(value, part * unit->scale / part_of, &value))
		return "is too large";
	*number = value;
	return NULL;
}

/* Returns @words, with the length up to '|' in *@length, or NULL after the last word. */
static const char *next_word(const char *words, size_t *length)
{
	if (!words)
		return NULL;
	*length = strcspn(words, "|");
	return words;
}

static const char *after_word(const char *word, size_t length)
{
	return word[length] == '|' ? word + length + 1 : NULL;
}

static const char *parse_choice(const char *text, const char *words, uint64_t *number)
{
	const char *word = words;
	size_t length;
	uint64_t place = 0;

	if (!*text)
		return "is empty";
	for (; (word = next_word(word, &length)); word = after_word(word, length), place++)
		if (cl_same_word(text, strlen(text), word, length)) {
			*number = place;
			return NULL;
		}
	return "is unknown";
}

static const char *parse_flag(const char *text, uint64_t *number)
{
	/* each word at an odd place means 1 */
	uint64_t place;
	const char *wrong = parse_choice(text, "0|1|no|yes|off|on|false|true", &place);

	if (!wrong)
		*number = place & 1;
	return wrong;
}

/* Reads @text as a value of option @row.  Returns NULL, or what is wrong with @text. */
static const char *parse(const struct cl_option_row *row, const char *text, uint64_t *number)
{
	const struct unit *units;
	uint64_t value, limit;
	const char *wrong;

	switch (row->kind) {
	case cl_option_text:
		*number = 0;
		return NULL;
	case cl_option_choice:
		return parse_choice(text, row->min, number);
	case cl_option_flag:
		return parse_flag(text, number);
	case cl_option_duration:
		units = duration_units;
		break;
	case cl_option_size:
		units = size_units;
		break;
	default:
		units = count_units;
		break;
	}
	wrong = parse_number(text, units, &value);
	if (wrong)
		return wrong;
	if (*row->min && !parse_number(row->min, units, &limit) && value < limit)
		return "is too small";
	if (*row->max && !parse_number(row->max, units, &limit) && value > limit)
		return "is too large";
	*number = value;
	return NULL;
}

static struct cl_option_value *value_of(struct cl_options *options, const struct cl_option_row *row)
{
	return (struct cl_option_value *)((char *)options + row->offset);
}

static void set_default(struct cl_option_value *value, const struct cl_option_row *row)
{
	value->number = 0;
	parse(row, row->def, &value->number);
	value->text = row->def;
	value->from_environment = false;
}

/*
 * The texts of the process's own options.  They are copies, because some programs overwrite
 * their environment to set their title.  A relative file name is stored as an absolute one,
 * because a program may change its directory: the name means the place where the program started.
 */
static char texts[4 * PATH_MAX];
static size_t texts_used;
static bool process_has_read;

static bool is_path(const struct cl_option_row *row)
{
	return row->kind == cl_option_text &&
	       (!strcmp(row->arg, "FILE") || !strcmp(row->arg, "DIR"));
}

/* Returns true if the option is a file name that may have %p and the like. */
static bool is_pattern(const struct cl_option_row *row)
{
	return is_path(row) && !strcmp(row->arg, "FILE") && strstr(row->help, "%p");
}

/* Returns the value of variable @name of @length bytes, the first one like getenv(), or NULL. */
static const char *environment_value(char **environment, const char *name, size_t length)
{
	for (; environment && *environment; environment++)
		if (!strncmp(*environment, name, length) && (*environment)[length] == '=')
			return *environment + length + 1;
	return NULL;
}

/*
 * Reads the placeholder at the '%' where @text begins, and stores its length.  If it is %q{NAME},
 * stores where NAME is, else sets *@name to NULL.  Returns true if the placeholder is known.
 */
static bool pattern_piece(const char *text, size_t *length, const char **name, size_t *name_length)
{
	*name = NULL;
	*length = text[1] ? 2 : 1;
	if (text[1] == 'q' && text[2] == '{') {
		*name_length = strcspn(text + 3, "}");
		if (*name_length && text[3 + *name_length] == '}') {
			*name = text + 3;
			*length = *name_length + 4;
			return true;
		}
		return false;
	}
	return text[1] && strchr("pnhe%", text[1]);
}

/*
 * Copies @text to @to, which has @room bytes, and replaces each %q{VAR} by the value that the
 * variable has now: later the program may overwrite it.  Returns the length of the copy
 * with its NUL, or 0 if it does not fit.
 */
static size_t keep_pattern(char *to, size_t room, const char *text, char **environment)
{
	size_t n = 0, length, name_length;
	const char *name, *value;

	for (; *text; text += length) {
		length = 1;
		name = NULL;
		if (*text == '%')
			pattern_piece(text, &length, &name, &name_length);
		if (!name) {
			if (room - n < length + 1)
				return 0;
			memcpy(to + n, text, length);
			n += length;
			continue;
		}
		value = environment_value(environment, name, name_length);
		if (!value)
			value = environment_value(environ, name, name_length);
		for (; value && *value; value++) {
			if (room - n < 3)
				return 0;
			to[n++] = *value;
			if (*value == '%') /* doubled: a % of the value is no placeholder */
				to[n++] = '%';
		}
	}
	to[n++] = 0;
	return n;
}

/* Copies @text to `texts`: a relative file name as an absolute one, with each %q{VAR} replaced.  NULL: it does not fit. */
static const char *keep(const struct cl_option_row *row, const char *text, char **environment)
{
	size_t length, room = sizeof(texts) - texts_used;
	char *start = texts + texts_used, *end = start;
	int error = errno;

	if (is_path(row) && *text && *text != '/' && getcwd(start, room) && *start == '/') {
		/* getcwd() may say "(unreachable)...": then the name stays relative */
		end += strlen(start);
		*end++ = '/'; /* over the NUL of getcwd() */
		room -= (size_t)(end - start);
	}
	errno = error;
	if (is_pattern(row)) {
		length = room ? keep_pattern(end, room, text, environment) : 0;
		if (!length)
			return NULL;
	} else {
		length = strlen(text) + 1;
		if (length > room)
			return NULL;
		memcpy(end, text, length);
	}
	texts_used = (size_t)(end - texts) + length;
	return start;
}

/* A warning in the making.  Text that does not fit is dropped. */
struct line {
	char text[512];
	size_t length;
};

static void add(struct line *line, const char *text, size_t length)
{
	for (; length && line->length < sizeof(line->text) - 1; length--, text++)
		line->text[line->length++] = (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text;
	line->text[line->length] = 0;
}

static void say(struct line *line, const char *text)
{
	add(line, text, strlen(text));
}

/* Adds @value in quotes, at most SHOWN bytes of it. */
static void quote(struct line *line, const char *value)
{
	size_t length = strlen(value);

	say(line, "\"");
	add(line, value, length > SHOWN ? SHOWN : length);
	say(line, length > SHOWN ? "...\"" : "\"");
}

static void say_allowed(struct line *line, const struct cl_option_row *row, const char *value)
{
	static const char *const what[] = {
		[cl_option_duration] = "a duration", [cl_option_size] = "a size",
		[cl_option_count] = "a whole number", [cl_option_flag] = "0 or 1",
		[cl_option_text] = "a text", [cl_option_choice] = "one of ",
	};
	static const char *const units[] = {
		[cl_option_duration] = " (units ns, us, ms, s, m, h)",
		[cl_option_size] = " (units B, KiB, MiB, GiB, TiB)",
		[cl_option_choice] = "",
	};
	const char *word, *best = NULL;
	size_t length, best_length = 0, distance, best_distance = SIZE_MAX;

	say(line, what[row->kind]);
	if (row->kind == cl_option_choice) {
		for (word = row->min; (word = next_word(word, &length)); word = after_word(word, length)) {
			say(line, word == row->min ? "" : ", ");
			add(line, word, length);
			distance = cl_word_distance(value, strlen(value), word, length);
			if (distance < best_distance && cl_word_near(distance, length)) {
				best_distance = distance;
				best = word;
				best_length = length;
			}
		}
		if (best) {
			say(line, " (did you mean ");
			add(line, best, best_length);
			say(line, "?)");
		}
		return;
	}
	if (row->kind != cl_option_flag && *row->min) {
		say(line, " from ");
		say(line, row->min);
	}
	if (row->kind != cl_option_flag && *row->max) {
		say(line, " to ");
		say(line, row->max);
	}
	if (units[row->kind])
		say(line, units[row->kind]);
}

static void complain_value(const struct cl_option_row *row, const char *value, const char *wrong,
			   cl_warn_fn *warn)
{
	struct line line = { .length = 0 };

	say(&line, row->name);
	say(&line, "=");
	quote(&line, value);
	say(&line, " ");
	say(&line, wrong);
	say(&line, ": allowed is ");
	say_allowed(&line, row, value);
	say(&line, "; using the default, ");
	say(&line, *row->def ? row->def : "none");
	warn(line.text);
}

/* Warns of the first unknown placeholder in file name @text, and of the first unset variable. */
static void complain_pattern(const struct cl_option_row *row, const char *text, char **environment,
			     cl_warn_fn *warn)
{
	size_t length, name_length;
	bool told[2] = { false, false }; /* one warning of each kind, not one for each placeholder */
	const char *name;

	for (; *text; text += length) {
		struct line line = { .length = 0 };
		bool known;

		length = 1;
		if (*text != '%')
			continue;
		known = pattern_piece(text, &length, &name, &name_length);
		if (known && (!name || environment_value(environment, name, name_length) ||
			      environment_value(environ, name, name_length)))
			continue;
		if (told[known])
			continue;
		told[known] = true;
		say(&line, row->name);
		say(&line, ": \"");
		add(&line, text, length > SHOWN ? SHOWN : length);
		say(&line, known ? "\" names a variable that is not set: taken as empty" :
				   "\" is taken as it stands: known are %p (process id), %n (its name), %h "
				   "(host), %e (executable), %q{VARIABLE} and %%");
		warn(line.text);
	}
}

static void complain_name(const char *name, size_t length, cl_warn_fn *warn)
{
	struct line line = { .length = 0 };
	const char *best = NULL;
	size_t best_distance = SIZE_MAX;

	for (size_t i = 0; i < ROWS_N + sizeof(sim_names) / sizeof(sim_names[0]); i++) {
		const char *known = i < ROWS_N ? cl_option_rows[i].name : sim_names[i - ROWS_N];
		size_t known_length = strlen(known), distance;

		if (length == known_length && !strncmp(name, known, length))
			return;
		/* all names share the prefix: compare only the rest */
		distance = cl_word_distance(name + PREFIX_LENGTH, length - PREFIX_LENGTH,
					    known + PREFIX_LENGTH, known_length - PREFIX_LENGTH);
		if (distance < best_distance &&
		    cl_word_near(distance, known_length - PREFIX_LENGTH)) {
			best_distance = distance;
			best = known;
		}
	}
	add(&line, name, length > SHOWN ? SHOWN : length);
	say(&line, length > SHOWN ? "... is not an option" : " is not an option");
	if (best) {
		say(&line, " (did you mean ");
		say(&line, best);
		say(&line, "?)");
	}
	say(&line, ": ignored; `culimbo config` lists the options");
	warn(line.text);
}

/* https://no-color.org: with NO_COLOR a program colours nothing unless it is told to. */
static void heed_no_color(struct cl_options *options, char **environment)
{
	const char *no = environment ? environment_value(environment, "NO_COLOR", 8) : NULL;

	if (no && *no && options->color.number == CL_COLOR_AUTO)
		options->color.number = CL_COLOR_NEVER;
}

void cl_options_read(struct cl_options *options, char **environment, cl_warn_fn *warn)
{
	const char *given[ROWS_N] = { NULL }, *wrong[ROWS_N] = { NULL };
	bool any = false;

	for (size_t i = 0; i < ROWS_N; i++)
		set_default(value_of(options, &cl_option_rows[i]), &cl_option_rows[i]);
	if (options == &cl_options) {
		process_has_read = true;
		texts_used = 0;
	}
	heed_no_color(options, environment);
	for (char **e = environment; e && *e && !any; e++)
		any = !strncmp(*e, PREFIX, PREFIX_LENGTH);
	if (!any)
		return;

	for (size_t i = 0; i < ROWS_N; i++) {
		const struct cl_option_row *row = &cl_option_rows[i];
		struct cl_option_value *value = value_of(options, row);
		const char *text;

		given[i] = text = environment_value(environment, row->name, strlen(row->name));
		if (!text)
			continue;
		wrong[i] = parse(row, text, &value->number);
		if (!wrong[i] && options == &cl_options) {
			text = keep(row, text, environment);
			if (!text) {
				set_default(value, row);
				wrong[i] = "is too long";
			}
		}
		if (wrong[i])
			continue;
		value->text = text;
		value->from_environment = true;
	}
	heed_no_color(options, environment);
	if (!warn)
		return;
	for (size_t i = 0; i < ROWS_N; i++)
		if (wrong[i])
			complain_value(&cl_option_rows[i], given[i], wrong[i], warn);
	for (size_t i = 0; i < ROWS_N; i++)
		if (given[i] && !wrong[i] && is_pattern(&cl_option_rows[i]))
			complain_pattern(&cl_option_rows[i], given[i], environment, warn);
	for (; *environment; environment++) {
		const char *equals;

		if (!strncmp(*environment, PREFIX, PREFIX_LENGTH) &&
		    (equals = strchr(*environment, '=')))
			complain_name(*environment, (size_t)(equals - *environment), warn);
	}
}

/*
 * Sets the defaults, for code that runs before the preload reads the options.  Another library's
 * constructor may run even earlier: it sees zeros in all options, unless it has called
 * a hook, which reads the options.  Options that were read are not touched here.
 */
__attribute__((constructor(101))) static void set_defaults(void)
{
	if (!process_has_read)
		cl_options_read(&cl_options, NULL, NULL);
}
