// Middle-sized all-reduce, protocol `stripe`, one hop: every rank publishes all chunks at its shared station and collects
// those of all others, adding in rank order.
//
// Wire: S sent, (n-1)S received a rank. Slots of a station: [stripe][slot], slot_bytes each.
#include "stripe.cuh"

enum OneshotCount { ONESHOT_PUBLISHED, ONESHOT_COUNTS };

struct OneshotSlots {
    const StripeParams& p;
    u32 sequence;

    __device__ __forceinline__ Quad* operator()(u32 rank) const {
        const u64 slot = (u64)blockIdx.x * p.slots + (sequence & (p.slots - 1));
        return reinterpret_cast<Quad*>(p.stations[rank] + slot * p.slot_bytes);
    }
};

template <class T>
__device__ __forceinline__ void rccl_stripe_oneshot(const StripeParams& p) {
    SHARED(Steps<ONESHOT_COUNTS>, steps);
    const u32 chunks = chunks_of<T>(p, p.count), total = chunks + p.lag;
    if (chunks == 0) return;
    const u32 base = p.sequences[blockIdx.x];
    start_steps(steps, p.lag);

    const u32 worker_warps = blockDim.x / WARP - STRIPE_SERVICE_WARPS, warp = threadIdx.x / WARP;
    if (warp == worker_warps) {
        const u32 slack[ONESHOT_COUNTS] = {p.lag};
        watch(p, steps, base, chunks, total, slack);
    } else if (warp > worker_warps) {
        post(p, steps, base, chunks, worker_warps);
    } else {
        const u32 workers = worker_warps * WARP;
#pragma unroll 1
        for (u32 step = 0, open = p.lag; step < total; step++) {
            if (!enter_step(steps, step, open)) return;
            if (step < chunks) {
                publish<T>(p, OneshotSlots{p, base + step}(p.rank), p.input, p.count, step, workers);
                mark(steps, ONESHOT_PUBLISHED, step + 1);
            }
            if (step >= p.lag) {
                const u32 chunk = step - p.lag;
                collect<T>(p, OneshotSlots{p, base + chunk}, p.input, p.output, nullptr, p.count, chunk, workers);
            }
        }
    }
}

FOR_EACH_TYPE(rccl_stripe_oneshot, StripeParams, STRIPE_THREADS)
