/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a program with the library preloaded: see start.h. */
#include "config.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "shim/report/suppress.h"
#include "tools/common/libc_fit.h"
#include "tools/common/start.h"
#include "tools/common/where.h"

/* The kernel follows this many nested interpreters. */
#define SCRIPTS_MOST 5

/* ld.so splits these variables at these characters, and expands $ORIGIN and the like. */
#define PRELOAD_BREAKS " :$"
#define LIBRARY_PATH_BREAKS ":;$"

/* The properties of a program file that decide whether ld.so will load our library into it. */
struct program {
	bool elf, script, dynamic;
	unsigned char class, data;
	uint16_t machine;
	char loader[PATH_MAX]; /* PT_INTERP, or the interpreter of a script */
};

/* ---------------------------------------------------------- finding the CMD */
/*
 * Finds @name as execvp(3) does, in @path of @size bytes.  Returns 0, -ENOENT,
 * -EACCES (exists, but may not be executed), or another -errno.
 */
static int find_program(const char *name, char *path, size_t size)
{
	const char *list = getenv("PATH"), *end;
	char standard[256];
	struct stat st;
	int error = -ENOENT;

	if (strchr(name, '/')) {
		if (snprintf(path, size, "%s", name) >= (int)size)
			return -ENAMETOOLONG;
		if (stat(path, &st))
			return -errno;
		if (S_ISDIR(st.st_mode))
			return -EISDIR;
		return access(path, X_OK) ? -errno : 0;
	}
	if (!list) {
		if (!confstr(_CS_PATH, standard, sizeof(standard)))
			return -ENOENT;
		list = standard;
	}
	for (; *name; list = end + 1) {
		size_t length;

		end = list + strcspn(list, ":");
		length = (size_t)(end - list);
		/* an empty entry is the current directory */
		if (snprintf(path, size, "%.*s%s%s", (int)length, list, length ? "/" : "./", name) <
			    (int)size &&
		    !stat(path, &st) && S_ISREG(st.st_mode)) {
			if (!access(path, X_OK))
				return 0;
			error = -EACCES;
		}
		if (!*end)
			break;
	}
	return error;
}

static bool read_at(int fd, void *to, size_t size, uint64_t offset)
{
	return offset <= INT64_MAX && pread(fd, to, size, (off_t)offset) == (ssize_t)size;
}

/* Reads the program headers of a 64-bit file; the library can't be preloaded into others. */
static void read_headers(int fd, struct program *program)
{
	Elf64_Ehdr header;
	Elf64_Phdr segment;

	if (!read_at(fd, &header, sizeof(header), 0) || header.e_phentsize != sizeof(segment)) {
		program->dynamic = true; /* can't tell: let the kernel judge it */
		return;
	}
	for (unsigned int i = 0; i < header.e_phnum; i++) {
		if (!read_at(fd, &segment, sizeof(segment), header.e_phoff + i * sizeof(segment)))
			break;
		if (segment.p_type != PT_INTERP)
			continue;
		program->dynamic = true;
		if (segment.p_filesz < sizeof(program->loader) &&
		    read_at(fd, program->loader, segment.p_filesz, segment.p_offset))
			program->loader[segment.p_filesz] = 0;
	}
}

static void read_interpreter(int fd, struct program *program)
{
	char line[PATH_MAX];
	ssize_t n = pread(fd, line, sizeof(line) - 1, 2);
	const char *start = line;

	line[n > 0 ? n : 0] = 0;
	line[strcspn(line, "\n")] = 0;
	start += strspn(start, " \t");
	snprintf(program->loader, sizeof(program->loader), "%.*s", (int)strcspn(start, " \t\r"),
		 start);
	/* to the kernel a "\r" is part of the name: keep it, so that an error can say so */
	if (start[strcspn(start, " \t\r")] == '\r')
		strcat(program->loader, "\r");
}

/* Returns 0, or -errno if the file can't be read; it can possibly be run all the same. */
static int read_program(const char *path, struct program *program)
{
	unsigned char ident[EI_NIDENT + 4] = { 0 };
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n;

	memset(program, 0, sizeof(*program));
	if (fd < 0)
		return -errno;
	n = pread(fd, ident, sizeof(ident), 0);
	if (n >= 2 && ident[0] == '#' && ident[1] == '!') {
		program->script = true;
		read_interpreter(fd, program);
	} else if (n == sizeof(ident) && !memcmp(ident, ELFMAG, SELFMAG)) {
		program->elf = true;
		program->class = ident[EI_CLASS];
		program->data = ident[EI_DATA];
		/* e_machine is at the same offset in both classes */
		memcpy(&program->machine, ident + EI_NIDENT + 2, sizeof(program->machine));
		if (program->class == ELFCLASS64 && program->data == ELFDATA2LSB)
			read_headers(fd, program);
	}
	close(fd);
	return 0;
}

