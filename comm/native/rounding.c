/* Stochastic rounding of rows to levels; see ../../exchange/compress/rounding.py, whose bits these are. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC optimize("fp-contract=off") /* x * factor is rounded before its floor is subtracted */

/* codes[i] = s + floor(x[i] factor + u), with u = k[i] 2^-16 + h, no lower than 0 and no higher than 2 s */
static void round_row(const float *restrict x, const int16_t *restrict k, float factor, float h, size_t width, int s,
                      uint8_t *restrict codes) {
    float most = (float)s;
    for (size_t i = 0; i < width; i++) {
        float r = x[i] * factor, whole = floorf(r);
        float level = floorf((r - whole) + (float)k[i] * 0x1p-16f + h) + whole;
        level = level > most ? most : level;
        level = level < -most ? -most : level;
        codes[i] = (uint8_t)((int)level + s);
    }
}

/* [rows, width] of x and of codes, rows `stride` apart; k: [rows, width]; factors, h: [rows] */
void round_to_levels(const float *x, const int16_t *k, const float *factors, const float *h, size_t rows, size_t width,
                     size_t stride, int s, uint8_t *codes) {
    for (size_t row = 0; row < rows; row++)
        round_row(x + row * stride, k + row * width, factors[row], h[row], width, s, codes + row * stride);
}
