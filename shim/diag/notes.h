/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: what this process writes into its own file for reports, beyond what
 * safety needs (shm/layout.h, CL_AT_MODULES): call stacks, what it has open of
 * others, and misuse that it saw.
 *
 * No hold, free or open is decided by them, and nothing here fails: where there
 * is no file, no room or no memory there are fewer notes, and that is said once,
 * for information.  Functions that end in _locked want cl_exports_lock held, the
 * others take it; those of imports want cl_imports_lock.  A forked child forgets.
 */
#ifndef CL_NOTES_H
#define CL_NOTES_H

#include "shim/shm/layout.h"

/*
 * The calling thread's stack, noted in our file.  Returns its name there, for
 * export_stack and the like; 0: none.  @importer: this process need not have a
 * file, and it is no error if it can't have one (see cl_own_need_locked()).
 */
uint32_t cl_notes_stack(bool importer);

/*
 * A copy of @stack of another process, whose file @view is, so that it is known
 * when that is gone.  Returns its name in our file, or 0.  Nothing is believed:
 * what is wrong there gives wrong words here.  Also under cl_imports_lock.
 */
struct cl_view;
uint32_t cl_notes_stack_of_locked(const struct cl_view *view, uint32_t stack);

#define CL_NO_NOTE UINT32_MAX
/* An entry for an import, to be filled in, and its index; NULL: there is none. */
struct cl_import_note *cl_notes_import_begin(uint32_t *index);
/* It is filled in, but for how often it is open: once. */
void cl_notes_import_end(uint32_t index, struct cl_import_note *to);
/*
 * An import was opened: a new entry, or CL_NO_NOTE.  @note: but for unused fields.  (Here, so
 * that what the caller says in @note goes straight into the entry.)
 */
static inline uint32_t cl_notes_import(const struct cl_import_note *note)
{
	uint32_t index;
	struct cl_import_note *to = cl_notes_import_begin(&index);

	if (!to)
		return CL_NO_NOTE;
	to->key = note->key;
	to->size = note->size;
	to->since = note->since;
	to->file_id = note->file_id;
	to->record = note->record;
	to->generation = note->generation;
	to->stack = note->stack;
	to->exporter_pid = note->exporter_pid;
	to->kind = note->kind;
	to->device = note->device;
	cl_notes_import_end(index, to);
	return index;
}
/* It is open so often now; 0: the entry is free again. */
void cl_notes_import_opens(uint32_t index, uint64_t opens);

/*
 * Something that somebody should know of, for cl_happened() (happened.h): of @finding->kind.
 * `when` is filled in.  The first CL_FINDINGS are kept, all are counted.
 */
void cl_notes_finding(const struct cl_finding *finding);
void cl_notes_finding_locked(const struct cl_finding *finding);

void cl_notes_forget(void); /* in a forked child */

#endif
