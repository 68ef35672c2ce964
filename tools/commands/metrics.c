/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `culimbo metrics`: prints numbers from the exporter files for a monitor.
 *
 * The form is OpenMetrics, which Prometheus and the textfile collector of node_exporter read.
 * A FILE is always complete: the text goes to a temporary file, which then takes its name.
 * No two lines have the same name and labels, whatever pids and commands processes have.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HASH_FUNCTION HASH_OAT /* clang warns that uthash's default falls through cases */
#include <uthash.h>

#include "tools/commands/commands.h"
#include "tools/common/left.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"
#include "tools/common/users.h"

enum { OPTION_OUTPUT = 'o', OPTION_EVERY = 128, OPTION_FORMAT, OPTION_USER };

/*
 * The two forms differ only in the comments of counters.  OpenMetrics has the metric's name there,
 * and the lines of its values add "_total"; Prometheus' older form has the full name of these
 * lines.  node_exporter and `promtool check metrics` read only the older form: in the other one
 * they see a counter's values, but neither its type nor its help.
 */
static bool openmetrics = true;
/* The users whose processes count; root's node_exporter wants all of the machine. */
static struct cu_users users;

/* ------------------------------------------------------------------- what only grows */
static const struct {
	const char *name, *unit, *help;
	size_t at; /* in struct cu_counters */
	bool live; /* only for processes whose version of culimbo keeps it */
} counters[] = {
	{ "culimbo_exports", NULL, "Blocks and events that the process has exported, each counted once.",
	  offsetof(struct cu_counters, exports), false },
	{ "culimbo_limbo_entered_bytes", "bytes",
	  "Device memory that the process has freed and culimbo has kept for a while, in whole pages of 2 MiB.",
	  offsetof(struct cu_counters, entered_bytes), false },
	{ "culimbo_limbo_returned_bytes", "bytes", "Device memory of these blocks that was given back to the driver.",
	  offsetof(struct cu_counters, returned_bytes), false },
	{ "culimbo_refused", NULL, "Opens of the process that were refused: the block had been freed.",
	  offsetof(struct cu_counters, refused), false },
	{ "culimbo_reclaimed", NULL, "Holds on blocks of the process that were taken back from dead importers.",
	  offsetof(struct cu_counters, reclaimed), false },
	{ "culimbo_forced_out", NULL,
	  "What the driver got back although others had it, because of CULIMBO_HELD_BYTES or CULIMBO_MAX_EVENTS.",
	  offsetof(struct cu_counters, forced_out), false },
	{ "culimbo_misuse", NULL, "Calls of the process that CUDA forbids, such as a second free.",
	  offsetof(struct cu_counters, misuse), false },
	{ "culimbo_memory_asked", NULL,
	  "How often other processes that were short of device memory asked for the limbo of the process.",
	  offsetof(struct cu_counters, asked), false },
	{ "culimbo_handles", NULL, "Handles that the process has made, also of what it had exported before.",
	  offsetof(struct cu_counters, handles), true },
	{ "culimbo_opens", NULL, "Handles of other processes that the process has opened.",
	  offsetof(struct cu_counters, opens), true },
	{ "culimbo_closes", NULL, "Of these, how many it has closed.",
	  offsetof(struct cu_counters, closes), true },
	{ "culimbo_frees_kept", NULL,
	  "Blocks and events that the process has freed and culimbo has kept for a while.",
	  offsetof(struct cu_counters, kept), true },
	{ "culimbo_frees_kept_mapped", NULL,
	  "Of these, blocks that others had open, and that nobody has open any more.",
	  offsetof(struct cu_counters, kept_mapped), true },
	{ "culimbo_memory_waits", NULL, "Calls of the process for which there was no device memory at first.",
	  offsetof(struct cu_counters, memory_waits), true },
	{ "culimbo_memory_wait_seconds", "seconds", "How long culimbo looked for memory for these calls.",
	  offsetof(struct cu_counters, memory_wait_ns), true },
};

/* ------------------------------------------------------------------- what is counted */
enum what {
	EXPORTED, HELD, LIMBO_HELD, LIMBO_GRACE, LIMBO_FREE, ORPHANED, PINNED, WHATS,
};

