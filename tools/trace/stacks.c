/* SPDX-License-Identifier: Apache-2.0 */
/* Reads call stacks of a trace: see stacks.h. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/trace/stacks.h"

/* Lays them out as a region in memory does: modules, then the words of the stacks. */
#define PART (CL_AT_IMPORTS - CL_AT_MODULES)

static bool read_all(int fd, char *to, uint64_t n, uint64_t at)
{
	return pread(fd, to, n, (off_t)at) == (ssize_t)n;
}

void cu_trace_stacks_read(struct cu_trace_process *p, int fd, const struct cl_trace_header *header,
			  uint64_t size)
{
	uint64_t modules = header->modules, words = header->stack_words, at = header->stacks;
	struct cu_trace_view *view;
	char *part;

	if (!words || modules > CL_MODULES || words > CL_STACK_WORDS || at < CL_TRACE_HEADER_SIZE ||
	    at > size || modules * sizeof(struct cl_module) + words * 8 > size - at)
		return;
	view = calloc(1, sizeof(*view));
	part = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!view || part == MAP_FAILED ||
	    !read_all(fd, part, modules * sizeof(struct cl_module), at) ||
	    !read_all(fd, part + CL_AT_STACKS - CL_AT_MODULES, words * 8,
		      at + modules * sizeof(struct cl_module))) {
		if (part != MAP_FAILED)
			munmap(part, PART);
		free(view);
		return;
	}
	view->header.exporter = p->who;
	view->header.modules = (uint32_t)modules;
	view->header.stack_words = (uint32_t)words;
	view->is = (struct cl_view){ .region = { .fd = -1, .header = &view->header, .report_data = part },
				     .state = CL_DEAD };
	p->stacks = view;
}

void cu_trace_stacks_find(struct cu_trace *t, int dirfd)
{
	for (size_t i = 0; i < t->processes; i++) {
		struct cu_trace_process *p = &t->process[i];
		struct cu_trace_view *view = p->stacks ? NULL : calloc(1, sizeof(*view));

		if (!view)
			continue;
		if (cl_view_open_process(&view->is, dirfd, &p->who, NULL))
			free(view);
		else
			p->stacks = view;
	}
}

void cu_trace_stacks_free(struct cu_trace_process *p)
{
	if (!p->stacks)
		return;
	if (p->stacks->is.region.report_data)
		munmap(p->stacks->is.region.report_data, PART);
	else
		cl_view_close(&p->stacks->is);
	free(p->stacks);
	p->stacks = NULL;
}

/* ------------------------------------------------------------------ each once */
static int compare(const void *x, const void *y)
{
	const uint64_t *a = x, *b = y;

	return *a < *b ? -1 : *a > *b;
}

static uint64_t key_of(uint32_t process, uint32_t stack)
{
	return (uint64_t)process << 32 | stack;
}

struct cu_trace_stacks cu_trace_stacks_of(const struct cu_trace *t)
{
	struct cu_trace_stacks all = { .key = malloc((2 * t->blocks + t->opens + 1) * sizeof(*all.key)) };
	size_t n = 0;

	if (!all.key)
		return all;
	for (size_t i = 0; i < t->blocks; i++) {
		if (t->block[i].export_stack)
			all.key[n++] = key_of(t->block[i].process, t->block[i].export_stack);
		if (t->block[i].free_stack)
			all.key[n++] = key_of(t->block[i].process, t->block[i].free_stack);
	}
	for (size_t i = 0; i < t->opens; i++)
		if (t->open[i].stack)
			all.key[n++] = key_of(t->open[i].process, t->open[i].stack);
	if (n)
		qsort(all.key, n, sizeof(*all.key), compare);
	for (size_t i = 0; i < n; i++)
		if ((!i || all.key[i] != all.key[i - 1]) && t->process[all.key[i] >> 32].stacks)
			all.key[all.n++] = all.key[i];
	return all;
}

long cu_trace_stack_index(const struct cu_trace_stacks *stacks, uint32_t process, uint32_t stack)
{
	uint64_t key = key_of(process, stack);
	const uint64_t *at = !stack || !stacks->n ? NULL :
			     bsearch(&key, stacks->key, stacks->n, sizeof(key), compare);

	return at ? at - stacks->key : -1;
}
