/* One copy between L1 and L2, from the page lists to the last wait, without Python in between:
 * what `front.py` drives, and where it says what is moved how. Made by scripts/compile_loop.py.
 *
 *     front_read(lists)  with the interpreter's lock: see page_runs.h
 *     front_run(plan)    without: enqueue everything, wait, take the device's time
 *     front_call         both, by a plan that is given, or that is remembered for such lists
 *     front_load_layers  what was read, layer by layer: see front_layers.h
 *
 * Two streams: `queue` has the DMAs, `side` the kernels that run beside them. Calls go through the
 * driver's functions as they are given, so that tests can stand in for a device.
 */
#include "../page_runs.h"

#include <stdlib.h>

enum { H2D, D2H };
enum { ROWS, STAGED, ZERO_COPY };
enum { BUFFERS = 4, ARGUMENTS = 13 };
/* The device begins with a batch when the driver has taken all of it: small ones, the first most. */
enum { FIRST_PIECES = 8, PIECES = 64 };
enum { NO_MEMORY = -2, NO_ROOM = -3 }; /* beside NOT_MINE */
enum { REMEMBERED = 1024 }; /* sizes and cuts recur */
enum { HOST = 1, DEVICE = 2, IN_ORDER = 1 }; /* CU_MEMORYTYPE_*; the source is read in order */

enum { NOT_READY = 600, NOT_SUPPORTED = 801 }; /* CUDA_ERROR_* */
/* Between two looks at what else may have happened than that a word was written. */
enum { PAUSES = 1024 };

/* Which call failed; front.py has the names. */
enum { COPY, COPY_ROWS, COPY_BATCH, LAUNCH, RECORD, WAIT, AWAIT, ELAPSED, WRITE };

struct rows { /* CUDA_MEMCPY2D */
    size_t source_x, source_y;
    unsigned source_kind;
    uint64_t source_host, source_device, source_array;
    size_t source_pitch;
    size_t target_x, target_y;
    unsigned target_kind;
    uint64_t target_host, target_device, target_array;
    size_t target_pitch;
    size_t width, height;
};

struct attributes { /* CUmemcpyAttributes */
    int order, source[2], target[2];
    unsigned flags;
};

struct kernel { /* function NULL: not compiled yet */
    void *function;
    int64_t threads, shared_bytes;
    /* Of the tiling: pieces in a tile, tiles for each such group of pieces; programs at most. */
    int64_t rows, tiles_each, programs;
    int64_t word_bytes, pool_pages, v_start_words;
};

struct part { /* K, or V, or the latent: see direct.py */
    int64_t width, device, pitch, host;
};

struct plan { /* one back-end's */
    int64_t way;
    void *side;
    /* Work buffers: address 0 until there are any. */
    int64_t work_address, chunk_pages;
    /* Chunks of a staged transfer, in pages: see front.py. */
    int64_t whole_pages, head_pages, tail_pages;
    int64_t row_layers[2]; /* by direction: of the page at the open end, that go by rows */
    struct kernel kernel[2]; /* by direction */
    struct kernel layer_kernel; /* of loads layer by layer */
};

struct pick { /* of so many pages in so many extents, one way, beside the other or not */
    int64_t pages, extents, way;
    const struct plan *plan; /* NULL: none yet */
};

struct front {
    /* Calls of the driver's; copy_batch and write NULL where it has none. */
    int (*copy)(uint64_t, uint64_t, size_t, void *);
    int (*copy_rows)(const struct rows *, void *);
    void *copy_batch;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
    int (*record)(void *, void *);
    int (*wait)(void *, void *, unsigned);
    int (*await)(void *);
    int (*elapsed)(float *, void *, void *);
    int (*write)(void *, uint64_t, uint32_t, unsigned);
    int (*query)(void *);
    int64_t batch_has_fail_index;

    void *queue;
    void *begin, *end, *listed;           /* events */
    void *there[BUFFERS], *free[BUFFERS]; /* of a buffer: filled, and empty again */
    int64_t word;                         /* pinned: the number of the copy that is over */
    void **layered;                       /* events: each layer is there */

    /* The pools. */
    int64_t device_pages, host_pages, pages_per_chunk, page_bytes;
    int64_t device_address, host_address, layers, layer_bytes, parts;
    struct part part[2];
    /* The page lists on both sides of the link, int32: L1's, then L2's. 0 until there are any. */
    int64_t list_room, list_host, list_device;

