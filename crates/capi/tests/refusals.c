/* What a caller can get wrong, and what it is told. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "udm.h"

static void told(const char *what, int answer)
{
	printf("%s: %s: %s\n", what, answer < 0 ? strerror(-answer) : "taken", udm_error());
}

int main(void)
{
	static char memory[8192];
	struct iovec iov = { memory, 4096 }, two[2] = { { memory, 512 }, { memory, 512 } };
	struct udm_completion done[4];
	struct udm_device_info info;
	udm_stack *stack = NULL;
	udm_queue *queue = NULL;
	int answer;

	printf("nothing yet: '%s'\n", udm_error());
	told("no specification", udm_stack_open(NULL, &stack));
	told("nowhere to go", udm_stack_open("r,,,,0 8 ram", NULL));
	told("unknown target", udm_stack_open("r,,,,0 8 rom", &stack));
	told("no UTF-8", udm_stack_open("\xff", &stack));
	if (udm_stack_open("r,,,,0 64 ram", &stack) < 0)
		return 1;
	told("unknown device", udm_device_info(stack, "x", &info));
	told("no information", udm_device_info(stack, "r", NULL));
	told("no depth", udm_queue_open(stack, "r", 0, &queue));
	told("unknown device", udm_queue_open(stack, "x", 1, &queue));
	if (udm_queue_open(stack, NULL, 2, &queue) < 0)
		return 1;
	told("no request", udm_queue_submit(queue, NULL));
	told("operation", udm_queue_submit(queue, &(struct udm_request){ .op = 9 }));
	told("flags", udm_queue_submit(queue, &(struct udm_request){ .op = UDM_FLUSH, .flags = 256 }));
	told("no memory", udm_queue_submit(queue, &(struct udm_request){ .op = UDM_READ, .length = 512 }));
	told("short memory",
	     udm_queue_submit(queue, &(struct udm_request){ .op = UDM_READ, .length = 8192, .iov = &iov, .iovcnt = 1 }));
	told("unaligned",
	     udm_queue_submit(queue, &(struct udm_request){ .op = UDM_READ, .offset = 1, .length = 4096, .iov = &iov, .iovcnt = 1 }));
	told("no place", udm_queue_poll(queue, NULL, 1));

	/* These are taken, and end with an error. */
	udm_queue_submit(queue, &(struct udm_request){ .op = UDM_READ, .offset = 32768, .length = 4096, .iov = &iov, .iovcnt = 1, .token = 1 });
	udm_queue_submit(queue, &(struct udm_request){ .op = UDM_READ, .length = 2048, .iov = two, .iovcnt = 2, .token = 2 });
	answer = udm_queue_wait(queue, done, 2, 4, UDM_FOREVER);
	printf("%d have ended:", answer);
	for (int i = 0; i < answer; i++)
		printf(" %llu %s;", (unsigned long long)done[i].token, strerror(-done[i].result));
	printf("\nnothing is out: %d\n", udm_queue_wait(queue, done, 1, 4, UDM_FOREVER));
	udm_queue_close(queue);
	udm_stack_close(stack);
	udm_queue_close(NULL);
	udm_stack_close(NULL);
	return 0;
}
