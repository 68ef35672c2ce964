#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Each way to get a call (linked, dlsym, cuGetProcAddress) leads to the right hook, and the
# hook calls the right function.  The driver here only prints which function was called.  So
# does the shim, in libculimbo-stubbed-*.so.
load common.bash

setup_file() {
	build_driver
	build_stubbed O0
	build_stubbed O2
	build_probe
	build_route
}

setup() {
	STUBBED=$T/libculimbo-stubbed-O2.so
	export LD_LIBRARY_PATH=$T/driver
}

# linked_says CALLS...: prints the functions that were called, in one line
linked_says() {
	LD_PRELOAD=$STUBBED "$T/linked" "$@" 2>&1 | tr '\n' ',' | sed 's/,$//'
}

@test "cudart's way in, telling driver: each form of each call" {
	DOORS_HOOKED=1 LD_PRELOAD=$STUBBED "$T/route"
}

@test "cudart's way in, telling driver, no preload: the test itself is right" {
	"$T/route"
}

@test "cudart's way in, a driver that hands out other addresses than dlsym" {
	export CULIMBO_SIM_PROC_ADDRESS=thunk
	"$T/route"
	DOORS_HOOKED=1 LD_PRELOAD=$STUBBED "$T/route"
}

@test "cudart's way in, simulated driver, the library itself" {
	[ -e "$SIM/libcuda.so.1" ] || skip "tools/sim is not built"
	export LD_LIBRARY_PATH=$SIM
	"$T/route"
	DOORS_HOOKED=1 LD_PRELOAD=$LIBRARY "$T/route"
}

@test "cudart's way in, simulated driver with other addresses" {
	[ -e "$SIM/libcuda.so.1" ] || skip "tools/sim is not built"
	export LD_LIBRARY_PATH=$SIM CULIMBO_SIM_PROC_ADDRESS=thunk
	"$T/route"
	DOORS_HOOKED=1 LD_PRELOAD=$LIBRARY "$T/route"
}

@test "linked: every call arrives at the driver's function of the same name" {
	for call in $(nm -D --defined-only "$LIBRARY" | sed -n 's/.* \(cu[A-Z].*\)@CULIMBO_DOOR/\1/p' |
		grep -v cuGetProcAddress); do
		for level in O0 O2; do
			said=$(STUBBED=$T/libculimbo-stubbed-$level.so linked_says "$call")
			echo "$said"
			# culimbo notes events that may be shared, green contexts and peer access in every process
			said=${said/,shim event_created/}; said=${said/,shim pool_exported/}; said=${said/shim watch forks,/}
			said=$(sed 's/,shim \(green_[a-z 0-9]*\|descriptor [0-9]*\|virtual_peer [0-9a-fx]*\)//; s/shim \(make\|call\|no\)_[a-z 0-9-]*,//g' <<<"$said")
			[[ $said == *"driver $call,$call 0"* ]]
		done
	done
}

@test "linked: nobody shares, so nothing is asked of the shim" {
	said=$(linked_says cuMemAlloc_v2 cuMemFree_v2 cuMemFreeAsync cuMemFreeAsync_ptsz \
		cuIpcCloseMemHandle cuEventCreate-plain cuEventDestroy cuEventDestroy_v2 cuCtxDestroy \
		cuCtxDestroy_v2)
	echo "$said"
	[[ $said == "driver cuMemAlloc_v2,cuMemAlloc_v2 0,"*"cuCtxDestroy_v2 0" ]]
	[[ $said != *shim* ]]
	# for calls that release a context, the shim is told when they begin and end
	for call in cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2; do
		same "$(linked_says $call)" "shim call_begin 0,driver $call,shim call_end,$call 0"
	done
	for call in cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2; do
		same "$(linked_says $call)" "shim no_references_wait 0,shim call_begin 0,driver $call,shim no_references 0,shim call_end,$call 0"
	done
	same "$(linked_says cuCtxDetach)" "shim no_references_wait -1,shim call_begin -1,driver cuCtxDetach,shim call_end,cuCtxDetach 0"
}

