// Runs the kernels' own sources on fibers: ranks as grids that run side by side, calls one after the other on each rank.
// Usage: emulated SEEDS [FIRST]. Prints the failing seed.
#include "device.cuh"

#include "kernels.cu"

// ---- Fibers -----------------------------------------------------------------------------------------------------------

Fiber* current;
static ucontext_t scheduler;
static u64 random_state;

u32 next_random() {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (u32)(random_state >> 32);
}

void change_fiber() { swapcontext(&current->context, &scheduler); }

void Meeting::arrive() {
    const u32 mine = generation;
    if (++arrived == alive) arrived = 0, generation++;
    while (generation == mine) change_fiber();
}

void Meeting::leave() {
    if (--alive == arrived && arrived > 0) arrived = 0, generation++;
}

static void run_fiber() {
    current->body();
    warp_of(current).leave();
    current->block->all.leave();
    current->ended = true;
    change_fiber();
}

typedef std::vector<std::unique_ptr<Fiber>> Grid;

static Grid start(u32 blocks, u32 threads, std::function<void()> body) {
    Grid grid;
    for (u32 b = 0; b < blocks; b++) {
        auto block = std::make_shared<Block>();
        block->number.x = b, block->size.x = threads, block->grid.x = blocks;
        block->all.alive = threads;
        block->warps.resize(threads / WARP);
        for (auto& warp : block->warps) warp.alive = WARP;
        for (u32 t = 0; t < threads; t++) {
            auto fiber = std::make_unique<Fiber>();
            fiber->stack.resize(16 << 10);
            fiber->block = block, fiber->thread.x = t, fiber->body = body;
            getcontext(&fiber->context);
            fiber->context.uc_stack.ss_sp = fiber->stack.data(), fiber->context.uc_stack.ss_size = fiber->stack.size();
            makecontext(&fiber->context, run_fiber, 0);
            grid.push_back(std::move(fiber));
        }
    }
    return grid;
}

typedef std::function<Grid()> Launch;

// Runs each rank's launches in order, all ranks side by side. `after` sees every change; false ends the run. Returns
// whether everything ended within the bound.
static bool run(std::vector<std::vector<Launch>> queues, std::function<void(u64)> after = nullptr) {
    std::vector<Grid> grids(queues.size());
    std::vector<size_t> next(queues.size(), 0);
    for (u64 step = 0; step < 30000000; step++) {
        bool busy = false;
        for (size_t r = 0; r < queues.size(); r++) {
            if (grids[r].empty() && next[r] < queues[r].size() && next_random() % 8 == 0) grids[r] = queues[r][next[r]++]();
            busy = busy || !grids[r].empty() || next[r] < queues[r].size();
        }
        if (!busy) return true;
        // A few steps of one rank: some ranks run far ahead now and then.
        Grid& grid = grids[next_random() % grids.size()];
        for (u32 burst = next_random() % 64; burst > 0 && !grid.empty(); burst--, step++) {
            const size_t at = next_random() % grid.size();
            current = grid[at].get();
            swapcontext(&scheduler, &current->context);
            if (current->ended) std::swap(grid[at], grid.back()), grid.pop_back();
        }
        if (after) after(step);
    }
    return false;
}

// ---- Calls ------------------------------------------------------------------------------------------------------------

enum Type { FLOAT, HALF, BFLOAT16 };
static const char* const TYPE_NAMES[] = {"float", "half", "bfloat16"};
enum Protocol { LL, STRIPE, RELAY };
static const char* const PROTOCOL_NAMES[] = {"ll", "stripe", "relay"};

static u32 size_of(Type type) { return type == FLOAT ? 4 : 2; }

static float widened(Type type, u32 bits) {
    float pair[2];
    if (type == FLOAT) return float_of(bits);
    if (type == HALF) Half::unpack(bits, pair);
    else Bfloat16::unpack(bits, pair);
    return pair[0];
}

static u32 narrowed(Type type, float value) {
    const float pair[2] = {value, 0};
    return type == FLOAT ? bits_of(value) : (type == HALF ? Half::pack(pair) : Bfloat16::pack(pair)) & 0xffff;
}

// A call's buffers on one rank, with bytes around them that nobody may change.
struct Buffers {
    std::vector<u8> memory;
    size_t input, output;

    Buffers(u64 bytes, u32 input_shift, u32 output_shift, bool in_place)
        : memory(2 * bytes + 256, 0xa5), input(64 + input_shift), output(in_place ? input : 160 + bytes + output_shift) {
        // 16-byte alignment is that of the heap; shifts then decide.
    }
};

struct Call {
    Protocol protocol;
    Type type;
    u64 count;
    bool average, in_place;
    u32 input_shift, output_shift, chunk_bytes, lag;
};

constexpr u32 STRIPES = 2, SLOTS = 8, SLOT_BYTES = 256, LINES = 64;

