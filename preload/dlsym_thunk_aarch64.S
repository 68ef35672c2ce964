/* SPDX-License-Identifier: Apache-2.0 */
/*
 * void *dlsym(void *handle, const char *name), exported.  dlsym_thunk_x86_64.S
 * says what must hold.
 *
 * The instructions for pointer authentication and branch targets are written as
 * hints, which do nothing on older processors.
 */
	.text
	.globl	dlsym
	.type	dlsym, %function
	.hidden	cl_dlsym_route
	.hidden	cl_next_dlsym
	.hidden	cl_next_dlsym_found
	.p2align 4
dlsym:
	.cfi_startproc
	hint	#34			/* bti c */
	/* does the name begin with cu[A-Z]?  A byte is read only if the one before is not the end */
	cbz	x1, .Ljump_on
	ldrb	w9, [x1]
	cmp	w9, #'c'
	b.ne	.Ljump_on
	ldrb	w9, [x1, #1]
	cmp	w9, #'u'
	b.ne	.Ljump_on
	ldrb	w9, [x1, #2]
	sub	w9, w9, #'A'
	cmp	w9, #('Z' - 'A')
	b.hi	.Ljump_on

	/* cl_dlsym_route(handle, name, our return address) */
	mov	x2, x30			/* the return address, before paciasp signs it */
	hint	#25			/* paciasp */
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	bl	cl_dlsym_route
	mov	x9, x1			/* the answer's jump_on; x0 is its address */
	cbz	x9, .Lanswer
	ldp	x0, x1, [sp, #16]
.Lanswer:
	ldp	x29, x30, [sp], #32
	.cfi_adjust_cfa_offset -32
	.cfi_restore x29
	.cfi_restore x30
	hint	#29			/* autiasp */
	.cfi_negate_ra_state
	cbnz	x9, .Ljump_on
	ret

.Ljump_on:
	adrp	x16, cl_next_dlsym_found
	ldr	x16, [x16, :lo12:cl_next_dlsym_found]
	cbz	x16, .Lfind_next
	br	x16			/* through x16, because such a jump may land on bti c */

.Lfind_next:
	hint	#25			/* paciasp */
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	bl	cl_next_dlsym
	mov	x16, x0
	ldp	x0, x1, [sp, #16]
	ldp	x29, x30, [sp], #32
	.cfi_adjust_cfa_offset -32
	.cfi_restore x29
	.cfi_restore x30
	hint	#29			/* autiasp */
	.cfi_negate_ra_state
	br	x16
	.cfi_endproc
	.size	dlsym, . - dlsym

	.section .note.GNU-stack, "", %progbits

	.section .note.gnu.property, "a", %note
	.p2align 3
	.long	4, 16, 5		/* name size, data size, NT_GNU_PROPERTY_TYPE_0 */
	.asciz	"GNU"
	.long	0xc0000000, 4, 3, 0	/* AARCH64_FEATURE_1_AND: BTI, PAC */
