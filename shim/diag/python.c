/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads Python frames: see python.h.
 *
 * What must hold: the program never crashes, waits or changes by this.
 *
 * A thread that is in a call of ours runs no Python code meanwhile, so its frames and their code
 * objects stay as they are, also without the GIL.  There is one exception: when the interpreter
 * ends, it frees the states of threads that are still in some call.  A load from there could fault
 * at any moment, whatever was asked before.  So what is Python's is read by process_vm_readv() of
 * this very process, which reads the same bytes and returns an error instead of a fault.  That costs
 * two microseconds.  Plain loads, of 0.2 us, are used where the interpreter cannot end meanwhile:
 *   - this thread has the GIL;
 *   - this is the first thread of a program that is python itself, whose first thread ends the
 *     interpreter.
 * They are used only after function and file of a frame have been read in the safe way: then the
 * structures are what we think they are.  What was read is believed only if it says itself what it
 * is: each code object, text and table has a pointer to its type.
 *
 * Each of Python's functions that are called here reads one variable.  PyGILState_GetThisThreadState()
 * reads a pthread key.  In 3.8 to 3.11 that is the state with which this thread entered the main
 * interpreter, also while the thread runs another one (a subinterpreter).  Those versions tell that there
 * are several: PyGILState_Check() is then true in every thread.  So if it is true, and the state is not the
 * one that has the GIL, nothing is read.
 *
 * A free-threaded build counts instructions in a copy for each thread: it is not read.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shim/diag/python.h"
#include "shim/diag/python_find.h"
#include "shim/diag/python_lines.h"

static uint64_t word_in(const char *from, size_t at)
{
	uint64_t word;

	memcpy(&word, from + at, sizeof word);
	return word;
}

/* ------------------------------------------------------------------------- places */
enum { GUESSED = 12, FRAME_MOST = 128 };

/* What tells a code object from another one that had its address before, and where it was read. */
struct identity {
	uint64_t hash, file, end; /* of its file's name: a hash, its address, and the address of its last bytes */
	uint32_t n;		  /* of those bytes */
	bool is_own;		  /* the interpreter's: no code of a program */
};

/*
 * The frames that this thread had the last time.  Mostly they are there again: then few system calls
 * read all of them.
 */
struct guess {
	uint64_t cframe, frame[GUESSED], code[GUESSED]; /* if .code is 0 the frame is the interpreter's own */
	struct identity is[GUESSED];
	uint32_t n;
};
static __thread struct guess last __attribute__((tls_model("initial-exec")));
/* This thread reads or writes `last`: a signal handler that interrupts it leaves it alone. */
static __thread volatile bool last_is_busy __attribute__((tls_model("initial-exec")));

/* What that system call has read. */
struct seen {
	uint64_t first, through; /* what the state, and its cframe, have */
	bool has_first, has_through;
	uint32_t frames;
	const char *frame[GUESSED];
	char room[2048];
};

static bool is_one_page(uint64_t a, uint64_t b)
{
	return a / CL_PAGE == b / CL_PAGE;
}

/* The kernel works for each range, so ranges that lie side by side, as frames of newer versions do, become one. */
static void read_guessed(const struct cl_python_layout *l, uint64_t state, const struct guess *guess,
			 struct seen *seen)
{
	struct iovec local[2 + GUESSED], remote[2 + GUESSED];
	uint32_t fixed = 1, n, frames = guess->n <= GUESSED ? guess->n : 0, whole = 0, in[GUESSED];
	int was = errno;
	ssize_t got, sum = 0;
	size_t used = 0;

