/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenes of both kinds of memory that CUDA refuses legacy handles, shared by such handles (17 and 18), beside memory of
 * cudaMalloc, which is the control: wrong opens, exporters that are busy or end meanwhile, and other devices; and the list
 * of them and of those in scene_shared_importers.c.
 */
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>

#include <linux/sockios.h>

#include "scene_async.h"
#include "scene_shared.h"
#include "scene_virtual.h"

#define MS UINT64_C(1000000) /* ns */

const char *const kinds[] = { "cudaMalloc memory", "virtual memory", "stream-ordered memory" };

uint64_t shared_alloc(struct actor *p, enum kind kind, uint64_t bytes, unsigned char value)
{
	uint64_t at;

	if (kind == LEGACY)
		return alloc_filled(p, bytes, value);
	if (kind == ASYNC)
		return async_alloc(p, bytes, value);
	at = virtual_reserve(p, 4 * bytes);
	virtual_map(p, at, bytes, value);
	return at;
}

/* A handle of PIECE bytes of @kind that P allocates on its device 0, full of @value. */
static struct handle share(struct actor *p, enum kind kind, unsigned char value)
{
	return export_block(p, shared_alloc(p, kind, PIECE, value));
}

/* --------------------------------------------------------------------- wrong opens */
static int wrong_open(struct actor *c, const struct handle *handle, uint64_t flags, bool nowhere)
{
	int result = ask(c, OP_open, handle->bytes, (const uint64_t[6]){ flags, nowhere })->result;

	if (!result)
		close_block(c, c->reply.v[0]);
	return result;
}

/*
 * What is wrong about an open besides its handle is answered as for a legacy one, in the same order.  Of the flags the
 * driver looks at one bit (measured): 3 is accepted.
 */
static void wrong(void)
{
	static const struct { const char *what; uint64_t flags; bool nowhere, no_context, good; } tries[] = {
		{ "flags 0", .flags = 0 },
		{ "flags 2", .flags = 2 },
		{ "flags 3", .flags = LAZY | 2, .good = true },
		{ "a null pointer", .flags = LAZY, .nowhere = true },
		{ "no context", .flags = LAZY, .no_context = true },
		{ "flags 0 and no context", .flags = 0, .no_context = true },
	};
	struct actor *p = ENTER("P", .env = ALL), *b = ENTER("B", .bare = true), *c = ENTER("C");
	struct handle handle[KINDS];
	uint64_t import;

	for (int kind = 0; kind < KINDS; kind++)
		handle[kind] = share(p, (enum kind)kind, (unsigned char)(OWN + kind));
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		int bare, legacy, result;

		if (tries[i].no_context)
			ASK(b, no_context), ASK(c, no_context);
		bare = wrong_open(b, &handle[LEGACY], tries[i].flags, tries[i].nowhere);
		legacy = wrong_open(c, &handle[LEGACY], tries[i].flags, tries[i].nowhere);
		ok(tries[i].good == !bare && legacy == bare, "control: %s: an open of a legacy handle gives %d, bare %d", tries[i].what, legacy, bare);
		for (int kind = VIRTUAL; kind < KINDS; kind++) {
			result = wrong_open(c, &handle[kind], tries[i].flags, tries[i].nowhere);
			ok(result == legacy, "17 18 %s: of %s the same (%d)", tries[i].what, kinds[kind], result);
		}
		if (tries[i].no_context)
			ASK(b, device, 0), ASK(c, device, 0);
	}
	for (int kind = 0; kind < KINDS; kind++) {
		import = open_block(c, &handle[kind]);
		ok(reads(c, import, PIECE, (unsigned char)(OWN + kind), NULL), "17 18 then C opens %s as it should", kinds[kind]);
		close_block(c, import);
	}
	leave(b);
	virtual_curtain(p, c);
}

/* -------------------------------------------------------------------------- captures */
/* A thread closes what it has opened while a stream of it captures: the close succeeds, and the capture stays good. */
static void close_in_captures(struct actor *actor, enum kind kind, const struct handle *handle)
{
	uint64_t stream = ASK(actor, stream_create, 1)->v[0], import;
	int closed, ended;

	for (uint64_t mode = 0; mode < 3; mode++) {
		import = open_block(actor, handle);
		if (ASK(actor, stream_capture, stream, mode)->result)
			break_off("no capture (%d)", actor->reply.result);
		closed = try_close(actor, import);
		ended = ASK(actor, stream_captured, stream)->result;
		ok(!closed && !ended, "%s %s closes %s in a capture, mode %d (%d), which stays good (%d)",
		   actor->bare ? "control: bare," : "17 18", actor->name, kinds[kind], (int)mode, closed, ended);
		ok(try_close(actor, import) == INVALID_VALUE, "it is closed");
	}
}

