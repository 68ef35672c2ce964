/* SPDX-License-Identifier: Apache-2.0 */
/* A library that looks symbols up for itself: for dlsym it is another caller than the program. */
#include <dlfcn.h>

void *doors_ask(void *handle, const char *name);
void *doors_ask(void *handle, const char *name)
{
	/* volatile: a jump instead of a call would make our caller the one who asks */
	void *volatile answer = dlsym(handle, name);

	return answer;
}

#ifdef DOORS_NEEDS_DRIVER
/* so that the linker keeps libcuda among our needs */
int cuInit(unsigned int flags);
int doors_init(void);
int doors_init(void)
{
	return cuInit(0);
}
#endif
