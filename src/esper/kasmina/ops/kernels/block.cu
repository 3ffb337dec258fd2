// Convolution 3x3 + group norm (+ ReLU) of many members: one kernel forward, one backward.
//
// A thread block takes a few images of one row at a time. They lie in shared memory in planes of 8
// channels with a border of zeros, so that a tap is a shifted `ldmatrix` and needs no mask. The
// convolution is a product [pixels, taps x channels] x [taps x channels, out channels] on tensor
// cores with sums in float32; its result never leaves registers. Backward recomputes it, and writes
// the gradient of the input and partial sums for weights, scale and shift. No atomics: the same sums
// in the same order every time, whatever the number of rows.
//
// One compilation is for one shape; `blocks.py` chooses the constants:
//   CI, CS   channels in, and as stored per pixel        CO, GROUPS  channels out, groups of the norm
//   H, W     height and width                            WPI         warps that share an image, or
//   IPW      images of a warp (one of WPI, IPW is 1)     WK          shares of the weight gradient's rows
//   FORWARD_BLOCKS, BACKWARD_BLOCKS   thread blocks per multiprocessor to leave registers for
//
// Words: a plane is 8 channels of an image; a tile is 16 pixels of an image, the rows of a product;
// a k-block is one tap of one plane. Lanes hold a product's results as mma.m16n8k16 does: pixels
// lane / 4 and lane / 4 + 8, channels 2 * (lane % 4) and the next.
#ifdef EMULATED
#include "emulate.h"
#else
constexpr int THREADS = 256;
#include "block_device.h"
#endif
#include "block_tiles.h"

// One for both kernels; `BlockArgs` in blocks.py has the same fields. Strides count numbers.
struct Block {
  const bf16 *x;               // [rows][batch][H][W][CS]
  i64 x_row;
  const i64 *x_index;          // row of x that each row reads; null: its own
  const float *weight;         // [rows][CO][CI][3][3]
  i64 weight_row;
  const float *scale;          // [rows][CO]
  i64 scale_row;
  const float *shift;
  i64 shift_row;
  bf16 *y;                     // forward: the output; backward: its gradient, read only
  i64 y_row;
  const i64 *y_index;          // row of y; null: its own
  const float *alpha;          // null, or: forward adds alpha times the result to y
  const float *live;           // null, or: not above 0 where a row is unused: it touches no row that it
                               // names by an index; its sums become 0, and so do its own rows of y
                               // and dx, unless it is below 0 (padding: nobody reads them)
  float *statistics;           // [rows][batch][GROUPS][2]: mean, inverse deviation
  bf16 *kept;                  // forward: null, or a copy of the rows of x, dense
  bf16 *dx;                    // backward: null, or the gradient of x
  i64 dx_row;
  const i64 *dx_index;         // null: written to its own row; else added to that row
  float *partial;              // backward: [rows][parts][weights, scale, shift]
  int batch, first_row, steps, relu;
};

DEVICE float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d; d >>= 1) v += shuffle(v, d);
  return v;
}
// Numbers of a group that a warp of an image has.
DEVICE float numbers_of(int share) {
  const int left = PIXELS - share * SHARE * 16, pixels = left < SHARE * 16 ? left : SHARE * 16;
  return (pixels > 0 ? pixels : 0) * (CO / GROUPS);
}

