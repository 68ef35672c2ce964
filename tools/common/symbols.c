/* SPDX-License-Identifier: Apache-2.0 */
/* Names of frames: see symbols.h. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/report/report_table.h"
#include "tools/common/libdw.h"
#include "tools/common/symbols.h"
#include "tools/common/text.h"

/* ------------------------------------------------------------------ JIT's maps */
/* No more than this of a map is read; entries beyond it have no names. */
#define MAP_MOST ((size_t)64 << 20)

struct map {
	struct map *next;
	struct cl_identity who;
	char *text; /* NULL: there is no map that can be trusted */
};

/* Returns when @who began, seconds since 1970; 0: not known. */
static int64_t started(const struct cl_identity *who)
{
	FILE *stat = fopen("/proc/stat", "re");
	long long boot = 0;
	char line[256];

	while (stat && !boot && fgets(line, sizeof(line), stat))
		if (sscanf(line, "btime %lld", &boot) != 1)
			boot = 0;
	if (stat)
		fclose(stat);
	return boot ? boot + (int64_t)who->start_time / sysconf(_SC_CLK_TCK) : 0;
}

static char *read_map(const struct cl_view_process *process)
{
	char path[64], *text = NULL;
	struct stat st;
	size_t n = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/tmp/perf-%u.map", process->who.pid);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return NULL;
	/*
	 * the map must be the process's own: not another user's, nor of an earlier process with
	 * this pid
	 */
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != process->uid ||
	    st.st_mtim.tv_sec + 2 < started(&process->who))
		goto out;
	text = malloc((size_t)st.st_size < MAP_MOST ? (size_t)st.st_size + 1 : MAP_MOST + 1);
	while (text && n < MAP_MOST && n < (size_t)st.st_size) {
		got = read(fd, text + n, ((size_t)st.st_size < MAP_MOST ? (size_t)st.st_size : MAP_MOST) - n);
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	if (text)
		text[n] = 0;
out:
	close(fd);
	return text;
}

/* "py::NAME:FILE" is Python's form; other names are used unchanged. */
static void take_name(struct cl_report_symbol *symbol, const char *name, size_t length)
{
	static const char python[] = "py::";
	const char *colon;

	if (length > sizeof(python) - 1 && !strncmp(name, python, sizeof(python) - 1)) {
		name += sizeof(python) - 1;
		length -= sizeof(python) - 1;
		colon = memchr(name, ':', length);
		if (colon) {
			snprintf(symbol->file, sizeof(symbol->file), "%.*s",
				 (int)(length - (size_t)(colon + 1 - name)), colon + 1);
			length = (size_t)(colon - name);
		}
	}
	snprintf(symbol->function, sizeof(symbol->function), "%.*s", (int)length, name);
}

/* A line is START SIZE NAME, in hexadecimal; a later entry replaces earlier ones at its place. */
static bool find_in_map(const char *text, uint64_t address, struct cl_report_symbol *symbol)
{
	bool found = false;

	while (*text) {
		size_t length = strcspn(text, "\n");
		char *end;
		uint64_t start = strtoull(text, &end, 16), size = strtoull(end, &end, 16);

		if (address - 1 >= start && address - 1 - start < size && end < text + length && *end == ' ') {
			take_name(symbol, end + 1, length - (size_t)(end + 1 - text));
			found = true;
		}
		text += length + (text[length] == '\n');
	}
	return found;
}

/* -------------------------------------------------------------------- modules */
struct module {
	struct module *next;
	char path[sizeof(((struct cl_view_frame *)0)->path)];
	uint8_t build_id[20];
	unsigned int build_id_length;
#ifdef HAVE_LIBDW
	Dwfl *dwfl;
	Dwfl_Module *found; /* NULL: its file is missing, or is another one */
	Dwarf_Addr bias;
#endif
};

struct cu_symbols {
	struct map *maps;
	struct module *modules;
	char *(*demangle)(const char *name, char *buffer, size_t *length, int *status);
};

struct cu_symbols *cu_symbols_new(void)
{
	struct cu_symbols *symbols = calloc(1, sizeof(*symbols));
	void *library;