@test "linked: a process that writes a trace tells when it began to free, and what" {
	export STUB_TRACING=1
	for call in cuMemFree_v2 cuMemFreeAsync cuMemFreeAsync_ptsz; do
		said=$(linked_says $call)
		echo "$said"
		[[ $said == "shim trace now,driver $call,shim trace freed 0x"*" since 1,$call 0,shim end" ]]
	done
	export STUB_SHARING=1
	[[ $(linked_says cuMemFree_v2) == "shim trace now,shim free,driver cuMemFree_v2,shim trace freed "* ]]
	[[ $(linked_says cuMemFreeAsync) == "shim trace now,shim free_async legacy,driver cuMemFreeAsync,shim trace freed "* ]]
	[[ $(linked_says cuMemFreeAsync_ptsz) == "shim trace now,shim free_async per_thread,driver cuMemFreeAsync_ptsz,shim trace freed "* ]]
}

@test "linked: a process that shares comes to the shim with each" {
	export STUB_SHARING=1
	[[ $(linked_says cuMemFree_v2) == "shim free,driver cuMemFree_v2,"* ]]
	[[ $(linked_says cuMemFreeAsync) == "shim free_async legacy,driver cuMemFreeAsync,"* ]]
	[[ $(linked_says cuMemFreeAsync_ptsz) == "shim free_async per_thread,driver cuMemFreeAsync_ptsz,"* ]]
	[[ $(linked_says cuMemMap) == "driver cuMemMap,cuMemMap 0,"* ]]
	# the numbers are those of enum cl_call; 7 stands for a fabric handle
	# after an import the shim is asked about each cuMemMap
	[[ $(linked_says cuMemExportToShareableHandle) == "driver cuMemExportToShareableHandle,shim descriptor 2,"* ]]
	[[ $(linked_says cuMemMap cuMemImportFromShareableHandle cuMemMap) == *"cuMemMap 0,"*"descriptor 4,"* ]]
	[[ $(linked_says cuMemImportFromShareableHandle) == "driver cuMemImportFromShareableHandle,shim descriptor 4,"* ]]
	[[ $(linked_says cuMemPoolExportToShareableHandle) == "driver cuMemPoolExportToShareableHandle,shim descriptor 7,"* ]]
	[[ $(linked_says cuMemPoolImportFromShareableHandle) == "driver cuMemPoolImportFromShareableHandle,shim descriptor 8,"* ]]
	for call in cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemPoolExportToShareableHandle \
		cuMemPoolImportFromShareableHandle; do
		[[ $(DOORS_FAIL=$call:1:1 linked_says $call) == "driver $call,$call 1,"* ]]
	done
	[[ $(linked_says cuIpcGetMemHandle) == "shim export,driver cuIpcGetMemHandle,"* ]]
	[[ $(linked_says cuIpcOpenMemHandle) == "shim import,driver cuIpcOpenMemHandle,"* ]]
	[[ $(linked_says cuIpcOpenMemHandle_v2) == "shim import,driver cuIpcOpenMemHandle_v2,"* ]]
	[[ $(linked_says cuIpcCloseMemHandle) == "shim close,driver cuIpcCloseMemHandle,"* ]]
	[[ $(linked_says cuMemPoolExportPointer) == "shim pool_export,driver cuMemPoolExportPointer,"* ]]
	[[ $(linked_says cuMemPoolImportPointer) == "shim pool_import,driver cuMemPoolImportPointer,"* ]]
	[[ $(linked_says cuMemPoolDestroy) == "shim pool_destroy,driver cuMemPoolDestroy,"* ]]
	[[ $(linked_says cuEventCreate-plain) == "driver cuEventCreate,shim event_is_new,"* ]]
	[[ $(linked_says cuEventDestroy) == "shim event_destroy,driver cuEventDestroy,"* ]]
	[[ $(linked_says cuEventDestroy_v2) == "shim event_destroy,driver cuEventDestroy_v2,"* ]]
	[[ $(linked_says cuIpcGetEventHandle) == "shim event_export,driver cuIpcGetEventHandle,"* ]]
	[[ $(linked_says cuIpcOpenEventHandle) == "shim event_import,driver cuIpcOpenEventHandle,"* ]]
}

