/* One rank of the Open MPI peer: runs MPI collectives on the CPU when told to.
 *
 * The protocol and the environment are described in README.md beside this file. Between commands the
 * process blocks in a read of its socket and uses no CPU: MPI would spin if it waited in a call of its own. */
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST };

struct command {
    enum collective collective;
    MPI_Datatype type;
    const char *type_name;
    MPI_Op op;
    bool product;
    long long bytes, warmup, iterations;
    bool in_place, check;
};

/* The buffers of one command. part: elements a rank; total: elements of the whole. */
struct round {
    size_t part, total, element_bytes;
    char *memory, *input, *output;
    size_t input_count, output_count;
};

static int rank, size;

static const struct { const char *name; enum collective value; } COLLECTIVES[] = {
    {"all-reduce", ALL_REDUCE}, {"all-gather", ALL_GATHER},
    {"reduce-scatter", REDUCE_SCATTER}, {"broadcast", BROADCAST},
};

/* X(name, C type, MPI type) for every element type this peer knows. */
#define TYPES(X)                                                                                               \
    X("int8", int8_t, MPI_INT8_T) X("uint8", uint8_t, MPI_UINT8_T) X("int32", int32_t, MPI_INT32_T)            \
    X("uint32", uint32_t, MPI_UINT32_T) X("int64", int64_t, MPI_INT64_T) X("uint64", uint64_t, MPI_UINT64_T)   \
    X("float", float, MPI_FLOAT) X("double", double, MPI_DOUBLE)

/* ---- The command line: one flat JSON object without escapes. ---- */

/* The text after `"key":`, or NULL. */
static const char *value_of(const char *line, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *at = strstr(line, quoted);
    if (at == NULL) return NULL;
    at += strlen(quoted);
    at += strspn(at, " \t");
    if (*at != ':') return NULL;
    return at + 1 + strspn(at + 1, " \t");
}

/* Whether the value of `key` is the string `want`. */
static bool is_string(const char *line, const char *key, const char *want) {
    const char *at = value_of(line, key);
    size_t length = strlen(want);
    return at != NULL && *at == '"' && strncmp(at + 1, want, length) == 0 && at[1 + length] == '"';
}

static bool is_true(const char *line, const char *key) {
    const char *at = value_of(line, key);
    return at != NULL && strncmp(at, "true", 4) == 0;
}

/* A whole number of at least `least`; false when absent, malformed or less. */
static bool number(const char *line, const char *key, long long least, long long *out) {
    const char *at = value_of(line, key);
    char *end = NULL;
    if (at == NULL) return false;
    *out = strtoll(at, &end, 10);
    return end != at && *out >= least;
}

/* Reads the command; returns NULL or what is wrong with it. */
static const char *parse(const char *line, struct command *c) {
    memset(c, 0, sizeof *c);
    bool found = false;
    for (size_t i = 0; i < sizeof COLLECTIVES / sizeof *COLLECTIVES; i++)
        if (is_string(line, "collective", COLLECTIVES[i].name)) {
            c->collective = COLLECTIVES[i].value;
            found = true;
        }
    if (!found) return "the Open MPI worker has no such collective";
    c->type = MPI_DATATYPE_NULL;
#define READ(NAME, C_TYPE, MPI_TYPE)                                                                           \
    if (is_string(line, "dtype", NAME)) c->type = MPI_TYPE, c->type_name = NAME;
    TYPES(READ)
#undef READ
    if (c->type == MPI_DATATYPE_NULL) return "MPI has no such type";
    c->op = is_string(line, "op", "sum")    ? MPI_SUM
            : is_string(line, "op", "prod") ? MPI_PROD
            : is_string(line, "op", "min")  ? MPI_MIN
            : is_string(line, "op", "max")  ? MPI_MAX
                                            : MPI_OP_NULL;
    bool reduces = c->collective == ALL_REDUCE || c->collective == REDUCE_SCATTER;
    if (reduces && c->op == MPI_OP_NULL) return "MPI has no such operator";
    c->product = reduces && c->op == MPI_PROD;
    if (!number(line, "bytes", 1, &c->bytes)) return "bytes: a whole number of at least 1 is needed";
    if (!number(line, "warmup", 0, &c->warmup)) return "warmup: a whole number is needed";
    if (!number(line, "iterations", 1, &c->iterations)) return "iterations: a whole number of at least 1 is needed";
    c->in_place = is_true(line, "in_place") || c->collective == BROADCAST;
    c->check = is_true(line, "check");
    return NULL;
}

/* ---- The pattern (README.md) ---- */

static int pattern(int of_rank, size_t index, bool product) {
    uint32_t mixed = (uint32_t)((uint64_t)index * 2654435761u + (uint64_t)of_rank * 40503u) >> 16;
    return product ? (int)(mixed % 2) + 1 : (int)(mixed % 5);
}

static long long reduced(size_t index, const struct command *c) {
    long long total = pattern(0, index, c->product);
    for (int r = 1; r < size; r++) {
        long long term = pattern(r, index, c->product);
        if (c->op == MPI_SUM) total += term;
        else if (c->op == MPI_PROD) total *= term;
        else if (c->op == MPI_MIN) total = term < total ? term : total;
        else total = term > total ? term : total;
    }
    return total;
}

static long long expected(size_t index, const struct command *c, const struct round *r) {
    switch (c->collective) {
    case ALL_REDUCE: return reduced(index, c);
    case REDUCE_SCATTER: return reduced((size_t)rank * r->part + index, c);
    case ALL_GATHER: return pattern((int)(index / r->part), index, false);
    default: return pattern(0, index, false);
    }
}

