/* Page lists as Python has them, tuples of (first, count), as numbers of C: for who has the
 * interpreter's lock. It reads by the headers of the Python that it is made for, so a library of it
 * is that Python's alone; without them by calls of the stable interface, which are slower.
 *
 * Refuses, and leaves to Python, which takes it or says what is wrong: what is no tuple, a pair that
 * is none or not of numbers, numbers below 0 or beyond the pages that there are.
 */
#ifndef PAGE_RUNS_H
#define PAGE_RUNS_H

#include <stddef.h>
#include <stdint.h>

enum { NEAR = 8, FAR = 16 }; /* items ahead, whose numbers and which themselves are fetched */

#if __has_include(<Python.h>) && !defined(STABLE_INTERFACE)
#include <Python.h>
typedef PyObject object;
static inline ptrdiff_t length(object *o) { return PyTuple_Check(o) ? PyTuple_GET_SIZE(o) : -1; }
static inline object *item(object *o, ptrdiff_t i) { return PyTuple_GET_ITEM(o, i); }
static inline int64_t number(object *o) {
#if PY_VERSION_HEX >= 0x030c0000
    if (PyLong_CheckExact(o) && PyUnstable_Long_IsCompact((PyLongObject *)o))
        return PyUnstable_Long_CompactValue((PyLongObject *)o);
#else
    if (PyLong_CheckExact(o) && Py_SIZE(o) == 1) return ((PyLongObject *)o)->ob_digit[0];
#endif
    return PyLong_AsLongLong(o);
}
/* What reading item `i` will want. Lists that were made long ago lie about in memory. */
static inline void expect(object *list, ptrdiff_t i, ptrdiff_t end) {
    if (i + FAR < end) __builtin_prefetch(item(list, i + FAR));
    if (i + NEAR >= end) return;
    object *pair = item(list, i + NEAR);
    if (length(pair) != 2) return;
    __builtin_prefetch(item(pair, 0));
    __builtin_prefetch(item(pair, 1));
}
#else
typedef struct _object object;
extern ptrdiff_t PyTuple_Size(object *);
extern object *PyTuple_GetItem(object *, ptrdiff_t);
extern long long PyLong_AsLongLong(object *);
extern object *PyLong_FromLongLong(long long);
extern void PyErr_Clear(void);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
#define length PyTuple_Size
#define item PyTuple_GetItem
#define number PyLong_AsLongLong
#define expect(list, i, end)
#endif

enum { NOT_MINE = -1 };

struct run { /* `count` pages from `first` on */
    int64_t first, count;
};

/* How many runs a list has, or NOT_MINE. */
static inline int64_t count_runs(object *list) {
    ptrdiff_t count = length(list);
    if (count >= 0) return count;
    PyErr_Clear();
    return NOT_MINE;
}

static inline int read_run(object *pair, int64_t capacity, struct run *to) {
    if (length(pair) != 2) return 0;
    to->first = number(item(pair, 0)); /* -1: no number */
    if (to->first < 0) return 0;
    to->count = number(item(pair, 1));
    return to->count >= 0 && to->count <= capacity && to->first <= capacity - to->count;
}

/* Runs `at` to `end` of a list into `runs`, of which `kept` are not empty. How many pages they have,
 * or NOT_MINE. No error is left with Python.
 */
static inline int64_t read_runs(object *list, int64_t at, int64_t end, int64_t capacity,
                                struct run *runs, int64_t *kept) {
    struct run *next = runs;
    int64_t total = 0;
    if (at < end && count_runs(list) < end) return NOT_MINE;
    for (; at < end; at++) {
        expect(list, at, end);
        if (!read_run(item(list, at), capacity, next)) {
            PyErr_Clear();
            return NOT_MINE;
        }
        total += next->count;
        next += next->count > 0;
    }
    *kept = next - runs;
    return total;
}

#endif
