/* SPDX-License-Identifier: Apache-2.0 */
/* The players' processes and the output lines: see stage.h. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/differential/stage.h"

/* ------------------------------------------------------------ the current call */
static const char *const names[] = {
	[DO_ALLOC] = "cuMemAlloc", [DO_ALLOC_ASYNC] = "cuMemAllocAsync", [DO_FREE] = "cuMemFree",
	[DO_FREE_ASYNC] = "cuMemFreeAsync", [DO_EXPORT] = "cuIpcGetMemHandle",
	[DO_OPEN] = "cuIpcOpenMemHandle", [DO_OPEN_OLD] = "cuIpcOpenMemHandle(4.1)",
	[DO_CLOSE] = "cuIpcCloseMemHandle", [DO_READ] = "cuMemcpyDtoH", [DO_FILL] = "cuMemsetD8",
	[DO_QUERY] = "cuPointerGetAttribute", [DO_MEMORY] = "cuMemGetInfo",
	[DO_EXHAUST] = "cuMemAlloc until it fails", [DO_SETTLE] = "cuCtxSynchronize of each context",
	[DO_EVENT_CREATE] = "cuEventCreate", [DO_EVENT_DESTROY] = "cuEventDestroy",
	[DO_EVENT_RECORD] = "cuEventRecord", [DO_EVENT_QUERY] = "cuEventQuery",
	[DO_EVENT_WAIT] = "cuEventSynchronize", [DO_STREAM_WAIT_EVENT] = "cuStreamWaitEvent",
	[DO_EVENT_EXPORT] = "cuIpcGetEventHandle", [DO_EVENT_OPEN] = "cuIpcOpenEventHandle",
	[DO_STREAM_CREATE] = "cuStreamCreate", [DO_STREAM_DESTROY] = "cuStreamDestroy",
	[DO_STREAM_QUERY] = "cuStreamQuery", [DO_STREAM_WAIT] = "cuStreamSynchronize",
	[DO_CAPTURE] = "cuStreamBeginCapture", [DO_CAPTURE_END] = "cuStreamEndCapture",
	[DO_CAPTURE_MODE] = "cuThreadExchangeStreamCaptureMode", [DO_CTX_CREATE] = "cuCtxCreate",
	[DO_CTX_DESTROY] = "cuCtxDestroy", [DO_CTX_SET] = "cuCtxSetCurrent",
	[DO_CTX_PUSH] = "cuCtxPushCurrent", [DO_CTX_POP] = "cuCtxPopCurrent",
	[DO_CTX_GET] = "cuCtxGetCurrent", [DO_CTX_WAIT] = "cuCtxSynchronize",
	[DO_RETAIN] = "cuDevicePrimaryCtxRetain", [DO_RELEASE] = "cuDevicePrimaryCtxRelease",
	[DO_RESET] = "cuDevicePrimaryCtxReset", [DO_GREEN_CREATE] = "cuGreenCtxCreate",
	[DO_GREEN_DESTROY] = "cuGreenCtxDestroy", [DO_POOL_NEW] = "cuMemPoolCreate",
	[DO_POOL_TAKE] = "cuMemPoolImportFromShareableHandle", [DO_POOL_TRIM] = "cuMemPoolTrimTo",
	[DO_POOL_DESTROY] = "cuMemPoolDestroy", [DO_POOL_ALLOC] = "cuMemAllocFromPoolAsync",
	[DO_POOL_EXPORT] = "cuMemPoolExportPointer", [DO_POOL_IMPORT] = "cuMemPoolImportPointer",
	[DO_V_RESERVE] = "cuMemAddressReserve", [DO_V_FREE] = "cuMemAddressFree",
	[DO_V_MAP] = "cuMemCreate and cuMemMap", [DO_V_UNMAP] = "cuMemUnmap",
	[DO_V_FILL] = "cuMemsetD8 of virtual memory", [DO_V_READ] = "cuMemcpyDtoH of virtual memory",
	[DO_V_QUERY] = "cuMemGetAddressRange of virtual memory", [DO_V_EXPORT] = "cuIpcGetMemHandle of virtual memory",
	[DO_V_OPEN] = "cuIpcOpenMemHandle of virtual memory", [DO_V_LOOK] = "cuMemcpyDtoH of an import of virtual memory",
	[DO_V_CLOSE] = "cuIpcCloseMemHandle of virtual memory",
	[DO_HOLD] = "cuLaunchHostFunc",
	[DO_LET_GO] = "the end of a host function, and cuCtxSynchronize of each context",
	[DO_FORK] = "fork", [DO_END] = "its end",
};

/* Writes to a file that the runner also reads after this process has ended. */
static struct underway *underway;

void underway_open(void)
{
	const char *path = getenv("DIFFERENTIAL_UNDERWAY");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd < 0)
		return; /* started by hand */
	underway = mmap(NULL, sizeof(*underway), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (underway == MAP_FAILED)
		underway = NULL;
	close(fd);
}

void say_underway(const char *format, ...)
{
	va_list args;
	int n;

	if (!underway)
		return;
	n = snprintf(underway->what, sizeof(underway->what), "seed %llu, ", (unsigned long long)settings->seed);
	va_start(args, format);
	vsnprintf(underway->what + n, sizeof(underway->what) - (size_t)n, format, args);
	va_end(args);
	underway->moves++;
}

