/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exporter for targets that open handles: a child with a file and a socket, which answers requests for
 * descriptors as the importer's script says.  The target has publish(), which writes one record of the file,
 * say_right(), which makes the answer of a right exporter, right_handle() and change_handle().
 *
 * The clock is advanced wherever the library would pause.
 */
#ifndef CL_FUZZ_EXPORTER_H
#define CL_FUZZ_EXPORTER_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "shim/base/clock.h"
#include "shim/base/log.h"
#include "shim/descriptors/protocol.h"
#include "shim/descriptors/address.h"
#include "shim/self/self.h"
#include "shim/shm/record.h"
#include "tests/fuzz/context.h"
#include "tests/fuzz/fuzz.h"

enum { RECORDS = 8, SCRIPTED = 3, FDS = CL_SERVE_BATCH + 6, HIGHEST = 1024 };

static struct cl_region other; /* the exporter's */
static uint32_t other_pid;

int nanosleep(const struct timespec *pause, struct timespec *left)
{
	(void)pause, (void)left;
	atomic_fetch_add(&cl_clock_ahead, 250000000);
	return 0;
}

/* ------------------------------------------------------------------- the driver */
static unsigned int refuse_in;

/* True for the call that is to fail. */
static bool refuses(void)
{
	return refuse_in && !--refuse_in;
}

static CUresult open_memory(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
	(void)p, (void)handle, (void)flags;
	return CUDA_ERROR_INVALID_VALUE; /* it is none of the driver's */
}

static CUresult close_memory(CUdeviceptr p)
{
	(void)p;
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult alloc(CUdeviceptr *p, size_t size)
{
	(void)size;
	*p = 0x1000;
	return CUDA_SUCCESS;
}

static CUresult make_event(CUevent *event, unsigned int flags)
{
	(void)flags;
	*event = (CUevent)0xe0;
	return CUDA_SUCCESS;
}

static CUresult any_event(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

static CUresult exchange(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------ the exporter */
struct said {
	uint32_t size, fds;
	struct cl_answer answer;
};
/* Written by the importer before it opens. */
static struct script {
	bool right; /* all answers are right; else those below, and then it hangs up */
	uint32_t n;
	_Atomic uint32_t next;
	struct said said[SCRIPTED];
} *script;

/* of the target */
static CUipcMemHandle right_handle(uint32_t record);
static void change_handle(CUipcMemHandle *handle, struct input *in);
static void publish(struct cl_region *r, uint32_t record);
/* What a right exporter says of what @record is in, from @from on. */
static void say_right(struct said *said, uint32_t record, uint32_t first, uint64_t from);

static void send_said(int to, const struct said *said)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS * sizeof(int))] = { 0 };
	struct iovec bytes = { (void *)(uintptr_t)&said->answer, said->size };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1 };
	struct cmsghdr *header;
	int fd[FDS];

	for (uint32_t i = 0; i < said->fds; i++)
		PROMISE((fd[i] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
	if (said->fds) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(said->fds * sizeof(int));
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(said->fds * sizeof(int));
		memcpy(CMSG_DATA(header), fd, said->fds * sizeof(int));
	}
	sendmsg(to, &message, MSG_NOSIGNAL);
	for (uint32_t i = 0; i < said->fds; i++)
		close(fd[i]);
}

static void serve(int peer)
{
	struct cl_request request;
	struct said said; /* a copy: the importer writes its next script as soon as it has the answer */

	while (recv(peer, &request, sizeof request, 0) == sizeof request) {
		uint32_t next = script->right ? 0 : atomic_fetch_add(&script->next, 1);

		if (script->right) {
			say_right(&said, request.record % RECORDS, request.first, request.from);
			send_said(peer, &said);
		} else if (next < script->n) {
			said = script->said[next];
			send_said(peer, &said);
		} else {
			break;
		}
	}
	close(peer);
}

static void be_exporter(int folder, int tell)
{
	struct cl_identity self;
	struct sockaddr_un at;
	struct cl_region r;
	int dirfd, listens;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	cl_identity_self(&self);
	PROMISE(cl_region_create(&r, folder, &self) == 0);
	for (uint32_t i = 0; i < RECORDS; i++)
		publish(&r, i);
	listens = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	PROMISE(listens >= 0 && cl_serve_address(&at, r.file_id, &dirfd) == 0);
	PROMISE(bind(listens, (struct sockaddr *)&at, sizeof at) == 0 && listen(listens, 8) == 0);
	PROMISE(write(tell, &r.file_id, sizeof r.file_id) == sizeof r.file_id);
	for (;;) {
		int peer = accept4(listens, NULL, NULL, SOCK_CLOEXEC);

		if (peer >= 0)
			serve(peer);
	}
}