    /* What front_read found, and what front_run tells. */
    int64_t pages, extents;
    int64_t device_ns, code, failed_call;
    const struct plan *plan; /* by which was copied */

    /* This file's own. */
    int64_t turn; /* of `word` */
    int64_t load, loaded; /* by layers: its number, and how many are enqueued or FAILED; atomic */
    int64_t room, runs[2];
    struct run *list; /* the device's, and from `room` on the host's */
    int64_t extent_room;
    int64_t (*extent)[3]; /* device, host, pages */
    int64_t piece_room;
    uint64_t *pieces; /* targets, sources, sizes */
    struct pick *picks;
};

int64_t front_size(void) { return sizeof(struct front); }

int64_t front_plan_size(void) { return sizeof(struct plan); }

void front_free(struct front *f) {
    free(f->list), free(f->extent), free(f->pieces), free(f->picks);
    f->list = NULL, f->extent = NULL, f->pieces = NULL, f->picks = NULL;
    f->room = f->extent_room = f->piece_room = 0;
}

/* ---- The lists ------------------------------------------------------------------------------ */

static struct run *list_of(struct front *f, int side) { return f->list + side * f->room; }

static int find_extents(struct front *f) {
    /* Cuts are where a run begins, and at borders of pinned chunks: a run of L2 has one more of them
     * than its pages are whole chunks, however short it is. */
    int64_t most = f->runs[0] + 2 * f->runs[1] + f->pages / f->pages_per_chunk + 2;
    if (most > f->extent_room) {
        void *more = realloc(f->extent, most * sizeof *f->extent);
        if (!more) return NO_MEMORY;
        f->extent = more, f->extent_room = most;
    }
    const struct run *device = list_of(f, 0), *end = device + f->runs[0], *host = list_of(f, 1);
    int64_t found = 0, second = 0, left = 0, chunk = f->pages_per_chunk;
    for (; device < end; device++) {
        int64_t page = device->first, count = device->count;
        while (count) {
            if (!left) second = host->first, left = host->count, host++;
            int64_t step = count < left ? count : left, rest = chunk - second % chunk;
            if (step > rest) step = rest;
            int64_t *last = f->extent[found - (found > 0)];
            if (found && page == last[0] + last[2] && second == last[1] + last[2] && second % chunk)
                last[2] += step;
            else {
                int64_t *new = f->extent[found++];
                new[0] = page, new[1] = second, new[2] = step;
            }
            page += step, count -= step, second += step, left -= step;
        }
    }
    f->extents = found;
    return 0;
}

/* Both lists, tuples of (first, pages). 0; or NOT_MINE, NO_MEMORY. Needs the interpreter's lock. */
int front_read(struct front *f, object *device, object *host) {
    int64_t counts[2] = {count_runs(device), count_runs(host)};
    int64_t most = counts[0] > counts[1] ? counts[0] : counts[1];
    f->pages = f->extents = 0;
    if (counts[0] < 0 || counts[1] < 0) return NOT_MINE;
    if (most > f->room) {
        free(f->list);
        f->room = 2 * most;
        f->list = malloc(2 * f->room * sizeof *f->list);
        if (!f->list) return f->room = 0, NO_MEMORY;
    }
    int64_t here = read_runs(device, 0, counts[0], f->device_pages, list_of(f, 0), &f->runs[0]);
    if (here < 0) return NOT_MINE;
    if (read_runs(host, 0, counts[1], f->host_pages, list_of(f, 1), &f->runs[1]) != here)
        return NOT_MINE;
    f->pages = here;
    return find_extents(f);
}

/* ---- Calls ---------------------------------------------------------------------------------- */

#define TRY(which, call)                                                                           \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_) {                                                                               \
            f->failed_call = which;                                                                \
            return code_;                                                                          \
        }                                                                                          \
    } while (0)
#define PASS(call)                                                                                 \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_) return code_;                                                                   \
    } while (0)

static int copy(struct front *f, int direction, uint64_t device, uint64_t host, size_t size) {
    uint64_t target = direction == H2D ? device : host, source = direction == H2D ? host : device;
    TRY(COPY, f->copy(target, source, size, f->queue));
    return 0;
}

static int wait(struct front *f, void *stream, void *event) {
    TRY(WAIT, f->wait(stream, event, 0));
    return 0;
}

