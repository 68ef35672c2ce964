/* SPDX-License-Identifier: Apache-2.0 */
/* Patches functions: see patcher.h. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/patch/movable.h"
#include "tests/patch/patcher.h"

#if defined(__x86_64__)
enum { patch_bytes = PATCH_X86_64 };
#define movable movable_x86_64
#elif defined(__aarch64__)
enum { patch_bytes = PATCH_AARCH64 };
#define movable movable_aarch64
#endif

/* Writes to code.  Other threads may run the same page meanwhile. */
static bool code_write(void *to, const void *from, size_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)to & ~(page - 1);
	size_t range = (uintptr_t)to + bytes - first;

	if (mprotect((void *)first, range, PROT_READ | PROT_WRITE | PROT_EXEC))
		return false;
	memcpy(to, from, bytes);
	__builtin___clear_cache((char *)to, (char *)to + bytes);
	return !mprotect((void *)first, range, PROT_READ | PROT_EXEC);
}

/* A page for code, within reach of a jump by 32 bits from @near. */
static uint8_t *page_near(const uint8_t *near)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), step = (size_t)1 << 20;
	uint8_t *from = (uint8_t *)((uintptr_t)near & ~(page - 1));

	for (size_t distance = step; distance < (size_t)1 << 30; distance += step)
		for (int below = 0; below < 2; below++) {
			uint8_t *wanted = below ? from - distance : from + distance;
			uint8_t *got = mmap(wanted, page, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

			if (got == wanted)
				return got;
			if (got != MAP_FAILED)
				munmap(got, page);
		}
	return NULL;
}

#if defined(__x86_64__)
/* jmp *(%rip), then the address: no register changes. */
static uint8_t *put_jump(uint8_t *to, const void *where)
{
	static const uint8_t jump[6] = { 0xff, 0x25, 0, 0, 0, 0 };

	memcpy(to, jump, sizeof(jump));
	memcpy(to + sizeof(jump), &where, sizeof(where));
	return to + sizeof(jump) + sizeof(where);
}

/* As UCX does: five bytes where the distance allows it, else fourteen, through rax. */
static size_t make_patch(uint8_t *patch, const uint8_t *function, const void *hook,
			 enum patch_how how)
{
	if (how == PATCH_NEAR) {
		int32_t distance = (int32_t)((const uint8_t *)hook - (function + 5));

		patch[0] = 0xe9;
		memcpy(patch + 1, &distance, sizeof(distance));
		return 5;
	}
	memcpy(patch, (const uint8_t[]){ 0x48, 0xb8 }, 2); /* movabs $hook, %rax */
	memcpy(patch + 2, &hook, sizeof(hook));
	memcpy(patch + 10, (const uint8_t[]){ 0xff, 0xe0, 0xcc, 0xcc }, 4); /* jmp *%rax */
	return patch_bytes;
}
#elif defined(__aarch64__)
static uint8_t *put_word(uint8_t *to, uint32_t word)
{
	memcpy(to, &word, sizeof(word));
	return to + sizeof(word);
}

static uint8_t *put_jump_by(uint8_t *to, const void *where, uint32_t reg)
{
	to = put_word(to, 0x58000000 | 2 << 5 | reg); /* ldr of the address behind */
	to = put_word(to, 0xd61f0000 | reg << 5);     /* br */
	memcpy(to, &where, sizeof(where));
	return to + sizeof(where);
}

static uint8_t *put_jump(uint8_t *to, const void *where)
{
	return put_jump_by(to, where, 9);
}

static size_t make_patch(uint8_t *patch, const uint8_t *function, const void *hook,
			 enum patch_how how)
{
	put_jump_by(patch, hook, 15);
	return patch_bytes;
}
#endif

bool patch_possible(const void *function)
{
	const uint8_t *code = function;
	unsigned int length;

	for (size_t bytes = 0; bytes < patch_bytes; bytes += length) {
		length = movable(code + bytes);
		if (!length)
			return false;
	}
	return true;
}

bool patch_put(struct patch *patch, void *function, const void *hook, enum patch_how how)
{
	uint8_t code[16], *from = function, *to, *page;
	unsigned int length;

	page = page_near(function);
	if (!page)
		return false;
	to = page;
	if (how == PATCH_NEAR) { /* from there it jumps on to the hook, which may be further away */
		to = put_jump(to, hook);
		hook = page;
	}
	patch->function = function;
	patch->original = to;
	patch->bytes = make_patch(code, function, hook, how);
	memcpy(patch->before, function, patch->bytes);
	for (; from < patch->function + patch->bytes; from += length) {
		length = movable(from);
		if (!length)
			return false;
		memcpy(to, from, length);
		to += length;
	}
	put_jump(to, from);
	__builtin___clear_cache((char *)page, (char *)page + 256);
	return !mprotect(page, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_EXEC) &&
	       code_write(function, code, patch->bytes);
}

bool patch_undo(const struct patch *patch)
{
	return code_write(patch->function, patch->before, patch->bytes);
}
