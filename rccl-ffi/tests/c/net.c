/* The NCCL plugin from C: its newest and its oldest common table, written down here by themselves, drive a transfer.
 * Usage: net LIBRARY */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
  char *name; char *pciPath; uint64_t guid; int ptrSupport; int speed; int port; float latency; int maxComms; int maxRecvs;
} properties_v6;

typedef struct {
  const char *name;
  int (*init)(logger);
  int (*devices)(int *);
  int (*getProperties)(int, properties_v6 *);
  int (*listen)(int, void *, void **);
  int (*connect)(int, void *, void **);
  int (*accept)(void *, void **);
  int (*regMr)(void *, void *, int, int, void **);
  int (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **);
  int (*deregMr)(void *, void *);
  int (*isend)(void *, void *, int, int, void *, void **);
  int (*irecv)(void *, int, void **, int *, int *, void **, void **);
  int (*iflush)(void *, int, void **, int *, void **, void **);
  int (*test)(void *, int *, int *);
  int (*closeSend)(void *);
  int (*closeRecv)(void *);
  int (*closeListen)(void *);
} net_v6;

typedef struct {
  char *name; char *pciPath; uint64_t guid; int ptrSupport; int regIsGlobal; int forceFlush; int speed; int port; float latency;
  int maxComms; int maxRecvs; int netDeviceType; int netDeviceVersion;
  struct { int ndevs; int devs[8]; } vProps;
  size_t maxP2pBytes; size_t maxCollBytes; int maxMultiRequestSize; int16_t railId; int16_t planeId;
} properties_v12;

typedef struct { int trafficClass; } config;
typedef struct { int ndevs; int devs[8]; } vdevice;

typedef struct {
  const char *name;
  int (*init)(void **, uint64_t, config *, logger, void *);
  int (*devices)(int *);
  int (*getProperties)(int, properties_v12 *);
  int (*listen)(void *, int, void *, void **);
  int (*connect)(void *, int, void *, void **, void **);
  int (*accept)(void *, void **, void **);
  int (*regMr)(void *, void *, size_t, int, void **);
  int (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **);
  int (*deregMr)(void *, void *);
  int (*isend)(void *, void *, size_t, int, void *, void *, void **);
  int (*irecv)(void *, int, void **, size_t *, int *, void **, void **, void **);
  int (*iflush)(void *, int, void **, int *, void **, void **);
  int (*test)(void *, int *, int *);
  int (*closeSend)(void *);
  int (*closeRecv)(void *);
  int (*closeListen)(void *);
  int (*getDeviceMr)(void *, void *, void **);
  int (*irecvConsumed)(void *, int, void *);
  int (*makeVDevice)(int *, vdevice *);
  int (*finalize)(void *);
  int (*setNetAttr)(void *, void *);
} net_v12;

/* Seconds that a transfer may take. */
#define PATIENCE 60
#define BYTES (3 << 20)

static void check(int ok, const char *what) {
  if (!ok) {
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
  }
}

#define CALL(call) check((call) == 0, #call)

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)level; (void)flags; (void)file; (void)line; (void)format;
}

static time_t started;

static int in_time(void) {
  check(time(NULL) - started < PATIENCE, "in time");
  return 1;
}

