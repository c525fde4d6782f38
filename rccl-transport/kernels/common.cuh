// What the kernels share: parameters, words in host memory, vectors of elements. Self-contained, no header of CUDA's.
//
// Memory rules. Stations lie in host memory that every rank's device maps. Every word has one writer, so plain loads and
// stores of system scope do; there is not one atomic on host memory. Whoever waits also watches the abort word.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 MAX_RANKS = 32;  // one lane of the watching warp for each peer
constexpr u32 MAX_BLOCKS = 128;
constexpr u32 WARP = 32;

// ---- Parameters: the layouts of rccl_transport::cuda::kernels, asserted on both sides --------------------------------

struct alignas(16) Line {  // 8 bytes of data, each half beside its own flag: 8 bytes arrive together even over PCIe
    u32 data0, flag0, data1, flag1;
};

struct LlParams {
    const u8* input;
    u8* output;
    u64 count;           // elements
    const u32* abort;    // host word, 0 until the collective shall end
    u32* epochs;         // device words, MAX_BLOCKS of them
    u32 rank, ranks;
    float divisor;       // 1 for a sum, the number of ranks for an average
    u32 lines;           // lines of one half of a station, a power of two
    Line* stations[MAX_RANKS];
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

// ---- Words -----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 load_acquire_sys(const u32* word) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ void store_relaxed_sys(u32* word, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ bool aborted(const u32* abort) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(abort) : "memory");
    return value != 0;
}

__device__ __forceinline__ u32 shared_address(const u32* word) { return (u32)__cvta_generic_to_shared(word); }

__device__ __forceinline__ u32 load_acquire_block(const u32* word) {
    u32 value;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(word)) : "memory");
    return value;
}

__device__ __forceinline__ void store_release_block(u32* word, u32 value) {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(word)), "r"(value) : "memory");
}

// ---- Elements: T::PER of them in a 32-bit word ------------------------------------------------------------------------

struct Float {
    typedef u32 Raw;
    static constexpr u32 PER = 1;
    __device__ static __forceinline__ void unpack(u32 word, float* value) { value[0] = __uint_as_float(word); }
    __device__ static __forceinline__ u32 pack(const float* value) { return __float_as_uint(value[0]); }
};

struct Half {
    typedef u16 Raw;
    static constexpr u32 PER = 2;
    __device__ static __forceinline__ void unpack(u32 word, float* value) {
        asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
            : "=f"(value[0]), "=f"(value[1]) : "r"(word));
    }
    __device__ static __forceinline__ u32 pack(const float* value) {
        u32 word;
        asm("{ .reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b}; }"
            : "=r"(word) : "f"(value[0]), "f"(value[1]));
        return word;
    }
};

struct Bfloat16 {
    typedef u16 Raw;
    static constexpr u32 PER = 2;
    __device__ static __forceinline__ void unpack(u32 word, float* value) {
        value[0] = __uint_as_float(word << 16);
        value[1] = __uint_as_float(word & 0xffff0000u);
    }
    __device__ static __forceinline__ u32 pack(const float* value) {
#if __CUDA_ARCH__ >= 800
        u32 word;
        asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(value[0]), "f"(value[1]));
        return word;
#else
        return round(value[0]) | round(value[1]) << 16;
#endif
    }
    // To nearest even; NaN becomes the NaN that newer devices' instruction gives, so that mixed devices agree.
    __device__ static __forceinline__ u32 round(float value) {
        const u32 bits = __float_as_uint(value);
        return value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }
};

// WORDS words of elements as they lie in memory.
template <u32 WORDS>
struct alignas(4 * WORDS) Vector {
    u32 word[WORDS];
};

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
                sum = first ? part[e] : __fadd_rn(sum, part[e]);  // not 0 + x: the sign of -0 must live
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
        for (u32 i = 0; i < WORDS * T::PER; i++) sum.value[i] = __fdiv_rn(sum.value[i], divisor);
        return sum;
    }
};

// One kernel a data type: NAME_float, NAME_half, NAME_bfloat16.
#define FOR_EACH_TYPE(NAME, PARAMS, THREADS)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME##_float(const __grid_constant__ PARAMS p) {            \
        NAME<Float>(p);                                                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME##_half(const __grid_constant__ PARAMS p) {             \
        NAME<Half>(p);                                                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME##_bfloat16(const __grid_constant__ PARAMS p) {         \
        NAME<Bfloat16>(p);                                                                                             \
    }
