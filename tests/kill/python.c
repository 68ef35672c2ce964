/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kill test: the victim acts as a Python interpreter, so that its stacks have Python frames.  The test
 * chooses the offsets of the structures, as far as python.c asks a layout for them.
 */
#include <string.h>

#include "shim/diag/python.h"
#include "shim/diag/python_find.h"
#include "tests/kill/kill.h"

struct text {
	uint64_t references;
	const void *type;
	int64_t size, hash;
	uint32_t state, unused;
	char letters[24];
};
struct table {
	uint64_t references;
	const void *type;
	int64_t size, hash;
	unsigned char bytes[8];
};
struct code {
	uint64_t references;
	const void *type;
	int32_t flags, first_line;
	const struct text *file, *name;
	const struct table *lines;
	char unused[CODE_MOST];
};
struct frame {
	const struct frame *back;
	const struct code *code;
	int32_t at, unused;
};

static const char code_type, text_type, bytes_type;

enum { ASCII = 1 << 2 | 1 << 5 | 1 << 6, FIRST = 10, SECOND = 20 };
#define TEXT(string) { .type = &text_type, .size = sizeof(string) - 1, .state = ASCII, .letters = string }
static const struct text file_name = TEXT("/home/me/trainer.py"), inner_name = TEXT("load_batch"),
			 outer_name = TEXT("train");
static const struct table lines = { .type = &bytes_type, .size = 2, .bytes = { 8, 0 } };
static const struct code inner_code = { .type = &code_type, .flags = 2, .first_line = FIRST,
					.file = &file_name, .name = &inner_name, .lines = &lines },
			 outer_code = { .type = &code_type, .flags = 2, .first_line = SECOND,
					.file = &file_name, .name = &outer_name, .lines = &lines };
static const struct frame outer = { .code = &outer_code, .at = 1 },
			  inner = { .back = &outer, .code = &inner_code, .at = 1 };
static const struct frame *state = &inner;

static void *this_state(void)
{
	return &state;
}
static void *nobody_has_the_gil(void)
{
	return NULL;
}

void play_python(void)
{
	cl_python = (struct cl_python_interpreter){
		.this_state = this_state,
		.running_state = nobody_has_the_gil,
		.code_type = (uint64_t)(uintptr_t)&code_type,
		.text_type = (uint64_t)(uintptr_t)&text_type,
		.bytes_type = (uint64_t)(uintptr_t)&bytes_type,
		.layout = {
			.frame_size = sizeof(struct frame),
			.frame_previous = offsetof(struct frame, back),
			.frame_code = offsetof(struct frame, code),
			.frame_at = offsetof(struct frame, at),
			.at_unit = 2,
			.code_flags = offsetof(struct code, flags),
			.code_first = offsetof(struct code, first_line),
			.code_file = offsetof(struct code, file),
			.code_name = offsetof(struct code, name),
			.code_lines = offsetof(struct code, lines),
			.ascii = offsetof(struct text, letters),
			.compact = offsetof(struct text, letters),
			.table = CL_PYTHON_RANGES,
		},
	};
	atomic_store(&cl_python_state, CL_PYTHON_FOUND);
}

const char *look_at_python(const struct cl_view *view, uint32_t stack)
{
	bool unread;
	unsigned int n = cl_view_python_depth(view, stack, &unread);
	struct cl_view_python frame;

	if (unread)
		return "Python's frames are marked as unread";
	if (n && n != 2)
		return "a recorded stack has only a part of Python's frames";
	for (unsigned int i = 0; i < n; i++)
		if (!cl_view_python_frame(view, stack, i, &frame) || strcmp(frame.file, file_name.letters) ||
		    strcmp(frame.function, i ? outer_name.letters : inner_name.letters) ||
		    frame.line != (i ? SECOND : FIRST))
			return "a Python frame of a recorded stack is wrong";
	return NULL;
}

uint32_t words_of_text(const struct cl_view *view, uint32_t word)
{
	const uint64_t *head = cl_region_at(&view->region, CL_AT_STACKS + word * 8ull);

	return *head & 0xffff ? 0 : (uint32_t)(*head >> CL_TEXT_WORDS_SHIFT & 0xffff);
}
