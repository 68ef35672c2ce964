/* SPDX-License-Identifier: Apache-2.0 */
/* Ends in the way that its argument names, with status 7. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef DOORS_EXPORT
#include "tests/doors/driver.h"
#endif

static void handler(void)
{
	dprintf(2, "program's handler\n");
}

static void on_signal(int number)
{
	_exit(7);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	int status;

#ifdef DOORS_EXPORT
	CUipcMemHandle handle;

	cuIpcGetMemHandle(&handle, 0x1000);
#endif
	if (!strcmp(how, "_exit"))
		_exit(7);
	if (!strcmp(how, "_Exit"))
		_Exit(7);
	if (!strcmp(how, "quick_exit")) {
		at_quick_exit(handler);
		quick_exit(7);
	}
	if (!strcmp(how, "signal")) {
		signal(SIGUSR1, on_signal);
		raise(SIGUSR1);
	}
	if (!strcmp(how, "vfork")) {
		if (!vfork())
			_exit(3);
		wait(&status);
		dprintf(2, "child ended with %d\n", WEXITSTATUS(status));
	}
	return 7;
}
