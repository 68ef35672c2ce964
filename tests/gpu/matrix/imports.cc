/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A C++ program that keeps its imports in objects.  Owners close the import in
 * their destructor; views only read through an owner.  Owners are moved into a
 * vector, assigned over and closed early.  One lives to the end of the process, and
 * its destructor runs at exit.
 *
 * For each object, the producer frees the block that it maps and writes over the
 * address.  The consumer reports the result of the close at exit.
 */
#include "driver.h"
#include <memory>
#include <utility>

class Import {
public:
	Import() = default;
	explicit Import(const CUipcMemHandle &handle)
	{
		CU(cuIpcOpenMemHandle(&address_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		owning_ = true;
	}
	static Import view(const Import &other)
	{
		Import import;

		import.address_ = other.address_;
		return import;
	}
	Import(const Import &) = delete;
	Import &operator=(const Import &) = delete;
	Import(Import &&other) noexcept { swap(other); }
	Import &operator=(Import &&other) noexcept
	{
		Import taken(std::move(other));

		swap(taken);
		return *this;
	}
	~Import() { close(); }

	CUresult close()
	{
		CUresult result = CUDA_SUCCESS;

		if (owning_)
			result = cuIpcCloseMemHandle(address_);
		owning_ = false;
		address_ = 0;
		return result;
	}
	CUdeviceptr address() const { return address_; }

private:
	void swap(Import &other)
	{
		std::swap(address_, other.address_);
		std::swap(owning_, other.owning_);
	}
	CUdeviceptr address_ = 0;
	bool owning_ = false;
};

static struct link to_producer;

/* This owner is destroyed after main() and reports the result of its close. */
static struct Last {
	Import import;

	~Last()
	{
		struct message m = {};

		if (!import.address())
			return;
		m.op = 'x';
		m.other = import.close();
		link_send(&to_producer, &m);
	}
} last;

static int consumer()
{
	std::vector<Import> imports;
	std::unique_ptr<Import> view;
	struct message m;

	to_producer = link_consumer();
	driver_start(0);
	while (link_receive(&to_producer, &m, ANSWER_MS)) {
		Import *import = imports.empty() ? NULL : &imports.back();

		switch (m.op) {
		case 'O': /* a temporary, moved into the vector */
			imports.push_back(Import(m.handle));
			m.other = count_other(imports.back().address(), m.bytes, m.value);
			m.op = 'o';
			break;
		case 'G': /* the vector grows: all of them are moved */
			imports.reserve(imports.capacity() + 1000);
			m.op = 'g';
			break;
		case 'W': /* a view is created, reads, and is destroyed */
			view.reset(new Import(Import::view(*import)));
			m.other = count_other(view->address(), m.bytes, m.value);
			view.reset();
			m.op = 'w';
			break;
		case 'A': /* the second is assigned to the first, which closes its import */
			imports.front() = std::move(imports.back());
			imports.pop_back();
			m.op = 'a';
			break;
		case 'L': /* lives until after main() */
			last.import = std::move(*import);
			imports.pop_back();
			m.op = 'l';
			break;
		case 'V':
			m.other = count_other((import ? *import : last.import).address(), m.bytes,
					      m.value);
			m.op = 'v';
			break;
		case 'E': /* closed explicitly; the destructor has nothing to do */
			m.other = import->close();
			imports.pop_back();
			m.op = 'e';
			break;
		case 'D':
			imports.pop_back();
			m.op = 'd';
			break;
		case 'Q':
			return 0;
		default:
			die("what is '%c'?", m.op);
		}
		link_send(&to_producer, &m);
	}
	die("the producer ended unexpectedly");
}

static uint64_t ask(const struct link *link, char op, unsigned char value = OURS)
{
	struct message m = {};

	m.op = op;
	m.bytes = BYTES;
	m.value = value;
	link_ask(link, &m, (char)(op + 'a' - 'A'));
	return m.other;
}

int main(int argc, char **)
{
	const unsigned char ours = OURS, second_value = 33;
	struct message m = {};
	struct link link;
	int status;

	program_start();
	if (argc > 1)
		return consumer();
	driver_start(0);
	tell_version();
	link = link_start("imports");
	fact("consumer=%d", (int)link.pid);
	for (const char *kind : {"owning", "grown", "viewed", "assigned", "closed-early", "at-exit"}) {
		Block block, second(second_value);

		open_there(&link, block.address, BYTES, OURS);
		if (!strcmp(kind, "assigned")) {
			open_there(&link, second.address, BYTES, second_value);
			ask(&link, 'A');
		}
		if (!strcmp(kind, "grown"))
			ask(&link, 'G');
		if (!strcmp(kind, "viewed") && ask(&link, 'W'))
			die("the view reads other bytes than its owner");
		if (!strcmp(kind, "at-exit"))
			ask(&link, 'L');
		CU(cuMemFree(block.address));
		block.reuse();
		CU(cuMemFree(second.address));
		second.reuse();
		printf("client=imports kind=%s result=%s\n", kind,
		       word(!ask(&link, 'V', strcmp(kind, "assigned") ? ours : second_value)));
		if (!strcmp(kind, "closed-early"))
			printf("client=imports close returned %s\n", cu_name((CUresult)ask(&link, 'E')));
		else if (strcmp(kind, "at-exit"))
			ask(&link, 'D');
		block.free_others();
		second.free_others();
	}
	m.op = 'Q';
	link_send(&link, &m);
	if (!link_receive(&link, &m, ANSWER_MS) || m.op != 'x')
		die("the consumer did not report its close at exit");
	printf("client=imports close at exit returned %s\n", cu_name((CUresult)m.other));
	/* the consumer is already exiting */
	while (waitpid(link.pid, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid: %s", strerror(errno));
	if (status)
		die("the consumer ended with wait status 0x%x", status);
	printf("client=imports done\n");
	return 0;
}