	if (!symbols)
		return NULL;
	/* C++ names are demangled only if the C++ library is loaded anyway */
	library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
	if (library)
		*(void **)&symbols->demangle = dlsym(library, "__cxa_demangle");
	return symbols;
}

void cu_symbols_free(struct cu_symbols *symbols)
{
	while (symbols && symbols->maps) {
		struct map *map = symbols->maps;

		symbols->maps = map->next;
		free(map->text);
		free(map);
	}
	while (symbols && symbols->modules) {
		struct module *module = symbols->modules;

		symbols->modules = module->next;
#ifdef HAVE_LIBDW
		if (module->dwfl)
			cu_libdw.dwfl_end(module->dwfl);
#endif
		free(module);
	}
	free(symbols);
}

static bool resolve_by_map(struct cu_symbols *symbols, const struct cl_view *view, uint64_t address,
			   struct cl_report_symbol *symbol)
{
	struct cl_view_process process;
	struct map *map;

	cl_view_process(view, &process);
	for (map = symbols->maps; map; map = map->next)
		if (!memcmp(&map->who, &process.who, sizeof(process.who)))
			break;
	if (!map) {
		map = calloc(1, sizeof(*map));
		if (!map)
			return false;
		map->who = process.who;
		map->text = read_map(&process);
		map->next = symbols->maps;
		symbols->maps = map;
	}
	return map->text && find_in_map(map->text, address, symbol);
}

#ifdef HAVE_LIBDW
static Dwfl *begin(void)
{
	static Dwfl_Callbacks callbacks;

	callbacks.find_elf = cu_libdw.dwfl_build_id_find_elf;
	callbacks.find_debuginfo = cu_libdw.dwfl_standard_find_debuginfo;
	callbacks.section_address = cu_libdw.dwfl_offline_section_address;
	return cu_libdw.dwfl_begin(&callbacks);
}

/* Returns true if @module's file, which is open, is the one that the process had. */
static bool is_same(const struct module *module)
{
	const unsigned char *id;
	GElf_Addr at;
	int n = cu_libdw.dwfl_module_build_id(module->found, &id, &at);

	/* a text has but the beginning of one */
	return n > 0 && ((unsigned int)n == module->build_id_length ||
			 ((unsigned int)n > CL_REPORT_BUILD_ID && module->build_id_length == CL_REPORT_BUILD_ID)) &&
	       !memcmp(id, module->build_id, module->build_id_length);
}

static bool try_file(struct module *module, const char *path)
{
	/* the process chose the path: don't wait for a fifo */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0)
		return false;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return false;
	}
	module->dwfl = begin();
	if (module->dwfl) {
		cu_libdw.dwfl_report_begin(module->dwfl);
		module->found = cu_libdw.dwfl_report_offline(module->dwfl, path, path, fd);
		if (module->found)
			fd = -1; /* libdw owns it now */
		cu_libdw.dwfl_report_end(module->dwfl, NULL, NULL);
	}
	if (fd >= 0)
		close(fd);
	if (module->found && is_same(module) && cu_libdw.dwfl_module_getelf(module->found, &module->bias))
		return true;
	if (module->dwfl)
		cu_libdw.dwfl_end(module->dwfl);
	module->dwfl = NULL;
	module->found = NULL;
	return false;
}

static void open_module(struct module *module, const struct cl_view *view)
{
	struct cl_view_process process;
	char path[sizeof(module->path) + 32];

	if (!module->build_id_length || module->path[0] != '/' || !cu_has_libdw())
		return;
	if (try_file(module, module->path) || !view)
		return;
	cl_view_process(view, &process);
	/* in a container, or removed since: use the process's view of it, while it lives */
	snprintf(path, sizeof(path), "/proc/%u/root%s", process.who.pid, module->path);
	try_file(module, path);
}

/* Returns the innermost function that the compiler has inlined there; NULL: none. */
static const char *inlined_function(Dwarf_Die *unit, Dwarf_Addr address)
{
	Dwarf_Die *scopes = NULL;
	const char *name = NULL;
	int n = cu_libdw.dwarf_getscopes(unit, address, &scopes);

	for (int i = 0; i < n && !name && cu_libdw.dwarf_tag(&scopes[i]) != DW_TAG_subprogram; i++)
		if (cu_libdw.dwarf_tag(&scopes[i]) == DW_TAG_inlined_subroutine)
			name = cu_libdw.dwarf_diename(&scopes[i]);
	if (n > 0)
		free(scopes);
	return name;
}