static int record(struct front *f, void *event, void *stream) {
    TRY(RECORD, f->record(event, stream));
    return 0;
}

static int copy_batch(struct front *f, int64_t first, int64_t count) {
    struct attributes attributes = {.order = IN_ORDER};
    size_t from = 0, failed = 0;
    uint64_t *targets = f->pieces + first, *sources = targets + f->piece_room;
    uint64_t *sizes = sources + f->piece_room;
    typedef int (*now)(uint64_t *, uint64_t *, uint64_t *, size_t, struct attributes *, size_t *,
                       size_t, void *);
    typedef int (*before)(uint64_t *, uint64_t *, uint64_t *, size_t, struct attributes *, size_t *,
                          size_t, size_t *, void *);
    int code;
    if (f->batch_has_fail_index)
        code = ((before)f->copy_batch)(targets, sources, sizes, count, &attributes, &from, 1,
                                       &failed, f->queue);
    else
        code = ((now)f->copy_batch)(targets, sources, sizes, count, &attributes, &from, 1,
                                    f->queue);
    TRY(COPY_BATCH, code);
    return 0;
}

/* ---- By rows -------------------------------------------------------------------------------- */

static int one_copy_of_rows(struct front *f, int direction, uint64_t device, uint64_t host,
                            int64_t device_pitch, int64_t host_pitch, int64_t width,
                            int64_t height) {
    if (height == 1 || (device_pitch == width && host_pitch == width))
        return copy(f, direction, device, host, width * height);
    struct rows rows = {.width = width, .height = height};
    if (direction == H2D) {
        rows.source_kind = HOST, rows.source_host = host, rows.source_pitch = host_pitch;
        rows.target_kind = DEVICE, rows.target_device = device, rows.target_pitch = device_pitch;
    } else {
        rows.source_kind = DEVICE, rows.source_device = device, rows.source_pitch = device_pitch;
        rows.target_kind = HOST, rows.target_host = host, rows.target_pitch = host_pitch;
    }
    TRY(COPY_ROWS, f->copy_rows(&rows, f->queue));
    return 0;
}

/* Some layers of `pages` pages that are consecutive on both sides: layer by layer, or page by page,
 * whichever is fewer copies. */
static int rows_of(struct front *f, int direction, int64_t device, int64_t host, int64_t pages,
                   int64_t first, int64_t layers) {
    for (int64_t part = 0; part < f->parts; part++) {
        struct part *p = &f->part[part];
        uint64_t here = p->device + device * p->width + first * p->pitch;
        uint64_t there = p->host + host * f->page_bytes + first * f->layer_bytes;
        if (layers <= pages) {
            for (int64_t layer = 0; layer < layers; layer++)
                PASS(one_copy_of_rows(f, direction, here + layer * p->pitch,
                                      there + layer * f->layer_bytes, p->width, f->page_bytes,
                                      p->width, pages));
        } else {
            for (int64_t page = 0; page < pages; page++)
                PASS(one_copy_of_rows(f, direction, here + page * p->width,
                                      there + page * f->page_bytes, p->pitch, f->layer_bytes,
                                      p->width, layers));
        }
    }
    return 0;
}

/* All pages of the lists. */
static int by_rows(struct front *f, int direction) {
    for (int64_t i = 0; i < f->extents; i++) {
        int64_t *each = f->extent[i];
        PASS(rows_of(f, direction, each[0], each[1], each[2], 0, f->layers));
    }
    return 0;
}

/* ---- Kernels -------------------------------------------------------------------------------- */

/* Both lists to the device, on a stream: kernels behind it can read them. */
static int upload(struct front *f, int sides, void *stream) {
    int32_t *list = (int32_t *)f->list_host;
    for (int side = 0; side < sides; side++)
        for (int64_t i = 0; i < f->runs[side]; i++) {
            struct run run = list_of(f, side)[i];
            while (run.count--) *list++ = run.first++;
        }
    TRY(COPY, f->copy(f->list_device, f->list_host, 4 * sides * f->pages, stream));
    return 0;
}