	local[0] = (struct iovec){ &seen->first, 8 };
	remote[0] = (struct iovec){ (void *)(uintptr_t)(state + l->state_frame), 8 };
	if (l->through_cframe && guess->cframe) {
		local[1] = (struct iovec){ &seen->through, 8 };
		remote[1] = (struct iovec){ (void *)(uintptr_t)(guess->cframe + l->cframe_frame), 8 };
		fixed = 2;
	}
	n = fixed;
	for (uint32_t i = 0; i < frames; i++) {
		uint64_t from = guess->frame[i], to = from + l->frame_size;
		uint64_t start = (uint64_t)(uintptr_t)remote[n - 1].iov_base, end = start + remote[n - 1].iov_len;

		if (n > fixed && is_one_page(from, start) && is_one_page(to - 1, start) && is_one_page(end - 1, start)) {
			from = from < start ? from : start;
			to = to > end ? to : end;
			n--;
		}
		remote[n] = (struct iovec){ (void *)(uintptr_t)from, to - from };
		in[i] = n++;
	}
	for (uint32_t k = fixed; k < n; used += remote[k++].iov_len) {
		if (remote[k].iov_len > sizeof seen->room - used)
			n = k;
		local[k] = (struct iovec){ seen->room + used, remote[k].iov_len };
	}
	got = process_vm_readv(getpid(), local, n, remote, n, 0);
	errno = was;
	/* it stops at the first that can't be read */
	while (whole < n && sum + (ssize_t)remote[whole].iov_len <= got)
		sum += (ssize_t)remote[whole++].iov_len;
	seen->has_first = whole > 0;
	seen->has_through = fixed == 2 && whole > 1 && seen->first == guess->cframe;
	for (seen->frames = 0; seen->frames < frames && in[seen->frames] < whole; seen->frames++) {
		uint32_t i = seen->frames;

		seen->frame[i] = (char *)local[in[i]].iov_base +
				 (guess->frame[i] - (uint64_t)(uintptr_t)remote[in[i]].iov_base);
	}
}

static void mix(uint64_t *hash, uint64_t word)
{
	*hash = (*hash ^ word) * 0x9e3779b97f4a7c15u;
	*hash ^= *hash >> 29;
}

/* Where a frame stands.  Returns false if it is the interpreter's own. */
static bool place_of(const struct cl_python_layout *l, const char *frame, struct cl_python_place *place)
{
	if (l->frame_owner && (uint8_t)frame[l->frame_owner] > l->owner_most)
		return false;
	/* 3.14 marks borrowed references in the lowest bits */
	place->code = word_in(frame, l->frame_code) & ~(uint64_t)7;
	place->at = word_in(frame, l->frame_at);
	if (l->at_unit)
		place->at = (uint64_t)((int64_t)(int32_t)place->at * l->at_unit);
	return true;
}

/* Set once one name was read by the system call: plain loads are used only after that. */
static atomic_bool is_proved;
/* Whether this is the process's first thread.  0: not asked yet, else 1 or 2. */
static __thread unsigned char first_thread __attribute__((tls_model("initial-exec")));

static bool may_load(const void *state)
{
	if (!atomic_load_explicit(&is_proved, memory_order_relaxed))
		return false;
	if (!first_thread)
		first_thread = syscall(SYS_gettid) == getpid() ? 1 : 2;
	return (cl_python.is_program && first_thread == 1) || cl_python.running_state() == state;
}

/* Reads @n bytes: by loads where they are safe. */
static bool get(bool load, uint64_t address, void *to, size_t n)
{
	if (!load)
		return cl_python_read(address, to, n);
	memcpy(to, (const void *)(uintptr_t)address, n);
	return true;
}

/* What is read of a code object, and of its file's name. */
enum { FILE_HEAD = 72, FILE_END = 24 };
struct identity_read {
	char what[GUARD_MOST], head[FILE_HEAD];
	uint64_t end[FILE_END / 8];
};

static size_t guard_size(void)
{
	return cl_python.layout.code_file + 24u - cl_python.layout.code_flags;
}

/* Returns the number of bytes of the text that begins with @head; *state says of which kind they are. */
static uint64_t text_bytes(const char *head, uint32_t *state)
{
	memcpy(state, head + TEXT_STATE, sizeof *state);
	*state >>= TEXT_KIND;
	return (word_in(head, TEXT_LENGTH) & INT32_MAX) * (*state & 7);
}

