/* SPDX-License-Identifier: Apache-2.0 */
/* Bars, sparklines and the summary line of `culimbo top`: see bars.h. */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>

#include "tools/common/text.h"
#include "tools/top/bars.h"

void cu_draw_bar(char *to, size_t size, unsigned int width, uint64_t part, uint64_t whole)
{
	static const char *const eighth[] = { " ", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
	unsigned int eighths = whole ? (unsigned int)((double)part / (double)whole * width * 8 + 0.5) : 0;
	size_t at = 0;

	if (part && !eighths)
		eighths = 1;
	*to = 0;
	for (unsigned int i = 0; i < width && at + 4 < size; i++) {
		unsigned int here = eighths > 8 * i ? eighths - 8 * i : 0;
		const char *sign = here >= 8 ? (cu_live.ascii ? "#" : "█") :
				   cu_live.ascii ? (here >= 4 ? "#" : here ? "-" : " ") :
					       eighth[here];

		at += (size_t)snprintf(to + at, size - at, "%s", sign);
	}
}

void cu_draw_trend(char *to, size_t size, unsigned int width, const struct cu_history *h)
{
	static const char *const level[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
	static const char ascii_level[] = "_.-=+*%#";
	uint64_t most = 0, n = h ? h->n < SAMPLES ? h->n : SAMPLES : 0;
	size_t at = 0;

	if (n > width)
		n = width;
	for (uint64_t i = 0; i < n; i++)
		if (h->sample[(h->n - 1 - i) % SAMPLES] > most)
			most = h->sample[(h->n - 1 - i) % SAMPLES];
	*to = 0;
	for (unsigned int i = 0; i < width && at + 4 < size; i++) {
		uint64_t v;
		unsigned int l;

		if (i + n < width) {
			at += (size_t)snprintf(to + at, size - at, " ");
			continue;
		}
		v = h->sample[(h->n - (width - i)) % SAMPLES];
		if (!v) {
			at += (size_t)snprintf(to + at, size - at, "%s", cu_live.ascii ? "_" : "▁");
			continue;
		}
		l = 1 + (unsigned int)((double)v / (double)most * 6.99);
		if (cu_live.ascii)
			at += (size_t)snprintf(to + at, size - at, "%c", ascii_level[l > 7 ? 7 : l]);
		else
			at += (size_t)snprintf(to + at, size - at, "%s", level[l > 7 ? 7 : l]);
	}
}

void cu_say_sum(char *to, size_t size)
{
	char limbo[24], exported[24];

	cu_bytes_long(limbo, cu_live.limbo_bytes);
	cu_bytes_long(exported, cu_live.exported_bytes);
	snprintf(to, size,
		 "%zu process%s   limbo %s in %" PRIu64 " block%s   exported %s in %" PRIu64
		 " block%s   held by others %" PRIu64,
		 cu_live.scan.processes - cu_live.unread,
		 cu_live.scan.processes - cu_live.unread == 1 ? "" : "es", limbo, cu_live.limbo,
		 cu_live.limbo == 1 ? "" : "s", exported, cu_live.exported,
		 cu_live.exported == 1 ? "" : "s", cu_live.held);
}