// Mean and inverse deviation of each group; warps of an image merge theirs.
DEVICE void find_statistics(float (&mean)[IPW][GROUPS], float (&inverse)[IPW][GROUPS],
                            const float (&sum)[TILES][PLANES_OUT][4], u32 sums, const Lane &me) {
  constexpr float COUNT = (float)PIXELS * (CO / GROUPS);
  const bool channel_exists = CO % 8 == 0 || me.channel() < CO;
  const float own = numbers_of(me.warp % WPI), by = own > 0 ? 1.f / own : 0.f;
#pragma unroll
  for (int image = 0; image < IPW; image++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      float total = 0.f, apart = 0.f;
#pragma unroll
      for (int t = image * SHARE; t < (image + 1) * SHARE; t++)
#pragma unroll
        for (int n = g * GROUP_PLANES; n < (g + 1) * GROUP_PLANES; n++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            total += exists(me.pixel(t, me.lane / 4 + (i >> 1) * 8)) && channel_exists ? sum[t][n][i] : 0.f;
      const float middle = warp_sum(total) * by;
#pragma unroll
      for (int t = image * SHARE; t < (image + 1) * SHARE; t++)
#pragma unroll
        for (int n = g * GROUP_PLANES; n < (g + 1) * GROUP_PLANES; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float d = sum[t][n][i] - middle;
            apart += exists(me.pixel(t, me.lane / 4 + (i >> 1) * 8)) && channel_exists ? d * d : 0.f;
          }
      mean[image][g] = middle, inverse[image][g] = warp_sum(apart);
      if (WPI > 1 && me.lane == 0) {
        store_shared(sums + (me.warp * GROUPS + g) * 8, middle);
        store_shared(sums + (me.warp * GROUPS + g) * 8 + 4, inverse[image][g]);
      }
    }
  if (WPI > 1) barrier();
#pragma unroll
  for (int image = 0; image < IPW; image++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      if (WPI > 1) {
        const u32 first = sums + (me.warp / WPI * WPI * GROUPS + g) * 8;
        float middle = 0.f, apart = 0.f;
#pragma unroll
        for (int w = 0; w < WPI; w++) middle += load_shared_float(first + w * GROUPS * 8) * (numbers_of(w) / COUNT);
#pragma unroll
        for (int w = 0; w < WPI; w++) {
          const float d = load_shared_float(first + w * GROUPS * 8) - middle;
          apart += load_shared_float(first + w * GROUPS * 8 + 4) + numbers_of(w) * d * d;
        }
        mean[image][g] = middle, inverse[image][g] = apart;
      }
      inverse[image][g] = inverse_root(inverse[image][g] * (1.f / COUNT) + EPSILON);
    }
}

// Scale and shift of the channels that a lane holds of a plane.
DEVICE void load_norm(float (&scale)[2], float (&shift)[2], const Block &a, i64 row, int plane, const Lane &me) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int c = plane * 8 + me.channel() + i;
    scale[i] = c < CO ? a.scale[row * a.scale_row + c] : 0.f;
    shift[i] = c < CO ? a.shift[row * a.shift_row + c] : 0.f;
  }
}

KERNEL(FORWARD_BLOCKS) block_forward(const Block a) {
  const Lane me;
  const i64 row = (i64)a.first_row + grid_row();
  const float alpha = a.alpha ? a.alpha[row] : 1.f;
  const int begin = part_id() * a.steps * IMAGES;
  if (a.live && a.live[row] <= 0.f) {
    if (!a.y_index && a.live[row] == 0.f) clear_part<CO>(a.y + row * a.y_row, begin, a.steps, a.batch);
    return;
  }
  const u32 tile = shared_base(), weights = tile + 2 * X_BYTES, sums = weights + W_BYTES;
  const bf16 *x = a.x + row_of(a.x_index, row) * a.x_row;
  bf16 *y = a.y + row_of(a.y_index, row) * a.y_row;
  bf16 *kept = a.kept ? a.kept + row * (i64)a.batch * PIXELS * CS : a.kept;
  float scale[PLANES_OUT][2], shift[PLANES_OUT][2];
#pragma unroll
  for (int n = 0; n < PLANES_OUT; n++) load_norm(scale[n], shift[n], a, row, n, me);
  clear(tile, 2 * X_BYTES + W_BYTES);
  barrier();
  store_weights(weights, a.weight + row * a.weight_row);
  fetch<CS>(tile, x, begin, a.batch);
  for (int step = 0; step < a.steps; step++) {
    const int first = begin + step * IMAGES;
    if (first >= a.batch) break;
    const u32 here = tile + (step & 1) * X_BYTES;
    wait_for_copies();
    barrier();
    if (step + 1 < a.steps) fetch<CS>(tile + (~step & 1) * X_BYTES, x, first + IMAGES, a.batch);
    if (kept) keep(here, kept, first, a.batch);
    float sum[TILES][PLANES_OUT][4], mean[IPW][GROUPS], inverse[IPW][GROUPS];
    convolve<PLANES_IN, PLANES_OUT, false>(sum, here, weights, me);
    find_statistics(mean, inverse, sum, sums, me);
    float factor[IPW][PLANES_OUT][2], offset[IPW][PLANES_OUT][2];
#pragma unroll
    for (int j = 0; j < IPW; j++)
#pragma unroll
      for (int n = 0; n < PLANES_OUT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          factor[j][n][i] = inverse[j][n / GROUP_PLANES] * scale[n][i];
          offset[j][n][i] = shift[n][i] - mean[j][n / GROUP_PLANES] * factor[j][n][i];
        }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      const int image = first + me.image(t), j = t / SHARE;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int pixel = me.pixel(t, me.lane / 4 + 8 * half);
        const bool inside = exists(pixel) && image < a.batch;
        bf16 *to = y + ((i64)image * PIXELS + pixel) * CO;
        u32 before[PLANES_OUT], out[PLANES_OUT];
        if (a.alpha) load_pixel<PLANES_OUT, CO>(before, to, inside, me.lane);
#pragma unroll
        for (int n = 0; n < PLANES_OUT; n++) {
          float u = sum[t][n][2 * half] * factor[j][n][0] + offset[j][n][0];
          float v = sum[t][n][2 * half + 1] * factor[j][n][1] + offset[j][n][1];
          if (a.relu) u = positive(u), v = positive(v);
          if (a.alpha) u = low_half(before[n]) + alpha * u, v = high_half(before[n]) + alpha * v;
          out[n] = packed(u, v);
        }
        store_pixel<PLANES_OUT, CO>(to, out, inside, me.lane);
      }
    }
    if (me.warp % WPI == 0 && me.lane < IPW) {
      const int image = first + me.warp / WPI * IPW + me.lane;
#pragma unroll
      for (int j = 0; j < IPW; j++)
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
          if (j == me.lane && image < a.batch) {
            float *to = a.statistics + ((row * a.batch + image) * GROUPS + g) * 2;
            to[0] = mean[j][g], to[1] = inverse[j][g];
          }
    }
  }
}

