/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, times and untrusted texts, written for people: see text.h. */
#include "config.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <wchar.h>

#include "tools/common/text.h"

void cu_bytes_short(char *to, uint64_t bytes)
{
	static const char units[] = "BKMGTPE";
	unsigned int unit = 0;
	uint64_t rest = 0;

	for (; bytes >= 1024; bytes /= 1024, unit++)
		rest = bytes % 1024;
	if (unit && rest * 10 / 1024)
		snprintf(to, 24, "%" PRIu64 ".%" PRIu64 "%c", bytes, rest * 10 / 1024, units[unit]);
	else
		snprintf(to, 24, "%" PRIu64 "%c", bytes, units[unit]);
}

void cu_bytes_long(char *to, uint64_t bytes)
{
	char text[24];
	size_t n;

	cu_bytes_short(text, bytes);
	n = strlen(text) - 1;
	snprintf(to, 24, "%.*s %c%s", (int)(n < 16 ? n : 16), text, text[n], text[n] == 'B' ? "" : "iB");
}

void cu_duration(char *to, uint64_t ns)
{
	uint64_t ms = ns / 1000000, s = ms / 1000, m = s / 60, h = m / 60;

	if (ms < 10)
		snprintf(to, 24, "%" PRIu64 ".%" PRIu64 "ms", ms, ns / 100000 % 10);
	else if (ms < 1000)
		snprintf(to, 24, "%" PRIu64 "ms", ms);
	else if (s < 60)
		snprintf(to, 24, "%" PRIu64 ".%" PRIu64 "s", s, ms % 1000 / 100);
	else if (m < 60)
		snprintf(to, 24, "%" PRIu64 "m%" PRIu64 "s", m, s % 60);
	else if (h < 48)
		snprintf(to, 24, "%" PRIu64 "h%" PRIu64 "m", h, m % 60);
	else
		snprintf(to, 24, "%" PRIu64 "d%" PRIu64 "h", h / 24, h % 24);
}

/*
 * Returns the length of the UTF-8 sequence at @s, of @left bytes, and its code point in *code; 0:
 * it is not well-formed.
 */
static size_t utf8(const unsigned char *s, size_t left, uint32_t *code)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] < 0x80 ? 1 : s[0] >= 0xf5 ? 0 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 :
		   s[0] >= 0xc2 ? 2 : 0;

	if (!n || n > left)
		return 0;
	*code = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		*code = *code << 6 | (s[i] & 0x3f);
	}
	return *code < least[n] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0 : n;
}

/* @escaped: see cu_clean_for(). */
static bool may_be_shown(uint32_t c, bool escaped)
{
	return (c >= 0x20 || escaped) && c != 0x7f && !(c >= 0x80 && c < 0xa0) && /* C0, DEL, C1 */
	       !(c >= 0x200b && c <= 0x200f) && !(c >= 0x2028 && c <= 0x202e) &&
	       !(c >= 0x2060 && c <= 0x206f) && c != 0x061c && c != 0xfeff;
}

void cu_clean_for(char *to, size_t size, const char *from, size_t length, bool escaped)
{
	size_t n, at = 0;
	uint32_t code;

	length = strnlen(from, length);
	for (size_t i = 0; i < length; i += n) {
		n = utf8((const unsigned char *)from + i, length - i, &code);
		if (n && may_be_shown(code, escaped)) {
			if (at + n >= size)
				break;
			memcpy(to + at, from + i, n);
			at += n;
			continue;
		}
		if (at + 1 >= size)
			break;
		to[at++] = '?';
		if (!n)
			n = 1;
	}
	to[at] = 0;
}

void cu_clean(char *to, size_t size, const char *from, size_t length)
{
	cu_clean_for(to, size, from, length, false);
}

size_t cu_width(const char *text)
{
	size_t n = strlen(text), width = 0, bytes;
	bool plain = true;
	mbstate_t state = { 0 };
	wchar_t c;
	int w;

	for (size_t i = 0; i < n && plain; i++)
		plain = (unsigned char)text[i] < 0x80;
	if (plain)
		return n;
	for (; *text; text += bytes) {
		bytes = mbrtowc(&c, text, n, &state);
		if (bytes == (size_t)-1 || bytes == (size_t)-2)
			return width + strlen(text); /* a locale without UTF-8 */
		w = wcwidth(c);
		width += w > 0 ? (size_t)w : 0;
	}
	return width;
}

void cu_json_text(const char *text)
{
	putchar_unlocked('"');
	for (; *text; text++)
		if (*text == '"' || *text == '\\') {
			putchar_unlocked('\\');
			putchar_unlocked(*text);
		} else if ((unsigned char)*text < ' ') {
			printf("\\u%04x", (unsigned char)*text);
		} else {
			putchar_unlocked(*text);
		}
	putchar_unlocked('"');
}

void cu_path_join(const char *folder, const char *path, char *to, size_t size)
{
	char whole[2 * PATH_MAX];
	size_t n = 0;

	if (path[0] == '/' || !folder || folder[0] != '/' ||
	    (size_t)snprintf(whole, sizeof(whole), "%s/%s", folder, path) >= sizeof(whole)) {
		snprintf(to, size, "%s", path);
		return;
	}
	for (const char *at = whole, *next; *at; at = next) {
		size_t length = strcspn(at, "/");

		next = at + length + (at[length] == '/');
		if (!length || (length == 1 && at[0] == '.'))
			continue;
		if (length == 2 && at[0] == '.' && at[1] == '.') {
			while (n && to[--n] != '/')
				;
			continue;
		}
		if (n + length + 2 > size) {
			snprintf(to, size, "%s", path);
			return;
		}
		to[n++] = '/';
		memcpy(to + n, at, length);
		n += length;
	}
	to[n] = 0;
}

const char *cu_path_from_here(const char *path, char *to, size_t size)
{
	char here[PATH_MAX];
	size_t same = 0, n = 0;

	if (path[0] != '/' || !getcwd(here, sizeof(here) - 1))
		return path;
	strcat(here, "/");
	for (size_t i = 0; path[i] && path[i] == here[i]; i++)
		if (path[i] == '/')
			same = i + 1;
	for (const char *up = strchr(here + same, '/'); up && n + 3 < size; up = strchr(up + 1, '/'))
		n += (size_t)snprintf(to + n, size - n, "../");
	n += (size_t)snprintf(to + n, size - n, "%s", path + same);
	return n < size && n < strlen(path) ? to : path;
}

void cu_put_line(FILE *to, size_t at, size_t further, const char *text)
{
	struct winsize size = { .ws_col = 0 };
	size_t width = isatty(fileno(to)) && !ioctl(fileno(to), TIOCGWINSZ, &size) && size.ws_col > further + 20 ?
			       size.ws_col : SIZE_MAX;

	cu_put_within(to, width, at, further, text);
}

void cu_put_within(FILE *to, size_t width, size_t at, size_t further, const char *text)
{
	size_t gap = 0;

	while (*text) {
		size_t length = strcspn(text, " "), blanks = strspn(text + length, " "), columns;
		char word[512];

		snprintf(word, sizeof(word), "%.*s", (int)length, text);
		columns = length < sizeof(word) ? cu_width(word) : length;
		if (gap && at + gap + columns > width) {
			fprintf(to, "\n%*s", (int)further, "");
			at = further;
			gap = 0;
		}
		fprintf(to, "%*s%.*s", (int)gap, "", (int)length, text);
		at += gap + columns;
		gap = blanks;
		text += length + blanks;
	}
	fputc('\n', to);
}
