/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open against free against reap, with a death at every step: the protocol of
 * shm/layout.h (rules 1 to 3) as shim/shm/record.c and shim/shm/slot.c do it.
 * run.sh says in which sizes it is searched, and searches the planted faults.
 *
 * What is shown, over all interleavings and all deaths (spin finds no error):
 *  (a) no block is given back to the driver while a live importer that was told
 *      to proceed has it			NOBODY_HAS, where the driver frees
 *  (b) no importer proceeds on a generation whose block was given back: what it
 *      opens is what the handle meant			the assert in OPEN
 *  (c) a reap clears only bits of dead processes' slots (whose lock it has), and
 *      leaves none; a slot has one owner, and comes to it without bits
 *					the asserts in Reaper and in claim
 *  (e) whoever was told to proceed is counted in the record's `opens`, whatever
 *      stale importers add to it		the second assert in OPEN
 *  (d) once its holders are gone, or dead and reaped, a freed block is given
 *      back: every run ends with each record's generations all done, unless its
 *      exporter was killed; no hint and (SLEEP) no wake-up is lost, though the
 *      collector's own timer, CL_REAP_EVERY, is not here.  A run that stops
 *      elsewhere is an "invalid end state".  Opens, tries, generations and
 *      deaths are counted, so runs are finite and that is all of progress.
 *
 * What stands for which C.  A step is one atomic instruction there, together
 * with what touches nothing shared; a system call is one step:
 *	UNHOLD		cl_record_unhold(): closing, bit, fence, life, held, ready, closing
 *	SET_READY, WAKE	cl_record_set_ready(), cl_region_wake().  With SLEEP its map has
 *			two levels (`top` stands for both upper ones), and the
 *			collector's bed is there; else it is one bit
 *	claim		claim_one(): lock, then compare-and-swap; slots in order
 *	OPEN		cl_record_hold(): handshake(), the patience of its caller counted as TRIES
 *	release_slot	cl_holder_release()
 *	RUN		cl_record_publish() (its last store), cl_record_to_limbo()
 *	free_now	cl_record_release_begin(), the driver, cl_record_release_end(),
 *			as take_for_free() and its callers in free.c do it
 *	try_release	cl_record_try_release(), and then the driver's free
 *	look		cl_limbo_is_held() in place_after_grace() of limbo.c
 *	was_ready	take_ready_locked() with cl_record_take_ready()
 *	ORPHANED	cl_record_orphan()
 *	SLEEP		collector_main(): wake seen, a pass, sleeping, fence, look, futex
 *	Reaper		reap_one(), cl_record_clear_slot()
 * held() is one load, for slots that share a holder word; with WORDS each has a
 * word of its own, loaded one after the other.  The exporter's functions run one
 * at a time (cl_exports_lock), in any order in which the program and the
 * collector may call them; cl_record_export_again() writes a time and a count
 * only and is not here.
 *
 * Deaths: after each of its steps (OR_DIE) an importer, a reaper (REAPER_KILLS) or
 * an exporter (EXPORTER_DIES) may die; its locks are free in that instant.  With
 * REBORN a new process follows a dead importer; without, other importers may get
 * its slot.  Being stopped is being slow: all interleavings are searched anyway.
 *
 * With BUFFERS, stores to `life` and changes of holder bits pass through a store
 * buffer of one entry a process: others see them later, at the latest at the
 * fence.  For `life` that is x86's store buffer; for bits it is more than an x86
 * does (there a locked instruction waits for the buffer), as other machines may.
 * Without BUFFERS a store is seen at once.  That is no less as long as each of
 * them that matters is followed by a fence before the next load: then a late
 * store is a slow process.
 *
 * Not covered:
 *  - Weak memory beyond that buffer: argued in the comments of shm/record.c; run
 *    with threads as processes, under ThreadSanitizer and on aarch64
 *    (tests/unit/test_handshake.c).
 *  - Who is dead: taken for granted (liveness.c).  A dead importer's use of the
 *    block ends with its death here; in life the settling time stands for that.
 *  - A reaper's look and its lock are one step, and it is the only one of its
 *    file; so that it compares the claim again is not needed here.
 *  - Grace, events, pins, growing, word_pages and slots_used (raised before the
 *    first bit that they are for), more opens, records, generations and deaths than
 *    run.sh says.
 *  - Damaged files.
 *
 * Planted faults, each of which is found: MISSING_FENCE (needs BUFFERS),
 * TWO_STEP_RELEASE (load and store of the word instead of one instruction),
 * RESET_LATE (`opens` is set to 0 after the record is published),
 * SLOT_BEFORE_BITS (the reaper frees the slot first), and BIT_BEFORE_CLOSING
 * (`closing` is written after the bit is cleared).
 */
