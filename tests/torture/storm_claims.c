/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which context of an importer may open which block of cuMemAlloc() memory.
 *
 * The driver refuses such a handle in a context while another context of the same device has the block open
 * (doc/measurements.md).  So a thread claims a block before it opens it, and plays something else if it gets no claim.
 * What is refused then is refused by culimbo, and wrong.
 */
#include <pthread.h>

#include "tests/torture/storm.h"

static struct claims {
	pthread_mutex_t lock;
	struct claim {
		uint64_t token;
		CUdevice device;
		int owner;	/* of the context */
		unsigned int n; /* so many opens */
	} claim[THREADS * KEPT + POOL];
	int n;
} claims = { .lock = PTHREAD_MUTEX_INITIALIZER };

static __thread int owner;

void claims_are_of(int context)
{
	owner = context;
}

bool claim(uint64_t token)
{
	struct claim *mine = NULL;
	CUdevice device = 0;
	bool granted = true;

	cu.cuCtxGetDevice(&device);
	pthread_mutex_lock(&claims.lock);
	for (struct claim *c = claims.claim; c < claims.claim + claims.n; c++) {
		if (c->token != token || c->device != device)
			continue;
		mine = c->owner == owner ? c : mine;
		granted &= c->owner == owner;
	}
	if (granted && !mine) {
		mine = &claims.claim[claims.n++];
		*mine = (struct claim){ .token = token, .device = device, .owner = owner };
	}
	if (granted)
		mine->n++;
	pthread_mutex_unlock(&claims.lock);
	return granted;
}

/* Ends the claim @c, of which only the place is needed. */
static void end(struct claim *c)
{
	*c = claims.claim[--claims.n];
}

void claim_end(uint64_t token)
{
	pthread_mutex_lock(&claims.lock);
	for (int i = claims.n; i-- > 0;)
		if (claims.claim[i].token == token && claims.claim[i].owner == owner) {
			if (!--claims.claim[i].n)
				end(&claims.claim[i]);
			break;
		}
	pthread_mutex_unlock(&claims.lock);
}

void claims_end(void)
{
	pthread_mutex_lock(&claims.lock);
	for (int i = claims.n; i-- > 0;)
		if (claims.claim[i].owner == owner)
			end(&claims.claim[i]);
	pthread_mutex_unlock(&claims.lock);
}
