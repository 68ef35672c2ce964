/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives the unwinder (libgcc's, linked into our library) data for every address.
 *
 * If the unwinder has no data for an address, it reads the code there, to see whether
 * that is the return from a signal handler.  But coroutine libraries end their stacks with
 * an invalid address (minicoro: 0xdeaddeaddeaddead), and reading there would crash the
 * program.  So for an address without data we return data that say "the outermost frame".
 * The signal returns of glibc and the kernel have data of their own.
 */
#include <stdint.h>

/* The same struct as in libgcc's unwind-dw2-fde.h. */
struct dwarf_eh_bases {
	void *tbase, *dbase, *func;
};
/* libgcc's _Unwind_Find_FDE, and ours, to which --wrap binds all calls. */
const void *__real__Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *bases);
const void *__wrap__Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *bases);

#if defined(__x86_64__)
#define CFA_REGISTER 7, 8 /* rsp + 8 */
#define RETURN_COLUMN 16
#elif defined(__aarch64__)
#define CFA_REGISTER 31, 0 /* sp */
#define RETURN_COLUMN 30
#endif
/* Unwinding data, a CIE and its FDE, that declare the return address undefined. */
static const struct {
	struct {
		uint32_t length, id;
		uint8_t version, augmentation, code_align, data_align, return_column;
		uint8_t def_cfa, cfa[2], undefined, undefined_register;
		uint8_t nop[6];
	} cie;
	struct {
		uint32_t length, back_to_cie;
		uint64_t begin, size;
		uint8_t nop[8];
	} fde;
} outermost = {
	.cie = { sizeof outermost.cie - 4, 0, 1, 0, 1, 0x78 /* -8 */, RETURN_COLUMN,
		 0x0c /* DW_CFA_def_cfa */, { CFA_REGISTER }, 0x07 /* DW_CFA_undefined */, RETURN_COLUMN,
		 { 0 } },
	.fde = { sizeof outermost.fde - 4, sizeof outermost.cie + 4, 0, UINT64_MAX, { 0 } },
};
_Static_assert(sizeof outermost.cie == 24 && sizeof outermost.fde == 32, "without gaps");

const void *__wrap__Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *bases)
{
	const void *fde = __real__Unwind_Find_FDE(pc, bases);

	if (fde)
		return fde;
	*bases = (struct dwarf_eh_bases){ .func = pc };
	return &outermost.fde;
}