static bool resolve_by_module(const struct cu_symbols *symbols, struct module *module, uint64_t offset,
			      struct cl_report_symbol *symbol)
{
	/* a return address is behind its call, which may end its line */
	Dwarf_Addr address = offset - 1 + module->bias, bias = 0;
	const char *name, *file, *inlined;
	Dwfl_Line *line;
	Dwarf_Die *unit;
	int number = 0;

	if (!module->found)
		return false;
	name = cu_libdw.dwfl_module_addrname(module->found, address);
	if (name) {
		int status = -1;
		char *readable = symbols->demangle && !strncmp(name, "_Z", 2) ?
					 symbols->demangle(name, NULL, NULL, &status) : NULL;

		snprintf(symbol->function, sizeof(symbol->function), "%s",
			 readable && !status ? readable : name);
		free(readable);
	}
	/* if no unit has the address, the nearest line is another function's */
	unit = cu_libdw.dwfl_module_addrdie(module->found, address, &bias);
	if (unit && cu_libdw.dwarf_haspc(unit, address - bias) != 1)
		unit = NULL;
	line = unit ? cu_libdw.dwfl_module_getsrc(module->found, address) : NULL;
	inlined = unit ? inlined_function(unit, address - bias) : NULL;
	if (inlined)
		snprintf(symbol->function, sizeof(symbol->function), "%s", inlined);
	file = line ? cu_libdw.dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
	if (file) {
		cu_path_join(cu_libdw.dwfl_line_comp_dir(line), file, symbol->file, sizeof(symbol->file));
		symbol->line = number > 0 ? (unsigned int)number : 0;
	}
	return name || file;
}
#endif

static struct module *module_of(struct cu_symbols *symbols, const struct cl_view *view,
				const struct cl_view_frame *frame)
{
	struct module *module;

	for (module = symbols->modules; module; module = module->next)
		if (module->build_id_length == frame->build_id_length &&
		    !memcmp(module->build_id, frame->build_id, frame->build_id_length) &&
		    !strcmp(module->path, frame->path))
			return module;
	module = calloc(1, sizeof(*module));
	if (!module)
		return NULL;
	snprintf(module->path, sizeof(module->path), "%s", frame->path);
	memcpy(module->build_id, frame->build_id, sizeof(module->build_id));
	module->build_id_length = frame->build_id_length;
#ifdef HAVE_LIBDW
	open_module(module, view);
#endif
	module->next = symbols->modules;
	symbols->modules = module;
	return module;
}

bool cu_symbols_resolve(void *data, const struct cl_view *view, const struct cl_view_frame *frame,
			struct cl_report_symbol *symbol)
{
	struct cu_symbols *symbols = data;
	struct module *module;

	memset(symbol, 0, sizeof(*symbol));
	if (!frame->path[0])
		return view && !frame->foreign && resolve_by_map(symbols, view, frame->address, symbol);
	module = module_of(symbols, view, frame);
#ifdef HAVE_LIBDW
	return module && resolve_by_module(symbols, module, frame->offset, symbol);
#else
	return module && false;
#endif
}

bool cu_symbols_resolve_early(void *data, const struct cl_view *view, const struct cl_view_frame *frame,
			      struct cl_report_symbol *symbol)
{
	if (!frame->path[0])
		return cu_symbols_resolve(data, view, frame, symbol);
	/* the file may be reachable only through the process */
	module_of(data, view, frame);
	return false;
}

/* -------------------------------------------------------- reports without names */
/* Copies a JSON string's or a report's text from @from up to @end, unescaped, to @to. */
static void unescape(char *to, size_t size, const char *from, const char *end)
{
	size_t n = 0;

	for (; from < end && n < size - 1; from++) {
		if (*from == '\\' && from + 1 < end && (from[1] == '\\' || from[1] == '"'))
			from++;
		to[n++] = *from;
	}
	to[n] = 0;
}

