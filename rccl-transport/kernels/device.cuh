// The device's primitives, and every line of PTX. Tests replace this file alone and run the kernels on a CPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL(THREADS) extern "C" __global__ void __launch_bounds__(THREADS)
#define PARAMETER const __grid_constant__
#define SHARED(TYPE, NAME) __shared__ TYPE NAME

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

struct alignas(16) Quad {
    u32 word[4];
};

// ---- Words and vectors in host memory ---------------------------------------------------------------------------------

__device__ __forceinline__ u32 load_acquire_sys(const u32* word) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ u32 load_relaxed_sys(const u32* word) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ void store_relaxed_sys(u32* word, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Past all caches.
__device__ __forceinline__ Quad load_volatile(const Quad* from) {
    Quad v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from) : "memory");
    return v;
}

// At once, and each 8 bytes together.
__device__ __forceinline__ void store_volatile(Quad* to, Quad v) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]),
                 "r"(v.word[2]), "r"(v.word[3]) : "memory");
}

// In any order, until a fence.
__device__ __forceinline__ void store_weak(Quad* to, Quad v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                 "r"(v.word[3]) : "memory");
}

// ---- Words in shared memory, and the threads of a block ---------------------------------------------------------------

__device__ __forceinline__ u32 load_acquire_block(const u32* word) {
    u32 value;
    const u32 address = (u32)__cvta_generic_to_shared(word);
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_release_block(u32* word, u32 value) {
    const u32 address = (u32)__cvta_generic_to_shared(word);
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void sync_block() { __syncthreads(); }

// All lanes that have not ended meet, and what one did before is seen by all after.
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

// The smallest value of the warp's 32 lanes, to all of them; they meet as in sync_warp.
__device__ __forceinline__ int warp_min(int value) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) {
        const int other = __shfl_xor_sync(ALL_LANES, value, offset);
        value = other < value ? other : value;
    }
    __syncwarp();
    return value;
}

// ---- Arithmetic -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float float_of(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float divide_rounded(float a, float b) { return __fdiv_rn(a, b); }

__device__ __forceinline__ void halves_to_floats(u32 word, float* value) {
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(value[0]), "=f"(value[1]) : "r"(word));
}

__device__ __forceinline__ u32 floats_to_halves(const float* value) {
    u32 word;
    asm("{ .reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b}; }"
        : "=r"(word) : "f"(value[0]), "f"(value[1]));
    return word;
}

// To nearest even; NaN becomes the NaN that newer devices' instruction gives, so that mixed devices agree.
__device__ __forceinline__ u32 floats_to_bfloat16s(const float* value) {
#if __CUDA_ARCH__ >= 800
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(value[0]), "f"(value[1]));
    return word;
#else
    u32 word = 0;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 bits = bits_of(value[i]);
        word |= (value[i] != value[i] ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16) << (16 * i);
    }
    return word;
#endif
}
