/* The library as a plugin: opened by its path, closed, and still there afterwards. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*version_function)(int *);

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    version_function version = (version_function)dlsym(library, "rccl_version");
    int number = -1;
    if (version == NULL || version(&number) != 0) {
        fprintf(stderr, "rccl_version is missing or failed\n");
        return 1;
    }
    dlclose(library);
    if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL) {
        fprintf(stderr, "the library was unloaded: it is not marked nodelete\n");
        return 1;
    }
    if (version(&number) != 0) return 1;
    printf("%d\n", number);
    return 0;
}
