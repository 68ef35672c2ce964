/* SPDX-License-Identifier: Apache-2.0 */
/* The words of notes, for the log, the report and the command.  All are static texts.  Any thread. */
#ifndef CL_NOTE_WORDS_H
#define CL_NOTE_WORDS_H

#include "shim/shm/layout.h"

/* For people, as "virtual memory"; and for JSON, as "virtual".  @made is an enum cl_made. */
const char *cl_made_words(unsigned int made);
const char *cl_made_key(unsigned int made);
/* The driver call of @call, an enum cl_noted_call. */
const char *cl_noted_call_name(unsigned int call);
/* What would share memory whose @call the driver refused with @result. */
const char *cl_note_hint(unsigned int made, unsigned int call, uint32_t result);

#endif
