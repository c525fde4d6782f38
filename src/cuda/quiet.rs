//! When memory of devices may be taken and given back.
//!
//! Drivers may let an allocation, a deallocation or the loading of code wait for the kernels that run, and hold locks that
//! launches need meanwhile. Where one process drives several ranks, the kernel waited for may itself wait for one whose
//! launch waits for such a lock. So these are done while no rank of the process has work in progress, and keep others from
//! enqueuing for that moment. Replays of graphs cannot be kept back; they count as work in progress once launched.

use std::{
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Side;

/// How long creation waits for the other ranks of the process to have nothing to do, before it goes on beside them.
const TAKING_PATIENCE: Duration = Duration::from_secs(5);
/// How long dropping does, before it leaves memory to be given back later. Short: another rank of the process may have
/// enqueued what waits for the next call of this thread.
const RETIRING_PATIENCE: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// Read by whoever enqueues, written by whoever takes memory or gives it back.
static GATE: RwLock<()> = RwLock::new(());
/// The sides of this process that can have work.
static LIVING: Mutex<Vec<Weak<Side>>> = Mutex::new(Vec::new());
/// Sides without work whose memory has not been given back yet.
static RETIRED: Mutex<Vec<Arc<Side>>> = Mutex::new(Vec::new());

/// Keeps memory from being taken or given back while work is enqueued.
pub(super) fn enqueuing() -> RwLockReadGuard<'static, ()> {
    // Never waits behind a writer that waits for readers, since writers only ever try.
    GATE.read()
}

fn living() -> Vec<Arc<Side>> {
    LIVING.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Waits until no rank of this process has work in progress, then keeps it so. `None` if that does not happen in time.
fn quiet(patience: Duration) -> Option<RwLockWriteGuard<'static, ()>> {
    let give_up = Instant::now() + patience;
    loop {
        if let Some(gate) = GATE.try_write()
            && living().iter().all(|side| side.is_idle())
        {
            return Some(gate);
        }
        // Not with the gate held: others may have to enqueue before anything ends.
        if Instant::now() > give_up {
            return None;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Takes memory, at a quiet moment if there is one.
pub(super) fn taking<T>(take: impl FnOnce() -> T) -> T {
    let gate = quiet(TAKING_PATIENCE);
    if gate.is_some() {
        bury();
    } else {
        tracing::debug!("device memory is taken beside work in progress");
    }
    take()
}

/// A side may have work from now on.
pub(super) fn live(side: &Arc<Side>) {
    let mut living = LIVING.lock();
    living.retain(|side| side.strong_count() > 0);
    living.push(Arc::downgrade(side));
}

/// A side gets no more work; what it has is not waited for.
pub(super) fn forget(side: &Arc<Side>) {
    LIVING.lock().retain(|living| living.as_ptr() != Arc::as_ptr(side));
}

/// Gives back the memory of a side that has no work: now if there is a quiet moment, else when a communicator is made or
/// dropped the next time.
pub(super) fn retire(side: Arc<Side>) {
    forget(&side);
    RETIRED.lock().push(side);
    if let Some(_gate) = quiet(RETIRING_PATIENCE) {
        bury();
    } else {
        tracing::debug!("device memory is given back when this process's devices have nothing to do");
    }
}

fn bury() {
    let retired = std::mem::take(&mut *RETIRED.lock());
    drop(retired);
}