#ifndef FILES
#define FILES 1		/* exporters, each with its file */
#endif
#ifndef RECORDS
#define RECORDS 1	/* FILES 2: record r is of file r */
#endif
#ifndef IMPORTERS
#define IMPORTERS 2
#endif
#ifndef SLOTS
#define SLOTS IMPORTERS	/* of each file */
#endif
#ifndef OPENS
#define OPENS 1		/* of each process */
#endif
#ifndef GENERATIONS
#define GENERATIONS 1	/* times that each record is published */
#endif
#ifndef KILLS
#define KILLS 1		/* importers that die */
#endif
#ifndef REAPER_KILLS
#define REAPER_KILLS 0
#endif
#ifndef TRIES
#define TRIES 1		/* opens that meet DYING */
#endif

#if FILES == 1
#define FILE_OF(r) 0
#else
#define FILE_OF(r) r
#endif
#define AT(f, s) ((f) * SLOTS + (s))

/* life, as one number: generation * 8 + state */
#define S_FREE 0
#define S_EXPORTED 1
#define S_LIMBO 2
#define S_DYING 3
#define S_ORPHANED 4
#define STATE(life) ((life) & 7)
#define GENERATION(life) ((life) >> 3)

/* ------------------------------------------------------ the shared memory */
byte life[RECORDS];
byte bits[RECORDS];		/* bit [slot] */
bool ready[RECORDS];
bool opened[RECORDS];		/* `opens` is not 0 */
#ifdef SLEEP
bool top[FILES];
bool sleeping[FILES];
bool changed[FILES];		/* `wake` is not what the collector has seen */
bool asleep[FILES];		/* the kernel's: it is in the futex */
#endif
bool claimed[FILES * SLOTS];
byte closing[FILES * SLOTS];
#define UNLOCKED 0
#define BY_REAPER 1
#define BY_IMPORTER 2
byte lock[FILES * SLOTS];	/* the kernel's */

/* ------------------------------------- what is true, which no process reads */
byte given_back[RECORDS];	/* generations of it that the driver has freed */
byte has[IMPORTERS * RECORDS];	/* generation + 1 that this live importer proceeded on */
#define HAS(i, r) has[(i) * RECORDS + (r)]
byte kills = KILLS;
#if REAPER_KILLS
byte reaper_kills = REAPER_KILLS;
#endif

/* ------------------------------------------------------------ store buffers */
/* The reaper's bits come last. */
#ifdef BUFFERS
byte late_life[FILES];		/* 0, or 1 + record * 64 + life */
byte late_bit[IMPORTERS + FILES]; /* 0, or 1 + record * 16 + slot * 2 + clear */
#define SEE_BIT(w)                                                              \
	if                                                                      \
	:: late_bit[w] == 0                                                     \
	:: late_bit[w] != 0 && ((late_bit[w] - 1) & 1) == 0 ->                  \
		bits[(late_bit[w] - 1) >> 4] = bits[(late_bit[w] - 1) >> 4] |   \
			(1 << (((late_bit[w] - 1) >> 1) & 7))                   \
	:: late_bit[w] != 0 && ((late_bit[w] - 1) & 1) == 1 ->                  \
		bits[(late_bit[w] - 1) >> 4] = bits[(late_bit[w] - 1) >> 4] &   \
			(255 - (1 << (((late_bit[w] - 1) >> 1) & 7)))           \
	fi;                                                                     \
	late_bit[w] = 0
#define SEE_LIFE(f)                                                             \
	life[(late_life[f] - 1) >> 6] = (late_life[f] - 1) & 63;                \
	late_life[f] = 0
/* guards: a second store waits for the first to be seen */
#define BIT_FREE(w) (late_bit[w] == 0)
#define SET_BIT(w, r, s) late_bit[w] = 1 + (r) * 16 + (s) * 2
#define CLEAR_BIT(w, r, s) late_bit[w] = 2 + (r) * 16 + (s) * 2
#define STORE_LIFE(r, v) late_life[FILE_OF(r)] == 0 -> late_life[FILE_OF(r)] = 1 + (r) * 64 + (v)
#ifdef MISSING_FENCE
#define FENCED_BIT(w) true
#define FENCED_LIFE(r) true
#else
#define FENCED_BIT(w) (late_bit[w] == 0)
#define FENCED_LIFE(r) (late_life[FILE_OF(r)] == 0)
#endif

