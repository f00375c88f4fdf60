/* The requests of one operation on a file, in threads that never need Python: what `native.py`
 * drives, and where it says who may do what when. Made by scripts/compile_loop.py.
 *
 *     begin ---> feed(part) ---> feed(part) ---> finish: takes requests itself, then joins
 *                    thread: request, request, ... waits for the next part, ...
 *
 * A request is a row of three int64: position in the file, offset in the memory region, size.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_THREADS = 256, STACK_BYTES = 256 << 10 };

typedef ssize_t (*transfer)(int fd, void *memory, size_t size, off_t position);

struct part {
    struct part *next;
    const int64_t *rows; /* the caller's, until `finish` has returned */
    int64_t count;
    atomic_llong taken; /* rows that somebody has begun, and those asked for beyond the end */
};

struct operation;

struct helper {
    struct operation *op;
    int fd;
    pthread_t thread;
};

struct operation {
    int fd;         /* the caller's */
    const int *own; /* one for each helper, in turn: see native.py */
    int own_count;
    transfer call;
    char *region;
    int64_t step; /* after a short answer it goes on at a multiple of this */
    atomic_long *spare; /* threads that may still be started; shared by operations */

    pthread_mutex_t lock; /* of `first`, `last`, `closed`, and of the first failure */
    pthread_cond_t more;
    struct part *first, *last;
    int closed;

    atomic_int failed;
    int64_t failure[2]; /* position in the file; errno, or 0 where nothing more was moved */

    int64_t fed;
    int started;
    struct helper helpers[MOST_THREADS];
};

static void fail(struct operation *op, int64_t position, int code) {
    pthread_mutex_lock(&op->lock);
    if (!op->failed) {
        op->failure[0] = position;
        op->failure[1] = code;
        op->failed = 1;
    }
    pthread_mutex_unlock(&op->lock);
}

static void move(struct operation *op, int fd, const int64_t *row) {
    int64_t position = row[0], memory = row[1], size = row[2];
    while (size) {
        int64_t done = op->call(fd, op->region + memory, size, position);
        if (done < 0) {
            if (errno == EINTR) continue;
            fail(op, position, errno);
            return;
        }
        if (done < size) done -= done % op->step;
        if (!done) {
            fail(op, position, 0);
            return;
        }
        position += done, memory += done, size -= done;
    }
}

/* The part behind `part`, the first one behind NULL; waits for it. NULL: there is none. */
static struct part *after(struct operation *op, struct part *part) {
    struct part *next;
    pthread_mutex_lock(&op->lock);
    while (!(next = part ? part->next : op->first) && !op->closed)
        pthread_cond_wait(&op->more, &op->lock);
    pthread_mutex_unlock(&op->lock);
    return next;
}

static void work(struct operation *op, int fd) {
    struct part *part = NULL;
    while ((part = after(op, part)) != NULL) {
        int64_t row;
        while (!op->failed && (row = atomic_fetch_add(&part->taken, 1)) < part->count)
            move(op, fd, part->rows + 3 * row);
    }
}

static void *help(void *argument) {
    struct helper *helper = argument;
    struct operation *op = helper->op;
    work(op, helper->fd);
    atomic_fetch_add(op->spare, 1);
    return NULL;
}

/* Threads for what was fed: one for each request at most, and none once all are taken. */
static void start_threads(struct operation *op) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all); /* signals are Python's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (op->started < MOST_THREADS && op->started < op->fed - 1 &&
           atomic_load(&op->last->taken) < op->last->count) {
        struct helper *next = &op->helpers[op->started];
        next->op = op;
        next->fd = op->own_count ? op->own[op->started % op->own_count] : op->fd;
        if (atomic_fetch_sub(op->spare, 1) <= 0 ||
            pthread_create(&next->thread, &attributes, help, next)) {
            atomic_fetch_add(op->spare, 1);
            break;
        }
        op->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* `own`: further descriptors of the file, as many as `own_count`, until `finish` has returned.
 * `call`: NULL, or what takes the place of pread and pwrite. NULL: no memory.
 */
struct operation *begin(int fd, const int *own, int own_count, int writes, transfer call,
                        char *region, int64_t step, atomic_long *spare) {
    struct operation *op = calloc(1, sizeof *op);
    if (!op) return NULL;
    op->fd = fd;
    op->own = own;
    op->own_count = own_count;
    op->call = call ? call : writes ? (transfer)(void *)pwrite : pread;
    op->region = region;
    op->step = step;
    op->spare = spare;
    pthread_mutex_init(&op->lock, NULL);
    pthread_cond_init(&op->more, NULL);
    return op;
}

/* `count` more requests, at least one. Returns whether one has failed. */
int feed(struct operation *op, const int64_t *rows, int64_t count) {
    struct part *part = calloc(1, sizeof *part);
    if (!part) {
        fail(op, rows[0], ENOMEM);
        return 1;
    }
    part->rows = rows;
    part->count = count;
    pthread_mutex_lock(&op->lock);
    if (op->last)
        op->last->next = part;
    else
        op->first = part;
    op->last = part;
    pthread_cond_broadcast(&op->more);
    pthread_mutex_unlock(&op->lock);
    op->fed += count;
    start_threads(op);
    return op->failed;
}

/* No part comes any more. With `stop`, no further request begins. Returns whether one failed, and
 * where and why in `failure`, when none is under way any more; `op` is gone then.
 */
int finish(struct operation *op, int stop, int64_t *failure) {
    if (stop) fail(op, 0, ECANCELED);
    pthread_mutex_lock(&op->lock);
    op->closed = 1;
    pthread_cond_broadcast(&op->more);
    pthread_mutex_unlock(&op->lock);
    work(op, op->fd);
    for (int i = 0; i < op->started; i++) pthread_join(op->helpers[i].thread, NULL);
    int failed = op->failed;
    failure[0] = op->failure[0];
    failure[1] = op->failure[1];
    for (struct part *part = op->first, *next; part; part = next) {
        next = part->next;
        free(part);
    }
    pthread_cond_destroy(&op->more);
    pthread_mutex_destroy(&op->lock);
    free(op);
    return failed;
}
