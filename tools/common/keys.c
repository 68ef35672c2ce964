/* SPDX-License-Identifier: Apache-2.0 */
/* The names of JSON members: see keys.h. */
#include "config.h"

#include <string.h>

#include "tools/common/keys.h"

static const struct {
	const char *old;
	enum cu_type type;
	const char *key;
} keys[] = {
	{ "exported", CU_NUMBER, "exported_blocks" },
	{ "exported", CU_SECONDS, "exported_seconds" },
	{ "exportedbytes", CU_BYTES, "exported_bytes" },
	{ "held", CU_NUMBER, "held_blocks" },
	{ "heldbytes", CU_BYTES, "held_bytes" },
	{ "heldby", CU_TEXT, "first_holder" },
	{ "limbo", CU_NUMBER, "limbo_blocks" },
	{ "limbobytes", CU_BYTES, "limbo_bytes" },
	{ "imported", CU_NUMBER, "imported_blocks" },
	{ "importedbytes", CU_BYTES, "imported_bytes" },
	{ "pins", CU_BYTES, "pinned_bytes" },
	{ "age", CU_SECONDS, "age_seconds" },
	{ "began_to_share", CU_SECONDS, "age_seconds" },
	{ "disk", CU_BYTES, "file_bytes" },
	{ "file_takes", CU_BYTES, "file_bytes" },
	{ "pidns", CU_NUMBER, "pid_ns" },
	{ "hostpid", CU_NUMBER, "host_pid" },
	{ "sum", CU_BYTES, "sum_bytes" },
	{ "size", CU_BYTES, "bytes" },
	{ "exporter", CU_NUMBER, "exporter_pid" },
	{ "freed", CU_SECONDS, "freed_seconds" },
	{ "last_exported", CU_SECONDS, "exported_seconds" },
	{ "opened", CU_SECONDS, "opened_seconds" },
	{ "first_open", CU_SECONDS, "first_open_seconds" },
	{ "took", CU_SECONDS, "took_seconds" },
};

const char *cu_key_of(const char *old, enum cu_type type)
{
	for (size_t i = 0; old && i < sizeof(keys) / sizeof(*keys); i++)
		if (keys[i].type == type && !strcmp(keys[i].old, old))
			return keys[i].key;
	return NULL;
}
