/* Squared distances between all pairs of rows; see ../../exchange/aggregate/distances.py.

   Columns go in blocks that stay in cache as float64. Of each block, TILE rows are compared with TILE others at once,
   so that a number that was loaded serves TILE differences. A pair has LANES sums, one for every LANES-th column. They
   are added up at the end, so that bits do not depend on how wide the processor's registers are. */

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 256 /* of a block, a multiple of LANES */
#define TILE 3      /* its nine sums and six rows fit into 16 registers */
#define LANES 4

typedef double Lanes __attribute__((vector_size(LANES * sizeof(double))));

#define WIDEN(name, type)                                                                     \
    static void name(const void *rows, size_t at, size_t n, double *block) {                  \
        const type *row = (const type *)rows + at;                                            \
        for (size_t k = 0; k < n; k++) block[k] = row[k];                                     \
        memset(block + n, 0, (COLUMNS - n) * sizeof *block);                                  \
    }

WIDEN(widen_float, float)
WIDEN(widen_double, double)

static void compare(const Lanes *const a[TILE], const Lanes *const b[TILE], Lanes sums[TILE][TILE]) {
    Lanes s[TILE][TILE];
    memcpy(s, sums, sizeof s);
    for (size_t k = 0; k < COLUMNS / LANES; k++)
        for (int p = 0; p < TILE; p++)
            for (int q = 0; q < TILE; q++) {
                Lanes difference = a[p][k] - b[q][k];
                s[p][q] += difference * difference;
            }
    memcpy(sums, s, sizeof s);
}

/* out[i, j] = ||x_i - x_j||^2 over columns `from` to `to`. `rows`: [n, length] of float, or of double if `is_double`.
   0: there is no memory. */
int squared_distances(const void *rows, int is_double, size_t n, size_t length, size_t from, size_t to, double *out) {
    size_t tiles = (n + TILE - 1) / TILE, block = n * COLUMNS * sizeof(double);
    size_t room = tiles * (tiles + 1) / 2 * sizeof(Lanes[TILE][TILE]);
    double *x = aligned_alloc(sizeof(Lanes), block + room); /* a block of rows, and then the sums */
    if (x == NULL) return 0;
    Lanes(*const sums)[TILE][TILE] = (void *)(x + n * COLUMNS);
    memset(sums, 0, room);
    for (size_t at = from; at < to; at += COLUMNS) {
        size_t columns = to - at < COLUMNS ? to - at : COLUMNS, pair = 0;
        for (size_t i = 0; i < n; i++)
            (is_double ? widen_double : widen_float)(rows, i * length + at, columns, x + i * COLUMNS);
        for (size_t i = 0; i < tiles; i++)
            for (size_t j = i; j < tiles; j++) {
                const Lanes *a[TILE], *b[TILE];
                for (size_t p = 0; p < TILE; p++) { /* the last tile is filled up with the last row */
                    size_t left = i * TILE + p, right = j * TILE + p;
                    a[p] = (Lanes *)(x + (left < n ? left : n - 1) * COLUMNS);
                    b[p] = (Lanes *)(x + (right < n ? right : n - 1) * COLUMNS);
                }
                compare(a, b, sums[pair++]);
            }
    }
    size_t pair = 0;
    for (size_t i = 0; i < tiles; i++)
        for (size_t j = i; j < tiles; j++, pair++)
            for (size_t left = i * TILE; left < n && left < (i + 1) * TILE; left++)
                for (size_t right = j * TILE; right < n && right < (j + 1) * TILE; right++) {
                    Lanes s = sums[pair][left % TILE][right % TILE];
                    out[left * n + right] = out[right * n + left] = (s[0] + s[1]) + (s[2] + s[3]);
                }
    free(x);
    return 1;
}
