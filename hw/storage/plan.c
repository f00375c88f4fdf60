/* Page lists as requests in one pass, with the interpreter's lock: what `plan_native.py` drives, and
 * `plan.py` does in arrays, with the same result. Made by scripts/compile_loop.py.
 *
 *     slots   |----4----|--3--|      runs, pairs of a tuple: first, count
 *     pages   |-2-|----5------|
 *     rows    |-2-|-2---|--3--|      consecutive in both; cut again where they are large
 */
#include "../page_runs.h"

#include <stdlib.h>
#include <string.h>

enum { UNEQUAL = -2, NO_ROOM = -3 }; /* beside NOT_MINE */
enum { MOST_AT_ONCE = 256 };

struct shape {
    int64_t slots, pages, page_bytes; /* how many there are, and of what size */
    /* Of requests, see plan.request_size. */
    int64_t at_once, smallest_bytes, round_bytes, largest_bytes;
};

struct rows {
    int64_t (*made)[3]; /* position in the file, offset in the memory region, size */
    int64_t count, room, most_bytes;
};

/* One extent, in requests. Returns whether there was room. */
static int add(struct rows *rows, int64_t position, int64_t memory, int64_t size) {
    while (size) {
        int64_t now = size < rows->most_bytes ? size : rows->most_bytes;
        if (rows->count == rows->room) return 0;
        int64_t *row = rows->made[rows->count++];
        row[0] = position, row[1] = memory, row[2] = now;
        position += now, memory += now, size -= now;
    }
    return 1;
}

/* Two lists of the same number of pages. */
static int64_t pair(struct run *slots, struct run *pages, int64_t total, int64_t page_bytes,
                    struct rows *rows) {
    int64_t position = 0, memory = 0, size = 0;
    while (total) {
        if (!slots->count) slots++;
        else if (!pages->count) pages++;
        else {
            int64_t count = slots->count < pages->count ? slots->count : pages->count;
            int64_t from = slots->first * page_bytes, to = pages->first * page_bytes;
            if (from != position + size || to != memory + size) {
                if (!add(rows, position, memory, size)) return NO_ROOM;
                position = from, memory = to, size = 0;
            }
            size += count * page_bytes, total -= count;
            slots->first += count, slots->count -= count;
            pages->first += count, pages->count -= count;
        }
    }
    return add(rows, position, memory, size) ? rows->count : NO_ROOM;
}

/* plan.tapered, of rows that are the last of an operation. */
static int64_t taper(const struct shape *shape, struct rows *rows, int64_t last_bytes) {
    int64_t held[MOST_AT_ONCE][3];
    int64_t most = shape->at_once < MOST_AT_ONCE ? shape->at_once : MOST_AT_ONCE;
    int64_t count = rows->count < most ? rows->count : most;
    rows->count -= count;
    rows->most_bytes = last_bytes;
    memcpy(held, rows->made[rows->count], count * sizeof *held);
    for (int64_t i = 0; i < count; i++)
        if (!add(rows, held[i][0], held[i][1], held[i][2])) return NO_ROOM;
    return rows->count;
}

static int64_t request_size(const struct shape *shape, int64_t total_bytes) {
    int64_t share = (total_bytes + shape->at_once - 1) / shape->at_once;
    share = (share + shape->round_bytes - 1) / shape->round_bytes * shape->round_bytes;
    if (share < shape->smallest_bytes) share = shape->smallest_bytes;
    return share < shape->largest_bytes ? share : shape->largest_bytes;
}

/* The rows for runs from `at` on, up to `slots_end` and `pages_end`; `last_bytes`: 0, or what the
 * last of them are to be at most. How many were made, or why none: NOT_MINE, which `plan.py` takes
 * or refuses; UNEQUAL, these runs do not name as many slots as pages; NO_ROOM for all rows.
 */
int64_t plan(const struct shape *shape, object *slots, object *pages, int64_t at,
             int64_t slots_end, int64_t pages_end, int64_t last_bytes, int64_t (*made)[3],
             int64_t room) {
    int64_t slot_runs = slots_end - at, page_runs = pages_end - at, kept, answer = NOT_MINE;
    struct run *runs = malloc((slot_runs + page_runs + 1) * sizeof *runs);
    if (!runs) return NOT_MINE;
    struct run *others = runs + slot_runs;
    int64_t total = read_runs(slots, at, slots_end, shape->slots, runs, &kept), as_pages = NOT_MINE;
    if (total >= 0) as_pages = read_runs(pages, at, pages_end, shape->pages, others, &kept);
    if (as_pages >= 0 && total != as_pages) {
        answer = UNEQUAL;
    } else if (as_pages >= 0) {
        int64_t most_bytes = request_size(shape, total * shape->page_bytes);
        struct rows rows = {made, 0, room, most_bytes};
        answer = pair(runs, others, total, shape->page_bytes, &rows);
        if (answer > 0 && last_bytes) answer = taper(shape, &rows, last_bytes);
    }
    free(runs);
    return answer;
}
