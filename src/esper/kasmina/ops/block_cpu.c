// Convolution, group norm, ReLU and 2x2 max pool of channels-last float32 images on a CPU.
//
// Compiled for one shape: SIDE (odd kernel), CIN, COUT (a multiple of LANES), and for one width of
// vectors: LANES is 4 (NEON, SSE), 8 (AVX2) or 16 (AVX-512). One image at a time, so that everything
// between input and output stays in the caches. Sums run in one fixed order.
//
// A kernel's taps in one line of an image are contiguous in memory (the pixels of a line, the
// channels of a pixel), so a convolution is a sum over SIDE lines of SIDE * CIN numbers.

#ifdef __aarch64__
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RADIUS (SIDE / 2)
#define TAPS (SIDE * SIDE * CIN)
#define VECTORS (COUT / LANES)
#define EPSILON 1e-5f
#define MAX_THREADS 64
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

// What the registers hold (32 of them, or 16): vectors in a tile of 8 pixels, sums of the weight
// gradient for a whole line of taps, and for a part of one.
#if defined(__aarch64__) || defined(__AVX512VL__)
#define TILE_VECTORS 2
#define MAX_SUMS 20
#define PART_SUMS 16
#else
#define TILE_VECTORS 1
#define MAX_SUMS 12
#define PART_SUMS 12
#endif

// ---- vectors -----------------------------------------------------------------------------------

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));  // all bits of a lane, or none

typedef vec anywhere __attribute__((aligned(4), may_alias));    // in memory

INLINE vec load(const float *from) { return *(const anywhere *)from; }

INLINE void store(float *into, vec value) { *(anywhere *)into = value; }

INLINE vec splat(float value) { return value - (vec){0}; }

INLINE vec only(vec value, mask lanes) { return (vec)((mask)value & lanes); }

INLINE vec choose(mask lanes, vec yes, vec no) {
    return (vec)(((mask)yes & lanes) | ((mask)no & ~lanes));
}

// a * b + c, rounded once.
INLINE vec muladd(vec a, vec b, vec c) {
#ifdef __aarch64__
    return vfmaq_f32(c, a, b);
#elif LANES == 16
    return _mm512_fmadd_ps(a, b, c);
#elif LANES == 8
    return _mm256_fmadd_ps(a, b, c);
#else
    return _mm_fmadd_ps(a, b, c);
#endif
}

// The larger one; NaN if one of them is, as in torch's ReLU and pool.
INLINE vec larger(vec a, vec b) {
#ifdef __aarch64__
    return vmaxq_f32(a, b);
#else
    return choose((a > b) | (a != a), a, b);
#endif
}

// Four numbers to multiply vectors by: NEON takes lanes of a register, x86 repeats what is in memory.
#ifdef __aarch64__
typedef vec Four;
INLINE Four four(const float *from) { return load(from); }
#define MULADD_LANE(a, seen, lane, c) vfmaq_laneq_f32(c, a, seen, lane)
#else
typedef const float *Four;
INLINE Four four(const float *from) { return from; }
#define MULADD_LANE(a, seen, lane, c) muladd(a, splat(seen[lane]), c)
#endif

typedef struct {
    const float *x;           // [B, H, W, CIN]
    const float *weight;      // [COUT, CIN, SIDE, SIDE]
    const float *scale;       // [COUT]
    const float *shift;       // [COUT]
    float *convolved;         // [B, H, W, COUT], for backward; NULL: not kept
    float *statistics;        // [B, G, 2]: mean and inverse deviation
    float *out;               // [B, H, W, COUT], or half of both sides if pooled
    const float *grad;        // like out
    float *grad_x;            // like x; NULL: not needed
    float *grad_weight;       // like weight; NULL: not needed
    float *grad_scale;        // [COUT]
    float *grad_shift;        // [COUT]
    int64_t batch, height, width, groups, relu, pool, threads;
} Block;

// ---- convolution -------------------------------------------------------------------------------

