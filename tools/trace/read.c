/* SPDX-License-Identifier: Apache-2.0 */
/* Reads trace files: see trace.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/trace/grow.h"
#include "tools/trace/stacks.h"
#include "tools/trace/trace.h"

#define RING_MOST ((1ull << 30) / 64) /* records, with the largest CULIMBO_TRACE_SIZE */


static int by_time(const void *a, const void *b)
{
	const struct cl_trace_event *x = a, *y = b;

	return x->when < y->when ? -1 : x->when > y->when;
}

static void copy_text(char *to, const char *from, size_t size)
{
	memcpy(to, from, size);
	to[size] = 0;
}

/* Reads the records at places @first to @first + @n - 1. */
static int take_records(struct cu_trace_process *p, const struct cl_trace_record *r, uint64_t first,
			size_t n, uint64_t ring, uint64_t *oldest, uint64_t *newest)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t word[CL_TRACE_WORDS], seal = r[i].seal, number;
		struct cl_trace_event *e;

		if (!seal)
			continue;
		memcpy(word, (const void *)r[i].word, sizeof word);
		number = (seal >> CL_TRACE_CHECK_BITS) - 1;
		if (number % ring != first + i || seal != cl_trace_seal(number, word))
			continue;
		e = CU_ADD(p->event, p->events);
		if (!e)
			return -ENOMEM;
		memcpy(e, word, sizeof *e);
		if (number < *oldest)
			*oldest = number;
		if (number >= *newest)
			*newest = number + 1;
	}
	return 0;
}

static int read_records(int fd, struct cu_trace_process *p, uint64_t ring, uint64_t next)
{
	enum { AT_ONCE = 1024 };
	struct cl_trace_record *buffer = malloc(AT_ONCE * sizeof *buffer);
	uint64_t oldest = UINT64_MAX, newest = 0, whole;
	int err = buffer ? 0 : -ENOMEM;

	for (uint64_t at = 0; !err && at < ring; at += AT_ONCE) {
		ssize_t n = pread(fd, buffer, AT_ONCE * sizeof *buffer,
				  (off_t)(CL_TRACE_HEADER_SIZE + at * sizeof *buffer));

		if (n <= 0)
			break; /* the file was cut: the rest is missing */
		err = take_records(p, buffer, at, (size_t)n / sizeof *buffer, ring, &oldest, &newest);
		/* the ring fills from its start: there are no records behind an unused place */
		if (next <= at + AT_ONCE && newest <= next)
			break;
	}
	free(buffer);
	if (err)
		return err;
	/* the header's count may be damaged; the seals' numbers are not */
	if (next < newest || next - newest > ring)
		next = newest;
	whole = next < ring ? next : ring;
	p->records = p->events;
	p->lost = next - whole;
	p->damaged = whole > p->events ? whole - p->events : 0;
	if (p->events)
		qsort(p->event, p->events, sizeof *p->event, by_time);
	return 0;
}

static int read_file(int fd, struct cu_trace_process *p, const char **why,
		     void (*warn)(const char *, const char *))
{
	struct cl_trace_header h;
	struct stat st;
	uint64_t ring, there;
	char text[160];
	int err;

	*why = NULL;
	if (fstat(fd, &st))
		return -errno;
	*why = "is not a file";
	if (!S_ISREG(st.st_mode))
		return -EBADMSG;
	*why = "is not a culimbo trace file";
	if (pread(fd, &h, sizeof h, 0) != sizeof h || memcmp(&h, CL_TRACE_MAGIC, sizeof h.magic))
		return -EBADMSG;
	*why = "is the trace of another version of culimbo";
	if (h.version != CL_TRACE_VERSION && h.version != 1)
		return -EPROTO;
	*why = "has no room for a record";
	there = (uint64_t)st.st_size;
	if (h.version > 1 && h.stacks >= CL_TRACE_HEADER_SIZE && h.stacks < there)
		there = h.stacks;
	there = there > CL_TRACE_HEADER_SIZE ?
			(there - CL_TRACE_HEADER_SIZE) / sizeof(struct cl_trace_record) :
			0;
	ring = h.records;
	if (!there)
		return -EBADMSG;
	if (ring != there) {
		/* if the file is too short it was cut; otherwise the header's number is damaged */
		bool cut = ring > there && ring <= RING_MOST;

		snprintf(text, sizeof text, cut ? "is cut: %llu of %llu places for records are there" :
						  "has room for %llu records, not %llu as its header says",
			 (unsigned long long)there, (unsigned long long)ring);
		warn(p->path, text);
		if (!cut)
			ring = there;
	}
	*why = NULL;
	p->pid = h.who.pid;
	p->who = h.who;
	memcpy(p->boot_id, h.boot_id, sizeof p->boot_id);
	p->monotonic = h.monotonic;
	p->realtime = h.realtime;
	copy_text(p->name, h.name, sizeof h.name);
	copy_text(p->command, h.command, sizeof h.command);
	if (h.version > 1)
		cu_trace_stacks_read(p, fd, &h, (uint64_t)st.st_size);
	err = read_records(fd, p, ring, h.next);
	if (err)
		return err;
	p->state = CU_TRACE_KILLED;
	for (size_t i = 0; i < p->events; i++)
		if (p->event[i].what == CL_TRACE_ENDED)
			p->state = CU_TRACE_ENDED_WELL;
	/* the writer has this lock as long as it maps the file */
	if (flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK &&
	    p->state == CU_TRACE_KILLED)
		p->state = CU_TRACE_RUNNING;
	if (p->damaged && p->state != CU_TRACE_RUNNING) {
		snprintf(text, sizeof text, "has %llu records that cannot be read, and are left out",
			 (unsigned long long)p->damaged);
		warn(p->path, text);
	}
	return 0;
}

int cu_trace_add(struct cu_trace *trace, const char *path, const char **why,
		 void (*warn)(const char *path, const char *text))
{
	struct cu_trace_process *p = CU_ADD(trace->process, trace->processes);
	int fd, err;

	*why = NULL;
	if (!p)
		return -ENOMEM;
	memset(p, 0, sizeof *p);
	p->path = strdup(path);
	fd = p->path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
	err = !p->path ? -ENOMEM : fd < 0 ? -errno : read_file(fd, p, why, warn);
	if (fd >= 0)
		close(fd);
	if (!err)
		return 0;
	cu_trace_stacks_free(p);
	free(p->path);
	free(p->event);
	trace->processes--;
	return err;
}

void cu_trace_free(struct cu_trace *t)
{
	for (size_t i = 0; i < t->processes; i++) {
		cu_trace_stacks_free(&t->process[i]);
		free(t->process[i].path);
		free(t->process[i].event);
		free(t->process[i].limbo);
	}
	free(t->process);
	free(t->block);
	free(t->open);
	free(t->mark);
	memset(t, 0, sizeof *t);
}
