/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo trace`: prints the records of CULIMBO_TRACE as a summary, as a trace for
 * Perfetto (ui.perfetto.dev, chrome://tracing), or as a page for a browser.
 */
#include "config.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/self/self.h"
#include "tools/commands/commands.h"
#include "tools/common/scan.h"
#include "tools/trace/stacks.h"
#include "tools/trace/trace.h"
#include "tools/trace/writers.h"

enum { OPTION_FORMAT = 128 };
enum format { TEXT, JSON, HTML };

static const struct cu_command *speaking;

static void warn(const char *path, const char *text)
{
	cu_error(speaking, "%s %s", path, text);
}

/* Returns true if @path is @base.PID or @base.PID.N. */
static bool is_family(const char *path, const char *base)
{
	size_t length = strlen(base), digits;

	for (int part = 0; part < 2; part++) {
		if (path[length] != '.')
			return false;
		digits = strspn(path + length + 1, "0123456789");
		length += 1 + digits;
		if (!digits)
			return false;
		if (!path[length])
			return true;
	}
	return false;
}

static int add_file(const struct cu_command *command, struct cu_trace *t, const char *path)
{
	const char *why;
	int err = cu_trace_add(t, path, &why, warn);

	if (err == -ENOMEM)
		cu_error(command, "no memory to read '%s'", path);
	else if (err)
		cu_error(command, "'%s' %s", path, why ? why : strerror(-err));
	return err;
}

/*
 * Reads the trace file @name, or all files that CULIMBO_TRACE=@name made.  Returns how many could
 * be read.
 */
static size_t add_argument(const struct cu_command *command, struct cu_trace *t, const char *name)
{
	size_t n = 0, tried = 0, length = 0;
	char *pattern;
	glob_t found;

	if (access(name, F_OK) == 0) {
		n += add_file(command, t, name) == 0;
		return n;
	}
	/* FILE.* with FILE taken literally */
	pattern = malloc(2 * strlen(name) + 3);
	if (!pattern)
		return 0;
	for (const char *c = name; *c; c++) {
		if (strchr("*?[\\", *c))
			pattern[length++] = '\\';
		pattern[length++] = *c;
	}
	memcpy(pattern + length, ".*", 3);
	if (glob(pattern, 0, NULL, &found) == 0) {
		for (size_t i = 0; i < found.gl_pathc; i++)
			if (is_family(found.gl_pathv[i], name)) {
				tried++;
				n += add_file(command, t, found.gl_pathv[i]) == 0;
			}
		globfree(&found);
	}
	free(pattern);
	if (!tried)
		cu_error(command,
			 "there is no '%s', and no '%s.PID'; did the programs run with CULIMBO_TRACE set, and "
			 "did they call CUDA?", name, name);
	return n;
}

static bool format_by_name(const char *path, enum format *format)
{
	const char *dot = strrchr(path, '.');

	if (dot && !strcmp(dot, ".json"))
		*format = JSON;
	else if (dot && (!strcmp(dot, ".html") || !strcmp(dot, ".htm")))
		*format = HTML;
	else if (dot && !strcmp(dot, ".txt"))
		*format = TEXT;
	else
		return false;
	return true;
}

static int write_out(const struct cu_command *command, const struct cu_trace *t, const char *path,
		     enum format format)
{
	bool to_stdout = !path || !strcmp(path, "-");
	FILE *out = to_stdout ? stdout : fopen(path, "we");
	int err = 0;

	if (!out) {
		cu_error(command, "cannot write '%s': %s", path, strerror(errno));
		return CU_FAILED;
	}
	if (format == JSON)
		cu_trace_write_json(out, t);
	else if (format == HTML)
		cu_trace_write_html(out, t);
	else
		err = cu_trace_write_text(out, t);
	if (to_stdout)
		return err ? CU_FAILED : CU_OK; /* culimbo.c checks the writes to stdout */
	if (ferror(out))
		err = -EIO;
	if (fclose(out) && !err)
		err = -errno;
	if (!err)
		return CU_OK;
	cu_error(command, "cannot write '%s': %s", path, strerror(-err));
	return CU_FAILED;
}

/* Reads the call stacks of processes that still run, or were killed, from their exporter files. */
static void find_stacks(const struct cu_command *command, struct cu_trace *t)
{
	int fd;

	cu_directory_set(command, NULL);
	fd = cl_self_open_dir(false); /* without an error message: there may be no directory */
	if (fd < 0)
		return;
	cu_trace_stacks_find(t, fd);
	close(fd);
}

static int trace(const struct cu_command *command, int argc, char **argv)
{
	struct cu_trace t = { .processes = 0 };
	const char *path = NULL, *word = NULL;
	enum format format = TEXT;
	size_t n = 0;
	int got, status = CU_OK;

	speaking = command;
	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case 'o':
			path = optarg;
			break;
		case OPTION_FORMAT:
			word = optarg;
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (word && !strcmp(word, "json"))
		format = JSON;
	else if (word && !strcmp(word, "html"))
		format = HTML;
	else if (word && strcmp(word, "text"))
		return cu_usage_error(command, "--format is text, json or html, not '%s'", word);
	else if (!word && path && strcmp(path, "-") && !format_by_name(path, &format))
		return cu_usage_error(command, "what is '%s' to be? Give it the ending .json, .html or .txt, "
				      "or say --format", path);
	if (optind == argc)
		return cu_usage_error(command, "which FILE? The one that CULIMBO_TRACE named");
	for (int i = optind; i < argc; i++) {
		size_t read = add_argument(command, &t, argv[i]);

		n += read;
		if (!read)
			status = CU_FAILED;
	}
	if (n && format == HTML)
		find_stacks(command, &t);
	if (n && cu_trace_join(&t)) {
		cu_error(command, "no memory for a trace this long; give it fewer files");
		n = 0;
	}
	if (!n)
		status = CU_FAILED;
	else if (write_out(command, &t, path, format) != CU_OK)
		status = CU_FAILED;
	cu_trace_free(&t);
	return status;
}

static const struct cu_option options[] = {
	{ "output", 'o', "FILE", "write to FILE ('-': stdout); .json, .html or .txt tells the format" },
	{ "format", OPTION_FORMAT, "text|json|html", "what to make (default: text, a summary)" },
	{ .name = NULL },
};

static const struct cu_exit exits[] = {
	{ CU_OK, "success" },
	{ CU_FAILED, "a FILE could not be read, or the output not written" },
	{ CU_USAGE, "the command line is wrong" },
	{ 0, NULL },
};

static const struct cu_example examples[] = {
	{ "CULIMBO_TRACE=/tmp/t culimbo run -- python3 serve.py", "record: /tmp/t.PID, one a process" },
	{ "culimbo trace /tmp/t -o t.html", "a page with all of them, for any browser" },
	{ "culimbo trace /tmp/t.4711 --format=json -o - | gzip > t.json.gz", "one, for ui.perfetto.dev" },
	{ .line = NULL },
};

const struct cu_command cu_trace = {
	.name = "trace",
	.arguments = "FILE...",
	.summary = "turn what CULIMBO_TRACE recorded into a picture",
	.help = "Reads the trace files of processes that ran with CULIMBO_TRACE=FILE, and shows the\n"
		"lives of the blocks that they shared, as a summary, as a trace for Perfetto\n"
		"(ui.perfetto.dev or chrome://tracing), or as a page for any browser, without a\n"
		"server.  FILE is a trace file, or the value of CULIMBO_TRACE; then all FILE.PID are\n"
		"read.  Of a damaged file, it reads what it can.",
	.options = options,
	.exits = exits,
	.examples = examples,
	.run = trace,
};
