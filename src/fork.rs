//! Notices `fork`: a communicator belongs to the process that made it.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Nobody is in the middle of starting the engine while the process is copied: in the child, a lock that another thread held
/// would stay locked.
extern "C" fn prepare() {
    crate::engine::hold();
}

extern "C" fn parent() {
    crate::engine::let_go();
}

extern "C" fn child() {
    crate::engine::let_go();
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A number that changes in the child of every fork. Costs one load.
pub(crate) fn generation() -> u64 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handlers live as long as the program; the child's only stores words.
        let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        assert_eq!(failed, 0, "pthread_atfork: no memory for the handlers");
    });
    GENERATION.load(Ordering::Relaxed)
}
