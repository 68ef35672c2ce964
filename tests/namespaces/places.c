/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Actors in other namespaces: how they get there, their pids as seen from here, and the
 * checks that all scenes make.
 */
#include "places.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void must(bool holds, const char *what)
{
	if (!holds)
		break_off("%s: %s", what, strerror(errno));
}

static char real_build[400], into[450];

bool system_ok(const char *command)
{
	int status = system(command);

	return status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Returns whether `into` can do @options here.  If not, skips the scene with the reason. */
bool can(const char *options, const char *what)
{
	char command[1200], why[200] = "", path[300];
	FILE *said;

	snprintf(real_build, sizeof real_build, "%s", getenv("E2E_BUILD"));
	snprintf(into, sizeof into, "%s/tests/namespaces/into", real_build);
	snprintf(path, sizeof path, "%s/why", getenv("E2E_SCENE_DIR"));
	snprintf(command, sizeof command, "'%s' %s -- sh -c 'test -x \"$0\"' '%s/tests/e2e/actor' 2> '%s'",
		 into, options, real_build, path);
	if (system_ok(command))
		return true;
	said = fopen(path, "r");
	if (!said || !fgets(why, sizeof why, said))
		snprintf(why, sizeof why, "the build folder is out of its reach\n");
	if (said)
		fclose(said);
	why[strcspn(why, "\n")] = 0;
	printf("ok - %s # SKIP %s\n", what, why);
	return false;
}

/* Sets up a build folder whose culimbo command is started by `into @options`. */
static void build_through(const char *name, const char *options)
{
	char path[450], target[500], pid[460];
	FILE *script;

	snprintf(path, sizeof path, "%s/%s", getenv("E2E_SCENE_DIR"), name);
	snprintf(pid, sizeof pid, "%s.pid", path);
	must(!mkdir(path, 0755) || errno == EEXIST, path);
	setenv("E2E_BUILD", path, 1);
	snprintf(target, sizeof target, "%s/tests", path);
	if (mkdir(target, 0755) == 0) {
		snprintf(path, sizeof path, "%s/tests/e2e", real_build);
		strcat(target, "/e2e");
		must(!symlink(path, target), target);
	}
	snprintf(target, sizeof target, "%s/tools", getenv("E2E_BUILD"));
	must(!mkdir(target, 0755) || errno == EEXIST, target);
	strcat(target, "/culimbo");
	script = fopen(target, "w");
	must(script != NULL, target);
	fprintf(script, "#!/bin/sh\nexport INTO_PID='%s'\n", pid);
	if (strstr(options, "--proc=none")) /* culimbo run needs /proc to find the library */
		fprintf(script,
			"shift 3\nexec '%s' %s -- env 'LD_PRELOAD=%s/.libs/libculimbo.so' "
			"'LD_LIBRARY_PATH=%s/tools/sim/.libs' \"$@\"\n",
			into, options, real_build, real_build);
	else
		fprintf(script, "exec '%s' %s -- '%s/tools/culimbo' \"$@\"\n", into, options, real_build);
	must(!fclose(script) && !chmod(target, 0755), target);
}

/* Starts an actor in the namespaces of @options; NULL: here. */
struct actor *enter_in(const char *name, const char *options, const char *env)
{
	struct actor *actor;

	if (options)
		build_through(name, options);
	actor = ENTER(name, .env = env);
	setenv("E2E_BUILD", real_build, 1);
	return actor;
}

/* The same, without culimbo. */
struct actor *enter_bare_in(const char *name, const char *options)
{
	struct actor *actor;

	if (options)
		build_through(name, options);
	actor = ENTER(name, .bare = true);
	setenv("E2E_BUILD", real_build, 1);
	return actor;
}

/* The actor's own pid as seen from here, not that of `into`. */
pid_t pid_of(const struct actor *actor, const char *options)
{
	char path[400];
	FILE *file;
	int pid = 0;

	if (!options)
		return actor->pid;
	snprintf(path, sizeof path, "%s/%s.pid", getenv("E2E_SCENE_DIR"), actor->name);
	file = fopen(path, "r");
	must(file && fscanf(file, "%d", &pid) == 1 && pid > 1, path);
	fclose(file);
	return pid;
}

void wait_ms(double ms)
{
	double until = now_ms() + ms;

	while (watch_until(until))
		;
}

/* Returns whether C reads its own bytes and @block is not given away, for so long. */
bool stays(struct actor *p, struct actor *c, uint64_t block, uint64_t import, double ms)
{
	double until = now_ms() + ms;
	bool held;

	do
		held = !claim(p, block, SMALL, NEXT) && (!c || reads(c, import, SMALL, OWN, NULL));
	while (held && watch_until(until));
	return held;
}
