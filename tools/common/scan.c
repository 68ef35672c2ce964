/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of exporter files: see scan.h. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/options.h"
#include "shim/self/self.h"
#include "tools/common/left.h"
#include "tools/common/scan.h"
#include "tools/common/table.h"
#include "tools/common/text.h"

/* ------------------------------------------------------------------ directory */
static const struct cu_command *complains;

static void complain(const char *line)
{
	cu_error(complains, "%s", line);
}

void cu_directory_set(const struct cu_command *command, const char *dir)
{
	complains = command;
	if (dir && setenv("CULIMBO_DIR", dir, 1))
		cu_error(command, "cannot set CULIMBO_DIR: %s", strerror(errno));
	cl_options_read(&cl_options, environ, complain);
}

const char *cu_directory(void)
{
	static char path[4096];

	cl_self_dir_path(path, sizeof(path));
	return path;
}

int cu_directory_open(const struct cu_command *command)
{
	int fd = cl_self_open_dir(false);
	char path[256];

	if (fd >= 0 || fd == -ENOENT)
		return fd;
	cu_clean(path, sizeof(path), cu_directory(), 255);
	if (fd == -EPERM)
		cu_error(command,
			 "%s belongs to another user, or others may write there, so nothing in it can be trusted (the library does not use it either); name another one by --dir or CULIMBO_DIR",
			 path);
	else if (fd == -ELOOP || fd == -ENOTDIR)
		cu_error(command, "%s: is not a directory%s", path,
			 fd == -ELOOP ? " but a symbolic link" : "");
	else
		cu_error(command, "cannot open %s: %s", path, strerror(-fd));
	return fd;
}

/* ---------------------------------------------------------------------- notes */
void cu_note_nobody(void)
{
	char path[256];

	cu_clean(path, sizeof(path), cu_directory(), 255);
	cu_note("No process shares GPU memory under culimbo (there is no %s %s).",
		access(cu_directory(), F_OK) ? "directory" : "file in", path);
	cu_note("Start programs by `culimbo run -- CMD`; `culimbo ps --unprotected` lists those that use CUDA without it.");
}

void cu_note_unread(const struct cu_command *command, const struct cu_scan *scan)
{
	for (size_t i = 0; i < scan->processes; i++) {
		char name[16];

		if (!scan->process[i].error)
			continue;
		cu_file_word(name, scan->process[i].file_id);
		cu_error(command, "%s is left out: %s", name, cu_process_note(&scan->process[i]));
	}
}

bool cu_number(const char *text, long long *number)
{
	if (!*text || strlen(text) > 10 || strspn(text, "0123456789") != strlen(text))
		return false;
	*number = atoll(text);
	return *number <= UINT32_MAX;
}

bool cu_read_wait(const char *text, uint64_t *ns)
{
	char *end;
	double number = strtod(text, &end);
	double unit = !strcmp(end, "ms") ? 1e6 : !*end || !strcmp(end, "s") ? 1e9 :
		      !strcmp(end, "m") ? 6e10 : !strcmp(end, "h") ? 3.6e12 : 0;

	if (end == text || !unit || !(number >= 0 && number * unit <= 3.6e12))
		return false;
	*ns = (uint64_t)(number * unit);
	return true;
}

/* ------------------------------------------------------ files that are cut under us */
static sigjmp_buf cut;
static volatile sig_atomic_t guarded;

static void on_bus_error(int signal)
{
	if (guarded)
		siglongjmp(cut, 1);
	/* not from a mapping that we read: take the default action */
	struct sigaction usual = { .sa_handler = SIG_DFL };

	sigaction(signal, &usual, NULL);
}

bool cu_guarded(void (*look)(void *data), void *data)
{
	struct sigaction ours = { .sa_handler = on_bus_error }, before;
	bool whole = false;

	sigaction(SIGBUS, &ours, &before);
	if (!sigsetjmp(cut, 1)) {
		guarded = 1;
		look(data);
		whole = true;
	}
	guarded = 0;
	sigaction(SIGBUS, &before, NULL);
	return whole;
}

struct opening {
	struct cl_view *view;
	struct cl_region *region;
	int dirfd, error;
	uint32_t file_id;
	const char *why;
};

static void open_it(void *data)
{
	struct opening *o = data;

	o->error = o->view ? cl_view_open(o->view, o->dirfd, o->file_id, NULL, &o->why) :
			     cl_region_open(o->region, o->dirfd, o->file_id, &o->why);
}