// Copies an image into the middle of a zeroed one that is RADIUS wider on each side.
static void surround(const float *image, float *wide, long height, long width, long channels) {
    long line = (width + 2 * RADIUS) * channels;
    for (long y = 0; y < height; y++)
        memcpy(wide + (y + RADIUS) * line + RADIUS * channels, image + y * width * channels,
               width * channels * sizeof(float));
}

// Convolves `pixels` neighbours to LANES * `vectors` channels, from channel `first` of `outs` on.
INLINE void convolve_tile(const float *wide, const float *weight, float *out, long line, long first,
                          const int channels, const int outs, const int vectors,
                          const int pixels) {
    vec sum[16];
    UNROLL for (int i = 0; i < pixels * vectors; i++) sum[i] = splat(0.0f);
    for (int down = 0; down < SIDE; down++) {
        const float *from = wide + down * line;
        const float *by = weight + (long)down * SIDE * channels * outs + first;
        int tap = 0;
        for (; tap + 4 <= SIDE * channels; tap += 4, from += 4) {
            Four seen[8];
            UNROLL for (int p = 0; p < pixels; p++) seen[p] = four(from + p * channels);
#define LANE(lane)                                                                                 \
    UNROLL for (int v = 0; v < vectors; v++) {                                                     \
        vec w = load(by + LANES * v);                                                              \
        UNROLL for (int p = 0; p < pixels; p++) sum[p * vectors + v] =                             \
            MULADD_LANE(w, seen[p], lane, sum[p * vectors + v]);                                   \
    }                                                                                              \
    by += outs;
            LANE(0) LANE(1) LANE(2) LANE(3)
        }
        for (; tap < SIDE * channels; tap++, from++) {
            UNROLL for (int v = 0; v < vectors; v++) {
                vec w = load(by + LANES * v);
                UNROLL for (int p = 0; p < pixels; p++) sum[p * vectors + v] =
                    muladd(w, splat(from[p * channels]), sum[p * vectors + v]);
            }
            by += outs;
        }
    }
    UNROLL for (int p = 0; p < pixels; p++) UNROLL for (int v = 0; v < vectors; v++)
        store(out + p * outs + LANES * v, sum[p * vectors + v]);
}

INLINE void convolve_channels(const float *wide, const float *weight, float *out, long height,
                              long width, long first, const int channels, const int outs,
                              const int vectors) {
    long line = (width + 2 * RADIUS) * channels;
    for (long y = 0; y < height; y++) {
        const float *from = wide + y * line;
        float *into = out + y * width * outs + first;
        long x = 0;
#define TILES(pixels)                                                                              \
    for (; x + pixels <= width; x += pixels, from += pixels * channels, into += pixels * outs)     \
        convolve_tile(from, weight, into, line, first, channels, outs, vectors, pixels);
        TILES(8) TILES(4) TILES(1)
    }
}

// `weight`: [SIDE, SIDE * channels, outs]
INLINE void convolve(const float *wide, const float *weight, float *out, long height, long width,
                     const int channels, const int outs) {
    const int tile = TILE_VECTORS * LANES;
    int first = 0;
    for (; first + tile <= outs; first += tile)
        convolve_channels(wide, weight, out, height, width, first, channels, outs, TILE_VECTORS);
    for (; first < outs; first += LANES)
        convolve_channels(wide, weight, out, height, width, first, channels, outs, 1);
}

