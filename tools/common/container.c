/* SPDX-License-Identifier: Apache-2.0 */
/* The pod and the host's name of a process: see container.h. */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/container.h"
#include "tools/common/text.h"

/*
 * True for 8-4-4-4-12 hexadecimal digits.  systemd's cgroups have '_' for '-', which means a
 * slash to it.
 */
static bool is_uid(const char *text)
{
	for (unsigned int i = 0; i < 36; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		if (dash ? text[i] != '-' && text[i] != '_' : !isxdigit((unsigned char)text[i]))
			return false;
	}
	return !isxdigit((unsigned char)text[36]);
}

void cu_pod_of(const char *cgroup, char to[40])
{
	*to = 0;
	for (const char *at = strstr(cgroup, "pod"); at; at = strstr(at + 3, "pod"))
		if (is_uid(at + 3)) {
			snprintf(to, 40, "%.36s", at + 3);
			for (char *c = to; *c; c++)
				*c = *c == '_' ? '-' : *c;
			return;
		}
}

static bool has_own_host_name(pid_t pid)
{
	char path[64], its[64] = "", ours[64] = "";
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/ns/uts", (int)pid);
	n = readlink(path, its, sizeof(its) - 1);
	return n > 0 && readlink("/proc/self/ns/uts", ours, sizeof(ours) - 1) > 0 && strcmp(its, ours) != 0;
}

void cu_proc_host(pid_t pid, char *to, size_t size)
{
	char path[64], *variable = NULL;
	size_t room = 0;
	ssize_t n;
	FILE *f;

	*to = 0;
	if (!has_own_host_name(pid))
		return;
	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	f = fopen(path, "re");
	while (f && !*to && (n = getdelim(&variable, &room, 0, f)) > 0)
		if (!strncmp(variable, "HOSTNAME=", 9))
			cu_clean(to, size, variable + 9, (size_t)n - 9 < size ? (size_t)n - 9 : size - 1);
	free(variable);
	if (f)
		fclose(f);
}
