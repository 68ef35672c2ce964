/* SPDX-License-Identifier: Apache-2.0 */
/* The players and the lines: see stage.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/differential/stage.h"

/* ------------------------------------------------------------------ the players */
struct answer tell(unsigned int p, const struct order *order)
{
	struct answer answer = { 0 };

	if (players[p].fd < 0)
		player_do(order, &answer);
	else if (send(players[p].fd, order, sizeof(*order), MSG_NOSIGNAL) != (ssize_t)sizeof(*order) ||
		 recv(players[p].fd, &answer, sizeof(answer), 0) != (ssize_t)sizeof(answer))
		die("player %u is gone", p);
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

	if (send(player->fd, &order, sizeof(order), MSG_NOSIGNAL) < 0 ||
	    waitpid(player->pid, &status, 0) != player->pid)
		die("player 1 is gone");
	close(player->fd);
	return status;
}

void settle(void)
{
	struct order o = { .call = DO_SETTLE };

	for (unsigned int c = 0; c < CONTEXTS; c++)
		o.flags |= (uint32_t)context_alive(me(), (uint8_t)c) << c;
	tell(op.player, &o);
	me()->pending = false;
}

void let_go(void)
{
	struct order o = { .call = DO_LET_GO };

	for (unsigned int c = 0; c < CONTEXTS; c++)
		o.flags |= (uint32_t)context_alive(me(), (uint8_t)c) << c;
	tell(op.player, &o);
	me()->busy = me()->pending = false;
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