// Adds the products of an image's taps with the gradient: [SIDE, SIDE * CIN, COUT].
INLINE void add_tap_products(const float *wide, const float *grad, float *sums, long height,
                             long width, int tap, int first, const int taps, const int vectors) {
    long line = (width + 2 * RADIUS) * CIN, grad_line = (width + 2 * RADIUS) * COUT;
    for (int down = 0; down < SIDE; down++) {
        float *into = sums + ((long)down * SIDE * CIN + tap) * COUT + first;
        vec sum[MAX_SUMS];
        UNROLL for (int t = 0; t < taps; t++) UNROLL for (int v = 0; v < vectors; v++)
            sum[t * vectors + v] = load(into + t * COUT + LANES * v);
        for (long y = 0; y < height; y++) {
            const float *from = wide + (y + down) * line + tap;
            const float *by = grad + (y + RADIUS) * grad_line + RADIUS * COUT + first;
            for (long x = 0; x < width; x++, from += CIN, by += COUT) {
                vec g[4];
                UNROLL for (int v = 0; v < vectors; v++) g[v] = load(by + LANES * v);
#define TAP(t, seen, lane)                                                                         \
    if ((t) < taps) UNROLL for (int v = 0; v < vectors; v++) sum[(t) * vectors + v] =              \
        MULADD_LANE(g[v], seen, lane, sum[(t) * vectors + v]);
#define QUAD(t)                                                                                    \
    if ((t) < taps) {                                                                              \
        Four seen = four(from + (t));                                                              \
        TAP((t), seen, 0) TAP((t) + 1, seen, 1) TAP((t) + 2, seen, 2) TAP((t) + 3, seen, 3)        \
    }
                QUAD(0) QUAD(4) QUAD(8) QUAD(12)
            }
        }
        UNROLL for (int t = 0; t < taps; t++) UNROLL for (int v = 0; v < vectors; v++)
            store(into + t * COUT + LANES * v, sum[t * vectors + v]);
    }
}

INLINE void add_channel_products(const float *wide, const float *grad, float *sums, long height,
                                 long width, int first, const int vectors) {
    const int line = SIDE * CIN;
    const int all = vectors * line <= MAX_SUMS && line <= 16 ? line : PART_SUMS / vectors;
    int tap = 0;
    for (; tap + all <= line; tap += all)
        add_tap_products(wide, grad, sums, height, width, tap, first, all, vectors);
    if (line % all)
        add_tap_products(wide, grad, sums, height, width, tap, first, line % all, vectors);
}

static void add_weight_gradient(const float *wide, const float *grad, float *sums, long height,
                                long width) {
    int first = 0;
#define CHANNELS(vectors)                                                                          \
    for (; first + vectors * LANES <= COUT; first += vectors * LANES)                              \
        add_channel_products(wide, grad, sums, height, width, first, vectors);
    CHANNELS(4) CHANNELS(2) CHANNELS(1)
}

// ---- norm, ReLU, pool --------------------------------------------------------------------------

// Mean and inverse deviation of each group of an image, in two passes over it.
static void measure(const float *image, float *statistics, long places, long groups) {
    float channel[COUT], mean[COUT];
    long each = COUT / groups;
    for (int pass = 0; pass < 2; pass++) {
        UNROLL for (int v = 0; v < VECTORS; v++) {
            vec sum = splat(0.0f), more = sum;
            vec middle = pass ? load(mean + LANES * v) : sum;
            const float *at = image + LANES * v;
            long p = 0;
            for (; p + 2 <= places; p += 2, at += 2 * COUT) {
                vec one = load(at), two = load(at + COUT);
                if (pass) {
                    one -= middle, two -= middle;
                    sum = muladd(one, one, sum), more = muladd(two, two, more);
                } else
                    sum += one, more += two;
            }
            for (; p < places; p++, at += COUT) {
                vec one = load(at);
                if (pass) one -= middle, one *= one;
                sum += one;
            }
            store(channel + LANES * v, sum + more);
        }
        for (long g = 0; g < groups; g++) {
            float sum = 0.0f;
            for (long c = g * each; c < (g + 1) * each; c++) sum += channel[c];
            sum /= (float)(each * places);
            if (!pass) {
                statistics[2 * g] = sum;
                for (long c = g * each; c < (g + 1) * each; c++) mean[c] = sum;
            } else
                statistics[2 * g + 1] = 1.0f / __builtin_sqrtf(sum + EPSILON);
        }
    }
}

// Factor and term of each channel: what the norm does to a convolved number.
static void set_line(const Block *block, const float *statistics, float *factor, float *term) {
    long each = COUT / block->groups;
    for (long c = 0; c < COUT; c++) {
        const float *own = statistics + 2 * (c / each);
        factor[c] = block->scale[c] * own[1];
        term[c] = block->shift[c] - own[0] * factor[c];
    }
}

