/* SPDX-License-Identifier: Apache-2.0 */
/*
 * These functions put notes into words, for the log, the report and the command.  Each returns a static
 * text.  Any thread may call them.
 */
#ifndef CL_NOTE_WORDS_H
#define CL_NOTE_WORDS_H

#include "shim/shm/layout.h"

/* Return how memory was made, @made (enum cl_made): words() for people, as "virtual memory"; key() for JSON, as "virtual". */
const char *cl_made_words(unsigned int made);
const char *cl_made_key(unsigned int made);
/* Returns the name of the driver call @call, an enum cl_call. */
const char *cl_call_name(unsigned int call);
/* Says what would share memory whose @call the driver refused with @result. */
const char *cl_note_hint(unsigned int made, unsigned int call, uint32_t result);

#endif
