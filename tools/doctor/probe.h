/* SPDX-License-Identifier: Apache-2.0 */
/* Between `culimbo doctor` and the process in which it asks the driver. */
#ifndef CU_PROBE_H
#define CU_PROBE_H

/* Asks the driver, says on stdout what it finds; see probe.c.  Returns the exit status. */
int cu_probe(void);

#endif
