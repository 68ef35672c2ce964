/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage: starts actors, sends requests, keeps deadlines; see stage.h.
 *
 * Rule: An actor is killed however the stage ends (PR_SET_PDEATHSIG).  No wait for an
 * actor is unbounded.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stage.h"

#define ANSWER_MS 30000 /* long, because the first answer waits for a context to be created */
#define END_MS 20000
#define ACTORS_MAX 96
#define UNDER_MAX 16 /* the maximum number of words in E2E_UNDER */
#define CLAIM_TRIES 6144 /* of 1 KiB: more than fill any chunk */

static struct actor actors[ACTORS_MAX];
static int actors_n;
static bool failed;
static const struct scene *playing;

static const char *const operation_names[] = {
#define X(operation) #operation,
	WIRE_OPERATIONS(X)
#undef X
};

const char *setting(const char *name)
{
	const char *value = getenv(name);

	if (!value || !*value)
		break_off("%s is not set (run.sh sets it)", name);
	return value;
}

/* ------------------------------------------------------------------ results */
void ok(bool holds, const char *format, ...)
{
	va_list args;

	if (!holds)
		failed = true;
	printf("%sok - ", holds ? "" : "not ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

void note(const char *format, ...)
{
	va_list args;

	printf("# ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

void break_off(const char *format, ...)
{
	va_list args;

	printf("not ok - the scene can go on: ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	exit(1);
}

bool on_real_driver(void)
{
	return getenv("E2E_GPU") != NULL;
}

double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

bool watch_until(double deadline_ms)
{
	static const struct timespec moment = { .tv_nsec = 500000 };

	if (now_ms() >= deadline_ms)
		return false;
	nanosleep(&moment, NULL);
	return true;
}

double gone_after(bool (*there)(void *data), void *data, double limit_ms)
{
	double released = now_ms(), looked, gap = 0;

	for (;;) {
		while (watch_until(released + gap))
			;
		looked = now_ms();
		if (!there(data))
			return now_ms() - released;
		if (looked - released > limit_ms)
			return looked - released;
		released = now_ms();
		gap = gap ? 2 * gap : 1;
	}
}

/* ------------------------------------------------------------------- actors */
static void redirect(const char *path, int to)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	if (fd < 0 || dup2(fd, to) < 0)
		_exit(124);
}

/* The child becomes the actor. */
__attribute__((noreturn)) static void become(const struct actor *actor, const struct entry *entry,
					     int socket)
{
	const char *build = setting("E2E_BUILD");
	char program[600], command[600], preload[600], *copy, *word, *rest;
	char *argv[10 + UNDER_MAX], *under = NULL;
	int n = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == 1)
		_exit(124);
	/* dup2() of a descriptor to itself would leave it closed on exec */
	if (entry->partner && (dup2(entry->partner, WIRE_PARTNER_FD) < 0 || fcntl(WIRE_PARTNER_FD, F_SETFD, 0)))
		_exit(124);
	if (dup2(socket, STDIN_FILENO) < 0)
		_exit(124);
	redirect(actor->out, STDOUT_FILENO);
	redirect(actor->err, STDERR_FILENO);
	setenv("TEST_DOOR", actor->door, 1);
	copy = strdup(entry->env ? entry->env : "");
	for (word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		if (strchr(word, '='))
			putenv(word);
		else
			unsetenv(word);
	}
	snprintf(program, sizeof(program), "%s/tests/e2e/%s", build,
		 strcmp(actor->door, "linked") ? "actor" : "actor_linked");
	snprintf(command, sizeof(command), "%s/tools/culimbo", build);
	if (!on_real_driver() || !entry->bare) {
		argv[n++] = command;
		argv[n++] = (char *)"run";
		if (!on_real_driver())
			argv[n++] = (char *)"--simulate";
		if (entry->bare)
			argv[n++] = (char *)"--no-preload";
		argv[n++] = (char *)"--";
	}
	if (entry->other) {
		snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", entry->other);
		argv[n++] = (char *)"/usr/bin/env";
		argv[n++] = preload;
	}
	/* E2E_UNDER: a command, such as valgrind, under which actors with culimbo run */
	if (!entry->bare && getenv("E2E_UNDER"))
		under = strdup(getenv("E2E_UNDER"));
	for (int i = 0; under && i < UNDER_MAX && (word = strtok_r(i ? NULL : under, " ", &rest)); i++)
		argv[n++] = word;
	argv[n++] = program;
	argv[n] = NULL;
	execv(argv[0], argv);
	fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
	_exit(124);
}

struct actor *enter(const char *name, struct entry entry)
{
	struct actor *actor = &actors[actors_n];
	const char *folder = setting("E2E_SCENE_DIR");
	int sockets[2];

	if (actors_n == ACTORS_MAX)
		break_off("too many actors");
	memset(actor, 0, sizeof(*actor));
	snprintf(actor->name, sizeof(actor->name), "%s", name);
	snprintf(actor->out, sizeof(actor->out), "%s/%02d-%s.out", folder, actors_n, name);
	snprintf(actor->err, sizeof(actor->err), "%s/%02d-%s.err", folder, actors_n, name);
	actor->bare = entry.bare;
	actor->door = entry.door ? entry.door : "dlsym";
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets))
		break_off("socketpair: %s", strerror(errno));
	actors_n++;
	fflush(stdout);
	actor->pid = fork();
	if (actor->pid < 0)
		break_off("fork: %s", strerror(errno));
	if (actor->pid == 0)
		become(actor, &entry, sockets[1]);
	close(sockets[1]);
	actor->fd = sockets[0];
	if (!entry.raw)
		ASK(actor, begin);
	return actor;
}

static const char *printable(const struct wire_reply *reply)
{
	return *reply->complaint ? reply->complaint : "no complaint";
}

void tell(struct actor *actor, enum wire_operation operation, const unsigned char *handle,
	  const uint64_t a[6])
{
	struct wire_request request = { .operation = operation };

	if (handle)
		memcpy(request.handle, handle, sizeof(request.handle));
	memcpy(request.a, a, sizeof(request.a));
	if (send(actor->fd, &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request))
		break_off("%s takes no '%s': %s (it said: %.300s)", actor->name,
			  operation_names[operation], strerror(errno), said(actor));
}

const struct wire_reply *hear(struct actor *actor, int deadline_ms)
{
	struct pollfd ready = { .fd = actor->fd, .events = POLLIN };
	ssize_t n;

	if (poll(&ready, 1, deadline_ms) != 1)
		break_off("%s does not answer within %d ms", actor->name, deadline_ms);
	n = recv(actor->fd, &actor->reply, sizeof(actor->reply), 0);
	if (n != sizeof(actor->reply)) {
		int status = 0;

		if (waitpid(actor->pid, &status, WNOHANG) == actor->pid)
			actor->ended = true;
		break_off("%s has ended (status 0x%x; it said: %.300s)", actor->name,
			  (unsigned int)status, said(actor));
	}
	return &actor->reply;
}

const struct wire_reply *ask(struct actor *actor, enum wire_operation operation,
			     const unsigned char *handle, const uint64_t a[6])
{
	const struct wire_reply *reply;

	tell(actor, operation, handle, a);
	reply = hear(actor, actor->answer_ms ? actor->answer_ms : ANSWER_MS);
	if (*reply->complaint)
		break_off("%s could not '%s': %s", actor->name, operation_names[operation],
			  reply->complaint);
	return reply;
}

bool begins(struct actor *actor)
{
	const struct wire_reply *reply;

	tell(actor, OP_begin, NULL, (const uint64_t[6]){ 0 });
	reply = hear(actor, ANSWER_MS);
	if (strstr(reply->complaint, "CUDA_ERROR_NO_DEVICE"))
		return false;
	if (*reply->complaint)
		break_off("%s could not begin: %s", actor->name, reply->complaint);
	return true;
}

int end_of(struct actor *actor)
{
	double deadline = now_ms() + END_MS;

	while (!actor->ended) {
		pid_t got = waitpid(actor->pid, &actor->status, WNOHANG);

		if (got == actor->pid)
			actor->ended = true;
		else if (got < 0)
			break_off("waitpid: %s", strerror(errno));
		else if (!watch_until(deadline))
			break_off("%s does not end (it said: %.300s)", actor->name, said(actor));
	}
	close(actor->fd);
	return actor->status;
}

int leave_by(struct actor *actor, enum ending how, int status)
{
	tell(actor, OP_end, NULL, (const uint64_t[6]){ how, (uint64_t)status });
	return end_of(actor);
}

void leave(struct actor *actor)
{
	int status = leave_by(actor, END_EXIT, 0);

	if (status)
		break_off("%s ended with status 0x%x (it said: %.300s)", actor->name,
			  (unsigned int)status, said(actor));
}

void kill_actor(struct actor *actor)
{
	kill(actor->pid, SIGKILL);
	end_of(actor);
}

const char *said(const struct actor *actor)
{
	static char text[65536];
	int fd = open(actor->err, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return text;
}

size_t printed(const struct actor *actor)
{
	struct stat st;

	return stat(actor->out, &st) ? 0 : (size_t)st.st_size;
}

int count_said(const struct actor *actor, const char *text)
{
	const char *at = said(actor);
	int n = 0;

	while ((at = strstr(at, text))) {
		n++;
		at += strlen(text);
	}
	return n;
}

/* --------------------------------------------------------------- operations */
/* Ends the scene unless @actor's last driver call succeeded. */
static void must(struct actor *actor, int result, enum wire_operation operation)
{
	if (result)
		break_off("%s: '%s' failed with %d (%s)", actor->name, operation_names[operation],
			  result, printable(&actor->reply));
}

int try_alloc(struct actor *actor, uint64_t bytes, uint64_t *address)
{
	const struct wire_reply *reply = ASK(actor, alloc, bytes);

	*address = reply->v[0];
	return reply->result;
}

uint64_t alloc(struct actor *actor, uint64_t bytes)
{
	uint64_t address;

	must(actor, try_alloc(actor, bytes, &address), OP_alloc);
	return address;
}

void fill(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value)
{
	ASK(actor, fill, address, bytes, value);
}

uint64_t alloc_filled(struct actor *actor, uint64_t bytes, unsigned char value)
{
	uint64_t address = alloc(actor, bytes);

	fill(actor, address, bytes, value);
	return address;
}

int try_free(struct actor *actor, uint64_t address)
{
	return ASK(actor, free, address)->result;
}

void free_block(struct actor *actor, uint64_t address)
{
	must(actor, try_free(actor, address), OP_free);
}

int try_export(struct actor *actor, uint64_t address, struct handle *handle)
{
	const struct wire_reply *reply = ASK(actor, export, address);

	memcpy(handle->bytes, reply->handle, sizeof(handle->bytes));
	return reply->result;
}

struct handle export_block(struct actor *actor, uint64_t address)
{
	struct handle handle;

	must(actor, try_export(actor, address, &handle), OP_export);
	return handle;
}

int try_open(struct actor *actor, const struct handle *handle, uint64_t *address)
{
	const struct wire_reply *reply;

	reply = ask(actor, OP_open, handle->bytes, (const uint64_t[6]){ 1 /* lazy peer access */ });
	*address = reply->v[0];
	return reply->result;
}

uint64_t open_block(struct actor *actor, const struct handle *handle)
{
	uint64_t address;

	must(actor, try_open(actor, handle, &address), OP_open);
	return address;
}

int try_close(struct actor *actor, uint64_t address)
{
	return ASK(actor, close, address)->result;
}

void close_block(struct actor *actor, uint64_t address)
{
	must(actor, try_close(actor, address), OP_close);
}

bool reads(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value,
	   unsigned int *foreign)
{
	const struct wire_reply *reply = ASK(actor, check, address, bytes, value);

	if (foreign)
		*foreign = (unsigned int)reply->v[1];
	return reply->v[0] == 0;
}

bool like_a_legacy_import(struct actor *actor, uint64_t legacy, uint64_t import)
{
	static const struct {
		const char *name;
		unsigned int number; /* of CUpointer_attribute; cuda.h of 11.3 lacks some */
	} asked[] = { { "MEMORY_TYPE", 2 }, { "HOST_POINTER", 4 }, { "IS_MANAGED", 8 }, { "DEVICE_ORDINAL", 9 },
		      { "IS_LEGACY_CUDA_IPC_CAPABLE", 10 }, { "MAPPED", 13 }, { "ALLOWED_HANDLE_TYPES", 14 },
		      { "IS_GPU_DIRECT_RDMA_CAPABLE", 15 }, { "ACCESS_FLAGS", 16 }, { "MEMPOOL_HANDLE", 17 } };
	bool same = true;

	for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
		int wanted = ASK(actor, v_ask, legacy, asked[i].number)->result;
		uint64_t said = actor->reply.v[0];

		ASK(actor, v_ask, import, asked[i].number);
		if (actor->reply.result == wanted && (wanted || actor->reply.v[0] == said))
			continue;
		same = false;
		note("%s: of a legacy import %llu (%d), of ours %llu (%d)", asked[i].name, (unsigned long long)said, wanted,
		     (unsigned long long)actor->reply.v[0], actor->reply.result);
	}
	return same;
}

bool claim(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value)
{
	/*
	 * A real driver gives out the addresses of big blocks last in, first out.  With a fixed number of
	 * blocks the same addresses would return forever, so one more is taken each time.
	 */
	static unsigned int big;
	unsigned int most = on_real_driver() ? 256 : 8;
	unsigned int tries = bytes > MIB ? 3 + (big < most ? big++ : big) : CLAIM_TRIES;

	return ASK(actor, claim, address, bytes, tries, value)->v[0];
}

bool claim_within(struct actor *actor, uint64_t address, uint64_t bytes, unsigned char value,
		  double ms, double *took)
{
	double start = now_ms();
	bool got;

	do
		got = claim(actor, address, bytes, value);
	while (!got && watch_until(start + ms));
	if (took)
		*took = now_ms() - start;
	return got;
}

/* Free memory is the whole device's, and scenes that run at the same time use it too (seen on a GPU: "0 of 64 MiB"). */
uint64_t free_memory(struct actor *actor)
{
	if (!(playing->flags & SCENE_ALONE))
		break_off("it asks how much memory is free, and is no SCENE_ALONE");
	return ASK(actor, meminfo)->v[0];
}

bool free_within(struct actor *observer, uint64_t bytes, double ms, double *took)
{
	double start = now_ms();
	bool got;

	do
		got = free_memory(observer) >= bytes;
	while (!got && watch_until(start + ms));
	if (took)
		*took = now_ms() - start;
	return got;
}

bool same_handle(const struct handle *a, const struct handle *b)
{
	return !memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

bool is_unstamped(const struct handle *handle)
{
	static const unsigned char zero[4];

	return !memcmp(handle->bytes + 12, zero, sizeof(zero));
}

bool refused(int result)
{
	return result == INVALID_VALUE || result == NOT_PERMITTED;
}

/* --------------------------------------------------------------------- main */
static const struct scene *const all[] = { memory_scenes, death_scenes,	  pressure_scenes,
					   event_scenes,  process_scenes, exec_scenes, device_scenes, green_scenes,
					   odd_scenes,	  report_scenes,  random_scenes,
					   stream_scenes, pool_scenes, virtual_scenes, async_scenes,
					   shared_scenes };

/* scenes --list: prints a line for each scene that can run here, with "alone" or "any" */
static int list(void)
{
	int skip = on_real_driver() ? SCENE_SIMULATED : SCENE_REAL;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		for (const struct scene *scene = all[i]; scene->name; scene++)
			if (!(scene->flags & skip))
				printf("%s %s\n", scene->name,
				       scene->flags & SCENE_ALONE ? "alone" : "any");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--list"))
		return list();
	if (argc != 2) {
		fprintf(stderr, "usage: scenes --list | NAME (started by run.sh)\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		for (const struct scene *scene = all[i]; scene->name; scene++)
			if (!strcmp(scene->name, argv[1])) {
				playing = scene;
				scene->play();
				for (int a = 0; a < actors_n; a++) {
					if (!actors[a].ended)
						kill_actor(&actors[a]);
					if (printed(&actors[a]))
						ok(false, "%s wrote nothing to stdout",
						   actors[a].name);
				}
				return failed;
			}
	fprintf(stderr, "scenes: there is no scene '%s'\n", argv[1]);
	return 2;
}
