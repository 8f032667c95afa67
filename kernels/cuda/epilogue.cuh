// What becomes of a product's sum: bias, activation, and the number that it joins.
#pragma once
#include "common.cuh"

// Activations, of sums with their bias.
#define NO_ACTIVATION 0
#define RELU 1
#define SILU 2
#define GELU_TANH 3
#define GELU_ERF 4

// How the result joins `other`.
#define STORE 0
#define ADD 1
#define MULTIPLY 2

template <class T> struct Epilogue {
    const T *bias;      // [columns], or null
    const float *other; // [rows] x other_stride, where it is joined; may be the output
    u32 other_stride, activation, join;
    u32 unused;
};

// x times a share between 0 and 1: 1 / (1 + e^-y).
DEVICE float gated(float x, float y) {
    return __fdiv_rn(x, __fadd_rn(1.0f, power_of_two(__fmul_rn(y, -LOG2_E))));
}

DEVICE float activated(float x, u32 activation) {
    if (activation == RELU) return fmaxf(x, 0.0f);
    if (activation == SILU) return gated(x, x);
    // x (1 + tanh(y)) / 2 with y = sqrt(2 / pi) (x + 0.044715 x^3), as a share: 1 / (1 + e^(-2 y)).
    if (activation == GELU_TANH)
        return gated(x, __fmul_rn(1.5957691216f, fmaf(__fmul_rn(0.044715f, __fmul_rn(x, x)), x, x)));
    if (activation == GELU_ERF)
        return __fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, erff(__fmul_rn(x, 0.70710678f))));
    return x;
}

DEVICE float joined(float other, float result, u32 join) {
    return join == ADD ? __fadd_rn(other, result) : join == MULTIPLY ? __fmul_rn(other, result) : result;
}

// Finishes and stores up to four sums of a row, as far as there are columns.
template <class T, class O>
DEVICE void finish(const Epilogue<T> &e, const float sums[4], O *to, u32 row, u32 column, u32 columns, bool aligned) {
    float results[4], other[4];
    const float *from = e.other + (u64)row * e.other_stride + column;
    const bool whole = column + 4 <= columns;
    const bool joins = e.join != STORE;
    const bool four = whole && e.other_stride % 4 == 0;
    if (joins && four) load_four(from, other);
#pragma unroll
    for (int i = 0; i < 4; i++) results[i] = sums[i];
    if (e.bias && whole) {
        load_four(e.bias + column, results);
#pragma unroll
        for (int i = 0; i < 4; i++) results[i] = __fadd_rn(sums[i], results[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (column + i >= columns) break;
        if (e.bias && !whole) results[i] = __fadd_rn(results[i], widen(e.bias[column + i]));
        if (joins && !four) other[i] = from[i];
        results[i] = joined(other[i], activated(results[i], e.activation), e.join);
    }
    if (whole && aligned) {
        store_four(to, results);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (column + i < columns) narrow(results[i], to[i]);
    }
}
