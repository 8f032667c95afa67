#include "common.cuh"

// RMSNorm (Zhang and Sennrich 2019), or LayerNorm (Ba et al. 2016) where there is a bias. One block a row; `width` is a
// multiple of 4. With `rows`, row i of the output is that of row rows[i] of the input, for logits of sampled rows.
// With heads as rows it is the norm of queries and keys. Gemma's gain is 1 + weight: `gain_offset` is 1.
template <class W, class O> struct Norm {
    float *input;         // [..][width]
    const float *addend;  // like the input: added to it first, in place; or null
    const W *weight;      // [width]
    const W *bias;        // [width], or null
    O *output;            // [rows][width]; may be the input
    const u32 *rows;      // [rows], or null
    u32 width;
    float epsilon, gain_offset;
    u32 unused;
};

// The sum over a block, in an order that depends on its size alone.
DEVICE float block_sum(float value, float *partial) {
    value = warp_sum(value);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = value;
    __syncthreads();
    float sum = 0.0f;
    for (u32 warp = 0; warp < (blockDim.x >> 5); warp++) sum = __fadd_rn(sum, partial[warp]);
    return sum;
}

template <class W, class O> DEVICE void norm(const Norm<W, O> &p) {
    __shared__ float partial[8];
    const u32 first = threadIdx.x * 4, step = blockDim.x * 4;
    float *input = p.input + (u64)(p.rows ? p.rows[blockIdx.x] : blockIdx.x) * p.width;
    const float *addend = p.addend ? p.addend + (input - p.input) : nullptr;
    O *output = p.output + (u64)blockIdx.x * p.width;

    float sum = 0.0f;
    if (addend || p.bias) {
        for (u32 at = first; at < p.width; at += step) {
            float x[4];
            load_four(input + at, x);
            if (addend) {
                float more[4];
                load_four(addend + at, more);
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] = __fadd_rn(x[i], more[i]);
                store_four(input + at, x);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) sum = __fadd_rn(sum, x[i]);
        }
    }
    const float mean = p.bias ? __fdiv_rn(block_sum(sum, partial), (float)p.width) : 0.0f;

    float squares = 0.0f;
    for (u32 at = first; at < p.width; at += step) {
        float x[4];
        load_four(input + at, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float difference = __fsub_rn(x[i], mean);
            squares = fmaf(difference, difference, squares);
        }
    }
    const float variance = __fdiv_rn(block_sum(squares, partial), (float)p.width);
    const float gain = __frcp_rn(__fsqrt_rn(__fadd_rn(variance, p.epsilon)));

    for (u32 at = first; at < p.width; at += step) {
        float x[4], weight[4];
        load_four(input + at, x);
        load_four(p.weight + at, weight);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = __fmul_rn(__fmul_rn(__fsub_rn(x[i], mean), gain), __fadd_rn(weight[i], p.gain_offset));
        if (p.bias) {
            float bias[4];
            load_four(p.bias + at, bias);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = __fadd_rn(x[i], bias[i]);
        }
        store_four(output + at, x);
    }
}

KERNEL(256) sluice_norm_bf16_bf16(ARGUMENT(Norm<Bf16, Bf16>)) { norm(p); }
KERNEL(256) sluice_norm_bf16_f32(ARGUMENT(Norm<Bf16, float>)) { norm(p); }
KERNEL(256) sluice_norm_f16_f16(ARGUMENT(Norm<F16, F16>)) { norm(p); }
KERNEL(256) sluice_norm_f16_f32(ARGUMENT(Norm<F16, float>)) { norm(p); }
KERNEL(256) sluice_norm_f32_f32(ARGUMENT(Norm<float, float>)) { norm(p); }
