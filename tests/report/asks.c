/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that calls culimbo by culimbo.h.  It shares a block with a consumer that keeps it open, frees
 * it, and then kills the consumer.  Prints the result of each call in a line.  The reports go to the
 * files that its arguments name: before it shares, before the consumer has opened the block, text, JSON.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>

#include "bug.h"
#include "preload/culimbo.h"

enum { BYTES = 4 << 20 };

static culimbo_collect_fn *collect;
static culimbo_report_fn *report;
static culimbo_stats_fn *stats;

static void report_to(const char *path, const char *format)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);

	printf("report %s: %d\n", path, report(fd, format));
	close(fd);
}

static void say_stats(const char *when)
{
	struct culimbo_stats s;
	int result;

	memset(&s, 0x5a, sizeof s);
	result = stats(&s, sizeof s);
	printf("%s: result %d, exports %" PRIu64 " opens %" PRIu64 " kept %" PRIu64 " returned %" PRIu64
	       " (%" PRIu64 " bytes) limbo %" PRIu64 " held %" PRIu64 " (%" PRIu64 " bytes) open %" PRIu64
	       " dead %" PRIu64 " findings %" PRIu64 "\n",
	       when, result, s.exports, s.opens, s.kept, s.returned, s.returned_bytes, s.limbo,
	       s.held, s.held_bytes, s.open, s.dead_holders, s.findings);
}

static void wrong(void)
{
	struct {
		uint64_t exports, not_touched;
		uint64_t more[64];
	} s = { 7, 7, { 7 } };
	int result = stats((struct culimbo_stats *)&s, 8);

	printf("short: %d, %" PRIu64 " and %" PRIu64 "\n", result, s.exports, s.not_touched);
	printf("wrong: %d %d %d %d\n", report(1, "xml"), report(999, NULL), stats(NULL, 8),
	       stats((struct culimbo_stats *)&s, 0));
	stats((struct culimbo_stats *)&s, sizeof s);
	printf("long: %" PRIu64 " and %" PRIu64 "\n", s.exports, s.more[63]);
}

static void consume(int from, int to)
{
	struct culimbo_stats s;
	CUipcMemHandle handle;
	CUdeviceptr block;

	receive(from, &handle, sizeof handle);
	CHECK(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	stats(&s, sizeof s);
	printf("consumer: opens %" PRIu64 ", open %" PRIu64 ", %" PRIu64 " bytes\n", s.opens, s.open, s.open_bytes);
	fflush(stdout);
	pass(to, "o", 1);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	CUipcMemHandle handle;
	int down[2], up[2];
	CUdeviceptr block;
	pid_t consumer;
	char word;

	collect = (culimbo_collect_fn *)dlsym(RTLD_DEFAULT, "culimbo_collect");
	report = (culimbo_report_fn *)dlsym(RTLD_DEFAULT, "culimbo_report");
	stats = (culimbo_stats_fn *)dlsym(RTLD_DEFAULT, "culimbo_stats");
	if (argc != 5 || !collect || !report || !stats || pipe(down) || pipe(up))
		return 2;
	consumer = fork();
	use_gpu();
	if (consumer == 0)
		consume(down[0], up[1]);
	report_to(argv[1], NULL);
	printf("collect: %d\n", collect());
	say_stats("before");
	CHECK(cuMemAlloc(&block, BYTES));
	CHECK(cuIpcGetMemHandle(&handle, block));
	report_to(argv[2], NULL);
	pass(down[1], &handle, sizeof handle);
	receive(up[0], &word, 1);
	CHECK(cuMemFree(block));
	say_stats("held");
	printf("collect: %d\n", collect());
	report_to(argv[3], "text");
	report_to(argv[4], "jsonl");
	wrong();
	kill(consumer, SIGKILL);
	waitpid(consumer, NULL, 0);
	printf("collect: %d\n", collect());
	say_stats("after");
	return 0;
}
