/* SPDX-License-Identifier: Apache-2.0 */
/* Letters of other people's words: names of files and processes, which may be any bytes. */
#ifndef CL_UTF8_H
#define CL_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The letter of UTF-8 at @s, NUL-terminated: its length, or 0 when it is none.
 * *code is what it is.
 */
static inline unsigned int cl_utf8(const unsigned char *s, uint32_t *code)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	unsigned int n = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;

	*code = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
	if (n > 1 && (s[0] < 0xc2 || s[0] > 0xf4))
		return 0;
	for (unsigned int i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		*code = *code << 6 | (s[i] & 0x3f);
	}
	if (*code < least[n] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000))
		return 0;
	return n;
}

/* Letters that a viewer may obey: controls, line ends, changes of the writing direction. */
static inline bool cl_is_control(uint32_t code)
{
	return code < ' ' || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
	       (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

#endif
