/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a program's C library is new enough: see libc_fit.h. */
#include "config.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <gnu/libc-version.h>

#include "tools/common/libc_fit.h"

extern char **environ;

/* ------------------------------------------- what culimbo's library needs */
struct image {
	const char *at;
	size_t size;
};

/* Returns @count bytes at @offset of the file; NULL: the file is shorter. */
static const void *part(const struct image *image, uint64_t offset, uint64_t count)
{
	return offset <= image->size && count <= image->size - offset ? image->at + offset : NULL;
}

static const char *text_at(const struct image *image, const Elf64_Shdr *strings, uint64_t offset)
{
	const char *table = part(image, strings->sh_offset, strings->sh_size);

	return table && offset < strings->sh_size && memchr(table + offset, 0, strings->sh_size - offset) ?
		       table + offset : NULL;
}

/* Compares versions of the C library, such as "2.17", by their numbers. */
static bool is_newer(const char *version, const char *than)
{
	int a[3] = { 0 }, b[3] = { 0 };

	sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2]);
	sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2]);
	for (int i = 0; i < 3; i++)
		if (a[i] != b[i])
			return a[i] > b[i];
	return false;
}

/* Stores the newest GLIBC_ version that section @needs names in @newest, which may become "". */
static bool newest_needed(const struct image *image, const Elf64_Shdr *needs, const Elf64_Shdr *strings,
			  char newest[32])
{
	uint64_t at = needs->sh_offset;

	*newest = 0;
	for (uint32_t i = 0; i < needs->sh_info; i++) {
		const Elf64_Verneed *need = part(image, at, sizeof(*need));
		uint64_t of = at + (need ? need->vn_aux : 0);

		for (unsigned int j = 0; need && j < need->vn_cnt; j++) {
			const Elf64_Vernaux *version = part(image, of, sizeof(*version));
			const char *name = version ? text_at(image, strings, version->vna_name) : NULL;

			if (!name)
				return false;
			if (!strncmp(name, "GLIBC_", 6) && (!*newest || is_newer(name + 6, newest)))
				snprintf(newest, 32, "%s", name + 6);
			of += version->vna_next;
		}
		if (!need)
			return false;
		at += need->vn_next;
	}
	return true;
}

/* Returns true if this command's own C library has all that the library @path needs. */
static bool fits_here(const char *path)
{
	struct image image = { .at = MAP_FAILED };
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const Elf64_Ehdr *header;
	const Elf64_Shdr *section;
	struct stat st;
	char newest[32];
	bool fits = false;

	if (fd < 0)
		return false;
	if (!fstat(fd, &st) && st.st_size > 0) {
		image.size = (size_t)st.st_size;
		image.at = mmap(NULL, image.size, PROT_READ, MAP_PRIVATE, fd, 0);
	}
	close(fd);
	if (image.at == MAP_FAILED)
		return false;
	header = part(&image, 0, sizeof(*header));
	section = header ? part(&image, header->e_shoff, (uint64_t)header->e_shnum * sizeof(*section)) : NULL;
	for (unsigned int i = 0; section && i < header->e_shnum; i++)
		if (section[i].sh_type == SHT_GNU_verneed && section[i].sh_link < header->e_shnum &&
		    newest_needed(&image, &section[i], &section[section[i].sh_link], newest))
			fits = !is_newer(newest, gnu_get_libc_version());
	munmap((void *)image.at, image.size);
	return fits;
}

/* ------------------------------------------------------- what ld.so says */
enum { ASKED_FOR = 2000 }; /* ms */

/*
 * Reads the loader's output from @fd.  Returns true if a line of it is about a missing version;
 * that line is in @why.
 */
static bool read_answer(int fd, char *why, size_t size)
{
	char text[16384], *line, *rest;
	size_t n = 0;
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	while (n < sizeof(text) - 1 && poll(&ready, 1, ASKED_FOR) > 0) {
		ssize_t got = read(fd, text + n, sizeof(text) - 1 - n);

		if (got <= 0)
			break;
		n += (size_t)got;
	}
	text[n] = 0;
	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		if (strstr(line, ": version `") && strstr(line, "not found")) {
			snprintf(why, size, "%s", strstr(line, ": version `") + 2);
			return true;
		}
	return false;
}

/*
 * Returns the environment with these two variables, valid as long as the caller's strings; NULL:
 * no memory.
 */
static char **environment_with(char *trace, char *preload)
{
	size_t n = 0, kept = 0;
	char **copy;

	while (environ[n])
		n++;
	copy = malloc((n + 3) * sizeof(*copy));
	for (size_t i = 0; copy && i < n; i++)
		if (strncmp(environ[i], "LD_PRELOAD=", 11) && strncmp(environ[i], "LD_TRACE_LOADED_OBJECTS=", 24))
			copy[kept++] = environ[i];
	if (copy) {
		copy[kept++] = trace;
		copy[kept++] = preload;
		copy[kept] = NULL;
	}
	return copy;
}

/*
 * Has @loader list what @program would load, as ldd does.  Returns false, with @why, if a version
 * is missing.
 */
static bool ask_loader(const char *library, const char *program, const char *loader, char *why, size_t size)
{
	char trace[] = "LD_TRACE_LOADED_OBJECTS=1", preload[PATH_MAX + 16];
	char *arguments[] = { (char *)loader, (char *)program, NULL }, **environment;
	posix_spawn_file_actions_t actions;
	int ends[2], error;
	bool misses = false;
	pid_t child;

	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", library);
	environment = environment_with(trace, preload);
	if (!environment || pipe2(ends, O_CLOEXEC)) {
		free(environment);
		return true;
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
	error = posix_spawn(&child, loader, &actions, NULL, arguments, environment);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	if (!error) {
		misses = read_answer(ends[0], why, size);
		kill(child, SIGKILL);
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	}
	close(ends[0]);
	free(environment);
	return !misses;
}

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool cu_libc_fits(const char *library, const char *program, const char *loader, const char *own_loader,
		  char *why, size_t size)
{
	/*
	 * A loader and its C library are of one release: with the same loader the C library is
	 * this command's.
	 */
	if (same_file(loader, own_loader) && fits_here(library))
		return true;
	return ask_loader(library, program, loader, why, size);
}