static void read_build_id(struct cl_view_frame *frame, const char *hex, const char *end)
{
	unsigned int byte;

	while (hex + 1 < end && frame->build_id_length < sizeof(frame->build_id) &&
	       sscanf(hex, "%2x", &byte) == 1) {
		frame->build_id[frame->build_id_length++] = (uint8_t)byte;
		hex += 2;
	}
}

/* Parses a Python frame: "      #N FUNCTION (FILE:LINE)", or without the line. */
static bool add_nearer_file(FILE *to, const char *line)
{
	const char *open = strstr(line, " (/"), *end = open ? strrchr(open, ')') : NULL, *colon;
	char path[1024], near[sizeof(path)];

	if (!end || !strncmp(line + strcspn(line, "#") + strcspn(line + strcspn(line, "#"), " "), " 0x", 3))
		return false;
	colon = memrchr(open, ':', (size_t)(end - open));
	if (!colon || colon[1 + strspn(colon + 1, "0123456789")] != ')')
		colon = end;
	snprintf(path, sizeof(path), "%.*s", (int)(colon - open - 2), open + 2);
	fprintf(to, "%.*s (%s%s", (int)(open - line), line, cu_path_from_here(path, near, sizeof(near)), colon);
	return true;
}

/* Parses "        #N ADDRESS (PATH+OFFSET) (BuildId: HEX)". */
static bool add_to_text(struct cu_symbols *symbols, FILE *to, const char *line)
{
	struct cl_view_frame frame = { .offset = 0 };
	struct cl_report_symbol symbol;
	const char *open, *plus, *id, *end;
	char near[sizeof(symbol.file)];

	if (line[strspn(line, " ")] != '#')
		return false;
	open = strstr(line, " (");
	id = open ? strstr(open, ") (BuildId: ") : NULL;
	end = id ? strchr(id + 12, ')') : NULL;
	plus = id ? memrchr(open, '+', (size_t)(id - open)) : NULL;
	if (!end || !plus)
		return add_nearer_file(to, line);
	unescape(frame.path, sizeof(frame.path), open + 2, plus);
	frame.offset = strtoull(plus + 1, NULL, 16);
	read_build_id(&frame, id + 12, end);
	if (!cu_symbols_resolve(symbols, NULL, &frame, &symbol))
		return false;
	fwrite(line, 1, (size_t)(open - line), to);
	if (symbol.function[0])
		fprintf(to, " in %s", symbol.function);
	if (symbol.file[0])
		fprintf(to, " %s:%u\n", cu_path_from_here(symbol.file, near, sizeof(near)), symbol.line);
	else if (symbol.function[0]) /* a name needs no build id */
		fprintf(to, "%.*s)\n", (int)(id - open), open);
	else
		fputs(open, to);
	return true;
}

static void put_json(FILE *to, const char *key, const char *value)
{
	fprintf(to, ",\"%s\":\"", key);
	for (; *value; value++)
		if (*value == '"' || *value == '\\')
			fprintf(to, "\\%c", *value);
		else if ((unsigned char)*value < ' ')
			fprintf(to, "\\u%04x", (unsigned char)*value);
		else
			fputc(*value, to);
	fputc('"', to);
}

/* Returns the end of the JSON string that begins at @s. */
static const char *string_end(const char *s)
{
	while (*s && *s != '"')
		s += *s == '\\' && s[1] ? 2 : 1;
	return s;
}

/*
 * Finds the first frame with a module in @line: ..."module":"PATH","offset":"0x...",
 * "build_id":"HEX"...  Returns its end, at a quote; NULL: there is none.
 */
static const char *next_frame(const char *line, struct cl_view_frame *frame)
{
	/* begin at the quote before it, so as not to read beyond a line that ends there */
	static const char module[] = "\"module\":\"", offset[] = "\",\"offset\":\"0x",
			  build_id[] = "\",\"build_id\":\"";
	const char *at = strstr(line, module), *end, *id;

	if (!at)
		return NULL;
	*frame = (struct cl_view_frame){ .offset = 0 };
	end = string_end(at + sizeof(module) - 1);
	unescape(frame->path, sizeof(frame->path), at + sizeof(module) - 1, end);
	if (strncmp(end, offset, sizeof(offset) - 1))
		return NULL;
	frame->offset = strtoull(end + sizeof(offset) - 1, NULL, 16);
	end = string_end(end + sizeof(offset) - 1);
	if (!strncmp(end, build_id, sizeof(build_id) - 1)) {
		id = end + sizeof(build_id) - 1;
		end = string_end(id);
		read_build_id(frame, id, end);
	}
	return end[0] == '"' ? end : NULL;
}

