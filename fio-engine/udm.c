/* fio's way into a stack of udm's, in fio's own process: an external ioengine.
 *
 * `concise` makes the stack, `filename` names a device of it; without one the last device is meant. Jobs with the same
 * specification share one stack, which they can only as threads: `thread=1` is demanded. See docs/src/fio.md.
 *
 * Built by `make fio-engine FIO_SRC=dir` against the headers of the very fio that loads it: the layout of its structures
 * changes from version to version, and fio checks FIO_IOOPS_VERSION.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include "udm.h"

/* A stack and who uses it. */
struct shared {
	struct shared *next;
	char *concise;
	udm_stack *stack;
	unsigned int users;
};

static struct shared *stacks;
static pthread_mutex_t stacks_lock = PTHREAD_MUTEX_INITIALIZER;

/* A job. */
struct job {
	struct shared *shared;
	udm_queue *queue;
	unsigned int flags;
	struct iovec *iov; /* by io_u's index */
	struct udm_completion *done;
	struct io_u **units; /* by io_u's index */
	unsigned int depth;
};

struct options {
	void *pad; /* fio takes an offset of 0 for no option */
	char *concise;
	unsigned int hipri;
	unsigned int spin;
};

static struct fio_option options[] = {
	{
		.name = "concise",
		.lname = "udm devices",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct options, concise),
		.help = "The devices, as `udm create --concise` takes them: NAME,UUID,MINOR,FLAGS,TABLE[,TABLE...][;...]",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "udm_hipri",
		.lname = "Polled requests",
		.type = FIO_OPT_STR_SET,
		.off1 = offsetof(struct options, hipri),
		.help = "Submit polled requests, and poll for them",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "udm_spin",
		.lname = "Never sleep",
		.type = FIO_OPT_STR_SET,
		.off1 = offsetof(struct options, spin),
		.help = "Ask for completions in turns rather than sleep until there are some",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

/* The stack of a specification, made by whoever comes first. */
static struct shared *take(const char *concise)
{
	struct shared *shared;

	pthread_mutex_lock(&stacks_lock);
	for (shared = stacks; shared; shared = shared->next)
		if (!strcmp(shared->concise, concise))
			break;
	if (!shared) {
		shared = calloc(1, sizeof(*shared));
		if (shared)
			shared->concise = strdup(concise);
		if (!shared || !shared->concise) {
			log_err("udm: no memory\n");
			free(shared);
			shared = NULL;
		} else if (udm_stack_open(concise, &shared->stack) < 0) {
			log_err("udm: %s\n", udm_error());
			free(shared->concise);
			free(shared);
			shared = NULL;
		} else {
			shared->next = stacks;
			stacks = shared;
		}
	}
	if (shared)
		shared->users++;
	pthread_mutex_unlock(&stacks_lock);
	return shared;
}

/* What `filename` says; fio makes names of its own up when it says nothing. */
static const char *device_of(struct thread_data *td)
{
	return td->o.filename;
}

/* Whether the job stays on the device. fio would cut it short in silence, or let its requests fail. */
static int fits(struct thread_data *td, unsigned long long size)
{
	struct thread_options *o = &td->o;
	unsigned long long start = o->start_offset + o->offset_increment * td->subjob_number;

	if (start < size && o->size <= size - start)
		return 1;
	log_err("udm: offset %llu and size %llu: the device has %llu bytes; expected at most these\n", start, o->size, size);
	return 0;
}

/* Before the jobs begin: the devices and their size. The use that is taken here stays until fio ends, so that devices in
 * memory keep what one job wrote for the next. */
static int udm_setup(struct thread_data *td)
{
	struct options *o = td->eo;
	struct udm_device_info info;
	struct shared *shared;

	if (!o->concise) {
		log_err("udm: concise= is missing: expected NAME,UUID,MINOR,FLAGS,TABLE, as concise=disk,,,,0 2097152 ram\n");
		return 1;
	}
	if (!td->o.use_thread) {
		log_err("udm: thread=1 is missing: jobs that are processes would have a stack each\n");
		return 1;
	}
	if (td->files_index > 1) {
		log_err("udm: %u filenames: a job has one device; give each device a job\n", td->files_index);
		return 1;
	}
	shared = take(o->concise);
	if (!shared)
		return 1;
	if (!td->files_index) {
		add_file(td, "", 0, 1);
		td->o.nr_files = td->o.nr_files ?: 1;
		td->o.open_files++;
	}
	if (udm_device_info(shared->stack, device_of(td), &info) < 0) {
		log_err("udm: %s\n", udm_error());
		return 1;
	}
	if (!fits(td, info.size))
		return 1;
	td->files[0]->filetype = FIO_TYPE_BLOCK;
	td->files[0]->real_file_size = info.size;
	fio_file_set_size_known(td->files[0]);
	return 0;
}

static int udm_init(struct thread_data *td)
{
	struct options *o = td->eo;
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return 1;
	td->io_ops_data = job;
	job->depth = td->o.iodepth;
	job->flags = o->hipri ? UDM_HIPRI : 0;
	job->iov = calloc(job->depth, sizeof(*job->iov));
	job->done = calloc(job->depth, sizeof(*job->done));
	job->units = calloc(job->depth, sizeof(*job->units));
	job->shared = take(o->concise);
	if (!job->iov || !job->done || !job->units || !job->shared)
		return 1;
	if (udm_queue_open(job->shared->stack, device_of(td), job->depth, &job->queue) < 0) {
		log_err("udm: %s\n", udm_error());
		return 1;
	}
	return 0;
}

static void udm_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	udm_queue_close(job->queue);
	free(job->iov);
	free(job->done);
	free(job->units);
	free(job);
	td->io_ops_data = NULL;
}

