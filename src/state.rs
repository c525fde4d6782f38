//! What the threads of a communicator share: whether it still lives, and what it has called.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rccl_core::Rank;
use rccl_transport::station::{Doorbell, LABEL_BYTES};

use crate::{Error, Result, cuda::Alarm, fork};

/// The calls whose labels are remembered, to explain a mismatch. A rank cannot be further ahead than its stations have
/// slots, of which there are at most as many.
const HISTORY: usize = 64;

/// Shared by callers and the engine.
#[derive(Debug)]
pub(crate) struct State {
    /// This rank.
    pub(crate) rank: Rank,
    /// How long a rank may be silent.
    pub(crate) heartbeat: Duration,
    generation: u64,
    failed: AtomicBool,
    cause: OnceLock<Error>,
    /// Ranks that have left in good order.
    left: Vec<AtomicBool>,
    /// Collectives begun so far (not counting send-recv, which not all ranks call).
    calls: AtomicU64,
    labels: Mutex<[[u8; LABEL_BYTES]; HISTORY]>,
    doorbell: Doorbell,
    /// What devices wait for must end with the communicator.
    alarms: Mutex<Vec<Weak<Alarm>>>,
}

impl State {
    pub(crate) fn new(rank: Rank, size: u32, heartbeat: Duration, doorbell: Doorbell) -> Self {
        Self {
            rank,
            heartbeat,
            generation: fork::generation(),
            failed: AtomicBool::new(false),
            cause: OnceLock::new(),
            left: (0..size).map(|_| AtomicBool::new(false)).collect(),
            calls: AtomicU64::new(0),
            labels: Mutex::new([[0; LABEL_BYTES]; HISTORY]),
            doorbell,
            alarms: Mutex::default(),
        }
    }

    /// Whether this process is a child forked after creation.
    pub(crate) fn is_forked(&self) -> bool {
        fork::generation() != self.generation
    }

    /// Fails if the communicator is poisoned.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire) { Err(self.cause().unwrap_or(Error::Forked)) } else { Ok(()) }
    }

    /// The first cause of failure.
    pub(crate) fn cause(&self) -> Option<Error> {
        self.failed.load(Ordering::Acquire).then(|| self.cause.get().cloned()).flatten()
    }

    /// Poisons the communicator. True if this was the first cause.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let first = self.cause.set(error).is_ok();
        self.failed.store(true, Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.doorbell.ring();
        self.alarms.lock().iter().filter_map(Weak::upgrade).for_each(|alarm| alarm.ring());
        first
    }

    /// Has `alarm` rung when the communicator fails; at once if it has failed already.
    pub(crate) fn ring_on_failure(&self, alarm: &Arc<Alarm>) {
        let mut alarms = self.alarms.lock();
        alarms.retain(|alarm| alarm.strong_count() > 0);
        alarms.push(Arc::downgrade(alarm));
        drop(alarms);
        if self.failed.load(Ordering::Acquire) {
            alarm.ring();
        }
    }

    /// Records that a rank has left in good order.
    pub(crate) fn leave(&self, rank: Rank) {
        self.left[rank.index()].store(true, Ordering::Release);
    }

    /// Whether a rank has left.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.left[rank.index()].load(Ordering::Acquire)
    }

    /// Records the beginning of a collective, and gives its number.
    #[inline]
    pub(crate) fn begin(&self, label: &[u8; LABEL_BYTES]) -> u64 {
        let mut labels = self.labels.lock();
        let number = self.calls.load(Ordering::Relaxed);
        labels[(number % HISTORY as u64) as usize] = *label;
        self.calls.store(number + 1, Ordering::Release);
        number
    }

    /// The number and label of the collective begun last.
    pub(crate) fn last_call(&self) -> Option<(u64, [u8; LABEL_BYTES])> {
        let labels = self.labels.lock();
        let number = self.calls.load(Ordering::Relaxed).checked_sub(1)?;
        Some((number, labels[(number % HISTORY as u64) as usize]))
    }

    /// The label of collective `number`, if it has begun and is still remembered.
    pub(crate) fn call(&self, number: u64) -> Option<[u8; LABEL_BYTES]> {
        let labels = self.labels.lock();
        let calls = self.calls.load(Ordering::Relaxed);
        (number < calls && calls - number <= HISTORY as u64)
            .then(|| labels[(number % HISTORY as u64) as usize])
    }
}
