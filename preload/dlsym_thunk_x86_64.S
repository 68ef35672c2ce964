/* SPDX-License-Identifier: Apache-2.0 */
/*
 * void *dlsym(void *handle, const char *name), exported.
 *
 * What must hold: for every name that is not in the hook table this function jumps
 * to the next dlsym, with the registers, the stack and the return address as
 * the caller left them: libc finds the caller by the return address.  It is
 * assembly because no compiler promises such a jump at every optimisation level.
 *
 * It changes only rax, rdx and the flags itself.  Its calls to C functions may change all
 * registers that the C ABI lets a call change.
 */
	.text
	.globl	dlsym
	.type	dlsym, @function
	.hidden	cl_dlsym_route
	.hidden	cl_next_dlsym
	.hidden	cl_next_dlsym_found
	.p2align 4
dlsym:
	.cfi_startproc
	endbr64
	/* does the name begin with cu[A-Z]?  A byte is read only if the one before is not the end */
	testq	%rsi, %rsi
	jz	.Ljump_on
	cmpb	$'c', (%rsi)
	jne	.Ljump_on
	cmpb	$'u', 1(%rsi)
	jne	.Ljump_on
	movzbl	2(%rsi), %eax
	subl	$'A', %eax
	cmpl	$'Z' - 'A', %eax
	ja	.Ljump_on

	/* cl_dlsym_route(handle, name, our return address) */
	movq	(%rsp), %rdx
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp		/* the ABI wants the stack aligned to 16 bytes at a call */
	.cfi_adjust_cfa_offset 8
	call	cl_dlsym_route
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%rdx, %rdx		/* the answer's jump_on; rax is its address */
	jnz	.Ljump_on
	ret

.Ljump_on:
	movq	cl_next_dlsym_found(%rip), %rax
	testq	%rax, %rax
	jz	.Lfind_next
	jmp	*%rax

.Lfind_next:
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	cl_next_dlsym
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	jmp	*%rax
	.cfi_endproc
	.size	dlsym, . - dlsym

	.section .note.GNU-stack, "", @progbits

	/* fit for indirect branch tracking (endbr64) and shadow stacks (returns match calls) */
	.section .note.gnu.property, "a", @note
	.p2align 3
	.long	4, 16, 5		/* name size, data size, NT_GNU_PROPERTY_TYPE_0 */
	.asciz	"GNU"
	.long	0xc0000002, 4, 3, 0	/* X86_FEATURE_1_AND: IBT, SHSTK */
