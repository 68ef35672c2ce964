/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes the beginning of every function that a program can get from a built library, of
 * either processor, and checks that it can be patched.
 *
 *   decode libculimbo.so FILE   the stubs of all hooks, and all exported calls
 *   decode libcuda.so FILE      the simulated driver: all exported calls, and their thunks
 *
 * It executes no code of the file, which may be for another processor.  Prints TAP.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cuda.h>
#include "shim/driver/calls.h"
#include "tests/patch/movable.h"
#include "tools/sim/names.h"
#include "tools/sim/calls.h"

static const char *const hooked[] = {
#define X(symbol, ...) #symbol,
	CL_HOOKED_CALLS(X)
#undef X
};

static const char *const simulated[] = {
#define X(base, symbol, version, flags) #symbol,
	SIM_CALLS(X)
#undef X
};

/* ---------------------------------------------------------------- the file */
static const uint8_t *file;
static size_t file_bytes;
static const Elf64_Ehdr *header;

struct symbols {
	const Elf64_Sym *first;
	size_t count;
	const char *names;
};

static const void *at(uint64_t offset, uint64_t bytes)
{
	if (offset > file_bytes || bytes > file_bytes - offset) {
		printf("Bail out! the file ends before byte %llu\n",
		       (unsigned long long)(offset + bytes));
		exit(1);
	}
	return file + offset;
}

static const Elf64_Shdr *section(unsigned int number)
{
	return at(header->e_shoff + (uint64_t)number * header->e_shentsize, sizeof(Elf64_Shdr));
}

static struct symbols symbols_of(uint32_t type)
{
	for (unsigned int i = 0; i < header->e_shnum; i++) {
		const Elf64_Shdr *table = section(i), *names;

		if (table->sh_type != type)
			continue;
		names = section(table->sh_link);
		return (struct symbols){ at(table->sh_offset, table->sh_size),
					 table->sh_size / sizeof(Elf64_Sym),
					 at(names->sh_offset, names->sh_size) };
	}
	return (struct symbols){ NULL, 0, NULL };
}

static const Elf64_Sym *named(const struct symbols *symbols, const char *name)
{
	for (size_t i = 0; i < symbols->count; i++) {
		const Elf64_Sym *symbol = &symbols->first[i];

		if (symbol->st_shndx != SHN_UNDEF && !strcmp(symbols->names + symbol->st_name, name))
			return symbol;
	}
	return NULL;
}

/* The code at an address, with 32 bytes after it that may be read. */
static const uint8_t *code_at(uint64_t address)
{
	const Elf64_Phdr *parts = at(header->e_phoff, (uint64_t)header->e_phnum * sizeof(*parts));

	for (unsigned int i = 0; i < header->e_phnum; i++)
		if (parts[i].p_type == PT_LOAD && (parts[i].p_flags & PF_X) &&
		    address - parts[i].p_vaddr < parts[i].p_filesz)
			return at(parts[i].p_offset + address - parts[i].p_vaddr, 32);
	return NULL;
}

/* --------------------------------------------------------------- the rules */
static unsigned int failed;

static void bad(const char *name, const char *what, const uint8_t *code)
{
	failed++;
	printf("# %s: %s:", name, what);
	for (unsigned int i = 0; code && i < 24; i++)
		printf(" %02x", code[i]);
	printf("\n");
}

/* The distance between the two nearest functions of those that were checked. */
static uint64_t *addresses;
static size_t addresses_count;

/*
 * How a function goes on to what it stands for.  A patch on aarch64 takes four instructions, and no jump can be
 * one of them: so a direct jump is the fifth.  A jump by a variable is an address of two, a load and the jump.
 */
enum jump { DIRECT, BY_VARIABLE };
static unsigned int instructions(enum jump jump)
{
	return header->e_machine == EM_X86_64 ? 4 : jump == DIRECT ? 5 : 8;
}