active proctype Memory()
{
end:	do
	:: d_step { late_life[0] != 0 -> SEE_LIFE(0) }
	:: d_step { late_bit[0] != 0 -> SEE_BIT(0) }
	:: d_step { late_bit[1] != 0 -> SEE_BIT(1) }
	:: d_step { late_bit[2] != 0 -> SEE_BIT(2) }
#if FILES > 1
	:: d_step { late_life[1] != 0 -> SEE_LIFE(1) }
#endif
#if IMPORTERS + FILES > 3
	:: d_step { late_bit[3] != 0 -> SEE_BIT(3) }
#endif
#if IMPORTERS + FILES > 4
	:: d_step { late_bit[4] != 0 -> SEE_BIT(4) }
#endif
	od
}
#else
#define SEE_BIT(w)
#define BIT_FREE(w) true
#define SET_BIT(w, r, s) bits[r] = bits[r] | (1 << (s))
#define CLEAR_BIT(w, r, s) bits[r] = bits[r] & (255 - (1 << (s)))
#define STORE_LIFE(r, v) life[r] = (v)
#define FENCED_BIT(w) true
#define FENCED_LIFE(r) true
#endif

/* -------------------------------------------------------- shm/record.c, for all */
/* With WORDS each slot lies in a holder word of its own: one load a word. */
#ifdef WORDS
#define WORD_OF(s) (1 << (s))
#define LAST_WORD (SLOTS - 1)
#else
#define WORD_OF(s) 255
#define LAST_WORD 0
#endif

#ifdef BIT_BEFORE_CLOSING
#define NOTE_FIRST(r, sl)
#define NOTE_LATE(r, sl) NOTE(r, sl)
#else
#define NOTE_FIRST(r, sl) NOTE(r, sl)
#define NOTE_LATE(r, sl)
#endif
#define NOTE(r, sl)								\
	if									\
	:: d_step { closing[AT(FILE_OF(r), sl)] = r + 1; DRIVER_CLOSED(r) }	\
	OR_DIE									\
	fi;

#ifdef TWO_STEP_RELEASE
#define CLEAR(w, r, sl)								\
	if									\
	:: torn = bits[r]							\
	OR_DIE									\
	fi;									\
	if									\
	:: atomic { bits[r] = torn & (255 - (1 << (sl))); torn = 0 }		\
	OR_DIE									\
	fi;
#else
#define CLEAR(w, r, sl)								\
	if									\
	:: atomic { BIT_FREE(w) -> CLEAR_BIT(w, r, sl); DRIVER_CLOSED(r) }			\
	OR_DIE									\
	fi;
#endif

#ifdef SLEEP
#define WAKE(r)									\
	if									\
	:: top[FILE_OF(r)] = true						\
	OR_DIE									\
	fi;									\
	if									\
	:: !sleeping[FILE_OF(r)]						\
	:: sleeping[FILE_OF(r)] ->						\
		if								\
		:: changed[FILE_OF(r)] = true					\
		OR_DIE								\
		fi;								\
		if								\
		:: asleep[FILE_OF(r)] = false					\
		OR_DIE								\
		fi								\
	OR_DIE									\
	fi;
#else
#define WAKE(r)
#endif
#define SET_READY(r)								\
	if									\
	:: ready[r] = true							\
	OR_DIE									\
	fi;									\
	WAKE(r)

/*
 * All of cl_record_unhold(); after each step of it one may die (OR_DIE, which
 * is another for importers and reapers).  @w: whose store buffer.
 */
#define UNHOLD(w, sl, r)							\
	NOTE_FIRST(r, sl)							\
	CLEAR(w, r, sl)								\
	NOTE_LATE(r, sl)							\
	if									\
	:: FENCED_BIT(w) && STATE(life[r]) < S_LIMBO				\
	:: FENCED_BIT(w) && STATE(life[r]) >= S_LIMBO ->			\
		/* held() */							\
		do								\
		:: (bits[r] & WORD_OF(looked)) != 0 -> break			\
		:: atomic { (bits[r] & WORD_OF(looked)) == 0 && looked < LAST_WORD -> looked++ }	\
		:: (bits[r] & WORD_OF(looked)) == 0 && looked == LAST_WORD ->	\
			SET_READY(r)						\
			break							\
		OR_DIE								\
		od								\
	OR_DIE									\
	fi;									\
	if									\
	:: atomic { closing[AT(FILE_OF(r), sl)] = 0; looked = 0 }		\
	OR_DIE									\
	fi