/* Some layers of the pages [first, first + count) of the lists; `packed`: where they are in one. */
static int launch(struct front *f, const struct kernel *k, int64_t packed, int64_t first,
                  int64_t count, int64_t layer, int64_t layers, void *stream) {
    int64_t tiles = (count * layers + k->rows - 1) / k->rows * k->tiles_each;
    int64_t programs = k->programs && k->programs < tiles ? k->programs : tiles;
    if (!tiles) return 0;
    /* The driver reads as many bytes of each as its kernel has: the low ones of smaller numbers. */
    int64_t values[ARGUMENTS] = {
        f->device_address, packed, f->list_device, f->list_device + 4 * f->pages, first, count,
        layer, layers, k->pool_pages, k->v_start_words, f->page_bytes / k->word_bytes, 0, 0};
    void *arguments[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++) arguments[i] = &values[i];
    TRY(LAUNCH, f->launch(k->function, programs, 1, 1, k->threads, 1, 1, k->shared_bytes, stream,
                          arguments, NULL));
    return 0;
}

static int64_t buffer_of(struct front *f, const struct plan *p, int64_t chunk) {
    return p->work_address + chunk % BUFFERS * p->chunk_pages * f->page_bytes;
}

/* ---- Through work buffers ------------------------------------------------------------------- */

static int make_room_for_pieces(struct front *f, int64_t count) {
    if (count <= f->piece_room) return 0;
    free(f->pieces);
    f->pieces = malloc(3 * count * sizeof *f->pieces);
    f->piece_room = f->pieces ? count : 0;
    return f->pieces ? 0 : NO_MEMORY;
}

/* The first `found` of the pieces, in batches. */
static int send_pieces(struct front *f, int64_t found) {
    int64_t most = FIRST_PIECES, sent = 0;
    for (; sent < found; most = PIECES) {
        int64_t count = found - sent < most ? found - sent : most;
        PASS(copy_batch(f, sent, count));
        sent += count;
    }
    return 0;
}

/* The DMAs of the pages [first, stop) of the lists between L2 and a buffer, each run one; without
 * `skipped` bytes of the first page (when storing) or of the last (when loading). */
static int dma(struct front *f, int direction, uint64_t buffer, int64_t first, int64_t stop,
               int64_t skipped) {
    PASS(make_room_for_pieces(f, stop - first));
    uint64_t *at[2] = {f->pieces, f->pieces + f->piece_room}, *sizes = at[1] + f->piece_room;
    uint64_t *device = at[direction == D2H], *host = at[direction == H2D];
    int64_t found = 0, place = 0, last = -1, per = f->pages_per_chunk;
    for (int64_t i = 0; i < f->runs[1] && place < stop; i++) {
        struct run run = list_of(f, 1)[i];
        int64_t page = run.first, end = place + run.count;
        int64_t begin = place < first ? first : place, until = end < stop ? end : stop;
        page += begin - place, place = end;
        while (begin < until) {
            int64_t step = until - begin, rest = per - page % per;
            if (step > rest) step = rest;
            if (found && page == last && page % per)
                sizes[found - 1] += step * f->page_bytes;
            else {
                device[found] = buffer + (begin - first) * f->page_bytes;
                host[found] = f->host_address + page * f->page_bytes;
                sizes[found++] = step * f->page_bytes;
            }
            begin += step, page += step, last = page;
        }
    }
    if (direction == H2D) {
        sizes[found - 1] -= skipped;
    } else {
        device[0] += skipped, host[0] += skipped, sizes[0] -= skipped;
    }
    if (found == 1 || !f->copy_batch) {
        for (int64_t i = 0; i < found; i++)
            PASS(copy(f, direction, device[i], host[i], sizes[i]));
        return 0;
    }
    return send_pieces(f, found);
}

/* Where the chunk that begins at `first` ends. `hidden`: something else is at the open end. What is
 * there is small, since it is waited for, or hides under little. */
static int64_t cut(const struct plan *p, int direction, int64_t first, int64_t stop, int hidden) {
    int64_t left = stop - first, most = p->chunk_pages;
    if (!first && left <= p->whole_pages) return stop; /* marks would take longer than they hide */
    int64_t open = hidden ? p->whole_pages : direction == H2D ? p->tail_pages : p->head_pages;
    if (direction == H2D) {
        if (left <= open) return stop;
        left -= open;
        if (!first && !hidden) most = p->head_pages;
    } else if (!first)
        most = open;
    return first + (left < most ? left : most);
}