static int open_guarded(struct opening *o, const char **why)
{
	const char *unsaid;

	why = why ? why : &unsaid;
	if (!cu_guarded(open_it, o)) {
		*why = "it was cut while it was read";
		return -EBADMSG;
	}
	*why = o->why;
	return o->error;
}

int cu_view_open(struct cl_view *view, int dirfd, uint32_t file_id, const char **why)
{
	return open_guarded(&(struct opening){ .view = view, .dirfd = dirfd, .file_id = file_id }, why);
}

int cu_region_open(struct cl_region *region, int dirfd, uint32_t file_id, const char **why)
{
	return open_guarded(&(struct opening){ .region = region, .dirfd = dirfd, .file_id = file_id },
			    why);
}

/* ----------------------------------------------------------------- one file */
struct look {
	struct cu_scan *scan;
	struct cu_process *process;
	uint32_t index;
	struct cl_view view;
	int flags;
	struct cu_holder *slot; /* CL_SLOTS of them */
	size_t *block_room, *held_room;
	uint64_t oldest; /* oldest export of a block that still exists, CLOCK_MONOTONIC ns */
	bool failed;
};

/* Makes room for one more in *array of *n. */
static bool make_room(void *array, size_t size, size_t n, size_t *room)
{
	size_t more = *room ? 2 * *room : 256;
	void **at = array;
	void *new;

	if (n < *room)
		return true;
	new = realloc(*at, more * size);
	if (!new)
		return false;
	*at = new;
	*room = more;
	return true;
}

static void read_slot(const struct cl_view *view, unsigned int slot, struct cu_holder *to)
{
	struct cl_view_holder is;

	cl_view_slot(view, slot, &is);
	*to = (struct cu_holder){ .slot = slot, .who = is.who, .since = is.since, .alive = is.alive,
				   .called_exec = is.called_exec };
	cu_clean(to->name, sizeof(to->name), is.name, sizeof(is.name));
}

bool cu_block_is_left(const struct cl_view_block *block, const struct cu_process *exporter)
{
	if (block->given_back || block->freed_observed)
		return false;
	return exporter->state == CL_DEAD || exporter->called_exec || block->class == CL_VIEW_HELD_LIMBO ||
	       block->class == CL_VIEW_ORPHANED;
}

static void look_at_block(struct look *look, uint32_t record)
{
	struct cu_process *process = look->process;
	struct cu_scan *scan = look->scan;
	struct cl_view_block block;
	uint16_t slots[CL_SLOTS];
	unsigned int n = 0;

	if (!cl_view_block(&look->view, record, &block))
		return;
	if (block.holders)
		n = cl_view_holder_slots(&look->view, record, slots, CL_SLOTS);
	if (!look->oldest || block.exported < look->oldest)
		look->oldest = block.exported;
	if (n || block.pinned) {
		process->held++;
		process->held_bytes += block.size;
	}
	/* a dead process's block that nobody holds is gone: the driver has its memory back */
	switch (process->state == CL_DEAD && !n && !block.pinned ? CL_VIEW_CLASSES : block.class) {
	case CL_VIEW_HELD_LIMBO:
	case CL_VIEW_GRACE:
	case CL_VIEW_LIMBO:
		process->limbo++;
		process->limbo_bytes += block.size;
		break;
	case CL_VIEW_HELD:
	case CL_VIEW_LIVE:
		process->blocks++;
		process->bytes += block.size;
		break;
	default:
		break;
	}
	if (look->flags & CU_SCAN_BLOCKS) {
		if (!make_room(&scan->block, sizeof(*scan->block), scan->blocks, look->block_room)) {
			look->failed = true;
			return;
		}
		scan->block[scan->blocks++] = (struct cu_block){
			.is = block, .process = look->index, .held_at = (uint32_t)scan->held_by_n, .held = n
		};
		scan->block[scan->blocks - 1].has_gpu =
			block.kind != CL_EVENT &&
			cl_region_device_uuid(&look->view.region, block.device, scan->block[scan->blocks - 1].gpu);
	}
	for (unsigned int i = 0; i < n; i++) {
		struct cu_holder *holder = &look->slot[slots[i]];

		if (!holder->holds)
			read_slot(&look->view, slots[i], holder);
		holder->holds++;
		holder->bytes += block.size;
		if (cu_block_is_left(&block, process)) {
			holder->pins++;
			holder->pin_bytes += block.size;
		}
		if (!(look->flags & CU_SCAN_BLOCKS))
			continue;
		if (!make_room(&scan->held_by, sizeof(*scan->held_by), scan->held_by_n,
			       look->held_room)) {
			look->failed = true;
			return;
		}
		scan->held_by[scan->held_by_n++] = slots[i]; /* an index, once the holders are known */
	}
}

