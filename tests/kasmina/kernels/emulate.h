// A CPU in place of a GPU, for block.cu: every thread of a block is a fiber.
//
// Instructions of a warp (ldmatrix, mma, shuffles) wait until all 32 lanes have brought their operands
// and are then computed by the layout that the PTX manual gives. A barrier waits for the block; between
// barriers warps run in an order drawn from a seed, lanes forwards or backwards, so that a missing
// barrier shows as results that depend on the seed. Copies to shared memory arrive when waited for, and
// shared memory starts as NaN. An access beyond it, or lanes that diverge, set `trouble`.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef uint32_t u32;
typedef uint16_t bf16;
typedef long long i64;
constexpr int THREADS = 256;

#define DEVICE inline
#define KERNEL(BLOCKS_PER_SM) static void

struct pair { u32 x, y; };
struct quad { u32 x, y, z, w; };

namespace emulated {
constexpr int LANES = 32, STACK = 1 << 16, MOST_COPIES = 1 << 10, MEMORY = 1 << 18;
enum Instruction { NONE, MATRICES4, MATRICES2, TRANSPOSED4, TRANSPOSED2, PRODUCT, SHUFFLE };
struct Copy { u32 to; const void *from; int bytes; };
struct Fiber {
  ucontext_t start;
  jmp_buf state;
  bool begun, done, at_barrier;
  Copy copies[MOST_COPIES];
  int copying;
};
struct Operands { u32 address, value, a[4], b[2]; int mask; float c[4]; };
struct Results { u32 r[4]; float c[4]; };
struct Warp { int arrived, turn; Instruction kind; Operands in[LANES]; Results out[LANES]; };

static Fiber fibers[THREADS];
static char stacks[THREADS][STACK] __attribute__((aligned(16)));
static Warp warps[THREADS / LANES];
static unsigned char memory[MEMORY] __attribute__((aligned(128)));
static u32 memory_bytes, random_state;
static jmp_buf scheduler;
static ucontext_t scheduler_context;
static int current, block_x, block_y, grid_x;
static const char *trouble = nullptr;
static void (*body)();

static void give_way() {
  if (_setjmp(fibers[current].state) == 0) _longjmp(scheduler, 1);
}
static void enter() {
  body();
  fibers[current].done = true;
  _longjmp(scheduler, 1);
}
static void resume(int id) {
  current = id;
  if (_setjmp(scheduler) != 0) return;
  Fiber &fiber = fibers[id];
  if (fiber.begun) _longjmp(fiber.state, 1);
  fiber.begun = true;
  setcontext(&fiber.start);
}
static unsigned char *at(u32 address, u32 bytes) {
  if (address % bytes == 0 && address < memory_bytes && address + bytes <= memory_bytes) return memory + address;
  trouble = "an access beyond shared memory, or not aligned";
  return memory;
}
static float wide(bf16 v) {
  const u32 bits = (u32)v << 16;
  float out;
  memcpy(&out, &bits, 4);
  return out;
}
static bf16 element(const Operands *in, int matrix, int row, int column) {
  bf16 v;
  memcpy(&v, at(in[matrix * 8 + row].address, 16) + column * 2, 2);
  return v;
}
static void load_all(Warp &warp, int count, bool transposed) {
  for (int lane = 0; lane < LANES; lane++)
    for (int i = 0; i < count; i++) {
      const int r = lane / 4, c = lane % 4 * 2;
      const bf16 low = transposed ? element(warp.in, i, c, r) : element(warp.in, i, r, c);
      const bf16 high = transposed ? element(warp.in, i, c + 1, r) : element(warp.in, i, r, c + 1);
      warp.out[lane].r[i] = low | (u32)high << 16;
    }
}
static void multiply_all(Warp &warp) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < LANES; lane++)
    for (int half = 0; half < 2; half++) {
      const Operands &in = warp.in[lane];
      const int r = lane / 4, c = lane % 4 * 2 + half;
      for (int i = 0; i < 4; i++) a[r + i % 2 * 8][c + i / 2 * 8] = wide(in.a[i] >> (16 * half));
      for (int i = 0; i < 2; i++) b[c + i * 8][r] = wide(in.b[i] >> (16 * half));
    }
  for (int lane = 0; lane < LANES; lane++)
    for (int i = 0; i < 4; i++) {
      double total = warp.in[lane].c[i];
      for (int k = 0; k < 16; k++) total += (double)a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
      warp.out[lane].c[i] = (float)total;
    }
}
static void compute(Warp &warp) {
  if (warp.kind == MATRICES4) load_all(warp, 4, false);
  if (warp.kind == MATRICES2) load_all(warp, 2, false);
  if (warp.kind == TRANSPOSED4) load_all(warp, 4, true);
  if (warp.kind == TRANSPOSED2) load_all(warp, 2, true);
  if (warp.kind == PRODUCT) multiply_all(warp);
  if (warp.kind == SHUFFLE)
    for (int lane = 0; lane < LANES; lane++) warp.out[lane].r[0] = warp.in[lane ^ warp.in[lane].mask].value;
}
static Results collective(Instruction kind, const Operands &operands) {
  Warp &warp = warps[current / LANES];
  const int lane = current % LANES, turn = warp.turn;
  if (warp.arrived == 0) warp.kind = kind;
  if (warp.kind != kind) trouble = "lanes of a warp at different instructions";
  warp.in[lane] = operands;
  if (++warp.arrived == LANES) {
    compute(warp);
    warp.arrived = 0, warp.turn++;
  }
  while (warp.turn == turn && !trouble) give_way();
  return warp.out[lane];
}
static void run_warp(int warp, bool backwards) {
  for (bool moving = true; moving && !trouble;) {
    moving = false;
    for (int i = 0; i < LANES; i++) {
      const int id = warp * LANES + (backwards ? LANES - 1 - i : i);
      if (fibers[id].done || fibers[id].at_barrier) continue;
      resume(id);
      moving = true;
    }
  }
}
static u32 drawn() { return (random_state = random_state * 1664525u + 1013904223u) >> 8; }
static void run_block() {
  memset(memory, 0xff, memory_bytes);
  for (int id = 0; id < THREADS; id++) {
    Fiber &fiber = fibers[id];
    fiber.begun = fiber.done = fiber.at_barrier = false;
    fiber.copying = 0;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = stacks[id];
    fiber.start.uc_stack.ss_size = STACK;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter, 0);
  }
  for (Warp &warp : warps) warp.arrived = warp.turn = 0;
  for (int done = 0; done < THREADS && !trouble;) {
    const u32 order = drawn() % (THREADS / LANES);  // any start, every odd stride: each warp once
    const u32 stride = drawn() | 1;
    for (u32 i = 0; i < THREADS / LANES; i++) run_warp((order + i * stride) % (THREADS / LANES), drawn() & 1);
    int waiting = 0;
    done = 0;
    for (Fiber &fiber : fibers) done += fiber.done, waiting += fiber.at_barrier;
    if (waiting && waiting != THREADS) trouble = "a barrier that some threads do not reach";
    for (Fiber &fiber : fibers) fiber.at_barrier = false;
  }
}
}  // namespace emulated

