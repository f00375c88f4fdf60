/* Loads layer by layer: a part of front.c. The thread that loads enqueues one layer after the other,
 * each with an event behind it; the model's thread lets its stream wait for a layer's event, which is
 * there to be waited for when `loaded` says so. Neither has the interpreter's lock meanwhile.
 *
 *     loading thread   begin_load | load_layers: layer 0, event 0 | layer 1, event 1 | ... | finish_load
 *     model's thread          wait_layer(0) | launch | wait_layer(1) | launch | ...
 *
 * A load has a number. Once there is a next one, all of it has arrived, or it has failed and Python
 * knows: its events are another's then, and nobody waits for them.
 */
#include <sched.h>

enum { FAILED = -1, LOST = -4 }; /* in `loaded`; to who waits */

/* One layer, piece by piece. */
static int layer_in_pieces(struct front *f, int64_t layer) {
    PASS(make_room_for_pieces(f, f->pages * f->parts));
    uint64_t *device = f->pieces, *host = device + f->piece_room, *sizes = host + f->piece_room;
    int64_t found = 0;
    for (int64_t i = 0; i < f->extents; i++) {
        int64_t *each = f->extent[i];
        for (int64_t page = 0; page < each[2]; page++)
            for (int64_t part = 0; part < f->parts; part++, found++) {
                struct part *p = &f->part[part];
                device[found] = p->device + (each[0] + page) * p->width + layer * p->pitch;
                host[found] = p->host + (each[1] + page) * f->page_bytes + layer * f->layer_bytes;
                sizes[found] = p->width;
            }
    }
    return send_pieces(f, found);
}

static int one_layer(struct front *f, const struct plan *p, int64_t layer) {
    if (p->way == ZERO_COPY)
        return launch(f, &p->layer_kernel, f->host_address, 0, f->pages, layer, 1, f->queue);
    /* Of pages that lie apart there are no rows in one layer. */
    if (f->copy_batch && 2 * f->extents > f->pages) return layer_in_pieces(f, layer);
    for (int64_t i = 0; i < f->extents; i++) {
        int64_t *each = f->extent[i];
        PASS(rows_of(f, H2D, each[0], each[1], each[2], layer, 1));
    }
    return 0;
}

/* The number of what is to be loaded next. Nobody can wait for that before. */
int64_t front_begin_load(struct front *f) {
    int64_t load = f->load + 1;
    __atomic_store_n(&f->load, load, __ATOMIC_SEQ_CST);
    __atomic_store_n(&f->loaded, 0, __ATOMIC_SEQ_CST);
    return load;
}

static int enqueue_layers(struct front *f, const struct plan *p) {
    PASS(record(f, f->begin, f->queue));
    if (p->way == ZERO_COPY) PASS(upload(f, 2, f->queue));
    for (int64_t layer = 0; layer < f->layers; layer++) {
        PASS(one_layer(f, p, layer));
        PASS(record(f, f->layered[layer], f->queue));
        __atomic_store_n(&f->loaded, layer + 1, __ATOMIC_RELEASE);
    }
    return record(f, f->end, f->queue);
}

/* Enqueue what was read last, of which there is something; for a kernel there must be room for its
 * lists. 0, NO_MEMORY or the driver's error.
 */
int front_load_layers(struct front *f, const struct plan *p) {
    int code = enqueue_layers(f, p);
    if (code) __atomic_store_n(&f->loaded, FAILED, __ATOMIC_RELEASE);
    return code;
}

/* Nothing more comes of a load, for a reason that the loading thread knows. */
void front_fail_load(struct front *f, int64_t load) {
    if (load == f->load) __atomic_store_n(&f->loaded, FAILED, __ATOMIC_RELEASE);
}

/* Let `stream` go on only when a layer of a load is there. 0, LOST for a load that failed, or the
 * driver's error. For any thread.
 */
int front_wait_layer(struct front *f, int64_t load, int64_t layer, void *stream) {
    for (int64_t i = 1;; i++) {
        int64_t loaded = __atomic_load_n(&f->loaded, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&f->load, __ATOMIC_ACQUIRE) != load) return 0;
        if (loaded == FAILED) return LOST;
        if (loaded > layer) return f->wait(stream, f->layered[layer], 0);
        if (i % PAUSES)
            relax();
        else
            sched_yield();
    }
}

/* Whether a layer of a load is there already. For any thread. */
int front_has_layer(struct front *f, int64_t load, int64_t layer) {
    int64_t loaded = __atomic_load_n(&f->loaded, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&f->load, __ATOMIC_ACQUIRE) != load) return 1;
    return loaded > layer && f->query(f->layered[layer]) == 0;
}

/* Wait until all of it is there, and take the device's time. 0 or the driver's error: then nothing is
 * under way either.
 */
int front_finish_load(struct front *f) {
    int code = finish(f);
    if (code) f->await(f->end); /* refuses too, of a device that is lost */
    return code;
}