/* ----------------------------------------------------------------- importer */
/* What a slot brings with it: nothing of the one who had it before. */
#if RECORDS > 1
#define NO_BITS(f, s)                                                           \
	((FILE_OF(0) != (f) || ((bits[0] >> (s)) & 1) == 0) &&                  \
	 (FILE_OF(1) != (f) || ((bits[1] >> (s)) & 1) == 0))
#else
#define NO_BITS(f, s) (((bits[0] >> (s)) & 1) == 0)
#endif
#define DEAD_SLOT(f, n) (claimed[AT(f, n)] && lock[AT(f, n)] == UNLOCKED)
#define FREE_SLOT(f, n) (!claimed[AT(f, n)] && lock[AT(f, n)] == UNLOCKED)
#if SLOTS > 2
#define ANY_SLOT(is, f) (is(f, 0) || is(f, 1) || is(f, 2))
#define FIRST_SLOT(is, f) (is(f, 0) -> 0 : (is(f, 1) -> 1 : 2))
#elif SLOTS > 1
#define ANY_SLOT(is, f) (is(f, 0) || is(f, 1))
#define FIRST_SLOT(is, f) (is(f, 0) -> 0 : 1)
#else
#define ANY_SLOT(is, f) is(f, 0)
#define FIRST_SLOT(is, f) 0
#endif

#if RECORDS > 1
#define HAS_NOTHING HAS(i, 0) = 0; HAS(i, 1) = 0
#define HOLDS_NONE (!HAS(i, 0) && !HAS(i, 1))
#else
#define HAS_NOTHING HAS(i, 0) = 0
#define HOLDS_NONE (!HAS(i, 0))
#endif
#if FILES > 1
#define UNLOCK_ALL                                                              \
	if :: slot[0] > 0 -> lock[AT(0, slot[0] - 1)] = UNLOCKED :: else fi;    \
	if :: slot[1] > 0 -> lock[AT(1, slot[1] - 1)] = UNLOCKED :: else fi;    \
	slot[0] = 0; slot[1] = 0
#else
#define UNLOCK_ALL                                                              \
	if :: slot[0] > 0 -> lock[AT(0, slot[0] - 1)] = UNLOCKED :: else fi;    \
	slot[0] = 0
#endif

/* Dies between two steps: what it stored is seen, its locks are free, its mappings gone. */
#define OR_DIE                                                                  \
	:: atomic { kills > 0 -> kills--; SEE_BIT(i); UNLOCK_ALL; HAS_NOTHING; goto died }
/* The driver's close comes before ours: the block is in use up to our first step. */
#define DRIVER_CLOSED(r) HAS(i, r) = 0

/*
 * The handle's generation is @g.  A handle that the first check() finds stale
 * changes nothing, so only those that pass it are opened here.
 */
#define CAN_OPEN(r) (opens < OPENS && !HAS(i, r) && STATE(life[r]) != S_FREE)
/*
 * With SYMMETRY: of three that open one record each, two open the same one; we
 * call those importers 0 and 1, and that record 0.  (Whose numbers they are makes
 * no difference: slots go by who comes first, and a dead one has one bit.)
 */
#ifdef SYMMETRY
#define MAY_OPEN(r) (i == 2)
#else
#define MAY_OPEN(r) true
#endif
#define GOES_ON(r) (GENERATION(life[r]) == g && \
		    (STATE(life[r]) == S_EXPORTED || STATE(life[r]) == S_LIMBO))
#define ASKS_AGAIN(r) (GENERATION(life[r]) == g && STATE(life[r]) == S_DYING && tries + 1 < TRIES)

inline claim(f)
{
	if
	:: slot[f] == 0 ->
		if
		:: d_step { ANY_SLOT(FREE_SLOT, f) ->
			slot[f] = 1 + FIRST_SLOT(FREE_SLOT, f);
			lock[AT(f, slot[f] - 1)] = BY_IMPORTER }
		OR_DIE
		fi;
		if
		:: d_step {
			assert(NO_BITS(f, slot[f] - 1));	/* (c) */
			assert(!claimed[AT(f, slot[f] - 1)]);
			claimed[AT(f, slot[f] - 1)] = true }
		OR_DIE
		fi
	:: else
	fi
}