static const struct {
	const char *name, *state, *help; /* .state: a label; a name can have several */
} whats[WHATS] = {
	[EXPORTED] = { "exported", NULL, "that the process exports and has not freed" },
	[HELD] = { "held", NULL, "that the process exports and has not freed, and others have open" },
	[LIMBO_HELD] = { "limbo", "held", "that the process has freed and the driver does not have back" },
	[LIMBO_GRACE] = { "limbo", "grace", NULL },
	[LIMBO_FREE] = { "limbo", "free", NULL },
	[ORPHANED] = { "orphaned", NULL, "that the process left when it died or its context ended, and others have open" },
	[PINNED] = { "pinned", NULL, "of others that the process keeps from the driver: freed or unmapped, or their context or exporter has ended" },
};

/* The numbers of one process on one device. */
struct series {
	UT_hash_handle hh;
	char labels[576]; /* the hash's key */
	uint64_t blocks[WHATS], bytes[WHATS], oldest; /* in limbo, ns since its free */
};

struct metrics {
	struct series *all;
	char (*labels)[464]; /* of each process of the scan */
	bool failed;
};

/* Writes @text as the value of a label. */
static void put_escaped(char *to, size_t size, const char *text)
{
	size_t at = 0;

	for (; *text && at + 2 < size; text++) {
		if (*text == '"' || *text == '\\')
			to[at++] = '\\';
		to[at++] = *text;
	}
	to[at] = 0;
}

/* Finds the program in a command line, without its folder and arguments. */
static void program_of(char *to, size_t size, const char *command)
{
	size_t length = strcspn(command, " ");
	char word[129];
	const char *slash;

	snprintf(word, sizeof(word), "%.*s", (int)length, command);
	slash = strrchr(word, '/');
	put_escaped(to, size, slash && slash[1] ? slash + 1 : word);
}

static void label(char *to, size_t size, const struct cu_process *p)
{
	char program[280], file[16];

	program_of(program, sizeof(program), p->command);
	cu_file_word(file, p->file_id);
	/* the file, or without one the start time, tells two processes with the same pid apart */
	if (p->file_id)
		snprintf(to, size, "pid=\"%u\",program=\"%s\",file=\"%s\"", p->who.pid, program, file);
	else
		snprintf(to, size, "pid=\"%u\",program=\"%s\",file=\"none-%llx-%llx\"", p->who.pid, program,
			 (unsigned long long)p->who.pid_ns, (unsigned long long)p->who.start_time);
	if (p->has_user)
		snprintf(to + strlen(to), size - strlen(to), ",user=\"%u\"", (unsigned int)p->user);
}

/* Returns the numbers of the process with @labels on the GPU of @block, which is NULL if nobody knows it; NULL without memory. */
static struct series *series_of(struct metrics *m, const char *labels, const struct cu_block *block)
{
	struct series *series, *found;
	char gpu[48] = "", device[8] = "";

	series = calloc(1, sizeof(*series));
	if (!series) {
		m->failed = true;
		return NULL;
	}
	if (block && block->has_gpu)
		cu_gpu_word(gpu, block->gpu);
	if (block && block->is.device == CL_NO_DEVICE)
		snprintf(device, sizeof(device), "host");
	else if (block)
		snprintf(device, sizeof(device), "%u", block->is.device);
	snprintf(series->labels, sizeof(series->labels), "%s,device=\"%s\",gpu=\"%s\"", labels, device, gpu);
	HASH_FIND_STR(m->all, series->labels, found);
	if (found) {
		free(series);
		return found;
	}
	HASH_ADD_STR(m->all, labels, series);
	return series;
}

static void add(struct series *series, enum what what, uint64_t bytes)
{
	if (!series)
		return;
	series->blocks[what]++;
	series->bytes[what] += bytes;
}

static bool same(const struct cl_identity *a, const struct cl_identity *b)
{
	return a->pid == b->pid && a->pid_ns == b->pid_ns && a->start_time == b->start_time;
}

/* Returns the labels of process @who; NULL: it has no line of its own. */
static const char *labels_of(const struct metrics *m, const struct cu_scan *scan, const struct cl_identity *who)
{
	for (size_t i = 0; i < scan->processes; i++)
		if (!scan->process[i].error && same(&scan->process[i].who, who))
			return m->labels[i];
	return NULL;
}