/*
 * Returns true if a text of Python's can have this length and state.  False: it is damaged, or just being changed, and
 * what the one says of its letters does not hold for the other.
 */
static bool is_sound(uint64_t length, uint32_t state)
{
	uint32_t kind = state & 7;

	if (!(state & 8) /* compact */ || length > INT32_MAX)
		return false;
	return kind == 1 || (!(state & 16) /* ASCII */ && (kind == 2 || kind == 4));
}

static uint64_t identity_hash(const struct identity_read *read)
{
	const struct cl_python_layout *l = &cl_python.layout;
	uint32_t flags, first, state;
	uint64_t hash = 1;

	memcpy(&flags, read->what, sizeof flags);
	memcpy(&first, read->what + l->code_first - l->code_flags, sizeof first);
	mix(&hash, flags | (uint64_t)first << 32);
	for (size_t at = guard_size() - 24; at < guard_size(); at += 8)
		mix(&hash, word_in(read->what, at));
	mix(&hash, text_bytes(read->head, &state));
	for (int i = 0; i < FILE_END / 8; i++)
		mix(&hash, read->end[i]);
	return hash;
}

/*
 * The code object of a module or of a notebook's cell is freed when it has run, and the next one mostly gets
 * the same addresses.  So does the code of a function that is defined anew.
 */
static bool identify(bool load, uint64_t code, struct identity *is)
{
	const struct cl_python_layout *l = &cl_python.layout;
	struct identity_read read = { .end = { 0 } };
	uint32_t first, state;
	uint64_t bytes;

	if (!get(load, code + l->code_flags, read.what, guard_size()))
		return false;
	is->file = word_in(read.what, guard_size() - 24);
	if (!get(load, is->file, read.head, l->ascii) || word_in(read.head, TYPE) != cl_python.text_type)
		return false;
	bytes = text_bytes(read.head, &state);
	is->n = bytes < FILE_END ? (uint32_t)bytes : FILE_END;
	is->end = is->file + (state & 16 ? l->ascii : l->compact) + bytes - is->n;
	if (!is_sound(word_in(read.head, TEXT_LENGTH), state) || !get(load, is->end, read.end, is->n))
		return false;
	is->hash = identity_hash(&read);
	/* code that the interpreter has put between a class and its __init__(): it has no line, and one name for all */
	memcpy(&first, read.what + l->code_first - l->code_flags, sizeof first);
	is->is_own = !first && is->file == word_in(read.what, (size_t)l->code_name - l->code_flags);
	return true;
}

/* Returns true if the code objects of @guess are what they were: read some at a time. */
static bool are_identical(const struct guess *guess)
{
	enum { AT_ONCE = 4 };
	const struct cl_python_layout *l = &cl_python.layout;
	struct identity_read read[AT_ONCE];
	struct iovec local[3 * AT_ONCE], remote[3 * AT_ONCE];
	uint32_t in[AT_ONCE], n = 0;
	int was = errno;

	for (uint32_t i = 0; i < guess->n; i++) {
		const struct identity *is = &guess->is[i];
		size_t wanted = 0;
		ssize_t got;

		if (guess->code[i]) {
			local[3 * n] = (struct iovec){ read[n].what, guard_size() };
			remote[3 * n] = (struct iovec){ (void *)(uintptr_t)(guess->code[i] + l->code_flags), guard_size() };
			local[3 * n + 1] = (struct iovec){ read[n].head, l->ascii };
			remote[3 * n + 1] = (struct iovec){ (void *)(uintptr_t)is->file, l->ascii };
			memset(read[n].end, 0, sizeof read[n].end);
			local[3 * n + 2] = (struct iovec){ read[n].end, is->n };
			remote[3 * n + 2] = (struct iovec){ (void *)(uintptr_t)is->end, is->n };
			in[n++] = i;
		}
		if (!n || (n < AT_ONCE && i + 1 < guess->n))
			continue;
		for (uint32_t k = 0; k < 3 * n; k++)
			wanted += local[k].iov_len;
		got = process_vm_readv(getpid(), local, 3ul * n, remote, 3ul * n, 0);
		errno = was;
		if (got != (ssize_t)wanted)
			return false;
		for (; n; n--)
			if (identity_hash(&read[n - 1]) != guess->is[in[n - 1]].hash)
				return false;
	}
	return true;
}

