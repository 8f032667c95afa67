#include "epilogue.cuh"

// output = epilogue(input . weights^T) in f32 without tensor cores, for models whose weights are f32. Every sum runs
// over k in order in one thread. A block makes 32 x 32 sums, a thread four of one column.
#define TILE 32

struct GemmF32 {
    const float *input;    // [rows][k]
    const float *weights;  // [columns][k]
    float *output;         // [rows] x output_stride
    Epilogue<float> epilogue;
    u32 rows, columns, k, output_stride;
};

KERNEL(256) sluice_gemm_f32(ARGUMENT(GemmF32)) {
    // One number more per row, so that a column's numbers are in different banks.
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    const u32 x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const u32 block_row = blockIdx.y * TILE;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 at = 0; at < p.k; at += TILE) {
#pragma unroll
        for (u32 pass = 0; pass < TILE / 8; pass++) {
            const u32 i = pass * 8 + y, row = block_row + i, weight = blockIdx.x * TILE + i;
            const bool within = at + x < p.k;
            left[i][x] = within && row < p.rows ? p.input[(u64)row * p.k + at + x] : 0.0f;
            right[i][x] = within && weight < p.columns ? p.weights[(u64)weight * p.k + at + x] : 0.0f;
        }
        __syncthreads();
        #pragma unroll 8
        for (u32 inner = 0; inner < TILE; inner++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[i] = fmaf(left[y + 8 * i][inner], right[x][inner], sums[i]);
        __syncthreads();
    }
    float(*rows)[TILE + 1] = left;
#pragma unroll
    for (int i = 0; i < 4; i++) rows[y + 8 * i][x] = sums[i];
    __syncthreads();
    const u32 at = threadIdx.x % 8 * 4, row = block_row + threadIdx.x / 8, first = blockIdx.x * TILE + at;
    if (row >= p.rows || first >= p.columns) return;
    float *to = p.output + (u64)row * p.output_stride + first;
    finish(p.epilogue, &rows[threadIdx.x / 8][at], to, row, first, p.columns, p.output_stride % 4 == 0);
}
