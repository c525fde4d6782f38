// Small all-reduce, protocol `ll`: every rank stores its data with flags beside it into its station, and reads all others'.
//
// Wire: 16 bytes for every 8 of data, so 2S sent and 2S(n-1) received a rank; one hop, no fence: the flag is in the same
// 8-byte word as the data it vouches for. The flag is the epoch of the call; it lives in device memory and the kernel
// itself advances it, so a replayed graph works.
//
// Stations have two halves, used in turn. Writing half e & 1 in epoch e is safe: this rank's kernel e - 1 has ended, so it
// has read at least one line of epoch e - 1 from every peer, so every peer's kernel e - 2 had ended before that. This needs
// every rank to run every epoch with the same count of at least 1.
//
// Flags repeat after 2^32 epochs. A line that a call does not use could keep its flag that long, so every call also clears
// one unused line in turn: no flag gets older than 2 * lines epochs. Epoch 0 means empty; the parity goes on at the wrap.
#include "common.cuh"

constexpr u32 LL_THREADS = 512;
constexpr u32 LL_PEERS = 4;              // lines a thread has in flight
constexpr u32 LL_SPINS_PER_ABORT = 32;   // polls of about a microsecond between looks at the abort word

__device__ __forceinline__ bool has_flag(const Quad& line, u32 flag) {
    return line.word[LINE_FLAG0] == flag && line.word[LINE_FLAG1] == flag;
}

// Adds line `at` of all ranks, in rank order, LL_PEERS ranks in flight at a time. False if aborted.
template <class T>
__device__ __forceinline__ bool collect_line(const LlParams& p, u64 at, u32 epoch, Vector<2> own, Sum<T, 2>& sum) {
#pragma unroll 1
    for (u32 base = 0; base < p.ranks; base += LL_PEERS) {
        Quad line[LL_PEERS];
        u32 waiting = 0;
#pragma unroll
        for (u32 j = 0; j < LL_PEERS; j++)
            if (base + j < p.ranks && base + j != p.rank) waiting |= 1u << j;
        for (u32 spins = 1; waiting != 0; spins++) {
#pragma unroll
            for (u32 j = 0; j < LL_PEERS; j++)
                if (waiting >> j & 1) line[j] = load_volatile(p.stations[base + j] + at);
#pragma unroll
            for (u32 j = 0; j < LL_PEERS; j++)
                if ((waiting >> j & 1) && has_flag(line[j], epoch)) waiting &= ~(1u << j);
            if (waiting != 0 && spins % LL_SPINS_PER_ABORT == 0 && load_relaxed_sys(p.abort) != 0) return false;
        }
#pragma unroll
        for (u32 j = 0; j < LL_PEERS; j++)
            if (base + j < p.ranks) {
                const bool mine = base + j == p.rank;
                Vector<2> vector;
                vector.word[0] = mine ? own.word[0] : line[j].word[LINE_DATA0];
                vector.word[1] = mine ? own.word[1] : line[j].word[LINE_DATA1];
                sum.add(vector, base + j == 0);
            }
    }
    return true;
}

template <class T>
__device__ __forceinline__ void rccl_ll_oneshot(const LlParams& p) {
    constexpr u32 EACH = 2 * T::PER;
    const u64 lines = (p.count + EACH - 1) / EACH;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    const bool input_aligned = is_aligned<2>(p.input), output_aligned = is_aligned<2>(p.output);

    u32 epoch = p.epochs[blockIdx.x] + 1;
    if (epoch == 0) epoch = 2;
    const u64 half = (u64)(epoch & 1) * p.lines;

    Quad* mine = p.stations[p.rank] + half;
#pragma unroll 1
    for (u64 k = first; k < lines; k += stride) {
        const Vector<2> own = load_elements<T, 2>(p.input, k, p.count, input_aligned);
        store_volatile(mine + k, Quad{{own.word[0], epoch, own.word[1], epoch}});
    }
    const u64 stale = epoch >> 1 & (p.lines - 1);
    if (first == 0 && stale >= lines) store_volatile(mine + stale, Quad{{0, 0, 0, 0}});

#pragma unroll 1
    for (u64 k = first; k < lines; k += stride) {
        const Vector<2> own = load_elements<T, 2>(p.input, k, p.count, input_aligned);
        Sum<T, 2> sum;
        if (!collect_line<T>(p, half + k, epoch, own, sum)) break;
        store_elements<T, 2>(p.output, k, p.count, output_aligned, sum.finish(p.divisor));
    }

    // Each block advances its own word and those of the blocks that this launch does not have: no word has two users.
    sync_block();
#pragma unroll 1
    for (u32 b = blockIdx.x + threadIdx.x * gridDim.x; b < MAX_BLOCKS; b += blockDim.x * gridDim.x) p.epochs[b] = epoch;
}

FOR_EACH_TYPE(rccl_ll_oneshot, LlParams, LL_THREADS)
