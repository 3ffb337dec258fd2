// Convolution, group norm, ReLU and 2x2 max pool of channels-last float32 images on an ARM CPU.
//
// Compiled for one shape: SIDE (odd kernel), CIN, COUT (a multiple of 4). One image at a time, so
// that everything between input and output stays in the caches. Sums run in one fixed order.
//
// A kernel's taps in one line of an image are contiguous in memory (the pixels of a line, the
// channels of a pixel), so a convolution is a sum over SIDE lines of SIDE * CIN numbers.

#include <arm_neon.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RADIUS (SIDE / 2)
#define TAPS (SIDE * SIDE * CIN)
#define VECTORS (COUT / 4)
#define EPSILON 1e-5f
#define MOST_THREADS 64
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

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

// Convolves `pixels` neighbours to 4 * `vectors` channels, from channel `first` of `outs` on.
INLINE void convolve_tile(const float *wide, const float *weight, float *out, long line, long first,
                          const int channels, const int outs, const int vectors,
                          const int pixels) {
    float32x4_t sum[16];
    UNROLL for (int i = 0; i < pixels * vectors; i++) sum[i] = vdupq_n_f32(0.0f);
    for (int down = 0; down < SIDE; down++) {
        const float *from = wide + down * line;
        const float *by = weight + (long)down * SIDE * channels * outs + first;
        int tap = 0;
        for (; tap + 4 <= SIDE * channels; tap += 4, from += 4) {
            float32x4_t seen[8];
            UNROLL for (int p = 0; p < pixels; p++) seen[p] = vld1q_f32(from + p * channels);
#define LANE(lane)                                                                                 \
    UNROLL for (int v = 0; v < vectors; v++) {                                                     \
        float32x4_t w = vld1q_f32(by + 4 * v);                                                     \
        UNROLL for (int p = 0; p < pixels; p++) sum[p * vectors + v] =                             \
            vfmaq_laneq_f32(sum[p * vectors + v], w, seen[p], lane);                               \
    }                                                                                              \
    by += outs;
            LANE(0) LANE(1) LANE(2) LANE(3)
        }
        for (; tap < SIDE * channels; tap++, from++) {
            UNROLL for (int v = 0; v < vectors; v++) {
                float32x4_t w = vld1q_f32(by + 4 * v);
                UNROLL for (int p = 0; p < pixels; p++) sum[p * vectors + v] =
                    vfmaq_n_f32(sum[p * vectors + v], w, from[p * channels]);
            }
            by += outs;
        }
    }
    UNROLL for (int p = 0; p < pixels; p++) UNROLL for (int v = 0; v < vectors; v++)
        vst1q_f32(out + p * outs + 4 * v, sum[p * vectors + v]);
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
    int first = 0;
    for (; first + 8 <= outs; first += 8)
        convolve_channels(wide, weight, out, height, width, first, channels, outs, 2);
    if (first + 4 <= outs)
        convolve_channels(wide, weight, out, height, width, first, channels, outs, 1);
}

// Adds the products of an image's taps with the gradient: [SIDE, SIDE * CIN, COUT].
INLINE void add_tap_products(const float *wide, const float *grad, float *sums, long height,
                             long width, int tap, int first, const int taps, const int vectors) {
    long line = (width + 2 * RADIUS) * CIN, grad_line = (width + 2 * RADIUS) * COUT;
    for (int down = 0; down < SIDE; down++) {
        float *into = sums + ((long)down * SIDE * CIN + tap) * COUT + first;
        float32x4_t sum[20];
        UNROLL for (int t = 0; t < taps; t++) UNROLL for (int v = 0; v < vectors; v++)
            sum[t * vectors + v] = vld1q_f32(into + t * COUT + 4 * v);
        for (long y = 0; y < height; y++) {
            const float *from = wide + (y + down) * line + tap;
            const float *by = grad + (y + RADIUS) * grad_line + RADIUS * COUT + first;
            for (long x = 0; x < width; x++, from += CIN, by += COUT) {
                float32x4_t g[4];
                UNROLL for (int v = 0; v < vectors; v++) g[v] = vld1q_f32(by + 4 * v);
#define TAP(t, seen, lane)                                                                         \
    if ((t) < taps) UNROLL for (int v = 0; v < vectors; v++) sum[(t) * vectors + v] =              \
        vfmaq_laneq_f32(sum[(t) * vectors + v], g[v], seen, lane);
#define QUAD(t)                                                                                    \
    if ((t) < taps) {                                                                              \
        float32x4_t seen = vld1q_f32(from + (t));                                                  \
        TAP((t), seen, 0) TAP((t) + 1, seen, 1) TAP((t) + 2, seen, 2) TAP((t) + 3, seen, 3)        \
    }
                QUAD(0) QUAD(4) QUAD(8) QUAD(12)
            }
        }
        UNROLL for (int t = 0; t < taps; t++) UNROLL for (int v = 0; v < vectors; v++)
            vst1q_f32(into + t * COUT + 4 * v, sum[t * vectors + v]);
    }
}

