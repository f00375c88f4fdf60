/* The requests of operations on a file, in threads that never need Python: what `native.py`
 * drives, and where it says who may do what when. Made by scripts/compile_loop.py.
 *
 *     assemble              a crew, nobody in it yet
 *       begin ---> feed(part) ---> feed(part) ---> finish: takes requests itself, waits for the rest
 *                    helper: request, request, ... sleeps when no operation has any left
 *     dismiss               helpers end; behind the last `finish`, if an operation is under way
 *
 * A request is a row of three int64: position in the file, offset in the memory region, size.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_HELPERS = 256, STACK_BYTES = 256 << 10 };

typedef ssize_t (*transfer)(int fd, void *memory, size_t size, off_t position);

struct part {
    struct part *next;
    const int64_t *rows; /* the caller's, until `finish` has returned */
    int64_t count;
    atomic_llong taken; /* rows that somebody has begun, and those asked for beyond the end */
};

struct operation {
    struct crew *crew;
    struct operation *next; /* of those that may have something to take */
    transfer call;
    struct part *first, *last;
    struct part *at; /* no part before it has anything left */
    int inside;      /* helpers that may be at one of its requests */
    pthread_cond_t left;

    atomic_int failed;
    int64_t failure[2]; /* position in the file; errno, or 0 where nothing more was moved */
};

struct helper {
    struct crew *crew;
    int fd;
    pthread_t thread;
    struct helper *below; /* of those asleep */
    _Atomic uint32_t called; /* what it sleeps on: 1 once it is to look for work */
};

/* One direction of a file. */
struct crew {
    int fd; /* the callers' */
    transfer call;
    char *region;
    int64_t step; /* after a short answer it goes on at a multiple of this */

    pthread_mutex_t lock; /* of all that is not atomic, from here on and in operations */
    struct operation *open, **end;
    struct helper *asleep; /* the last one that fell asleep first: its core is the warmest */
    int dismissed, begun; /* of operations those that are not finished */

    pthread_mutex_t hiring; /* of `hired`; taken without the lock, which a new thread wants */
    int hired, most;
    struct helper helpers[MOST_HELPERS];
};

static void fail(struct operation *op, int64_t position, int code) {
    pthread_mutex_lock(&op->crew->lock);
    if (!op->failed) {
        op->failure[0] = position;
        op->failure[1] = code;
        op->failed = 1;
    }
    pthread_mutex_unlock(&op->crew->lock);
}

static void move(struct operation *op, int fd, const int64_t *row) {
    int64_t position = row[0], memory = row[1], size = row[2];
    while (size) {
        int64_t done = op->call(fd, op->crew->region + memory, size, position);
        if (done < 0) {
            if (errno == EINTR) continue;
            fail(op, position, errno);
            return;
        }
        if (done < size) done -= done % op->crew->step;
        if (!done) {
            fail(op, position, 0);
            return;
        }
        position += done, memory += done, size -= done;
    }
}

/* The part that has something left to take, or NULL. Under the lock, as the two behind it. */
static struct part *to_take(struct operation *op) {
    if (op->failed) return NULL;
    while (op->at && atomic_load(&op->at->taken) >= op->at->count) op->at = op->at->next;
    return op->at;
}

/* Take requests of one operation until there are none; lets go of the lock meanwhile. */
static void work(struct operation *op, int fd) {
    pthread_mutex_t *lock = &op->crew->lock;
    struct part *part;
    while ((part = to_take(op)) != NULL) {
        int64_t row;
        pthread_mutex_unlock(lock);
        while (!op->failed && (row = atomic_fetch_add(&part->taken, 1)) < part->count)
            move(op, fd, part->rows + 3 * row);
        pthread_mutex_lock(lock);
    }
}

static struct operation *to_help(struct crew *crew) {
    struct operation *op = crew->open;
    while (op && !to_take(op)) op = op->next;
    return op;
}

