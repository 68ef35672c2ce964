/* SPDX-License-Identifier: Apache-2.0 */
/*
 * These functions put notes, and the end of a block, into words, for the log, the report and the command.  Each returns a static
 * text.  Any thread may call them.
 */
#ifndef CL_NOTE_WORDS_H
#define CL_NOTE_WORDS_H

#include "shim/shm/layout.h"

/* Return how memory was made (enum cl_made): words() for people ("virtual memory"), key() for JSON ("virtual"). */
const char *cl_made_words(unsigned int made);
const char *cl_made_key(unsigned int made);
/* Returns the name of the driver call @call, an enum cl_call. */
const char *cl_call_name(unsigned int call);
/*
 * Returns what the user can do to share memory made as @made, after the driver has refused @call with @result.  @why: an
 * enum cl_why.
 */
const char *cl_note_hint(unsigned int made, unsigned int call, uint32_t result, unsigned int why);

/* Returns what its program did to a block to end it: "freed", "destroyed" (an event) or "unmapped" (virtual memory). */
const char *cl_ended_word(enum cl_kind kind, bool is_virtual);

#endif
