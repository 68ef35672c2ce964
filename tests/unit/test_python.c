/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python's frames (python.h), of a fake interpreter in this program: CPython 3.10, as far as a thread's
 * state, frames, code objects and strings go.  So the test can damage them and put them where nothing is
 * mapped.  tests/report/python.bats has real interpreters.
 *
 * The line tables of all versions (python_lines.h) are those that real interpreters make.
 */
#include "tests/unit/report_data.h"

#include <sys/mman.h>

#include "shim/diag/python.h"
#include "shim/diag/python_lines.h"

/* ------------------------------------------------------------------ the interpreter */
struct object {
	uint64_t references;
	const void *type;
	int64_t size;
};
struct text {
	struct object object;
	int64_t hash;
	uint32_t state, unused;
	uint64_t wide;
	char letters[80];
};
struct table {
	struct object object;
	int64_t hash;
	unsigned char bytes[8];
};
struct code {
	uint64_t references;
	const void *type;
	int32_t counts[5], flags, first_line;
	const void *parts[7];
	const struct text *file, *name;
	const struct table *lines;
	uint64_t unused[5];
};
struct frame {
	struct object object;
	const struct frame *back;
	const struct code *code;
	uint64_t unused[7];
	int32_t at;
};
struct state {
	uint64_t unused[3];
	const struct frame *frame;
};

/* The symbols that a program finds, as libpython has them. */
char PyCode_Type, PyUnicode_Type, PyBytes_Type, _PyRuntime;
void *PyGILState_GetThisThreadState(void);
void *_PyThreadState_UncheckedGet(void);
int PyGILState_Check(void);
const char *Py_GetVersion(void);

static void *this_state, *running_state;
static int check;

void *PyGILState_GetThisThreadState(void)
{
	return this_state;
}
void *_PyThreadState_UncheckedGet(void)
{
	return running_state;
}
int PyGILState_Check(void)
{
	return check;
}
const char *Py_GetVersion(void)
{
	return "3.10.99 (played)";
}

enum { ASCII = 1 << 2 | 1 << 5 | 1 << 6, LATIN = 1 << 2 | 1 << 5, WIDE = 2 << 2 | 1 << 5 };
#define TEXT(string) { .object = { 1, &PyUnicode_Type, sizeof(string) - 1 }, .state = ASCII, .letters = string }
static struct text file_name = TEXT("/home/me/trainer.py"), inner_name = TEXT("load_batch"),
		   outer_name = TEXT("main");
static struct table lines = { .object = { 1, &PyBytes_Type, 4 }, .bytes = { 4, 0, 6, 2 } };
static struct code inner_code = { .type = &PyCode_Type, .flags = 3, .first_line = 10, .file = &file_name,
				  .name = &inner_name, .lines = &lines },
		   outer_code = { .type = &PyCode_Type, .flags = 3, .first_line = 20, .file = &file_name,
				  .name = &outer_name, .lines = &lines };
static struct frame outer = { .code = &outer_code, .at = 1 }, inner = { .back = &outer, .code = &inner_code, .at = 3 };
static struct state thread_state = { .frame = &inner };

static void *not_mapped(void)
{
	void *at = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(at, 8192);
	return at;
}

/* ------------------------------------------------------------------ what is recorded */
/* Shares and frees a block.  Returns the stack that was recorded for the export. */
__attribute__((noinline)) static uint32_t share(struct cl_view *view)
{
	struct cl_view_block block;
	static uint32_t shared;
	CUipcMemHandle handle;

	CHECK_EQUAL(cl_memory_export(&handle, fake_alloc(1024, CONTEXT_A)), CUDA_SUCCESS);
	*view = own();
	CHECK(cl_view_block(view, shared++, &block));
	return block.export_stack;
}

static void check_frame(const struct cl_view *view, uint32_t stack, unsigned int index, const char *function,
			const char *file, unsigned int line)
{
	struct cl_view_python frame;

	CHECK(cl_view_python_frame(view, stack, index, &frame));
	CHECK(!strcmp(frame.function, function));
	CHECK(!strcmp(frame.file, file));
	CHECK_EQUAL(frame.line, line);
}

