#include "common.cuh"

// output[row] = table[token] * scale, plus positions[position + offset] where positions are learned (OPT: offset 2).
// The scale is that of Gemma; 1 elsewhere. One block a row; `width` is a multiple of 4.
template <class T> struct Embed {
    const T *table;        // [vocabulary][width]
    const T *learned;      // [positions + offset][width], or null
    float *output;         // [rows][width]
    const u32 *tokens;     // [rows]
    const u32 *positions;  // [rows]
    u32 width, offset;
    float scale;
    u32 unused;
};

template <class T> DEVICE void embed(const Embed<T> &p) {
    const u32 row = blockIdx.x;
    const T *token = p.table + (u64)p.tokens[row] * p.width;
    const T *position = p.learned ? p.learned + ((u64)p.positions[row] + p.offset) * p.width : nullptr;
    for (u32 at = threadIdx.x * 4; at < p.width; at += blockDim.x * 4) {
        float values[4];
        load_four(token + at, values);
#pragma unroll
        for (int i = 0; i < 4; i++) values[i] = __fmul_rn(values[i], p.scale);
        if (position) {
            float more[4];
            load_four(position + at, more);
#pragma unroll
            for (int i = 0; i < 4; i++) values[i] = __fadd_rn(values[i], more[i]);
        }
        store_four(p.output + (u64)row * p.width + at, values);
    }
}

KERNEL(256) sluice_embed_bf16(ARGUMENT(Embed<Bf16>)) { embed(p); }
KERNEL(256) sluice_embed_f16(ARGUMENT(Embed<F16>)) { embed(p); }
KERNEL(256) sluice_embed_f32(ARGUMENT(Embed<float>)) { embed(p); }