@test "pools come to the shim with CULIMBO_SHARE=all, and else not" {
	for call in cuMemAllocAsync cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz \
		cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool cuMemGetDefaultMemPool cuMemGetMemPool \
		cuMemPoolCreate cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolDestroy; do
		same "$(linked_says $call)" "driver $call,$call 0"
	done
	export CULIMBO_SHARE=all
	for call in cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuMemGetDefaultMemPool cuMemGetMemPool; do
		same "$(linked_says $call)" "shim async_before,driver $call,shim async_after,$call 0"
		same "$(DOORS_FAIL=$call:1:1 linked_says $call)" "shim async_before,driver $call,$call 1"
	done
	same "$(linked_says cuDeviceSetMemPool)" "shim async_before,driver cuDeviceSetMemPool,cuDeviceSetMemPool 0"
	for form in "" _ptsz; do
		[ "$form" ] && how=per_thread || how=legacy
		same "$(linked_says cuMemAllocAsync$form)" "shim async_before,driver cuMemAllocAsync$form,cuMemAllocAsync$form 0"
		[[ $(linked_says cuMemAllocFromPoolAsync$form) == "driver cuMemAllocFromPoolAsync$form,"* ]]
		# as where the stream captures: CUDA_ERROR_NOT_SUPPORTED
		[[ $(DOORS_FAIL=cuMemAllocAsync$form:1:801 linked_says cuMemAllocAsync$form) == \
			"shim async_before,driver cuMemAllocAsync$form,shim async_alloc_refused $how (nil) "*",cuMemAllocAsync$form 801" ]]
		[[ $(DOORS_FAIL=cuMemAllocFromPoolAsync$form:1:801 linked_says cuMemAllocFromPoolAsync$form) == \
			"driver cuMemAllocFromPoolAsync$form,shim async_alloc_refused $how "*",cuMemAllocFromPoolAsync$form 801" ]]
	done
	same "$(linked_says cuMemPoolCreate)" "shim async_create,driver cuMemPoolCreate,cuMemPoolCreate 0"
	same "$(linked_says cuMemPoolDestroy)" "shim async_destroy,driver cuMemPoolDestroy,cuMemPoolDestroy 0"
	[[ $(linked_says cuMemPoolGetAttribute) == "shim async_get_attribute,driver cuMemPoolGetAttribute,"* ]]
	[[ $(linked_says cuMemPoolSetAttribute) == "shim async_set_attribute,driver cuMemPoolSetAttribute,"* ]]
	[[ $(linked_says cuMemPoolExportToShareableHandle) == "shim async_to_export,driver cuMemPoolExportToShareableHandle,"* ]]
	[[ $(linked_says cuMemPoolExportPointer) == "shim async_hides 1000,shim pool_export,"* ]]
}

@test "virtual memory comes to the shim with CULIMBO_SHARE=all, and else not" {
	for call in cuMemCreate cuMemMap cuMemAddressReserve cuMemAddressFree cuMemUnmap cuMemRelease \
		cuMemRetainAllocationHandle cuMemGetAllocationPropertiesFromHandle cuPointerGetAttribute \
		cuPointerGetAttributes; do
		same "$(linked_says $call)" "driver $call,$call 0"
		same "$(CULIMBO_SHARE=cuda linked_says $call)" "driver $call,$call 0"
	done
	export CULIMBO_SHARE=all
	same "$(linked_says cuMemCreate)" "shim virtual_create,driver cuMemCreate,cuMemCreate 0"
	same "$(linked_says cuMemRelease)" "shim virtual_release,driver cuMemRelease,cuMemRelease 0"
	same "$(linked_says cuMemUnmap)" "shim virtual_unmap,driver cuMemUnmap,cuMemUnmap 0"
	same "$(linked_says cuMemAddressFree)" "shim virtual_address_free,driver cuMemAddressFree,cuMemAddressFree 0"
	same "$(linked_says cuMemAddressReserve)" "driver cuMemAddressReserve,shim virtual_reserved 4096,cuMemAddressReserve 0"
	same "$(linked_says cuMemMap)" "driver cuMemMap,shim virtual_mapped 77,cuMemMap 0"
	[[ $(linked_says cuMemRetainAllocationHandle) == "driver cuMemRetainAllocationHandle,shim virtual_retained 1000,"* ]]
	[[ $(linked_says cuMemGetAllocationPropertiesFromHandle) == *",shim virtual_properties 77,"* ]]
	[[ $(linked_says cuPointerGetAttribute) == "driver cuPointerGetAttribute,shim virtual_attribute "* ]]
	[[ $(linked_says cuPointerGetAttributes) == "driver cuPointerGetAttributes,shim virtual_attribute "* ]]
	for call in cuMemAddressReserve cuMemMap cuMemRetainAllocationHandle cuMemGetAllocationPropertiesFromHandle; do
		same "$(DOORS_FAIL=$call:1:1 linked_says $call)" "driver $call,$call 1"
	done
	# the driver does not know a hole of an import
	for call in cuPointerGetAttribute cuPointerGetAttributes; do
		same "$(DOORS_FAIL=$call:1:1 linked_says $call)" "driver $call,shim virtual_attribute 14,$call 1"
	done
}

