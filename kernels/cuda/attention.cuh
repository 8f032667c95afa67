// Paged causal attention for prefill and decode alike, on tensor cores, with an online softmax (Milakov and Gimelshein
// 2018, arXiv 1805.02867).
//
// A block of four warps takes 64 query rows that share one K and V head: the tokens of one sequence x the query heads of
// the group, heads inside. It goes over positions in tiles of layer-blocks, copied to shared memory one tile ahead.
//
// Positions are cut into splits of `split`, each with a softmax of its own; splits are merged in order. A block takes
// all splits of its rows and merges them as it goes (prefill), or one split (decode: enough blocks for the device), and
// sluice_attention_merge does the same merges. Tiles and splits lie at absolute positions, and what a row does not see
// adds nothing, so the bits of a row depend on its position alone.
#pragma once
#include "softmax.cuh"
#include "tensor_core.cuh"

#define ROWS 64
#define THREADS 128
#define WHOLE 0xffffffffu

struct Sequence {
    u32 token;     // row of its first token
    u32 tokens;    // tokens in this step
    u32 position;  // of the first token
    u32 table_row; // row of its blocks in the table
};

// One block's work, for every K and V head.
struct Item {
    u32 sequence;
    u32 row;      // first query row within the sequence
    u32 split;    // the one split, or WHOLE
    u32 partial;  // row of `partial` of the sequence's first token
};

template <class T> struct Attention {
    Arena arena;
    const T *queries;           // [tokens][heads][dim]
    T *output;                  // [tokens][heads][dim]
    float *partial;             // [splits][partial_tokens][heads][dim]: sums before the division
    float2 *partial_weights;    // [splits][partial_tokens][heads]: largest score, sum of weights
    const u32 *table;           // [..][columns]: ids of the layer's blocks
    const Sequence *sequences;
    const Item *items;          // one per block of the grid's first dimension; surplus ones have row WHOLE
    u32 columns, heads, kv_heads, dim;
    u32 partial_tokens, split;
    u32 window;                 // a token sees itself and window - 1 positions before it; 0: all
    float score_scale;          // log2(e) / sqrt(dim), or 1 / (cap sqrt(dim)) with a cap
    float score_cap;            // log2(e) cap, or 0: a score is score_cap * tanh(score_scale * dot)
    u32 unused;
};

// Rows of DIM numbers of 2 bytes in shared memory. One piece of 16 bytes more than the row needs: an odd pitch, so eight
// rows hit all banks (DIM is a multiple of 16).
template <int DIM> DEVICE u32 place(u32 row, u32 piece) { return (row * (DIM / 8 + 1) + piece) * 16; }

