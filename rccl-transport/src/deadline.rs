//! Waits that end: a deadline, and poll(2) up to it.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{Error, Result};

/// A moment by which something must have happened, and how long that was from the start, for the error that says it did
/// not.
///
/// ```
/// use rccl_transport::deadline::Deadline;
/// use std::time::Duration;
///
/// assert!(!Deadline::after(Duration::from_secs(60)).is_over());
/// let error = Deadline::after(Duration::ZERO).check("the thaw").unwrap_err();
/// assert_eq!(error.to_string(), "the thaw did not happen within 0ns");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    started: Instant,
    after: Duration,
}

impl Deadline {
    /// The longest wait that is taken literally; longer ones end after as much.
    pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

    /// The deadline `after` from now, capped at [`Deadline::LONGEST`].
    #[must_use]
    pub fn after(after: Duration) -> Self {
        Self { started: Instant::now(), after: after.min(Self::LONGEST) }
    }

    /// This deadline or `after` from now, whichever comes first.
    #[must_use]
    pub fn at_most(self, after: Duration) -> Self {
        let other = Self::after(after);
        if other.remaining() < self.remaining() { other } else { self }
    }

    /// The time there was at the start.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.after
    }

    /// The time that is left, zero if none is.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.after.saturating_sub(self.started.elapsed())
    }

    /// Whether no time is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The error that `waiting_for` did not happen in time.
    #[must_use]
    pub fn error(&self, waiting_for: impl Into<String>) -> Error {
        Error::Timeout { waiting_for: waiting_for.into(), after: self.after }
    }

    /// Says whether time is left to wait for `waiting_for`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if none is.
    pub fn check(&self, waiting_for: &str) -> Result<()> {
        if self.is_over() { Err(self.error(waiting_for)) } else { Ok(()) }
    }
}

/// Blocks until one of `descriptors` is ready for what it is waited for, or the deadline has passed; `false` then. A
/// signal counts as neither. Without descriptors it waits for the deadline alone.
///
/// # Errors
/// [`Error::Io`] from poll(2).
pub fn wait(descriptors: &mut [PollFd<'_>], deadline: &Deadline) -> Result<bool> {
    loop {
        let remaining = deadline.remaining();
        // `LONGEST` keeps the conversion from failing.
        let timeout = Timespec::try_from(remaining).map_err(|_| deadline.error("poll"))?;
        match rustix::event::poll(descriptors, Some(&timeout)) {
            Ok(0) if remaining.is_zero() => return Ok(false),
            // Ready to look at the clock again: poll's own clock may run a little ahead of ours.
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(Error::io("poll", errno)),
        }
    }
}

/// [`wait`] for a single descriptor.
///
/// # Errors
/// As [`wait`].
pub fn wait_one(descriptor: &impl AsFd, flags: PollFlags, deadline: &Deadline) -> Result<bool> {
    let descriptor: BorrowedFd<'_> = descriptor.as_fd();
    wait(&mut [PollFd::from_borrowed_fd(descriptor, flags)], deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_deadline_or_its_descriptor() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert!(!wait_one(&read, PollFlags::IN, &Deadline::after(Duration::from_millis(1))).unwrap());
        rustix::io::write(&write, b"x").unwrap();
        assert!(wait_one(&read, PollFlags::IN, &Deadline::after(Duration::from_secs(60))).unwrap());
        assert!(!wait(&mut [], &Deadline::after(Duration::from_millis(1))).unwrap());
    }

    #[test]
    fn no_deadline_overflows() {
        let longest = Deadline::after(Duration::MAX);
        assert!(!longest.is_over());
        assert!(longest.at_most(Duration::from_secs(1)).remaining() <= Duration::from_secs(1));
        assert!(Deadline::after(Duration::ZERO).at_most(Duration::MAX).is_over());
    }
}
