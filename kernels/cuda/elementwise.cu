#include "epilogue.cuh"

// output = join(other, activation(input + bias)): the epilogue of products that cuBLASLt has computed. SiLU(gate) * up,
// GELU(gate) * up, ReLU, biases, the residual sum and rounding are all of this form. A thread takes four columns.
template <class T, class O> struct Elementwise {
    const float *input;  // [rows] x input_stride
    O *output;           // [rows] x output_stride; may be the input or `other`
    Epilogue<T> epilogue;
    u32 rows, columns, input_stride, output_stride;
};

template <class T, class O> DEVICE void elementwise(const Elementwise<T, O> &p) {
    const u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 row_parts = (p.columns + 3) / 4;
    const u32 row = at / row_parts, column = at % row_parts * 4;
    if (row >= p.rows) return;
    const float *from = p.input + (u64)row * p.input_stride + column;
    float values[4];
    if (column + 4 <= p.columns && p.input_stride % 4 == 0) {
        load_four(from, values);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) values[i] = column + i < p.columns ? from[i] : 0.0f;
    }
    O *to = p.output + (u64)row * p.output_stride + column;
    finish(p.epilogue, values, to, row, column, p.columns, p.output_stride % 4 == 0);
}

KERNEL(256) sluice_elementwise_bf16_bf16(ARGUMENT(Elementwise<Bf16, Bf16>)) { elementwise(p); }
KERNEL(256) sluice_elementwise_bf16_f32(ARGUMENT(Elementwise<Bf16, float>)) { elementwise(p); }
KERNEL(256) sluice_elementwise_f16_f16(ARGUMENT(Elementwise<F16, F16>)) { elementwise(p); }
KERNEL(256) sluice_elementwise_f16_f32(ARGUMENT(Elementwise<F16, float>)) { elementwise(p); }
KERNEL(256) sluice_elementwise_f32_f32(ARGUMENT(Elementwise<float, float>)) { elementwise(p); }