#define COUNT(r)								\
	if									\
	:: opened[r] = true							\
	OR_DIE									\
	fi;

#define OPEN(r, refused, done)							\
	claim(FILE_OF(r));							\
	COUNT(r)								\
	do									\
	:: atomic { BIT_FREE(i) -> SET_BIT(i, r, slot[FILE_OF(r)] - 1) }	\
		/* one load, three ways */					\
		if								\
		:: atomic { FENCED_BIT(i) && GOES_ON(r) ->			\
			    assert(given_back[r] == g);		/* (b) */	\
			    assert(opened[r]);			/* (e) */	\
			    HAS(i, r) = g + 1;					\
			    g = 0; tries = 0;					\
			    goto done }						\
		:: atomic { FENCED_BIT(i) && !GOES_ON(r) && !ASKS_AGAIN(r) ->	\
			    g = 0; tries = 0;					\
			    goto refused }					\
		:: atomic { FENCED_BIT(i) && ASKS_AGAIN(r) -> tries++ }		\
		OR_DIE								\
		fi;								\
		UNHOLD(i, slot[FILE_OF(r)] - 1, r)				\
	OR_DIE									\
	od

inline release_slot(f)
{
	if
	:: d_step { slot[f] > 0 -> claimed[AT(f, slot[f] - 1)] = false }
		/* killed here is the same as unlocked */
		d_step { lock[AT(f, slot[f] - 1)] = UNLOCKED; slot[f] = 0 }
	:: slot[f] == 0
	OR_DIE
	fi
}

proctype Importer(byte i)
{
	byte slot[FILES], g, tries, opens, looked;
#ifdef TWO_STEP_RELEASE
	byte torn;
#endif

born:
	do
	:: atomic { CAN_OPEN(0) -> opens++; g = GENERATION(life[0]) }
		OPEN(0, close0, next)
	:: HAS(i, 0) ->
close0:
		UNHOLD(i, slot[0] - 1, 0);
next:		skip
#if RECORDS > 1
	:: atomic { CAN_OPEN(1) && MAY_OPEN(1) -> opens++; g = GENERATION(life[1]) }
		OPEN(1, close1, next)
	:: HAS(i, 1) ->
close1:
		UNHOLD(i, slot[FILE_OF(1)] - 1, 1)
#endif
	:: HOLDS_NONE -> break
	OR_DIE
	od;
	release_slot(0);
#if FILES > 1
	release_slot(1);
#endif
	goto ended;
died:
	g = 0; tries = 0; looked = 0;
#ifdef TWO_STEP_RELEASE
	torn = 0;
#endif
#ifdef REBORN
	/* a new process comes */
	opens = 0;
	goto born;
#endif
ended:	skip
}
#undef OR_DIE
#undef DRIVER_CLOSED

/* ----------------------------------------------------------------- exporter */
#define B_FREE 0	/* the state of the block, as enum cl_block_state */
#define B_LIVE 1
#define B_ENTERS 2	/* it is LIMBO, and nobody has looked who holds it */
#define B_HELD 3
#define B_READY 4
#define B_ORPHANED 5
#define B_OVER 6	/* all its generations are done */

#ifdef EXPORTER_DIES
#define OR_DIE :: goto died
#else
#define OR_DIE
#endif

#if IMPORTERS > 2
#define NOBODY_HAS(r)	/* (a) */						\
	assert(HAS(0, r) != gen[r] + 1 && HAS(1, r) != gen[r] + 1 && HAS(2, r) != gen[r] + 1)
#else
#define NOBODY_HAS(r)	/* (a) */						\
	assert(HAS(0, r) != gen[r] + 1 && HAS(1, r) != gen[r] + 1)
#endif
#define FREED(r) state[r] = (gen[r] == GENERATIONS -> B_OVER : B_FREE)

/*
 * Its first held() is not a step of its own: whoever goes on from there may
 * find them holding again at once, so we let it go on whoever holds it.
 */
