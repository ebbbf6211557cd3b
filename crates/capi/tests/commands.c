/* Devices made, changed and taken down by commands on an open stack. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "udm.h"

static udm_stack *stack;

#define RUN(...) run((const char *const[]){ __VA_ARGS__, NULL })

static void run(const char *const *argv)
{
	char *text = NULL;
	int answer = udm_command(stack, argv, &text);

	printf("%s:", argv[0]);
	if (answer < 0)
		printf(" %s: %s\n", strerror(-answer), udm_error());
	else
		printf("%s%s", *text ? "\n" : " done\n", text);
	udm_text_free(text);
}

int main(void)
{
	udm_queue *queue;

	if (udm_stack_open("", &stack) < 0) {
		puts(udm_error());
		return 1;
	}
	RUN("ls");
	RUN("create", "a", "--table", "0 2048 ram");
	RUN("create", "b", "--uuid", "U", "--notable");
	RUN("load", "b", "--table", "0 1024 linear /dev/mapper/a 0\n1024 8 zero");
	RUN("table", "--inactive", "b");
	RUN("resume", "b");
	RUN("table");
	RUN("status", "b");
	RUN("suspend", "b");
	RUN("info", "-c", "--noheadings", "-o", "name,uuid,attr");
	RUN("resume", "b");
	RUN("message", "b", "0", "hello");
	RUN("load", "b", "--table", "0 8 linaer");
	RUN("remove", "a");
	if (udm_queue_open(stack, "b", 1, &queue) < 0)
		return 1;
	RUN("remove", "b");
	udm_queue_close(queue);
	RUN("remove", "b");
	RUN("frobnicate");
	printf("no words: %s\n", strerror(-udm_command(stack, NULL, NULL)));
	udm_stack_close(stack);
	return 0;
}
