/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of JSON members.  '_' separates words, and the name of a number that is no count ends
 * in its unit, "_bytes" or "_seconds".  doc/json.md lists all names.
 */
#ifndef CU_KEYS_H
#define CU_KEYS_H

#include "tools/common/table.h"

/*
 * Returns the name by this rule of a member with the old name @old, or NULL if @old fits the
 * rule.  Versions 1.x print such a member under both names, since their JSON changes only by
 * additions (NEWS.md).
 */
const char *cu_key_of(const char *old, enum cu_type type);

#endif