inline try_release(r, before, back)
{
	/* the second held() */
	do
	:: FENCED_LIFE(r) && (bits[r] & WORD_OF(looked)) != 0 ->
		if
		:: atomic { STORE_LIFE(r, gen[r] * 8 + before); looked = 0; state[r] = back }
		OR_DIE
		fi;
		break
	:: atomic { FENCED_LIFE(r) && (bits[r] & WORD_OF(looked)) == 0 && looked < LAST_WORD -> looked++ }
	:: FENCED_LIFE(r) && (bits[r] & WORD_OF(looked)) == 0 && looked == LAST_WORD ->
		if
		:: atomic { STORE_LIFE(r, (gen[r] + 1) * 8 + S_FREE); looked = 0 }
		OR_DIE
		fi;
		/* driver_free() */
		if
		:: d_step {
			NOBODY_HAS(r);
			given_back[r]++;
			gen[r]++;
			FREED(r) }
		OR_DIE
		fi;
		break
	OR_DIE
	od
}

/* The same in two halves, the driver's free in between: it may refuse. */
inline free_now(r)
{
	do
	:: FENCED_LIFE(r) && (bits[r] & WORD_OF(looked)) != 0 ->
		if
		:: atomic { STORE_LIFE(r, gen[r] * 8 + S_EXPORTED); looked = 0 }
		OR_DIE
		fi;
		break
	:: atomic { FENCED_LIFE(r) && (bits[r] & WORD_OF(looked)) == 0 && looked < LAST_WORD -> looked++ }
	:: FENCED_LIFE(r) && (bits[r] & WORD_OF(looked)) == 0 && looked == LAST_WORD ->
		if
		:: d_step { NOBODY_HAS(r); given_back[r]++; gen[r]++ }
			if
			:: atomic { STORE_LIFE(r, gen[r] * 8 + S_FREE); looked = 0; FREED(r) }
			OR_DIE
			fi
		/* refused */
		:: atomic { STORE_LIFE(r, gen[r] * 8 + S_EXPORTED); looked = 0 }
		OR_DIE
		fi;
		break
	OR_DIE
	od
}

/* Who enters, or was ready: held, or due. */
inline look(r, at)
{
	do
	:: atomic { (bits[r] & WORD_OF(looked)) != 0 -> state[r] = B_HELD; looked = 0; break }
	:: atomic { (bits[r] & WORD_OF(looked)) == 0 && looked < LAST_WORD -> looked++ }
	:: atomic { (bits[r] & WORD_OF(looked)) == 0 && looked == LAST_WORD ->
		    state[r] = B_READY; looked = 0; break }
	OR_DIE
	od
}

#define MINE(r) (FILE_OF(r) == f)
#define IS(r, p) (MINE(r) && state[r] == p)
#if RECORDS > 1
#define ANY(p) (IS(0, p) || IS(1, p))
#else
#define ANY(p) IS(0, p)
#endif
#define ALL_WAIT (!ANY(B_FREE) && !ANY(B_LIVE) && !ANY(B_READY))

inline was_ready(r)
{
	if
	:: IS(r, B_HELD) -> look(r, 0)
#ifdef ORPHANED
	:: atomic { IS(r, B_ORPHANED) -> STORE_LIFE(r, gen[r] * 8 + S_DYING) }
		try_release(r, S_ORPHANED, B_ORPHANED)
#endif
	:: else
	fi
}

#ifdef RESET_LATE
#define RESET_EARLY(r)
#define RESET_AFTER(r) opened[r] = false
#else
#define RESET_EARLY(r) opened[r] = false;
#define RESET_AFTER(r)
#endif

#define RUN(r)                                                                  \
	:: atomic { IS(r, B_FREE) ->                                            \
		    STORE_LIFE(r, gen[r] * 8 + S_EXPORTED); RESET_EARLY(r)	\
		    state[r] = B_LIVE }					\
		RESET_AFTER(r)							\
	/* its grace is over: freed at once, if nobody has it */                \
	:: atomic { IS(r, B_LIVE) -> STORE_LIFE(r, gen[r] * 8 + S_DYING) }   \
		free_now(r)                                                     \
	:: atomic { IS(r, B_LIVE) -> STORE_LIFE(r, gen[r] * 8 + S_LIMBO) }   \
		FENCED_LIFE(r);                                                 \
		look(r, 1)                                                      \
	:: atomic { IS(r, B_READY) && bits[r] != 0 -> state[r] = B_HELD }         \
	:: atomic { IS(r, B_READY) -> STORE_LIFE(r, gen[r] * 8 + S_DYING) }       \
		try_release(r, S_LIMBO, B_HELD)