INLINE vec normed(const float *at, vec factor, vec term) {
    return muladd(load(at), factor, term);
}

static void write_output(const Block *block, const float *image, const float *statistics,
                         float *out) {
    float factors[COUT], terms[COUT];
    set_line(block, statistics, factors, terms);
    long width = block->width, line = width * COUT;
    vec floor = splat(block->relu ? 0.0f : -__builtin_inff());
    if (!block->pool) {
        for (long p = 0; p < block->height * width; p++) UNROLL for (int v = 0; v < VECTORS; v++) {
            long at = p * COUT + LANES * v;
            vec factor = load(factors + LANES * v), term = load(terms + LANES * v);
            store(out + at, larger(normed(image + at, factor, term), floor));
        }
        return;
    }
    for (long y = 0; y < block->height; y += 2) for (long x = 0; x < width; x += 2) {
        const float *at = image + (y * width + x) * COUT;
        UNROLL for (int v = 0; v < VECTORS; v++, at += LANES, out += LANES) {
            vec factor = load(factors + LANES * v), term = load(terms + LANES * v);
            vec above = larger(normed(at, factor, term),
                                          normed(at + COUT, factor, term));
            vec below = larger(normed(at + line, factor, term),
                                          normed(at + line + COUT, factor, term));
            store(out, larger(larger(above, below), floor));
        }
    }
}

// Writes the gradient before ReLU and pool into `wide`; returns its sums over an image for each
// channel: alone, and times the normalised convolution.
static void undo_output(const Block *block, const float *image, const float *statistics,
                        const float *grad, float *wide, float *sums, float *products) {
    float factors[COUT], terms[COUT];
    set_line(block, statistics, factors, terms);
    long width = block->width, wide_line = (width + 2 * RADIUS) * COUT, line = width * COUT;
    long each = COUT / block->groups, step = block->pool ? 2 : 1;
    mask relu = (mask){0} - (int32_t)(block->relu != 0);
    vec zero = splat(0.0f);
    UNROLL for (int v = 0; v < VECTORS; v++) {
        vec factor = load(factors + LANES * v), term = load(terms + LANES * v);
        vec sum = zero, product = zero;
        for (long y = 0; y < block->height; y += step) {
            const float *at = image + y * line + LANES * v;
            const float *given = grad + y / step * (width / step) * COUT + LANES * v;
            float *into = wide + (y + RADIUS) * wide_line + RADIUS * COUT + LANES * v;
            if (!block->pool) {
                for (long x = 0; x < width; x++, at += COUT, given += COUT, into += COUT) {
                    vec seen = load(at), value = muladd(seen, factor, term);
                    mask dead = (value <= zero) & relu;
                    vec g = only(load(given), ~dead);
                    store(into, g);
                    sum += g, product = muladd(g, seen, product);
                }
                continue;
            }
            for (long x = 0; x < width; x += 2, at += 2 * COUT, given += COUT, into += 2 * COUT) {
                vec a = load(at), b = load(at + COUT);
                vec c = load(at + line), d = load(at + line + COUT);
                vec na = muladd(a, factor, term), nb = muladd(b, factor, term);
                vec nc = muladd(c, factor, term), nd = muladd(d, factor, term);
                vec top = larger(larger(na, nb), larger(nc, nd));
                mask dead = (top <= zero) & relu;
                vec g = only(load(given), ~dead);
                // The first of equal maxima has the gradient, as in torch.
                mask is_a = na == top;
                mask is_b = (nb == top) & ~is_a, past = is_a | is_b;
                mask is_c = (nc == top) & ~past;
                mask is_d = ~(past | is_c);
                store(into, only(g, is_a)), store(into + COUT, only(g, is_b));
                store(into + wide_line, only(g, is_c));
                store(into + wide_line + COUT, only(g, is_d));
                vec winner = choose(is_c, c, choose(is_b, b, choose(is_a, a, d)));
                sum += g, product = muladd(g, winner, product);
            }
        }
        store(sums + LANES * v, sum), store(products + LANES * v, product);
    }
    for (long c = 0; c < COUT; c++) {
        const float *own = statistics + 2 * (c / each);
        products[c] = (products[c] - own[0] * sums[c]) * own[1];
    }
}