/* DMAs and scatters, chunk by chunk; the rows that come last hide the scatter before them. */
static int load(struct front *f, const struct plan *p) {
    const struct kernel *k = &p->kernel[H2D];
    int64_t stop, chunk = 0, by_row = p->row_layers[H2D], kept = f->layers - by_row;
    for (int64_t first = 0; first < f->pages; first = stop, chunk++) {
        int buffer = chunk % BUFFERS;
        int64_t at = buffer_of(f, p, chunk);
        stop = cut(p, H2D, first, f->pages, by_row > 0);
        int is_last = stop == f->pages;
        if (chunk >= BUFFERS) PASS(wait(f, f->queue, f->free[buffer]));
        PASS(dma(f, H2D, at, first, stop, is_last ? by_row * f->layer_bytes : 0));
        if (is_last && !by_row) { /* nothing hides this one */
            if (!chunk) {
                PASS(wait(f, p->side, f->begin));
                PASS(upload(f, 1, p->side));
            }
            PASS(record(f, f->listed, p->side));
            PASS(wait(f, f->queue, f->listed));
            return launch(f, k, at, first, stop - first, 0, f->layers, f->queue);
        }
        PASS(record(f, f->there[buffer], f->queue));
        if (is_last) {
            int64_t *each = f->extent[f->extents - 1], last = each[2] - 1;
            PASS(rows_of(f, H2D, each[0] + last, each[1] + last, 1, kept, by_row));
        }
        if (!chunk) {
            PASS(wait(f, p->side, f->begin)); /* what the queue has waited for */
            PASS(upload(f, 1, p->side));
        }
        PASS(wait(f, p->side, f->there[buffer]));
        PASS(launch(f, k, at, first, stop - first - is_last, 0, f->layers, p->side));
        if (is_last)
            PASS(launch(f, k, at + (stop - 1 - first) * f->page_bytes, stop - 1, 1, 0, kept,
                        p->side));
        PASS(record(f, f->free[buffer], p->side));
    }
    return wait(f, f->queue, f->free[(chunk - 1) % BUFFERS]);
}

/* The same backwards: the rows that go first hide the gather of what follows. */
static int store(struct front *f, const struct plan *p) {
    const struct kernel *k = &p->kernel[D2H];
    int64_t stop, chunk = 0, by_row = p->row_layers[D2H];
    if (by_row) {
        PASS(rows_of(f, D2H, f->extent[0][0], f->extent[0][1], 1, 0, by_row));
        PASS(wait(f, p->side, f->begin)); /* what the queue has waited for */
        PASS(upload(f, 1, p->side));
    }
    for (int64_t first = 0; first < f->pages; first = stop, chunk++) {
        int buffer = chunk % BUFFERS, is_first = !chunk && by_row;
        int64_t at = buffer_of(f, p, chunk);
        stop = cut(p, D2H, first, f->pages, by_row > 0);
        if (!chunk && !by_row) { /* the queue goes on to its DMA: nothing to wait for */
            PASS(upload(f, 1, f->queue));
            PASS(launch(f, k, at, first, stop - first, 0, f->layers, f->queue));
            PASS(record(f, f->listed, f->queue));
            PASS(wait(f, p->side, f->listed));
        } else {
            if (chunk >= BUFFERS) PASS(wait(f, p->side, f->free[buffer]));
            if (is_first)
                PASS(launch(f, k, at, 0, 1, by_row, f->layers - by_row, p->side));
            PASS(launch(f, k, at + is_first * f->page_bytes, first + is_first,
                        stop - first - is_first, 0, f->layers, p->side));
            PASS(record(f, f->there[buffer], p->side));
            PASS(wait(f, f->queue, f->there[buffer]));
        }
        PASS(dma(f, D2H, at, first, stop, is_first ? by_row * f->layer_bytes : 0));
        PASS(record(f, f->free[buffer], f->queue));
    }
    return 0;
}

/* ---- All of it ------------------------------------------------------------------------------ */

static int is_all_rows(struct front *f, const struct plan *p, int direction) {
    return p->way == ROWS || (p->way == STAGED && p->row_layers[direction] && f->pages == 1);
}

