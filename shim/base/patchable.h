/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly macros for functions that other libraries can patch.
 *
 * UCX and similar libraries overwrite the first bytes of a driver function with a jump.
 * To call the original, they run copies of the overwritten instructions, which end with a jump
 * back.  They can copy few kinds of instructions.  UCX 1.22 writes 5 or 14 bytes on
 * x86-64 and 16 on aarch64, and refuses a function in which these bytes hold anything but
 *   x86-64   push, mov %rsp,%rbp, sub $imm,%rsp, a register stored by %rsp,
 *            mov $imm32,%r32, cmpl $imm32,x(%rip), a short conditional jump
 *   aarch64  stp, cmp of registers, mov, movz, movk, ldr by a register, adrp (which UCX
 *            gets wrong: it takes the instruction's address for that of its page)
 * UCX copies neither endbr64 nor bti, nor a nop, nor a jump.  No compiler promises a function
 * that begins so.  So each function of ours that a program gets is a stub: moves into a
 * register that is free at every call, and then a jump.
 *
 * What must hold:
 *  - The first 15 bytes (x86-64) or 16 bytes (aarch64) of a stub can be copied, which covers
 *    all that UCX overwrites.  Stubs begin at least 32 bytes apart.
 *  - All registers that carry arguments, the stack and the return address reach
 *    the target as the caller left them.  A stub changes only rax (free because no call has a
 *    variable number of arguments) or x16.
 *  - A stub has no landing pad for indirect branches.  So a file of stubs is marked as
 *    fit for shadow stacks or pointer authentication, but not for indirect
 *    branch tracking or BTI, and the linker marks no library with such a file as fit for these.
 *
 * patchable NAME, TARGET       jumps to TARGET, a function of the same library
 * patchable_to NAME, VARIABLE  jumps to where VARIABLE points, an atomic pointer in the
 *                              same library; the target sees all writes before the pointer's release store
 */
#ifndef CL_PATCHABLE_H
#define CL_PATCHABLE_H

#if defined(__x86_64__)
	.macro patchable_begin name
	.p2align 5
	.type	\name, @function
\name:
	.cfi_startproc
	movl	$0, %eax
	movl	$0, %eax
	movl	$0, %eax
	.endm

	.macro patchable_end name
	.cfi_endproc
	.size	\name, . - \name
	.endm

	.macro patchable name, target
	patchable_begin \name
	jmp	\target
	patchable_end \name
	.endm

	.macro patchable_to name, variable
	patchable_begin \name
	jmp	*\variable(%rip)
	patchable_end \name
	.endm

	.section .note.GNU-stack, "", @progbits
	.section .note.gnu.property, "a", @note
	.p2align 3
	.long	4, 16, 5		/* name size, data size, NT_GNU_PROPERTY_TYPE_0 */
	.asciz	"GNU"
	.long	0xc0000002, 4, 2, 0	/* X86_FEATURE_1_AND: SHSTK, no IBT */
	.text

#elif defined(__aarch64__)
	.macro patchable_begin name
	.p2align 5
	.type	\name, %function
\name:
	.cfi_startproc
	.endm

	.macro patchable_end name
	.cfi_endproc
	.size	\name, . - \name
	.endm

	/* UCX overwrites four instructions, none of which may be the jump: so a stub has five. */
	.macro patchable name, target
	patchable_begin \name
	movz	w16, #0
	movz	w16, #0
	movz	w16, #0
	movz	w16, #0
	b	\target
	patchable_end \name
	.endm

	/*
	 * ldar: a jump alone does not order the target's loads after the load of its address.  With the address before it,
	 * a stub has eight instructions.  (adr would save one, but does not reach a variable 1 MiB away.)
	 */
	.macro patchable_to name, variable
	patchable_begin \name
	movz	w16, #0
	movz	w16, #0
	movz	w16, #0
	movz	w16, #0
	adrp	x16, \variable
	add	x16, x16, :lo12:\variable
	ldar	x16, [x16]
	br	x16
	patchable_end \name
	.endm

	.section .note.GNU-stack, "", %progbits
	.section .note.gnu.property, "a", %note
	.p2align 3
	.long	4, 16, 5		/* name size, data size, NT_GNU_PROPERTY_TYPE_0 */
	.asciz	"GNU"
	.long	0xc0000000, 4, 2, 0	/* AARCH64_FEATURE_1_AND: PAC, no BTI */
	.text
#endif

#endif
