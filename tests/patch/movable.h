/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells which instructions a patcher can move to another place: those that UCX 1.22 moves,
 * and no others (shim/base/patchable.h lists them).
 */
#ifndef TESTS_PATCH_MOVABLE_H
#define TESTS_PATCH_MOVABLE_H

#include <stdint.h>
#include <string.h>

/* How many bytes a patch takes at most. */
enum { PATCH_X86_64 = 14, PATCH_AARCH64 = 16 };

/* The length of the instruction at @code, or 0 if it can't be moved.  Reads up to 8 bytes. */
static inline unsigned int movable_x86_64(const uint8_t *code)
{
	/* push %reg */
	if ((code[0] & 0xf0) == 0x50)
		return 1;
	if (code[0] == 0x41 && (code[1] & 0xf0) == 0x50)
		return 2;
	/* mov $imm32, %reg */
	if ((code[0] & 0xf8) == 0xb8)
		return 5;
	if (code[0] != 0x48)
		return 0;
	/* sub $imm, %rsp */
	if (code[1] == 0x83 && code[2] == 0xec)
		return 4;
	if (code[1] == 0x81 && code[2] == 0xec)
		return 7;
	if (code[1] != 0x89)
		return 0;
	/* mov %rsp, %rbp; mov %reg, disp(%rsp) */
	if (code[2] == 0xe5)
		return 3;
	if ((code[2] & 0x07) == 4 && code[2] >> 6 == 1)
		return 5;
	if ((code[2] & 0x07) == 4 && code[2] >> 6 == 2)
		return 8;
	/* What UCX has to rewrite to move it (a cmpl by %rip, a short jump) is not allowed here. */
	return 0;
}

static inline unsigned int movable_aarch64(const uint8_t *code)
{
	uint32_t word;

	memcpy(&word, code, sizeof(word));
	/* stp; cmp of registers */
	if ((word & 0xffc00000) == 0xa8800000 || (word & 0xffc00000) == 0xa9800000 ||
	    (word & 0xffc00000) == 0xa9000000 || (word & 0x7fc0001f) == 0x6b00001f)
		return 4;
	/* movk; mov of registers; mov from and to sp; movz; ldr by a register */
	if ((word & 0x7f800000) == 0x72800000 || (word & 0x7fe0ffe0) == 0x2a0003e0 ||
	    (word & 0x7ffffc00) == 0x11000000 || (word & 0x7f800000) == 0x52800000 ||
	    (word & 0xbfe00400) == 0xb8400400 || (word & 0xbfc00000) == 0xb9400000)
		return 4;
	/* Not adrp: UCX moves it, but to another address than it had. */
	return 0;
}

/* The length of a jump elsewhere at @code, direct or through memory or a register, or 0. */
static inline unsigned int jump_x86_64(const uint8_t *code)
{
	if (code[0] == 0xe9)
		return 5;
	return code[0] == 0xff && code[1] == 0x25 ? 6 : 0;
}

static inline unsigned int jump_aarch64(const uint8_t *code)
{
	uint32_t word;

	memcpy(&word, code, sizeof(word));
	return (word & 0xfc000000) == 0x14000000 || (word & 0xfffffc1f) == 0xd61f0000 ? 4 : 0;
}

#endif