/*
 * Finds the first Python frame in @line: {"function":"NAME","file":"PATH"...  Returns its end;
 * NULL: there is none.  Other frames begin with their address.
 */
static const char *next_python(const char *line, struct cl_report_symbol *symbol)
{
	static const char function[] = "{\"function\":\"", file[] = "\",\"file\":\"";
	const char *at = strstr(line, function), *end;

	if (!at)
		return NULL;
	*symbol = (struct cl_report_symbol){ .line = 0 };
	end = string_end(at + sizeof(function) - 1);
	unescape(symbol->function, sizeof(symbol->function), at + sizeof(function) - 1, end);
	if (strncmp(end, file, sizeof(file) - 1))
		return end;
	at = end + sizeof(file) - 1;
	end = string_end(at);
	unescape(symbol->file, sizeof(symbol->file), at, end);
	return end;
}

/* Copies the text of member @key of the object from @at to @end to @to, "" if it has none. */
static void take_member(const char *at, const char *end, const char *key, char *to, size_t size)
{
	const char *value = strstr(at, key);

	to[0] = 0;
	if (value && value < end)
		unescape(to, size, value + strlen(key), string_end(value + strlen(key)));
}

/*
 * Finds the first frame that is not Python's in @line: {"address":"0x..."...  Returns its end, at its
 * brace; NULL: there is none.
 */
static const char *next_of_any(const char *line, struct cl_view_frame *frame, struct cl_report_symbol *symbol)
{
	static const char address[] = "{\"address\":\"";
	const char *at = strstr(line, address), *end = at, *module;

	*frame = (struct cl_view_frame){ .offset = 0 };
	*symbol = (struct cl_report_symbol){ .line = 0 };
	while (end && *end && *end != '}')
		end = *end == '"' ? string_end(end + 1) + 1 : end + 1;
	if (!end || !*end)
		return NULL;
	take_member(at, end, "\"function\":\"", symbol->function, sizeof(symbol->function));
	take_member(at, end, "\"file\":\"", symbol->file, sizeof(symbol->file));
	module = strstr(at, "\"module\":\"");
	if (module && module < end)
		next_frame(module, frame);
	frame->address = strtoull(at + sizeof(address) - 1, NULL, 16);
	return end;
}

void cu_symbols_each(struct cu_symbols *symbols, const char *line,
		     bool (*each)(void *data, const struct cl_view_frame *frame,
				  const struct cl_report_symbol *symbol), void *data)
{
	struct cl_report_symbol symbol;
	struct cl_view_frame frame = { .offset = 0 };

	for (const char *at = line; (at = next_python(at, &symbol)) != NULL;)
		if (!each(data, &frame, &symbol))
			return;
	while ((line = next_of_any(line, &frame, &symbol)) != NULL) {
		if (frame.path[0])
			cu_symbols_resolve(symbols, NULL, &frame, &symbol);
		if (!each(data, &frame, &symbol))
			return;
	}
}

static void add_to_json(struct cu_symbols *symbols, FILE *to, const char *line)
{
	struct cl_report_symbol symbol;
	struct cl_view_frame frame;
	const char *end;

	while ((end = next_frame(line, &frame)) != NULL) {
		fwrite(line, 1, (size_t)(end + 1 - line), to);
		line = end + 1;
		if (cu_symbols_resolve(symbols, NULL, &frame, &symbol)) {
			if (symbol.function[0])
				put_json(to, "function", symbol.function);
			if (symbol.file[0]) {
				put_json(to, "file", symbol.file);
				if (symbol.line)
					fprintf(to, ",\"line\":%u", symbol.line);
			}
		}
	}
	fputs(line, to);
}

void cu_symbols_add(struct cu_symbols *symbols, FILE *to, const char *line)
{
	if (line[0] == '{')
		add_to_json(symbols, to, line);
	else if (!add_to_text(symbols, to, line))
		fputs(line, to);
}