static void start_python(void)
{
	start_with(HOUR, CL_COLLECTOR_THREAD);
	this_state = &thread_state;
}

IN_A_CHILD(a_stack_has_the_frames_of_python_and_those_of_c)
{
	/* two lines in turn, without the GIL and then with it: by loads */
	void *const running[] = { NULL, NULL, NULL, NULL, &thread_state, &thread_state, &thread_state, &thread_state };
	const int at[] = { 3, 0, 3, 0, 3, 0, 3, 0 };
	uint32_t stack[8], words[8];
	struct cl_view view;
	bool unread;

	start_python();
	/* the compiler must not make two calls of this one */
	for (volatile int i = 0; i < 8; i++) {
		inner.at = at[i];
		running_state = running[i];
		stack[i] = share(&view);
		words[i] = cl_own.header->stack_words;
	}
	CHECK(stack[0] != stack[1]);
	CHECK_EQUAL(stack[2], stack[0]);
	CHECK_EQUAL(stack[3], stack[1]);
	CHECK_EQUAL(stack[6], stack[0]);
	CHECK_EQUAL(stack[7], stack[1]);
	CHECK_EQUAL(words[7], words[1]);
	CHECK(cl_view_stack_depth(&view, stack[0]) > 1);
	CHECK_EQUAL(cl_view_python_depth(&view, stack[0], &unread), 2);
	CHECK(!unread);
	check_frame(&view, stack[0], 0, "load_batch", "/home/me/trainer.py", 12);
	check_frame(&view, stack[0], 1, "main", "/home/me/trainer.py", 20);
	check_frame(&view, stack[1], 0, "load_batch", "/home/me/trainer.py", 10);
}

IN_A_CHILD(another_code_object_at_the_same_address)
{
	struct cl_view view;
	uint32_t first, second;

	start_python();
	inner_code.flags = 0; /* a notebook's cell */
	first = share(&view);
	file_name.letters[9] = 'b';
	second = share(&view);
	CHECK(first != second);
	check_frame(&view, first, 0, "load_batch", "/home/me/trainer.py", 12);
	check_frame(&view, second, 0, "load_batch", "/home/me/brainer.py", 12);
}

/* A function that is defined again: the frames before and after it are the same. */
IN_A_CHILD(another_function_at_the_same_address)
{
	struct cl_view view;
	uint32_t stack[3];

	start_python();
	for (volatile int i = 0; i < 3; i++) {
		inner_code.first_line = 10 + (i == 2);
		file_name.letters[9] = i == 1 ? 'b' : 't';
		stack[i] = share(&view);
	}
	check_frame(&view, stack[0], 0, "load_batch", "/home/me/trainer.py", 12);
	check_frame(&view, stack[1], 0, "load_batch", "/home/me/brainer.py", 12);
	check_frame(&view, stack[2], 0, "load_batch", "/home/me/trainer.py", 13);
}

/* What 3.13 puts between a class and its __init__(). */
IN_A_CHILD(code_of_the_interpreter_is_no_frame)
{
	struct cl_view view;
	uint32_t stack;

	start_python();
	inner_code.first_line = 0;
	inner_code.file = &inner_name;
	stack = share(&view);
	CHECK_EQUAL(cl_view_python_depth(&view, stack, NULL), 1);
	check_frame(&view, stack, 0, "main", "/home/me/trainer.py", 20);
}

/* Places far behind the start of a long table: the first ones have their line, the 600th has none. */
IN_A_CHILD(long_tables_are_read_so_much_and_no_more)
{
	enum { LONG = 100000 };
	static struct {
		struct object object;
		int64_t hash;
		unsigned char bytes[LONG];
	} longer = { .object = { 1, &PyBytes_Type, LONG } };
	struct cl_view_python frame;
	struct cl_view view;
	uint32_t stack = 0;

	start_python();
	for (int i = 0; i < LONG; i += 2) {
		longer.bytes[i] = 2;
		longer.bytes[i + 1] = 1;
	}
	inner_code.lines = (const struct table *)&longer;
	cl_python_limit = UINT64_MAX; /* this machine may be slow just now */
	for (volatile int i = 0; i < 600; i++) {
		inner.at = 40000 - i;
		stack = share(&view);
		if (i)
			continue;
		CHECK(cl_view_python_frame(&view, stack, 0, &frame));
		CHECK_EQUAL(frame.line, 10 + 40001);
	}
	CHECK(cl_view_python_frame(&view, stack, 0, &frame));
	CHECK_EQUAL(frame.line, 0);
	inner.at = 100;
	stack = share(&view);
	CHECK(cl_view_python_frame(&view, stack, 0, &frame));
	CHECK_EQUAL(frame.line, 10 + 101);
}