static void store(void *at, size_t index, long long value, const char *type_name) {
#define STORE(NAME, C_TYPE, MPI_TYPE)                                                                          \
    if (strcmp(type_name, NAME) == 0) ((C_TYPE *)at)[index] = (C_TYPE)value;
    TYPES(STORE)
#undef STORE
}

static bool equals(const void *at, size_t index, long long value, const char *type_name) {
#define EQUALS(NAME, C_TYPE, MPI_TYPE)                                                                         \
    if (strcmp(type_name, NAME) == 0) return ((const C_TYPE *)at)[index] == (C_TYPE)value;
    TYPES(EQUALS)
#undef EQUALS
    return false;
}

/* ---- One round ---- */

static void fill(const struct command *c, struct round *r) {
    memset(r->output, 0, r->output_count * r->element_bytes);
    size_t first = c->collective == ALL_GATHER ? (size_t)rank * r->part : 0;
    for (size_t i = 0; i < r->input_count; i++)
        store(r->input, i, pattern(rank, first + i, c->product), c->type_name);
}

static const char *prepare(const struct command *c, struct round *r) {
    int type_bytes;
    MPI_Type_size(c->type, &type_bytes);
    r->element_bytes = (size_t)type_bytes;
    size_t elements = (size_t)c->bytes / r->element_bytes;
    bool parted = c->collective == ALL_GATHER || c->collective == REDUCE_SCATTER;
    r->part = parted ? elements / (size_t)size : elements;
    r->total = parted ? r->part * (size_t)size : r->part;
    if (r->part == 0) return "bytes hold less than one element a rank";
    if (r->part > INT32_MAX) return "MPI counts elements in an int: too many bytes";
    r->input_count = c->collective == ALL_GATHER ? r->part : r->total;
    r->output_count = c->collective == REDUCE_SCATTER ? r->part : r->total;
    size_t input_bytes = r->input_count * r->element_bytes, output_bytes = r->output_count * r->element_bytes;
    size_t page = 4096, rounded = (input_bytes + page - 1) / page * page;
    size_t memory_bytes = c->in_place ? r->total * r->element_bytes : rounded + output_bytes;
    if (posix_memalign((void **)&r->memory, page, memory_bytes) != 0) {
        fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, memory_bytes);
        MPI_Abort(MPI_COMM_WORLD, 1); /* One rank alone cannot refuse: the others are already waiting for it. */
    }
    r->input = r->output = r->memory;
    size_t mine = (size_t)rank * r->part * r->element_bytes;
    if (!c->in_place) r->output = r->memory + rounded;
    else if (c->collective == ALL_GATHER) r->input = r->memory + mine;
    fill(c, r);
    return NULL;
}

static void run(const struct command *c, const struct round *r) {
    int part = (int)r->part;
    const void *input = c->in_place ? MPI_IN_PLACE : r->input;
    switch (c->collective) {
    case ALL_REDUCE: MPI_Allreduce(input, r->output, part, c->type, c->op, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(input, part, c->type, r->output, part, c->type, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(input, r->output, part, c->type, c->op, MPI_COMM_WORLD);
        break;
    case BROADCAST: MPI_Bcast(r->output, part, c->type, 0, MPI_COMM_WORLD); break;
    }
}

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static const char *measure(const char *line, char *answer, size_t answer_bytes) {
    struct command c;
    struct round r = {0};
    const char *refused = parse(line, &c);
    if (refused == NULL) refused = prepare(&c, &r);
    if (refused != NULL) return refused;
    for (long long i = 0; i < c.warmup; i++) run(&c, &r);
    MPI_Barrier(MPI_COMM_WORLD);
    double cpu = cpu_seconds(), start = wall_seconds();
    for (long long i = 0; i < c.iterations; i++) run(&c, &r);
    double seconds = wall_seconds() - start;
    cpu = cpu_seconds() - cpu;
    size_t wrong = 0;
    if (c.check) {
        fill(&c, &r);
        run(&c, &r);
        for (size_t i = 0; i < r.output_count; i++)
            wrong += !equals(r.output, i, expected(i, &c, &r), c.type_name);
    }
    free(r.memory);
    snprintf(answer, answer_bytes, "{\"us\": %.4f, \"wrong\": %zu, \"cpu_s\": %.6f, \"in_place\": %s}\n",
             seconds * 1e6 / (double)c.iterations, wrong, cpu, c.in_place ? "true" : "false");
    return NULL;
}

/* The connected socket, or -1 with the reason on the standard error. */
static int connect_to_driver(void) {
    const char *path = getenv("RCCL_PEER_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL || strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "RCCL_PEER_SOCKET must name a unix socket by a path of less than 108 bytes\n");
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        return -1;
    }
    return fd;
}

int main(int argc, char **argv) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING], line[1024], answer[512];
    int library_bytes, major = 0, minor = 0, release = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(library, &library_bytes);
    sscanf(library, "Open MPI v%d.%d.%d", &major, &minor, &release);
    int driver = connect_to_driver();
    FILE *commands = driver < 0 ? NULL : fdopen(driver, "r");
    if (commands == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    dprintf(driver, "{\"peer\": \"openmpi\", \"version\": \"%d.%d.%d\", \"rank\": %d, \"size\": %d, \"pid\": %d}\n",
            major, minor, release, rank, size, (int)getpid());
    while (fgets(line, sizeof line, commands) != NULL) {
        const char *refused = measure(line, answer, sizeof answer);
        /* Every rank refuses the same command before it communicates, so that they stay in step. */
        if (refused != NULL) snprintf(answer, sizeof answer, "{\"error\": \"%s\"}\n", refused);
        dprintf(driver, "%s", answer);
    }
    MPI_Finalize();
    return 0;
}
