/* Polled requests: they wait until somebody asks, be it by polling or by waiting, and where a device cannot be polled they
 * complete like others. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "udm.h"

enum { BS = 4096, DEPTH = 16 };

static void try(const char *device, udm_stack *stack)
{
	struct udm_completion done[DEPTH];
	struct udm_device_info info;
	udm_queue *queue;
	char *memory = aligned_alloc(4096, DEPTH * BS);
	unsigned int seen = 0;
	int i, n, at_once = 0;

	if (udm_device_info(stack, device, &info) < 0 || udm_queue_open(stack, device, DEPTH, &queue) < 0)
		errx(1, "%s", udm_error());
	for (int round = 0; round < 2; round++) {
		for (i = 0; i < DEPTH; i++) {
			struct iovec iov = { memory + i * BS, BS };
			struct udm_request request = {
				.op = round ? UDM_READ : UDM_WRITE, .flags = UDM_HIPRI, .offset = i * BS, .length = BS,
				.iov = &iov, .iovcnt = 1, .token = i,
			};

			memset(iov.iov_base, round ? 0 : 'a' + i, BS);
			if (udm_queue_submit(queue, &request) < 0)
				errx(1, "%s", udm_error());
		}
		/* The first half by polling, the rest by waiting. */
		for (i = 0; i < DEPTH; i += n) {
			n = i < DEPTH / 2 ? udm_queue_poll(queue, done, 1) : udm_queue_wait(queue, done, 1, DEPTH, UDM_FOREVER);
			if (n < 0)
				errx(1, "%s", udm_error());
			for (int j = 0; j < n; j++) {
				if (done[j].result)
					errx(1, "%s", strerror(-done[j].result));
				seen ^= 1u << done[j].token;
			}
		}
		if (udm_queue_wait(queue, done, 1, 1, 0) != 0)
			errx(1, "something completed twice");
	}
	for (i = 0; i < DEPTH; i++)
		at_once += memory[i * BS] == 'a' + i && memory[i * BS + BS - 1] == 'a' + i;
	printf("%s: %s, %d right, %s\n", device, info.flags & UDM_DEVICE_POLL ? "can be polled" : "cannot be polled", at_once,
	       seen ? "some once" : "each twice");
	udm_queue_close(queue);
	free(memory);
}

int main(void)
{
	udm_stack *stack;

	if (udm_stack_open("p,,,,0 2048 linear null:size=1M:poll_queues=1:latency_us=5:memory=1 0;"
			   "i,,,,0 2048 linear null:size=1M:latency_us=5:memory=1 0;r,,,,0 2048 ram", &stack) < 0)
		errx(1, "%s", udm_error());
	try("p", stack);
	try("i", stack);
	try("r", stack);
	udm_stack_close(stack);
	return 0;
}
