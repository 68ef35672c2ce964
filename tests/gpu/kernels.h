/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the conformance program and of the probe. */
#ifndef CL_TEST_KERNELS_H
#define CL_TEST_KERNELS_H

/* Two kernels of one thread each that run for a given time.  The simulated driver knows them by name. */
static const char timed_kernels[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry culimbo_spin(.param .u64 nanoseconds)\n"
	"{\n"
	"	.reg .pred %p<2>;\n"
	"	.reg .b64 %rd<5>;\n"
	"	ld.param.u64 %rd1, [nanoseconds];\n"
	"	mov.u64 %rd2, %globaltimer;\n"
	"again:\n"
	"	mov.u64 %rd3, %globaltimer;\n"
	"	sub.u64 %rd4, %rd3, %rd2;\n"
	"	setp.lt.u64 %p1, %rd4, %rd1;\n"
	"	@%p1 bra again;\n"
	"	ret;\n"
	"}\n"
	".visible .entry culimbo_fill(.param .u64 destination, .param .u64 words,\n"
	"	.param .u32 value, .param .u64 nanoseconds)\n"
	"{\n"
	"	.reg .pred %p<4>;\n"
	"	.reg .b32 %r<2>;\n"
	"	.reg .b64 %rd<10>;\n"
	"	ld.param.u64 %rd1, [destination];\n"
	"	ld.param.u64 %rd2, [words];\n"
	"	ld.param.u32 %r1, [value];\n"
	"	ld.param.u64 %rd3, [nanoseconds];\n"
	"	cvta.to.global.u64 %rd4, %rd1;\n"
	"	mov.u64 %rd5, %globaltimer;\n"
	"pass:\n"
	"	mov.u64 %rd6, 0;\n"
	"	mov.u64 %rd7, %rd4;\n"
	"next:\n"
	"	setp.ge.u64 %p1, %rd6, %rd2;\n"
	"	@%p1 bra passed;\n"
	"	st.volatile.global.u32 [%rd7], %r1;\n"
	"	add.u64 %rd7, %rd7, 4;\n"
	"	add.u64 %rd6, %rd6, 1;\n"
	"	bra next;\n"
	"passed:\n"
	"	mov.u64 %rd8, %globaltimer;\n"
	"	sub.u64 %rd9, %rd8, %rd5;\n"
	"	setp.lt.u64 %p2, %rd9, %rd3;\n"
	"	@%p2 bra pass;\n"
	"	ret;\n"
	"}\n";

#endif