IN_A_CHILD(reading_names_takes_so_long_and_no_longer)
{
	struct cl_view view;
	bool unread;

	start_python();
	cl_python_limit = 1;
	share(&view); /* this takes longer than that */
	inner.at++;
	CHECK_EQUAL(cl_view_python_depth(&view, share(&view), &unread), 0);
	CHECK(unread);
}

/* Few stacks in turn, but more than have a place in the cache: their names are read again and again. */
IN_A_CHILD(names_of_so_many_stacks_are_read_and_no_more)
{
	enum { STACKS = 16384, PLACES = 3000, ENTRIES = 2 * PLACES };
	static struct {
		struct object object;
		int64_t hash;
		unsigned char bytes[ENTRIES];
	} longer = { .object = { 1, &PyBytes_Type, ENTRIES } };
	uint32_t at_least = 0, stack;
	struct cl_view view;
	bool unread;

	start_python();
	memset(longer.bytes, 1, sizeof(longer.bytes));
	inner_code.lines = (const struct table *)&longer;
	cl_python_limit = UINT64_MAX;
	for (volatile uint32_t i = 0; at_least < STACKS; i++) {
		CHECK(i < 2 * STACKS);
		inner.at = (int)(i % PLACES);
		stack = share(&view);
		if (cl_view_python_depth(&view, stack, &unread) != 2 || unread)
			break;
		at_least++;
	}
	/* no stack is in the cache before it is read, and each of the first ones is new */
	CHECK(at_least == STACKS);
	for (volatile uint32_t i = 0; i < PLACES && !unread; i++) {
		inner.at = (int)i;
		stack = share(&view);
		cl_view_python_depth(&view, stack, &unread);
	}
	CHECK(unread);
	CHECK_EQUAL(cl_view_python_depth(&view, stack, &unread), 0);
}

IN_A_CHILD(no_python_in_this_thread_or_turned_off)
{
	struct cl_view view;
	bool unread;

	start_python();
	this_state = NULL;
	CHECK_EQUAL(cl_view_python_depth(&view, share(&view), &unread), 0);
	CHECK(!unread);
	this_state = &thread_state;
	thread_state.frame = NULL;
	CHECK_EQUAL(cl_view_python_depth(&view, share(&view), &unread), 0);
	CHECK(!unread);
}

IN_A_CHILD(turned_off)
{
	struct cl_view view;
	uint32_t stack;

	start_python();
	cl_options.python.number = 0;
	stack = share(&view);
	CHECK(stack && !cl_view_python_depth(&view, stack, NULL));
}

/* A damaged structure cannot be read: the stack says so, and has no frame. */
static void is_unread(void)
{
	struct cl_view view;
	uint32_t stack = share(&view);
	bool unread;

	CHECK(cl_view_stack_depth(&view, stack) > 1);
	CHECK_EQUAL(cl_view_python_depth(&view, stack, &unread), 0);
	CHECK(unread);
}

IN_A_CHILD(a_state_that_is_not_mapped_any_more)
{
	start_python();
	this_state = not_mapped();
	is_unread();
}

IN_A_CHILD(frames_and_code_that_are_not_mapped)
{
	start_python();
	inner.back = not_mapped();
	is_unread();
	inner.back = NULL;
	inner.code = not_mapped();
	is_unread();
	thread_state.frame = not_mapped();
	is_unread();
}

IN_A_CHILD(what_does_not_say_that_it_is_code_or_text)
{
	start_python();
	inner_code.type = &PyBytes_Type;
	is_unread();
}

IN_A_CHILD(a_text_that_is_none)
{
	start_python();
	inner_name.object.type = &PyBytes_Type;
	is_unread();
}

