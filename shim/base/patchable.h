/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For assembly: functions that other libraries can patch.
 *
 * UCX, and others like it, put a jump of their own over the first bytes of a
 * driver function.  They move the instructions that were there elsewhere and put a
 * jump back behind them: that is their way to the original.  They can move few
 * instructions.  UCX 1.22 writes 5 or 14 bytes on x86-64 and 16 on aarch64, and
 * refuses a function in which these bytes hold anything but
 *   x86-64   push, mov %rsp,%rbp, sub $imm,%rsp, a register stored by %rsp,
 *            mov $imm32,%r32, cmpl $imm32,x(%rip), a short conditional jump
 *   aarch64  stp, cmp of registers, mov, movz, movk, ldr by a register, adrp (which it
 *            gets wrong: it takes the instruction's address for that of its page)
 * It moves neither endbr64 nor bti, nor a nop, nor a jump.  No compiler promises such a
 * beginning.  So what a program gets of ours is a stub: moves into a register that
 * is free at every call, and then a jump.
 *
 * What must hold:
 *  - 16 bytes or less are patched, and 15 (x86-64) or 16 (aarch64) of a stub can be
 *    moved.  No stub begins within 32 bytes of another.
 *  - All registers that carry arguments, the stack and the return address reach
 *    the target as the caller left them.  Free are rax (no call has a variable number
 *    of arguments), and x16.
 *  - A stub has no landing pad for indirect branches.  So a file of stubs says that
 *    it is fit for shadow stacks or pointer authentication, but not for indirect
 *    branch tracking or BTI, and the linker marks no library that it is part of.
 *
 * patchable NAME, TARGET       jumps to TARGET, a function of the same library
 * patchable_to NAME, VARIABLE  jumps to where VARIABLE points, an atomic pointer in the
 *                              same library; what was written before its release store is seen
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

	/* The patch takes four instructions, and a jump can't be one of them: five is the least. */
	.macro patchable name, target
	patchable_begin \name
	movz	w16, #0
	movz	w16, #0
	movz	w16, #0
	movz	w16, #0
	b	\target
	patchable_end \name
	.endm

	/* ldar, because a jump orders no later load behind the one of its target. */
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
