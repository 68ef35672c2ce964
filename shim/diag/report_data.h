/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Report data: what this process writes into its own region for reports alone (shm/layout.h,
 * CL_AT_MODULES): call stacks and findings, and, into a file only, the import log.
 *
 * No hold, free or open depends on these data, and nothing here fails: without room or memory reports
 * say less, and the log says so once.  The caller of a function that ends in _locked holds cl_exports_lock; the
 * other functions take it.  The caller of a function of the import log holds cl_imports_lock.  A forked child
 * forgets all of it.
 */
#ifndef CL_REPORT_DATA_H
#define CL_REPORT_DATA_H

#include "shim/shm/layout.h"

/*
 * Writes the calling thread's stack into our region.  Returns the stack's name there, for members such as
 * export_stack, or 0 if the stack could not be written.  @importer: the caller only imports, so it is no error if
 * this process cannot have a file (see cl_own_need_locked()).
 */
uint32_t cl_stack_write(bool importer);

/*
 * Copies @stack from another process's file, @view, into ours, so that reports can show it after that file has gone.
 * Returns its name in our file, or 0 if it could not be copied.  If @view is damaged, a report has wrong words, and
 * nothing worse happens.  The caller also holds cl_imports_lock.
 */
struct cl_view;
uint32_t cl_stack_copy_locked(const struct cl_view *view, uint32_t stack);

#define CL_NO_LOG_ENTRY UINT32_MAX
/* Returns a free entry of the import log, for the caller to fill in, and its *index; or NULL if there is no room. */
struct cl_import_entry *cl_import_log_begin(uint32_t *index);
/* The caller has filled in all of the entry but `opens`: sets that to 1, and so the entry is in use. */
void cl_import_log_end(uint32_t index, struct cl_import_entry *to);
/*
 * Adds an import that was opened to the import log.  Returns the entry's index, or CL_NO_LOG_ENTRY
 * if there is none.  Inline, so that the compiler stores the members of @entry straight into the log.
 */
static inline uint32_t cl_import_log_add(const struct cl_import_entry *entry)
{
	uint32_t index;
	struct cl_import_entry *to = cl_import_log_begin(&index);

	if (!to)
		return CL_NO_LOG_ENTRY;
	to->key = entry->key;
	to->size = entry->size;
	to->since = entry->since;
	to->file_id = entry->file_id;
	to->record = entry->record;
	to->generation = entry->generation;
	to->stack = entry->stack;
	to->exporter_pid = entry->exporter_pid;
	to->kind = entry->kind;
	to->device = entry->device;
	cl_import_log_end(index, to);
	return index;
}
/* Sets how often the import of the entry is open; 0 frees the entry.  @index may be CL_NO_LOG_ENTRY. */
void cl_import_log_opens(uint32_t index, uint64_t opens);

/*
 * Writes @finding into our file, for cl_happened() (happened.h).  A `when` of 0 becomes now.  The file has room for
 * CL_FINDINGS; later ones are only counted, and then this returns false.
 */
bool cl_finding_add_locked(const struct cl_finding *finding);
/*
 * Writes @note, which is no finding, in the same way.  If an earlier note is of the same kind, call, memory, device,
 * result and stack, @note gets no entry of its own: its `times` and `size` are added to the earlier one's.  A note
 * whose `times` is 0 only adds bytes.  Notes take at most an eighth of the entries, so that there is room for findings.
 */
void cl_finding_tally_locked(const struct cl_finding *note);

/*
 * Copies the modules of our region to @to, which has @size bytes, and behind them the words of the stacks: as many whole
 * entries as there is room for.  *modules and *words become how many were copied.
 */
void cl_report_data_copy_stacks_locked(char *to, uint64_t size, uint32_t *modules, uint32_t *words);
void cl_report_data_forget(void); /* in a forked child */

#endif
