/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of `culimbo doctor`: a list of verdicts, each with advice.
 *
 * check_driver.c, check_system.c, check_containers.c, check_versions.c and check_refused.c add checks in the order of the output;
 * doctor.c prints them.
 */
#ifndef CU_CHECKS_H
#define CU_CHECKS_H

#include <stdbool.h>
#include <stddef.h>

enum cu_verdict { OK, WARN, FAIL };

struct cu_check {
	enum cu_verdict verdict;
	const char *name;
	char what[600], advice[600];
};

enum { CU_CHECKS_MOST = 64 };
extern struct cu_check cu_checks[CU_CHECKS_MOST];
extern unsigned int cu_checks_n;
extern const char *cu_doctor_root; /* prefix of /etc, /proc and /run; "" except in tests */

/* Adds a check.  @name must stay valid; @advice may be NULL. */
void cu_found(const char *name, enum cu_verdict verdict, const char *advice, const char *format,
	      ...)
	__attribute__((format(printf, 4, 5)));
/* Reads the start of a small file below the root.  Returns false, with "", if it can't be read. */
bool cu_slurp(const char *path, char *to, size_t size);

/* check_driver.c: does the driver answer, how are its handles, do its calls reach the library? */
void cu_check_driver(bool simulate, int patience_ms);
extern bool cu_doctor_require_gpu; /* without one it is a failure, and no warning */
/* check_system.c: the directory of exporter files, its contents, logind, limits, /proc. */
void cu_check_system(void);

/* check_containers.c: do all processes of this user that are seen use one directory? */
void cu_check_containers(void);

/* check_refused.c: what CUDA refused to share, for processes that live, or whose files are left. */
void cu_check_refused(void);
/* check_versions.c: do processes that live run with another copy of the library? */
void cu_check_versions(void);

#endif