static void add_place(struct cl_python_places *places, const struct identity *is, const struct cl_python_place *place)
{
	if (is->is_own)
		return;
	mix(&places->hash, is->hash);
	mix(&places->hash, place->code);
	mix(&places->hash, place->at);
	places->place[places->n++] = *place;
}

/* True if @state is not that of the interpreter which this thread runs. */
static bool is_of_another(const void *state)
{
	return cl_python.check && cl_python.check() && cl_python.running_state() != state;
}

/*
 * Follows the frames from @frame on.  Returns false if one can't be read.  @seen and @now are NULL if
 * they may be loaded; else *now becomes the next guess.
 */
static bool walk(struct cl_python_places *places, const struct guess *guess, const struct seen *seen,
		 struct guess *now, uint64_t frame, unsigned int max)
{
	const struct cl_python_layout *l = &cl_python.layout;
	char own[FRAME_MOST];

	/* frames of the interpreter's own lie between: not more than one for each */
	for (uint32_t i = 0; frame && places->n < max && i < 2 * CL_PYTHON_FRAMES + 2; i++) {
		struct cl_python_place place = { .code = 0 };
		struct identity is = { .n = 0 };
		const char *its = own;

		if (!seen)
			its = (const char *)(uintptr_t)frame;
		else if (i < seen->frames && guess->frame[i] == frame)
			its = seen->frame[i];
		else if (!cl_python_read(frame, own, l->frame_size))
			return false;
		if (place_of(l, its, &place)) {
			if (!identify(!seen, place.code, &is))
				return false;
			add_place(places, &is, &place);
		}
		if (now && i < GUESSED) {
			now->frame[i] = frame;
			now->code[i] = place.code;
			now->is[i] = is;
			now->n = i + 1;
		}
		frame = word_in(its, l->frame_previous);
	}
	return true;
}

/* Returns true if all frames are those of the last time, whatever instruction they are at now. */
static bool are_as_guessed(struct cl_python_places *places, const struct guess *guess, const struct seen *seen,
			   uint64_t frame, unsigned int max)
{
	const struct cl_python_layout *l = &cl_python.layout;
	uint32_t i;

	if (!guess->n || guess->n != seen->frames)
		return false;
	for (i = 0; i < guess->n && frame == guess->frame[i] && places->n < max; i++) {
		struct cl_python_place place = { .code = 0 };

		if (place_of(l, seen->frame[i], &place))
			add_place(places, &guess->is[i], &place);
		if (place.code != guess->code[i])
			break;
		frame = word_in(seen->frame[i], l->frame_previous);
	}
	if (i == guess->n && (!frame || places->n == max) && are_identical(guess))
		return true;
	places->n = 0;
	places->hash = 1;
	return false;
}

static bool load_places(struct cl_python_places *places, const char *state, unsigned int max)
{
	const struct cl_python_layout *l = &cl_python.layout;
	uint64_t frame = word_in(state, l->state_frame);

	if (l->through_cframe && frame)
		frame = word_in((const char *)(uintptr_t)frame, l->cframe_frame);
	return walk(places, NULL, NULL, NULL, frame, max);
}

