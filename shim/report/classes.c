/* SPDX-License-Identifier: Apache-2.0 */
/* The classes of a report's groups: see report_table.h. */
#include "shim/report/report_table.h"

const struct cl_report_class_row cl_report_classes[CL_REPORT_CLASSES] = {
	[CL_REPORT_HELD_LIMBO] = { "held-in-limbo", "freed, but still mapped by others (in limbo)",
		CL_REPORT_A_BLOCK | CL_REPORT_FOUND, 0, "exported", "freed" },
	[CL_REPORT_GRACE] = { "grace", "freed, waiting out the grace of the last export (in limbo)",
		CL_REPORT_A_BLOCK, 0, "exported", "freed" },
	[CL_REPORT_LIMBO] = { "limbo", "freed, on the way back to the driver (in limbo)", CL_REPORT_A_BLOCK, 0,
		"exported", "freed" },
	[CL_REPORT_HELD] = { "held", "exported, not freed, and mapped by others", CL_REPORT_A_BLOCK | CL_REPORT_FOUND,
		0, "exported", "freed" },
	[CL_REPORT_ORPHANED] = { "context-gone", "gone with their context, but still mapped by others",
		CL_REPORT_A_BLOCK | CL_REPORT_FOUND, 0, "exported", "freed" },
	[CL_REPORT_UNTRACKED] = { "kept", "freed, but kept: they could not be tracked",
		CL_REPORT_A_BLOCK | CL_REPORT_FOUND, 0, "exported", "freed" },
	[CL_REPORT_NOT_CLOSED] = { "not-closed", "imported and never closed", CL_REPORT_AN_IMPORT | CL_REPORT_FOUND,
		0, "opened", NULL },
	[CL_REPORT_UNMANAGED] = { "unmanaged",
		"imported from processes without culimbo or their file (unmanaged), and never closed",
		CL_REPORT_AN_IMPORT | CL_REPORT_FOUND, 0, "opened", NULL },
	[CL_REPORT_RECLAIMED] = { "reclaimed", "taken back from processes that ended without closing",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_HOLD_RECLAIMED, "taken back", "freed" },
	[CL_REPORT_FREED_TWICE] = { "freed-twice", "misuse: freed twice (the driver's error was given)",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_FREED_TWICE, "freed again", "first freed" },
	[CL_REPORT_FREED_WHILE_MAPPED] = { "freed-while-mapped", "misuse: freed while other processes had it mapped",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_FREED_WHILE_MAPPED, "freed", "opened" },
	[CL_REPORT_OPENED_AFTER_FREE] = { "opened-after-free", "misuse: opened after its exporter had freed it",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_OPENED_AFTER_FREE, "opened", "freed" },
	[CL_REPORT_EXPORTED_AFTER_FREE] = { "exported-after-free",
		"misuse: exported after it was freed (the driver's error was given)",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_EXPORTED_AFTER_FREE, "exported", "freed" },
	[CL_REPORT_IMPORT_FREED] = { "import-freed", "misuse: imports freed instead of closed (they stayed mapped)",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_IMPORT_FREED, "freed", "opened" },
	[CL_REPORT_CLOSED_TWICE] = { "closed-twice",
		"misuse: closed what was not open (the driver's error was given)",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_CLOSED_TWICE, "closed again", "last closed" },
	[CL_REPORT_STALE_REFUSED] = { "stale-refused", "misuse: stale handles refused: their block had been freed",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_STALE_REFUSED, "opened", "freed" },
	[CL_REPORT_EVENT_DESTROYED_TWICE] = { "event-destroyed-twice",
		"misuse: events destroyed twice (without culimbo the driver crashes)",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_EVENT_DESTROYED_TWICE, "destroyed again",
		"first destroyed" },
	[CL_REPORT_EVENT_FORCED_OUT] = { "event-forced-out",
		"events destroyed before their importers were done (CULIMBO_MAX_EVENTS)",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_EVENT_FORCED_OUT, "forced out", "destroyed" },
	[CL_REPORT_HELD_FORCED_OUT] = { "held-forced-out",
		"given back while other processes mapped them (CULIMBO_HELD_BYTES)",
		CL_REPORT_A_FINDING | CL_REPORT_FOUND, CL_FINDING_HELD_FORCED_OUT, "given back", "freed" },
	[CL_REPORT_REFUSED] = { "refused", "note: CUDA refused to share or to open memory",
		CL_REPORT_A_FINDING | CL_REPORT_A_NOTE, CL_FINDING_REFUSED, "refused", NULL },
	/* the text has one line of them all instead, unless all is wanted */
	[CL_REPORT_DESCRIPTOR] = { "by-descriptor", "note: shared by descriptors or fabric handles",
		CL_REPORT_A_FINDING, CL_FINDING_DESCRIPTOR, "shared", NULL },
};

const char *cl_report_ended(enum cl_kind kind, bool is_virtual)
{
	return is_virtual ? "unmapped" : kind == CL_EVENT ? "destroyed" : "freed";
}