static void *help(void *argument) {
    struct helper *me = argument;
    struct crew *crew = me->crew;
    struct operation *op;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while ((op = to_help(crew)) != NULL) {
            op->inside++;
            work(op, me->fd);
            if (!--op->inside) pthread_cond_signal(&op->left);
        }
        if (crew->dismissed) break;
        me->called = 0;
        me->below = crew->asleep;
        crew->asleep = me;
        pthread_mutex_unlock(&crew->lock);
        while (!me->called) syscall(SYS_futex, &me->called, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        pthread_mutex_lock(&crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* Wake one that sleeps, for whom who holds the lock has something to do. Returns whether any did.
 * It lets go of the lock meanwhile: who is woken wants it.
 */
static int wake(struct crew *crew) {
    struct helper *one = crew->asleep;
    if (!one) return 0;
    crew->asleep = one->below;
    pthread_mutex_unlock(&crew->lock);
    one->called = 1;
    syscall(SYS_futex, &one->called, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_mutex_lock(&crew->lock);
    return 1;
}

static int start(struct helper *helper) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes)) return 0;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all); /* signals are Python's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int refused = pthread_create(&helper->thread, &attributes, help, helper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !refused;
}

/* One more thread. Returns whether there is one. It lets go of the lock, as `wake`. */
static int hire(struct crew *crew) {
    pthread_mutex_unlock(&crew->lock);
    pthread_mutex_lock(&crew->hiring);
    int hired = crew->hired < crew->most && start(&crew->helpers[crew->hired]);
    crew->hired += hired;
    pthread_mutex_unlock(&crew->hiring);
    pthread_mutex_lock(&crew->lock);
    return hired;
}

/* `own`: further descriptors of the file, as many as `own_count`, one for each helper in turn.
 * `most`: helpers. NULL: no memory.
 */
struct crew *assemble(int fd, const int *own, int own_count, int writes, char *region,
                      int64_t step, int most) {
    struct crew *crew = calloc(1, sizeof *crew);
    if (!crew) return NULL;
    crew->fd = fd;
    crew->call = writes ? (transfer)(void *)pwrite : pread;
    crew->region = region;
    crew->step = step;
    crew->end = &crew->open;
    crew->most = most < MOST_HELPERS ? most : MOST_HELPERS;
    for (int i = 0; i < crew->most; i++) {
        crew->helpers[i].crew = crew;
        crew->helpers[i].fd = own_count ? own[i % own_count] : fd;
    }
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP); /* it is never held for long */
    pthread_mutex_init(&crew->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    pthread_mutex_init(&crew->hiring, NULL);
    return crew;
}

/* Returns when all helpers have ended. In the middle of an operation (a signal's handler may close
 * what its thread reads from) the last `finish` does it instead.
 */
void dismiss(struct crew *crew) {
    pthread_mutex_lock(&crew->lock);
    crew->dismissed = 1;
    if (crew->begun) {
        pthread_mutex_unlock(&crew->lock);
        return;
    }
    while (wake(crew)) continue;
    pthread_mutex_unlock(&crew->lock);
    for (int i = 0; i < crew->hired; i++) pthread_join(crew->helpers[i].thread, NULL);
    pthread_mutex_destroy(&crew->hiring);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
}

/* `call`: NULL, or what takes the place of pread and pwrite. Returns whether there is memory. What is
 * in `begun` then is to be finished; the caller finds it there even if it never sees the answer.
 */
int begin(struct crew *crew, transfer call, struct operation **begun) {
    struct operation *op = calloc(1, sizeof *op);
    if (!op) return 0;
    op->crew = crew;
    op->call = call ? call : crew->call;
    pthread_cond_init(&op->left, NULL);
    pthread_mutex_lock(&crew->lock);
    crew->begun++;
    pthread_mutex_unlock(&crew->lock);
    *begun = op;
    return 1;
}

/* `count` more requests, at least one. Returns whether one has failed. */
int feed(struct operation *op, const int64_t *rows, int64_t count) {
    struct crew *crew = op->crew;
    struct part *part = calloc(1, sizeof *part);
    if (!part) {
        fail(op, rows[0], ENOMEM);
        return 1;
    }
    part->rows = rows;
    part->count = count;
    pthread_mutex_lock(&crew->lock);
    if (op->last) {
        op->last->next = part;
    } else {
        op->first = part;
        *crew->end = op;
        crew->end = &op->next;
    }
    op->last = part;
    if (!op->at) op->at = part;
    /* A helper for each request but the last of the first part, which the caller will take; none
     * once all are taken.
     */
    for (int64_t wanted = count - (part == op->first); wanted > 0 && to_take(op); wanted--)
        if (!wake(crew) && !hire(crew)) break;
    int failed = op->failed;
    pthread_mutex_unlock(&crew->lock);
    return failed;
}

/* No part comes any more. With `stop`, no further request begins. Returns whether one failed, and
 * where and why in `failure`, when none is under way any more; `op` is gone then.
 */
int finish(struct operation *op, int stop, int64_t *failure) {
    struct crew *crew = op->crew;
    if (stop) fail(op, 0, ECANCELED);
    pthread_mutex_lock(&crew->lock);
    work(op, crew->fd);
    if (op->first) { /* else it was never in the list */
        struct operation **link = &crew->open;
        while (*link != op) link = &(*link)->next;
        *link = op->next;
        if (crew->end == &op->next) crew->end = link;
    }
    while (op->inside) pthread_cond_wait(&op->left, &crew->lock);
    int is_last = !--crew->begun && crew->dismissed;
    pthread_mutex_unlock(&crew->lock);
    if (is_last) dismiss(crew);
    int failed = op->failed;
    failure[0] = op->failure[0];
    failure[1] = op->failure[1];
    for (struct part *part = op->first, *next; part; part = next) {
        next = part->next;
        free(part);
    }
    pthread_cond_destroy(&op->left);
    free(op);
    return failed;
}
