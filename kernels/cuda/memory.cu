#include "common.cuh"

// What moves or marks memory: layer-blocks to and from a buffer, poison, and the check that no layer was overtaken.

// Copies whole layer-blocks to or from a buffer that holds them one after another. One block of threads a layer-block.
struct KvCopy {
    Arena arena;
    const u32 *ids;  // [blocks]
    u8 *buffer;      // [blocks][block_bytes]
};

KERNEL(256) sluice_kv_gather(ARGUMENT(KvCopy)) {
    const uint4 *from = (const uint4 *)block_of(p.arena, p.ids[blockIdx.x]);
    uint4 *to = (uint4 *)(p.buffer + (u64)blockIdx.x * p.arena.block_bytes);
    for (u32 at = threadIdx.x; at < p.arena.block_bytes / 16; at += 256) to[at] = from[at];
}

KERNEL(256) sluice_kv_scatter(ARGUMENT(KvCopy)) {
    const uint4 *from = (const uint4 *)(p.buffer + (u64)blockIdx.x * p.arena.block_bytes);
    uint4 *to = (uint4 *)block_of(p.arena, p.ids[blockIdx.x]);
    for (u32 at = threadIdx.x; at < p.arena.block_bytes / 16; at += 256) to[at] = from[at];
}

// Fills memory with a pattern of four bytes.
struct Fill {
    uint4 *to;
    u64 count;  // of 16 bytes
    u32 pattern;
    u32 unused;
};

KERNEL(256) sluice_fill(ARGUMENT(Fill)) {
    const uint4 value = make_uint4(p.pattern, p.pattern, p.pattern, p.pattern);
    for (u64 at = (u64)blockIdx.x * 256 + threadIdx.x; at < p.count; at += (u64)gridDim.x * 256) p.to[at] = value;
}

// Runs after the last read of a layer, and compares what the sidecar has published of it with what the step expected.
// Generations only rise, so a later one means that the slot was filled again while it was read: `overtaken` becomes 1,
// and never 0. A wait of a stream cannot find that: greater-or-equal passes and equal hangs. An expectation of 0 is
// none.
struct CheckReady {
    const u64 *ready;     // [count] x stride words, in memory that the sidecar writes
    const u64 *expected;  // [count]
    u32 *overtaken;
    u32 count, stride;
};

KERNEL(32) sluice_check_ready(ARGUMENT(CheckReady)) {
    if (threadIdx.x >= p.count) return;
    const u64 expected = p.expected[threadIdx.x];
    const u64 published = *(const volatile u64 *)(p.ready + (u64)threadIdx.x * p.stride);
    if (expected != 0 && published != expected) *(volatile u32 *)p.overtaken = 1;
}
