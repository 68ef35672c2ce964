/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that looks like CPython 3.14: it has the functions and structures that the library reads,
 * with members where 3.14.10 has them.  So that version's layout is tested where no such
 * interpreter is.  Its thread runs inner(), called by outer(), in a process that never closes a block.
 *
 *   fake_python VERSION
 *
 * VERSION is what Py_GetVersion() says.  Only 3.14's structures are there, and with a "t" at the end
 * those of a build without the GIL.
 */
#include "bug.h"

#include <stdint.h>

void *PyGILState_GetThisThreadState(void);
void *PyThreadState_GetUnchecked(void);
void *_PyThreadState_UncheckedGet(void);
int PyGILState_Check(void);
const char *Py_GetVersion(void);
uint64_t _PyRuntime[128];
char PyCode_Type[8], PyUnicode_Type[8], PyBytes_Type[8];

enum {
	STATE_FRAME = 72,
	FRAME_CODE = 0, FRAME_PREVIOUS = 8, FRAME_AT = 56, FRAME_OWNER = 74,
	CODE_ARGUMENTS = 52, CODE_FIRST = 68, CODE_FILE = 112, CODE_NAME = 120, CODE_QUALNAME = 128,
	CODE_LINES = 136, CODE_START = 208,
	TEXT_LENGTH = 16, TEXT_STATE = 32, TEXT_ASCII = 40,
	BYTES_SIZE = 16, BYTES_TEXT = 32,
	BORROWED = 1, INTERPRETER = 3, /* the mark of a reference, the owner of a frame */
};

static const char *version;
static _Alignas(16) char state[256], frame[3][80], code[2][256], texts[3][64], lines[64];

/* NULL outside of main(), which is what the library sees that is loaded before */
void *PyGILState_GetThisThreadState(void)
{
	return version ? state : NULL;
}

/* another thread has the GIL: the library may load nothing */
void *PyThreadState_GetUnchecked(void)
{
	return NULL;
}

void *_PyThreadState_UncheckedGet(void)
{
	return state;
}

int PyGILState_Check(void)
{
	return 1;
}

const char *Py_GetVersion(void)
{
	return version;
}

static void put(char *to, uint64_t word)
{
	memcpy(to, &word, sizeof word);
}

static void *text(int i, const char *is)
{
	uint32_t interned = 3, kind = 1 << 2, compact = 1 << 5, ascii = 1 << 6;
	uint32_t behind = 0xabcd0000; /* of these bits the interpreter sets none */
	uint32_t its = interned | kind | compact | ascii | behind;

	put(texts[i] + 8, (uintptr_t)PyUnicode_Type);
	put(texts[i] + TEXT_LENGTH, strlen(is));
	memcpy(texts[i] + TEXT_STATE, &its, sizeof its);
	memcpy(texts[i] + TEXT_ASCII, is, strlen(is));
	return texts[i];
}

static void make_code(int i, const char *name, uint32_t first)
{
	put(code[i] + 8, (uintptr_t)PyCode_Type);
	memcpy(code[i] + CODE_FIRST, &first, sizeof first);
	put(code[i] + CODE_FILE, (uintptr_t)texts[2]);
	put(code[i] + CODE_NAME, (uintptr_t)text(i, name));
	put(code[i] + CODE_QUALNAME, (uintptr_t)texts[i]);
	put(code[i] + CODE_LINES, (uintptr_t)lines);
}

/* The words by which an interpreter says where its members are: those that the library reads. */
static void make_runtime(void)
{
	const struct {
		unsigned int word;
		uint64_t is;
	} words[] = {
		{ 1, 0x030e02f0 }, { 2, version[strlen(version) - 1] == 't' }, { 22 + 4, STATE_FRAME },
		{ 31 + 1, FRAME_PREVIOUS }, { 31 + 2, FRAME_CODE }, { 31 + 3, FRAME_AT }, { 31 + 5, FRAME_OWNER },
		{ 39 + 1, CODE_FILE }, { 39 + 2, CODE_NAME }, { 39 + 3, CODE_QUALNAME }, { 39 + 4, CODE_LINES },
		{ 39 + 5, CODE_FIRST }, { 39 + 6, CODE_ARGUMENTS }, { 39 + 9, CODE_START }, { 50 + 1, 8 },
		{ 77 + 1, TEXT_STATE }, { 77 + 2, TEXT_LENGTH }, { 77 + 3, TEXT_ASCII },
	};

	memcpy(_PyRuntime, "xdebugpy", 8);
	for (unsigned int i = 0; i < sizeof(words) / sizeof(*words); i++)
		_PyRuntime[words[i].word] = words[i].is;
}

static void make_frames(void)
{
	/* an entry of 8 instructions, without columns, five lines on */
	static const unsigned char table[] = { 0x80 | 13 << 3 | 7, 5 << 1 };

	text(2, "fake.py");
	put(lines + 8, (uintptr_t)PyBytes_Type);
	put(lines + BYTES_SIZE, sizeof table);
	memcpy(lines + BYTES_TEXT, table, sizeof table);
	make_code(0, "inner", 10);
	make_code(1, "outer", 20);
	put(state + STATE_FRAME, (uintptr_t)frame[0]);
	put(frame[0] + FRAME_CODE, (uintptr_t)code[0] | BORROWED);
	put(frame[0] + FRAME_AT, (uintptr_t)code[0] + CODE_START + 4);
	put(frame[0] + FRAME_PREVIOUS, (uintptr_t)frame[1]);
	frame[1][FRAME_OWNER] = INTERPRETER;
	put(frame[1] + FRAME_PREVIOUS, (uintptr_t)frame[2]);
	put(frame[2] + FRAME_CODE, (uintptr_t)code[1]);
	put(frame[2] + FRAME_AT, (uintptr_t)code[1] + CODE_START + 4);
}

int main(int argc, char **argv)
{
	CUipcMemHandle handle;
	CUdeviceptr block;
	int to[2], from[2], status;
	char done = 0;
	pid_t child;

	if (argc != 2 || pipe(to) || pipe(from))
		return 3;
	version = argv[1];
	make_runtime();
	make_frames();
	child = fork();
	if (child < 0)
		return 3;
	if (!child) {
		close(to[1]);
		close(from[0]);
		receive(to[0], &handle, sizeof handle);
		use_gpu();
		CHECK(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		pass(from[1], &done, 1);
		return 0;
	}
	use_gpu();
	CHECK(cuMemAlloc(&block, 1024));
	CHECK(cuIpcGetMemHandle(&handle, block));
	pass(to[1], &handle, sizeof handle);
	receive(from[0], &done, 1);
	if (waitpid(child, &status, 0) != child || status)
		return 3;
	CHECK(cuMemFree(block));
	return 0;
}