static const char *machine_name(const struct program *program)
{
	static char other[32];

	if (program->data != ELFDATA2LSB)
		return "big-endian";
	switch (program->machine) {
	case EM_386:
		return "i386 (32-bit)";
	case EM_X86_64:
		return program->class == ELFCLASS32 ? "x32 (32-bit)" : "x86_64";
	case EM_ARM:
		return "arm (32-bit)";
	case EM_AARCH64:
		return program->class == ELFCLASS32 ? "aarch64 (32-bit)" : "aarch64";
	case EM_PPC64:
		return "ppc64";
	case EM_RISCV:
		return "riscv";
	default:
		snprintf(other, sizeof(other), "machine %u", program->machine);
		return other;
	}
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* --------------------------------------------- will ld.so load the library? */
/*
 * Returns why ld.so would run @path in secure-execution mode, where it ignores
 * LD_PRELOAD; NULL if it would not.  The rules are the kernel's: see bprm->secureexec.
 */
static const char *why_secure(const char *path)
{
	struct stat st;
	struct statvfs fs;

	if (stat(path, &st))
		return NULL;
	if (!statvfs(path, &fs) && (fs.f_flag & ST_NOSUID))
		return NULL;
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return NULL;
	if ((st.st_mode & S_ISUID) && st.st_uid != getuid())
		return "is setuid";
	if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid())
		return "is setgid";
	if (getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0)
		return "has file capabilities";
	return NULL;
}

/*
 * Checks whether @path, which the user calls @name, can be started, and (if @ours) with our
 * library or driver.  Returns 0, or the exit status after an error message.  @current, of PATH_MAX
 * bytes, becomes the path of the program that ld.so will load: for a script its interpreter.
 */
static int check_program(const struct cu_command *command, const char *name, const char *path,
			 bool ours, char *current)
{
	static struct program program, self;
	char script[PATH_MAX];
	const char *why;

	snprintf(current, PATH_MAX, "%s", path);
	for (int depth = 0;; depth++) {
		if (read_program(current, &program))
			return 0; /* an unreadable program can be run */
		if (!program.script)
			break;
		if (depth == SCRIPTS_MOST) {
			cu_error(command, "%s: its interpreter is a script of a script: too many",
				 name);
			return CU_CANNOT_RUN;
		}
		memcpy(script, current, sizeof(script));
		memcpy(current, program.loader, sizeof(program.loader));
		if (access(current, X_OK)) {
			size_t length = strlen(current);

			if (length && current[length - 1] == '\r')
				cu_error(command,
					 "%s: its first line ends with a carriage return, as Windows has it",
					 script);
			else
				cu_error(command, "%s: its interpreter '%s' cannot be run: %s",
					 script, current, strerror(errno));
			return CU_CANNOT_RUN;
		}
	}
	if (program.elf && *program.loader && access(program.loader, F_OK)) {
		cu_error(command, "%s: the loader it asks for, %s, does not exist here", current,
			 program.loader);
		return CU_CANNOT_RUN;
	}
	if (!ours || !program.elf || read_program("/proc/self/exe", &self) || !self.elf)
		return 0;
	if (program.machine != self.machine || program.class != self.class ||
	    program.data != self.data) {
		char machine[32];

		snprintf(machine, sizeof(machine), "%s", machine_name(&program));
		cu_error(command,
			 "%s: is a program for %s, but this culimbo is for %s: its library cannot be loaded into it; --no-preload runs it without",
			 current, machine, machine_name(&self));
		return CU_CANNOT_RUN;
	}
	why = why_secure(current);
	if (why) {
		cu_error(command,
			 "%s: %s, so ld.so would ignore LD_PRELOAD: start what it runs by 'culimbo run' instead, or run it without by --no-preload",
			 current, why);
		return CU_CANNOT_RUN;
	}
	if (*program.loader && *self.loader &&
	    strcmp(base_name(program.loader), base_name(self.loader))) {
		cu_error(command,
			 "%s: is of another C library (%s, and culimbo's is %s): culimbo's library cannot be loaded into it; --no-preload runs it without",
			 current, base_name(program.loader), base_name(self.loader));
		return CU_CANNOT_RUN;
	}
	/* ld.so itself, called to run a program, has no loader either, but obeys LD_PRELOAD */
	if (!program.dynamic && strncmp(base_name(current), "ld", 2))
		cu_error(command,
			 "warning: %s is statically linked: culimbo cannot see what it does (programs that it starts are seen)",
			 current);
	return 0;
}

/*
 * Checks that the C library of @path is new enough for @library.  Returns 0, or the exit status
 * after an error message.
 */
