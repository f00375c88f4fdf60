/* Drives hw/storage/loop.c for a sanitizer: several callers at once on one crew, in parts, with
 * short answers, interrupts and failures, crews that come and go. Exit code 1: bytes are wrong, an
 * operation answered what it should not, or a call went on behind the end of its operation.
 *
 *     cc -fsanitize=thread -pthread -I hw/storage loop_driver.c && ./a.out FILE ROUNDS
 */
#include "loop.c"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { CALLERS = 3, HELPERS = 5, PARTS = 6, ROWS = 40, SIZE = 512, REGION = PARTS * ROWS * SIZE };

static int fd, rounds;
static atomic_int wrong, calls;
static char region[CALLERS][REGION];
static __thread unsigned seed;

static int draw(int below) {
    if (!seed) seed = 1 + (unsigned)(uintptr_t)&seed;
    return rand_r(&seed) % below;
}

static ssize_t odd(int file, void *memory, size_t size, off_t position) {
    atomic_fetch_add(&calls, 1);
    if (position < 0) {
        errno = EIO;
        return -1;
    }
    if (!draw(8)) {
        errno = EINTR;
        return -1;
    }
    if (size > 1 && !draw(4)) size /= 2;
    return pread(file, memory, size, position);
}

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "wrong: %s\n", what);
    wrong = 1;
}

/* One operation of a caller; `ends` says how: 0 well, 1 by a failure, 2 given up. */
static void operate(struct crew *crew, int caller, int ends) {
    static int64_t rows[CALLERS][PARTS][ROWS][3];
    int64_t failure[2] = {0, 0};
    int parts = 1 + draw(PARTS), bad = draw(parts), failed = 0;
    char *mine = region[caller];
    memset(mine, 0, REGION);
    struct operation *op;
    check(begin(crew, odd, &op), "a begin");
    for (int part = 0; part < parts && !failed; part++) {
        for (int i = 0; i < ROWS; i++) {
            int64_t at = (part * ROWS + i) * SIZE;
            int64_t position = ends == 1 && part == bad && i == ROWS / 2 ? -1 : at;
            memcpy(rows[caller][part][i], (int64_t[]){position, mine - *region + at, SIZE}, 24);
        }
        failed = feed(op, &rows[caller][part][0][0], ROWS);
        if (!draw(3)) usleep(draw(200));
    }
    failed = finish(op, ends == 2, failure);
    memset(rows[caller], 0xff, sizeof rows[caller]); /* a race, if anybody still reads them */
    check(failed == (ends > 0), "whether it failed");
    if (ends == 1) check(failure[0] == -1 && failure[1] == EIO, "why it failed");
    if (ends == 2) check(failure[1] == ECANCELED, "why it was given up");
    for (int at = 0; !ends && at < parts * ROWS * SIZE; at++)
        if (mine[at] != (char)(at / SIZE + at)) return check(0, "a byte");
}

struct caller {
    struct crew *crew;
    int number;
};

static void *act(void *argument) {
    struct caller *me = argument;
    for (int i = 0; i < 20; i++) operate(me->crew, me->number, draw(4) ? 0 : 1 + draw(2));
    return NULL;
}

int main(int count, char **arguments) {
    (void)count;
    fd = open(arguments[1], O_RDWR | O_CREAT, 0600);
    rounds = atoi(arguments[2]);
    for (int at = 0; at < REGION; at++) region[0][at] = at / SIZE + at;
    if (pwrite(fd, region[0], REGION, 0) != REGION) return 2;
    for (int round = 0; round < rounds; round++) {
        int own[2] = {fd, fd};
        struct crew *crew = assemble(fd, own, 2, 0, *region, 1, HELPERS);
        struct caller callers[CALLERS];
        pthread_t threads[CALLERS];
        for (int i = 0; i < CALLERS; i++) {
            callers[i] = (struct caller){crew, i};
            pthread_create(&threads[i], NULL, act, &callers[i]);
        }
        for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
        int before = calls;
        check(crew->hired <= HELPERS, "the number of threads");
        check(!crew->open && crew->end == &crew->open, "an operation is left");
        int64_t row[3] = {0, 0, SIZE}, failure[2];
        struct operation *op = NULL;
        if (round % 2) check(begin(crew, odd, &op), "a begin");
        if (op && round % 4 == 3) feed(op, row, 1);
        dismiss(crew);
        check(op || calls == before, "a call behind the end");
        if (op) check(!finish(op, 0, failure), "an operation that is under way at the end");
    }
    printf("%d calls\n", calls);
    return wrong;
}