IN_A_CHILD(frames_that_lead_in_a_circle)
{
	struct cl_view view;

	start_python();
	outer.back = &inner;
	cl_options.stack.number = 64;
	CHECK_EQUAL(cl_view_python_depth(&view, share(&view), NULL), CL_PYTHON_FRAMES);
}

/* A thread that runs a subinterpreter of 3.8 to 3.11: its state is another one than the key says. */
IN_A_CHILD(a_subinterpreter)
{
	struct cl_view view;
	bool unread;

	start_python();
	check = 1;
	running_state = NULL;
	is_unread();
	running_state = &thread_state;
	CHECK_EQUAL(cl_view_python_depth(&view, share(&view), &unread), 2);
	CHECK(!unread);
}

IN_A_CHILD(texts_of_other_letters_and_long_ones)
{
	static struct {
		struct text head;
		char letters[600];
	} longer = { .head = { .object = { 1, &PyUnicode_Type, 0 }, .state = ASCII } };
	struct cl_view_python frame;
	struct cl_view view;
	uint32_t stack;

	start_python();
	/* not ASCII: the letters come after three more words */
	inner_name.state = LATIN;
	inner_name.object.size = 3;
	memcpy(inner_name.letters + 24, "gr\xfc", 3);
	outer_name.state = WIDE;
	outer_name.object.size = 2;
	memcpy(outer_name.letters + 24, (uint16_t[]){ 0x3c9, 27 }, 4);
	stack = share(&view);
	check_frame(&view, stack, 0, "gr\xc3\xbc", "/home/me/trainer.py", 12);
	check_frame(&view, stack, 1, "\xcf\x89?", "/home/me/trainer.py", 20);
	/* a byte that is no UTF-8 */
	memcpy(inner_name.letters + 24, (uint16_t[]){ 'a', 0xdce9 }, 4);
	inner_name.state = WIDE;
	inner_name.object.size = 2;
	inner.at = 0; /* else its name is known */
	stack = share(&view);
	check_frame(&view, stack, 0, "a\xe9", "/home/me/trainer.py", 10);
	inner.at = 3;

	longer.head.object.size = 500;
	memset(longer.head.letters, 'd', 500);
	memcpy(longer.head.letters + 495, "/x.py", 5);
	inner_code.file = &longer.head;
	stack = share(&view);
	CHECK(cl_view_python_frame(&view, stack, 0, &frame));
	CHECK_EQUAL(strlen(frame.file), CL_PYTHON_TEXT);
	CHECK(!strncmp(frame.file, "...ddd", 6) && !strcmp(frame.file + CL_PYTHON_TEXT - 5, "/x.py"));
}

/* What the text says of itself is wrong: no more is written than there is room for. */
IN_A_CHILD(texts_that_are_not_what_they_say)
{
	static struct {
		struct text head;
		char letters[600];
	} longer = { .head = { .object = { 1, &PyUnicode_Type, 600 }, .state = ASCII } };
	struct cl_view_python frame;
	struct cl_view view;
	uint32_t stack;

	start_python();
	/* letters that are not ASCII, as many as an ASCII text can have */
	memset(longer.head.letters, 0xfc, 600);
	inner_code.name = inner_code.file = &longer.head;
	stack = share(&view);
	CHECK_EQUAL(cl_view_python_depth(&view, stack, NULL), 2);
	CHECK(cl_view_python_frame(&view, stack, 0, &frame));
	CHECK_EQUAL(frame.line, 12);
	CHECK_EQUAL(strlen(frame.function), CL_PYTHON_TEXT);
	CHECK_EQUAL(strspn(frame.function, "?"), CL_PYTHON_TEXT);
	CHECK(!strncmp(frame.file, "...?", 4));
	check_frame(&view, stack, 1, "main", "/home/me/trainer.py", 20);
	/* the ASCII bit, and letters of two or four bytes, or of none */
	inner_code.file = &file_name;
	for (int kind = 0; kind < 8; kind++) {
		if (kind == 1)
			continue;
		longer.head.state = (uint32_t)kind << 2 | 1 << 5 | 1 << 6;
		inner.at = kind % 4; /* else its name is known */
		is_unread();
	}
	/* a length that no text has */
	longer.head.state = ASCII;
	longer.head.object.size = -1;
	inner.at = 0;
	is_unread();
	inner_code.name = &inner_name;
	inner_code.file = &longer.head;
	is_unread();
}

