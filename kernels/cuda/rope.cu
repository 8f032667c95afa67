#include "common.cuh"

// Rotary positions (Su et al. 2021) with Hugging Face's pairing, and the only write of K and V.

// Cosines, then sines, of each row's position: the angle is position * frequency, rounded to f32 as in the models'
// reference code. Frequencies come from the host, which applies scaling. Once a step, not once a layer.
struct RopeAngles {
    const u32 *positions;      // [rows]
    const float *frequencies;  // [pairs]
    float *angles;             // [rows][2][pairs]
    u32 rows, pairs;
};

// Cosine and sine of 0 <= x < 2^17 by a quarter turn in three parts (Cody and Waite) and Cephes' polynomials. CUDA's
// own sinf has a slow path with a stack for large arguments.
DEVICE void cosine_and_sine(float x, float &cosine, float &sine) {
    const float turns = rintf(__fmul_rn(x, 0.636619772f));
    float r = fmaf(turns, -1.57079601e+00f, x);
    r = fmaf(turns, -3.13916473e-07f, r);
    r = fmaf(turns, -5.39030253e-15f, r);
    const float square = __fmul_rn(r, r);
    float s = fmaf(square, -1.9515295891e-4f, 8.3321608736e-3f);
    s = fmaf(s, square, -1.6666654611e-1f);
    s = fmaf(__fmul_rn(s, square), r, r);
    float c = fmaf(square, 2.443315711809948e-5f, -1.388731625493765e-3f);
    c = fmaf(c, square, 4.166664568298827e-2f);
    c = fmaf(__fmul_rn(c, square), square, fmaf(square, -0.5f, 1.0f));
    const u32 quarter = (u32)turns & 3;
    const float even = quarter & 1 ? s : c, odd = quarter & 1 ? c : s;
    cosine = quarter == 1 || quarter == 2 ? -even : even;
    sine = quarter >= 2 ? -odd : odd;
}

KERNEL(256) sluice_rope_angles(ARGUMENT(RopeAngles)) {
    const u32 at = blockIdx.x * 256 + threadIdx.x;
    if (at >= p.rows * p.pairs) return;
    const u32 row = at / p.pairs, pair = at % p.pairs;
    float *angles = p.angles + (u64)row * 2 * p.pairs + pair;
    cosine_and_sine(__fmul_rn((float)p.positions[row], p.frequencies[pair]), angles[0], angles[p.pairs]);
}

// Rotates queries and keys, rounds queries, K and V to the cache's format, and writes K and V to their layer-block. The
// first `rotary` of a head's `dim` numbers are rotated (0 where positions are learned), both multiples of 8. A thread
// takes eight numbers: four and their partners, or eight that are not rotated. Nothing is written once the step is
// stopped, because its input may then be garbage and its blocks another's.
template <class T> struct RopeKv {
    Arena arena;
    const float *queries;     // [rows] x query_stride: [heads][dim]
    const float *keys;        // [rows] x key_stride: [kv_heads][dim]
    const float *values;      // [rows] x value_stride: [kv_heads][dim]
    T *output;                // [rows][heads][dim]: queries
    const float *angles;      // [rows][2][rotary / 2], or null if rotary is 0
    const u32 *positions;     // [rows]
    const u32 *table_rows;    // [rows]: row of the block table
    const u32 *table;         // [..][columns]: ids of the layer's blocks
    const u32 *stopped;       // not 0: the step is stopped (memory.cu)
    u32 columns, rows, heads, kv_heads, dim, rotary, query_stride, key_stride, value_stride;
    u32 unused;
};

template <class T> DEVICE void rope_kv(const RopeKv<T> &p) {
    const u32 parts = p.dim / 8, row_parts = (p.heads + 2 * p.kv_heads) * parts;
    const u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 row = at / row_parts;
    if (row >= p.rows || *p.stopped != 0) return;
    const u32 head = at % row_parts / parts, part = at % parts;
    const u32 position = p.positions[row], key = head - p.heads, value = key - p.kv_heads;

    const float *from;
    T *to;
    if (head < p.heads) {
        from = p.queries + (u64)row * p.query_stride + head * p.dim;
        to = p.output + ((u64)row * p.heads + head) * p.dim;
    } else {
        const u32 id = p.table[(u64)p.table_rows[row] * p.columns + position / BLOCK_TOKENS];
        to = (T *)block_of(p.arena, id) + ((u64)key * BLOCK_TOKENS + position % BLOCK_TOKENS) * p.dim;
        from = key < p.kv_heads ? p.keys + (u64)row * p.key_stride + key * p.dim
                                : p.values + (u64)row * p.value_stride + value * p.dim;
    }
    const bool rotated = head < p.heads + p.kv_heads && part < p.rotary / 8;
    const u32 low = rotated ? part * 4 : part * 8, high = rotated ? low + p.rotary / 2 : low + 4;
    float a[4], b[4];
    load_four(from + low, a);
    load_four(from + high, b);
    if (rotated) {
        float cosine[4], sine[4];
        load_four(p.angles + (u64)row * p.rotary + low, cosine);
        load_four(p.angles + (u64)row * p.rotary + high, sine);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // Two products and a sum, each rounded, as on the host.
            const float first = a[i];
            a[i] = __fsub_rn(__fmul_rn(first, cosine[i]), __fmul_rn(b[i], sine[i]));
            b[i] = __fadd_rn(__fmul_rn(b[i], cosine[i]), __fmul_rn(first, sine[i]));
        }
    }
    store_four(to + low, a);
    store_four(to + high, b);
}

KERNEL(256) sluice_rope_kv_bf16(ARGUMENT(RopeKv<Bf16>)) { rope_kv(p); }
KERNEL(256) sluice_rope_kv_f16(ARGUMENT(RopeKv<F16>)) { rope_kv(p); }
KERNEL(256) sluice_rope_kv_f32(ARGUMENT(RopeKv<float>)) { rope_kv(p); }
