/* All-reduce from C: two ranks, one a thread. Without a CUDA driver it also shows what the CUDA part answers then. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "rccl_ffi.h"

#define RANKS 2
#define COUNT 100000

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, rccl_last_error_text()); \
            return "failed";                                                                                   \
        }                                                                                                      \
    } while (0)

static rccl_unique_id id;

static void *rank_main(void *argument) {
    int rank = (int)(size_t)argument;
    rccl_communicator *communicator = NULL;
    CHECK(rccl_communicator_create(&communicator, &id, rank, RANKS) == RCCL_STATUS_SUCCESS);

    static float input[RANKS][COUNT], output[RANKS][COUNT];
    for (int i = 0; i < COUNT; i++) input[rank][i] = (float)(rank + i);
    CHECK(rccl_all_reduce(communicator, input[rank], output[rank], COUNT, RCCL_DATA_TYPE_FLOAT, RCCL_OPERATOR_SUM) ==
          RCCL_STATUS_SUCCESS);
    for (int i = 0; i < COUNT; i++) CHECK(output[rank][i] == (float)(2 * i + 1));
    /* In place. */
    CHECK(rccl_all_reduce(communicator, output[rank], output[rank], COUNT, RCCL_DATA_TYPE_FLOAT, RCCL_OPERATOR_AVG) ==
          RCCL_STATUS_SUCCESS);
    for (int i = 0; i < COUNT; i++) CHECK(output[rank][i] == (float)(2 * i + 1));

    rccl_status_t status = -1;
    CHECK(rccl_communicator_async_error(communicator, &status) == RCCL_STATUS_SUCCESS);
    CHECK(status == RCCL_STATUS_SUCCESS);

    /* What makes no sense is said, and leaves the communicator as it was. */
    CHECK(rccl_all_reduce(communicator, input[rank], output[rank], COUNT, 99, RCCL_OPERATOR_SUM) ==
          RCCL_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(rccl_last_error_text(), "no data type 99") != NULL);
    CHECK(rccl_all_reduce(communicator, NULL, output[rank], COUNT, RCCL_DATA_TYPE_FLOAT, RCCL_OPERATOR_SUM) ==
          RCCL_STATUS_INVALID_ARGUMENT);
    CHECK(rccl_all_reduce(NULL, NULL, NULL, 0, RCCL_DATA_TYPE_FLOAT, RCCL_OPERATOR_SUM) == RCCL_STATUS_INVALID_ARGUMENT);

    rccl_cuda_communicator *cuda = NULL;
    CHECK(rccl_cuda_communicator_create(&cuda, NULL, 0) == RCCL_STATUS_INVALID_ARGUMENT);
    CHECK(rccl_cuda_communicator_create(&cuda, communicator, -1) == RCCL_STATUS_INVALID_ARGUMENT);
    CHECK(rccl_cuda_all_reduce(NULL, NULL, NULL, 0, RCCL_DATA_TYPE_FLOAT, RCCL_OPERATOR_SUM, NULL) ==
          RCCL_STATUS_INVALID_ARGUMENT);
    /* RCCL_LIBCUDA names no library here. */
    status = rccl_cuda_communicator_create(&cuda, communicator, 0);
    CHECK(cuda == NULL);
    CHECK(status == RCCL_STATUS_UNAVAILABLE);
    CHECK(strstr(rccl_last_error_text(), "CUDA driver") != NULL);
    CHECK(rccl_cuda_communicator_destroy(NULL) == RCCL_STATUS_SUCCESS);

    CHECK(rccl_all_reduce(communicator, input[rank], output[rank], 1, RCCL_DATA_TYPE_FLOAT, RCCL_OPERATOR_MAX) ==
          RCCL_STATUS_SUCCESS);
    if (rank == 0) CHECK(rccl_communicator_abort(communicator) == RCCL_STATUS_SUCCESS);
    CHECK(rccl_all_reduce(communicator, input[rank], output[rank], COUNT, RCCL_DATA_TYPE_FLOAT, RCCL_OPERATOR_SUM) ==
          RCCL_STATUS_ABORTED);
    CHECK(rccl_communicator_async_error(communicator, &status) == RCCL_STATUS_SUCCESS);
    CHECK(status == RCCL_STATUS_ABORTED && strstr(rccl_last_error_text(), "rank 0 aborted") != NULL);
    CHECK(rccl_communicator_destroy(communicator) == RCCL_STATUS_SUCCESS);
    return NULL;
}

int main(void) {
    pthread_t threads[RANKS];
    int failed = rccl_unique_id_create(NULL) != RCCL_STATUS_INVALID_ARGUMENT;
    if (rccl_unique_id_create(&id) != RCCL_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", rccl_last_error_text());
        return 1;
    }
    for (size_t rank = 0; rank < RANKS; rank++) failed |= pthread_create(&threads[rank], NULL, rank_main, (void *)rank);
    if (failed) return 1;
    for (int rank = 0; rank < RANKS; rank++) {
        void *answer = NULL;
        failed |= pthread_join(threads[rank], &answer) || answer != NULL;
    }
    if (failed) return 1;
    printf("right\n");
    return 0;
}