static void count_block(struct metrics *m, const struct cu_scan *scan, const struct cu_block *block)
{
	const struct cu_process *p = &scan->process[block->process];
	bool held = block->held || block->is.pinned, dead = p->state == CL_DEAD;
	const struct cl_view_block *is = &block->is;
	struct series *series;

	if (is->kind == CL_EVENT || ((dead || is->class == CL_VIEW_ORPHANED) && !held))
		return;
	series = series_of(m, m->labels[block->process], block);
	if (dead || is->class == CL_VIEW_ORPHANED)
		add(series, ORPHANED, is->size);
	else if (is->class == CL_VIEW_HELD_LIMBO)
		add(series, LIMBO_HELD, is->size);
	else if (is->class == CL_VIEW_GRACE)
		add(series, LIMBO_GRACE, is->size);
	else if (is->class == CL_VIEW_LIMBO)
		add(series, LIMBO_FREE, is->size);
	else
		add(series, EXPORTED, is->size);
	if (!dead && is->class == CL_VIEW_HELD)
		add(series, HELD, is->size);
	if (!dead && is->freed && scan->now > is->freed && series && scan->now - is->freed > series->oldest)
		series->oldest = scan->now - is->freed;
	if (!cu_block_is_left(is, p))
		return;
	for (uint32_t i = 0; i < block->held; i++) {
		const struct cu_holder *holder = &p->holder[scan->held_by[block->held_at + i]];
		const char *labels = labels_of(m, scan, &holder->who);

		if (labels)
			add(series_of(m, labels, block), PINNED, is->size);
	}
}

/* Memory of an exporter that has ended, and whose file has gone. */
static void count_left(struct metrics *m, const struct cu_left *left)
{
	add(series_of(m, m->labels[left->process], NULL), PINNED, left->is.size);
}

/* ------------------------------------------------------------------------- the text */
static void head_of(FILE *to, const char *type, const char *name, const char *end, const char *unit,
		    const char *help)
{
	fprintf(to, "# TYPE %s%s %s\n", name, end, type);
	if (unit && openmetrics)
		fprintf(to, "# UNIT %s%s %s\n", name, end, unit);
	fprintf(to, "# HELP %s%s %s\n", name, end, help);
}

static void head(FILE *to, const char *name, const char *unit, const char *help)
{
	head_of(to, "gauge", name, "", unit, help);
}

static void put_counters(FILE *to, const struct metrics *m, const struct cu_scan *scan)
{
	for (size_t n = 0; n < sizeof(counters) / sizeof(*counters); n++) {
		head_of(to, "counter", counters[n].name, openmetrics ? "" : "_total", counters[n].unit,
			counters[n].help);
		for (size_t i = 0; i < scan->processes; i++) {
			const struct cu_process *p = &scan->process[i];
			uint64_t value;

			if (p->error || !p->file_id || (counters[n].live && !p->counters.has_live))
				continue;
			memcpy(&value, (const char *)&p->counters + counters[n].at, sizeof(value));
			fprintf(to, "%s_total{%s} ", counters[n].name, m->labels[i]);
			if (counters[n].unit && !strcmp(counters[n].unit, "seconds"))
				fprintf(to, "%.6f\n", (double)value / 1e9);
			else
				fprintf(to, "%llu\n", (unsigned long long)value);
		}
	}
}

/* Writes one kind of numbers, in bytes if @bytes, else in blocks. */
static void put_what(FILE *to, const struct metrics *m, enum what from, bool bytes)
{
	char name[64], help[160];

	snprintf(name, sizeof(name), "culimbo_%s_%s", whats[from].name, bytes ? "bytes" : "blocks");
	snprintf(help, sizeof(help), "%s %s.", bytes ? "Device memory of blocks" : "Blocks of device memory",
		 whats[from].help);
	head(to, name, bytes ? "bytes" : NULL, help);
	for (const struct series *s = m->all; s; s = s->hh.next)
		for (enum what what = from; what < WHATS && !strcmp(whats[what].name, whats[from].name); what++) {
			const char *state = whats[what].state;

			fprintf(to, "%s{%s%s%s%s} %llu\n", name, s->labels, state ? ",state=\"" : "",
				state ? state : "", state ? "\"" : "",
				(unsigned long long)(bytes ? s->bytes[what] : s->blocks[what]));
		}
}

static void put_processes(FILE *to, const struct cu_scan *scan)
{
	static const enum cl_liveness states[] = { CL_ALIVE, CL_SETTLING, CL_LEAVING, CL_DEAD };
	uint64_t n, unread = 0;

	head(to, "culimbo_processes", NULL, "Processes that share device memory, by what is known of them.");
	for (unsigned int state = 0; state < sizeof(states) / sizeof(states[0]); state++) {
		n = 0;
		for (size_t i = 0; i < scan->processes; i++)
			n += !scan->process[i].error && scan->process[i].state == states[state];
		fprintf(to, "culimbo_processes{state=\"%s\"} %llu\n", cu_liveness_word(states[state]),
			(unsigned long long)n);
	}
	for (size_t i = 0; i < scan->processes; i++)
		unread += scan->process[i].error != 0;
	head(to, "culimbo_unread_files", NULL, "Files of processes that could not be read.");
	fprintf(to, "culimbo_unread_files %llu\n", (unsigned long long)unread);
}