static enum fio_q_status udm_queue_io(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	struct udm_request request = { .offset = io_u->offset, .length = io_u->xfer_buflen, .flags = job->flags };
	int answer;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		request.op = UDM_READ;
		break;
	case DDIR_WRITE:
		request.op = UDM_WRITE;
		break;
	case DDIR_TRIM:
		request.op = UDM_DISCARD;
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		request.op = UDM_FLUSH;
		request.offset = 0;
		request.length = 0;
		break;
	default:
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}
	if (request.op == UDM_READ || request.op == UDM_WRITE) {
		job->iov[io_u->index] = (struct iovec){ io_u->xfer_buf, io_u->xfer_buflen };
		request.iov = &job->iov[io_u->index];
		request.iovcnt = 1;
	}
	request.token = io_u->index;
	job->units[io_u->index] = io_u;
	answer = udm_queue_submit(job->queue, &request);
	if (answer == -EAGAIN)
		return FIO_Q_BUSY;
	if (answer < 0) {
		log_err("udm: %s\n", udm_error());
		io_u->error = -answer;
		return FIO_Q_COMPLETED;
	}
	return FIO_Q_QUEUED;
}

static int udm_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
	struct job *job = td->io_ops_data;
	struct options *o = td->eo;
	uint64_t timeout = t ? t->tv_sec * 1000000000ull + t->tv_nsec : UDM_FOREVER;
	int there = 0, more;

	if (max > job->depth)
		max = job->depth;
	/* Polls as long as polled requests are out. */
	if (!o->spin)
		return udm_queue_wait(job->queue, job->done, min, max, timeout);
	do {
		more = udm_queue_poll(job->queue, job->done + there, max - there);
		if (more < 0)
			return more;
		there += more;
	} while ((unsigned int)there < min && !td->terminate);
	return there;
}

static struct io_u *udm_event(struct thread_data *td, int event)
{
	struct job *job = td->io_ops_data;
	struct udm_completion *done = &job->done[event];
	struct io_u *io_u = job->units[done->token];

	io_u->error = -done->result;
	io_u->resid = done->result ? io_u->xfer_buflen : 0;
	return io_u;
}

/* The queue is opened with the job, and a device needs no opening of its own. */
static int udm_open_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int udm_close_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int udm_get_file_size(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "udm",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_RAWIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_DISKLESSIO | FIO_MEMALIGN,
	.setup = udm_setup,
	.init = udm_init,
	.cleanup = udm_cleanup,
	.queue = udm_queue_io,
	.getevents = udm_getevents,
	.event = udm_event,
	.open_file = udm_open_file,
	.close_file = udm_close_file,
	.get_file_size = udm_get_file_size,
	.options = options,
	.option_struct_size = sizeof(struct options),
};