struct Words {
    std::vector<u64> memory;
    explicit Words(size_t bytes) : memory(bytes / 8 + 2, 0) {}
    template <class T> T* at() { return reinterpret_cast<T*>((reinterpret_cast<u64>(memory.data()) + 15) / 16 * 16); }
};

// One rank's stations and device state.
struct Rank {
    Words ll{2 * LINES * 16}, stripe{STRIPES * SLOTS * SLOT_BYTES}, conduits, results{STRIPES * SLOTS * SLOT_BYTES};
    Words stripe_words{STRIPES * 512}, relay_words{STRIPES * 512};
    u32 epochs[MAX_BLOCKS] = {}, stripe_sequences[STRIPES] = {}, relay_sequences[STRIPES] = {};
    explicit Rank(u32 ranks) : conduits(STRIPES * SLOTS * SLOT_BYTES * ranks) {}
};

struct Group {
    std::vector<std::unique_ptr<Rank>> ranks;
    u32 abort = 0;

    // Counters begin at `begin`, so that they wrap in the middle of a test.
    Group(u32 size, u32 begin) {
        for (u32 r = 0; r < size; r++) ranks.push_back(std::make_unique<Rank>(size));
        for (auto& rank : ranks) {
            for (u32& epoch : rank->epochs) epoch = begin;
            for (u32 s = 0; s < STRIPES; s++) {
                rank->stripe_sequences[s] = rank->relay_sequences[s] = begin;
                for (u32 w = 0; w < 2; w++)
                    rank->stripe_words.at<u32>()[s * WORDS_STRIDE + w * WORD_STRIDE] =
                        rank->relay_words.at<u32>()[s * WORDS_STRIDE + w * WORD_STRIDE] = begin;
            }
        }
    }

    u32 size() const { return (u32)ranks.size(); }

    Launch launch(u32 rank, const Call& call, Buffers& buffers) {
        const u8* input = buffers.memory.data() + buffers.input;
        u8* output = buffers.memory.data() + buffers.output;
        const float divisor = call.average ? (float)size() : 1.0f;
        if (call.protocol == LL) {
            LlParams p = {input, output, call.count, &abort, ranks[rank]->epochs, rank, size(), divisor, LINES, {}};
            for (u32 r = 0; r < size(); r++) p.stations[r] = ranks[r]->ll.at<Quad>();
            const u32 blocks = 1 + (u32)(call.count % 2);
            return [=] {
                return start(blocks, 32, [=] {
                    call.type == FLOAT ? rccl_ll_oneshot_float(p) : call.type == HALF ? rccl_ll_oneshot_half(p) : rccl_ll_oneshot_bfloat16(p);
                });
            };
        }
        const bool relay = call.protocol == RELAY;
        StripeParams p = {input, output, call.count, &abort, relay ? ranks[rank]->relay_sequences : ranks[rank]->stripe_sequences,
                          rank, size(), divisor, call.chunk_bytes, SLOT_BYTES, SLOTS, call.lag, 0, {}, {}, {}, {}};
        const u64 unit = 32, units = (call.count + unit - 1) / unit;
        for (u32 r = 0; r < size(); r++) {
            p.stations[r] = relay ? ranks[r]->conduits.at<u8>() : ranks[r]->stripe.at<u8>();
            p.results[r] = ranks[r]->results.at<u8>();
            p.words[r] = relay ? ranks[r]->relay_words.at<u32>() : ranks[r]->stripe_words.at<u32>();
            const u64 end = (units / size() * (r + 1) + (r + 1 < units % size() ? r + 1 : units % size())) * unit;
            p.parts[r + 1] = end < call.count ? end : call.count;
        }
        const u32 threads = 96 + 32 * (u32)(call.count % 2);
        return [=] {
            return start(1 + (u32)(call.count / 2 % STRIPES), threads, [=] {
                if (relay)
                    call.type == FLOAT ? rccl_stripe_relay_float(p) : call.type == HALF ? rccl_stripe_relay_half(p) : rccl_stripe_relay_bfloat16(p);
                else
                    call.type == FLOAT ? rccl_stripe_oneshot_float(p) : call.type == HALF ? rccl_stripe_oneshot_half(p) : rccl_stripe_oneshot_bfloat16(p);
            });
        };
    }
};

static Call random_call(Protocol protocol) {
    Call call = {};
    call.protocol = protocol;
    call.type = (Type)(next_random() % 3);
    call.average = next_random() % 2, call.in_place = next_random() % 3 == 0;
    call.input_shift = next_random() % 3 * size_of(call.type), call.output_shift = next_random() % 3 * size_of(call.type);
    call.chunk_bytes = 16 * (1 + next_random() % (SLOT_BYTES / 16)), call.lag = 1 + next_random() % (SLOTS / 2 - 1);
    const u32 most = protocol == LL ? LINES * 8 / size_of(call.type) : 4000 / size_of(call.type);
    call.count = 1 + next_random() % (next_random() % 3 ? most : 9);
    return call;
}

#define FAIL(...) return fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"), false