static int check_libc(const struct cu_command *command, const char *path, const char *library)
{
	static struct program program, self;
	char why[512];

	if (read_program(path, &program) || !program.elf || !*program.loader || read_program("/proc/self/exe", &self) ||
	    cu_libc_fits(library, path, program.loader, self.loader, why, sizeof(why)))
		return 0;
	cu_error(command,
		 "%s: its C library is too old for culimbo's library, and ld.so would end it: %s; install a culimbo for it (its wheel runs with glibc 2.17), or run it without by --no-preload",
		 path, why);
	return CU_CANNOT_RUN;
}

/* -------------------------------------------------------- what CMD is told to run */
/* Returns true if @word is one of @words, which ends with NULL. */
static bool is_one_of(const char *word, const char *const *words)
{
	while (*words && strcmp(*words, word))
		words++;
	return *words != NULL;
}

static void warn_if_static(const struct cu_command *command, const char *name)
{
	static struct program program;
	char path[PATH_MAX];

	if (find_program(name, path, sizeof(path)) || read_program(path, &program) || !program.elf || program.dynamic ||
	    !strncmp(base_name(path), "ld", 2))
		return;
	cu_error(command, "warning: %s, which CMD runs, is statically linked: culimbo cannot see what it does", name);
}

/* Looks at the words of shell command @text with which commands begin.  What needs a shell to be read is left out. */
static void look_into(const struct cu_command *command, const char *text)
{
	static const char *const before[] = { "exec", "command", "time", "nohup", "setsid", "!", "if", "then", "else",
					      "elif", "while", "until", "do", "{", NULL };
	bool begins = true;

	while (*text) {
		size_t length = strcspn(text, " \t\n;|&()");
		char word[PATH_MAX];

		snprintf(word, sizeof(word), "%.*s", length < sizeof(word) ? (int)length : 0, text);
		if (*word && begins && !strchr(word, '=') && !is_one_of(word, before)) {
			if (!word[strcspn(word, "'\"\\$`*?[~<>")])
				warn_if_static(command, word);
			begins = false;
		}
		text += length;
		if (*text && strchr("\n;|&(", *text))
			begins = true;
		text += *text != 0;
	}
}

void cu_start_look_behind(const struct cu_command *command, char **argv)
{
	static const char *const shells[] = { "sh", "bash", "dash", "ksh", "zsh", NULL };
	static const char *const launchers[] = { "env", "nice", "nohup", "setsid", "stdbuf", "taskset", "time", "timeout",
						 "numactl", NULL };
	char path[PATH_MAX];

	while (*argv && is_one_of(base_name(*argv), launchers)) {
		/* "timeout -k 5 10 CMD": no command is called 5 or 10 */
		do
			argv++;
		while (*argv && (**argv == '-' || strchr(*argv, '=') || find_program(*argv, path, sizeof(path))));
		if (*argv)
			warn_if_static(command, *argv);
	}
	if (!*argv || !is_one_of(base_name(*argv), shells))
		return;
	for (argv++; *argv && **argv == '-'; argv++)
		if (argv[0][1] != '-' && argv[0][strlen(*argv) - 1] == 'c' && argv[1]) {
			look_into(command, argv[1]);
			return;
		}
}

/* ------------------------------------------------------------ the environment */
static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Returns true if the entry loads a libculimbo.so. */
static bool is_library(const char *entry, const char *library)
{
	return !strcmp(base_name(entry), base_name(library)) || same_file(entry, library);
}

/*
 * Sets LD_PRELOAD to @library (if @preload) and the former entries, without any
 * libculimbo.so.  Returns 0 or -errno.
 */
static int set_preload(const char *library, bool preload)
{
	const char *old = getenv("LD_PRELOAD");
	size_t size = (old ? strlen(old) : 0) + strlen(library) + 2, n;
	char *copy = strdup(old ? old : ""), *new = malloc(size), *entry, *rest;
	int error = -ENOMEM;

	if (!copy || !new)
		goto out;
	n = (size_t)snprintf(new, size, "%s", preload ? library : "");
	for (entry = strtok_r(copy, " :", &rest); entry; entry = strtok_r(NULL, " :", &rest))
		if (!is_library(entry, library))
			n += (size_t)snprintf(new + n, size - n, "%s%s", n ? ":" : "", entry);
	error = 0;
	if (n ? setenv("LD_PRELOAD", new, 1) : unsetenv("LD_PRELOAD"))
		error = -errno;
out:
	free(copy);
	free(new);
	return error;
}

/* Puts @directory first in LD_LIBRARY_PATH.  Returns 0 or -errno. */
static int set_library_path(const char *directory)
{
	const char *old = getenv("LD_LIBRARY_PATH");
	char *new;
	int error = 0;

	if (!old || !*old)
		return setenv("LD_LIBRARY_PATH", directory, 1) ? -errno : 0;
	if (asprintf(&new, "%s:%s", directory, old) < 0)
		return -ENOMEM;
	if (setenv("LD_LIBRARY_PATH", new, 1))
		error = -errno;
	free(new);
	return error;
}