// Write this thread block's part of the sums for weights, scale and shift: warps in order.
DEVICE void write_part(float *part, const float (&dw)[K_SHARE][PLANES_OUT][4], const float (&dscale)[PLANES_OUT][2],
                       const float (&dshift)[PLANES_OUT][2], float factor, const Lane &me) {
  const u32 weights = shared_base(), norms = weights + WEIGHT_SUMS;
  for (int share = 0; share < PIXEL_SHARES; share++) {
    barrier();
    if (me.warp / WK != share) continue;
#pragma unroll
    for (int j = 0; j < K_SHARE; j++) {
      const int k = me.warp % WK + j * WK;
      if (k >= K_FORWARD) continue;
#pragma unroll
      for (int n = 0; n < PLANES_OUT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int in = k * 16 + me.lane / 4 + (i >> 1) * 8, out = n * 8 + me.channel() + (i & 1);
          const u32 at = weights + (in * WIDE_OUT + out) * 4;
          store_shared(at, (share ? load_shared_float(at) : 0.f) + dw[j][n][i]);
        }
    }
  }
#pragma unroll
  for (int n = 0; n < PLANES_OUT; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float u = dscale[n][i], v = dshift[n][i];
#pragma unroll
      for (int d = 16; d >= 4; d >>= 1) u += shuffle(u, d), v += shuffle(v, d);
      if (me.lane < 4) {
        const u32 at = norms + (me.warp * 2 * WIDE_OUT + n * 8 + me.channel() + i) * 4;
        store_shared(at, u), store_shared(at + WIDE_OUT * 4, v);
      }
    }
  barrier();
  for (int j = me.thread; j < WEIGHTS; j += THREADS) {
    const int out = j / (CI * TAPS), in = j / TAPS % CI, tap = j % TAPS;
    part[j] = load_shared_float(weights + ((tap * WIDE_IN + in) * WIDE_OUT + out) * 4);
  }
  for (int j = me.thread; j < 2 * CO; j += THREADS) {
    float total = 0.f;
    for (int w = 0; w < WARPS; w++) total += load_shared_float(norms + ((w * 2 + j / CO) * WIDE_OUT + j % CO) * 4);
    part[WEIGHTS + j] = total * factor;
  }
}

// A number's gradient as it comes from the output: 0 where the ReLU was, or where there is no pixel.
DEVICE float unmasked(u32 two, int i, float value, float scale, float shift, bool live, bool relu) {
  const float d = i ? high_half(two) : low_half(two);
  return !live || (relu && value * scale + shift <= 0) ? 0.f : d;
}