// Takes the gradient through the norm, in place; `image`: the convolution.
static void undo_norm(const Block *block, const float *image, const float *statistics, float *wide,
                      const float *sums, const float *products) {
    float factors[COUT], terms[COUT], slopes[COUT];
    long width = block->width, each = COUT / block->groups;
    float count = (float)(each * block->height * width);
    for (long g = 0; g < block->groups; g++) {
        const float *own = statistics + 2 * g;
        float sum = 0.0f, product = 0.0f;
        for (long c = g * each; c < (g + 1) * each; c++)
            sum += sums[c] * block->scale[c], product += products[c] * block->scale[c];
        float slope = -product * own[1] * own[1] / count;
        for (long c = g * each; c < (g + 1) * each; c++) {
            factors[c] = block->scale[c] * own[1];
            slopes[c] = slope;
            terms[c] = -sum * own[1] / count - slope * own[0];
        }
    }
    for (long y = 0; y < block->height; y++) {
        float *into = wide + ((y + RADIUS) * (width + 2 * RADIUS) + RADIUS) * COUT;
        const float *at = image + y * width * COUT;
        for (long x = 0; x < width; x++) UNROLL for (int v = 0; v < VECTORS; v++) {
            vec term = muladd(load(at), load(slopes + LANES * v), load(terms + LANES * v));
            store(into, muladd(load(into), load(factors + LANES * v), term));
            at += LANES, into += LANES;
        }
    }
}

// ---- whole batches -----------------------------------------------------------------------------

// [SIDE, SIDE * CIN, COUT] of weights as torch keeps them.
static void pack(const float *weight, float *packed) {
    for (long o = 0; o < COUT; o++) for (long c = 0; c < CIN; c++)
        for (long tap = 0; tap < SIDE * SIDE; tap++)
            packed[(tap * CIN + c) * COUT + o] = *weight++;
}

static void unpack(const float *packed, float *weight) {
    for (long o = 0; o < COUT; o++) for (long c = 0; c < CIN; c++)
        for (long tap = 0; tap < SIDE * SIDE; tap++)
            *weight++ = packed[(tap * CIN + c) * COUT + o];
}

// [SIDE, SIDE * COUT, CIN]: the kernel turned around.
static void pack_turned(const float *weight, float *packed) {
    for (long o = 0; o < COUT; o++) for (long c = 0; c < CIN; c++)
        for (long tap = SIDE * SIDE - 1; tap >= 0; tap--)
            packed[(tap * COUT + o) * CIN + c] = *weight++;
}

static long wide_size(const Block *block, long channels) {
    long slack = 16;  // vectors are read whole
    return (block->height + 2 * RADIUS) * (block->width + 2 * RADIUS) * channels + slack;
}

// Images from `first` to before `end`, by one thread; `sums`: [TAPS + 2, COUT], gradients of the
// weights, of the scale and of the shift over these images.
typedef struct {
    const Block *block;
    const float *weight;
    float *sums;
    int64_t first, end;
    int failed;
} Share;

static void *forward_share(void *given) {
    Share *share = given;
    const Block *block = share->block;
    long places = block->height * block->width, wide_x = wide_size(block, CIN);
    long out_size = places * COUT / (block->pool ? 4 : 1);
    float *wide = calloc(wide_x + places * COUT + 2 * COUT, sizeof(float));
    share->failed = wide == NULL;
    if (share->failed) return NULL;
    float *image = wide + wide_x, *own = image + places * COUT;
    for (long b = share->first; b < share->end; b++) {
        float *kept = block->convolved ? block->convolved + b * places * COUT : image;
        float *statistics = block->statistics ? block->statistics + b * block->groups * 2 : own;
        surround(block->x + b * places * CIN, wide, block->height, block->width, CIN);
        convolve(wide, share->weight, kept, block->height, block->width, CIN, COUT);
        measure(kept, statistics, places, block->groups);
        write_output(block, kept, statistics, block->out + b * out_size);
    }
    free(wide);
    return NULL;
}