INLINE void add_channel_products(const float *wide, const float *grad, float *sums, long height,
                                 long width, int first, const int vectors) {
    const int line = SIDE * CIN;
    const int all = vectors * line <= 20 && line <= 16 ? line : 16 / vectors;
    int tap = 0;
    for (; tap + all <= line; tap += all)
        add_tap_products(wide, grad, sums, height, width, tap, first, all, vectors);
    if (line % all)
        add_tap_products(wide, grad, sums, height, width, tap, first, line % all, vectors);
}

static void add_weight_gradient(const float *wide, const float *grad, float *sums, long height,
                                long width) {
    int first = 0;
    for (; first + 16 <= COUT; first += 16)
        add_channel_products(wide, grad, sums, height, width, first, 4);
    if (first + 8 <= COUT) {
        add_channel_products(wide, grad, sums, height, width, first, 2);
        first += 8;
    }
    if (first + 4 <= COUT) add_channel_products(wide, grad, sums, height, width, first, 1);
}

// ---- norm, ReLU, pool --------------------------------------------------------------------------

// Mean and inverse deviation of each group of an image, in two passes over it.
static void measure(const float *image, float *statistics, long places, long groups) {
    float channel[COUT], mean[COUT];
    long each = COUT / groups;
    for (int pass = 0; pass < 2; pass++) {
        UNROLL for (int v = 0; v < VECTORS; v++) {
            float32x4_t sum = vdupq_n_f32(0.0f), more = sum;
            float32x4_t middle = pass ? vld1q_f32(mean + 4 * v) : sum;
            const float *at = image + 4 * v;
            long p = 0;
            for (; p + 2 <= places; p += 2, at += 2 * COUT) {
                float32x4_t one = vld1q_f32(at), two = vld1q_f32(at + COUT);
                if (pass) {
                    one = vsubq_f32(one, middle), two = vsubq_f32(two, middle);
                    sum = vfmaq_f32(sum, one, one), more = vfmaq_f32(more, two, two);
                } else
                    sum = vaddq_f32(sum, one), more = vaddq_f32(more, two);
            }
            for (; p < places; p++, at += COUT) {
                float32x4_t one = vld1q_f32(at);
                if (pass) one = vsubq_f32(one, middle), one = vmulq_f32(one, one);
                sum = vaddq_f32(sum, one);
            }
            vst1q_f32(channel + 4 * v, vaddq_f32(sum, more));
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

INLINE float32x4_t normed(const float *at, float32x4_t factor, float32x4_t term) {
    return vfmaq_f32(term, vld1q_f32(at), factor);
}

static void write_output(const Block *block, const float *image, const float *statistics,
                         float *out) {
    float factors[COUT], terms[COUT];
    set_line(block, statistics, factors, terms);
    long width = block->width, line = width * COUT;
    // FMAX keeps NaN, as torch's ReLU and pool do.
    float32x4_t floor = vdupq_n_f32(block->relu ? 0.0f : -__builtin_inff());
    if (!block->pool) {
        for (long p = 0; p < block->height * width; p++) UNROLL for (int v = 0; v < VECTORS; v++) {
            long at = p * COUT + 4 * v;
            float32x4_t factor = vld1q_f32(factors + 4 * v), term = vld1q_f32(terms + 4 * v);
            vst1q_f32(out + at, vmaxq_f32(normed(image + at, factor, term), floor));
        }
        return;
    }
    for (long y = 0; y < block->height; y += 2) for (long x = 0; x < width; x += 2) {
        const float *at = image + (y * width + x) * COUT;
        UNROLL for (int v = 0; v < VECTORS; v++, at += 4, out += 4) {
            float32x4_t factor = vld1q_f32(factors + 4 * v), term = vld1q_f32(terms + 4 * v);
            float32x4_t above = vmaxq_f32(normed(at, factor, term),
                                          normed(at + COUT, factor, term));
            float32x4_t below = vmaxq_f32(normed(at + line, factor, term),
                                          normed(at + line + COUT, factor, term));
            vst1q_f32(out, vmaxq_f32(vmaxq_f32(above, below), floor));
        }
    }
}

INLINE float32x4_t only(float32x4_t value, uint32x4_t mask) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value), mask));
}

