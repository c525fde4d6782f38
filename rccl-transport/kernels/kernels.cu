// The one translation unit that is compiled: every kernel.
#include "ll_oneshot.cu"
#include "reduce_local.cu"
#include "stripe_oneshot.cu"
#include "stripe_relay.cu"
