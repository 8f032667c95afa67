#include "softmax.cuh"

// Paged causal attention in f32 without tensor cores, for models whose weights are f32. One warp a token and head, over
// tiles of 32 absolute positions, a lane each; `dim` is at most 256.
struct AttentionF32 {
    Arena arena;
    const float *queries;   // [tokens][heads][dim]
    float *output;          // [tokens][heads][dim]
    const u32 *positions;   // [tokens]
    const u32 *table_rows;  // [tokens]: row of the block table
    const u32 *table;       // [..][columns]: ids of the layer's blocks
    u32 columns, tokens, heads, kv_heads, dim, window;
    float score_scale, score_cap;  // as in attention.cuh
};

KERNEL(128) sluice_attention_f32(ARGUMENT(AttentionF32)) {
    __shared__ float shared[4][256];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 token = (blockIdx.x * 4 + warp) / p.heads, head = (blockIdx.x * 4 + warp) % p.heads;
    if (token >= p.tokens) return;
    const u32 kv_head = head / (p.heads / p.kv_heads), position = p.positions[token];
    const u32 *table = p.table + (u64)p.table_rows[token] * p.columns;
    const u64 row = ((u64)token * p.heads + head) * p.dim;
    float *query = shared[warp];
    for (u32 at = lane; at < p.dim; at += 32) query[at] = p.queries[row + at];
    __syncwarp();

    float largest = NEGATIVE_INFINITY, weight = 0.0f, sums[8];
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] = 0.0f;
    const u32 first = p.window && position >= p.window ? position + 1 - p.window : 0;
    for (u32 tile = first / 32 * 32; tile <= position; tile += 32) {
        const u32 at = tile + lane;
        float score = NEGATIVE_INFINITY;
        if (at >= first && at <= position) {
            const float *key = (const float *)block_of(p.arena, table[at / BLOCK_TOKENS]) +
                               ((u64)kv_head * BLOCK_TOKENS + at % BLOCK_TOKENS) * p.dim;
            float dot = 0.0f;
            for (u32 d = 0; d < p.dim; d++) dot = fmaf(query[d], key[d], dot);
            score = capped(dot, p.score_scale, p.score_cap);
        }
        // Every tile has a position that is seen.
        const Merge factors(largest, warp_max(score));
        largest = factors.largest;
        const float share = power_of_two(__fsub_rn(score, largest));
        weight = fmaf(weight, factors.before, warp_sum(share));
#pragma unroll
        for (int i = 0; i < 8; i++) sums[i] = __fmul_rn(sums[i], factors.before);
        for (u32 place = 0; place < 32 && tile + place <= position; place++) {
            const float of_place = __shfl_sync(ALL_LANES, share, place);
            const float *value = (const float *)block_of(p.arena, table[(tile + place) / BLOCK_TOKENS]) +
                                 ((u64)(p.kv_heads + kv_head) * BLOCK_TOKENS + (tile + place) % BLOCK_TOKENS) * p.dim;
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (lane + 32 * i < p.dim) sums[i] = fmaf(of_place, value[lane + 32 * i], sums[i]);
        }
    }
    const float share = __frcp_rn(weight);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (lane + 32 * i < p.dim) p.output[row + lane + 32 * i] = __fmul_rn(sums[i], share);
}
