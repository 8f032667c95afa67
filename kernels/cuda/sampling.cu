#include "common.cuh"

// The largest logit of a row, and its k largest, in two or three launches with many blocks a row.
//
// A logit and its token become one key that orders like (logit, lower token first). NaN and minus infinity are never
// chosen: their key is 0, below that of every other logit. No key but 0 occurs twice, so every order of comparison
// gives the same result.

// `signed_zero` tells -0 from 0, as the host's order of candidates does; the host's greedy choice does not.
DEVICE u64 key_of(float logit, u32 token, bool signed_zero) {
    if (!(logit > NEGATIVE_INFINITY)) return 0;
    const u32 bits = !signed_zero && logit == 0.0f ? 0 : __float_as_uint(logit);
    const u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (0xffffffffu - token);
}

DEVICE u64 block_max(u64 key, u64 keys[8]) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) key = max(key, __shfl_xor_sync(ALL_LANES, key, step));
    if ((threadIdx.x & 31) == 0) keys[threadIdx.x >> 5] = key;
    __syncthreads();
    u64 largest = 0;
#pragma unroll
    for (int warp = 0; warp < 8; warp++) largest = max(largest, keys[warp]);
    return largest;
}

// The largest key of each part of a row; a part is a multiple of 4 tokens. Grid: parts x rows.
struct ArgmaxParts {
    const float *logits;  // [rows][vocabulary]
    u64 *keys;            // [rows][parts]
    u32 vocabulary, part;
};

KERNEL(256) sluice_argmax_parts(ARGUMENT(ArgmaxParts)) {
    __shared__ u64 keys[8];
    const float *row = p.logits + (u64)blockIdx.y * p.vocabulary;
    const u32 first = blockIdx.x * p.part, last = min(first + p.part, p.vocabulary);
    u64 largest = 0;
    if (p.vocabulary % 4 == 0) {
        for (u32 at = first + threadIdx.x * 4; at < last; at += 1024) {
            float four[4];
            load_four(row + at, four);
#pragma unroll
            for (int i = 0; i < 4; i++) largest = max(largest, key_of(four[i], at + i, false));
        }
    } else {
        for (u32 at = first + threadIdx.x; at < last; at += 256) largest = max(largest, key_of(row[at], at, false));
    }
    largest = block_max(largest, keys);
    if (threadIdx.x == 0) p.keys[(u64)blockIdx.y * gridDim.x + blockIdx.x] = largest;
}

// The token of a row's largest key; 0xffffffff if no logit can be chosen. One block a row.
struct ArgmaxRows {
    const u64 *keys;  // [rows][parts]
    u32 *tokens;      // [rows]
    u32 parts;
    u32 unused;
};

KERNEL(256) sluice_argmax_rows(ARGUMENT(ArgmaxRows)) {
    __shared__ u64 keys[8];
    const u64 *row = p.keys + (u64)blockIdx.x * p.parts;
    u64 largest = 0;
    for (u32 at = threadIdx.x; at < p.parts; at += 256) largest = max(largest, row[at]);
    largest = block_max(largest, keys);
    if (threadIdx.x == 0) p.tokens[blockIdx.x] = largest == 0 ? 0xffffffffu : 0xffffffffu - (u32)largest;
}

// The `k` largest keys of each 2048 of a row, in falling order, of logits or of keys of an earlier launch. A launch
// with one part a row is the last. Grid: parts x rows.
#define SORTED 2048
struct TopK {
    const float *logits;  // [rows][count], or null
    const u64 *keys;      // [rows][count], where there are no logits
    u64 *output;          // [rows][parts][k]
    u32 count, k;
};

KERNEL(256) sluice_top_k(ARGUMENT(TopK)) {
    __shared__ u64 keys[SORTED];
    const u32 first = blockIdx.x * SORTED;
    const u64 row = (u64)blockIdx.y * p.count;
#pragma unroll
    for (u32 pass = 0; pass < SORTED / 256; pass++) {
        const u32 i = pass * 256 + threadIdx.x, at = first + i;
        u64 key = 0;
        if (at < p.count) key = p.logits ? key_of(p.logits[row + at], at, true) : p.keys[row + at];
        keys[i] = key;
    }
    // Bitonic sort (Batcher 1968): blocks of `size` in turns rising and falling, at last one falling.
    for (u32 size = 2; size <= SORTED; size *= 2)
        for (u32 distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
#pragma unroll
            for (u32 pass = 0; pass < SORTED / 512; pass++) {
                const u32 i = pass * 256 + threadIdx.x, low = 2 * i - (i & (distance - 1)), high = low + distance;
                const u64 a = keys[low], b = keys[high];
                const bool falling = (low & size) == 0;
                if (falling ? a < b : a > b) keys[low] = b, keys[high] = a;
            }
        }
    __syncthreads();
    u64 *to = p.output + ((u64)blockIdx.y * gridDim.x + blockIdx.x) * p.k;
    for (u32 i = threadIdx.x; i < p.k; i += 256) to[i] = keys[i];
}