DEVICE u32 shared_base() { return 0; }
DEVICE int thread_id() { return emulated::current; }
DEVICE int part_id() { return emulated::block_x; }
DEVICE int parts() { return emulated::grid_x; }
DEVICE int grid_row() { return emulated::block_y; }
DEVICE void barrier() {
  emulated::fibers[emulated::current].at_barrier = true;
  emulated::give_way();
}
DEVICE u32 shuffle(u32 v, int mask) {
  emulated::Operands in = {};
  in.value = v, in.mask = mask;
  return emulated::collective(emulated::SHUFFLE, in).r[0];
}
DEVICE float shuffle(float v, int mask) {
  u32 bits;
  memcpy(&bits, &v, 4);
  bits = shuffle(bits, mask);
  memcpy(&v, &bits, 4);
  return v;
}
DEVICE float positive(float v) { return v <= 0 ? 0.f : v; }
DEVICE float inverse_root(float v) { return 1.f / sqrtf(v); }
template <int N> static void load_any(u32 (&r)[N], u32 address, emulated::Instruction kind) {
  emulated::Operands in = {};
  in.address = address;
  memcpy(r, emulated::collective(kind, in).r, 4 * N);
}
DEVICE void load_matrices(u32 (&r)[4], u32 address) { load_any(r, address, emulated::MATRICES4); }
DEVICE void load_matrices(u32 (&r)[2], u32 address) { load_any(r, address, emulated::MATRICES2); }
DEVICE void load_transposed(u32 (&r)[4], u32 address) { load_any(r, address, emulated::TRANSPOSED4); }
DEVICE void load_transposed(u32 (&r)[2], u32 address) { load_any(r, address, emulated::TRANSPOSED2); }
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulated::Operands in = {};
  memcpy(in.a, a, 16), memcpy(in.c, c, 16);
  in.b[0] = b0, in.b[1] = b1;
  memcpy(c, emulated::collective(emulated::PRODUCT, in).c, 16);
}
template <int BYTES> DEVICE void copy_async(u32 to, const void *from) {
  if ((uintptr_t)from % BYTES) emulated::trouble = "a copy from an address that is not aligned";
  emulated::Fiber &fiber = emulated::fibers[emulated::current];
  if (fiber.copying == emulated::MOST_COPIES) emulated::trouble = "too many copies under way";
  else fiber.copies[fiber.copying++] = {to, from, BYTES};
}
DEVICE void wait_for_copies() {
  emulated::Fiber &fiber = emulated::fibers[emulated::current];
  for (int i = 0; i < fiber.copying; i++) {
    const emulated::Copy &copy = fiber.copies[i];
    memcpy(emulated::at(copy.to, copy.bytes), copy.from, copy.bytes);
  }
  fiber.copying = 0;
}
template <class T> static T load_shared(u32 address) {
  T v;
  memcpy(&v, emulated::at(address, sizeof v), sizeof v);
  return v;
}
DEVICE quad load_shared_quad(u32 address) { return load_shared<quad>(address); }
DEVICE u32 load_shared_u32(u32 address) { return load_shared<u32>(address); }
DEVICE float load_shared_float(u32 address) { return load_shared<float>(address); }
template <class T> static void store_shared(u32 address, T v) { memcpy(emulated::at(address, sizeof v), &v, sizeof v); }
DEVICE void store_shared_half(u32 address, u32 v) { store_shared(address, (bf16)v); }
template <class T> static T load_global(const bf16 *p, T) {
  T v;
  if ((uintptr_t)p % sizeof v) emulated::trouble = "a load that is not aligned";
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T> static void store_global(bf16 *p, T v) {
  if ((uintptr_t)p % sizeof v) emulated::trouble = "a store that is not aligned";
  memcpy(p, &v, sizeof v);
}
DEVICE void store_global_half(bf16 *p, u32 v) { *p = (bf16)v; }
DEVICE float low_half(u32 v) { return emulated::wide((bf16)v); }
DEVICE float high_half(u32 v) { return emulated::wide((bf16)(v >> 16)); }
DEVICE u32 rounded(float v) {
  u32 bits;
  memcpy(&bits, &v, 4);
  if (v != v) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE u32 packed(float low, float high) { return rounded(low) | rounded(high) << 16; }
