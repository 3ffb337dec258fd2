// Instructions of a GPU that the blocks are made of. tests/kasmina/kernels/emulate.h has the same
// functions for a CPU. Nothing is included, so that NVRTC needs no CUDA headers.
typedef unsigned int u32;
typedef unsigned short bf16;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define KERNEL(BLOCKS_PER_SM) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)

extern __shared__ __align__(128) unsigned char shared_memory[];

DEVICE u32 shared_base() {
  u32 at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(shared_memory));
  return at;
}
DEVICE int thread_id() { return threadIdx.x; }
DEVICE int part_id() { return blockIdx.x; }
DEVICE int parts() { return gridDim.x; }
DEVICE int grid_row() { return blockIdx.y; }
DEVICE void barrier() { __syncthreads(); }
DEVICE float shuffle(float v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEVICE u32 shuffle(u32 v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEVICE float positive(float v) {  // NaN stays NaN
  asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(v));
  return v;
}
DEVICE float inverse_root(float v) { return rsqrtf(v); }

DEVICE void load_matrices(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
DEVICE void load_matrices(u32 (&r)[2], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}
DEVICE void load_transposed(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
DEVICE void load_transposed(u32 (&r)[2], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Asynchronous copies to shared memory; visible to this thread after `wait_for_copies`.
template <int BYTES> DEVICE void copy_async(u32 to, const void *from) {
  if (BYTES == 2) {
    asm volatile("{ .reg .b16 t; ld.global.b16 t, [%1]; st.shared.b16 [%0], t; }" ::"r"(to), "l"(from) : "memory");
  } else if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES == 2 ? 4 : BYTES) : "memory");
  }
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

struct pair { u32 x, y; };
struct quad { u32 x, y, z, w; };
DEVICE void store_shared(u32 at, u32 v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory"); }
DEVICE void store_shared_half(u32 at, u32 v) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"((bf16)v) : "memory");
}
DEVICE quad load_shared_quad(u32 at) {
  quad v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
DEVICE void store_shared(u32 at, quad v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE u32 load_shared_u32(u32 at) {
  u32 v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
DEVICE float load_shared_float(u32 at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}
DEVICE void store_shared(u32 at, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory"); }

DEVICE u32 load_global(const bf16 *p, u32) { return *reinterpret_cast<const u32 *>(p); }
DEVICE pair load_global(const bf16 *p, pair) {
  pair v;
  asm volatile("ld.global.v2.b32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}
DEVICE void store_global(bf16 *p, u32 v) { *reinterpret_cast<u32 *>(p) = v; }
DEVICE void store_global(bf16 *p, pair v) {
  asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
DEVICE void store_global(bf16 *p, quad v) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void store_global_half(bf16 *p, u32 v) { *p = (bf16)v; }

// Two numbers as bf16, `low` in the lower half; rounded to nearest even.
DEVICE u32 packed(float low, float high) {
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
DEVICE float low_half(u32 v) { return __uint_as_float(v << 16); }
DEVICE float high_half(u32 v) { return __uint_as_float(v & 0xffff0000u); }