static bool calls_are_right(Protocol protocol) {
    const u32 size = 2 + next_random() % 3, calls = 4;
    Group group(size, next_random() % 2 ? 0 : 0u - 1 - next_random() % 6);
    std::vector<Call> all;
    std::vector<std::vector<Buffers>> buffers(size), before;
    std::vector<std::vector<Launch>> queues(size);
    for (u32 c = 0; c < calls; c++) {
        all.push_back(random_call(protocol));
        const Call& call = all[c];
        for (u32 r = 0; r < size; r++) {
            buffers[r].emplace_back(call.count * size_of(call.type), call.input_shift, call.output_shift, call.in_place);
            for (u64 i = 0; i < call.count; i++) {
                const float value = float_of((next_random() & 0x807fffffu) | (120 + next_random() % 14) << 23);
                const u32 bits = narrowed(call.type, value);
                memcpy(&buffers[r][c].memory[buffers[r][c].input + i * size_of(call.type)], &bits, size_of(call.type));
            }
        }
    }
    before = buffers;
    for (u32 r = 0; r < size; r++)
        for (u32 c = 0; c < calls; c++) queues[r].push_back(group.launch(r, all[c], buffers[r][c]));
    if (!run(queues)) FAIL("%s: %u ranks do not come to an end", PROTOCOL_NAMES[protocol], size);

    for (u32 c = 0; c < calls; c++) {
        const Call& call = all[c];
        const u32 each = size_of(call.type);
        for (u64 i = 0; i < call.count; i++) {
            float sum = 0;
            for (u32 r = 0; r < size; r++) {
                u32 bits = 0;
                memcpy(&bits, &before[r][c].memory[before[r][c].input + i * each], each);
                sum = r == 0 ? widened(call.type, bits) : sum + widened(call.type, bits);
            }
            const u32 want = narrowed(call.type, call.average ? sum / (float)size : sum);
            for (u32 r = 0; r < size; r++) memcpy(&before[r][c].memory[before[r][c].output + i * each], &want, each);
        }
        for (u32 r = 0; r < size; r++)
            for (size_t at = 0; at < before[r][c].memory.size(); at++)
                if (before[r][c].memory[at] != buffers[r][c].memory[at])
                    FAIL("%s of %llu %s: rank %u of %u, call %u, byte %zu (output at %zu) is %02x, should be %02x",
                         PROTOCOL_NAMES[protocol], call.count, TYPE_NAMES[call.type], r, size, c, at, before[r][c].output,
                         buffers[r][c].memory[at], before[r][c].memory[at]);
    }
    return true;
}

// One rank never comes; the abort word is set at some time; the others must end.
static bool aborts_end(Protocol protocol) {
    const u32 size = 2 + next_random() % 2;
    Group group(size, 0);
    const Call call = random_call(protocol);
    std::vector<Buffers> buffers(size, Buffers(call.count * size_of(call.type), 0, 0, false));
    std::vector<std::vector<Launch>> queues(size - 1);
    for (u32 r = 0; r + 1 < size; r++) queues[r].push_back(group.launch(r, call, buffers[r]));
    const u64 when = next_random() % 20000;
    if (!run(queues, [&](u64 step) { if (step > when) group.abort = 1; })) FAIL("%s: does not end when aborted", PROTOCOL_NAMES[protocol]);
    return true;
}

// Flags of epochs long past must not live in lines that calls do not use.
static bool ll_clears_old_lines() {
    Group group(2, 0);
    Call call = random_call(LL);
    call.type = FLOAT, call.count = 2 * LINES, call.in_place = false;
    std::vector<Buffers> buffers(2, Buffers(call.count * 4, 0, 0, false));
    Call small = call;
    small.count = 1;
    for (u32 k = 0; k < 2 * LINES + 4; k++) {
        std::vector<std::vector<Launch>> queues(2);
        for (u32 r = 0; r < 2; r++) queues[r].push_back(group.launch(r, k < 2 ? call : small, buffers[r]));
        if (!run(queues)) FAIL("ll: does not come to an end");
    }
    for (u32 line = 0; line < 2 * LINES; line++) {
        const u32 flag = group.ranks[0]->ll.at<Quad>()[line].word[LINE_FLAG0];
        if (line % LINES != 0 && flag != 0) FAIL("ll: line %u still has the flag %u", line, flag);
    }
    return true;
}

int main(int argc, char** argv) {
    const u64 seeds = argc > 1 ? strtoull(argv[1], nullptr, 10) : 10, first = argc > 2 ? strtoull(argv[2], nullptr, 10) : 0;
    for (u64 seed = first; seed < first + seeds; seed++) {
        random_state = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
        for (int warm = 0; warm < 8; warm++) next_random();
        const Protocol protocol = (Protocol)(seed % 3);
        const bool fine = seed % 8 == 7 ? aborts_end(protocol) : seed % 32 == 6 ? ll_clears_old_lines() : calls_are_right(protocol);
        if (!fine) return fprintf(stderr, "failed with seed %llu\n", seed), 1;
    }
    printf("%llu seeds\n", seeds);
    return 0;
}
