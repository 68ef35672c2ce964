/* SPDX-License-Identifier: Apache-2.0 */
/* Reads members of the objects of a report, in the form in which shim/report/emit.c writes them. */
#ifndef CU_OBJECTS_H
#define CU_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of the first @key in @object, or 0. */
static inline uint64_t cu_object_number(const char *object, const char *key)
{
	char word[40];
	const char *at;

	snprintf(word, sizeof(word), "\"%s\":", key);
	at = strstr(object, word);
	return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

/* Copies the text of the first @key in @object, which has no escapes.  Returns false if there is none. */
static inline bool cu_object_text(const char *object, const char *key, char *to, size_t size)
{
	char word[40];
	const char *at;
	size_t n;

	snprintf(word, sizeof(word), "\"%s\":\"", key);
	at = strstr(object, word);
	if (!at)
		return false;
	at += strlen(word);
	n = strcspn(at, "\"");
	snprintf(to, size, "%.*s", (int)(n < size ? n : size - 1), at);
	return true;
}

/*
 * Returns the elements of the array @key of @object, and in *end its closing bracket; NULL if
 * there is none.  The array may contain no other array.
 */
static inline char *cu_object_array(char *object, const char *key, char **end)
{
	char word[40], *first, *at;
	bool quoted = false;

	if (snprintf(word, sizeof(word), "\"%s\":[", key) >= (int)sizeof(word))
		return NULL;
	at = strstr(object, word);
	if (!at)
		return NULL;
	first = at += strlen(word);
	for (; *at && (quoted || *at != ']'); at++) {
		if (quoted && *at == '\\' && at[1])
			at++;
		else if (*at == '"')
			quoted = !quoted;
	}
	*end = at;
	return *at ? first : NULL;
}

#endif
