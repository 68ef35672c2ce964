/* SPDX-License-Identifier: Apache-2.0 */
/* Names and colours for reports: see names.h. */
#include "config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "shim/report/emit.h"
#include "tools/common/names.h"

static bool is_frame(const char *line)
{
	return line[0] == ' ' && line[strspn(line, " ")] == '#';
}

/* Returns true if frame @line is in @function. */
static bool is_in(const char *line, const char *function)
{
	char words[64];
	const char *at;

	snprintf(words, sizeof(words), " in %s", function);
	at = strstr(line, words);
	return at && (at[strlen(words)] == ' ' || at[strlen(words)] == '\n');
}

/* Returns the length of "  WORD:" or "    HINT:" at the start of @line that is to be coloured, or 0. */
static size_t coloured(const char *line, enum cl_emit_colour *colour)
{
	size_t blanks = strspn(line, " "), n = blanks;

	while (isupper((unsigned char)line[n]))
		n++;
	if (n == blanks || line[n] != ':')
		return 0;
	if (blanks == 4 && !strncmp(line + blanks, "HINT", 4)) {
		*colour = CL_EMIT_HINT;
		return n + 1;
	}
	/* no colour for what is no fault in a living process */
	if (blanks != 2 || !strncmp(line, "  HELD:", 7) || !strncmp(line, "  MAPPED:", 9) ||
	    !strncmp(line, "  OPEN:", 7) || !strncmp(line, "  WAITS:", 8) ||
	    !strncmp(line, "  WAITED:", 9))
		return 0;
	*colour = CL_EMIT_FAULT;
	return strcspn(line, "\n");
}

static void put(struct cu_names *names, const char *line)
{
	enum cl_emit_colour colour = CL_EMIT_PLAIN;
	size_t n = names->colour ? coloured(line, &colour) : 0, blanks = n ? strspn(line, " ") : 0;

	if (n)
		fprintf(names->to, "%.*s%s%.*s%s", (int)blanks, line, cl_emit_colours[colour],
			(int)(n - blanks), line + blanks, cl_emit_colours[CL_EMIT_PLAIN]);
	fputs(line + n, names->to);
}

static void put_frame(struct cu_names *names, const char *line)
{
	char *text = NULL;
	size_t size = 0;
	FILE *named;

	if (names->behind_main)
		return;
	named = open_memstream(&text, &size);
	if (named) {
		cu_symbols_add(names->symbols, named, line);
		fclose(named);
	}
	if (!text)
		fputs(line, names->to);
	else if (names->full || !is_in(text, "_start"))
		fputs(text, names->to);
	names->behind_main = !names->full && text && is_in(text, "main");
	free(text);
}

void cu_names_line(struct cu_names *names, const char *line)
{
	if (line[0] == '{' && names->symbols) {
		cu_symbols_add(names->symbols, names->to, line);
	} else if (is_frame(line) && names->symbols) {
		put_frame(names, line);
	} else {
		names->behind_main = false;
		put(names, line);
	}
}

void cu_names_text(struct cu_names *names, char *text)
{
	while (*text) {
		size_t length = strcspn(text, "\n");
		char was;

		length += text[length] == '\n';
		was = text[length];
		text[length] = 0;
		cu_names_line(names, text);
		text[length] = was;
		text += length;
	}
}