static void make_other(int folder)
{
	int ends[2];
	pid_t child;

	script = mmap(NULL, sizeof *script, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	PROMISE(script != MAP_FAILED);
	PROMISE(pipe2(ends, O_CLOEXEC) == 0);
	child = fork();
	PROMISE(child >= 0);
	if (!child)
		be_exporter(folder, ends[1]);
	other_pid = (uint32_t)child;
	close(ends[1]);
	PROMISE(read(ends[0], &other.file_id, sizeof other.file_id) == sizeof other.file_id);
	close(ends[0]);
}

/* ------------------------------------------------------------------- the importer */
/* Sets the options, and those calls of the driver that both targets have.  The target adds its own, and meets the exporter. */
static void begin(void)
{
	char *none[] = { NULL };

	cl_options_read(&cl_options, none, NULL);
	cl_options.dir.text = fuzz_folder();
	cl_options.log.number = CL_LOG_OFF;
	cl_options.report.number = CL_REPORT_OFF;
	cl_driver.cuIpcOpenMemHandle_v2 = open_memory;
	cl_driver.cuIpcCloseMemHandle = close_memory;
	cl_driver.cuMemAlloc_v2 = alloc;
	cl_driver.cuEventCreate = make_event;
	cl_driver.cuEventDestroy_v2 = any_event;
	cl_driver.cuThreadExchangeStreamCaptureMode = exchange;
	cl_driver.cuCtxGetCurrent = current;
	cl_driver.cuCtxGetDevice = device;
	cl_driver.cuDevicePrimaryCtxGetState = primary;
	cl_driver.cuMemGetAddressRange_v2 = range;
}

static void meet_other(void)
{
	int folder = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	PROMISE(folder >= 0);
	cl_identity_self(&cl_self.identity);
	make_other(folder);
	PROMISE(cl_region_open(&other, folder, other.file_id, NULL) == 0);
	close(folder);
}

/* A handle of a record: right, with some bytes changed, with another stamp, or as the target changes it. */
static CUipcMemHandle handle_from(struct input *in, uint64_t how)
{
	CUipcMemHandle handle = right_handle(how % RECORDS);
	struct cl_stamp stamp;
	uint64_t word;

	switch (how >> 6) {
	case 0: /* right */
		break;
	case 1: /* some bytes differ */
		for (uint64_t n = eat(in, 1) % 8; n; n--)
			handle.reserved[eat(in, 1) % 64] = (char)eat(in, 1);
		break;
	case 2: /* it has another stamp, of an existing file */
		memcpy(&word, handle.reserved + 56, sizeof word);
		stamp = cl_stamp_unpack(word);
		stamp.record = (uint32_t)eat(in, 3) & (CL_RECORDS - 1);
		stamp.generation = (uint32_t)eat(in, 3) & (CL_GENERATIONS - 1);
		word = cl_stamp_pack(stamp);
		memcpy(handle.reserved + 56, &word, sizeof word);
		break;
	default:
		change_handle(&handle, in);
	}
	return handle;
}

static unsigned int holds_in_other(void)
{
	unsigned int n = 0;

	for (uint32_t i = 0; i < RECORDS; i++)
		n += cl_record_holders(&other, i, NULL, 0);
	return n;
}

static void script_from(struct input *in, uint32_t record)
{
	script->n = (uint32_t)eat(in, 1) % (SCRIPTED + 1);
	script->right = !script->n;
	atomic_store(&script->next, 0);
	for (uint32_t i = 0; i < script->n; i++) {
		struct said *said = &script->said[i];
		uint64_t other_size, other_fds;

		say_right(said, record, 0, 0);
		for (uint64_t changes = eat(in, 1) % 8; changes; changes--) {
			uint64_t at = eat(in, 2) % sizeof said->answer;

			((uint8_t *)&said->answer)[at] = (uint8_t)eat(in, 1);
		}
		other_fds = eat(in, 1);
		other_size = eat(in, 1);
		if (other_fds)
			said->fds = (uint32_t)other_fds % FDS;
		if (other_size)
			said->size = (uint32_t)(other_size * 8 % sizeof said->answer);
	}
}

/* New numbers would grow. */
static bool has_left_some(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	bool many = fd > HIGHEST / 2;

	PROMISE(fd >= 0);
	close(fd);
	return many;
}

#endif
