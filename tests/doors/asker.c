/* SPDX-License-Identifier: Apache-2.0 */
/* A library that looks symbols up: dlsym sees another caller than the program. */
#include <dlfcn.h>

void *doors_ask(void *handle, const char *name);
void *doors_ask(void *handle, const char *name)
{
	/* volatile: with a jump instead of a call, dlsym would see our caller */
	void *volatile answer = dlsym(handle, name);

	return answer;
}

#ifdef DOORS_NEEDS_DRIVER
/* so that the linker keeps libcuda as a needed library */
int cuInit(unsigned int flags);
int doors_init(void);
int doors_init(void)
{
	return cuInit(0);
}
#endif
