// Middle-sized all-reduce, protocol `stripe`, two hops: the relay. Rank q owns part q. In step k every rank publishes chunk
// k of its contribution to every other part at the conduit to the part's owner; as owner it collects chunk k - lag of the
// contributions, adds them to its own in rank order, and publishes the result once at its shared station; and it collects
// chunk k - 2 lag of the other parts' results.
//
// No credits, as for the one-shot. A conduit's slot: a peer that has contributed chunk k - lag has reduced k - 2 lag - 1. A
// result's slot, written in step k for chunk k - lag: a peer that has reduced chunk k - 2 lag has gathered k - 3 lag - 1;
// in the first steps, where that says nothing, a peer that has contributed a chunk of this launch has ended its last one.
//
// Wire: S sent, 2S(n-1)/n received a rank. Slots: conduits [stripe][slot][reader], shared station [stripe][slot].
#include "stripe.cuh"

enum RelayCount { RELAY_CONTRIBUTED, RELAY_REDUCED, RELAY_COUNTS };

struct ConduitSlots {
    const StripeParams& p;
    u32 reader, sequence;

    __device__ __forceinline__ Quad* operator()(u32 publisher) const {
        const u64 slot = ((u64)blockIdx.x * p.slots + (sequence & (p.slots - 1))) * p.ranks + reader;
        return reinterpret_cast<Quad*>(p.stations[publisher] + slot * p.slot_bytes);
    }
};

__device__ __forceinline__ Quad* result_slot(const StripeParams& p, u32 publisher, u32 sequence) {
    const u64 slot = (u64)blockIdx.x * p.slots + (sequence & (p.slots - 1));
    return reinterpret_cast<Quad*>(p.results[publisher] + slot * p.slot_bytes);
}

// One part of the caller's buffers.
template <class T>
struct Part {
    const u8* input;
    u8* output;
    u64 count;

    __device__ __forceinline__ Part(const StripeParams& p, u32 owner)
        : input(p.input + p.parts[owner] * (4 / T::PER)),
          output(p.output + p.parts[owner] * (4 / T::PER)),
          count(p.parts[owner + 1] - p.parts[owner]) {}
};

// The rank `hop` after this one: every rank begins with another owner.
__device__ __forceinline__ u32 owner_at(const StripeParams& p, u32 hop) {
    return p.rank + hop < p.ranks ? p.rank + hop : p.rank + hop - p.ranks;
}

template <class T>
__device__ __forceinline__ void relay_contribute(const StripeParams& p, u32 base, u32 number, u32 workers) {
#pragma unroll 1
    for (u32 hop = 1; hop < p.ranks; hop++) {
        const u32 owner = owner_at(p, hop);
        const Part<T> part(p, owner);
        publish<T>(p, ConduitSlots{p, owner, base + number}(p.rank), part.input, part.count, number, workers);
    }
}

template <class T>
__device__ __forceinline__ void relay_reduce(const StripeParams& p, u32 base, u32 number, u32 workers) {
    const Part<T> part(p, p.rank);
    collect<T>(p, ConduitSlots{p, p.rank, base + number}, part.input, part.output,
               result_slot(p, p.rank, base + number), part.count, number, workers);
}

// Copies a chunk of a result from a slot.
template <class T>
struct Gather {
    const Quad* slot;
    u8* output;
    u64 count;
    bool aligned;

    template <u32 U>
    __device__ __forceinline__ void run(const Chunk& chunk, u32 v, u32 workers) {
        Vector<4> vector[U];
#pragma unroll
        for (u32 u = 0; u < U; u++) vector[u] = load_volatile(slot + v + u * workers);
#pragma unroll
        for (u32 u = 0; u < U; u++)
            store_vector<T, 4, (U > 1)>(output, chunk.first + v + u * workers, count, aligned, vector[u]);
    }
};

template <class T>
__device__ __forceinline__ void relay_gather(const StripeParams& p, u32 base, u32 number, u32 workers) {
#pragma unroll 1
    for (u32 hop = 1; hop < p.ranks; hop++) {
        const u32 owner = owner_at(p, hop);
        const Part<T> part(p, owner);
        const bool aligned = is_aligned<4>(part.output);
        Gather<T> work{result_slot(p, owner, base + number), part.output, part.count, aligned};
        for_vectors(chunk_of<T>(p, number, part.count, aligned), workers, work);
    }
}

template <class T>
__device__ __forceinline__ void rccl_stripe_relay(const StripeParams& p) {
    SHARED(Steps<RELAY_COUNTS>, steps);
    // The first part is the longest; the chunks that shorter ones lack are empty, but counted.
    const u32 chunks = chunks_of<T>(p, p.parts[1] - p.parts[0]), total = chunks + 2 * p.lag;
    if (chunks == 0) return;
    const u32 base = p.sequences[blockIdx.x];
    start_steps(steps, p.lag);

    const u32 worker_warps = blockDim.x / WARP - STRIPE_SERVICE_WARPS, warp = threadIdx.x / WARP;
    if (warp == worker_warps) {
        const u32 slack[RELAY_COUNTS] = {p.lag, 2 * p.lag};
        watch(p, steps, base, chunks, total, slack);
    } else if (warp > worker_warps) {
        post(p, steps, base, chunks, worker_warps);
    } else {
        const u32 workers = worker_warps * WARP;
#pragma unroll 1
        for (u32 step = 0, open = p.lag; step < total; step++) {
            if (!enter_step(steps, step, open)) return;
            if (step < chunks) {
                relay_contribute<T>(p, base, step, workers);
                mark(steps, RELAY_CONTRIBUTED, step + 1);
            }
            if (step >= p.lag && step - p.lag < chunks) {
                relay_reduce<T>(p, base, step - p.lag, workers);
                mark(steps, RELAY_REDUCED, step - p.lag + 1);
            }
            if (step >= 2 * p.lag) relay_gather<T>(p, base, step - 2 * p.lag, workers);
        }
    }
}

FOR_EACH_TYPE(rccl_stripe_relay, StripeParams, STRIPE_THREADS)