/* ------------------------------------------------------------------------------ lines */
struct bytes {
	struct cl_python_bytes bytes;
	const unsigned char *at, *end;
};

static int next(struct cl_python_bytes *bytes)
{
	struct bytes *b = (struct bytes *)bytes;

	return b->at < b->end ? *b->at++ : -1;
}

static unsigned int line(enum cl_python_table table, const char *text, size_t n, int first, int offset)
{
	struct bytes b = { { next }, (const unsigned char *)text, (const unsigned char *)text + n };

	return cl_python_line(table, &b.bytes, first, offset);
}
#define LINE(table, text, first, offset) line(table, text, sizeof(text) - 1, first, offset)

static void lines_of_each_version(void **unused)
{
	(void)unused;
	/* 3.8: a second line at 8, a third, which goes back, at 24 */
	assert_int_equal(LINE(CL_PYTHON_LNOTAB, "\x08\x01\x10\xff", 5, -1), 5);
	assert_int_equal(LINE(CL_PYTHON_LNOTAB, "\x08\x01\x10\xff", 5, 6), 5);
	assert_int_equal(LINE(CL_PYTHON_LNOTAB, "\x08\x01\x10\xff", 5, 8), 6);
	assert_int_equal(LINE(CL_PYTHON_LNOTAB, "\x08\x01\x10\xff", 5, 100), 5);
	assert_int_equal(LINE(CL_PYTHON_LNOTAB, "\x08", 5, 100), 5);
	/* 3.10: ranges, one of them without a line */
	assert_int_equal(LINE(CL_PYTHON_RANGES, "\x08\x01\x04\x80\x10\x02", 5, 0), 6);
	assert_int_equal(LINE(CL_PYTHON_RANGES, "\x08\x01\x04\x80\x10\x02", 5, 8), 0);
	assert_int_equal(LINE(CL_PYTHON_RANGES, "\x08\x01\x04\x80\x10\x02", 5, 12), 8);
	assert_int_equal(LINE(CL_PYTHON_RANGES, "\x08\x01\x04\x80\x10\x02", 5, 99), 0);
	/* 3.11: one line down in a short form, a long form with +70 lines, no line, no column with -1 */
	static const char table[] = "\xdb\x01\x02" "\xf0\x4c\x02\x00\x01\x02" "\xf8" "\xe8\x03";
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, table, 5, 0), 6);
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, table, 5, 7), 6);
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, table, 5, 8), 76);
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, table, 5, 10), 0);
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, table, 5, 12), 75);
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, table, 5, 14), 0);
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, "", 5, 0), 0);
	/* a number without an end */
	assert_int_equal(LINE(CL_PYTHON_LOCATIONS, "\xf0\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f", 5, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_stack_has_the_frames_of_python_and_those_of_c),
		cmocka_unit_test(another_code_object_at_the_same_address),
		cmocka_unit_test(another_function_at_the_same_address),
		cmocka_unit_test(code_of_the_interpreter_is_no_frame),
		cmocka_unit_test(long_tables_are_read_so_much_and_no_more),
		cmocka_unit_test(reading_names_takes_so_long_and_no_longer),
		cmocka_unit_test(names_of_so_many_stacks_are_read_and_no_more),
		cmocka_unit_test(no_python_in_this_thread_or_turned_off),
		cmocka_unit_test(turned_off),
		cmocka_unit_test(a_state_that_is_not_mapped_any_more),
		cmocka_unit_test(frames_and_code_that_are_not_mapped),
		cmocka_unit_test(what_does_not_say_that_it_is_code_or_text),
		cmocka_unit_test(a_text_that_is_none),
		cmocka_unit_test(frames_that_lead_in_a_circle),
		cmocka_unit_test(a_subinterpreter),
		cmocka_unit_test(texts_of_other_letters_and_long_ones),
		cmocka_unit_test(texts_that_are_not_what_they_say),
		cmocka_unit_test(lines_of_each_version),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