static void look_at_file(void *data)
{
	struct look *look = data;
	struct cu_process *process = look->process;
	struct cl_view_process is;
	struct cl_view_import import;
	uint32_t records, imports;
	struct timespec wall;
	uint64_t now;

	cl_view_process(&look->view, &is);
	process->who = is.who;
	process->state = is.state;
	process->called_exec = is.called_exec;
	process->collects = is.collects;
	process->created = is.created;
	process->disk = is.shared_bytes;
	clock_gettime(CLOCK_REALTIME, &wall);
	now = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
	process->age = now > is.created ? now - is.created : 0;
	cu_clean(process->command, sizeof(process->command), is.command, sizeof(is.command));
	process->elsewhere = look->scan->self.pid_ns && is.who.pid_ns != look->scan->self.pid_ns;
	cu_counters_read(&process->counters, &look->view);
	if (is.state != CL_DEAD)
		cu_gpus_add(&look->scan->gpus, &look->view);
	look->oldest = 0;
	records = cl_view_records(&look->view);
	for (uint32_t record = 0; record < records && !look->failed; record++)
		look_at_block(look, record);
	/* within the grace a handle may be on its way; a dead process gets no new importers */
	process->never_opened = process->state == CL_ALIVE && !process->held && look->oldest &&
				!cl_view_was_opened(&look->view) &&
				look->oldest + look->view.region.header->grace < look->view.now;
	imports = cl_view_imports(&look->view);
	for (uint32_t i = 0; i < imports; i++)
		if (cl_view_import(&look->view, i, &import)) {
			process->imported++;
			process->imported_bytes += import.size;
			if (!cu_left_add(look->scan, look->index, &import))
				look->failed = true;
		}
}

/* Keeps the existing holders, and turns slots into their indices. */
static bool keep_holders(struct look *look, size_t held_from)
{
	struct cu_process *process = look->process;
	uint16_t index[CL_SLOTS];

	for (unsigned int i = 0; i < CL_SLOTS; i++)
		if (look->slot[i].holds)
			index[i] = (uint16_t)process->holders++;
	if (!process->holders)
		return true;
	process->holder = calloc(process->holders, sizeof(*process->holder));
	if (!process->holder)
		return false;
	for (unsigned int i = 0; i < CL_SLOTS; i++)
		if (look->slot[i].holds)
			process->holder[index[i]] = look->slot[i];
	for (size_t i = held_from; i < look->scan->held_by_n; i++)
		look->scan->held_by[i] = index[look->scan->held_by[i]];
	return true;
}

static bool scan_file(struct look *look, int dirfd, uint32_t id)
{
	struct cu_process *process = look->process;
	struct cu_scan *scan = look->scan;
	size_t blocks = scan->blocks, held = scan->held_by_n, lefts = scan->lefts;

	memset(look->slot, 0, CL_SLOTS * sizeof(*look->slot));
	process->file_id = id;
	process->error = cu_view_open(&look->view, dirfd, id, &process->why);
	if (process->error)
		return true;
	if (!cu_guarded(look_at_file, look)) {
		*process = (struct cu_process){ .file_id = id, .error = -EBADMSG,
						.why = "it was cut while it was read" };
		scan->blocks = blocks;
		scan->held_by_n = held;
		scan->lefts = lefts;
		memset(look->slot, 0, CL_SLOTS * sizeof(*look->slot));
	}
	cl_view_close(&look->view);
	return !look->failed && keep_holders(look, held);
}

/* ------------------------------------------------------------------- all files */
static bool same(const struct cl_identity *a, const struct cl_identity *b)
{
	return a->pid == b->pid && a->pid_ns == b->pid_ns && a->start_time == b->start_time;
}

static struct cu_process *find(const struct cu_scan *scan, const struct cl_identity *who, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!scan->process[i].error && same(&scan->process[i].who, who))
			return &scan->process[i];
	return NULL;
}

/*
 * Counts what each process holds of the others, by their files; a process without a file gets a
 * line too.
 */
