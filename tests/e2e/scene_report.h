/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by scene_report.c and scene_findings.c: their grace period and their list. */
#ifndef CL_TEST_SCENE_REPORT_H
#define CL_TEST_SCENE_REPORT_H

#include "stage.h"

#define GRACE "CULIMBO_GRACE=100ms"
#define SOON_MS 15000

/* scene_report.c */
void show(const struct actor *actor);

/* scene_findings.c */
void memory_findings(void);
void misuse_findings(void);
void event_findings(void);
void early_findings(void);
void early_quiet(void);

/* Returns true if @text has @words, also across the fold of a long line. */
bool has_words(const char *text, const char *words);

#endif
