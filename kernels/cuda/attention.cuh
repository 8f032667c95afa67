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

// Exchanges words among the four lanes that share rows of a fragment: lane i gives word j to lane j as its word i.
DEVICE void exchange(u32 words[4]) {
#pragma unroll
    for (int step = 1; step <= 2; step <<= 1) {
        const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            const u32 given = __shfl_xor_sync(ALL_LANES, upper ? words[i] : words[i + step], step);
            words[i] = upper ? given : words[i];
            words[i + step] = upper ? words[i + step] : given;
        }
    }
}

template <class T, int DIM> class Attend {
    // Two blocks a tile where registers and shared memory allow it.
    static const int TILE = DIM <= 128 ? 32 : 16;
    static const int BLOCKS = TILE / BLOCK_TOKENS;
    static const int TILE_BYTES = TILE * (DIM / 8 + 1) * 16;
    // Pieces of 16 bytes of a row. A lane reads and writes one of four that follow each other: whole sectors.
    static const int PIECES = DIM / 8;
    static const int QUADS = (PIECES + 3) / 4;
    // Fragments of queries in registers; those of wider heads are read again for each tile.
    static const bool KEEPS = DIM <= 128;

    const Attention<T> &p;
    const Sequence sequence;
    const u32 lane, warp, kv_head, group, rows, first_row;
    u32 end;                  // one past the last position that a row of the block sees
    u32 position[2];          // of the lane's two rows
    u32 tiles;                // shared address: [2 stages][K, V][TILE][DIM]
    const u8 *ahead[BLOCKS];  // the head's K in the blocks of the tile to copy next
    const T *queries[2];      // the lane's two rows of queries
    u32 kept[KEEPS ? DIM / 16 : 1][4];  // as A fragments
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
            const u32 row = row_within(warp * 16 + lane / 4 + half * 8);
            position[half] = sequence.position + row / group;
            queries[half] = p.queries + element(row);
        }
        if (KEEPS) keep_queries();
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

    // Query row that a row of the block computes. Rows beyond the last compute what the first one computes, and store
    // nothing.
    DEVICE_METHOD u32 row_within(u32 row) const { return first_row + row < rows ? first_row + row : first_row; }

    // Row and piece of 16 bytes that a thread copies first; it goes on with every eighth piece. Eight threads that follow
    // each other write different banks: eight pieces of a row, or, where a row has no multiple of eight, a piece of eight
    // rows.
    static const bool ALONG = PIECES % 8 == 0;
    DEVICE_METHOD u32 copied_row() const { return ALONG ? threadIdx.x / 8 : warp / 2 * 8 + lane % 8; }
    DEVICE_METHOD u32 copied_piece() const { return ALONG ? threadIdx.x % 8 : warp % 2 * 4 + lane / 8; }

    // Copies the queries of the block to where tiles will lie, and loads the fragments of the warp. Zeros beyond the head.
    DEVICE_METHOD void keep_queries() {
#pragma unroll 1
        for (u32 row = copied_row(); row < ROWS; row += 16) {
            const T *from = p.queries + element(row_within(row));
#pragma unroll 1
            for (u32 piece = copied_piece(); piece < PIECES; piece += 8) {
                const bool there = piece < p.dim / 8;
                copy_16(tiles + place<DIM>(row, piece), from + (there ? piece * 8 : 0), there);
            }
        }
        commit_copies();
        wait_copies<0>();
        __syncthreads();
        const u32 row = warp * 16 + (lane & 15);
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) load_matrices(kept[k], tiles + place<DIM>(row, k * 2 + (lane >> 4)));
        __syncthreads();
    }

    // Loads two A fragments. Zeros beyond the head.
    DEVICE_METHOD void load_queries(int quad, u32 to[2][4]) const {
        const u32 at = (quad * 4 + (lane & 3)) * 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 piece = at < p.dim ? *(const uint4 *)(queries[half] + at) : make_uint4(0, 0, 0, 0);
            u32 words[4] = {piece.x, piece.y, piece.z, piece.w};
            exchange(words);
#pragma unroll
            for (int i = 0; i < 4; i++) to[i >> 1][(i & 1) * 2 + half] = words[i];
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

    // Copies the tile found last. What lies beyond the last position or beyond the head is zero.
    DEVICE_METHOD void fetch(u32 tile, u32 stop, u32 stage) {
        const u32 row = copied_row();
        const u64 values = (u64)p.kv_heads * BLOCK_TOKENS * p.dim * 2;
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            const bool written = tile + block * BLOCK_TOKENS + row < stop;
            // Unrolled, its addresses would take the registers of a tile.
#pragma unroll 1
            for (u32 piece = copied_piece(); piece < PIECES; piece += 8) {
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
        u32 again[2][4];
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            if (!KEEPS && k % 2 == 0) load_queries(k / 2, again);
            const u32 *q = KEEPS ? kept[KEEPS ? k : 0] : again[k % 2];
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
        const float share[2] = {__frcp_rn(weight[0]), __frcp_rn(weight[1])};
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++) {
            const u32 at = (quad * 4 + (lane & 3)) * 8;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 words[4];
#pragma unroll
                for (int i = 0; i < 4; i++) words[i] = quad * 4 + i < PIECES ? result(quad * 4 + i, half, share) : 0;
                exchange(words);
                if (row_of(half) >= rows || at >= p.dim) continue;
                *(uint4 *)(p.output + element(row_of(half)) + at) = make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
    }

    // The lane's two results of a piece.
    DEVICE_METHOD u32 result(int piece, int half, const float share[2]) const {
        const float *sum = sums[piece] + half * 2;
        return narrow_pair<T>(__fmul_rn(sum[0], share[half]), __fmul_rn(sum[1], share[half]));
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