// Take the gradient of the output, in shared memory, through the norm, in place; `sum` is the
// convolution. Adds to the sums for scale and shift. Planes outermost: few registers.
DEVICE void through_norm(float (&sum)[TILES][PLANES_OUT][4], const Block &a, i64 row, int first, float alpha,
                         float (&dscale)[PLANES_OUT][2], float (&dshift)[PLANES_OUT][2], u32 gradients, u32 sums,
                         const Lane &me) {
  float level[IPW][GROUPS], tilt[IPW][GROUPS], inverse[IPW][GROUPS];
  const u32 here = gradients + CENTRE + me.channel() * 2;
  const bool relu = a.relu;
#pragma unroll
  for (int j = 0; j < IPW; j++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const int image = first + me.warp / WPI * IPW + j;
      float offset = 0.f;
      level[j][g] = tilt[j][g] = inverse[j][g] = 0.f;
      if (image < a.batch) {  // beyond it gradients are 0
        const float *from = a.statistics + ((row * a.batch + image) * GROUPS + g) * 2;
        inverse[j][g] = from[1], offset = -from[0] * from[1];
      }
#pragma unroll
      for (int n = g * GROUP_PLANES; n < (g + 1) * GROUP_PLANES; n++) {
        float scale[2], shift[2], total[2] = {0.f, 0.f}, weighted[2] = {0.f, 0.f};
        load_norm(scale, shift, a, row, n, me);
#pragma unroll
        for (int t = j * SHARE; t < (j + 1) * SHARE; t++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int pixel = me.pixel(t, me.lane / 4 + 8 * half);
            const u32 two = load_shared_u32(here + me.corner(t, me.lane / 4, half, PLANES_OUT) + n * PLANE * 16);
#pragma unroll
            for (int i = 0; i < 2; i++) {
              float &value = sum[t][n][2 * half + i];
              value = value * inverse[j][g] + offset;
              const float d = unmasked(two, i, value, scale[i], shift[i], exists(pixel), relu);
              total[i] += d, weighted[i] += d * value;
            }
          }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          dshift[n][i] += total[i], dscale[n][i] += weighted[i];
          level[j][g] += total[i] * scale[i], tilt[j][g] += weighted[i] * scale[i];
        }
      }
      level[j][g] = warp_sum(level[j][g]), tilt[j][g] = warp_sum(tilt[j][g]);
      if (WPI > 1 && me.lane == 0) {
        store_shared(sums + (me.warp * GROUPS + g) * 8, level[j][g]);
        store_shared(sums + (me.warp * GROUPS + g) * 8 + 4, tilt[j][g]);
      }
    }
  if (WPI > 1) barrier();
  constexpr float COUNT = 1.f / ((float)PIXELS * (CO / GROUPS));
#pragma unroll
  for (int j = 0; j < IPW; j++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      if (WPI > 1) {
        const u32 at = sums + (me.warp / WPI * WPI * GROUPS + g) * 8;
        level[j][g] = tilt[j][g] = 0.f;
#pragma unroll
        for (int w = 0; w < WPI; w++) {
          level[j][g] += load_shared_float(at + w * GROUPS * 8);
          tilt[j][g] += load_shared_float(at + w * GROUPS * 8 + 4);
        }
      }
      level[j][g] *= COUNT, tilt[j][g] *= COUNT, inverse[j][g] *= alpha;
    }
#pragma unroll
  for (int n = 0; n < PLANES_OUT; n++) {
    float scale[2], shift[2];
    load_norm(scale, shift, a, row, n, me);
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int pixel = me.pixel(t, me.lane / 4 + 8 * half), j = t / SHARE, g = n / GROUP_PLANES;
        const u32 at = here + me.corner(t, me.lane / 4, half, PLANES_OUT) + n * PLANE * 16, two = load_shared_u32(at);
        float out[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const float value = sum[t][n][2 * half + i];
          const float d = unmasked(two, i, value, scale[i], shift[i], exists(pixel), relu);
          out[i] = (d * scale[i] - level[j][g] - value * tilt[j][g]) * inverse[j][g];
          if (CO % 8 && me.channel() >= CO) out[i] = 0.f;
        }
        if (exists(pixel)) store_shared(at, packed(out[0], out[1]));
      }
  }
}

