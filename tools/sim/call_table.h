/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of all exported calls.
 *
 * The linker places the table.  So cuGetProcAddress, which is in the table, can use it
 * without naming anything that leads back to itself, and the table exists before any
 * code runs.
 */
#ifndef CULIMBO_SIM_CALL_TABLE_H
#define CULIMBO_SIM_CALL_TABLE_H

struct sim_listed_call {
	const char *base;
	const void *address, *thunk;
	int version;
	int flags; /* 2: the form for the per-thread default stream */
};

#define SIM_CALLS_SECTION "sim_call_table"
extern const struct sim_listed_call sim_calls_begin[] __asm__("__start_sim_call_table")
	__attribute__((visibility("hidden")));
extern const struct sim_listed_call sim_calls_end[] __asm__("__stop_sim_call_table")
	__attribute__((visibility("hidden")));

#endif
