//! The relay's arena with what a benchmark needs besides: a barrier for the host threads, and everyone's times.

use std::{
    fs::File,
    os::fd::{AsFd, FromRawFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rccl_transport::{Error, Result, cuda::relay};

/// Rounds of one measurement, at most.
pub(crate) const MAX_ROUNDS: usize = 256;

// In the control part, which the relay leaves to us but for its first 128 bytes.
const BARRIER: usize = 128;
const FAILED: usize = 256;
const ROUNDS: usize = 4096;
const _: () = assert!(ROUNDS + 32 * MAX_ROUNDS * 8 <= relay::Arena::CONTROL_BYTES);

#[derive(Clone)]
pub(crate) struct Arena {
    pub(crate) shared: Arc<relay::Arena>,
}

impl Arena {
    /// Takes over a descriptor that this process inherited.
    ///
    /// # Safety
    /// `fd` must be one made by the relay's arena, and nobody else's.
    pub(crate) unsafe fn inherited(fd: RawFd) -> OwnedFd {
        // SAFETY: passed on to the caller.
        OwnedFd::from(unsafe { File::from_raw_fd(fd) })
    }

    pub(crate) fn map(fd: impl AsFd, ranks: u32) -> Result<Self> {
        Ok(Self { shared: Arc::new(relay::Arena::map(fd, ranks)?) })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.shared.word(offset)
    }

    fn round(&self, rank: u32, round: usize) -> &AtomicU64 {
        assert!(round < MAX_ROUNDS && rank < 32.min(self.shared.ranks()));
        let offset = ROUNDS + (rank as usize * MAX_ROUNDS + round) * 8;
        // SAFETY: within the control part (checked), 8-byte aligned; only ever used as an atomic.
        unsafe { AtomicU64::from_ptr(self.shared.region().start().as_ptr().wrapping_add(offset).cast()) }
    }

    /// Ends all kernels and streams that wait, and all barriers.
    pub(crate) fn abort(&self) {
        self.word(FAILED).store(1, Ordering::Release);
        self.shared.abort();
        self.shared.release_waits();
    }

    /// Waits until all ranks are here.
    pub(crate) fn barrier(&self) -> Result<()> {
        const DEADLINE: Duration = Duration::from_secs(120);
        let (start, ranks) = (Instant::now(), self.shared.ranks());
        let arrived = self.word(BARRIER).fetch_add(1, Ordering::AcqRel);
        let all = (arrived / ranks + 1) * ranks;
        while self.word(BARRIER).load(Ordering::Acquire) < all {
            let what = "all ranks at a barrier".to_owned();
            if self.word(FAILED).load(Ordering::Acquire) != 0 {
                return Err(Error::PeerLost {
                    peer: "another rank".to_owned(),
                    cause: "it failed".to_owned(),
                });
            }
            if start.elapsed() > DEADLINE {
                return Err(Error::Timeout { waiting_for: what, after: DEADLINE });
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    pub(crate) fn set_round(&self, rank: u32, round: usize, time: Duration) {
        self.round(rank, round).store(time.as_nanos() as u64, Ordering::Release);
    }

    /// Median over the rounds of the slowest rank's time.
    pub(crate) fn median(&self, rounds: usize) -> Duration {
        let slowest = |round| {
            (0..self.shared.ranks()).map(|rank| self.round(rank, round).load(Ordering::Acquire)).max()
        };
        let mut times: Vec<u64> = (0..rounds).filter_map(slowest).collect();
        times.sort_unstable();
        Duration::from_nanos(times[times.len() / 2])
    }
}
