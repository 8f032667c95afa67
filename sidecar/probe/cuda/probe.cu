// Kernels of the GPU probe. `cargo xtask kernels` compiles this file to probe.ptx with NVRTC; no header is needed.
//
// Every argument is 64 bits wide (an address or a number), so that a launch is a list of words. `__globaltimer` counts
// nanoseconds and is the clock of every limit: no kernel here can run for ever.

typedef unsigned long long u64;

static __device__ __forceinline__ u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __device__ __forceinline__ u64 first_index() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ u64 all_threads() {
    return (u64)gridDim.x * blockDim.x;
}

// Keeps its threads busy for `ns` nanoseconds.
extern "C" __global__ void sluice_spin(u64 ns) {
    u64 start = now_ns();
    while (now_ns() - start < ns) {
    }
}

// Reads `count` elements of 16 bytes once, in order: bound by device memory. One float of each thread goes to `sums`,
// which has room for every thread, so that no read can be left out.
extern "C" __global__ void sluice_read(const float4 *from, u64 count, float *sums) {
    float sum = 0.0f;
    for (u64 at = first_index(); at < count; at += all_threads()) {
        float4 four = from[at];
        sum += four.x + four.y + four.z + four.w;
    }
    sums[first_index()] = sum;
}

// c = a . b for square row-major f32 matrices; `n` is a multiple of 64. One block of 16 x 16 threads makes a tile of
// 64 x 64, each thread 4 x 4 of it: bound by arithmetic.
extern "C" __global__ void sluice_product(const float *a, const float *b, float *c, u64 n) {
    __shared__ float left[16][64], right[16][64];
    u64 row = (u64)blockIdx.y * 64, column = (u64)blockIdx.x * 64;
    unsigned thread = threadIdx.y * 16 + threadIdx.x;
    float sum[4][4] = {};
    for (u64 k = 0; k < n; k += 16) {
        for (unsigned at = thread; at < 16 * 64; at += 256) {
            left[at % 16][at / 16] = a[(row + at / 16) * n + k + at % 16];
            right[at / 64][at % 64] = b[(k + at / 64) * n + column + at % 64];
        }
        __syncthreads();
        for (unsigned inner = 0; inner < 16; inner++)
            for (unsigned i = 0; i < 4; i++)
                for (unsigned j = 0; j < 4; j++)
                    sum[i][j] += left[inner][threadIdx.y * 4 + i] * right[inner][threadIdx.x * 4 + j];
        __syncthreads();
    }
    for (unsigned i = 0; i < 4; i++)
        for (unsigned j = 0; j < 4; j++)
            c[(row + threadIdx.y * 4 + i) * n + column + threadIdx.x * 4 + j] = sum[i][j];
}

// words[i] = value + i.
extern "C" __global__ void sluice_write(u64 *words, u64 count, u64 value) {
    for (u64 at = first_index(); at < count; at += all_threads())
        words[at] = value + at;
    __threadfence_system();
}

// Adds to `wrong` the number of words that are not what sluice_write wrote.
extern "C" __global__ void sluice_compare(const u64 *words, u64 count, u64 value, u64 *wrong) {
    u64 bad = 0;
    for (u64 at = first_index(); at < count; at += all_threads())
        bad += words[at] != value + at;
    if (bad)
        atomicAdd(wrong, bad);
}

// Waits until the word `flag`, which another process may write, has reached the device's own `counter`; then adds
// `bump` to the counter. One thread. After `limit_ns` it gives up and adds one to `gave_up` instead.
extern "C" __global__ void sluice_await(volatile u64 *flag, u64 *counter, u64 bump, u64 limit_ns, u64 *gave_up) {
    u64 start = now_ns(), wanted = *counter;
    while (*flag < wanted) {
        if (now_ns() - start > limit_ns) {
            atomicAdd(gave_up, 1ull);
            return;
        }
    }
    __threadfence_system();
    *counter = wanted + bump;
}
