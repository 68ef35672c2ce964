/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that a library's file defines: see library_file.h. */
#include "tests/bench/library_file.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/bench/harness.h"

void each_function(void *library, void (*with)(const char *name, void *address))
{
	struct link_map *map;
	const uint8_t *file;
	const ElfW(Ehdr) *elf;
	const ElfW(Shdr) *section;
	struct stat st;
	int fd;

	MUST(dlinfo(library, RTLD_DI_LINKMAP, &map) == 0);
	fd = open(map->l_name, O_RDONLY | O_CLOEXEC);
	MUST(fd >= 0 && fstat(fd, &st) == 0);
	file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	MUST(file != MAP_FAILED);
	close(fd);
	elf = (const void *)file;
	section = (const void *)(file + elf->e_shoff);
	for (unsigned int s = 0; s < elf->e_shnum; s++) {
		const ElfW(Sym) *symbol = (const void *)(file + section[s].sh_offset);
		const char *names;

		if (section[s].sh_type != SHT_DYNSYM)
			continue;
		names = (const char *)file + section[section[s].sh_link].sh_offset;
		for (uint64_t i = 0; i < section[s].sh_size / sizeof *symbol; i++)
			if (ELF64_ST_TYPE(symbol[i].st_info) == STT_FUNC && symbol[i].st_shndx)
				with(names + symbol[i].st_name, (void *)(map->l_addr + symbol[i].st_value));
	}
	munmap((void *)file, (size_t)st.st_size);
}

static const struct file_function *wanted;
static size_t wanted_n;

static void is_wanted(const char *name, void *address)
{
	for (size_t i = 0; i < wanted_n; i++)
		if (!strcmp(name, wanted[i].name))
			memcpy(wanted[i].at, &address, sizeof(address));
}

void find_functions(void *library, const struct file_function *functions, size_t n)
{
	wanted = functions;
	wanted_n = n;
	for (size_t i = 0; i < n; i++)
		memset(functions[i].at, 0, sizeof(void *));
	each_function(library, is_wanted);
	for (size_t i = 0; i < n; i++) {
		void *address;

		memcpy(&address, functions[i].at, sizeof(address));
		if (!address)
			DIE("the library's file defines no %s", functions[i].name);
	}
}
