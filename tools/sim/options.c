/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of the simulated driver, CULIMBO_SIM_* in the environment.
 *
 * A bad value gets one message on stderr, with the allowed values and the one that is
 * used instead.  It never stops the program.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

#define DEFAULT_MEMORY ((size_t)1 << 30)
#define MEMORY_MAX ((size_t)1 << 40)

static struct sim_options options;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void sim_warn(const char *format, ...)
{
	char line[512] = "culimbo simulated driver: ";
	size_t used = strlen(line);
	int kept = errno, n;
	va_list args;

	va_start(args, format);
	n = vsnprintf(line + used, sizeof(line) - used - 1, format, args);
	va_end(args);
	if (n > 0)
		used += (size_t)n < sizeof(line) - used - 1 ? (size_t)n : sizeof(line) - used - 2;
	line[used++] = '\n';
	/* A single write, so that lines of several processes don't mix. */
	if (write(STDERR_FILENO, line, used) < 0)
		errno = kept;
	errno = kept;
}

/* Parses "64MiB", "1GiB", "4096KiB" or bytes.  Returns 0 if it is none of these. */
static size_t parse_size(const char *text)
{
	static const struct {
		const char *unit;
		unsigned int shift;
	} units[] = { { "", 0 },    { "B", 0 },    { "K", 10 },  { "KiB", 10 }, { "M", 20 },
		      { "MiB", 20 }, { "G", 30 }, { "GiB", 30 }, { "T", 40 },   { "TiB", 40 } };
	unsigned long long number;
	char *end;

	if (*text < '0' || *text > '9')
		return 0;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return 0;
	while (*end == ' ')
		end++;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(end, units[i].unit))
			continue;
		if (number > MEMORY_MAX >> units[i].shift)
			return 0;
		return (size_t)number << units[i].shift;
	}
	return 0;
}

static void read_switch(const char *name, const char *on, const char *off, bool *value)
{
	const char *text = getenv(name);

	if (!text || !*text || !strcmp(text, off))
		return;
	if (!strcmp(text, on))
		*value = true;
	else
		sim_warn("%s=%s is not known: allowed are \"%s\" and \"%s\"; using \"%s\"", name,
			 text, on, off, off);
}

static void read_options(void)
{
	const char *text;
	char *end;

	options.memory = DEFAULT_MEMORY;
	text = getenv("CULIMBO_SIM_MEMORY");
	if (text && *text) {
		size_t bytes = parse_size(text);

		if (bytes >= SIM_PAGE)
			options.memory = bytes / SIM_PAGE * SIM_PAGE;
		else
			sim_warn("CULIMBO_SIM_MEMORY=%s is not a size: allowed are 2MiB to 1TiB, as bytes "
				 "or with KiB, MiB, GiB; using 1GiB",
				 text);
	}

	text = getenv("CULIMBO_SIM_NEEDED");
	if (text && *text) {
		options.needed = parse_size(text);
		if (!options.needed && strcmp(text, "0"))
			sim_warn("CULIMBO_SIM_NEEDED=%s is not a size: allowed are 0 to 1TiB, as bytes or "
				 "with KiB, MiB, GiB; using 0",
				 text);
	}

	options.devices = 1;
	text = getenv("CULIMBO_SIM_DEVICES");
	if (text && *text) {
		unsigned long n = strtoul(text, &end, 10);

		if (*text >= '0' && *text <= '9' && !*end && n >= 1 && n <= SIM_DEVICES_MAX)
			options.devices = (unsigned int)n;
		else
			sim_warn("CULIMBO_SIM_DEVICES=%s is not a number of devices: allowed are 1 to %d; "
				 "using 1",
				 text, SIM_DEVICES_MAX);
	}

	read_switch("CULIMBO_SIM_PROC_ADDRESS", "thunk", "same", &options.thunks);
	read_switch("CULIMBO_SIM_TAIL", "random", "zero", &options.random_tail);
	read_switch("CULIMBO_SIM_POOL_ACCESS", "set", "any", &options.pool_access);
	read_switch("CULIMBO_SIM_REACH", "shown", "all", &options.reach_shown);
	read_switch("CULIMBO_SIM_KERNELS", "linger", "thread", &options.kernels_linger);

	snprintf(options.directory, sizeof(options.directory), "/dev/shm/culimbo-sim-%u",
		 (unsigned int)geteuid());
	text = getenv("CULIMBO_SIM_DIR");
	if (text && *text) {
		if (*text == '/' && strlen(text) < sizeof(options.directory) - 16)
			strcpy(options.directory, text);
		else
			sim_warn("CULIMBO_SIM_DIR=%s can't be used: allowed is an absolute path of at most "
				 "%zu bytes; using %s",
				 text, sizeof(options.directory) - 17, options.directory);
	}
}

const struct sim_options *sim_options(void)
{
	pthread_once(&once, read_options);
	return &options;
}

uint64_t sim_handle_tail(uint64_t of)
{
	uint64_t tail = (of + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)getpid() * UINT64_C(0xbf58476d1ce4e5b9);

	return (tail | 1) << 18;
}
