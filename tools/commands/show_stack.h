/* SPDX-License-Identifier: Apache-2.0 */
/* Prints call stacks for `culimbo show`, for people and as JSON. */
#ifndef CU_SHOW_STACK_H
#define CU_SHOW_STACK_H

#include "shim/shm/view.h"
#include "tools/common/emit.h"
#include "tools/common/symbols.h"

/*
 * Writes stack @stack of @view under @key, with its Python frames.  People see the program's frames
 * only, and no line if there are none.  @symbols NULL: no names, module and offset only.  It reads a
 * mapped file: call it under cu_guarded().
 */
void cu_show_stack(struct cu_emit *to, struct cu_symbols *symbols, const char *key, const struct cl_view *view,
		   uint32_t stack);

#endif