@test "queries come to the shim while another process's virtual memory is open; peer access always does" {
	same "$(linked_says cuMemGetAddressRange_v2)" "driver cuMemGetAddressRange_v2,cuMemGetAddressRange_v2 0"
	export STUB_MIRRORS=1
	[[ $(linked_says cuMemGetAddressRange_v2) == "driver cuMemGetAddressRange_v2,shim virtual_address_range,"* ]]
	[[ $(linked_says cuPointerGetAttribute) == "driver cuPointerGetAttribute,shim virtual_attribute "* ]]
	[[ $(linked_says cuPointerGetAttributes) == "driver cuPointerGetAttributes,shim virtual_attribute "* ]]
	same "$(DOORS_FAIL=cuMemGetAddressRange_v2:1:1 linked_says cuMemGetAddressRange_v2)" "driver cuMemGetAddressRange_v2,shim virtual_address_range,cuMemGetAddressRange_v2 1"
	[[ $(linked_says cuCtxEnablePeerAccess) == "driver cuCtxEnablePeerAccess,shim virtual_peer 0x10,"* ]]
	same "$(DOORS_FAIL=cuCtxEnablePeerAccess:1:704 linked_says cuCtxEnablePeerAccess)" "driver cuCtxEnablePeerAccess,cuCtxEnablePeerAccess 704"
	unset STUB_MIRRORS
	[[ $(linked_says cuCtxEnablePeerAccess) == "driver cuCtxEnablePeerAccess,shim virtual_peer 0x10,"* ]]
}

@test "a context's end is told to the shim: gone when it is, and only then" {
	export STUB_SHARING=1
	for call in cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach cuDevicePrimaryCtxRelease \
		cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2; do
		first='' dropped=''
		case $call in
		*Reset*) first="shim no_references_wait 0," dropped="shim no_references 0," ;;
		*Detach) first="shim no_references_wait -1," ;;
		esac
		said=$(linked_says $call)
		echo "$said"
		[[ $said == "${first}shim context_begin,driver $call,$dropped"*"shim context_gone,$call 0"* ]]
		said=$(DOORS_FAIL=$call:1:201 linked_says $call)
		[[ $said == "${first}shim context_begin,driver $call,$dropped"*"shim context_stays,$call 201"* ]]
	done
	# released or detached, but others still have it
	for call in cuCtxDetach cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2; do
		said=$(DOORS_ACTIVE=1 linked_says $call)
		echo "$said"
		[[ $said == *"shim context_stays,$call 0"* ]]
	done
}

@test "a release beside other references ends nothing, and the driver is asked whether that is so" {
	for sharing in '' 1; do
		[ -z "$sharing" ] || export STUB_SHARING=1
		for call in cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2; do
			begin="shim release_beside_begin 0,driver $call"
			said=$(STUB_BESIDE=1 DOORS_ACTIVE=1 linked_says $call)
			echo "$said"
			[[ $said == "$begin,"*"shim beside_end 0,$call 0"* && $said != *ended_past_us* && $said != *context_* ]]
			said=$(STUB_BESIDE=1 linked_says $call)
			echo "$said"
			lost=${sharing:+shim ended_past_us 0,}
			[[ $said == "$begin,"*"${lost}shim beside_end 0,$call 0"* && ($sharing || $said != *ended_past_us*) ]]
			said=$(STUB_BESIDE=1 DOORS_FAIL=$call:1:201 linked_says $call)
			echo "$said"
			[[ $said == "$begin,shim beside_end 0,$call 201"* ]]
		done
	done
}

@test "a primary context's making is told to the shim, before and after" {
	for sharing in '' 1; do
		[ -z "$sharing" ] || export STUB_SHARING=1
		for fail in none:1:1 cuDevicePrimaryCtxRetain:1:1; do
			said=$(DOORS_FAIL=$fail linked_says cuDevicePrimaryCtxRetain)
			echo "$said"
			case $fail in none*) retained=' retained' ;; *) retained= ;; esac
			[[ $said == "shim make_begin 0,driver cuDevicePrimaryCtxRetain,shim make_end 0$retained,"* ]]
			# beside another reference
			said=$(STUB_BESIDE=1 DOORS_FAIL=$fail linked_says cuDevicePrimaryCtxRetain)
			echo "$said"
			[[ $said == "shim retain_beside_begin 0,driver cuDevicePrimaryCtxRetain,shim beside_end 0$retained,"* ]]
		done
	done
}