static bool read_places(struct cl_python_places *places, uint64_t state, unsigned int max, struct guess *guess)
{
	const struct cl_python_layout *l = &cl_python.layout;
	struct guess now = { .n = 0 };
	struct seen seen;
	uint64_t frame;
	bool whole;

	read_guessed(l, state, guess, &seen);
	if (!seen.has_first)
		return false;
	frame = seen.first;
	if (l->through_cframe && seen.has_through)
		frame = seen.through;
	else if (l->through_cframe && frame && !cl_python_read(seen.first + l->cframe_frame, &frame, sizeof frame))
		return false;
	if (are_as_guessed(places, guess, &seen, frame, max))
		return true;
	whole = walk(places, guess, &seen, &now, frame, max);
	now.cframe = l->through_cframe ? seen.first : 0;
	*guess = now;
	return whole;
}

/* As read_places(), with this thread's guess; a signal handler that interrupts it guesses nothing. */
static bool guess_places(struct cl_python_places *places, uint64_t state, unsigned int max)
{
	struct guess none = { .n = 0 };
	bool whole;

	if (last_is_busy)
		return read_places(places, state, max, &none);
	last_is_busy = true;
	atomic_signal_fence(memory_order_seq_cst);
	whole = read_places(places, state, max, &last);
	atomic_signal_fence(memory_order_seq_cst);
	last_is_busy = false;
	return whole;
}

void cl_python_places(struct cl_python_places *places, unsigned int max)
{
	const char *state = cl_python.this_state();

	places->n = 0;
	places->hash = 1;
	places->unread = false;
	if (max > CL_PYTHON_FRAMES)
		max = CL_PYTHON_FRAMES;
	if (!state)
		return;
	/* an unknown version is not guessed at; the report says that its frames were not read */
	if (cl_python.unreadable || is_of_another(state))
		places->unread = true;
	else if (may_load(state))
		places->unread = !load_places(places, state, max);
	else
		places->unread = !guess_places(places, (uint64_t)(uintptr_t)state, max);
	if (places->unread)
		places->n = 0;
}

/* -------------------------------------------------------------------------- names */
static size_t put_utf8(char *to, uint32_t code)
{
	if (code < 0x80) {
		to[0] = (char)code;
		return 1;
	}
	/* a byte of a file's name that is no UTF-8, as Python keeps it */
	if (code >= 0xdc80 && code <= 0xdcff) {
		to[0] = (char)code;
		return 1;
	}
	if (code < 0x800) {
		to[0] = (char)(0xc0 | code >> 6);
		to[1] = (char)(0x80 | (code & 0x3f));
		return 2;
	}
	if (code < 0x10000) {
		to[0] = (char)(0xe0 | code >> 12);
		to[1] = (char)(0x80 | (code >> 6 & 0x3f));
		to[2] = (char)(0x80 | (code & 0x3f));
		return 3;
	}
	to[0] = (char)(0xf0 | (code >> 18 & 7));
	to[1] = (char)(0x80 | (code >> 12 & 0x3f));
	to[2] = (char)(0x80 | (code >> 6 & 0x3f));
	to[3] = (char)(0x80 | (code & 0x3f));
	return 4;
}

/* Writes the text at @address, or its start, or its @end, in UTF-8. */
static __attribute__((noinline)) bool read_text(uint64_t address, char to[CL_PYTHON_TEXT + 1], bool end)
{
	const struct cl_python_layout *l = &cl_python.layout;
	char head[72], text[4 * CL_PYTHON_TEXT];
	uint32_t state, kind, length, most, n = 0;
	uint64_t all, first = 0;

	if (!cl_python_read(address, head, l->ascii) || word_in(head, TYPE) != cl_python.text_type)
		return false;
	all = word_in(head, TEXT_LENGTH);
	memcpy(&state, head + TEXT_STATE, sizeof state);
	state >>= TEXT_KIND;
	kind = state & 7;
	if (!is_sound(all, state))
		return false;
	/* at worst, each letter is as many bytes as UTF-8 can have; what says that it is ASCII has one for each */
	most = state & 16 ? CL_PYTHON_TEXT : CL_PYTHON_TEXT / (kind == 4 ? 4 : kind + 1);
	length = all < most ? (uint32_t)all : most;
	if (end)
		first = all - length;
	address += (state & 16 ? l->ascii : l->compact) + first * kind;
	if (length && !cl_python_read(address, text, (size_t)length * kind))
		return false;
	for (uint32_t i = 0; i < length; i++) {
		uint32_t code = 0;

		memcpy(&code, text + (size_t)i * kind, kind);
		if (state & 16 && code >= 0x80) /* it is not ASCII all the same */
			code = '?';
		n += (uint32_t)put_utf8(to + n, code ? code : '?');
	}
	to[n] = 0;
	if (first && n > 3) {
		/* no part of a letter behind the dots */
		uint32_t from = 3;

		while ((to[from] & 0xc0) == 0x80)
			from++;
		memmove(to + 3, to + from, n - from + 1);
		memcpy(to, "...", 3);
	}
	return true;
}