static void *backward_share(void *given) {
    Share *share = given;
    const Block *block = share->block;
    long places = block->height * block->width;
    long wide_x = wide_size(block, CIN), wide_out = wide_size(block, COUT);
    long out_size = places * COUT / (block->pool ? 4 : 1);
    float *wide = calloc(wide_x + wide_out, sizeof(float));
    share->failed = wide == NULL;
    if (share->failed) return NULL;
    float *grad = wide + wide_x, *scale = share->sums + TAPS * COUT, *shift = scale + COUT;
    for (long b = share->first; b < share->end; b++) {
        const float *image = block->convolved + b * places * COUT;
        const float *statistics = block->statistics + b * block->groups * 2;
        float sums[COUT], products[COUT];
        undo_output(block, image, statistics, block->grad + b * out_size, grad, sums, products);
        for (long c = 0; c < COUT; c++) shift[c] += sums[c], scale[c] += products[c];
        undo_norm(block, image, statistics, grad, sums, products);
        if (block->grad_weight) {
            surround(block->x + b * places * CIN, wide, block->height, block->width, CIN);
            add_weight_gradient(wide, grad, share->sums, block->height, block->width);
        }
#if CIN % LANES == 0
        if (block->grad_x)
            convolve(grad, share->weight, block->grad_x + b * places * CIN, block->height,
                     block->width, COUT, CIN);
#endif
    }
    free(wide);
    return NULL;
}

// Runs all shares, the first one in this thread. Returns 0, or 1 if memory is short.
static int run(void *(*work)(void *), Share *shares, long count) {
    pthread_t threads[MAX_THREADS];
    int started[MAX_THREADS], failed = 0;
    for (long i = 1; i < count; i++)
        started[i] = pthread_create(&threads[i], NULL, work, &shares[i]) == 0;
    work(&shares[0]);
    for (long i = 1; i < count; i++) {
        if (started[i])
            pthread_join(threads[i], NULL);
        else
            work(&shares[i]);
    }
    for (long i = 0; i < count; i++) failed |= shares[i].failed;
    return failed;
}

// Divides the images among threads; `size`: numbers in the sums of each.
static long divide(const Block *block, Share *shares, const float *weight, float *sums, long size) {
    long count = block->threads < block->batch ? block->threads : block->batch;
    count = count > MAX_THREADS ? MAX_THREADS : count < 1 ? 1 : count;
    for (long i = 0; i < count; i++) {
        long first = block->batch * i / count, end = block->batch * (i + 1) / count;
        shares[i] = (Share){block, weight, sums + i * size, first, end, 0};
    }
    return count;
}

int block_forward(const Block *block) {
    Share shares[MAX_THREADS];
    float *weight = malloc(TAPS * COUT * sizeof(float));
    if (!weight) return 1;
    pack(block->weight, weight);
    long count = divide(block, shares, weight, NULL, 0);
    int failed = run(forward_share, shares, count);
    free(weight);
    return failed;
}

int block_backward(const Block *block) {
    Share shares[MAX_THREADS];
    long size = (TAPS + 2) * COUT;
    float *weight = calloc(TAPS * COUT + block->threads * size, sizeof(float));
    if (!weight) return 1;
    float *sums = weight + TAPS * COUT;
    if (block->grad_x) pack_turned(block->weight, weight);
    long count = divide(block, shares, weight, sums, size);
    int failed = run(backward_share, shares, count);
    for (long i = 1; i < count; i++)
        for (long at = 0; at < size; at++) sums[at] += sums[i * size + at];
    if (block->grad_weight) unpack(sums, block->grad_weight);
    memcpy(block->grad_scale, sums + TAPS * COUT, COUT * sizeof(float));
    memcpy(block->grad_shift, sums + (TAPS + 1) * COUT, COUT * sizeof(float));
    free(weight);
    return failed;
}