@test "a green context's making is told to the shim, and its end as a release of its primary context" {
	says() {
		linked_says "$@" | sed 's/,shim end$//'
	}
	for sharing in '' 1; do
		[ -z "$sharing" ] || export STUB_SHARING=1
		same "$(says cuGreenCtxCreate)" "shim make_begin 0,driver cuGreenCtxCreate,shim make_end 0,shim green_created 0,cuGreenCtxCreate 0"
		same "$(says cuCtxFromGreenCtx)" "driver cuCtxFromGreenCtx,shim green_converted,cuCtxFromGreenCtx 0"
		same "$(DOORS_FAIL=cuGreenCtxCreate:1:1 says cuGreenCtxCreate)" \
			"shim make_begin 0,driver cuGreenCtxCreate,shim make_end 0,cuGreenCtxCreate 1"
		same "$(DOORS_FAIL=cuCtxFromGreenCtx:1:2 says cuCtxFromGreenCtx)" \
			"driver cuCtxFromGreenCtx,cuCtxFromGreenCtx 2"
		[ -z "$sharing" ] || break
		same "$(says cuGreenCtxDestroy)" \
			"shim call_begin -1,driver cuGreenCtxDestroy,shim green_gone,shim call_end,cuGreenCtxDestroy 0"
	done
	export STUB_GREEN=0
	# (another context may get its handle before the shim has noted the end of the primary one)
	same "$(says cuGreenCtxDestroy)" \
		"shim context_begin,driver cuGreenCtxDestroy,shim green_gone,shim context_gone,cuGreenCtxDestroy 0"
	same "$(DOORS_ACTIVE=1 says cuGreenCtxDestroy)" \
		"shim context_begin,driver cuGreenCtxDestroy,shim green_gone,shim context_stays,cuGreenCtxDestroy 0"
	same "$(DOORS_FAIL=cuGreenCtxDestroy:1:201 says cuGreenCtxDestroy)" \
		"shim context_begin,driver cuGreenCtxDestroy,shim green_stays,shim context_stays,cuGreenCtxDestroy 201"
	# its device is not known: it may be any device whose primary context is active
	unset STUB_GREEN
	same "$(says cuGreenCtxDestroy)" "driver cuGreenCtxDestroy,shim green_gone,cuGreenCtxDestroy 0"
	same "$(DOORS_ACTIVE_ONCE=2 says cuGreenCtxDestroy)" \
		"shim context_begin,shim context_begin,driver cuGreenCtxDestroy,shim green_gone,shim context_gone,shim context_gone,cuGreenCtxDestroy 0"
	said=$(DOORS_ACTIVE=1 says cuGreenCtxDestroy | tr ',' '\n')
	echo "$said"
	[ "$(grep -c 'shim context_begin' <<<"$said")" -gt 8 ]
	[ "$(grep -c 'shim context_begin' <<<"$said")" -eq "$(grep -c 'shim context_stays' <<<"$said")" ]
}