/*
 * A line table is read from its start, so a place far behind the start of a long table costs milliseconds.
 * A process reads TABLES_MOST bytes of tables in all, and from then on only the first TABLE_START bytes of
 * each.  Places behind these have no line.
 */
enum { TABLE_START = 4096, TABLES_MOST = 16 << 20 };
static atomic_ulong tables_read;

struct line_table {
	struct cl_python_bytes bytes; /* the first member, so that its address is ours */
	uint64_t address, left, start;
	unsigned int at, n;
	bool cut; /* not its end */
	unsigned char some[1024];
};

static bool read_some(struct line_table *t)
{
	t->n = t->left < sizeof t->some ? (unsigned int)t->left : (unsigned int)sizeof t->some;
	if (t->address - t->start >= TABLE_START) {
		if (atomic_load_explicit(&tables_read, memory_order_relaxed) >= TABLES_MOST)
			return false;
		atomic_fetch_add_explicit(&tables_read, t->n, memory_order_relaxed);
	}
	return cl_python_read(t->address, t->some, t->n);
}

static int next_byte(struct cl_python_bytes *bytes)
{
	struct line_table *t = (struct line_table *)bytes;

	if (t->at == t->n) {
		t->at = 0;
		t->cut = t->cut || (t->left && !read_some(t));
		if (t->cut || !t->left) {
			t->n = 0;
			return -1;
		}
		t->address += t->n;
		t->left -= t->n;
	}
	return t->some[t->at++];
}

/* Not inlined: it needs much stack itself, as does read_text(). */
static __attribute__((noinline)) unsigned int read_line(uint64_t address, int first, int64_t offset)
{
	struct line_table table = { .address = address + BYTES_TEXT, .start = address + BYTES_TEXT };
	char head[BYTES_TEXT];
	unsigned int line;

	if (!cl_python_read(address, head, sizeof head) || word_in(head, TYPE) != cl_python.bytes_type)
		return 0;
	table.bytes.next = next_byte;
	table.left = word_in(head, BYTES_SIZE);
	if (table.left > 1 << 24 || offset < -2 || offset > INT32_MAX)
		return 0;
	line = cl_python_line(cl_python.layout.table, &table.bytes, first, (int)offset);
	return table.cut ? 0 : line;
}

bool cl_python_name(const struct cl_python_place *place, struct cl_python_name *name)
{
	const struct cl_python_layout *l = &cl_python.layout;
	char code[CODE_MOST];
	int32_t first;
	uint64_t start = l->at_unit ? 0 : place->code + l->code_start;

	if (!cl_python_read(place->code, code, sizeof code) || word_in(code, TYPE) != cl_python.code_type ||
	    !read_text(word_in(code, l->code_name), name->function, false) ||
	    !read_text(word_in(code, l->code_file), name->file, true))
		return false;
	memcpy(&first, code + l->code_first, sizeof first);
	name->line = read_line(word_in(code, l->code_lines), first, (int64_t)(place->at - start));
	atomic_store_explicit(&is_proved, true, memory_order_relaxed);
	return true;
}
