/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of JSON members: words apart by '_', and a number that is no count ends in its unit,
 * "_bytes" or "_seconds".  doc/json.md lists them all.
 */
#ifndef CU_KEYS_H
#define CU_KEYS_H

#include "tools/common/table.h"

/*
 * The name by this rule of what was called @old before there was one, NULL if it is right.  Such a member
 * is printed under both names in versions 1.x, in which JSON changes only by additions (NEWS.md).
 */
const char *cu_key_of(const char *old, enum cu_type type);

#endif
