/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CL_HOT stands before a function on the way of a program that allocates and frees, and shares nothing.  Such functions
 * lie side by side in the library, so a call reads few pages of code: the driver's own work has emptied the
 * processor's caches before.  That took a fifth off what they add on the simulated driver (`hand_over alone`).
 *
 * CL_HOT_SHARING stands before a function on the way of a program that shares blocks in a loop: exports, opens, closes and
 * frees them.  These lie side by side in a section of their own, so that they do not lie between those of CL_HOT.
 *
 * CL_HOT_DATA marks a variable that such functions read and that is seldom written.  CL_HOT_LOCKED marks a variable that
 * they write under a lock, and the lock itself.  Each sort has a section of its own.  So a call touches few pages of
 * data, and a thread that writes under the lock does not take from other threads' caches the words that they only read.
 * One word that they read lies elsewhere: collector.no_thread of cl_exporter.
 *
 * AddressSanitizer guards no variable that has a section, so its builds have none.
 */
#ifndef CL_HOT_H
#define CL_HOT_H

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define CL_HOT_NO_SECTIONS
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define CL_HOT_NO_SECTIONS
#endif

#ifdef CL_HOT_NO_SECTIONS
#define CL_HOT_SECTION(name)
#else
#define CL_HOT_SECTION(name) section(name),
#endif
#define CL_HOT __attribute__((hot))
#define CL_HOT_SHARING __attribute__((hot, section("cl_hot_sharing")))
#define CL_HOT_DATA __attribute__((CL_HOT_SECTION("cl_hot_data") aligned(8)))
#define CL_HOT_LOCKED __attribute__((CL_HOT_SECTION("cl_hot_locked") aligned(64))) /* begins a line of the cache */

#endif