static int enqueue(struct front *f, const struct plan *p, int direction) {
    if (is_all_rows(f, p, direction)) return by_rows(f, direction);
    if (p->way == STAGED) return direction == H2D ? load(f, p) : store(f, p);
    PASS(upload(f, 2, f->queue));
    return launch(f, &p->kernel[direction], f->host_address, 0, f->pages, 0, f->layers, f->queue);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Until the queue has reached `end`. A word that it writes behind that is seen a microsecond or two
 * before the driver's wait returns; of a device that failed it is never written. Nothing but
 * such a failure ends this before: a word that is still to come would be written into memory that
 * may be somebody else's.
 */
static int await_end(struct front *f) {
    uint32_t turn = ++f->turn;
    int code = f->write ? f->write(f->queue, f->word, turn, 0) : NOT_SUPPORTED;
    if (code == NOT_SUPPORTED) {
        f->write = NULL;
        TRY(AWAIT, f->await(f->end));
        return 0;
    }
    TRY(WRITE, code);
    for (int64_t i = 1; __atomic_load_n((uint32_t *)f->word, __ATOMIC_ACQUIRE) != turn; i++) {
        if (i % PAUSES == 0 && (code = f->query(f->end)) != NOT_READY) TRY(AWAIT, code);
        relax();
    }
    return 0;
}

/* Wait for all that was enqueued between `begin` and `end`, and take the device's time. */
static int finish(struct front *f) {
    float time_ms = 0;
    PASS(await_end(f));
    TRY(ELAPSED, f->elapsed(&time_ms, f->begin, f->end));
    f->device_ns = (int64_t)(time_ms * 1e6 + 0.5);
    return 0;
}

/* Copy what was read last, and wait. 0; before anything was enqueued NOT_MINE, or NO_ROOM for the
 * page lists: then again with more; NO_MEMORY or the driver's error at any time: then what was
 * enqueued must still be waited for.
 */
int front_run(struct front *f, const struct plan *p, int direction) {
    int has_kernel = !is_all_rows(f, p, direction);
    f->plan = p, f->device_ns = 0;
    if (has_kernel && !p->kernel[direction].function) return NOT_MINE;
    if (has_kernel && p->way == STAGED && !p->work_address) return NOT_MINE;
    if (has_kernel && 2 * f->pages > f->list_room) return NO_ROOM;
    if (!f->pages) return 0;
    PASS(record(f, f->begin, f->queue));
    PASS(enqueue(f, p, direction));
    PASS(record(f, f->end, f->queue));
    return finish(f);
}

#include "front_layers.h"

/* ---- Read and run --------------------------------------------------------------------------- */

static struct pick *place(struct front *f, int64_t way) {
    uint64_t mixed = ((uint64_t)f->pages * 0x9E3779B97F4A7C15u + f->extents) * 4 + way;
    return &f->picks[mixed * 0x9E3779B97F4A7C15u >> 32 & (REMEMBERED - 1)];
}

/* Of lists like those that were read last, `plan` is what copies them. */
void front_remember(struct front *f, const struct plan *plan, int direction, int busy) {
    if (!f->picks) f->picks = calloc(REMEMBERED, sizeof *f->picks);
    int64_t way = 2 * direction + busy;
    if (f->picks) *place(f, way) = (struct pick){f->pages, f->extents, way, plan};
}

/* front_read, and front_run without the interpreter's lock, by `plan`, or, without one, by what is
 * remembered. NOT_MINE, too, where nothing is.
 */
static int copy_pages(struct front *f, object *device, object *host, const struct plan *plan,
                      int direction, int busy) {
    PASS(front_read(f, device, host));
    if (!plan && f->picks) {
        int64_t way = 2 * direction + busy;
        struct pick *known = place(f, way);
        if (known->pages == f->pages && known->extents == f->extents && known->way == way)
            plan = known->plan;
    }
    if (!plan) return NOT_MINE;
    void *kept = PyEval_SaveThread();
    int code = front_run(f, plan, direction);
    PyEval_RestoreThread(kept);
    return code;
}

/* The same as a function of Python's own, since ctypes takes two microseconds to call one. `self` is
 * the front's address; given: both lists, the plan's address or 0, the direction, and whether the
 * other one is busy. The device's time in ns; or -1, and `code` says why.
 */
static object *front_call(object *self, object *const *given, ptrdiff_t count) {
    struct front *f = (struct front *)(intptr_t)number(self);
    (void)count; /* 5, always: front.py calls it */
    f->code = copy_pages(f, given[0], given[1], (struct plan *)(intptr_t)number(given[2]),
                         number(given[3]), number(given[4]));
    return PyLong_FromLongLong(f->code ? -1 : f->device_ns);
}

struct method { /* PyMethodDef */
    const char *name;
    object *(*call)(object *, object *const *, ptrdiff_t);
    int flags; /* METH_FASTCALL */
    const char *says;
};

struct method front_method = {"copy", front_call, 0x80, NULL};