static bool count_imports(struct cu_scan *scan, size_t *room)
{
	size_t files = scan->processes;
	struct tally {
		uint64_t holds, bytes;
	} *tally = NULL;
	size_t tally_room = 0;

	for (size_t i = 0; i < files; i++)
		for (unsigned int j = 0; j < scan->process[i].holders; j++) {
			struct cu_holder holder = scan->process[i].holder[j];
			struct cu_process *process;
			size_t at;

			if (!holder.who.pid)
				continue;
			process = find(scan, &holder.who, scan->processes);
			if (!process) {
				if (!make_room(&scan->process, sizeof(*scan->process),
					       scan->processes, room))
					goto fail;
				process = &scan->process[scan->processes++];
				*process = (struct cu_process){
					.who = holder.who,
					.state = holder.alive ? CL_ALIVE : CL_LEAVING,
					.called_exec = holder.called_exec,
					.elsewhere = scan->self.pid_ns &&
						     holder.who.pid_ns != scan->self.pid_ns,
				};
				memcpy(process->command, holder.name, sizeof(holder.name));
			}
			if (!process->file_id && scan->now > holder.since &&
			    scan->now - holder.since > process->age)
				process->age = scan->now - holder.since;
			at = (size_t)(process - scan->process);
			while (tally_room < *room) {
				struct tally *more = realloc(tally, *room * sizeof(*tally));

				if (!more)
					goto fail;
				memset(more + tally_room, 0, (*room - tally_room) * sizeof(*more));
				tally = more;
				tally_room = *room;
			}
			process->pins += holder.pins;
			process->pin_bytes += holder.pin_bytes;
			tally[at].holds += holder.holds;
			tally[at].bytes += holder.bytes;
		}
	/*
	 * A process's own notes also count imports from processes without culimbo, so take the
	 * larger number.  A dead process's notes say what it had open; others' files say what it
	 * has now.
	 */
	for (size_t i = 0; i < scan->processes; i++) {
		struct tally of = i < tally_room ? tally[i] : (struct tally){ 0 };

		if (of.holds >= scan->process[i].imported || scan->process[i].state == CL_DEAD) {
			scan->process[i].imported = of.holds;
			scan->process[i].imported_bytes = of.bytes;
		}
	}
	free(tally);
	return true;
fail:
	free(tally);
	return false;
}

int cu_scan(struct cu_scan *scan, int dirfd, int flags)
{
	size_t room = 0, block_room = 0, held_room = 0;
	struct look look = { .scan = scan, .flags = flags, .block_room = &block_room,
			     .held_room = &held_room };
	const struct dirent *entry;
	int error = -ENOMEM, fd;
	DIR *dir = NULL;

	*scan = (struct cu_scan){ .now = cl_now() };
	cl_identity_self(&scan->self);
	if (dirfd < 0)
		return 0;
	look.slot = malloc(CL_SLOTS * sizeof(*look.slot));
	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir && fd >= 0)
		close(fd);
	if (!look.slot || !dir)
		goto out;
	while ((entry = readdir(dir)) != NULL) {
		uint32_t id = cl_region_name_id(entry->d_name);

		if (!id)
			continue;
		if (!make_room(&scan->process, sizeof(*scan->process), scan->processes, &room))
			goto out;
		look.index = (uint32_t)scan->processes;
		look.process = &scan->process[scan->processes++];
		*look.process = (struct cu_process){ 0 };
		if (!scan_file(&look, dirfd, id))
			goto out;
		if (look.process->error == -ENOENT) /* the process has ended meanwhile */
			scan->processes--;
	}
	cu_left_settle(scan, dirfd);
	error = count_imports(scan, &room) ? 0 : -ENOMEM;
out:
	if (dir)
		closedir(dir);
	free(look.slot);
	return error;
}

void cu_scan_free(struct cu_scan *scan)
{
	for (size_t i = 0; i < scan->processes; i++)
		free(scan->process[i].holder);
	free(scan->process);
	free(scan->block);
	free(scan->held_by);
	free(scan->left);
	*scan = (struct cu_scan){ 0 };
}

bool cu_scan_all(const struct cu_command *command, struct cu_scan *scan, const char *dir, int flags,
		 int *status)
{
	int fd, error;

	*status = CU_FAILED;
	*scan = (struct cu_scan){ 0 };
	cu_directory_set(command, dir);
	fd = cu_directory_open(command);
	if (fd < 0 && fd != -ENOENT)
		return false;
	error = cu_scan(scan, fd, flags);
	if (fd >= 0)
		close(fd);
	if (!error)
		return true;
	cu_error(command, "cannot read %s: %s", cu_directory(), strerror(-error));
	cu_scan_free(scan);
	return false;
}