KERNEL(BACKWARD_BLOCKS) block_backward(const Block a) {
  const Lane me;
  const i64 row = (i64)a.first_row + grid_row();
  const float alpha = a.alpha ? a.alpha[row] : 1.f;
  const u32 tile = shared_base(), gradients = tile + 2 * X_BYTES, weights = gradients + D_BYTES;
  const u32 sums = weights + W_BYTES;
  const bf16 *x = a.x + row_of(a.x_index, row) * a.x_row;
  const bf16 *dy = a.y + row_of(a.y_index, row) * a.y_row;
  bf16 *dx = a.dx ? a.dx + row_of(a.dx_index, row) * a.dx_row : a.dx;
  float *part = a.partial + (row * parts() + part_id()) * PART;
  const int begin = part_id() * a.steps * IMAGES;
  float dw[K_SHARE][PLANES_OUT][4], dscale[PLANES_OUT][2], dshift[PLANES_OUT][2];
#pragma unroll
  for (int n = 0; n < PLANES_OUT; n++) {
    dscale[n][0] = dscale[n][1] = dshift[n][0] = dshift[n][1] = 0.f;
#pragma unroll
    for (int j = 0; j < K_SHARE; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) dw[j][n][i] = 0.f;
  }
  if (a.live && a.live[row] <= 0.f) {  // perhaps of a row that is NaN: no gradient
    for (int j = me.thread; j < PART; j += THREADS) part[j] = 0.f;
    if (dx && !a.dx_index && a.live[row] == 0.f) clear_part<CS>(dx, begin, a.steps, a.batch);
    return;
  }
  clear(tile, 2 * X_BYTES + D_BYTES + W_BYTES);
  barrier();
  store_weights(weights, a.weight + row * a.weight_row);
  fetch<CS>(tile, x, begin, a.batch);
  wait_for_copies();
  for (int step = 0; step < a.steps; step++) {
    const int first = begin + step * IMAGES;
    if (first >= a.batch) break;
    const u32 here = tile + (step & 1) * X_BYTES;
    barrier();  // the last step's buffers are free
    fetch<CO>(gradients, dy, first, a.batch);
    clear_beyond(gradients, first, a.batch);
    if (step + 1 < a.steps) fetch<CS>(tile + (~step & 1) * X_BYTES, x, first + IMAGES, a.batch);
    {
      float sum[TILES][PLANES_OUT][4];
      convolve<PLANES_IN, PLANES_OUT, false>(sum, here, weights, me);
      wait_for_copies();
      barrier();  // gradients are there, and the next inputs
      through_norm(sum, a, row, first, alpha, dscale, dshift, gradients, sums, me);
    }
    barrier();
    if (dx) {
      float sum[TILES][PLANES_IN][4];
      convolve<PLANES_OUT, PLANES_IN, true>(sum, gradients, weights, me);
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int pixel = me.pixel(t, me.lane / 4 + 8 * half), image = first + me.image(t);
          const bool inside = exists(pixel) && image < a.batch;
          bf16 *to = dx + ((i64)image * PIXELS + pixel) * CS;
          u32 before[PLANES_IN], out[PLANES_IN];
          if (a.dx_index) load_pixel<PLANES_IN, CS>(before, to, inside, me.lane);
#pragma unroll
          for (int n = 0; n < PLANES_IN; n++) {
            float u = sum[t][n][2 * half], v = sum[t][n][2 * half + 1];
            if (a.dx_index) u += low_half(before[n]), v += high_half(before[n]);
            out[n] = packed(u, v);
          }
          store_pixel<PLANES_IN, CS>(to, out, inside, me.lane);
        }
    }
    // Weights: products [taps x channels, pixels] x [pixels, channels out], over all tiles.
    const int m = (me.lane & 7) + (me.lane >> 4) * 8, odd = me.lane >> 3 & 1;
    for (int u = 0; u < GRADIENT_TILES; u++) {
      const int number = me.warp / WK * GRADIENT_TILES + u;  // of all tiles: [warp][tile]
      const int w = number / TILES, t = number % TILES, image = w / WPI * IPW + t / SHARE;
      const int start = (w % WPI * SHARE + t % SHARE) * 16;
      const u32 from = here + corner(image, start + m, PLANES_IN);
      // A missing pixel has the border's zeros as its gradient.
      const int pixel = start + (me.lane & 15);
      const u32 back_from = gradients + corner(image, pixel, PLANES_OUT) + (exists(pixel) ? CENTRE : 0);
      u32 b[PLANES_OUT][2];
      if (PLANES_OUT % 2) {
#pragma unroll
        for (int n = 0; n < PLANES_OUT; n++) load_transposed(b[n], back_from + n * PLANE * 16);
      } else {
#pragma unroll
        for (int n = 0; n + 1 < PLANES_OUT; n += 2) {
          u32 v[4];
          load_transposed(v, back_from + (n + (me.lane >> 4)) * PLANE * 16);
          b[n][0] = v[0], b[n][1] = v[1], b[n + 1][0] = v[2], b[n + 1][1] = v[3];
        }
      }
#pragma unroll
      for (int j = 0; j < K_SHARE; j++) {
        const int k = me.warp % WK + j * WK;
        if (WK > 1 && k >= K_FORWARD) continue;
        u32 v[4];
        load_transposed(v, from + block_offset<PLANES_IN>(2 * k + odd));
#pragma unroll
        for (int n = 0; n < PLANES_OUT; n++) multiply(dw[j][n], v, b[n][0], b[n][1]);
      }
    }
  }
  write_part(part, dw, dscale, dshift, alpha, me);
}
