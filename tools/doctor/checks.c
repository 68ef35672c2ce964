/* SPDX-License-Identifier: Apache-2.0 */
/* The list of checks of `culimbo doctor`: see checks.h. */
#include "config.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "tools/common/text.h"
#include "tools/doctor/checks.h"

struct cu_check cu_checks[CU_CHECKS_MOST];
unsigned int cu_checks_n;
const char *cu_doctor_root = "";

void cu_found(const char *name, enum cu_verdict verdict, const char *advice, const char *format,
	      ...)
{
	unsigned int at = cu_checks_n < CU_CHECKS_MOST ? cu_checks_n++ : CU_CHECKS_MOST - 1;
	struct cu_check *check = &cu_checks[at];
	char text[600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	check->name = name;
	check->verdict = verdict;
	cu_clean(check->what, sizeof(check->what), text, sizeof(text));
	snprintf(check->advice, sizeof(check->advice), "%s", advice ? advice : "");
}

bool cu_slurp(const char *path, char *to, size_t size)
{
	char full[PATH_MAX];
	ssize_t n = -1;
	int fd;

	snprintf(full, sizeof(full), "%s%s", cu_doctor_root, path);
	fd = open(full, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, to, size - 1);
		close(fd);
	}
	to[n > 0 ? n : 0] = 0;
	return n >= 0;
}