static void over_v6(const net_v6 *net) {
  void *listener, *send = NULL, *receive = NULL, *from, *to, *sending, *receiving = (void *)1;
  char handle[128];
  int devices = 0, sent = 0, received = 0, lengths[8] = {0}, bytes = BYTES, tag = 3;
  properties_v6 properties;
  unsigned char *source = malloc(BYTES), *target = calloc(1, BYTES);
  for (int i = 0; i < BYTES; i++) source[i] = (unsigned char)(i % 251);
  CALL(net->init(log_line));
  CALL(net->devices(&devices));
  CALL(net->getProperties(devices - 1, &properties));
  check(properties.name && properties.ptrSupport == 1 && properties.speed > 0 && properties.maxRecvs == 1, "v6 properties");
  CALL(net->listen(0, handle, &listener));
  while ((!send || !receive) && in_time()) {
    if (!send) CALL(net->connect(0, handle, &send));
    if (!receive) CALL(net->accept(listener, &receive));
  }
  CALL(net->closeListen(listener));
  CALL(net->regMr(send, source, BYTES, 1, &from));
  CALL(net->regMr(receive, target, BYTES, 1, &to));
  void *data = target;
  CALL(net->irecv(receive, 1, &data, &bytes, &tag, &to, &receiving));
  CALL(net->isend(send, source, BYTES, tag, from, &sending));
  check(sending && receiving && receiving != (void *)1, "v6 requests");
  while ((!sent || !received) && in_time()) {
    if (!sent) CALL(net->test(sending, &sent, NULL));
    if (!received) CALL(net->test(receiving, &received, lengths));
  }
  check(lengths[0] == BYTES && !memcmp(source, target, BYTES), "v6 transfer");
  CALL(net->deregMr(send, from));
  CALL(net->deregMr(receive, to));
  CALL(net->closeSend(send));
  CALL(net->closeRecv(receive));
  free(source);
  free(target);
}

static void over_v12(const net_v12 *net) {
  void *context, *listener, *send = NULL, *receive = NULL, *from, *to, *sending, *receiving = (void *)1;
  char handle[128];
  int devices = 0, sent = 0, received = 0, lengths[8] = {0}, tag = 3, fused = -1;
  size_t bytes = BYTES;
  config settings = {-1};
  vdevice one = {1, {0}};
  properties_v12 properties;
  unsigned char *source = malloc(BYTES), *target = calloc(1, BYTES);
  for (int i = 0; i < BYTES; i++) source[i] = (unsigned char)(i % 251);
  CALL(net->init(&context, 42, &settings, log_line, NULL));
  CALL(net->devices(&devices));
  CALL(net->getProperties(devices - 1, &properties));
  check(properties.maxP2pBytes == (size_t)1 << 40 && properties.vProps.ndevs >= 1 && properties.railId == -1, "v12 properties");
  check(properties.maxMultiRequestSize == 1 && properties.netDeviceType == 0, "v12 properties");
  CALL(net->makeVDevice(&fused, &one));
  check(fused == 0, "a device of one is that one");
  CALL(net->listen(context, 0, handle, &listener));
  while ((!send || !receive) && in_time()) {
    if (!send) CALL(net->connect(context, 0, handle, &send, NULL));
    if (!receive) CALL(net->accept(listener, &receive, NULL));
  }
  CALL(net->closeListen(listener));
  CALL(net->regMr(send, source, BYTES, 1, &from));
  CALL(net->regMr(receive, target, BYTES, 1, &to));
  void *data = target;
  CALL(net->irecv(receive, 1, &data, &bytes, &tag, &to, NULL, &receiving));
  CALL(net->isend(send, source, BYTES, tag, from, NULL, &sending));
  check(sending && receiving && receiving != (void *)1, "v12 requests");
  while ((!sent || !received) && in_time()) {
    if (!sent) CALL(net->test(sending, &sent, NULL));
    if (!received) CALL(net->test(receiving, &received, lengths));
  }
  check(lengths[0] == BYTES && !memcmp(source, target, BYTES), "v12 transfer");
  /* As NCCL aborts: memory goes first, with a receive outstanding. */
  CALL(net->irecv(receive, 1, &data, &bytes, &tag, &to, NULL, &receiving));
  CALL(net->deregMr(receive, to));
  free(target);
  CALL(net->deregMr(send, from));
  free(source);
  CALL(net->closeSend(send));
  CALL(net->closeRecv(receive));
  CALL(net->finalize(context));
}

int main(int argc, char **argv) {
  check(argc == 2, "one argument");
  started = time(NULL);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  check(library != NULL, "dlopen");
  const net_v6 *v6 = dlsym(library, "ncclNetPlugin_v6");
  const net_v12 *v12 = dlsym(library, "ncclNetPlugin_v12");
  check(v6 && v12 && !strcmp(v6->name, "rccl") && !strcmp(v12->name, "rccl"), "tables");
  over_v6(v6);
  over_v12(v12);
  dlclose(library);
  puts("ok");
  return 0;
}