// Writes the gradient before ReLU and pool into `wide`; returns its sums over an image for each
// channel: alone, and times the normalised convolution.
static void undo_output(const Block *block, const float *image, const float *statistics,
                        const float *grad, float *wide, float *sums, float *products) {
    float factors[COUT], terms[COUT];
    set_line(block, statistics, factors, terms);
    long width = block->width, wide_line = (width + 2 * RADIUS) * COUT, line = width * COUT;
    long each = COUT / block->groups, step = block->pool ? 2 : 1;
    uint32x4_t all = vdupq_n_u32(block->relu ? 0 : ~0u);
    float32x4_t zero = vdupq_n_f32(0.0f);
    UNROLL for (int v = 0; v < VECTORS; v++) {
        float32x4_t factor = vld1q_f32(factors + 4 * v), term = vld1q_f32(terms + 4 * v);
        float32x4_t sum = zero, product = zero;
        for (long y = 0; y < block->height; y += step) {
            const float *at = image + y * line + 4 * v;
            const float *given = grad + y / step * (width / step) * COUT + 4 * v;
            float *into = wide + (y + RADIUS) * wide_line + RADIUS * COUT + 4 * v;
            if (!block->pool) {
                for (long x = 0; x < width; x++, at += COUT, given += COUT, into += COUT) {
                    float32x4_t seen = vld1q_f32(at), value = vfmaq_f32(term, seen, factor);
                    uint32x4_t dead = vbicq_u32(vcleq_f32(value, zero), all);
                    float32x4_t g = only(vld1q_f32(given), vmvnq_u32(dead));
                    vst1q_f32(into, g);
                    sum = vaddq_f32(sum, g), product = vfmaq_f32(product, g, seen);
                }
                continue;
            }
            for (long x = 0; x < width; x += 2, at += 2 * COUT, given += COUT, into += 2 * COUT) {
                float32x4_t a = vld1q_f32(at), b = vld1q_f32(at + COUT);
                float32x4_t c = vld1q_f32(at + line), d = vld1q_f32(at + line + COUT);
                float32x4_t na = vfmaq_f32(term, a, factor), nb = vfmaq_f32(term, b, factor);
                float32x4_t nc = vfmaq_f32(term, c, factor), nd = vfmaq_f32(term, d, factor);
                float32x4_t top = vmaxq_f32(vmaxq_f32(na, nb), vmaxq_f32(nc, nd));
                uint32x4_t dead = vbicq_u32(vcleq_f32(top, zero), all);
                float32x4_t g = only(vld1q_f32(given), vmvnq_u32(dead));
                // The first of equal maxima has the gradient, as in torch.
                uint32x4_t is_a = vceqq_f32(na, top);
                uint32x4_t is_b = vbicq_u32(vceqq_f32(nb, top), is_a), past = vorrq_u32(is_a, is_b);
                uint32x4_t is_c = vbicq_u32(vceqq_f32(nc, top), past);
                uint32x4_t is_d = vmvnq_u32(vorrq_u32(past, is_c));
                vst1q_f32(into, only(g, is_a)), vst1q_f32(into + COUT, only(g, is_b));
                vst1q_f32(into + wide_line, only(g, is_c));
                vst1q_f32(into + wide_line + COUT, only(g, is_d));
                float32x4_t winner = vbslq_f32(is_c, c, vbslq_f32(is_b, b, vbslq_f32(is_a, a, d)));
                sum = vaddq_f32(sum, g), product = vfmaq_f32(product, g, winner);
            }
        }
        vst1q_f32(sums + 4 * v, sum), vst1q_f32(products + 4 * v, product);
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
            float32x4_t term = vfmaq_f32(vld1q_f32(terms + 4 * v), vld1q_f32(at),
                                         vld1q_f32(slopes + 4 * v));
            vst1q_f32(into, vfmaq_f32(term, vld1q_f32(into), vld1q_f32(factors + 4 * v)));
            at += 4, into += 4;
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
#if CIN % 4 == 0
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
    pthread_t threads[MOST_THREADS];
    int started[MOST_THREADS], failed = 0;
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
    count = count > MOST_THREADS ? MOST_THREADS : count < 1 ? 1 : count;
    for (long i = 0; i < count; i++) {
        long first = block->batch * i / count, end = block->batch * (i + 1) / count;
        shares[i] = (Share){block, weight, sums + i * size, first, end, 0};
    }
    return count;
}

int block_forward(const Block *block) {
    Share shares[MOST_THREADS];
    float *weight = malloc(TAPS * COUT * sizeof(float));
    if (!weight) return 1;
    pack(block->weight, weight);
    long count = divide(block, shares, weight, NULL, 0);
    int failed = run(forward_share, shares, count);
    free(weight);
    return failed;
}

int block_backward(const Block *block) {
    Share shares[MOST_THREADS];
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