/*
 * Finds @file for use in the environment variable @variable.  Returns 0, or
 * the exit status after an error message.
 */
static int find_ours(const struct cu_command *command, enum cu_file file, const char *what,
		     const char *variable, const char *breaks, char *path, size_t size)
{
	if (cu_where(file, path, size)) {
		cu_error(command, "the %s is missing: there is no %s (is culimbo fully built or installed?)",
			 what, path);
		return CU_NO_LIBRARY;
	}
	if (path[strcspn(path, breaks)]) {
		cu_error(command,
			 "the %s cannot be named in %s, which ld.so splits at '%c': install culimbo elsewhere, or call it by the path of a copy: %s",
			 what, variable, path[strcspn(path, breaks)], path);
		return CU_NO_LIBRARY;
	}
	return 0;
}

int cu_start_become(const struct cu_command *command, const char *path, char **argv)
{
	static struct program program;

	execv(path, argv);
	if (errno == ENOEXEC) {
		if (!read_program(path, &program) && program.elf) {
			cu_error(command, "%s: is a program for %s: this machine cannot run it",
				 path, machine_name(&program));
			return CU_CANNOT_RUN;
		}
		/* run a script without "#!" as a shell would */
		argv[0] = (char *)path;
		execvp(path, argv);
	}
	cu_error(command, "%s: %s", path, strerror(errno));
	return errno == ENOENT ? CU_NOT_FOUND : CU_CANNOT_RUN;
}

static const struct cu_command *complaining;

/* Other bad lines are warned of when the file is used. */
static void complain_class(const char *path, unsigned int line, const char *what)
{
	if (!strncmp(what, CL_SUPPRESS_NO_CLASS, strlen(CL_SUPPRESS_NO_CLASS)))
		cu_error(complaining, "%s, line %u %s", path, line, what);
}

/* Returns true if each line of @file that has a class has one that exists; else after error messages. */
static bool has_right_classes(const struct cu_command *command, const char *file)
{
	struct cl_suppressions lines;
	bool right;

	complaining = command;
	if (cl_suppress_read(&lines, file, complain_class))
		return true;
	right = !lines.unknown;
	cl_suppress_free(&lines);
	return right;
}

bool cu_start_suppressions(const struct cu_command *command, const char *file)
{
	char *absolute = realpath(file, NULL);
	struct stat st;
	/*
	 * otherwise the error would show only when the file is read: in the processes, or after
	 * CMD
	 */
	bool directory = absolute && !stat(absolute, &st) && S_ISDIR(st.st_mode);
	bool set = absolute && !directory && !access(absolute, R_OK) &&
		   !setenv("CULIMBO_SUPPRESSIONS", absolute, 1);

	if (directory)
		cu_error(command, "--suppressions: %s is a directory; a file of CLASS:stack:PATTERN lines is wanted",
			 file);
	else if (!set)
		cu_error(command, "cannot read %s: %s", file, strerror(errno));
	free(absolute);
	return set && has_right_classes(command, file);
}

int cu_start_prepare(const struct cu_command *command, const char *name, bool preload, bool simulate,
		     char path[PATH_MAX])
{
	char library[PATH_MAX], driver[PATH_MAX], loaded[PATH_MAX];
	int error;

	error = find_program(name, path, PATH_MAX);
	if (error) {
		cu_error(command, "%s: %s", name,
			 error == -ENOENT && !strchr(name, '/') ? "no such command in PATH" :
								  strerror(-error));
		return error == -ENOENT || error == -ENOTDIR ? CU_NOT_FOUND : CU_CANNOT_RUN;
	}
	error = check_program(command, name, path, preload || simulate, loaded);
	if (error)
		return error;

	if (!preload) {
		/* to remove it from LD_PRELOAD, the path where it would be is enough */
		cu_where(CU_LIBRARY, library, sizeof(library));
	} else {
		error = find_ours(command, CU_LIBRARY, "library", "LD_PRELOAD", PRELOAD_BREAKS,
				  library, sizeof(library));
		if (!error)
			error = check_libc(command, loaded, library);
		if (error)
			return error;
	}
	error = set_preload(library, preload);
	if (!error && simulate) {
		int status = find_ours(command, CU_SIMULATED_DRIVER, "simulated driver",
				       "LD_LIBRARY_PATH", LIBRARY_PATH_BREAKS, driver,
				       sizeof(driver));

		if (status)
			return status;
		*strrchr(driver, '/') = 0;
		error = set_library_path(driver);
	}
	if (error) {
		cu_error(command, "cannot set the environment: %s", strerror(-error));
		return CU_NO_LIBRARY;
	}
	return CU_OK;
}
