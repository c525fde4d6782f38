// The primitives of kernels/device.cuh on a CPU: every CUDA thread is a fiber, all of them in one thread, so that a seed
// decides who runs when. Fibers change at every access to a word and, now and then, at vectors in host memory.
//
// What this shows: that the kernels' arithmetic, bounds and waits are right under many interleavings. What it cannot: that
// fences suffice on real memory.
#pragma once
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define KERNEL(THREADS) extern "C" void
#define PARAMETER const
#define SHARED(TYPE, NAME) TYPE& NAME = *static_cast<TYPE*>(current->block->shared(sizeof(TYPE)))

constexpr u32 WARP = 32;

struct alignas(16) Quad {
    u32 word[4];
};

struct Index {
    u32 x;
};

// A set of fibers that meet: all that have not ended.
struct Meeting {
    u32 alive = 0, arrived = 0, generation = 0;
    int value[2][WARP];
    void arrive();
    void leave();
};

struct Block {
    Index number, size, grid;
    Meeting all;
    std::vector<Meeting> warps;
    std::vector<u64> memory;
    void* shared(size_t bytes) {
        if (memory.empty()) memory.assign(bytes / 8 + 1, 0xdeadbeefdeadbeefull);
        return memory.data();
    }
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    std::shared_ptr<Block> block;
    Index thread;
    std::function<void()> body;
    bool ended = false;
};

extern Fiber* current;
void change_fiber();
u32 next_random();

#define threadIdx (current->thread)
#define blockIdx (current->block->number)
#define blockDim (current->block->size)
#define gridDim (current->block->grid)

inline Meeting& warp_of(Fiber* fiber) { return fiber->block->warps[fiber->thread.x / WARP]; }

// Compilers must not keep memory in registers across a change of fibers.
inline void change() {
    asm volatile("" ::: "memory");
    change_fiber();
    asm volatile("" ::: "memory");
}

inline u32 load_relaxed_sys(const u32* word) { change(); return *(volatile const u32*)word; }
inline u32 load_acquire_sys(const u32* word) { return load_relaxed_sys(word); }
inline void store_relaxed_sys(u32* word, u32 value) { change(); *(volatile u32*)word = value; }
inline void fence_sys() { change(); }
inline u32 load_acquire_block(const u32* word) { return load_relaxed_sys(word); }
inline void store_release_block(u32* word, u32 value) { store_relaxed_sys(word, value); }

inline Quad load_volatile(const Quad* from) {
    if (next_random() % 4 == 0) change();
    return *from;
}
// Only 8 bytes arrive together: sometimes the halves come apart.
inline void store_volatile(Quad* to, Quad v) {
    if (next_random() % 4 == 0) change();
    const u32 first = next_random() % 2;
    memcpy((u64*)to + first, (const u64*)&v + first, 8);
    if (next_random() % 4 == 0) change();
    memcpy((u64*)to + !first, (const u64*)&v + !first, 8);
}
inline void store_weak(Quad* to, Quad v) {
    if (next_random() % 4 == 0) change();
    *to = v;
}

inline void sync_block() { current->block->all.arrive(); }
inline void sync_warp() { warp_of(current).arrive(); }
inline int warp_min(int value) {
    Meeting& warp = warp_of(current);
    const u32 side = warp.generation % 2;
    if (warp.alive != WARP) { fprintf(stderr, "warp_min with %u lanes\n", warp.alive); abort(); }
    warp.value[side][current->thread.x % WARP] = value;
    warp.arrive();
    int least = value;
    for (u32 lane = 0; lane < WARP; lane++) least = warp.value[side][lane] < least ? warp.value[side][lane] : least;
    return least;
}

inline u32 bits_of(float value) { u32 bits; memcpy(&bits, &value, 4); return bits; }
inline float float_of(u32 bits) { float value; memcpy(&value, &bits, 4); return value; }
inline float add_rounded(float a, float b) { return a + b; }
inline float divide_rounded(float a, float b) { return a / b; }

inline void halves_to_floats(u32 word, float* value) {
    _Float16 half[2];
    memcpy(half, &word, 4);
    value[0] = half[0], value[1] = half[1];
}
inline u32 floats_to_halves(const float* value) {
    const _Float16 half[2] = {(_Float16)value[0], (_Float16)value[1]};
    u32 word;
    memcpy(&word, half, 4);
    return word;
}
inline u32 floats_to_bfloat16s(const float* value) {
    u32 word = 0;
    for (u32 i = 0; i < 2; i++) {
        const u32 bits = bits_of(value[i]);
        word |= (value[i] != value[i] ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16) << (16 * i);
    }
    return word;
}