static void say_call(unsigned int p, const struct order *o)
{
	char with_what[32] = "";

	if (o->call <= DO_SETTLE && (o->at == AT_BLOCK || o->at == AT_IMPORT))
		snprintf(with_what, sizeof(with_what), " of %s %u", o->at == AT_BLOCK ? "block" : "import", o->slot);
	say_underway("step %u, P%u in %s%s", op.number, p, names[o->call], with_what);
}

/*
 * Plants a fault.  DIFFERENTIAL_PLANT is SIDE:HOW:STEP, or SIDE:HOW:STEP:PLAYER for one player.  The
 * fault happens at the first call of that step or after it.  When DIFFERENTIAL_PLANT_ONCE names a file, it
 * happens only while the file exists, and removes the file.
 */
static enum plant plant(unsigned int p)
{
	static const char *const how[] = { [PLANT_CRASH] = "crash", [PLANT_KILL] = "kill", [PLANT_EXIT] = "exit",
					   [PLANT_HANG] = "hang", [PLANT_REFUSE] = "refuse" };
	const char *once = getenv("DIFFERENTIAL_PLANT_ONCE");
	const char *planted = getenv("DIFFERENTIAL_PLANT"), *side = getenv("DIFFERENTIAL_SIDE");
	unsigned int step, player;
	char which[16], name[16];
	int n;

	if (!planted || !side)
		return PLANT_NONE;
	n = sscanf(planted, "%15[^:]:%15[^:]:%u:%u", which, name, &step, &player);
	if (n < 3 || op.number < step || (n == 4 && player != p) || (strcmp(which, side) && strcmp(which, "both")))
		return PLANT_NONE;
	if (once && unlink(once))
		return PLANT_NONE;
	for (unsigned int i = PLANT_CRASH; i <= PLANT_REFUSE; i++)
		if (!strcmp(name, how[i]))
			return i;
	return PLANT_NONE;
}

/* ------------------------------------------------------------------ the players */
/* Prints how the player ended, and ends this process too. */
__attribute__((noreturn)) static void is_gone(unsigned int p)
{
	int status = 0;

	/* the player has closed its socket, so it is ending */
	if (waitpid(players[p].pid, &status, 0) != players[p].pid)
		die("player %u has ended", p);
	if (WIFEXITED(status) && WEXITSTATUS(status) == NO_CONTEXT)
		_exit(NO_CONTEXT); /* the player has printed why */
	if (WIFSIGNALED(status))
		die("player %u ended by signal %d (%s)", p, WTERMSIG(status), strsignal(WTERMSIG(status)));
	die("player %u ended with exit status %d", p, WEXITSTATUS(status));
}

struct answer tell(unsigned int p, const struct order *order)
{
	struct answer answer = { 0 };
	struct order o = *order;

	say_call(p, order);
	o.plant = plant(p);
	if (players[p].fd < 0)
		player_do(&o, &answer);
	else if (send(players[p].fd, &o, sizeof(o), MSG_NOSIGNAL) != (ssize_t)sizeof(o) ||
		 recv(players[p].fd, &answer, sizeof(answer), 0) != (ssize_t)sizeof(answer))
		is_gone(p);
	say_underway("step %u, after P%u's %s", op.number, p, names[order->call]);
	return answer;
}

void start(struct player *player, const char *self)
{
	int pair[2];
	char fd[16];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		die("socketpair: %s", strerror(errno));
	fflush(stdout);
	player->pid = fork();
	if (!player->pid) {
		close(pair[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		snprintf(fd, sizeof(fd), "%d", pair[1]);
		execl(self, self, "player", fd, (char *)NULL);
		_exit(97);
	}
	close(pair[1]);
	player->fd = pair[0];
}

int end(struct player *player, unsigned int how)
{
	struct order order = { .call = DO_END, .flags = how };
	int status;

	say_underway("step %u, the end of P%u", op.number, (unsigned int)(player - players));
	if (send(player->fd, &order, sizeof(order), MSG_NOSIGNAL) < 0 ||
	    waitpid(player->pid, &status, 0) != player->pid)
		is_gone((unsigned int)(player - players));
	close(player->fd);
	say_underway("step %u, after the end of P%u", op.number, (unsigned int)(player - players));
	return status;
}

void settle(void)
{
	struct order o = { .call = DO_SETTLE };

	for (unsigned int c = 0; c < CONTEXTS; c++)
		o.flags |= (uint32_t)context_alive(me(), (uint8_t)c) << c;
	tell(op.player, &o);
	settled();
}

void let_go(void)
{
	struct order o = { .call = DO_LET_GO };

	for (unsigned int c = 0; c < CONTEXTS; c++)
		o.flags |= (uint32_t)context_alive(me(), (uint8_t)c) << c;
	tell(op.player, &o);
	me()->busy = false;
	settled();
}

/* -------------------------------------------------------------------- the lines */
char operands[OPERANDS];
static char wrong[96];
bool promised(bool holds, const char *what)
{
	if (under_culimbo && !holds)
		snprintf(wrong, sizeof(wrong), " !%s", what);
	return holds;
}
void print(const char *name, const struct answer *a, const char *reason)
{
	printf("%u P%u %s(%s) = %d%s%s%s%s%s\n", op.number, op.player, name, operands, a->result,
	       *a->text ? " " : "", a->text, reason ? " ~" : "", reason ? reason : "", wrong);
	wrong[0] = 0;
}
void with(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(operands, sizeof(operands), format, args);
	va_end(args);
}
