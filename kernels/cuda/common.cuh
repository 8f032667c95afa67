// Shared by all kernels of the engine: number formats, vectors of four, sums of a warp, where layer-blocks lie.
//
// `cargo xtask kernels` compiles every .cu of this folder with NVRTC, which needs no header of CUDA. A kernel takes one
// structure, of which kernels/src/cuda has the Rust twin; a test compares the two. All arithmetic whose bits matter is
// written with rounding (`__fmul_rn`, `fmaf`), because the assembler may otherwise fuse it differently per device.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
// A kernel of at most THREADS threads whose one argument is `p`.
#define KERNEL(THREADS) extern "C" __global__ void __launch_bounds__(THREADS)
#define ARGUMENT(...) const __grid_constant__ __VA_ARGS__ p

// Tokens of a layer-block.
#define BLOCK_TOKENS 16
#define ALL_LANES 0xffffffffu
#define NEGATIVE_INFINITY __int_as_float(0xff800000)
#define LOG2_E 1.4426950408889634f

// Number formats in memory.
struct Bf16 {
    u16 bits;
};
struct F16 {
    u16 bits;
};

DEVICE float widen(float value) { return value; }
DEVICE float widen(Bf16 value) { return __uint_as_float((u32)value.bits << 16); }
DEVICE float widen(F16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}

// Rounds to nearest, ties to even.
DEVICE void narrow(float value, float &to) { to = value; }
DEVICE void narrow(float value, Bf16 &to) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(value)); }
DEVICE void narrow(float value, F16 &to) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value)); }

// Two numbers in one word, `low` in the lower half.
template <class T> DEVICE u32 narrow_pair(float low, float high);
template <> __device__ __forceinline__ u32 narrow_pair<Bf16>(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <> __device__ __forceinline__ u32 narrow_pair<F16>(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Four numbers at an address that four of them divide.
DEVICE void load_four(const float *from, float to[4]) {
    const float4 four = *(const float4 *)from;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
DEVICE void load_four(const Bf16 *from, float to[4]) {
    const uint2 two = *(const uint2 *)from;
    to[0] = __uint_as_float(two.x << 16), to[1] = __uint_as_float(two.x & 0xffff0000u);
    to[2] = __uint_as_float(two.y << 16), to[3] = __uint_as_float(two.y & 0xffff0000u);
}
DEVICE void load_four(const F16 *from, float to[4]) {
    const uint2 two = *(const uint2 *)from;
    to[0] = widen(F16{(u16)two.x}), to[1] = widen(F16{(u16)(two.x >> 16)});
    to[2] = widen(F16{(u16)two.y}), to[3] = widen(F16{(u16)(two.y >> 16)});
}
DEVICE void store_four(float *to, const float from[4]) {
    *(float4 *)to = make_float4(from[0], from[1], from[2], from[3]);
}
template <class T> DEVICE void store_four(T *to, const float from[4]) {
    *(uint2 *)to = make_uint2(narrow_pair<T>(from[0], from[1]), narrow_pair<T>(from[2], from[3]));
}

// Two numbers at an address that two of them divide.
DEVICE void store_two(float *to, float low, float high) { *(float2 *)to = make_float2(low, high); }
template <class T> DEVICE void store_two(T *to, float low, float high) { *(u32 *)to = narrow_pair<T>(low, high); }

// 2^x with a relative error of 2^-22; results below 2^-126 are zero.
DEVICE float power_of_two(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

// Every lane gets the sum; its order depends on nothing but the lanes.
DEVICE float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}
DEVICE float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// Where layer-blocks lie: whole blocks fill chunks, and what is left of a chunk is not used. A block holds
// K [kv_heads][16][dim], then V [kv_heads][16][dim].
struct Arena {
    u64 base;
    u64 chunk_bytes;
    u32 block_bytes, per_chunk;
};
DEVICE u8 *block_of(const Arena &arena, u32 id) {
    return (u8 *)(arena.base + (u64)(id / arena.per_chunk) * arena.chunk_bytes +
                  (u64)(id % arena.per_chunk) * arena.block_bytes);
}
