/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo doctor` lists what CUDA refused to share, for processes that live or have died
 * lately.  That is no fault of the machine, and libraries ask for handles only to see whether
 * they get any.  So each check is ok, and says what would share such memory.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "shim/diag/note_words.h"
#include "shim/self/self.h"
#include "tools/common/scan.h"
#include "tools/doctor/checks.h"

/* How often, to how many processes, and the first of them. */
struct sum {
	uint64_t times;
	unsigned int processes;
	uint32_t pid;
	bool dead;
};

static void add(struct sum *sum, const struct cu_process *process, uint64_t times)
{
	if (!times)
		return;
	sum->times += times;
	if (sum->processes++)
		return;
	sum->pid = process->who.pid;
	sum->dead = process->state == CL_DEAD;
}

static void say(const struct sum *sum, const char *refused, const char *of, const char *advice)
{
	char more[32] = "";

	if (!sum->times)
		return;
	if (sum->processes > 1)
		snprintf(more, sizeof(more), " and %u more", sum->processes - 1);
	cu_found("refused", OK, advice, "%s%s: process %" PRIu32 "%s%s asked %" PRIu64 " time%s", refused, of, sum->pid,
		 sum->dead ? ", which has ended," : "", more, sum->times, sum->times == 1 ? "" : "s");
}

/* Says how often CUDA made no handle of memory that is made as @made. */
static void say_handles(const struct sum *sum, unsigned int made)
{
	const bool shared_by_option = made == CL_MADE_VIRTUAL || made == CL_MADE_VIRTUAL_ALONE || made == CL_MADE_POOL;
	char advice[600];

	snprintf(advice, sizeof(advice), "%s%s", cl_note_hint(made, CL_CALL_GET_HANDLE, 0, CL_WHY_RESULT_ALONE),
		 shared_by_option ? ". Where it ran so, its report says why it got none" : "");
	say(sum, "CUDA makes no legacy handle of ", cl_made_words(made), advice);
}

void cu_check_refused(void)
{
	struct sum handles[CL_MADE_KINDS] = { 0 }, opens = { 0 };
	int dirfd = cl_self_open_dir(false);
	struct cu_scan scan;

	if (dirfd < 0) /* another check reports the reason */
		return;
	if (!cu_scan(&scan, dirfd, 0))
		for (size_t i = 0; i < scan.processes; i++) {
			const struct cu_counters *counters = &scan.process[i].counters;

			for (unsigned int made = 0; made < CL_MADE_KINDS; made++)
				add(&handles[made], &scan.process[i], counters->handles_refused[made]);
			add(&opens, &scan.process[i], counters->opens_refused);
		}
	for (unsigned int made = 0; made < CL_MADE_KINDS; made++)
		say_handles(&handles[made], made);
	say(&opens, "memory was not opened by its handle", "", "`culimbo report` has the error, and where it was opened");
	cu_scan_free(&scan);
	close(dirfd);
}
