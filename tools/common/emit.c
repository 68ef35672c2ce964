/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for people, or JSON: see emit.h. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/emit.h"
#include "tools/common/keys.h"
#include "tools/common/text.h"

static void begin(struct cu_emit *to, const char *key)
{
	if (!to->json) {
		/* a JSON name is one word; people see blanks */
		printf("%*s", 2 * (to->depth > 0 ? to->depth - 1 : 0), "");
		for (const char *c = key; c && *c; c++)
			putchar(*c == '_' ? ' ' : *c);
		return;
	}
	if (to->more)
		putchar(',');
	if (to->depth)
		printf("\n%*s", 3 * to->depth, "");
	if (key) {
		cu_json_text(key);
		printf(": ");
	}
	to->more = true;
}

/* Fills the line of @key up to the column of the values. */
static void pad(const struct cu_emit *to, const char *key)
{
	int width = 16 - (int)strlen(key);

	printf("%*s", width > 1 ? width : 1, "");
	(void)to;
}

/* Ends the line of @key with @text, which a terminal gets in lines of its width. */
static void put_value(const struct cu_emit *to, const char *key, const char *text)
{
	size_t length = key ? strlen(key) : 0, at = key ? length < 15 ? 16 : length + 1 : 0;

	at += 2 * (size_t)(to->depth > 0 ? to->depth - 1 : 0);
	cu_put_line(stdout, at, key ? at : at + 2, text);
}

void cu_emit_open(struct cu_emit *to, const char *key, char bracket)
{
	if (to->json) {
		begin(to, key);
		putchar(bracket);
		to->more = false;
	} else if (key) {
		begin(to, key);
		putchar('\n');
	}
	to->depth++;
}

void cu_emit_close(struct cu_emit *to, char bracket)
{
	to->depth--;
	if (!to->json)
		return;
	if (to->more)
		printf("\n%*s", 3 * to->depth, "");
	putchar(bracket);
	to->more = true;
	if (!to->depth)
		putchar('\n');
}

void cu_emit_text(struct cu_emit *to, const char *key, const char *text)
{
	size_t size = text ? strlen(text) + 1 : 1;
	char *clean;

	if (!text || !*text) {
		if (to->json) {
			begin(to, key);
			printf("null");
		}
		return;
	}
	clean = malloc(size);
	if (clean)
		cu_clean(clean, size, text, size - 1);
	begin(to, key);
	if (to->json) {
		cu_json_text(clean ? clean : "?");
	} else {
		if (key)
			pad(to, key);
		put_value(to, key, clean ? clean : "?");
	}
	free(clean);
}

/* Writes a member; in JSON also under its new name, if it has one: see keys.h. */
static void plain(struct cu_emit *to, const char *key, enum cu_type type, const char *text)
{
	const char *also = to->json ? cu_key_of(key, type) : NULL;

	if (also) {
		begin(to, also);
		fputs(text, stdout);
	}
	begin(to, key);
	if (!to->json)
		pad(to, key);
	fputs(text, stdout);
	if (!to->json)
		putchar('\n');
}

static void put_number(struct cu_emit *to, const char *key, enum cu_type type, uint64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	plain(to, key, type, text);
}

void cu_emit_number(struct cu_emit *to, const char *key, uint64_t number)
{
	put_number(to, key, CU_NUMBER, number);
}

void cu_emit_bytes(struct cu_emit *to, const char *key, uint64_t bytes)
{
	char text[24];

	if (to->json || to->bytes) {
		put_number(to, key, CU_BYTES, bytes);
		return;
	}
	cu_bytes_long(text, bytes);
	plain(to, key, CU_BYTES, text);
}

void cu_emit_ago(struct cu_emit *to, const char *key, uint64_t ns)
{
	char text[48], duration[24];

	cu_duration(duration, ns);
	if (to->json)
		snprintf(text, sizeof(text), "%" PRIu64 ".%03" PRIu64, ns / 1000000000,
			 ns / 1000000 % 1000);
	else
		snprintf(text, sizeof(text), "%s ago", duration);
	plain(to, key, CU_SECONDS, text);
}

void cu_emit_hex(struct cu_emit *to, const char *key, uint64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "0x%" PRIx64, number);
	cu_emit_text(to, key, text);
}

void cu_emit_bool(struct cu_emit *to, const char *key, bool is)
{
	plain(to, key, CU_BOOLEAN, to->json ? is ? "true" : "false" : is ? "yes" : "no");
}
