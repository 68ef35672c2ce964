/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the interpreter: see python_find.h. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shim/base/hot.h"
#include "shim/diag/python.h"
#include "shim/diag/python_find.h"

/* ------------------------------------------------------------- a version's structures */
static const struct cl_python_layout python_3_8 = {
	.state_frame = 24, .frame_size = 108, .frame_previous = 24, .frame_code = 32, .frame_at = 104,
	.at_unit = 1, .code_flags = 36, .code_first = 40, .code_file = 104, .code_name = 112, .code_lines = 120,
	.ascii = 48, .compact = 72, .table = CL_PYTHON_LNOTAB,
};
static const struct cl_python_layout python_3_10 = {
	.state_frame = 24, .frame_size = 100, .frame_previous = 24, .frame_code = 32, .frame_at = 96,
	.at_unit = 2, .code_flags = 36, .code_first = 40, .code_file = 104, .code_name = 112, .code_lines = 120,
	.ascii = 48, .compact = 72, .table = CL_PYTHON_RANGES,
};
static const struct cl_python_layout python_3_11 = {
	.state_frame = 56, .through_cframe = true, .cframe_frame = 8,
	.frame_size = 72, .frame_previous = 48, .frame_code = 32, .frame_at = 56, .frame_owner = 69,
	.owner_most = 2, .code_flags = 48, .code_first = 72, .code_file = 112, .code_name = 128, .code_lines = 136,
	.code_start = 184, .ascii = 48, .compact = 72, .table = CL_PYTHON_LOCATIONS,
};
static const struct cl_python_layout python_3_12 = {
	.state_frame = 56, .through_cframe = true, .cframe_frame = 0,
	.frame_size = 72, .frame_previous = 8, .frame_code = 0, .frame_at = 56, .frame_owner = 70,
	.owner_most = 2, .code_flags = 48, .code_first = 68, .code_file = 112, .code_name = 128, .code_lines = 136,
	.code_start = 192, .ascii = 40, .compact = 56, .table = CL_PYTHON_LOCATIONS,
};

/* ------------------------------------------------------------------- the interpreter */
CL_HOT_DATA atomic_int cl_python_state;
CL_HOT_DATA struct cl_python_interpreter cl_python;

bool cl_python_read(uint64_t address, void *to, size_t n)
{
	struct iovec local = { to, n }, remote = { (void *)(uintptr_t)address, n };
	int was = errno;
	bool whole = process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;

	errno = was;
	return whole;
}

/*
 * From 3.13 on the interpreter says where members lie: 8-byte words at the start of _PyRuntime, in
 * an order that differs between minor versions.
 */
static bool read_layout(struct cl_python_layout *layout, uint64_t runtime, unsigned int minor)
{
	/* words before the frame's ones, of a code object, of pyobject, of a text */
	static const uint8_t first[][5] = { { 19, 28, 34, 44, 67 }, { 22, 31, 39, 50, 77 } };
	const uint8_t *at = first[minor - 13];
	uint64_t word[81];
	const uint64_t *frame = word + at[1], *code = word + at[2], *text = word + at[4];

	if (!cl_python_read(runtime, word, sizeof word) || memcmp(word, "xdebugpy", 8) ||
	    word[1] >> 16 != (0x300u | minor) || word[2] /* free-threaded */)
		return false;
	if (word[at[3] + 1] != TYPE || text[1] != TEXT_STATE || text[2] != TEXT_LENGTH || text[3] != 40)
		return false;
	if (word[at[0] + 4] > 4096 || frame[5] > 120 || frame[1] > 112 || frame[2] > 112 || frame[3] > 112)
		return false;
	for (int i = 1; i <= 6; i++)
		if (code[i] > CODE_MOST - 8)
			return false;
	/* what read_guessed() reads of it at once: its flags stand before its number of arguments */
	if (code[6] < 4 || code[5] < code[6] || code[1] < code[5] || code[1] + 24 - code[6] + 4 > GUARD_MOST)
		return false;
	*layout = python_3_12;
	layout->through_cframe = false;
	layout->state_frame = (uint16_t)word[at[0] + 4];
	layout->frame_previous = (uint8_t)frame[1];
	layout->frame_code = (uint8_t)frame[2];
	layout->frame_at = (uint8_t)frame[3];
	layout->frame_owner = (uint8_t)frame[5];
	layout->frame_size = (uint8_t)(frame[5] + 1);
	layout->code_file = (uint16_t)code[1];
	layout->code_name = (uint16_t)code[3];
	layout->code_lines = (uint16_t)code[4];
	layout->code_first = (uint16_t)code[5];
	layout->code_flags = (uint16_t)(code[6] - 4);
	layout->code_start = (uint16_t)code[9];
	return layout->frame_owner && layout->code_start;
}

/*
 * Looks for an interpreter by the names of files.  Programs without one are spared dlsym(), which may
 * wait for a thread that is in a library's constructor.
 */
