/* Writes to a linear device on two ram devices, reads it back, and checks. Built and run by tests/c.rs:
 *
 *     cc -I crates/capi/include crates/capi/examples/hello.c -L target/release -ludm -o hello
 *     LD_LIBRARY_PATH=target/release ./hello
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "udm.h"

static const char *concise =
	"a,,,,0 2048 ram;"
	"b,,,,0 2048 ram;"
	"both,,,,0 2048 linear /dev/mapper/a 0,2048 2048 linear /dev/mapper/b 0";

/* One request, from its submission to its end. */
static void run(udm_queue *queue, const struct udm_request *request)
{
	struct udm_completion done;

	if (udm_queue_submit(queue, request) < 0)
		errx(1, "submit: %s", udm_error());
	if (udm_queue_wait(queue, &done, 1, 1, UDM_FOREVER) != 1)
		errx(1, "wait: %s", udm_error());
	if (done.token != request->token || done.result != 0)
		errx(1, "request %llu: %s", (unsigned long long)done.token, strerror(-done.result));
}

int main(void)
{
	enum { HALF = 4096, AT = 2048 * 512 - HALF }; /* half on each side of the border */
	struct udm_device_info info;
	udm_stack *stack;
	udm_queue *queue;
	char *out = malloc(2 * HALF), *in = malloc(2 * HALF);
	/* Two pieces of memory, in the other order than they lie. */
	struct iovec pieces[2] = { { out + HALF, HALF }, { out, HALF } };
	struct iovec whole = { in, 2 * HALF };
	struct udm_request request = { .offset = AT, .length = 2 * HALF };

	memset(out, 'o', HALF);
	memset(out + HALF, 'u', HALF);
	if (udm_stack_open(concise, &stack) < 0)
		errx(1, "%s", udm_error());
	if (udm_device_info(stack, NULL, &info) < 0)
		errx(1, "%s", udm_error());
	printf("both: %llu bytes in blocks of %u\n", (unsigned long long)info.size, info.logical_block_size);
	if (udm_queue_open(stack, "both", 8, &queue) < 0)
		errx(1, "%s", udm_error());

	request.op = UDM_WRITE;
	request.iov = pieces;
	request.iovcnt = 2;
	request.token = 1;
	run(queue, &request);

	request.op = UDM_READ;
	request.iov = &whole;
	request.iovcnt = 1;
	request.token = 2;
	run(queue, &request);
	printf("read back: %c%c\n", in[0], in[2 * HALF - 1]);
	if (memcmp(in, out + HALF, HALF) || memcmp(in + HALF, out, HALF))
		errx(1, "what was read is not what was written");

	run(queue, &(struct udm_request){ .op = UDM_FLUSH, .token = 3 });
	udm_queue_close(queue);
	udm_stack_close(stack);
	free(out);
	free(in);
	return 0;
}
