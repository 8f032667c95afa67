// Products of small matrices on tensor cores (mma.sync m16n8k16, sums in f32), and asynchronous copies to shared
// memory. PTX ISA 8.0, sections 9.7.13 (fragments) and 9.7.8.22 (cp.async).
#pragma once
#include "common.cuh"

DEVICE u32 shared_address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Copies 16 bytes, or zeros without reading if `there` is false.
DEVICE void copy_16(u32 to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups but the newest PENDING.
template <int PENDING> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Four 8 x 8 matrices; lane i has the address of row i % 8 of matrix i / 8.
DEVICE void load_matrices(u32 to[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}
DEVICE void load_matrices_transposed(u32 to[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// sums += a . b: a is 16 x 16, b 16 x 8. A lane has rows lane / 4 (sums 0, 1) and lane / 4 + 8 (sums 2, 3), columns
// 2 (lane % 4) and the next one.
template <class T> DEVICE void multiply_add(float sums[4], const u32 a[4], u32 b0, u32 b1);
#define MULTIPLY_ADD(TYPE, NAME)                                                                                       \
    template <> __device__ __forceinline__ void multiply_add<TYPE>(float sums[4], const u32 a[4], u32 b0, u32 b1) {    \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                                            \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                      \
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                  \
    }
MULTIPLY_ADD(Bf16, "bf16")
MULTIPLY_ADD(F16, "f16")
