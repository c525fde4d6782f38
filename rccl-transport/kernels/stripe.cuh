// How the blocks of protocol `stripe` keep step: one block a stripe, and in every block three roles.
//
// Workers (all warps but the last two) run steps. In step k they publish chunk k of their stripe and collect chunk k - lag,
// so that both directions of the wire are busy and neither runs ahead of the other. The watch warp reads the peers' words,
// one lane a peer, and raises the gate: the number of steps that may start. The post warp waits until every worker warp
// has marked a chunk, fences once for the block, and stores the count in this rank's words. So no worker waits for a fence
// or for a poll that has been answered, and no barrier of the block is in the loop.
//
// Words: for each stripe of a rank, counts of chunks since creation, modulo 2^32, 128 bytes apart, written by that rank's
// post warp only. The count at the start of a launch (the base) is kept in device memory and advanced by the kernel, so a
// replayed graph works. All ranks launch the same stripes, counts and chunk sizes in the same order.
//
// Slots need no credits, because steps bound how far a rank is ahead. Step k starts only after every peer has published
// chunk k - lag; its warps did so only after they had collected chunk k - 2 lag - 1, and the fence before the count orders
// those reads before it. So chunk k may overwrite chunk k - slots if slots > 2 lag. The first `lag` steps start without a
// look at the peers: this rank's last launch ended only when it had seen every peer publish everything, so a peer is still
// reading the last lag + 1 chunks at most, and the first lag of this launch go elsewhere if slots > 2 lag. Lag may change
// between launches, so it is at most slots / 2 - 1 in all of them.
#pragma once
#include "common.cuh"

constexpr u32 STRIPE_SERVICE_WARPS = 2;
constexpr u32 STRIPE_WORKER_WARPS = 16;  // at most
constexpr u32 STRIPE_THREADS = (STRIPE_WORKER_WARPS + STRIPE_SERVICE_WARPS) * WARP;
constexpr u32 STRIPE_UNROLL = 2;         // vectors a worker has in flight
constexpr u32 WORD_STRIDE = 32;          // u32s between words: 128 bytes
constexpr u32 WORDS_STRIDE = 2 * WORD_STRIDE;
constexpr u32 GATE_ABORTED = 0xffffffffu;
constexpr int ABORTED = -0x40000000;     // below any number of steps allowed

template <u32 COUNTS>
struct Steps {
    u32 gate;
    u32 marks[COUNTS][WARP];  // chunks that each worker warp has published
};

template <u32 COUNTS>
__device__ __forceinline__ void start_steps(Steps<COUNTS>& steps, u32 gate) {
    if (threadIdx.x == 0) steps.gate = gate;
    if (threadIdx.x < WARP)
        for (u32 c = 0; c < COUNTS; c++) steps.marks[c][threadIdx.x] = 0;
    sync_block();
}

// Worker: waits until step `step` may start. `open` caches the gate. False if aborted.
template <u32 COUNTS>
__device__ __forceinline__ bool enter_step(const Steps<COUNTS>& steps, u32 step, u32& open) {
    while (open <= step) open = load_acquire_block(&steps.gate);
    return open != GATE_ABORTED;
}

// Worker warp: it has published `count` chunks.
template <u32 COUNTS>
__device__ __forceinline__ void mark(Steps<COUNTS>& steps, u32 which, u32 count) {
    sync_warp();
    if (threadIdx.x % WARP == 0) store_release_block(&steps.marks[which][threadIdx.x / WARP], count);
}

