// What a thread block of block.cu works on: sizes, places in shared memory, products and copies.
constexpr int WARPS = THREADS / 32, TAPS = 9;
constexpr int PLANES_IN = (CI + 7) / 8, PLANES_OUT = (CO + 7) / 8, GROUP_PLANES = PLANES_OUT / GROUPS;
constexpr int PADDED_W = W + 2, PLANE = (H + 2) * PADDED_W, PIXELS = H * W, CENTRE = (PADDED_W + 1) * 16;
constexpr int IMAGE_TILES = (PIXELS + 15) / 16, SHARE = (IMAGE_TILES + WPI - 1) / WPI;
constexpr int TILES = IPW * SHARE, IMAGES = WARPS / WPI * IPW;
constexpr bool FULL = PIXELS % 16 == 0 && IMAGE_TILES % WPI == 0;  // no tile has missing pixels
constexpr int K_FORWARD = (TAPS * PLANES_IN + 1) / 2;  // pairs of k-blocks
constexpr int K_SHARE = (K_FORWARD + WK - 1) / WK, PIXEL_SHARES = WARPS / WK;
constexpr int GRADIENT_TILES = WARPS * TILES / PIXEL_SHARES;
constexpr int WIDE_IN = PLANES_IN * 8, WIDE_OUT = PLANES_OUT * 8;
constexpr int WEIGHTS = CO * CI * TAPS, PART = WEIGHTS + 2 * CO;
constexpr float EPSILON = 1e-5f;

// Shared memory in bytes: two buffers of inputs, (backward) gradients, weights, sums of warps. After
// the last image, sums of weights.
constexpr int X_BYTES = IMAGES * PLANES_IN * PLANE * 16, D_BYTES = IMAGES * PLANES_OUT * PLANE * 16;
constexpr int W_BYTES = (TAPS + 1) * PLANES_IN * WIDE_OUT * 16;
constexpr int SUMS = WARPS * IPW * GROUPS * 8;
constexpr int FORWARD_BYTES = 2 * X_BYTES + W_BYTES + SUMS;
constexpr int USED_BACKWARD = 2 * X_BYTES + D_BYTES + W_BYTES + SUMS;
constexpr int WEIGHT_SUMS = K_FORWARD * 16 * WIDE_OUT * 4, NORM_SUMS = WARPS * 2 * WIDE_OUT * 4;
constexpr int BACKWARD_BYTES = USED_BACKWARD > WEIGHT_SUMS + NORM_SUMS ? USED_BACKWARD : WEIGHT_SUMS + NORM_SUMS;

static_assert(FORWARD_BYTES == PLANNED_FORWARD_BYTES && BACKWARD_BYTES == PLANNED_BACKWARD_BYTES,
              "shared memory as block_plan.py counts it");
static_assert(WPI == 1 || IPW == 1, "a warp has several images, or an image several warps");
static_assert(GROUPS == 1 || CO % (8 * GROUPS) == 0, "a group is made of whole planes");
static_assert(CS >= CI && (CI % 8 == 0 ? CS == CI : CS == 1 || CS == 2 || CS == 4), "stored channels");
static_assert(CO % 8 == 0 || CO == 2 || CO == 4, "channels out");

// Bytes from a pixel's upper left neighbour to a k-block; the k-block beyond the last has weight 0.
template <int PLANES> DEVICE constexpr int block_offset(int k) {
  return k >= TAPS * PLANES ? 0 : ((k / PLANES) / 3 * PADDED_W + (k / PLANES) % 3) * 16 + k % PLANES * PLANE * 16;
}

DEVICE bool exists(int pixel) { return FULL || pixel < PIXELS; }
// Bytes to the upper left neighbour of a pixel; a missing pixel gets the image's first.
DEVICE u32 corner(int image, int pixel, int planes) {
  const u32 at = exists(pixel) ? pixel / W * PADDED_W + pixel % W : 0;
  return (image * planes * PLANE + at) * 16;
}

// Whether tiles are whole rows, or whole parts of rows, and warps start at a row. Then a place is a
// sum of what a lane knows and of what the compiler knows, which costs no instruction.
constexpr bool ROWS_OF_TILES = W % 16 == 0 && SHARE % (W >= 16 ? W / 16 : 1) == 0;
constexpr bool TILES_OF_ROWS = W <= 8 && 8 % W == 0;
constexpr bool REGULAR = FULL && (ROWS_OF_TILES || TILES_OF_ROWS);

