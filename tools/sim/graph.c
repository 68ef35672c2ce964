/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs, which captures make and which can be instantiated.  Their operations are not kept, so
 * none can be launched.  On a GPU, instantiating and uploading take device memory: see
 * sim_memory_needed().
 */
#include <stdlib.h>

#include "sim.h"

#define GRAPH_MAGIC UINT32_C(0x67726630)
#define EXEC_MAGIC UINT32_C(0x67726530)

#if CUDA_VERSION >= 12000
typedef CUDA_GRAPH_INSTANTIATE_PARAMS instantiate_params;
#else
typedef void instantiate_params;
#endif

static CUresult make(uint32_t magic, void **handle)
{
	uint32_t *made = malloc(sizeof(*made));

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = magic;
	*handle = made;
	return CUDA_SUCCESS;
}

static CUresult destroy(uint32_t magic, void *handle)
{
	CUresult result = sim_ready();
	uint32_t *made = handle;

	if (result)
		return result;
	if (!made || *made != magic)
		return CUDA_ERROR_INVALID_VALUE;
	*made = 0;
	free(made);
	return CUDA_SUCCESS;
}

CUresult sim_graph_new(CUgraph *graph)
{
	return make(GRAPH_MAGIC, (void **)graph);
}

SIM_CALL(cuGraphDestroy, (CUgraph graph))
{
	return destroy(GRAPH_MAGIC, graph);
}

SIM_CALL(cuGraphExecDestroy, (CUgraphExec exec))
{
	return destroy(EXEC_MAGIC, exec);
}

SIM_CALL(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags))
{
	const uint32_t *made = (const uint32_t *)graph;
	struct sim_context *context;
	CUresult result = sim_enter(&context);

	if (result)
		return result;
	if (!exec || !made || *made != GRAPH_MAGIC)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		result = sim_memory_needed(context->device);
	if (!result)
		result = make(EXEC_MAGIC, (void **)exec);
	sim_leave();
	return result;
}

SIM_CALL(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes))
{
	return cuGraphInstantiateWithFlags(exec, graph, 0);
}

SIM_CALL(cuGraphInstantiate_v2,
	 (CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes))
{
	return cuGraphInstantiateWithFlags(exec, graph, 0);
}

SIM_CALL(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, instantiate_params *with))
{
	return with ? cuGraphInstantiateWithFlags(exec, graph, 0) : CUDA_ERROR_INVALID_VALUE;
}

SIM_CALL(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *exec, CUgraph graph, instantiate_params *with))
{
	return cuGraphInstantiateWithParams(exec, graph, with);
}

SIM_CALL(cuGraphUpload, (CUgraphExec exec, CUstream handle))
{
	const uint32_t *made = (const uint32_t *)exec;
	struct sim_context *context;
	CUresult result = sim_enter(&context);
	struct sim_stream *stream;

	if (result)
		return result;
	result = made && *made == EXEC_MAGIC ? sim_stream_get(context, handle, &stream) :
					       CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = sim_memory_needed(context->device);
	sim_leave();
	return result;
}

SIM_CALL(cuGraphUpload_ptsz, (CUgraphExec exec, CUstream handle))
{
	return cuGraphUpload(exec, SIM_PER_THREAD(handle));
}
