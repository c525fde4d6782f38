//! Notices `fork`: a communicator belongs to the process that made it.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A number that changes in the child of every fork. Costs one load.
pub(crate) fn generation() -> u64 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler is async-signal-safe (one atomic addition) and lives as long as the program.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(child)) };
        assert_eq!(failed, 0, "pthread_atfork: no memory for one handler");
    });
    GENERATION.load(Ordering::Relaxed)
}
