/* SPDX-License-Identifier: Apache-2.0 */
/* Where a report comes from: see origin.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "shim/driver/driver.h"
#include "shim/report/origin.h"

/* The inode of the first PID namespace of a host: the kernel gives it this number. */
#define FIRST_PID_NAMESPACE UINT64_C(4026531836)

static bool read_text(const char *path, char *to, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	ssize_t n = fd < 0 ? -1 : read(fd, to, size - 1);

	if (fd >= 0)
		close(fd);
	to[n > 0 ? n : 0] = 0;
	return n > 0;
}

void cl_report_take_container(const char *text, char to[16])
{
	static const char digits[] = "0123456789abcdefABCDEF";

	to[0] = 0;
	for (size_t n; *text; text += n + (text[n] != 0)) {
		n = strspn(text, digits);
		if (n == 64) {
			snprintf(to, 16, "%.12s", text);
			return;
		}
	}
}

void cl_report_take_driver(const char *text, char *to, size_t size)
{
	to[0] = 0;
	for (const char *word = text; *word && *word != '\n'; word += strcspn(word, " \n")) {
		size_t length;

		word += strspn(word, " ");
		length = strcspn(word, " \n");
		if (*word >= '0' && *word <= '9' && memchr(word, '.', length)) {
			snprintf(to, size, "%.*s", (int)length, word);
			return;
		}
	}
}

/* Returns the parent's number in @stat: "PID (NAME) STATE PARENT ...", where the name may have any letters. */
static uint32_t parent_in(const char *stat)
{
	const char *end = strrchr(stat, ')');

	return end && strlen(end) > 4 ? (uint32_t)strtoul(end + 3, NULL, 10) : 0;
}

void cl_report_format_time(uint64_t seconds, char *to, size_t size)
{
	/* counts days since 1 March of year 0: so a leap day is the last day of its year */
	uint64_t days = seconds / 86400 + 719468, of_day = seconds % 86400, era = days / 146097;
	uint64_t of_era = days % 146097;
	uint64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	uint64_t of_year = of_era - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;
	uint64_t day = of_year - (153 * month + 2) / 5 + 1;

	month = month < 10 ? month + 3 : month - 9;
	year += era * 400 + (month <= 2);
	snprintf(to, size, "%04u-%02u-%02uT%02u:%02u:%02uZ", (unsigned int)year, (unsigned int)month,
		 (unsigned int)day, (unsigned int)(of_day / 3600), (unsigned int)(of_day / 60 % 60),
		 (unsigned int)(of_day % 60));
}

void cl_report_find_origin(struct cl_report *report)
{
	struct cl_report_origin *o = &report->origin;
	const struct cl_identity *who = &report->process.who;
	struct cl_identity self;
	struct timespec t = { 0, 0 };
	int status = o->exit_status;
	char path[64], text[4096];

	memset(o, 0, sizeof(*o));
	o->exit_status = report->at_exit ? status : -1;
	o->pid_ns = who->pid_ns == FIRST_PID_NAMESPACE ? 0 : who->pid_ns;
	clock_gettime(CLOCK_REALTIME, &t);
	cl_report_format_time((uint64_t)t.tv_sec, o->time, sizeof(o->time));
	if (gethostname(o->host, sizeof(o->host) - 1))
		o->host[0] = 0;
	if (read_text("/proc/driver/nvidia/version", text, sizeof(text)))
		cl_report_take_driver(text, o->driver, sizeof(o->driver));
	else if (report->at_exit && cl_driver.version)
		snprintf(o->driver, sizeof(o->driver), "CUDA %d.%d", cl_driver.version / 1000,
			 cl_driver.version % 1000 / 10);
	/* in another PID namespace /proc has the process by another number, or another process by this one */
	if (!report->at_exit) {
		cl_identity_self(&self);
		if (report->process.state != CL_ALIVE || who->pid_ns != self.pid_ns)
			return;
	}
	snprintf(path, sizeof(path), "/proc/%u/stat", who->pid);
	if (report->at_exit)
		o->ppid = (uint32_t)getppid();
	else if (read_text(path, text, sizeof(text)))
		o->ppid = parent_in(text);
	snprintf(path, sizeof(path), "/proc/%u/cgroup", who->pid);
	if (read_text(report->at_exit ? "/proc/self/cgroup" : path, text, sizeof(text)))
		cl_report_take_container(text, o->container);
}

void cl_report_say_origin(struct cl_report *report)
{
	const struct cl_report_origin *o = &report->origin;
	struct cl_emit *e = &report->emit;

	if (o->ppid)
		cl_emit_number(e, "ppid", o->ppid, ", child of ", "");
	if (o->exit_status >= 0)
		cl_emit_number(e, "exit_status", (uint64_t)o->exit_status, ", exit status ", "");
	if (o->time[0])
		cl_emit_string(e, "time", o->time, "; ", "");
	if (o->host[0])
		cl_emit_string(e, "host", o->host, ", host ", "");
	if (o->container[0])
		cl_emit_string(e, "container", o->container, ", container ", "");
	if (o->pid_ns)
		cl_emit_number(e, "pid_ns", o->pid_ns, ", PID namespace ", "");
	cl_emit_string(e, "version", PACKAGE_VERSION, ", culimbo ", "");
	if (o->driver[0])
		cl_emit_string(e, "driver", o->driver, ", driver ", "");
}