struct search {
	bool program;	 /* the program has "python" in its name */
	char name[1024]; /* of libpython; "": there is none */
};

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int look_at_object(struct dl_phdr_info *object, size_t size, void *data)
{
	struct search *search = data;

	(void)size;
	if (strncmp(last_part(object->dlpi_name), "libpython", 9) ||
	    strlen(object->dlpi_name) >= sizeof search->name)
		return 0;
	memcpy(search->name, object->dlpi_name, strlen(object->dlpi_name) + 1);
	return 1;
}

static int count_loads(struct dl_phdr_info *object, size_t size, void *data)
{
	(void)size;
	*(unsigned long long *)data = object->dlpi_adds;
	return 1;
}

static void look_at_program(struct search *search, bool *is_python)
{
	char path[1024];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

	path[n > 0 ? n : 0] = 0;
	search->program = strstr(last_part(path), "python") != NULL;
	*is_python = !strncmp(last_part(path), "python", 6);
}

/* Returns true if @function is in the program's own file.  One in a library may go when that is unloaded. */
static bool is_of_program(void *function)
{
	struct link_map *object = NULL;
	Dl_info info;

	return dladdr1(function, &info, (void **)&object, RTLD_DL_LINKMAP) && object && !object->l_name[0];
}

/* Returns false if this version, or this build of it, is not one that we can read. */
static bool find_layout(struct cl_python_interpreter *to, void *library, const char *version)
{
	uint64_t runtime = (uint64_t)(uintptr_t)dlsym(library, "_PyRuntime");
	unsigned int minor;

	to->code_type = (uint64_t)(uintptr_t)dlsym(library, "PyCode_Type");
	to->text_type = (uint64_t)(uintptr_t)dlsym(library, "PyUnicode_Type");
	to->bytes_type = (uint64_t)(uintptr_t)dlsym(library, "PyBytes_Type");
	if (!runtime || !to->code_type || !to->text_type || !to->bytes_type || strncmp(version, "3.", 2) != 0)
		return false;
	minor = (unsigned int)strtoul(version + 2, NULL, 10);
	if (minor < 12)
		memcpy(&to->check, &(void *){dlsym(library, "PyGILState_Check")}, sizeof to->check);
	memcpy(&to->running_state,
	       &(void *){dlsym(library, minor < 13 ? "_PyThreadState_UncheckedGet" : "PyThreadState_GetUnchecked")},
	       sizeof to->running_state);
	if (!to->running_state || (minor < 12 && !to->check))
		return false;
	switch (minor) {
	case 8:
	case 9:
		to->layout = python_3_8;
		return true;
	case 10:
		to->layout = python_3_10;
		return true;
	case 11:
		to->layout = python_3_11;
		return true;
	case 12:
		to->layout = python_3_12;
		return true;
	case 13:
	case 14:
		return read_layout(&to->layout, runtime, minor);
	default:
		return false;
	}
}

static bool find(struct cl_python_interpreter *to, const struct search *search)
{
	void *library = NULL, *function = NULL;
	const char *(*version)(void);

	/* we keep this reference, so that our addresses stay valid */
	if (search->name[0])
		library = dlopen(search->name, RTLD_NOLOAD | RTLD_LAZY);
	/* the program's own comes before that of a library */
	if (search->program)
		function = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
	if (function && is_of_program(function))
		library = RTLD_DEFAULT;
	else
		function = library ? dlsym(library, "PyGILState_GetThisThreadState") : NULL;
	if (!function)
		return false;
	/* copied as bytes, because ISO C has no cast from a data pointer to a function pointer */
	memcpy(&to->this_state, &function, sizeof function);
	memcpy(&version, &(void *){dlsym(library, "Py_GetVersion")}, sizeof version);
	if (!version)
		return false;
	to->unreadable = !find_layout(to, library, version());
	return true;
}

void cl_python_look(void)
{
	static _Atomic unsigned long long seen;
	unsigned long long loaded = 0;
	struct search search = { .program = false };
	struct cl_python_interpreter local = { .check = NULL };
	int was = CL_PYTHON_NONE;

	if (atomic_load_explicit(&cl_python_state, memory_order_relaxed) != CL_PYTHON_NONE)
		return;
	dl_iterate_phdr(count_loads, &loaded);
	if (loaded == atomic_load_explicit(&seen, memory_order_relaxed))
		return;
	dl_iterate_phdr(look_at_object, &search);
	look_at_program(&search, &local.is_program);
	/* each thread looks for itself, and the first one's answer is taken: see driver.c */
	if (find(&local, &search) &&
	    atomic_compare_exchange_strong_explicit(&cl_python_state, &was, CL_PYTHON_BEING_FOUND,
						    memory_order_relaxed, memory_order_relaxed)) {
		cl_python = local;
		/* release: a thread that sees it set sees all of cl_python */
		atomic_store_explicit(&cl_python_state, CL_PYTHON_FOUND, memory_order_release);
	}
	atomic_store_explicit(&seen, loaded, memory_order_relaxed);
}
