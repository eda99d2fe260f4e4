/* Sums over the workers of one host, through memory that all of them map; see ../shared_sum.py.

   A tensor goes in pieces that stay in cache. Of each piece every worker sums its own share:

       1. it copies the others' shares of its tensor into its `in`, and posts;
       2. once all have posted, it sums its share over all workers, in the order of ranks, into its tensor and its `out`,
          and posts;
       3. once all have posted, it copies the others' shares from their `out` into its tensor.

   Nobody writes `in` again before all have posted 2, nor `out` before all have posted 1 of the next piece, so that
   one copy of each is enough. A thread of its own does that, so that it goes on while the worker computes.

   Before it posts 1 of a tensor's first piece, a worker tells of how many entries and of which dtype the whole tensor
   is. Once all have posted, all compare: where these are not alike nobody posts 2, and no sum is written. One copy
   is enough, too: a worker tells of its next tensor after all have posted 2 of its last piece, and whoever has posted 2
   has compared. */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE 64           /* bytes of a cache line: each counter has one for itself */
#define JOBS 256          /* that may be under way */
#define BLOCK 1024        /* entries that are summed at once: they stay in the first cache */
#define SLICE 20000000L   /* nanoseconds: how often a waiting thread looks whether it is to stop */
#define UNLIKE (-1)       /* workers sum tensors that are not alike */

typedef struct { _Alignas(LINE) _Atomic uint32_t count; } Counter;
typedef struct { _Alignas(LINE) _Atomic uint32_t count; int32_t dtype; uint64_t entries; } Phase; /* and of what */
typedef struct { char *data; size_t entries; int dtype; } Job;

typedef struct {
    Counter posted, done; /* jobs */
    _Atomic uint32_t urgent, stop, unlike;
    int rank, workers, spins;
    size_t piece;         /* bytes */
    Phase *phases;        /* [workers], shared */
    char *in, *out;       /* [workers, piece] and [workers, share], shared */
    size_t share;         /* bytes that `out` has for each */
    uint32_t phase;
    pthread_t thread;
    Job jobs[JOBS];
} Group;

/* -- waiting */

static void sleep_on(_Atomic uint32_t *word, uint32_t value, long nanoseconds) {
    struct timespec patience = {nanoseconds / 1000000000L, nanoseconds % 1000000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &patience, NULL, 0);
}

