/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the characters of names of files and processes, which may be any bytes. */
#ifndef CL_UTF8_H
#define CL_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decodes the UTF-8 character at @s, which is NUL-terminated, into *@code.  Returns its length
 * in bytes, or 0 if @s is not valid UTF-8.
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

/* Returns true if a viewer may obey @code: a control, a line end, a change of writing direction. */
static inline bool cl_is_control(uint32_t code)
{
	return code < ' ' || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
	       (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

#endif