template <class T, int DIM> class Attend {
    // Two blocks a tile where registers and shared memory allow it.
    static const int TILE = DIM <= 128 ? 32 : 16;
    static const int BLOCKS = TILE / BLOCK_TOKENS;
    static const int TILE_BYTES = TILE * (DIM / 8 + 1) * 16;
    // Fragments of queries in registers; those of wider heads are read again for each tile, and those of 112, whose
    // addresses take registers that no other width needs.
    static const int KEPT = DIM <= 128 && DIM != 112 ? DIM / 16 : 1;

    const Attention<T> &p;
    const Sequence sequence;
    const u32 lane, warp, kv_head, group, rows, first_row;
    u32 end;                  // one past the last position that a row of the block sees
    u32 position[2];          // of the lane's two rows
    u32 tiles;                // shared address: [2 stages][K, V][TILE][DIM]
    const u8 *ahead[BLOCKS];  // the head's K in the blocks of the tile to copy next
    const T *queries[2];      // the lane's two rows of queries
    u32 kept[KEPT][4];        // as A fragments
    float sums[DIM / 8][4];
    float largest[2], weight[2];

  public:
    DEVICE_METHOD Attend(const Attention<T> &p, const Item &item, u32 tiles)
        : p(p), sequence(p.sequences[item.sequence]), lane(threadIdx.x & 31), warp(threadIdx.x >> 5),
          kv_head(blockIdx.y), group(p.heads / p.kv_heads), rows(sequence.tokens * group), first_row(item.row),
          tiles(tiles) {
        const u32 last_row = min(first_row + ROWS, rows) - 1;
        end = sequence.position + last_row / group + 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // Rows beyond the last compute what the block's first row computes, and store nothing.
            const u32 row = row_of(half) < rows ? row_of(half) : first_row;
            position[half] = sequence.position + row / group;
            queries[half] = p.queries + element(row);
        }
        if (KEPT > 1)
#pragma unroll
            for (int k = 0; k < KEPT; k++) load_queries(k, kept[k]);
    }

    DEVICE_METHOD void run(const Item &item) {
        const u32 first_position = sequence.position + first_row / group;
        const u32 begin = p.window && first_position >= p.window ? (first_position + 1 - p.window) / TILE * TILE : 0;
        const bool whole = item.split == WHOLE;
        const u32 first = whole ? begin / p.split : item.split;
        const u32 last = whole ? (end - 1) / p.split : item.split;
        float total_largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, total_weight[2] = {0.0f, 0.0f};
        for (u32 split = first; split <= last; split++) {
            attend(max(begin, split * p.split), min(end, (split + 1) * p.split));
            const u64 at = whole ? 0 : split;
            if (whole && split > first) merge(at, item.partial, total_largest, total_weight);
            if (whole && split == last) {
                finish();
            } else {
                store(at, item.partial, !whole);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) total_largest[half] = largest[half], total_weight[half] = weight[half];
        }
    }

  private:
    DEVICE_METHOD u32 row_of(int half) const { return first_row + warp * 16 + lane / 4 + half * 8; }

    // Zeros beyond the head.
    DEVICE_METHOD void load_queries(int k, u32 to[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 at = k * 16 + (i >> 1) * 8 + (lane & 3) * 2;
            to[i] = at < p.dim ? *(const u32 *)(queries[i & 1] + at) : 0;
        }
    }

    // Offset of a query row's first number in queries and results.
    DEVICE_METHOD u64 element(u32 row) const {
        return ((u64)(sequence.token + row / group) * p.heads + kv_head * group + row % group) * p.dim;
    }

    // Row of a split's results.
    DEVICE_METHOD u64 partial_row(u64 split, u32 partial, u32 row) const {
        return (split * p.partial_tokens + partial + row / group) * p.heads + kv_head * group + row % group;
    }

    // Finds the blocks of a tile.
    DEVICE_METHOD void look_ahead(u32 tile, u32 stop) {
        const u32 *table = p.table + (u64)sequence.table_row * p.columns;
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            const u32 at = tile + block * BLOCK_TOKENS;
            const u32 id = table[(at < stop ? at : tile) / BLOCK_TOKENS];
            ahead[block] = block_of(p.arena, id) + (u64)kv_head * BLOCK_TOKENS * p.dim * 2;
        }
    }

    // Copies the tile found last: eight threads a row, so that they write different banks. What lies beyond the last
    // position or beyond the head is zero.
    DEVICE_METHOD void fetch(u32 tile, u32 stop, u32 stage) {
        const u32 row = threadIdx.x / 8;
        const u64 values = (u64)p.kv_heads * BLOCK_TOKENS * p.dim * 2;
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            const bool written = tile + block * BLOCK_TOKENS + row < stop;
#pragma unroll
            for (u32 piece = threadIdx.x % 8; piece < DIM / 8; piece += 8) {
                const bool there = written && piece < p.dim / 8;
                const u8 *from = ahead[block] + (there ? (row * p.dim + piece * 8) * 2 : 0);
                const u32 to = tiles + stage * 2 * TILE_BYTES + place<DIM>(block * BLOCK_TOKENS + row, piece);
                copy_16(to, from, there);
                copy_16(to + TILE_BYTES, from + values, there);
            }
        }
        commit_copies();
    }

    // Attention over positions [begin, stop) into fresh sums.
    DEVICE_METHOD void attend(u32 begin, u32 stop) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) largest[half] = NEGATIVE_INFINITY, weight[half] = 0.0f;
        if (begin >= stop) return;
        look_ahead(begin, stop);
        fetch(begin, stop, 0);
        if (begin + TILE < stop) look_ahead(begin + TILE, stop);
        u32 stage = 0;
        for (u32 tile = begin; tile < stop; tile += TILE, stage ^= 1) {
            if (tile + TILE < stop) {
                fetch(tile + TILE, stop, stage ^ 1);
                if (tile + 2 * TILE < stop) look_ahead(tile + 2 * TILE, stop);
                wait_copies<1>();
            } else {
                wait_copies<0>();
            }
            __syncthreads();
            const u32 keys = tiles + stage * 2 * TILE_BYTES;
            add_tile(tile, keys, keys + TILE_BYTES);
            __syncthreads();
        }
    }

    DEVICE_METHOD void add_tile(u32 tile, u32 keys, u32 values) {
        float s[TILE / 8][4];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            u32 again[4];
            if (KEPT == 1) load_queries(k, again);
            const u32 *q = KEPT == 1 ? again : kept[KEPT == 1 ? 0 : k];
#pragma unroll
            for (int n = 0; n < TILE / 8; n += 2) {
                u32 b[4];
                load_matrices(b, keys + place<DIM>(n * 8 + (lane & 7) + ((lane >> 4) << 3), k * 2 + ((lane >> 3) & 1)));
                multiply_add<T>(s[n], q, b[0], b[1]);
                multiply_add<T>(s[n + 1], q, b[2], b[3]);
            }
        }
        float correction[2];
