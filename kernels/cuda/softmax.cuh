// What the kinds of attention share: scores, and how two parts of a softmax become one.
#pragma once
#include "common.cuh"

// A score in units of log2, from a dot product. With a soft cap (Gemma 2) it is cap * tanh(scale * dot).
DEVICE float capped(float dot, float scale, float cap) {
    const float score = __fmul_rn(dot, scale);
    if (cap == 0.0f) return score;
    // tanh(x) = 1 - 2 / (e^(2 x) + 1)
    const float power = power_of_two(__fmul_rn(score, 2.0f * LOG2_E));
    return __fmul_rn(cap, fmaf(-2.0f, __frcp_rn(__fadd_rn(power, 1.0f)), 1.0f));
}

struct Merge {
    float largest, before, now;

    // Of the parts' largest scores. A part that saw nothing has minus infinity and changes nothing.
    DEVICE_METHOD Merge(float total, float part) {
        largest = fmaxf(total, part);
        const float base = largest == NEGATIVE_INFINITY ? 0.0f : largest;
        before = power_of_two(__fsub_rn(total, base));
        now = power_of_two(__fsub_rn(part, base));
    }

    // Of their sums.
    DEVICE_METHOD float apply(float total, float part) const { return fmaf(part, now, __fmul_rn(total, before)); }
};
