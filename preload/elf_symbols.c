/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the symbol tables of a loaded object: see elf_symbols.h. */
#include <elf.h>
#include <stdint.h>
#include <string.h>
#include "preload/elf_symbols.h"

bool cl_object_holds(const struct dl_phdr_info *object, const void *address)
{
	ElfW(Addr) at = (ElfW(Addr))address - object->dlpi_addr;

	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type == PT_LOAD && at - part->p_vaddr < part->p_memsz)
			return true;
	}
	return false;
}

struct object_tables {
	const ElfW(Sym) *symbols;
	const char *strings;
	const ElfW(Versym) *versions;
	const uint32_t *gnu_hash;
	const Elf_Symndx *hash;
};

/* glibc makes the addresses in a dynamic section absolute, unless that section is read-only. */
static const void *absolute(const struct dl_phdr_info *object, ElfW(Addr) address)
{
	return (const void *)(address < object->dlpi_addr ? address + object->dlpi_addr : address);
}

static bool tables_read(struct object_tables *tables, const struct dl_phdr_info *object)
{
	const ElfW(Dyn) *entry = NULL;

	memset(tables, 0, sizeof(*tables));
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		const void *address = absolute(object, entry->d_un.d_ptr);

		if (entry->d_tag == DT_SYMTAB)
			tables->symbols = address;
		else if (entry->d_tag == DT_STRTAB)
			tables->strings = address;
		else if (entry->d_tag == DT_VERSYM)
			tables->versions = address;
		else if (entry->d_tag == DT_GNU_HASH)
			tables->gnu_hash = address;
		else if (entry->d_tag == DT_HASH)
			tables->hash = address;
	}
	return tables->symbols && tables->strings;
}

/* Returns true if dlsym() would take symbol @at for @name: defined, global, of no hidden version. */
static bool symbol_counts(const struct object_tables *tables, uint32_t at, const char *name)
{
	const ElfW(Sym) *symbol = &tables->symbols[at];
	unsigned int binding = symbol->st_info >> 4;

	return symbol->st_shndx != SHN_UNDEF && symbol->st_value &&
	       (binding == STB_GLOBAL || binding == STB_WEAK || binding == STB_GNU_UNIQUE) &&
	       (!tables->versions || !(tables->versions[at] & 0x8000)) &&
	       !strcmp(tables->strings + symbol->st_name, name);
}

bool cl_object_defines(const struct dl_phdr_info *object, const char *name)
{
	struct object_tables tables;

	if (!tables_read(&tables, object))
		return false;
	if (tables.gnu_hash) {
		uint32_t buckets = tables.gnu_hash[0], first = tables.gnu_hash[1];
		uint32_t bloom_words = tables.gnu_hash[2], wanted = 5381;
		const uint32_t *bucket = tables.gnu_hash + 4 +
					 bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
		const uint32_t *chain = bucket + buckets;
		uint32_t at;

		for (const char *c = name; *c; c++)
			wanted = wanted * 33 + (unsigned char)*c;
		at = buckets ? bucket[wanted % buckets] : 0;
		if (at < first)
			return false;
		for (;; at++) {
			uint32_t hash = chain[at - first];

			/* the lowest bit marks the end of a chain */
			if ((hash | 1) == (wanted | 1) && symbol_counts(&tables, at, name))
				return true;
			if (hash & 1)
				return false;
		}
	}
	if (tables.hash)
		for (uint32_t at = 1; at < tables.hash[1]; at++)
			if (symbol_counts(&tables, at, name))
				return true;
	return false;
}
