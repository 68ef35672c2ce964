/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the pod's name out of a cgroup's path.  Kubernetes writes it in two ways, by its drivers
 * systemd and cgroupfs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tools/common/container.h"

static void pods(void **state)
{
	char to[40];

	(void)state;
	cu_pod_of("/kubepods.slice/kubepods-burstable.slice/"
		  "kubepods-burstable-pod0123abcd_4567_89ab_cdef_0123456789ab.slice/"
		  "cri-containerd-4d1e5b0d8f5f4d0c.scope", to);
	assert_string_equal(to, "0123abcd-4567-89ab-cdef-0123456789ab");
	cu_pod_of("/kubepods/besteffort/pod0123abcd-4567-89ab-cdef-0123456789ab/4d1e5b0d8f5f", to);
	assert_string_equal(to, "0123abcd-4567-89ab-cdef-0123456789ab");
}

static void others(void **state)
{
	char to[40];

	(void)state;
	cu_pod_of("/system.slice/podman-1.scope", to);
	assert_string_equal(to, "");
	cu_pod_of("/kubepods/pod0123abcd-4567-89ab-cdef-0123456789", to);
	assert_string_equal(to, "");
	cu_pod_of("/pod0123abcd-4567-89ab-cdef-0123456789ab0", to);
	assert_string_equal(to, "");
	cu_pod_of("", to);
	assert_string_equal(to, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(pods), cmocka_unit_test(others) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