@test "an allocation that fails for memory is tried again after the callbacks" {
	for pair in cuMemAlloc_v2:4096 cuMemAllocPitch_v2:3000 cuMemAllocManaged:4096 \
		cuMemAllocAsync:4096 cuMemAllocAsync_ptsz:4096 cuMemAllocFromPoolAsync:4096 \
		cuMemAllocFromPoolAsync_ptsz:4096 cuMemCreate:4096 cuArrayCreate_v2:16000 \
		cuArray3DCreate_v2:4000 cuMipmappedArrayCreate:5332; do
		call=${pair%:*} bytes=${pair#*:}
		said=$(DOORS_FAIL=$call:2:2 STUB_RETRIES=5 linked_says $call)
		same "$said" "driver $call,shim callbacks $bytes 0,driver $call,shim callbacks $bytes 1,driver $call,$call 0"
		# the callbacks have no more memory to give
		said=$(DOORS_FAIL=$call:9:2 STUB_RETRIES=1 linked_says $call)
		same "$said" "driver $call,shim callbacks $bytes 0,driver $call,shim callbacks $bytes 1,$call 2"
		# any other error goes to the program
		same "$(DOORS_FAIL=$call:9:1 STUB_RETRIES=1 linked_says $call)" "driver $call,$call 1"
	done
}

NEEDS_MEMORY="cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxSetLimit cuStreamCreate
	cuStreamCreateWithPriority cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary
	cuLibraryLoadData cuLibraryLoadFromFile cuLibraryGetModule cuLibraryGetGlobal cuKernelGetFunction
	cuGraphInstantiate cuGraphInstantiate_v2 cuGraphInstantiateWithFlags
	cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz cuGraphUpload cuGraphUpload_ptsz"

@test "what needs memory without being an allocation is made again as those are, and asks nothing else" {
	for call in $NEEDS_MEMORY; do
		said=$(DOORS_FAIL=$call:2:2 STUB_RETRIES=5 linked_says $call)
		same "$said" "driver $call,shim callbacks 0 0,driver $call,shim callbacks 0 1,driver $call,$call 0"
		said=$(DOORS_FAIL=$call:9:2 STUB_RETRIES=1 linked_says $call)
		same "$said" "driver $call,shim callbacks 0 0,driver $call,shim callbacks 0 1,$call 2"
		same "$(DOORS_FAIL=$call:9:1 STUB_RETRIES=1 linked_says $call)" "driver $call,$call 1"
		# in a process that shares, a successful call costs nothing more
		said=$(STUB_SHARING=1 linked_says $call)
		same "${said%,shim end}" "driver $call,$call 0"
	done
}

@test "a context that is made again is not in the making while memory is given back" {
	call=cuDevicePrimaryCtxRetain
	made="shim make_begin 0,driver $call,shim make_end 0"
	said=$(DOORS_FAIL=$call:2:2 STUB_RETRIES=5 linked_says $call)
	same "$said" "$made,shim callbacks 0 0,$made,shim callbacks 0 1,$made retained,$call 0"
	call=cuGreenCtxCreate
	made="shim make_begin 0,driver $call,shim make_end 0"
	said=$(DOORS_FAIL=$call:2:2 STUB_RETRIES=5 linked_says $call)
	same "$said" "$made,shim callbacks 0 0,$made,shim callbacks 0 1,$made,shim green_created 0,$call 0"
}

@test "a process that shares says before each allocation that it allocates" {
	for call in cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemAllocManaged cuMemAllocAsync \
		cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemCreate \
		cuArrayCreate_v2 cuArray3DCreate_v2 cuMipmappedArrayCreate; do
		same "$(linked_says $call)" "driver $call,$call 0"
		said=$(STUB_SHARING=1 linked_says $call)
		echo "$said"
		[[ $said == "shim allocates,driver $call,$call 0"* ]]
	done
}

@test "an interprocess event that can't be made is tried again, if this process shares" {
	export STUB_RETRIES=5 DOORS_FAIL=cuEventCreate:2:2
	same "$(linked_says cuEventCreate)" "driver cuEventCreate,cuEventCreate 2"
	export STUB_SHARING=1
	[[ $(linked_says cuEventCreate-plain) == "driver cuEventCreate,cuEventCreate-plain 2"* ]]
	[[ $(linked_says cuEventCreate) == "driver cuEventCreate,shim events 0,driver cuEventCreate,shim events 1,driver cuEventCreate,shim event_is_new,shim event_created,cuEventCreate 0"* ]]
	# refused for another reason than the limit
	[[ $(DOORS_FAIL=cuEventCreate:1:201 linked_says cuEventCreate) == "driver cuEventCreate,cuEventCreate 201"* ]]
}

@test "linked, but no driver anywhere: an error, not an end" {
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -DDOORS_WEAK -o "$BATS_TEST_TMPDIR/driverless" "$HERE/linked.c" \
		-Wl,--unresolved-symbols=ignore-all -Wl,-z,lazy
	said=$(LD_PRELOAD=$STUBBED "$BATS_TEST_TMPDIR/driverless" cuMemAlloc_v2 cuMemFree_v2 2>&1)
	same "$said" "cuMemAlloc_v2 3
cuMemFree_v2 3"
}

@test "a driver that is too old for some of the calls" {
	# the last in the list as well: no function that exists follows it
	echo '{ local: cuGetProcAddress*; cuIpcOpenMemHandle_v2; cuThreadExchangeStreamCaptureMode; };' > "$BATS_TEST_TMPDIR/old.map"
	build_library old/libcuda.so.1 \
		"-Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,--version-script=$BATS_TEST_TMPDIR/old.map" \
		"$HERE/driver.c" "$HERE/driver_more.c"
	export LD_LIBRARY_PATH=$T/old
	# dlerror() does not mention functions that culimbo looks for in vain
	said=$(LD_PRELOAD=$STUBBED "$T/probe" open:libcuda.so.1 lib:cuMemFree_v2 error)
	echo "$said"
	[[ $said == "lib:cuMemFree_v2 $(basename "$STUBBED")+"*"error none" ]]
	same "$(LD_PRELOAD=$STUBBED "$T/probe" open:libcuda.so.1 lib:cuIpcOpenMemHandle_v2 error)" \
		"$("$T/probe" open:libcuda.so.1 lib:cuIpcOpenMemHandle_v2 error)"
	# linked: without culimbo, ld.so would end the program
	same "$(linked_says cuMemAlloc_v2 cuIpcOpenMemHandle_v2)" \
		"driver cuMemAlloc_v2,cuMemAlloc_v2 0,cuIpcOpenMemHandle_v2 500"
}

@test "CULIMBO_DISABLE=1: everything is the driver's own, by each way in" {
	export CULIMBO_DISABLE=1
	LD_PRELOAD=$STUBBED "$T/route"
	export STUB_SHARING=1 STUB_RETRIES=3
	said=$(DOORS_FAIL=cuMemAlloc_v2:1:2 linked_says cuMemAlloc_v2 cuMemFree_v2 cuIpcGetMemHandle cuCtxDestroy_v2)
	echo "$said"
	[[ $said == "driver cuMemAlloc_v2,cuMemAlloc_v2 2,driver cuMemFree_v2,cuMemFree_v2 0,driver cuIpcGetMemHandle,cuIpcGetMemHandle 0,driver cuCtxDestroy_v2,cuCtxDestroy_v2 0"* ]]
}

@test "another interposer of the same call, before us and after us: both see it, once" {
	build_library other-next.so "" "$HERE/interposer.c"
	build_library other-handle.so -DDOORS_BY_HANDLE "$HERE/interposer.c"
	export DOORS_FAIL=cuMemAlloc_v2:1:2 STUB_RETRIES=1
	wanted="other cuMemAlloc_v2
driver cuMemAlloc_v2
shim callbacks 4096 0
driver cuMemAlloc_v2
cuMemAlloc_v2 0"
	for level in O0 O2; do
		ours=$T/libculimbo-stubbed-$level.so
		for other in other-next.so other-handle.so; do
			same "$(LD_PRELOAD=$ours:$T/$other "$T/linked" cuMemAlloc_v2 2>&1)" "$wanted"
			same "$(LD_PRELOAD=$T/$other:$ours "$T/linked" cuMemAlloc_v2 2>&1)" "$wanted"
		done
		# two interposers: the first must reach the second
		same "$(LD_PRELOAD=$T/other-handle.so:$T/other-next.so:$ours "$T/linked" cuMemAlloc_v2 2>&1)" "$wanted"
		cp "$T/other-next.so" "$T/other-too.so"
		same "$(LD_PRELOAD=$T/other-next.so:$T/other-too.so:$ours "$T/linked" cuMemAlloc_v2 2>&1)" \
			"other cuMemAlloc_v2
$wanted"
		same "$(LD_PRELOAD=$ours:$T/other-next.so:$T/other-too.so "$T/linked" cuMemAlloc_v2 2>&1)" \
			"other cuMemAlloc_v2
$wanted"
	done
}

@test "the driver used in a constructor that runs before ours" {
	build_library early.so "" "$HERE/early.c"
	export DOORS_EARLY=dlsym
	same "$(LD_PRELOAD=$STUBBED:$T/early.so "$(type -P true)")" "early $(basename "$STUBBED")"
	same "$(CULIMBO_DISABLE=1 LD_PRELOAD=$STUBBED:$T/early.so "$(type -P true)")" "early libcuda.so.1"
}

@test "a wrong option is told of where CUDA is used, once, and not in every shell" {
	export CULIMBO_GRACE=nonsense
	same "$(LD_PRELOAD=$STUBBED sh -c : 2>&1)" ""
	[ "$(LD_PRELOAD=$STUBBED "$T/linked" cuMemAlloc_v2 cuMemFree_v2 2>&1 | grep -c CULIMBO_GRACE)" = 1 ]
}