static void check(const char *name, const Elf64_Sym *symbol, enum jump jump)
{
	bool x86 = header->e_machine == EM_X86_64;
	unsigned int patch = x86 ? PATCH_X86_64 : PATCH_AARCH64;
	unsigned int most = instructions(jump), count = 0, bytes = 0, length;
	const uint8_t *code;

	if (!symbol || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC) {
		bad(name, "there is no such function", NULL);
		return;
	}
	addresses[addresses_count++] = symbol->st_value;
	code = code_at(symbol->st_value);
	if (!code || symbol->st_value % 16) {
		bad(name, "is not code, or not at a multiple of 16", NULL);
		return;
	}
	for (; bytes < patch; bytes += length, count++) {
		length = x86 ? movable_x86_64(code + bytes) : movable_aarch64(code + bytes);
		if (!length) {
			bad(name, "has an instruction that can't be moved", code);
			return;
		}
	}
	if (symbol->st_size < bytes) {
		bad(name, "is smaller than a patch", code);
		return;
	}
	for (; count < most; bytes += length, count++) {
		length = x86 ? jump_x86_64(code + bytes) : jump_aarch64(code + bytes);
		if (length && symbol->st_size == bytes + length)
			return;
		length = 4;
		if (x86 || bytes + length >= symbol->st_size)
			break;
	}
	bad(name, "does not jump after so few instructions", code);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void check_distances(void)
{
	qsort(addresses, addresses_count, sizeof(*addresses), by_value);
	for (size_t i = 1; i < addresses_count; i++)
		if (addresses[i] - addresses[i - 1] < 32)
			bad("two functions", "begin within 32 bytes of each other", NULL);
}

/*
 * Stubs have no landing pads.  A library marked for indirect branch tracking, or BTI, would
 * crash at the first call through a pointer.
 */
static void check_properties(void)
{
	bool x86 = header->e_machine == EM_X86_64;
	uint32_t features = x86 ? 0xc0000002 : 0xc0000000;

	for (unsigned int i = 0; i < header->e_shnum; i++) {
		const Elf64_Shdr *note = section(i);
		const uint32_t *words;

		if (note->sh_type != SHT_NOTE || note->sh_size < 32)
			continue;
		words = at(note->sh_offset, note->sh_size);
		if (words[0] != 4 || words[2] != 5 || memcmp(&words[3], "GNU", 4))
			continue;
		/* a property is a type, a size and data, padded to a multiple of 8 */
		for (const uint32_t *p = words + 4, *end = p + words[1] / 4; p + 2 < end;
		     p += 2 + (p[1] + 7) / 8 * 2)
			if (p[0] == features && (p[2] & 1))
				bad("the library", "is marked for IBT or BTI", NULL);
	}
}

static unsigned int number;

static void ok(const char *what)
{
	printf("%sok %u - %s\n", failed ? "not " : "", ++number, what);
	failed = 0;
}

int main(int argc, char **argv)
{
	struct symbols exported, all;
	struct stat status;
	char text[128];
	int fd, result = 0;
	bool driver;

	if (argc != 3)
		return 2;
	driver = !strcmp(argv[1], "libcuda.so");
	fd = open(argv[2], O_RDONLY);
	if (fd < 0 || fstat(fd, &status)) {
		printf("Bail out! can't read %s\n", argv[2]);
		return 1;
	}
	file_bytes = (size_t)status.st_size;
	file = mmap(NULL, file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED)
		return 1;
	header = at(0, sizeof(*header));
	if (memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_ident[EI_CLASS] != ELFCLASS64 ||
	    (header->e_machine != EM_X86_64 && header->e_machine != EM_AARCH64)) {
		printf("Bail out! %s is no library of x86-64 or aarch64\n", argv[2]);
		return 1;
	}
	exported = symbols_of(SHT_DYNSYM);
	all = symbols_of(SHT_SYMTAB);
	addresses = calloc(2 * (exported.count + sizeof(hooked) / sizeof(*hooked)), sizeof(*addresses));
	if (!addresses)
		return 1;

	printf("1..4\n");
	if (driver) {
		for (size_t i = 0; i < sizeof(simulated) / sizeof(*simulated); i++)
			check(simulated[i], named(&exported, simulated[i]), DIRECT);
		/* the list is complete */
		for (size_t i = 0; i < exported.count; i++) {
			const Elf64_Sym *symbol = &exported.first[i];
			const char *name = exported.names + symbol->st_name;
			bool listed = false;

			for (size_t j = 0; j < sizeof(simulated) / sizeof(*simulated); j++)
				listed |= !strcmp(simulated[j], name);
			if (symbol->st_shndx != SHN_UNDEF && !strncmp(name, "cu", 2) && !listed)
				bad(name, "is exported, and not in the list", NULL);
		}
	} else {
		for (size_t i = 0; i < sizeof(hooked) / sizeof(*hooked); i++)
			check(hooked[i], named(&exported, hooked[i]), BY_VARIABLE);
	}
	result |= failed != 0;
	snprintf(text, sizeof(text), "each exported call can be patched, and goes on within %u instructions",
		 instructions(driver ? DIRECT : BY_VARIABLE));
	ok(text);
	if (driver) {
		for (size_t i = 0; i < sizeof(simulated) / sizeof(*simulated); i++) {
			snprintf(text, sizeof(text), "culimbo_sim_thunk_%s", simulated[i]);
			check(text, named(&all, text), DIRECT);
		}
	} else {
		for (size_t i = 0; i < sizeof(hooked) / sizeof(*hooked); i++) {
			snprintf(text, sizeof(text), "cl_stub_%s", hooked[i]);
			check(text, named(&all, text), DIRECT);
		}
	}
	result |= failed != 0;
	snprintf(text, sizeof(text), "each %s can be patched, and goes on within %u instructions",
		 driver ? "thunk" : "hook's stub", instructions(DIRECT));
	ok(text);
	check_distances();
	result |= failed != 0;
	ok("none begins within a patch of another");
	check_properties();
	result |= failed != 0;
	ok("no mark for indirect branch tracking or BTI");
	printf("# %zu functions looked at\n", addresses_count);
	return result;
}
