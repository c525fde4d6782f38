// Adds buffers in device memory in the order given: what remains of protocol `bulk` after the copy engines. The sources may
// include the output, for every vector is read before it is written by the same thread.
#include "common.cuh"

constexpr u32 REDUCE_THREADS = 512;
constexpr u32 REDUCE_UNROLL = 2;

// U vectors, `stride` apart, of all sources. With U > 1 they are known to be full.
template <class T, u32 U>
__device__ __forceinline__ void reduce_vectors(const ReduceParams& p, u64 at, u64 stride, bool aligned) {
    Sum<T, 4> sum[U];
#pragma unroll 1
    for (u32 s = 0; s < p.sources; s++) {
        Vector<4> vector[U];
#pragma unroll
        for (u32 u = 0; u < U; u++)
            vector[u] = load_vector<T, 4, (U > 1)>(p.source[s], at + u * stride, p.count, aligned);
#pragma unroll
        for (u32 u = 0; u < U; u++) sum[u].add(vector[u], s == 0);
    }
#pragma unroll
    for (u32 u = 0; u < U; u++)
        store_vector<T, 4, (U > 1)>(p.output, at + u * stride, p.count, aligned, sum[u].finish(p.divisor));
}

template <class T>
__device__ __forceinline__ void rccl_reduce_local(const ReduceParams& p) {
    constexpr u32 EACH = 4 * T::PER;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    bool aligned = is_aligned<4>(p.output);
#pragma unroll 1
    for (u32 s = 0; s < p.sources; s++) aligned = aligned && is_aligned<4>(p.source[s]);
    const u64 vectors = (p.count + EACH - 1) / EACH, full = aligned ? p.count / EACH : 0;

    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; at + (REDUCE_UNROLL - 1) * stride < full; at += REDUCE_UNROLL * stride)
        reduce_vectors<T, REDUCE_UNROLL>(p, at, stride, aligned);
#pragma unroll 1
    for (; at < vectors; at += stride) reduce_vectors<T, 1>(p, at, stride, aligned);
}

FOR_EACH_TYPE(rccl_reduce_local, ReduceParams, REDUCE_THREADS)
