/* SPDX-License-Identifier: Apache-2.0 */
/* libdw finds functions, files and lines.  It is loaded at its first use: see load.h. */
#ifndef CU_LIBDW_H
#define CU_LIBDW_H

#ifdef HAVE_LIBDW
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <stdbool.h>

#define CU_LIBDW(_) \
	_(dwarf_diename) _(dwarf_getscopes) _(dwarf_haspc) _(dwarf_tag) _(dwfl_begin) _(dwfl_build_id_find_elf) \
	_(dwfl_end) _(dwfl_line_comp_dir) _(dwfl_lineinfo) _(dwfl_module_addrdie) _(dwfl_module_addrname) _(dwfl_module_build_id) \
	_(dwfl_module_getelf) _(dwfl_module_getsrc) _(dwfl_offline_section_address) _(dwfl_report_begin) \
	_(dwfl_report_end) _(dwfl_report_offline) _(dwfl_standard_find_debuginfo)

struct cu_libdw {
#define CU_POINTER(name) __typeof__(name) *name;
	CU_LIBDW(CU_POINTER)
#undef CU_POINTER
};
extern struct cu_libdw cu_libdw;

/* Returns false if libdw is missing; the first call says so. */
bool cu_has_libdw(void);
#endif

#endif