/* Returns false without memory. */
static bool put_all(FILE *to, const struct cu_scan *scan)
{
	struct metrics m = { .labels = calloc(scan->processes + 1, sizeof(*m.labels)) };
	struct series *series, *next;

	for (size_t i = 0; i < scan->processes && m.labels; i++)
		label(m.labels[i], sizeof(m.labels[i]), &scan->process[i]);
	for (size_t i = 0; i < scan->blocks && m.labels; i++)
		count_block(&m, scan, &scan->block[i]);
	for (size_t i = 0; i < scan->lefts && m.labels; i++)
		count_left(&m, &scan->left[i]);
	put_processes(to, scan);
	for (enum what what = 0; what < WHATS; what++) {
		if (!whats[what].help)
			continue;
		put_what(to, &m, what, false);
		put_what(to, &m, what, true);
	}
	head(to, "culimbo_limbo_oldest_seconds", "seconds",
	     "How long ago the block was freed that the process has waited longest to give back.");
	for (const struct series *s = m.all; s; s = s->hh.next)
		fprintf(to, "culimbo_limbo_oldest_seconds{%s} %.3f\n", s->labels, (double)s->oldest / 1e9);
	if (m.labels)
		put_counters(to, &m, scan);
	if (openmetrics)
		fputs("# EOF\n", to);
	HASH_ITER(hh, m.all, series, next) {
		HASH_DEL(m.all, series);
		free(series);
	}
	m.failed = m.failed || !m.labels;
	free(m.labels);
	return !m.failed;
}

/* -------------------------------------------------------------------------- output */
/* Writes the @length bytes at @text to @path, completely or not at all.  Returns 0 or -errno. */
static int replace(const char *path, const char *text, size_t length)
{
	char beside[PATH_MAX];
	int fd, error = 0;
	size_t at = 0;

	/* node_exporter reads only *.prom, so it ignores the temporary file */
	if (snprintf(beside, sizeof(beside), "%s.%d.new", path, (int)getpid()) >= (int)sizeof(beside))
		return -ENAMETOOLONG;
	fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return -errno;
	while (at < length && !error) {
		ssize_t wrote = write(fd, text + at, length - at);

		if (wrote >= 0)
			at += (size_t)wrote;
		else if (errno != EINTR)
			error = -errno;
	}
	if (close(fd) && !error)
		error = -errno;
	if (!error && rename(beside, path))
		error = -errno;
	if (error)
		unlink(beside);
	return error;
}

/* Scans once and writes.  Returns the exit status. */
static int look(const struct cu_command *command, const char *output)
{
	int fd = users.given ? -ENOENT : cu_directory_open(command), error;
	struct cu_scan scan;
	char *text = NULL;
	size_t length = 0;
	FILE *to;

	if (fd < 0 && fd != -ENOENT)
		return CU_FAILED;
	error = users.given ? cu_users_look(command, &scan, &users, CU_SCAN_BLOCKS) :
			      cu_scan(&scan, fd, CU_SCAN_BLOCKS);
	if (fd >= 0)
		close(fd);
	to = open_memstream(&text, &length);
	if (!error && (!to || !put_all(to, &scan)))
		error = -ENOMEM;
	cu_scan_free(&scan);
	if (to && fclose(to) && !error)
		error = -ENOMEM;
	if (!error && output)
		error = replace(output, text, length);
	else if (!error && (fwrite(text, 1, length, stdout) != length || fflush(stdout)))
		error = -errno;
	if (error)
		cu_error(command, "%s: %s", output ? output : "cannot write", strerror(-error));
	free(text);
	return error ? CU_FAILED : CU_OK;
}

static volatile sig_atomic_t told_to_end;

static void on_end(int signal)
{
	told_to_end = signal;
}

