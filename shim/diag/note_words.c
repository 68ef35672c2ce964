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

static const char *open_hint(unsigned int made, uint32_t result, unsigned int why)
{
	const bool ours = made == CL_MADE_VIRTUAL || made == CL_MADE_POOL; /* a handle that culimbo has made */

	if (why == CL_WHY_ALL_OBSERVES)
		return "CULIMBO_MODE=observe changes no result, so CULIMBO_SHARE=all opens no such handle there";
	if (why == CL_WHY_ARGUMENTS)
		return "its flags must have cudaIpcMemLazyEnablePeerAccess, and its pointer must not be null: the driver did not "
		       "look at the handle";
	switch (result) {
	case CUDA_ERROR_OPERATING_SYSTEM:
		if (ours)
			return "its exporter gave no descriptor of it: it is stopped, ending or another user's, has lost its socket "
			       "or has another version of culimbo, what is mapped there changes too often, or a driver refuses "
			       "it. The log of this process says which, of the first one";
		break;
	case CUDA_ERROR_NOT_SUPPORTED:
		if (ours)
			return made == CL_MADE_POOL ?
				       "it is larger than CULIMBO_POOL_IMPORT_MAX, or this driver imports no such memory: share "
				       "it in smaller allocations, or allocate it with cudaMalloc" :
				       "this driver, or the device, imports no virtual memory: allocate it with cudaMalloc";
		break;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_HANDLE:
		if (ours)
			return "this process finds no file of its exporter (another user's, another CULIMBO_DIR, or removed), or "
			       "its 64 bytes are not as the exporter got them; or the driver does not import it or map it for "
			       "this device";
		return result == CUDA_ERROR_INVALID_HANDLE ?
			       "its exporter has ended; or another context of this process has it open: then open it there" :
			       "its exporter may have freed it; or its 64 bytes are not as the exporter got them";
	case CUDA_ERROR_NOT_PERMITTED:
		if (ours)
			break;
		return "its exporter may have freed it";
	case CUDA_ERROR_INVALID_CONTEXT:
		return "a process can't open its own handles, nor those of a process with the same number in another PID "
		       "namespace";
	case CUDA_ERROR_INVALID_DEVICE:
		return "this process cannot reach the device that it is on: its container or cgroup may lack it";
	case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
	case CUDA_ERROR_TOO_MANY_PEERS:
		return "open it on the device that it is on, or on one with peer access to that: `nvidia-smi topo -p2p r`";
	default:
		break;
	}
	return ours ? "the driver did not import it or map it for this device: both must use one GPU, or GPUs with peer access" :
		      "its exporter may have freed it or ended; both must use the same GPU";
}

/* Of memory that a process with CULIMBO_SHARE=all got no handle of.  NULL: the option has nothing to do with that. */
static const char *all_hint(unsigned int made, unsigned int why)
{
	if (made != CL_MADE_VIRTUAL && made != CL_MADE_VIRTUAL_ALONE && made != CL_MADE_POOL)
		return NULL;
	switch (why) {
	case CL_WHY_ALL:
		return "CULIMBO_SHARE=all makes handles of such memory, but not of this: doc/sharing.md says what is not shared "
		       "(what was made past culimbo's hooks, with compression or a usage, or is too large), and the log if "
		       "something was short";
	case CL_WHY_ALL_OBSERVES:
		return "CULIMBO_MODE=observe changes no result, so CULIMBO_SHARE=all makes no handles there";
	case CL_WHY_ALL_OLD:
		return "this driver is older than 535, and is asked for no more than the program wants: CULIMBO_SHARE=all,force "
		       "shares such memory there, too";
	default:
		return NULL;
	}
}

const char *cl_note_hint(unsigned int made, unsigned int call, uint32_t result, unsigned int why)
{
	const char *all;

	if (call == CL_CALL_OPEN_HANDLE)
		return open_hint(made, result, why);
	if (cl_call_is_by_descriptor(call))
		return cl_call_is_by_fabric(call) ?
			       "fabric handles are not covered: free what they share only when every importer is done with it" :
		       made == CL_MADE_POOL ?
			       "nothing to do: the pool is shared, and no block of it by this alone" :
			       "nothing to do: the driver keeps such memory as long as anybody has it mapped, or has a "
			       "descriptor of it";
	all = all_hint(made, why);
	return all ? all : made_as[made < CL_MADE_KINDS ? made : CL_MADE_UNKNOWN].hint;
}

const char *cl_ended_word(enum cl_kind kind, bool is_virtual)
{
	return is_virtual ? "unmapped" : kind == CL_EVENT ? "destroyed" : "freed";
}
