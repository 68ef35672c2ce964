/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call of ours needs lies together in the library, so that the call reads few pages of it: the driver's own work
 * has emptied the processor's caches before.  That is most of what a call of ours takes beside a GPU.
 *
 * CL_HOT stands before a function on the way of a program that allocates and frees, and shares nothing.  Side by side
 * they add a fifth less on the simulated driver (`hand_over alone`).  CL_HOT_SHARING stands before a function on the
 * way of a program that shares blocks in a loop: it exports, opens, closes and frees them.
 *
 * CL_HOT_DATA marks a variable that functions of either sort read and that is seldom written.  CL_HOT_LOCKED marks one
 * that functions of CL_HOT write, mostly under a lock, and the lock itself.  CL_HOT_SHARING_LOCKED marks one of those that
 * functions of CL_HOT_SHARING write and functions of CL_HOT do not.  Each sort has a section of its own, so a thread that
 * writes does not take from other threads' caches the words that they only read.  One word that functions of CL_HOT read
 * lies elsewhere: collector.no_thread of cl_exporter.
 *
 * The linker places the sections in the order in which it meets them, and CL_HOT_SHARING_LOCKED must not come before
 * CL_HOT_LOCKED.  Therefore cl_own is of CL_HOT_LOCKED; guard.sh sees to that.
 *
 * Cold parts of a function of CL_HOT_SHARING stay in it: gcc does not move them out of a section that we name.
 * AddressSanitizer guards no variable that has a section, so its builds have no sections for variables.
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
#define CL_HOT_SHARING_LOCKED __attribute__((CL_HOT_SECTION("cl_hot_sharing_locked") aligned(64)))

#endif