struct Lane {
  int thread, lane, warp;
  DEVICE Lane() : thread(thread_id()), lane(thread_id() & 31), warp(thread_id() >> 5) {}
  DEVICE int channel() const { return (lane & 3) * 2; }
  // Image (of this step) and pixel of row `m` of a warp's tile.
  DEVICE int image(int t) const { return warp / WPI * IPW + t / SHARE; }
  DEVICE int pixel(int t, int m) const { return (warp % WPI * SHARE + t % SHARE) * 16 + m; }
  // `corner` of row `m` (+ 8 for the second half) of a warp's tile.
  DEVICE u32 corner(int t, int m, int half, int planes) const {
    if (!REGULAR) return ::corner(image(t), pixel(t, m + 8 * half), planes);
    const u32 own = warp / WPI * IPW * planes * PLANE + warp % WPI * (SHARE * 16 / W) * PADDED_W;
    const u32 in_tile = W >= 16 ? m : m / W * PADDED_W + m % W;
    const u32 tile = t % SHARE * 16 / W * PADDED_W + t % SHARE * 16 % W;
    const u32 second = W >= 16 ? 8 : 8 / W * PADDED_W;
    return (own + in_tile) * 16 + (t / SHARE * planes * PLANE + tile + half * second) * 16;
  }
};

DEVICE i64 row_of(const i64 *index, i64 row) { return index ? index[row] : row; }

DEVICE void clear(u32 at, int bytes) {
  for (int j = thread_id() * 16; j < bytes; j += THREADS * 16) store_shared(at + j, quad{0, 0, 0, 0});
}

// Weights as bf16, the second operand of products both ways: [tap][plane in][channel out][8 channels
// in], with a tenth tap of zeros. The memory is cleared before.
DEVICE void store_weights(u32 to, const float *weight) {
  for (int j = thread_id(); j < WEIGHTS; j += THREADS) {
    const int out = j / (CI * TAPS), in = j / TAPS % CI, tap = j % TAPS;
    store_shared_half(to + (((tap * PLANES_IN + in / 8) * WIDE_OUT + out) * 8 + in % 8) * 2, packed(weight[j], 0.f));
  }
}
// Bytes to the 8x8 weights of a k-block and a plane of results; BACK: k-blocks of the gradient.
template <bool BACK> DEVICE constexpr int weight_offset(int k, int plane) {
  if (!BACK) return (k * WIDE_OUT + plane * 8) * 16;
  const int tap = k / PLANES_OUT;
  return (((tap < TAPS ? TAPS - 1 - tap : TAPS) * PLANES_IN + plane) * WIDE_OUT + k % PLANES_OUT * 8) * 16;
}
// Operands of the k-blocks 2 * step and the next, for all planes of results.
template <int COLUMNS, bool BACK> DEVICE void load_weights(u32 (&b)[COLUMNS][2], u32 from, int step, const Lane &me) {
  const u32 at = from + (me.lane & 7) * 16;
  const bool second = me.lane >> 3 & 1;
#pragma unroll
  for (int n = 0; n < COLUMNS - COLUMNS % 2; n += 2) {
    const u32 here = second ? weight_offset<BACK>(2 * step + 1, n) : weight_offset<BACK>(2 * step, n);
    u32 v[4];
    if (BACK) load_transposed(v, at + here + (me.lane >> 4) * (WIDE_OUT * 16));
    else load_matrices(v, at + here + (me.lane >> 4) * 128);
    b[n][0] = v[0], b[n][1] = v[1], b[n + 1][0] = v[2], b[n + 1][1] = v[3];
  }
  if (COLUMNS % 2) {
    const u32 here = second ? weight_offset<BACK>(2 * step + 1, COLUMNS - 1) : weight_offset<BACK>(2 * step, COLUMNS - 1);
    if (BACK) load_transposed(b[COLUMNS - 1], at + here);
    else load_matrices(b[COLUMNS - 1], at + here);
  }
}

// Copies of an activation with CHANNELS stored per pixel: channels of a copy, copies of a pixel.
template <int CHANNELS> struct Chunks {
  static constexpr int SIZE = CHANNELS < 8 ? CHANNELS : 8, COUNT = CHANNELS / SIZE;
  static DEVICE u32 place(int j) {
    const int plane = j % COUNT, place = j / COUNT, image = place / PIXELS, p = place % PIXELS;
    return ((image * COUNT + plane) * PLANE + (p / W + 1) * PADDED_W + p % W + 1) * 16;
  }
};
DEVICE int images_left(int first, int batch) { return batch - first < IMAGES ? batch - first : IMAGES; }

