/* SPDX-License-Identifier: Apache-2.0 */
/* The process in which `culimbo doctor` asks the driver. */
#ifndef CU_PROBE_H
#define CU_PROBE_H

/* Asks the driver and prints what it finds to stdout: see probe.c.  Returns the exit status. */
int cu_probe(void);

#endif
