/* libudm: the Linux device mapper in user space, in a program of one's own.
 *
 * A stack is the devices of one concise specification, as `udm create --concise` takes it; any thread may use it. A
 * queue is one thread's way to one device: only the thread that opened it uses and closes it.
 *
 *     udm_stack *stack;
 *     udm_queue *queue;
 *     if (udm_stack_open("disk,,,,0 2097152 ram", &stack) < 0) errx(1, "%s", udm_error());
 *     if (udm_queue_open(stack, "disk", 32, &queue) < 0) errx(1, "%s", udm_error());
 *     struct iovec memory = { buffer, 4096 };
 *     struct udm_request read = { .op = UDM_READ, .offset = 0, .length = 4096, .iov = &memory, .iovcnt = 1, .token = 7 };
 *     struct udm_completion done;
 *     udm_queue_submit(queue, &read);
 *     udm_queue_wait(queue, &done, 1, 1, UDM_FOREVER);
 *
 * Calls answer 0 or a count, or an errno negated, whose text udm_error() has.
 *
 * Made by `cargo xtask header`.
 */
#ifndef UDM_H
#define UDM_H

#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct udm_stack udm_stack;
typedef struct udm_queue udm_queue;

/* What went wrong in this thread's last call that failed: which device, what was expected, what was found. Stays until
 * the thread's next failure. Never null.
 */
const char *udm_error(void);

enum {
	/* A flag of a device: writes are refused. */
	UDM_DEVICE_READ_ONLY = 1,
	/* A flag of a device: takes UDM_DISCARD. */
	UDM_DEVICE_DISCARD = 2,
	/* A flag of a device: UDM_HIPRI requests can be polled for. */
	UDM_DEVICE_POLL = 4,
};

/* What a device is like. */
struct udm_device_info {
	/* In bytes. */
	uint64_t size;
	/* In bytes: offsets and lengths are multiples of it. */
	uint32_t logical_block_size;
	/* In bytes: other memory is copied. */
	uint32_t memory_alignment;
	/* In bytes; 0 when it takes none. */
	uint32_t discard_granularity;
	/* UDM_DEVICE_READ_ONLY and the others. */
	uint32_t flags;
};

/* Makes every device of `concise` and makes it live; an empty text makes none, and udm_command may. May block: it
 * opens devices. Close it with udm_stack_close.
 */
int udm_stack_open(const char *concise, udm_stack **stack);

/* Takes the devices down. Every queue must be closed before. Null is allowed. May block. */
void udm_stack_close(udm_stack *stack);

/* What the device is like now; null names the last of the specification. */
int udm_device_info(const udm_stack *stack, const char *device, struct udm_device_info *info);

/* Runs one of dmsetup's commands on the stack: create, load, suspend, resume, message, status, table, info, remove and
 * the others, with their options. `argv` are its words, the last followed by null:
 *
 *     const char *const argv[] = { "create", "vol", "--table", "0 2097152 ram", NULL };
 *
 * `*output` gets what it prints, to be freed by udm_text_free; null when nobody wants it. With `--json`, info, table,
 * status and ls print JSON. What goes wrong is an errno negated, with the command's words in udm_error(). Any thread
 * may call it. It blocks as long as the command does: `wait` until there is an event. A device with an open queue is
 * not removed (-EBUSY).
 */
int udm_command(udm_stack *stack, const char *const *argv, char **output);

/* Frees a text of udm_command. Null is allowed. */
void udm_text_free(char *text);

enum {
	/* An operation: reads into the memory. */
	UDM_READ = 0,
	/* An operation: writes the memory. */
	UDM_WRITE = 1,
	/* An operation: what completed before is durable when it completes; offset and length are 0. */
	UDM_FLUSH = 2,
	/* An operation: nobody needs what is there. */
	UDM_DISCARD = 3,
	/* An operation: writes zeroes. */
	UDM_WRITE_ZEROES = 4,
};

enum {
	/* A flag of a write: durable when it completes. */
	UDM_FUA = 1,
	/* A flag: polled, completes when udm_queue_poll or udm_queue_wait asks; as others where the device cannot. */
	UDM_HIPRI = 2,
	/* A flag of zeroes: stay allocated. */
	UDM_NO_UNMAP = 4,
};

/* A request. */
struct udm_request {
	/* UDM_READ and the others. */
	uint32_t op;
	/* UDM_FUA and the others. */
	uint32_t flags;
	/* In bytes; a multiple of 512. */
	uint64_t offset;
	/* In bytes; a multiple of 512. */
	uint64_t length;
	/* Reads and writes: memory of `length` bytes. It stays until the completion has been taken; so does the list when
	 * it has more than one entry.
	 */
	const struct iovec *iov;
	/* Entries of the list. */
	uint32_t iovcnt;
	/* 0. */
	uint32_t reserved;
	/* Comes back with the completion. */
	uint64_t token;
};

/* A request that has ended. */
struct udm_completion {
	/* The request's. */
	uint64_t token;
	/* 0, or an errno negated. */
	int32_t result;
	/* 0. */
	uint32_t reserved;
};

/* A timeout that never comes. */
#define UDM_FOREVER UINT64_MAX

/* A way to a device for this thread, with at most `depth` (1 to 65536) requests out. Null names the last device. A
 * process has at most 256 queues at a time.
 */
int udm_queue_open(const udm_stack *stack, const char *device, unsigned int depth, udm_queue **queue);

/* Every request must have completed. Null is allowed. */
void udm_queue_close(udm_queue *queue);

/* Submits a request; the struct itself may go at once. -EAGAIN when as many are out as the queue is deep: poll first.
 * A request that the device refuses completes with an error. Never blocks.
 */
int udm_queue_submit(udm_queue *queue, const struct udm_request *request);

/* Starts what is queued and takes at most `max` completions. Never blocks. */
int udm_queue_poll(udm_queue *queue, struct udm_completion *out, unsigned int max);

/* As udm_queue_poll, but sleeps (while polled requests are out: polls) until `min` have completed, nothing is out, or
 * `timeout_ns` have passed. Returns how many there are, which may be fewer than `min`.
 */
int udm_queue_wait(udm_queue *queue, struct udm_completion *out, unsigned int min, unsigned int max,
	uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif

#endif