// Watch warp: raises the gate up to `total` steps. Count c of a peer allows step k once it exceeds k - slack[c]; counts do
// not go beyond `chunks`, which allows all steps.
template <u32 COUNTS>
__device__ __forceinline__ void watch(const StripeParams& p, Steps<COUNTS>& steps, u32 base, u32 chunks, u32 total,
                                      const u32 (&slack)[COUNTS]) {
    const u32 lane = threadIdx.x % WARP;
    const bool peer = lane < p.ranks && lane != p.rank;
    const u32* words = p.words[peer ? lane : p.rank] + blockIdx.x * WORDS_STRIDE;
    int gate = (int)p.lag;
    while (gate < (int)total) {
        int allowed = (int)total;
        if (peer) {
            u32 count[COUNTS];
#pragma unroll
            for (u32 c = 0; c < COUNTS; c++) count[c] = load_acquire_sys(words + c * WORD_STRIDE);
#pragma unroll
            for (u32 c = 0; c < COUNTS; c++) {
                const int done = (int)(count[c] - base);
                if (done + (int)slack[c] < allowed && done < (int)chunks) allowed = done + (int)slack[c];
            }
        } else if (lane == p.rank && load_relaxed_sys(p.abort) != 0) {
            allowed = ABORTED;
        }
        allowed = warp_min(allowed);
        if (allowed == ABORTED) {
            if (lane == 0) store_release_block(&steps.gate, GATE_ABORTED);
            return;
        }
        if (allowed > gate) {
            gate = allowed;
            if (lane == 0) store_release_block(&steps.gate, (u32)gate);
        }
    }
}

// Post warp: stores the counts of chunks that all worker warps have published, until all are `chunks`; then advances the
// base.
template <u32 COUNTS>
__device__ __forceinline__ void post(const StripeParams& p, const Steps<COUNTS>& steps, u32 base, u32 chunks,
                                     u32 worker_warps) {
    const u32 lane = threadIdx.x % WARP;
    u32* words = p.words[p.rank] + blockIdx.x * WORDS_STRIDE;
    u32 posted[COUNTS] = {};
    for (bool all = false; !all;) {
        u32 done[COUNTS];
        bool news = false;
        all = true;
#pragma unroll
        for (u32 c = 0; c < COUNTS; c++) {
            done[c] = (u32)warp_min(lane < worker_warps ? (int)load_acquire_block(&steps.marks[c][lane]) : (int)chunks);
            news = news || done[c] != posted[c];
            all = all && done[c] == chunks;
        }
        if (!news) {
            if (warp_min(load_acquire_block(&steps.gate) == GATE_ABORTED ? 0 : 1) == 0) return;
            continue;
        }
        if (lane == 0) {
            fence_sys();  // what the workers have stored, and what they have read, comes before the counts
#pragma unroll
            for (u32 c = 0; c < COUNTS; c++)
                if (done[c] != posted[c]) store_relaxed_sys(words + c * WORD_STRIDE, base + done[c]);
        }
#pragma unroll
        for (u32 c = 0; c < COUNTS; c++) posted[c] = done[c];
    }
    if (lane == 0) p.sequences[blockIdx.x] = base + chunks;
}

// ---- Slots -----------------------------------------------------------------------------------------------------------

// A chunk: vectors of a span, of which the first `full` may be accessed as vectors.
struct Chunk {
    u64 first;   // vector of the span
    u32 vectors;
    u32 full;
};

// Chunk number `chunk` of this block's stripe, of a span of `count` elements: chunks go round the stripes, so that one
// step of all stripes covers one contiguous segment.
template <class T>
__device__ __forceinline__ Chunk chunk_of(const StripeParams& p, u32 chunk, u64 count, bool aligned) {
    const u64 all = (count + 4 * T::PER - 1) / (4 * T::PER), whole = aligned ? count / (4 * T::PER) : 0;
    const u32 each = p.chunk_bytes / 16;
    const u64 first = ((u64)chunk * gridDim.x + blockIdx.x) * each;
    const u64 left = first < all ? all - first : 0, full = first < whole ? whole - first : 0;
    return Chunk{first, left < each ? (u32)left : each, full < each ? (u32)full : each};
}

// Chunks that this block's stripe has of a span of `count` elements.
template <class T>
__device__ __forceinline__ u32 chunks_of(const StripeParams& p, u64 count) {
    const u64 bytes = count * (4 / T::PER);
    const u64 all = (bytes + p.chunk_bytes - 1) / p.chunk_bytes;
    return all > blockIdx.x ? (u32)((all - blockIdx.x - 1) / gridDim.x + 1) : 0;
}

