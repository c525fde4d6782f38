// What the kernels share: parameters, vectors of elements, sums. Self-contained, no header of CUDA's.
//
// Memory rules. Stations lie in host memory that every rank's device maps. Every word has one writer, so plain loads and
// stores of system scope do; there is not one atomic on host memory. Whoever waits also watches the abort word.
#pragma once

#include <device.cuh>

constexpr u32 MAX_RANKS = 32;  // one lane of the watching warp for each peer
constexpr u32 MAX_BLOCKS = 128;

// ---- Parameters: the layouts of rccl_transport::cuda::kernels, asserted on both sides --------------------------------

// A line of protocol ll: 8 bytes of data, each half before its own flag: 8 bytes arrive together even over PCIe.
enum LineWord { LINE_DATA0, LINE_FLAG0, LINE_DATA1, LINE_FLAG1 };

struct LlParams {
    const u8* input;
    u8* output;
    u64 count;           // elements
    const u32* abort;    // host word, 0 until the collective shall end
    u32* epochs;         // device words, MAX_BLOCKS of them
    u32 rank, ranks;
    float divisor;       // 1 for a sum, the number of ranks for an average
    u32 lines;           // lines of one half of a station, a power of two
    Quad* stations[MAX_RANKS];   // lines
};

struct StripeParams {
    const u8* input;
    u8* output;
    u64 count;           // elements
    const u32* abort;    // host word, 0 until the collective shall end
    u32* sequences;      // device words, one a stripe
    u32 rank, ranks;
    float divisor;       // 1 for a sum, the number of ranks for an average
    u32 chunk_bytes;     // of this call, a multiple of 16, at most slot_bytes
    u32 slot_bytes;      // of the station, a multiple of 16
    u32 slots;           // of a stripe, a power of two
    u32 lag;             // steps between publishing a chunk and collecting it, 1 to slots / 2 - 1
    u32 reserved;
    u8* stations[MAX_RANKS];        // slots; with the relay, the conduits' slots
    u8* results[MAX_RANKS];         // slots of the shared stations; the relay's only
    u32* words[MAX_RANKS];          // WORDS_STRIDE words a stripe
    u64 parts[MAX_RANKS + 1];       // first element of each rank's part; the relay's only
};

struct ReduceParams {
    u8* output;
    u64 count;           // elements
    u32 sources;
    float divisor;       // 1 for a sum, the number of ranks for an average
    const u8* source[MAX_RANKS];
};

static_assert(sizeof(LlParams) == 56 + 8 * MAX_RANKS, "LlParams");
static_assert(sizeof(StripeParams) == 72 + 8 * (4 * MAX_RANKS + 1), "StripeParams");
static_assert(sizeof(ReduceParams) == 24 + 8 * MAX_RANKS, "ReduceParams");

// ---- Elements: T::PER of them in a 32-bit word ------------------------------------------------------------------------

struct Float {
    typedef u32 Raw;
    static constexpr u32 PER = 1;
    __device__ static __forceinline__ void unpack(u32 word, float* value) { value[0] = float_of(word); }
    __device__ static __forceinline__ u32 pack(const float* value) { return bits_of(value[0]); }
};

struct Half {
    typedef u16 Raw;
    static constexpr u32 PER = 2;
    __device__ static __forceinline__ void unpack(u32 word, float* value) { halves_to_floats(word, value); }
    __device__ static __forceinline__ u32 pack(const float* value) { return floats_to_halves(value); }
};

struct Bfloat16 {
    typedef u16 Raw;
    static constexpr u32 PER = 2;
    __device__ static __forceinline__ void unpack(u32 word, float* value) {
        value[0] = float_of(word << 16);
        value[1] = float_of(word & 0xffff0000u);
    }
    __device__ static __forceinline__ u32 pack(const float* value) { return floats_to_bfloat16s(value); }
};

// WORDS words of elements as they lie in memory. Four are a Quad, which the host's slots are made of.
template <u32 WORDS>
struct VectorOf {
    struct alignas(4 * WORDS) Type {
        u32 word[WORDS];
    };
};
template <>
struct VectorOf<4> {
    typedef Quad Type;
};
template <u32 WORDS>
using Vector = typename VectorOf<WORDS>::Type;

template <u32 WORDS>
__device__ __forceinline__ bool is_aligned(const void* pointer) {
    return ((u64)pointer & (4 * WORDS - 1)) == 0;
}

