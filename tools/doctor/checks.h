/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `culimbo doctor` finds: a list of verdicts, each with what to do.
 *
 * The files that look (check_driver.c, check_system.c) add to it in the order in
 * which it is shown; doctor.c shows it.
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
extern const char *cu_doctor_root; /* before /etc, /proc and /run; "" but in tests */

/* Adds a check.  @name stays; @advice may be NULL. */
void cu_found(const char *name, enum cu_verdict verdict, const char *advice, const char *format,
	      ...)
	__attribute__((format(printf, 4, 5)));
/* The start of a small file below the root; "" where it can't be read.  False then. */
bool cu_slurp(const char *path, char *to, size_t size);

/* check_driver.c: whether the driver answers, its handles, how its calls reach the library. */
void cu_check_driver(bool simulate, int patience_ms);
/* check_system.c: the directory of exporter files, what is in it, logind, limits, /proc. */
void cu_check_system(void);

/* check_notes.c: what CUDA refused to share to processes that live, or whose files are left. */
void cu_check_notes(void);

#endif
