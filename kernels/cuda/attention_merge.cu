#include "softmax.cuh"

// Puts the splits of attention together, in their order. One warp a token and head; `dim` is at most 256.
template <class T> struct AttentionMerge {
    const float *partial;           // [splits][tokens][heads][dim]
    const float2 *partial_weights;  // [splits][tokens][heads]
    T *output;                      // [rows][heads][dim]
    const uint2 *tokens;            // [tokens]: row of the output (or 0xffffffff: none), position
    u32 count, heads, dim, split, window;
    u32 unused;
};

template <class T> DEVICE void merge(const AttentionMerge<T> &p) {
    const u32 warp = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    const u32 token = warp / p.heads, head = warp % p.heads;
    if (token >= p.count) return;
    const uint2 place = p.tokens[token];
    if (place.x == 0xffffffffu) return;
    const u32 first = p.window && place.y >= p.window ? (place.y + 1 - p.window) / p.split : 0;
    float largest = NEGATIVE_INFINITY, weight = 0.0f, sums[8];
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] = 0.0f;
    for (u32 split = first; split <= place.y / p.split; split++) {
        const u64 row = ((u64)split * p.count + token) * p.heads + head;
        const float2 part = p.partial_weights[row];
        const Merge factors(largest, part.x);
        largest = factors.largest;
        weight = factors.apply(weight, part.y);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (lane + 32 * i < p.dim) sums[i] = factors.apply(sums[i], p.partial[row * p.dim + lane + 32 * i]);
    }
    const float share = __frcp_rn(weight);
    T *to = p.output + ((u64)place.x * p.heads + head) * p.dim;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (lane + 32 * i < p.dim) narrow(__fmul_rn(sums[i], share), to[lane + 32 * i]);
}

KERNEL(128) sluice_attention_merge_bf16(ARGUMENT(AttentionMerge<Bf16>)) { merge(p); }
KERNEL(128) sluice_attention_merge_f16(ARGUMENT(AttentionMerge<F16>)) { merge(p); }
