#include "common.cuh"

// What moves or marks memory: layer-blocks to and from a buffer, poison, the wait for a layer, and the check that it was
// not overtaken.

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

DEVICE u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Runs before the first read of a layer, and waits until the sidecar has published what the step expects of it. One
// thread. The page and the words around it are memory of the host, which others write.
//
// Where the layer must not be computed, `stopped` becomes 1, and the step's later kernels write no KV and wait for
// nothing: the host has ended the step, or a later generation is published, so that the expected one will not come.
struct WaitReady {
    const u64 *ready;     // [count] x stride words
    const u64 *expected;  // [count]; 0 waits for nothing
    const u64 *ended;     // not 0: the host has ended the step
    u64 *overtaken;       // [count]: becomes 1 if a later generation is published
    u64 *times;           // [count + 1]: nanoseconds before the first wait, and after each
    u32 *stopped;         // in memory of the device, 0 when the step begins
    u32 count, stride;
};

KERNEL(32) sluice_wait_ready(ARGUMENT(WaitReady)) {
    if (threadIdx.x != 0) return;
    bool stopped = *p.stopped != 0;
    *(volatile u64 *)p.times = now_ns();
    for (u32 i = 0; i < p.count; i++) {
        const u64 expected = ((const volatile u64 *)p.expected)[i];
        const volatile u64 *ready = p.ready + (u64)i * p.stride;
        while (expected != 0 && !stopped) {
            stopped = *(const volatile u64 *)p.ended != 0;
            const u64 published = *ready;
            // A circle of 64 bits, as a wait of a stream compares.
            if (stopped || (long long)(published - expected) < 0) continue;
            if (published != expected) {
                ((volatile u64 *)p.overtaken)[i] = 1;
                stopped = true;
            }
            break;
        }
        ((volatile u64 *)p.times)[i + 1] = now_ns();
    }
    if (stopped) *p.stopped = 1;
    __threadfence_system();
}

// Runs after the last read of a layer, and compares what the sidecar has published of it with what the step expected.
// Generations only rise, so a later one means that the slot was filled again while it was read: `overtaken` becomes 1,
// and never 0, and so does `stopped`. An expectation of 0 is none. When all is as expected, `passed` becomes the time,
// for the host. A layer of a step that is stopped was not computed, and does not pass.
struct CheckReady {
    const u64 *ready;     // [count] x stride words, in memory that the sidecar writes
    const u64 *expected;  // [count]
    u64 *overtaken;       // [count]
    u64 *passed;          // nanoseconds
    u32 *stopped;         // as for the wait
    u32 count, stride;
};

KERNEL(32) sluice_check_ready(ARGUMENT(CheckReady)) {
    if (*p.stopped != 0) return;
    bool overtaken = false;
    if (threadIdx.x < p.count) {
        const u64 expected = ((const volatile u64 *)p.expected)[threadIdx.x];
        const u64 published = *(const volatile u64 *)(p.ready + (u64)threadIdx.x * p.stride);
        overtaken = expected != 0 && published != expected;
        if (overtaken) ((volatile u64 *)p.overtaken)[threadIdx.x] = 1;
    }
    const bool any = __any_sync(ALL_LANES, overtaken);
    // All lanes have read `stopped`, which the first one writes.
    __syncwarp();
    if (threadIdx.x != 0) return;
    if (any) {
        *p.stopped = 1;
    } else {
        *(volatile u64 *)p.passed = now_ns();
    }
}