#pragma unroll
        for (int half = 0; half < 2; half++) correction[half] = soften(tile, half, s);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][i] = __fmul_rn(sums[n][i], correction[i >> 1]);
        // The weights that mma left in a lane's registers are in their places as A fragments.
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            const u32 a[4] = {narrow_pair<T>(s[2 * k][0], s[2 * k][1]), narrow_pair<T>(s[2 * k][2], s[2 * k][3]),
                              narrow_pair<T>(s[2 * k + 1][0], s[2 * k + 1][1]),
                              narrow_pair<T>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int n = 0; n < DIM / 8; n += 2) {
                u32 b[4];
                load_matrices_transposed(b, values + place<DIM>(k * 16 + (lane & 15), n + (lane >> 4)));
                multiply_add<T>(sums[n], a, b[0], b[1]);
                multiply_add<T>(sums[n + 1], a, b[2], b[3]);
            }
        }
    }

    // Turns a row's dot products into weights, and returns by what its sums are to be multiplied.
    DEVICE_METHOD float soften(u32 tile, int half, float s[TILE / 8][4]) {
        float most = largest[half];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 at = tile + n * 8 + (lane & 3) * 2 + i;
                float &score = s[n][half * 2 + i];
                const bool seen = at <= position[half] && (!p.window || at + p.window > position[half]);
                score = seen ? capped(score, p.score_scale, p.score_cap) : NEGATIVE_INFINITY;
                most = fmaxf(most, score);
            }
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        // A row that has seen nothing yet keeps minus infinity; its weights are zero.
        const float base = most == NEGATIVE_INFINITY ? 0.0f : most;
        const float correction = power_of_two(__fsub_rn(largest[half], base));
        largest[half] = most;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &score = s[n][half * 2 + i];
                score = power_of_two(__fsub_rn(score, base));
                sum = __fadd_rn(sum, score);
            }
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 2));
        weight[half] = fmaf(weight[half], correction, sum);
        return correction;
    }

    // Adds the sums of this split to those stored before. A lane reads what it has written.
    DEVICE_METHOD void merge(u64 split, u32 partial, const float total_largest[2], const float total_weight[2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Merge factors(total_largest[half], largest[half]);
            weight[half] = factors.apply(total_weight[half], weight[half]);
            largest[half] = factors.largest;
            if (row_of(half) >= rows) continue;
            const float *from = p.partial + partial_row(split, partial, row_of(half)) * p.dim;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                const u32 at = n * 8 + (lane & 3) * 2;
                if (at >= p.dim) continue;
                const float2 total = *(const float2 *)(from + at);
                sums[n][half * 2] = factors.apply(total.x, sums[n][half * 2]);
                sums[n][half * 2 + 1] = factors.apply(total.y, sums[n][half * 2 + 1]);
            }
        }
    }

    DEVICE_METHOD void store(u64 split, u32 partial, bool with_weights) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row_of(half) >= rows) continue;
            const u64 to = partial_row(split, partial, row_of(half));
            if (with_weights && (lane & 3) == 0) p.partial_weights[to] = make_float2(largest[half], weight[half]);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                const u32 at = n * 8 + (lane & 3) * 2;
                if (at < p.dim) store_two(p.partial + to * p.dim + at, sums[n][half * 2], sums[n][half * 2 + 1]);
            }
        }
    }

    DEVICE_METHOD void finish() const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row_of(half) >= rows) continue;
            const float share = __frcp_rn(weight[half]);
            T *to = p.output + element(row_of(half));
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                const u32 at = n * 8 + (lane & 3) * 2;
                if (at >= p.dim) continue;
                store_two(to + at, __fmul_rn(sums[n][half * 2], share), __fmul_rn(sums[n][half * 2 + 1], share));
            }
        }
    }

  public:
    static const int SHARED_BYTES = 4 * TILE_BYTES;
};

template <class T, int DIM> DEVICE void attention(const Attention<T> &p) {
    __shared__ __align__(128) u8 tiles[Attend<T, DIM>::SHARED_BYTES];
    const Item item = p.items[blockIdx.x];
    if (item.row == WHOLE) return;
    Attend<T, DIM>(p, item, shared_address(tiles)).run(item);
}

// Widths of heads: a head takes the kernel of the next width.
#define ATTENTION(TYPE, NAME, DIM)                                                                                     \
    KERNEL(THREADS) sluice_attention_##NAME##_##DIM(ARGUMENT(Attention<TYPE>)) { attention<TYPE, DIM>(p); }
#define ATTENTIONS(TYPE, NAME)                                                                                         \
    ATTENTION(TYPE, NAME, 32)                                                                                          \
    ATTENTION(TYPE, NAME, 64)                                                                                          \
    ATTENTION(TYPE, NAME, 80)                                                                                          \
    ATTENTION(TYPE, NAME, 96)                                                                                          \
    ATTENTION(TYPE, NAME, 112)                                                                                         \
    ATTENTION(TYPE, NAME, 128)                                                                                         \
    ATTENTION(TYPE, NAME, 256)
