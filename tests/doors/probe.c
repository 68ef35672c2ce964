/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks symbols up, one after the other, and prints where each was found: as
 * LIBRARY+OFFSET, which is the same in every run, or dlerror()'s text.
 *
 *   open:LIB, openg:LIB   dlopen, RTLD_LOCAL or RTLD_GLOBAL
 *   who:LIB               from now on LIB (tests/doors/asker.c) calls dlsym; who: the program does
 *   lib:NAME              dlsym(the library opened last, NAME)
 *   default:NAME, next:NAME, main:NAME   RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL)
 *   error                 dlerror()
 *   null                  dlsym(RTLD_DEFAULT, "") and other odd names
 *   call                  calls the function found last
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *ask_fn(void *handle, const char *name);

static void *ask_here(void *handle, const char *name)
{
	void *volatile answer = dlsym(handle, name);

	return answer;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static void say(const char *what, const void *address)
{
	const char *error = dlerror();
	Dl_info info;

	if (!address)
		printf("%s none: %s\n", what, error ? error : "no error");
	else if (error)
		printf("%s found, but: %s\n", what, error);
	else if (!dladdr(address, &info))
		printf("%s somewhere\n", what);
	else
		printf("%s %s+%#lx\n", what, last_part(info.dli_fname),
		       (unsigned long)((const char *)address - (const char *)info.dli_fbase));
}

int main(int argc, char **argv)
{
	ask_fn *ask = ask_here;
	void *handle = NULL, *found = NULL;

	setvbuf(stdout, NULL, _IONBF, 0);
	for (int i = 1; i < argc; i++) {
		char *name = strchr(argv[i], ':'), what[256];
		void *lib;

		snprintf(what, sizeof(what), "%s", argv[i]);
		if (name)
			*name++ = '\0';
		if (!strcmp(argv[i], "open") || !strcmp(argv[i], "openg")) {
			handle = dlopen(name, RTLD_NOW | (argv[i][4] ? RTLD_GLOBAL : RTLD_LOCAL));
			if (!handle)
				printf("%s %s\n", what, dlerror());
		} else if (!strcmp(argv[i], "who")) {
			lib = *name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
			if (*name && !lib)
				printf("%s %s\n", what, dlerror());
			ask = lib ? (ask_fn *)dlsym(lib, "doors_ask") : ask_here;
		} else if (!strcmp(argv[i], "error")) {
			const char *error = dlerror();

			printf("error %s\n", error ? error : "none");
		} else if (!strcmp(argv[i], "call")) {
			((int (*)(void *, long, long))found)(NULL, 0, 0);
		} else {
			lib = !strcmp(argv[i], "default") ? RTLD_DEFAULT :
			      !strcmp(argv[i], "next")	  ? RTLD_NEXT :
			      !strcmp(argv[i], "main")	  ? dlopen(NULL, RTLD_NOW) :
							    handle;
			found = ask(lib, name);
			say(what, found);
		}
	}
	return 0;
}