static void add_and_wake(_Atomic uint32_t *word) {
    atomic_fetch_add_explicit(word, 1, memory_order_seq_cst);
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int reached(_Atomic uint32_t *word, uint32_t wanted) {
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - wanted) >= 0;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Whether all have posted so often; 0: the group is to stop. It spins only while somebody waits for the sum. */
static int all_posted(Group *g, uint32_t wanted) {
    for (int r = 0; r < g->workers; r++) {
        _Atomic uint32_t *word = &g->phases[r].count;
        for (int spin = 0; !reached(word, wanted); spin++) {
            if (atomic_load(&g->stop)) return 0;
            if (spin < g->spins && atomic_load_explicit(&g->urgent, memory_order_relaxed)) {
                relax();
                continue;
            }
            uint32_t seen = atomic_load(word);
            if ((int32_t)(seen - wanted) < 0) sleep_on(word, seen, SLICE);
        }
    }
    return 1;
}

/* -- sums: out = tensor = sum over workers, in the order of ranks */

static float widen(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}

static uint16_t narrow(float x) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

#define SAME(x) (x)
#define SUM(name, type, wide, widened, narrowed)                                                     \
    static void name(const void **rows, int workers, void *tensor, void *out, size_t entries) {      \
        type *mine = tensor, *theirs = out;                                                          \
        for (size_t at = 0; at < entries; at += BLOCK) {                                             \
            size_t n = entries - at < BLOCK ? entries - at : BLOCK;                                  \
            wide sum[BLOCK];                                                                         \
            const type *first = (const type *)rows[0] + at, *second = (const type *)rows[1] + at;    \
            for (size_t i = 0; i < n; i++) sum[i] = widened(first[i]) + widened(second[i]);          \
            for (int r = 2; r < workers; r++) {                                                      \
                const type *row = (const type *)rows[r] + at;                                        \
                for (size_t i = 0; i < n; i++) sum[i] += widened(row[i]);                            \
            }                                                                                        \
            for (size_t i = 0; i < n; i++) mine[at + i] = theirs[at + i] = (type)narrowed(sum[i]);   \
        }                                                                                            \
    }

SUM(sum_float, float, float, SAME, SAME)
SUM(sum_double, double, double, SAME, SAME)
SUM(sum_bfloat16, uint16_t, float, widen, narrow)
#ifdef __FLT16_MANT_DIG__
#define HALF_TO_FLOAT(x) ((float)(x))
SUM(sum_float16, _Float16, float, HALF_TO_FLOAT, SAME)
#else
#define sum_float16 NULL
#endif
SUM(sum_int32, int32_t, int32_t, SAME, SAME)
SUM(sum_int64, int64_t, int64_t, SAME, SAME)

typedef void (*Sum)(const void **, int, void *, void *, size_t);
static const Sum SUMS[] = {sum_float, sum_double, sum_bfloat16, sum_float16, sum_int32, sum_int64};
static const size_t SIZES[] = {4, 8, 2, 2, 4, 8};

/* -- one tensor */

/* Whether all workers sum as many entries of the same dtype. */
static int all_alike(const Group *g, const Job *job) {
    for (int r = 0; r < g->workers; r++)
        if (g->phases[r].entries != job->entries || g->phases[r].dtype != job->dtype) return 0;
    return 1;
}

/* 1; 0: the group is to stop; UNLIKE. Of no entries there is one piece, too: all must have come to it. */
static int run(Group *g, const Job *job, const void **rows) {
    size_t size = SIZES[job->dtype], most = g->piece / size, at = 0;
    int workers = g->workers, rank = g->rank;
    do {
        size_t n = job->entries - at < most ? job->entries - at : most;
        char *tensor = job->data + at * size;
        size_t begin = n * rank / workers * size, end = n * (rank + 1) / workers * size;
        char *in = g->in + rank * g->piece;
        memcpy(in, tensor, begin);
        memcpy(in + end, tensor + end, n * size - end);
        if (at == 0) g->phases[rank].entries = job->entries, g->phases[rank].dtype = job->dtype;
        add_and_wake(&g->phases[rank].count);
        if (!all_posted(g, ++g->phase)) return 0;
        if (at == 0 && !all_alike(g, job)) return UNLIKE;
        for (int r = 0; r < workers; r++) rows[r] = r == rank ? tensor + begin : g->in + r * g->piece + begin;
        SUMS[job->dtype](rows, workers, tensor + begin, g->out + rank * g->share, (end - begin) / size);
        add_and_wake(&g->phases[rank].count);
        if (!all_posted(g, ++g->phase)) return 0;
        for (int i = 1; i < workers; i++) {
            int r = (rank + i) % workers;
            size_t from = n * r / workers * size, to = n * (r + 1) / workers * size;
            memcpy(tensor + from, g->out + r * g->share, to - from);
        }
        at += most;
    } while (at < job->entries);
    return 1;
}

static void *work(void *argument) {
    Group *g = argument;
    const void **rows = malloc(g->workers * sizeof *rows);
    for (uint32_t next = 0; rows != NULL && !atomic_load(&g->stop);) {
        if (!reached(&g->posted.count, next + 1)) {
            sleep_on(&g->posted.count, next, SLICE);
            continue;
        }
        int did = run(g, &g->jobs[next % JOBS], rows);
        if (did == UNLIKE) atomic_store(&g->unlike, 1); /* whoever waits looks every SLICE */
        if (did != 1) break;
        next++;
        add_and_wake(&g->done.count);
    }
    free(rows);
    return NULL;
}

/* -- what Python calls */

/* Whether tensors of this dtype, an index of SUMS, can be summed. */
int all_reduce_takes(int dtype) {
    return SUMS[dtype] != NULL;
}

size_t all_reduce_room(int workers, size_t piece) {
    size_t share = (piece / workers + LINE) / LINE * LINE + LINE;
    return workers * (sizeof(Phase) + piece + share);
}

/* `memory`: all_reduce_room bytes, zero at first. `spins`: 0 where workers outnumber the cores. NULL: no thread. */
Group *all_reduce_open(void *memory, int rank, int workers, size_t piece, int spins) {
    Group *g = aligned_alloc(LINE, (sizeof(Group) + LINE - 1) / LINE * LINE);
    if (g == NULL) return NULL;
    memset(g, 0, sizeof *g);
    g->rank = rank, g->workers = workers, g->piece = piece, g->spins = spins;
    g->share = (piece / workers + LINE) / LINE * LINE + LINE;
    g->phases = memory;
    g->in = (char *)memory + workers * sizeof(Phase);
    g->out = g->in + workers * piece;
    sigset_t all, before;
    sigfillset(&all); /* signals are for the thread that runs Python */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&g->thread, NULL, work, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == 0) return g;
    free(g);
    return NULL;
}

/* The number of the job, from 1; 0: too many are under way. `data` must stay where it is until the job is done. */
uint32_t all_reduce_post(Group *g, void *data, size_t entries, int dtype) {
    uint32_t number = atomic_load(&g->posted.count) + 1;
    if (number - atomic_load(&g->done.count) > JOBS) return 0;
    g->jobs[(number - 1) % JOBS] = (Job){data, entries, dtype};
    add_and_wake(&g->posted.count);
    return number;
}

/* Whether the job is done, after so many nanoseconds at most. UNLIKE: it will not be. */
int all_reduce_wait(Group *g, uint32_t number, long nanoseconds) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    atomic_store(&g->urgent, 1);
    int done;
    while (!(done = reached(&g->done.count, number))) {
        if (atomic_load(&g->unlike)) {
            done = reached(&g->done.count, number) ? 1 : UNLIKE; /* it may have been one before that */
            break;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        long left = nanoseconds - (now.tv_sec - start.tv_sec) * 1000000000L - (now.tv_nsec - start.tv_nsec);
        if (left <= 0) break;
        uint32_t seen = atomic_load(&g->done.count);
        if ((int32_t)(seen - number) < 0) sleep_on(&g->done.count, seen, left < SLICE ? left : SLICE);
    }
    if (done) atomic_store(&g->urgent, 0);
    return done;
}

/* After UNLIKE: of how many entries worker `rank` began a sum, and their dtype, an index of SUMS. */
uint64_t all_reduce_told(const Group *g, int rank, int *dtype) {
    *dtype = g->phases[rank].dtype;
    return g->phases[rank].entries;
}

void all_reduce_close(Group *g) {
    atomic_store(&g->stop, 1);
    syscall(SYS_futex, &g->posted.count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    pthread_join(g->thread, NULL);
    free(g);
}