// Runs `work` on a worker's share of a chunk: vectors thread, thread + workers, ... As many at once as are known to be
// full, then one by one. The same thread gets the same vectors when it publishes and when it collects, which makes calls
// in place safe.
template <class Work>
__device__ __forceinline__ void for_vectors(const Chunk& chunk, u32 workers, Work& work) {
    u32 v = threadIdx.x;
#pragma unroll 1
    for (; v + (STRIPE_UNROLL - 1) * workers < chunk.full; v += STRIPE_UNROLL * workers)
        work.template run<STRIPE_UNROLL>(chunk, v, workers);
#pragma unroll 1
    for (; v < chunk.vectors; v += workers) work.template run<1>(chunk, v, workers);
}

// Copies a chunk of local memory into a slot.
template <class T>
struct Publish {
    Quad* slot;
    const u8* from;
    u64 count;
    bool aligned;

    template <u32 U>
    __device__ __forceinline__ void run(const Chunk& chunk, u32 v, u32 workers) {
        Vector<4> vector[U];
#pragma unroll
        for (u32 u = 0; u < U; u++)
            vector[u] = load_vector<T, 4, (U > 1)>(from, chunk.first + v + u * workers, count, aligned);
#pragma unroll
        for (u32 u = 0; u < U; u++) store_weak(slot + v + u * workers, vector[u]);
    }
};

template <class T>
__device__ __forceinline__ void publish(const StripeParams& p, Quad* slot, const u8* from, u64 count, u32 number,
                                        u32 workers) {
    const bool aligned = is_aligned<4>(from);
    Publish<T> work{slot, from, count, aligned};
    for_vectors(chunk_of<T>(p, number, count, aligned), workers, work);
}

// Adds a chunk of all ranks, in rank order: this rank's from `own`, the others' from slots. `Slots` gives a rank's slot.
template <class T, class Slots>
struct Collect {
    Slots slots;
    const u8* own;
    u8* output;
    Quad* result;  // a slot that gets the sum too, or null
    u64 count;
    u32 rank, ranks;
    float divisor;
    bool own_aligned, output_aligned;

    template <u32 U>
    __device__ __forceinline__ void run(const Chunk& chunk, u32 v, u32 workers) {
        Sum<T, 4> sum[U];
#pragma unroll 1
        for (u32 from = 0; from < ranks; from++) {
            Vector<4> vector[U];
            if (from == rank) {
#pragma unroll
                for (u32 u = 0; u < U; u++)
                    vector[u] = load_vector<T, 4, (U > 1)>(own, chunk.first + v + u * workers, count, own_aligned);
            } else {
                const Quad* slot = slots(from);
#pragma unroll
                for (u32 u = 0; u < U; u++) vector[u] = load_volatile(slot + v + u * workers);
            }
#pragma unroll
            for (u32 u = 0; u < U; u++) sum[u].add(vector[u], from == 0);
        }
#pragma unroll
        for (u32 u = 0; u < U; u++) {
            const Vector<4> vector = sum[u].finish(divisor);
            if (result) store_weak(result + v + u * workers, vector);
            store_vector<T, 4, (U > 1)>(output, chunk.first + v + u * workers, count, output_aligned, vector);
        }
    }
};

template <class T, class Slots>
__device__ __forceinline__ void collect(const StripeParams& p, Slots slots, const u8* own, u8* output, Quad* result,
                                        u64 count, u32 number, u32 workers) {
    const bool own_aligned = is_aligned<4>(own), output_aligned = is_aligned<4>(output);
    Collect<T, Slots> work{slots, own, output, result, count, p.rank, p.ranks, p.divisor, own_aligned, output_aligned};
    for_vectors(chunk_of<T>(p, number, count, own_aligned && output_aligned), workers, work);
}