proctype Exporter(byte f)
{
	byte state[RECORDS], gen[RECORDS], looked;

	do
	RUN(0)
#if RECORDS > 1
	RUN(1)
#endif
#ifdef ORPHANED
	/* a context ends: the driver has freed it, whoever has it */
	:: atomic { IS(0, B_LIVE) || IS(0, B_HELD) -> STORE_LIFE(0, gen[0] * 8 + S_ORPHANED) }
		FENCED_LIFE(0);
		atomic { STORE_LIFE(0, gen[0] * 8 + S_DYING) }
		try_release(0, S_ORPHANED, B_ORPHANED)
#endif
#ifndef SLEEP
	:: d_step { MINE(0) && ready[0] -> ready[0] = false }
		was_ready(0)
#if RECORDS > 1
	:: d_step { MINE(1) && ready[1] -> ready[1] = false }
		was_ready(1)
#endif
#else
	:: d_step { top[f] -> top[f] = false }
		/* collect: from the top down */
		if
		:: d_step { MINE(0) && ready[0] -> ready[0] = false }
			was_ready(0)
		:: !(MINE(0) && ready[0])
		fi;
#if RECORDS > 1
		if
		:: d_step { MINE(1) && ready[1] -> ready[1] = false }
			was_ready(1)
		:: !(MINE(1) && ready[1])
		fi
#endif
	:: d_step { ALL_WAIT && (ANY(B_HELD) || ANY(B_ORPHANED)) && !top[f] -> changed[f] = false }
		/* `wake` was seen, a pass done; sleeping is said; looked once more */
		sleeping[f] = true;
		if
		:: top[f]
		:: !top[f] ->
			/* the futex compares and queues in one */
			asleep[f] = !changed[f];
			!asleep[f]
		fi;
		sleeping[f] = false
#endif
	:: ALL_WAIT && !ANY(B_HELD) && !ANY(B_ORPHANED) -> break
#ifdef EXPORTER_DIES
	/* not while it waits: that is, to others, dying before; and it must be seen to be woken */
	:: !ALL_WAIT -> goto died
#endif
	od;
died:	skip
}
#undef OR_DIE

/* ------------------------------------------------------------------- reaper */
/*
 * One a file: the exporter's collector, or an importer that finds all slots
 * taken.  That it looked, and has the lock, is one step: in between only
 * another reaper could come, and that would have the lock.
 */
#if REAPER_KILLS
#define OR_DIE                                                                  \
	:: atomic { reaper_kills > 0 -> reaper_kills--; SEE_BIT(IMPORTERS + f); \
		    lock[AT(f, s)] = UNLOCKED; looked = 0; s = 0; goto again }
#else
#define OR_DIE
#endif
#define DRIVER_CLOSED(r) skip

inline clear_bit_of(r)
{
	if
	:: MINE(r) && ((bits[r] >> s) & 1) -> UNHOLD(IMPORTERS + f, s, r)
	:: !(MINE(r) && ((bits[r] >> s) & 1))
	fi
}

proctype Reaper(byte f)
{
	byte s, looked;
#ifdef TWO_STEP_RELEASE
	byte torn;
#endif

again:
end:	do
	:: d_step { ANY_SLOT(DEAD_SLOT, f) ->
		s = FIRST_SLOT(DEAD_SLOT, f);
		lock[AT(f, s)] = BY_REAPER }
#ifdef SLOT_BEFORE_BITS
		claimed[AT(f, s)] = false;
#endif
		/* cl_record_clear_slot(): `closing` of the dead, then its bits */
		if
		:: closing[AT(f, s)] == 0
		:: closing[AT(f, s)] == 1 -> SET_READY(0) skip
#if RECORDS > 1
		:: closing[AT(f, s)] == 2 -> SET_READY(1) skip
#endif
		OR_DIE
		fi;
		clear_bit_of(0);
#if RECORDS > 1
		clear_bit_of(1);
#endif
		if
		:: d_step { assert(NO_BITS(f, s)); claimed[AT(f, s)] = false }	/* (c) */
		OR_DIE
		fi;
		d_step { assert(lock[AT(f, s)] == BY_REAPER); lock[AT(f, s)] = UNLOCKED; s = 0 }
	od
}

init {
	atomic {
		run Exporter(0);
		run Reaper(0);
#if FILES > 1
		run Exporter(1);
		run Reaper(1);
#endif
		run Importer(0);
		run Importer(1);
#if IMPORTERS > 2
		run Importer(2);
#endif
	}
}
