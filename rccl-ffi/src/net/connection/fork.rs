//! Notices `fork`: connections belong to the process that made them. Data loaders fork, and their children live on with
//! copies of everything.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A number that changes in the child of every fork. Costs one load.
pub(in crate::net) fn generation() -> u64 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler is async-signal-safe (one atomic addition), and the library is never unloaded.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(child)) };
        assert_eq!(failed, 0, "pthread_atfork: no memory for one handler");
    });
    GENERATION.load(Ordering::Relaxed)
}
