/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of all exported calls.
 *
 * The linker says where the table is: so cuGetProcAddress, which is in it, uses it
 * and names nothing that leads back to itself, and the table is there before any
 * code runs.
 */
#ifndef CULIMBO_SIM_CALL_TABLE_H
#define CULIMBO_SIM_CALL_TABLE_H

struct sim_listed_call {
	const char *base;
	const void *address, *thunk;
	int version;
	int flags; /* 2: a per-thread default stream form */
};

#define SIM_CALLS_SECTION "sim_call_table"
extern const struct sim_listed_call sim_calls_begin[] __asm__("__start_sim_call_table")
	__attribute__((visibility("hidden")));
extern const struct sim_listed_call sim_calls_end[] __asm__("__stop_sim_call_table")
	__attribute__((visibility("hidden")));

#endif
