/* SPDX-License-Identifier: Apache-2.0 */
/* The words of notes: see note_words.h.  doc/sharing.md has the same as a table. */
#include <cuda.h>

#include "shim/diag/note_words.h"

static const struct {
	const char *words, *key, *hint;
} made_as[CL_MADE_KINDS] = {
	[CL_MADE_UNKNOWN] = { "memory that the driver does not know", "unknown",
			      "no allocation of this process is at that address: it may be freed already" },
	[CL_MADE_ALLOC] = { "cudaMalloc memory", "device",
			    "CUDA shares such memory as a rule: the error says why it did not" },
	[CL_MADE_VIRTUAL] = { "virtual memory", "virtual",
			      "CUDA shares virtual memory by descriptors alone: cuMemExportToShareableHandle here and "
			      "cuMemImportFromShareableHandle there; or allocate it with cudaMalloc (PyTorch: without "
			      "expandable_segments; vLLM: without sleep mode); or run it with `culimbo run "
			      "--share-all`, which makes such handles of it" },
	[CL_MADE_VIRTUAL_ALONE] = { "virtual memory without a handle type", "virtual-alone",
				    "it was made for no way of sharing: give cuMemCreate the requestedHandleTypes "
				    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and share its descriptor, or allocate it "
				    "with cudaMalloc (PyTorch: without expandable_segments; vLLM: without sleep mode); or run "
				    "it with `culimbo run --share-all`" },
	[CL_MADE_POOL] = { "stream-ordered memory", "pool",
			   "allocate it with cudaMalloc (PyTorch: without backend:cudaMallocAsync), or from a pool made "
			   "with a handle type: cuMemPoolExportToShareableHandle once, then cuMemPoolExportPointer; or "
			   "run it with `culimbo run --share-all`, which makes handles of it" },
	[CL_MADE_MANAGED] = { "managed memory", "managed",
			      "CUDA shares no managed memory between processes: allocate it with cudaMalloc" },
	[CL_MADE_HOST] = { "host memory", "host",
			   "CUDA shares no host memory between processes: map the same file of /dev/shm in each, and "
			   "register it there (cudaHostRegister)" },
	[CL_MADE_IMPORT] = { "memory of another process", "import",
			     "only the process that allocated it can export it: pass on the handle that was opened here" },
	[CL_MADE_OTHER] = { "device memory that cudaMalloc did not allocate", "other",
			    "CUDA makes legacy handles of cudaMalloc memory alone: copy it there" },
};

const char *cl_made_words(unsigned int made)
{
	return made_as[made < CL_MADE_KINDS ? made : CL_MADE_UNKNOWN].words;
}

const char *cl_made_key(unsigned int made)
{
	return made_as[made < CL_MADE_KINDS ? made : CL_MADE_UNKNOWN].key;
}

const char *cl_call_name(unsigned int call)
{
	static const char *const names[CL_CALLS] = {
		[CL_CALL_GET_HANDLE] = "cuIpcGetMemHandle",
		[CL_CALL_OPEN_HANDLE] = "cuIpcOpenMemHandle",
		[CL_CALL_EXPORT] = "cuMemExportToShareableHandle",
		[CL_CALL_EXPORT_FABRIC] = "cuMemExportToShareableHandle",
		[CL_CALL_IMPORT] = "cuMemImportFromShareableHandle",
		[CL_CALL_IMPORT_FABRIC] = "cuMemImportFromShareableHandle",
		[CL_CALL_POOL_EXPORT] = "cuMemPoolExportToShareableHandle",
		[CL_CALL_POOL_EXPORT_FABRIC] = "cuMemPoolExportToShareableHandle",
		[CL_CALL_POOL_IMPORT] = "cuMemPoolImportFromShareableHandle",
		[CL_CALL_POOL_IMPORT_FABRIC] = "cuMemPoolImportFromShareableHandle",
	};

	return call < CL_CALLS ? names[call] : "";
}

static const char *open_hint(uint32_t result)
{
	switch (result) {
	case CUDA_ERROR_INVALID_VALUE:
		return "its flags must be cudaIpcMemLazyEnablePeerAccess, and its 64 bytes as the exporter got them";
	case CUDA_ERROR_INVALID_CONTEXT:
		return "a process can't open its own handles, nor those of a process with the same number in another PID "
		       "namespace";
	case CUDA_ERROR_INVALID_DEVICE:
		return "this process may not see the device that it is on (CUDA_VISIBLE_DEVICES)";
	case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
	case CUDA_ERROR_TOO_MANY_PEERS:
		return "open it on the device that it is on, or on one with peer access to that: `nvidia-smi topo -p2p r`";
	default:
		return "its exporter may have freed it or ended; both must use the same GPU";
	}
}

const char *cl_note_hint(unsigned int made, unsigned int call, uint32_t result)
{
	if (call == CL_CALL_OPEN_HANDLE)
		return open_hint(result);
	if (cl_call_is_by_descriptor(call))
		return cl_call_is_by_fabric(call) ?
			       "fabric handles are not covered: free what they share only when every importer is done with it" :
		       made == CL_MADE_POOL ?
			       "nothing to do: the pool is shared, and no block of it by this alone" :
			       "nothing to do: the driver keeps such memory as long as anybody has it mapped, or has a "
			       "descriptor of it";
	return made_as[made < CL_MADE_KINDS ? made : CL_MADE_UNKNOWN].hint;
}

const char *cl_ended_word(enum cl_kind kind, bool is_virtual)
{
	return is_virtual ? "unmapped" : kind == CL_EVENT ? "destroyed" : "freed";
}