// Start copying the images of a step; those beyond the batch stay as they are.
template <int CHANNELS> DEVICE void fetch(u32 tile, const bf16 *x, int first, int batch) {
  using C = Chunks<CHANNELS>;
  const bf16 *from = x + (i64)first * PIXELS * CHANNELS;
  const int count = images_left(first, batch) * PIXELS * C::COUNT;
  for (int j = thread_id(); j < count; j += THREADS) copy_async<C::SIZE * 2>(tile + C::place(j), from + (i64)j * C::SIZE);
}
// Gradients of images beyond the batch are 0.
DEVICE void clear_beyond(u32 tile, int first, int batch) {
  const int images = images_left(first, batch);
  if (images < IMAGES) clear(tile + images * PLANES_OUT * PLANE * 16, (IMAGES - images) * PLANES_OUT * PLANE * 16);
}
// Write zeros to this thread block's images of a row.
template <int CHANNELS> DEVICE void clear_part(bf16 *row, int begin, int steps, int batch) {
  const int images = steps * IMAGES, end = batch - begin < images ? batch : begin + images;
  constexpr int IMAGE = PIXELS * CHANNELS, SIZE = IMAGE % 8 ? 1 : 8;
  for (i64 j = (i64)begin * IMAGE + thread_id() * SIZE; j < (i64)end * IMAGE; j += THREADS * SIZE) {
    if (SIZE == 8) store_global(row + j, quad{0, 0, 0, 0});
    else store_global_half(row + j, 0);
  }
}
// Write this thread's part of `fetch` to global memory.
DEVICE void keep(u32 tile, bf16 *kept, int first, int batch) {
  using C = Chunks<CS>;
  bf16 *to = kept + (i64)first * PIXELS * CS;
  const int count = images_left(first, batch) * PIXELS * C::COUNT;
  for (int j = thread_id(); j < count; j += THREADS) {
    const quad v = load_shared_quad(tile + C::place(j));
    bf16 *p = to + (i64)j * C::SIZE;
    if (C::SIZE == 8) store_global(p, v);
    else if (C::SIZE == 4) store_global(p, pair{v.x, v.y});
    else if (C::SIZE == 2) store_global(p, v.x);
    else store_global_half(p, v.x);
  }
}

// Convolution of a warp's tiles: products over taps and channels. BACK: of gradients, taps reversed.
template <int PLANES, int COLUMNS, bool BACK>
DEVICE void convolve(float (&sum)[TILES][COLUMNS][4], u32 tile, u32 weights, const Lane &me) {
  constexpr int STEPS = (TAPS * PLANES + 1) / 2;
  u32 at[TILES];
#pragma unroll
  for (int t = 0; t < TILES; t++) {
    at[t] = tile + me.corner(t, me.lane & 15, 0, PLANES);
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) sum[t][n][i] = 0.f;
  }
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const u32 offset = me.lane < 16 ? block_offset<PLANES>(2 * step) : block_offset<PLANES>(2 * step + 1);
    u32 b[COLUMNS][2];
    load_weights<COLUMNS, BACK>(b, weights, step, me);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      u32 a[4];
      load_matrices(a, at[t] + offset);
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) multiply(sum[t][n], a, b[n][0], b[n][1]);
    }
  }
}

// Channels of a pixel as lanes hold them, from and to global memory: neighbours swap halves, so that
// each accesses 8 bytes and a warp whole sectors. Every lane must take part; `inside` guards memory.
template <int PLANES, int STORED> DEVICE void load_pixel(u32 (&v)[PLANES], const bf16 *p, bool inside, int lane) {
  if (PLANES % 2) {
#pragma unroll
    for (int n = 0; n < PLANES; n++) {
      const int c = n * 8 + (lane & 3) * 2;
      v[n] = 0;
      if (inside && c < STORED) v[n] = STORED == 1 ? *p : load_global(p + c, u32());
    }
    return;
  }
#pragma unroll
  for (int n = 0; n + 1 < PLANES; n += 2) {
    const bool odd = lane & 1;
    pair own = {0, 0};
    if (inside) own = load_global(p + (n + odd) * 8 + (lane & 2) * 2, pair());
    const u32 other = shuffle(odd ? own.x : own.y, 1);
    v[n] = odd ? other : own.x, v[n + 1] = odd ? own.y : other;
  }
}
template <int PLANES, int STORED> DEVICE void store_pixel(bf16 *p, const u32 (&v)[PLANES], bool inside, int lane) {
  if (PLANES % 2) {
#pragma unroll
    for (int n = 0; n < PLANES; n++) {
      const int c = n * 8 + (lane & 3) * 2;
      if (inside && c < STORED) {
        if (STORED == 1) store_global_half(p, v[n]);
        else store_global(p + c, v[n]);
      }
    }
    return;
  }
#pragma unroll
  for (int n = 0; n + 1 < PLANES; n += 2) {
    const bool odd = lane & 1;
    const u32 other = shuffle(odd ? v[n] : v[n + 1], 1);
    const pair own = {odd ? other : v[n], odd ? v[n + 1] : other};
    if (inside) store_global(p + (n + odd) * 8 + (lane & 2) * 2, own);
  }
}
