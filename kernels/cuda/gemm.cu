#include "epilogue.cuh"
#include "tensor_core.cuh"

// output = epilogue(input . weights^T) on tensor cores. Every sum runs over k in order, in steps of 16, in one thread
// block, so a row's bits depend neither on the number of rows nor on its place among them (batch invariance).
//
// A block of four warps makes 64 x 64 sums, a warp 32 x 32, in steps of 64 columns of k that are copied two steps
// ahead. `k` is a multiple of 8; rows of input and weights are 16-byte aligned.
#define TILE 64
#define STAGES 3
#define TILE_BYTES (TILE * TILE * 2)
// Floats of a row of sums: 8 more, so that the rows of a store are in different banks.
#define PITCH (TILE + 8)

template <class T, class O> struct Gemm {
    const T *input;    // [rows][k]
    const T *weights;  // [columns][k]
    O *output;         // [rows] x output_stride
    Epilogue<T> epilogue;
    u32 rows, columns, k, output_stride;
};

// Rows of 8 pieces of 16 bytes; the pieces of a row are permuted so that eight rows hit all banks.
DEVICE u32 place(u32 row, u32 piece) { return (row * 8 + (piece ^ (row & 7))) * 16; }

// Copies columns [at, at + 64) of 64 rows; zeros beyond the matrix.
template <class T> DEVICE void fetch(const T *matrix, u32 first_row, u32 rows, u32 k, u32 at, u32 to) {
#pragma unroll
    for (u32 pass = 0; pass < TILE * 8 / 128; pass++) {
        const u32 i = pass * 128 + threadIdx.x, row = i / 8, piece = i % 8, column = at + piece * 8;
        const bool there = first_row + row < rows && column < k;
        copy_16(to + place(row, piece), matrix + (there ? (u64)(first_row + row) * k + column : 0), there);
    }
}

template <class T, class O> DEVICE void gemm(const Gemm<T, O> &p) {
    __shared__ __align__(128) u8 shared[STAGES * 2 * TILE_BYTES];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tiles = shared_address(shared);
    const u32 block_row = blockIdx.y * TILE, block_column = blockIdx.x * TILE;
    const u32 row_0 = (warp >> 1) * 32, column_0 = (warp & 1) * 32;
    auto copy = [&](u32 step) {
        const u32 to = tiles + step % STAGES * 2 * TILE_BYTES;
        if (step * TILE < p.k) {
            fetch(p.input, block_row, p.rows, p.k, step * TILE, to);
            fetch(p.weights, block_column, p.columns, p.k, step * TILE, to + TILE_BYTES);
        }
        // An empty group, too: the wait below counts groups.
        commit_copies();
    };
    float sums[2][4][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int x = 0; x < 4; x++) sums[i][j][x] = 0.0f;

#pragma unroll
    for (u32 step = 0; step < STAGES - 1; step++) copy(step);
    for (u32 step = 0; step * TILE < p.k; step++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        copy(step + STAGES - 1);
        const u32 left = tiles + step % STAGES * 2 * TILE_BYTES, right = left + TILE_BYTES;
#pragma unroll
        for (int inner = 0; inner < TILE / 16; inner++) {
            u32 a[2][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                load_matrices(a[i], left + place(row_0 + i * 16 + (lane & 15), inner * 2 + (lane >> 4)));
                const u32 column = column_0 + i * 16 + (lane & 7) + ((lane >> 4) << 3);
                load_matrices(b[i], right + place(column, inner * 2 + ((lane >> 3) & 1)));
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) multiply_add<T>(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }

    // Through shared memory, so that a thread has four columns of a row to store.
    float(*rows)[PITCH] = (float(*)[PITCH])shared;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 row = row_0 + i * 16 + lane / 4 + half * 8, column = column_0 + j * 8 + (lane & 3) * 2;
                store_two(&rows[row][column], sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
            }
    __syncthreads();
    const u32 column = block_column + threadIdx.x % 16 * 4;
#pragma unroll 1
    for (u32 i = threadIdx.x / 16; i < TILE; i += 8) {
        const u32 row = block_row + i;
        if (row >= p.rows || column >= p.columns) break;
        O *to = p.output + (u64)row * p.output_stride + column;
        finish(p.epilogue, &rows[i][threadIdx.x % 16 * 4], to, row, column, p.columns, p.output_stride % 4 == 0);
    }
}

KERNEL(128) sluice_gemm_bf16_bf16(ARGUMENT(Gemm<Bf16, Bf16>)) { gemm(p); }
KERNEL(128) sluice_gemm_bf16_f32(ARGUMENT(Gemm<Bf16, float>)) { gemm(p); }
KERNEL(128) sluice_gemm_f16_f16(ARGUMENT(Gemm<F16, F16>)) { gemm(p); }
KERNEL(128) sluice_gemm_f16_f32(ARGUMENT(Gemm<F16, float>)) { gemm(p); }
