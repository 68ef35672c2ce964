/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the host's other exporters for memory that lies in their limbo. */
#ifndef CL_PRESSURE_H
#define CL_PRESSURE_H

#include <stdint.h>

/*
 * Asks every other exporter of CULIMBO_DIR that has blocks in limbo to end
 * their grace and give back what nobody holds, and waits @wait ns at most for
 * their answers.  Returns the bytes that left their limbos meanwhile.  No lock
 * may be held.
 */
uint64_t cl_pressure_ask(uint64_t wait);

#endif