/* Scans every @ns nanoseconds, until SIGINT or SIGTERM. */
static int look_again_and_again(const struct cu_command *command, const char *output, uint64_t ns)
{
	struct sigaction end = { .sa_handler = on_end };
	struct timespec next;
	sigset_t ends, before;
	int status = CU_OK;

	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	/*
	 * signals are delivered only during the wait, so that none is missed between a scan and a
	 * wait
	 */
	sigprocmask(SIG_BLOCK, &ends, &before);
	sigaction(SIGINT, &end, NULL);
	sigaction(SIGTERM, &end, NULL);
	clock_gettime(CLOCK_MONOTONIC, &next);
	while (!told_to_end) {
		struct timespec now, left;
		int64_t wait;

		status = look(command, output);
		next.tv_sec += (time_t)(ns / 1000000000);
		next.tv_nsec += (long)(ns % 1000000000);
		next.tv_sec += next.tv_nsec / 1000000000;
		next.tv_nsec %= 1000000000;
		clock_gettime(CLOCK_MONOTONIC, &now);
		wait = (int64_t)(next.tv_sec - now.tv_sec) * 1000000000 + next.tv_nsec - now.tv_nsec;
		if (wait < 0) { /* the machine slept, or was busy: skip the missed scans */
			next = now;
			wait = 0;
		}
		left = (struct timespec){ (time_t)(wait / 1000000000), (long)(wait % 1000000000) };
		ppoll(NULL, 0, &left, &before);
	}
	return status;
}

static int metrics(const struct cu_command *command, int argc, char **argv)
{
	const char *output = NULL, *dir = NULL;
	uint64_t every = 0;
	int got;

	while ((got = cu_getopt(command, argc, argv)) != CU_DONE)
		switch (got) {
		case OPTION_OUTPUT:
			output = optarg;
			break;
		case OPTION_EVERY:
			if (!cu_read_wait(optarg, &every) || every < 100000000)
				return cu_usage_error(command, "--every: '%s' is not a time of 100ms to 1h", optarg);
			break;
		case OPTION_FORMAT:
			openmetrics = !strcmp(optarg, "openmetrics");
			if (!openmetrics && strcmp(optarg, "prometheus") != 0)
				return cu_usage_error(command, "--format: '%s' is not openmetrics or prometheus", optarg);
			break;
		case CU_OPTION_DIR:
			dir = optarg;
			break;
		case OPTION_USER:
			if (!cu_users_read(command, optarg, &users))
				return CU_USAGE;
			break;
		default:
			return got == CU_EXIT_HELP ? CU_OK : CU_USAGE;
		}
	if (!users.given)
		cu_directory_set(command, dir);
	else if (!cu_users_begin(command, &users, dir, &got))
		return got;
	return every ? look_again_and_again(command, output, every) : look(command, output);
}

static const struct cu_option options[] = {
	{ "output", OPTION_OUTPUT, "FILE", "write to FILE, which is replaced as a whole (default: stdout)" },
	{ "every", OPTION_EVERY, "DURATION", "print again after each DURATION: 15s, 1m" },
	{ "format", OPTION_FORMAT, "openmetrics|prometheus",
	  "prometheus: the older form, which node_exporter and promtool read (default openmetrics)" },
	CU_USERS_OPTION(OPTION_USER),
	CU_DIR_OPTION,
	{ .name = NULL },
};

static const struct cu_example examples[] = {
	{ "culimbo metrics --format=prometheus -o /var/lib/prometheus/node-exporter/culimbo.prom --every 15s",
	  "for node_exporter's textfile collector" },
	{ "culimbo metrics | grep pinned_bytes", "processes that keep freed memory of others" },
	{ .line = NULL },
};

const struct cu_command cu_metrics = {
	.name = "metrics",
	.arguments = "",
	.summary = "print what is shared as OpenMetrics, for Prometheus",
	.help = "Prints gauges for each process and device: blocks and bytes that are exported, held by\n"
		"others, in limbo, orphaned, or pinned by a process that has freed memory of others\n"
		"open; and the age of the oldest block in limbo.  Also prints counters for each process,\n"
		"which only grow: exports, opens and closes, frees that culimbo kept, memory that went into the\n"
		"limbo and came back, opens refused, holds of dead processes taken back, misuse, and\n"
		"calls that waited for memory.  A GPU has two labels: gpu, its UUID, the same for all\n"
		"processes, and device, as the block's exporter counts (host: of a pool on the host).\n"
		"\n"
		"With -o the text goes to FILE, which is always whole: node_exporter's textfile\n"
		"collector reads it, if its name ends in .prom and --format=prometheus is given.\n"
		"A dashboard for Grafana is installed as culimbo-dashboard.json in culimbo's folder\n"
		"below share/.",
	.options = options,
	.examples = examples,
	.run = metrics,
};
