/* The C interface as a program sees that links the library. */
#include <stdio.h>
#include <string.h>

#include "rccl_ffi.h"

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                            \
            return 1;                                                                                          \
        }                                                                                                      \
    } while (0)

int main(void) {
    int version = -1;
    CHECK(rccl_version(&version) == RCCL_STATUS_SUCCESS);
    CHECK(version > 0);
    CHECK(rccl_version(NULL) == RCCL_STATUS_INVALID_ARGUMENT);
    CHECK(strcmp(rccl_status_text(RCCL_STATUS_SUCCESS), "success") == 0);
    CHECK(strcmp(rccl_status_text(RCCL_STATUS_PANIC), rccl_status_text(RCCL_STATUS_INVALID_ARGUMENT)) != 0);
    CHECK(strcmp(rccl_status_text(-1), "unknown status code") == 0);
    printf("%d\n", version);
    return 0;
}
