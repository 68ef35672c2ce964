/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target on the given files or folders of files, without libFuzzer.
 *
 * Then, unless FUZZ_SECONDS is 0, it changes these inputs at random, from a fixed seed.
 * Coverage does not guide it, but it is better than no fuzzing.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { LARGEST = 4096, SEEDS = 4096, HANG_SECONDS = 25 };
static struct {
	uint8_t *data;
	size_t size;
} seeds[SEEDS];
static size_t seeds_n;
static uint8_t last[LARGEST];
static size_t last_size;

static void run(const uint8_t *data, size_t size)
{
	memcpy(last, data, size);
	last_size = size;
	alarm(HANG_SECONDS);
	LLVMFuzzerTestOneInput(last, size);
}

static void say_last(int signal)
{
	static const char digits[] = "0123456789abcdef";
	char text[2 * LARGEST + 1];

	for (size_t i = 0; i < last_size; i++) {
		text[2 * i] = digits[last[i] >> 4];
		text[2 * i + 1] = digits[last[i] & 15];
	}
	text[2 * last_size] = '\n';
	if (write(2, "the input was ", 14) != 14 || write(2, text, 2 * last_size + 1) < 0)
		_exit(2);
	_exit(128 + signal);
}

static int take(const char *path)
{
	uint8_t data[LARGEST];
	FILE *file = fopen(path, "r");
	size_t n;

	if (!file) {
		perror(path);
		return 1;
	}
	n = fread(data, 1, sizeof data, file);
	fclose(file);
	run(data, n);
	if (seeds_n < SEEDS && (seeds[seeds_n].data = malloc(n + 1))) {
		memcpy(seeds[seeds_n].data, data, n);
		seeds[seeds_n++].size = n;
	}
	return 0;
}

static int take_all(const char *path)
{
	struct dirent **entry;
	int n = scandir(path, &entry, NULL, alphasort), bad = 0;
	char name[4096];

	if (n < 0)
		return take(path);
	for (int i = 0; i < n; i++) {
		if (entry[i]->d_name[0] != '.') {
			snprintf(name, sizeof name, "%s/%s", path, entry[i]->d_name);
			bad |= take(name);
		}
		free(entry[i]);
	}
	free(entry);
	return bad;
}

static uint32_t chance(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

static void by_chance(void)
{
	uint8_t data[LARGEST];
	size_t from = chance() % seeds_n, size = seeds[from].size;

	memcpy(data, seeds[from].data, size);
	for (uint32_t i = 1 + chance() % 8; i; i--)
		switch (chance() % 4) {
		case 0:
			if (size)
				data[chance() % size] ^= (uint8_t)(1u << chance() % 8);
			break;
		case 1:
			if (size)
				data[chance() % size] = (uint8_t)chance();
			break;
		case 2: /* the end of another */
			from = chance() % seeds_n;
			if (seeds[from].size + size <= sizeof data) {
				memcpy(data + size, seeds[from].data, seeds[from].size);
				size += seeds[from].size;
			}
			break;
		default:
			if (size)
				size = chance() % size + 1;
		}
	run(data, size);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	static const int fatal[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM };
	const char *seconds = getenv("FUZZ_SECONDS");
	double until = now() + (seconds ? atof(seconds) : 0);
	unsigned long more = 0;
	int bad = 0;

	for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
		signal(fatal[i], say_last);
	LLVMFuzzerInitialize(&argc, &argv);
	for (int i = 1; i < argc; i++)
		bad |= take_all(argv[i]);
	for (; seeds_n && now() < until; more++)
		by_chance();
	printf("%zu inputs replayed, %lu more made of them by chance\n", seeds_n, more);
	return bad || !seeds_n;
}