// The vector at `first` of `count` elements, one by one; zeros past the end. Out of line: rare, and large when unrolled.
template <class T, u32 WORDS>
__device__ __noinline__ Vector<WORDS> load_single_elements(const typename T::Raw* start, u64 first, u64 count) {
    Vector<WORDS> vector;
#pragma unroll
    for (u32 w = 0; w < WORDS; w++) {
        vector.word[w] = 0;
#pragma unroll
        for (u32 e = 0; e < T::PER; e++) {
            const u64 at = first + w * T::PER + e;
            if (at < count) vector.word[w] |= (u32)start[at] << (e * 16);
        }
    }
    return vector;
}

template <class T, u32 WORDS>
__device__ __noinline__ void store_single_elements(typename T::Raw* start, u64 first, u64 count, Vector<WORDS> vector) {
#pragma unroll
    for (u32 w = 0; w < WORDS; w++)
#pragma unroll
        for (u32 e = 0; e < T::PER; e++) {
            const u64 at = first + w * T::PER + e;
            if (at < count) start[at] = (typename T::Raw)(vector.word[w] >> (e * 16));
        }
}

// Vector `index` of `count` elements in device memory, whose start has any alignment of elements; zeros past the end.
template <class T, u32 WORDS>
__device__ __forceinline__ Vector<WORDS> load_elements(const u8* start, u64 index, u64 count, bool aligned) {
    constexpr u32 EACH = WORDS * T::PER;
    if (aligned && (index + 1) * EACH <= count) return reinterpret_cast<const Vector<WORDS>*>(start)[index];
    return load_single_elements<T, WORDS>(reinterpret_cast<const typename T::Raw*>(start), index * EACH, count);
}

// The same for a vector that is known to be aligned and full (FULL), or not.
template <class T, u32 WORDS, bool FULL>
__device__ __forceinline__ Vector<WORDS> load_vector(const u8* start, u64 index, u64 count, bool aligned) {
    if constexpr (FULL) return reinterpret_cast<const Vector<WORDS>*>(start)[index];
    else return load_elements<T, WORDS>(start, index, count, aligned);
}

// The opposite of load_elements: never writes past the end.
template <class T, u32 WORDS>
__device__ __forceinline__ void store_elements(u8* start, u64 index, u64 count, bool aligned, Vector<WORDS> vector) {
    constexpr u32 EACH = WORDS * T::PER;
    if (aligned && (index + 1) * EACH <= count)
        reinterpret_cast<Vector<WORDS>*>(start)[index] = vector;
    else
        store_single_elements<T, WORDS>(reinterpret_cast<typename T::Raw*>(start), index * EACH, count, vector);
}

template <class T, u32 WORDS, bool FULL>
__device__ __forceinline__ void store_vector(u8* start, u64 index, u64 count, bool aligned, Vector<WORDS> vector) {
    if constexpr (FULL) reinterpret_cast<Vector<WORDS>*>(start)[index] = vector;
    else store_elements<T, WORDS>(start, index, count, aligned, vector);
}

// ---- Sums: float accumulators, contributions in rank order, rounded once ----------------------------------------------

template <class T, u32 WORDS>
struct Sum {
    float value[WORDS * T::PER];

    __device__ __forceinline__ void add(Vector<WORDS> vector, bool first) {
#pragma unroll
        for (u32 w = 0; w < WORDS; w++) {
            float part[T::PER];
            T::unpack(vector.word[w], part);
#pragma unroll
            for (u32 e = 0; e < T::PER; e++) {
                float& sum = value[w * T::PER + e];
                sum = first ? part[e] : add_rounded(sum, part[e]);  // not 0 + x: the sign of -0 must live
            }
        }
    }

    __device__ __forceinline__ Vector<WORDS> finish(float divisor) const {
        return divisor == 1.0f ? pack() : mean(*this, divisor).pack();
    }

    __device__ __forceinline__ Vector<WORDS> pack() const {
        Vector<WORDS> vector;
#pragma unroll
        for (u32 w = 0; w < WORDS; w++) vector.word[w] = T::pack(value + w * T::PER);
        return vector;
    }

    // Out of line, since an exact division is long; by value, so that sums stay in registers.
    static __device__ __noinline__ Sum mean(Sum sum, float divisor) {
#pragma unroll
        for (u32 i = 0; i < WORDS * T::PER; i++) sum.value[i] = divide_rounded(sum.value[i], divisor);
        return sum;
    }
};

// One kernel a data type: NAME_float, NAME_half, NAME_bfloat16.
#define FOR_EACH_TYPE(NAME, PARAMS, THREADS)                                                                           \
    KERNEL(THREADS) NAME##_float(PARAMETER PARAMS p) { NAME<Float>(p); }                                               \
    KERNEL(THREADS) NAME##_half(PARAMETER PARAMS p) { NAME<Half>(p); }                                                 \
    KERNEL(THREADS) NAME##_bfloat16(PARAMETER PARAMS p) { NAME<Bfloat16>(p); }