/* A free of what was opened is refused as the driver refuses any free in a capture, which it spoils. */
static void free_in_captures(struct actor *actor, enum kind kind, const struct handle *handle)
{
	uint64_t stream = ASK(actor, stream_create, 1)->v[0], import = open_block(actor, handle);
	const uint64_t relaxed = 2;
	int freed, ended;

	for (uint64_t mode = 0; mode < 3; mode++) {
		if (ASK(actor, stream_capture, stream, mode)->result)
			break_off("no capture (%d)", actor->reply.result);
		freed = try_free(actor, import);
		ended = ASK(actor, stream_captured, stream)->result;
		ok(mode == relaxed ? freed == INVALID_VALUE && !ended :
				     freed == CAPTURE_UNSUPPORTED && ended == CAPTURE_INVALIDATED,
		   "%s %s frees %s that it has open, in a capture, mode %d (%d, and its end %d)",
		   actor->bare ? "control: bare," : "17 18", actor->name, kinds[kind], (int)mode, freed, ended);
	}
	close_block(actor, import);
}

static void close_captured(void)
{
	struct actor *p = ENTER("P", .env = ALL), *b = ENTER("B", .bare = true), *c = ENTER("C");
	struct handle handle;

	for (int kind = LEGACY; kind < KINDS; kind++) {
		handle = share(p, (enum kind)kind, OWN);
		if (kind == LEGACY) {
			close_in_captures(b, LEGACY, &handle);
			free_in_captures(b, LEGACY, &handle);
		}
		close_in_captures(c, (enum kind)kind, &handle);
		free_in_captures(c, (enum kind)kind, &handle);
	}
	leave(b);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* ------------------------------------------------------------- an exporter that is busy */
void taken(const struct actor *actor)
{
	double deadline = now_ms() + 10000;
	int waiting = 1;

	while (!ioctl(actor->fd, SIOCOUTQ, &waiting) && waiting)
		if (!watch_until(deadline))
			break_off("%s takes no request", actor->name);
}

bool has_answered(const struct actor *actor)
{
	struct pollfd ready = { .fd = actor->fd, .events = POLLIN };

	return poll(&ready, 1, 0) == 1;
}

/* P's only thread waits in the driver for a kernel, by one of two calls, while C opens what P shares. */
static void busy(void)
{
	static const char *const calls[] = { "cuCtxSynchronize", "cuMemFree" };

	for (int call = 0; call < 2; call++) {
		struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
		uint64_t other = alloc(p, PIECE), import[KINDS];
		struct handle handle[KINDS];
		bool right[KINDS];
		double start, took;
		int result[KINDS];

		for (int kind = 0; kind < KINDS; kind++)
			handle[kind] = share(p, (enum kind)kind, (unsigned char)(OWN + kind));
		ASK(p, spin, MS); /* the first launch loads the kernels */
		ASK(p, kernel_wait);
		ASK(p, spin, 4000 * MS);
		if (call)
			tell(p, OP_free, NULL, (const uint64_t[6]){ other });
		else
			tell(p, OP_fill, NULL, (const uint64_t[6]){ other, PIECE, OWN });
		taken(p);
		start = now_ms();
		for (int kind = 0; kind < KINDS; kind++)
			result[kind] = try_open(c, &handle[kind], &import[kind]);
		took = now_ms() - start;
		ok(!has_answered(p), "17 18 P is in %s: it is still when C has opened all (%.0f ms)", calls[call], took);
		for (int kind = 0; kind < KINDS; kind++) {
			right[kind] = !result[kind] && reads(c, import[kind], PIECE, (unsigned char)(OWN + kind), NULL);
			ok(right[kind], "17 18 P is in %s: C opens %s, and reads it (%d)", calls[call], kinds[kind], result[kind]);
		}
		hear(p, 30000);
		ok(!p->reply.result && !*p->reply.complaint, "17 18 then P's call returns (%d)", p->reply.result);
		for (int kind = 0; kind < KINDS; kind++)
			if (!result[kind])
				close_block(c, import[kind]);
		virtual_curtain(p, c);
	}
}

/* ---------------------------------------------------- an exporter that ends during an open */
enum end { KILLED, UNDERSCORE_EXIT, EXIT, ENDS };
static const char *const ends[] = { "is killed", "calls _exit", "exits" };

/* P stands still when C asks for what it has shared, and then ends. */
static void end_during(enum kind kind, enum end how)
{
	struct actor *p = ENTER("P", .env = ALL), *c = ENTER("C");
	struct handle handle = share(p, kind, OWN);
	double start;
	int status, result;
	uint64_t import;

	stop(p);
	start = now_ms();
	ask_for(c, &handle);
	if (how == KILLED) {
		kill(p->pid, SIGKILL);
	} else {
		tell(p, OP_end, NULL, (const uint64_t[6]){ how == EXIT ? END_EXIT : END__EXIT });
		kill(p->pid, SIGCONT);
	}
	result = hear(c, 20000)->result;
	import = c->reply.v[0];
	ok(now_ms() - start < 9000, "17 18 %s: P %s while C opens it: the open ends (%d, %.0f ms)", kinds[kind], ends[how],
	   result, now_ms() - start);
	status = end_of(p);
	ok(status == (how == KILLED ? SIGKILL : 0), "17 18 P has ended as it should (0x%x)", (unsigned int)status);
	/* one that goes on may have answered before it ended */
	if (result) {
		ok(refused(result), "17 18 it ends as for a stale handle (%d)", result);
	} else {
		ok(how != KILLED && reads(c, import, PIECE, OWN, NULL), "17 18 C has it open, and reads P's bytes");
		close_block(c, import);
	}
	start = now_ms();
	result = try_open(c, &handle, &import);
	ok(refused(result) && now_ms() - start < 2000, "17 18 another open is refused at once (%d, %.0f ms)", result,
	   now_ms() - start);
	leave(c);
	ok(no_file_stays(), "no file is left in CULIMBO_DIR");
}

static void end_meanwhile(void)
{
	for (int kind = VIRTUAL; kind < KINDS; kind++)
		for (int how = 0; how < ENDS; how++)
			end_during((enum kind)kind, (enum end)how);
}

/* ------------------------------------------------------------------------ two devices */
#define TWO "CULIMBO_SIM_DEVICES=2 CULIMBO_SIM_POOL_ACCESS=set"

static bool has_two(struct actor *p)
{
	if (ASK(p, devices)->v[0] >= 2)
		return true;
	note("there are not two devices");
	ok(true, "17 18 another device # SKIP there is one device");
	return false;
}

/* C's context of device 1 opens memory of device 0, to which it gets peer access before or after, and reads and writes it. */
static void open_by_other(struct actor *p, struct actor *c, enum kind kind, bool before)
{
	const char *who = p->bare ? "control: bare" : "17 18", *says = before ? "with peer access" : "without peer access";
	struct handle handle = share(p, kind, OWN);
	uint64_t import;
	int result;

	ASK(c, device, 1);
	if (before && ASK(c, peer, 0)->result)
		break_off("device 1 has no access to device 0 (%d)", c->reply.result);
	result = try_open(c, &handle, &import);
	ok(!result, "%s: device 1, %s to device 0, opens %s of that (%d)", who, says, kinds[kind], result);
	if (result)
		break_off("it is not open");
	ok(reads(c, import, PIECE, OWN, NULL), "%s: and reads it", who);
	if (!before) {
		/* an open of a legacy handle may have enabled it already */
		note("peer access afterwards: %d", ASK(c, peer, 0)->result);
		ok(reads(c, import, PIECE, OWN, NULL), "%s: and once more, with peer access", who);
	}
	fill(c, import, PIECE, NEXT);
	close_block(c, import);
	ASK(c, device, 0);
	import = open_block(c, &handle);
	ok(reads(c, import, PIECE, NEXT, NULL), "%s: device 0 of the same process reads what device 1 wrote", who);
	close_block(c, import);
}

/* Bare that is done with memory of cudaMalloc, the control; under culimbo with each kind. */
static void devices(void)
{
	for (int bare = 1; bare >= 0; bare--)
		for (int kind = 0; kind < (bare ? VIRTUAL : KINDS); kind++)
			for (int before = 1; before >= 0; before--) {
				struct actor *p = ENTER("P", .bare = bare, .env = bare ? TWO : ALL " " TWO);
				struct actor *c = ENTER("C", .bare = bare, .env = TWO);

				if (!has_two(p))
					return;
				open_by_other(p, c, (enum kind)kind, before);
				virtual_curtain(p, c);
			}
}

/*
 * A context can have eight peers, and the driver refuses to open memory of a ninth device for it.  Then the program gets the
 * driver's error and holds nothing.  Virtual and stream-ordered memory open by cuMemSetAccess and cuMemPoolSetAccess,
 * which enable no peer.  Simulated only: no machine at hand has so many devices.
 */
static void too_many_peers(void)
{
	enum { ALLOWED = 8, OWN_DEVICE = ALLOWED + 1, DEVICES = OWN_DEVICE + 1, TOO_MANY_PEERS = 711 };
	const char *env = "CULIMBO_SHARE=all CULIMBO_SIM_DEVICES=10 CULIMBO_SIM_POOL_ACCESS=set CULIMBO_GRACE=0 CULIMBO_REPORT=off";
	struct actor *p = ENTER("P", .env = env), *who[2] = { ENTER("B", .bare = true, .env = env), ENTER("C", .env = env) };
	struct handle handle[DEVICES];
	uint64_t block = 0, import[DEVICES];

	for (int device = DEVICES - 1; device >= 0; device--) {
		ASK(p, device, device);
		block = alloc_filled(p, PIECE, OWN);
		handle[device] = export_block(p, block);
	}
	for (int i = 0; i < 2; i++) {
		int result = 0, opened = 0;

		ASK(who[i], device, OWN_DEVICE);
		while (opened < DEVICES && !(result = try_open(who[i], &handle[OWN_DEVICE - opened], &import[opened])))
			opened += reads(who[i], import[opened], PIECE, OWN, NULL);
		ok(opened == 1 + ALLOWED && result == TOO_MANY_PEERS,
		   "%s %s opens memory of its own device and of %d others, and is refused that of one more (%d)",
		   who[i]->bare ? "control: bare," : "17 18", who[i]->name, opened - 1, result);
	}
	for (int kind = VIRTUAL; kind < KINDS; kind++) {
		handle[0] = share(p, (enum kind)kind, NEXT);
		import[OWN_DEVICE] = open_block(who[1], &handle[0]);
		ok(reads(who[1], import[OWN_DEVICE], PIECE, NEXT, NULL), "17 18 %s of that device is opened and read", kinds[kind]);
		close_block(who[1], import[OWN_DEVICE]);
	}
	for (int i = 0; i <= ALLOWED; i++)
		close_block(who[1], import[i]);
	free_block(p, block);
	ok(alloc(p, PIECE) == block, "17 18 C does not hold what it was refused: P frees it and gets its place again");
	leave(who[0]);
	virtual_curtain(p, who[1]);
}

#define SECOND_ALONE TWO " CUDA_VISIBLE_DEVICES=1"
#define FIRST_ALONE TWO " CUDA_VISIBLE_DEVICES=0"
#define NO_REACH SECOND_ALONE " CULIMBO_SIM_REACH=shown CULIMBO_LOG=info"

/*
 * @who sees one device, and opens memory of another one by @handle: it reads what P wrote, and P reads what it writes.
 * What the driver says of the device is not documented; the simulated one names none.
 */
static void open_hidden(struct actor *p, struct actor *who, enum kind kind, const struct handle *handle, uint64_t at)
{
	enum { DEVICE_ORDINAL = 9, NONE = -2 };
	const char *says = who->bare ? "control: bare" : "17 18";
	uint64_t import;
	int result = try_open(who, handle, &import);

	ok(!result && reads(who, import, PIECE, OWN, NULL), "%s: %s of a device that is hidden opens, and is read (%d)", says,
	   kinds[kind], result);
	if (result)
		return;
	fill(who, import, PIECE, NEXT);
	ok(reads(p, at, PIECE, NEXT, NULL), "%s: and is written", says);
	fill(p, at, PIECE, OWN);
	result = ASK(who, v_ask, import, DEVICE_ORDINAL)->result;
	if (on_real_driver())
		note("its device: %d (%d)", (int)who->reply.v[0], result);
	else
		ok(!result && (int)who->reply.v[0] == NONE, "%s: its device is none (%d, %d)", says,
		   (int)who->reply.v[0], result);
	close_block(who, import);
}

/* CUDA_VISIBLE_DEVICES hides a device, and a legacy handle of its memory opens all the same: so does each of culimbo's. */
static void hidden_device(void)
{
	for (int device = 0; device < 2; device++) {
		struct actor *p = ENTER("P", .env = ALL " " TWO), *b, *c;
		const char *env = device ? FIRST_ALONE : SECOND_ALONE;
		struct handle handle[KINDS];
		uint64_t at[KINDS];

		if (!has_two(p))
			return;
		b = ENTER("B", .bare = true, .env = env);
		c = ENTER("C", .env = env);
		ASK(p, device, device);
		for (int kind = 0; kind < KINDS; kind++) {
			at[kind] = shared_alloc(p, (enum kind)kind, PIECE, OWN);
			handle[kind] = export_block(p, at[kind]);
		}
		ok(ASK(b, devices)->v[0] == 1 && ASK(c, devices)->v[0] == 1, "B and C see one device, and not device %d", device);
		open_hidden(p, b, LEGACY, &handle[LEGACY], at[LEGACY]);
		for (int kind = 0; kind < KINDS; kind++)
			open_hidden(p, c, (enum kind)kind, &handle[kind], at[kind]);
		leave(b);
		virtual_curtain(p, c);
	}
}

/* In one reservation P has memory of both devices side by side, and C sees device 1 alone: it gets all. */
static void hidden_neighbour(void)
{
	struct actor *p = ENTER("P", .env = ALL " " TWO), *c;
	struct handle handle;
	uint64_t at, start;
	int result;

	if (!has_two(p))
		return;
	c = ENTER("C", .env = SECOND_ALONE);
	at = virtual_reserve(p, 8 * PIECE);
	virtual_map(p, at + 2 * PIECE, PIECE, 2);
	ASK(p, device, 1);
	virtual_map(p, at + PIECE, PIECE, 1);
	virtual_map(p, at + 3 * PIECE, PIECE, 3);
	handle = export_block(p, at);
	result = try_open(c, &handle, &start);
	ok(!result && reads(c, start + PIECE, PIECE, 1, NULL) && reads(c, start + 2 * PIECE, PIECE, 2, NULL) &&
		   reads(c, start + 3 * PIECE, PIECE, 3, NULL),
	   "17 C opens what it sees, and beside it what it does not (%d)", result);
	if (!result)
		close_block(c, start);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/*
 * C cannot reach device 0 at all, as where its container or cgroup lacks it: the driver refuses each handle of its memory.
 * A handle that names memory of device 1 gives that, and leaves out what lies beside it on device 0.
 */
static void out_of_reach(void)
{
	struct actor *p = ENTER("P", .env = ALL " " TWO), *b = ENTER("B", .bare = true, .env = NO_REACH);
	struct actor *c = ENTER("C", .env = NO_REACH), *o = ENTER("O", .bare = true, .env = TWO);
	uint64_t at, import, start, whole = free_memory(o);
	struct handle handle;
	int bare = 0, result;
	double took;

	for (int kind = 0; kind < KINDS; kind++) {
		struct actor *d = ENTER("D", .env = NO_REACH);

		handle = share(p, (enum kind)kind, OWN);
		if (kind == LEGACY)
			bare = try_open(b, &handle, &import);
		result = try_open(d, &handle, &import);
		ok(bare && result == bare, "17 18 %s of a device out of reach is refused (%d), as a legacy handle bare (%d)",
		   kinds[kind], result, bare);
		leave(d);
		ok(kind == LEGACY || count_said(d, "the driver refuses to import it") == 1, "17 18 and the log says why, once");
	}
	at = virtual_reserve(p, 8 * PIECE);
	virtual_map(p, at + 2 * PIECE, PIECE, 2);
	ASK(p, device, 1);
	virtual_map(p, at + PIECE, PIECE, 1);
	virtual_map(p, at + 3 * PIECE, PIECE, 3);
	handle = export_block(p, at + PIECE);
	result = try_open(c, &handle, &import);
	ok(!result && reads(c, import, PIECE, 1, NULL), "17 C opens memory that it reaches, beside some that it does not (%d)", result);
	if (!result)
		close_block(c, import);
	handle = export_block(p, at);
	result = try_open(c, &handle, &start);
	ok(!result && reads(c, start + PIECE, PIECE, 1, NULL) && reads(c, start + 3 * PIECE, PIECE, 3, NULL),
	   "17 by the reservation: C reads all that it reaches (%d)", result);
	if (!result) {
		result = ASK(c, v_access, start + 2 * PIECE, 0)->result;
		ok(result || !c->reply.v[0], "17 with a hole where there is what it does not reach (%d)", result);
		close_block(c, start);
	}
	handle = export_block(p, at + 2 * PIECE);
	result = try_open(c, &handle, &import);
	ok(result == bare, "17 a handle of that is refused (%d)", result);
	at = virtual_reserve(p, 8 * PIECE);
	virtual_map(p, at + 2 * PIECE, PIECE, 2);
	ASK(p, device, 0);
	virtual_map(p, at + PIECE, PIECE, 1);
	handle = export_block(p, at);
	result = try_open(c, &handle, &import);
	ok(result == bare, "17 so is one of a reservation whose first mapping is out of reach (%d)", result);
	leave(p);
	ok(free_within(o, whole, 5000, &took), "17 18 when P has ended, nobody has anything of its device 0 (%.0f ms)", took);
	leave(b);
	leave(c);
	leave(o);
	ok(!*said(p) && count_said(c, "the driver refuses to import it") == 1 &&
		   count_said(c, "is opened without some that lies beside it") == 1,
	   "17 C says what is refused and what is left out, once each, and P nothing");
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

/* --------------------------------------------------- where an import differs (doc/differences.md) */
/*
 * C opens one handle in two contexts.  Bare the second open of a legacy handle is refused; of one of culimbo's it gives the
 * same address.
 */
static void second_context(struct actor *who, enum kind kind, const struct handle *handle, uint64_t first)
{
	uint64_t context = ASK(who, ctx_create)->v[0], second;
	int result = try_open(who, handle, &second);

	if (kind == LEGACY) {
		ok(result == INVALID_HANDLE, "control: bare: a second context may not open %s that the first one has open (%d)",
		   kinds[kind], result);
	} else {
		ok(!result && first == second, "17 18 two contexts that open %s get one address (%d)", kinds[kind], result);
		ok(reads(who, second, PIECE, OWN, NULL), "and read it");
	}
	if (!result)
		close_block(who, second);
	ASK(who, ctx_destroy, context);
}

/* The program unmaps an import by itself, which CUDA lets it do with what cuMemMap() has mapped. */
static void unlike(void)
{
	struct actor *p = ENTER("P", .env = ALL), *b = ENTER("B", .bare = true), *c = ENTER("C");
	struct handle handle[KINDS];
	uint64_t first;
	int result;

	for (int kind = 0; kind < KINDS; kind++) {
		struct actor *who = kind == LEGACY ? b : c;

		handle[kind] = share(p, (enum kind)kind, OWN);
		first = open_block(who, &handle[kind]);
		second_context(who, (enum kind)kind, &handle[kind], first);
		ok(reads(who, first, PIECE, OWN, NULL), "the first reads on when the second has ended");
		result = ASK(who, v_unmap, first, PIECE)->result;
		if (kind == LEGACY)
			ok(result, "control: bare: cuMemUnmap of %s is refused (%d)", kinds[kind], result);
		else if (kind == ASYNC)
			note("cuMemUnmap of %s: %d", kinds[kind], result);
		else
			ok(!result, "17 cuMemUnmap of %s unmaps it (%d)", kinds[kind], result);
		if (result)
			close_block(who, first);
		else
			note("its close then gives %d", try_close(who, first));
	}
	leave(b);
	leave(c);
	leave(p);
	ok(no_file_is_left(), "no file is left in CULIMBO_DIR");
}

const struct scene shared_scenes[] = {
	{ "shared-wrong", wrong, 0 },
	{ "shared-close-captured", close_captured, 0 },
	{ "shared-busy", busy, 0 },
	{ "shared-end-meanwhile", end_meanwhile, 0 },
	{ "shared-importer-killed", shared_importer_killed, SCENE_ALONE },
	{ "shared-crowd", shared_crowd, 0 },
	{ "shared-devices", devices, 0 },
	{ "shared-too-many-peers", too_many_peers, SCENE_SIMULATED },
	{ "shared-hidden-device", hidden_device, 0 },
	{ "shared-hidden-neighbour", hidden_neighbour, 0 },
	{ "shared-out-of-reach", out_of_reach, SCENE_SIMULATED | SCENE_ALONE },
	{ "shared-unlike", unlike, 0 },
	{ 0 }
};
