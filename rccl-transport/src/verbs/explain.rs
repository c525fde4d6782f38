//! What devices say, in plain words.

use super::{
    device::Opened,
    sys::abi::{IBV_WC_WR_FLUSH_ERR, ibv_wc},
};
use crate::fault::Fault;

/// What a completion's status means, and what to look at.
fn status(code: u32) -> (&'static str, &'static str) {
    match code {
        1 => ("local length error", "a message was longer than the queue pair allows"),
        2 => ("local queue pair error", "the queue pair was disturbed, as when its port goes down"),
        4 => ("local protection error", "memory was deregistered while messages of it were outstanding"),
        5 => ("flushed", "the queue pair had failed before"),
        9 => ("remote invalid request", "the other side's device refused the request"),
        10 => ("remote access error", "the other side's memory was deregistered, or its key is wrong"),
        11 => ("remote operation error", "the other side's device failed"),
        12 => (
            "no answer after all retries",
            "the other side's process or host is gone, its port is down, or packets of this size are lost on the way",
        ),
        13 => ("receiver not ready", "the other side had no receive posted"),
        21 => ("response timeout", "the other side did not answer"),
        _ => ("failed", "see the device's manual for this status"),
    }
}

/// What an asynchronous event means.
pub(super) fn event(kind: u32) -> String {
    let known = match kind {
        0 => "a completion queue has overflowed",
        1 => "a queue pair has failed",
        2 => "a queue pair has met an invalid request",
        3 => "a queue pair has met an access violation",
        4 => "communication has begun",
        8 => "the device has failed or was removed",
        9 => "a port has come up",
        10 => "a port has gone down",
        11 => "a port has another LID",
        13 => "the subnet manager has changed",
        18 => "the GID table has changed",
        _ => return format!("event {kind}"),
    };
    format!("{known} (event {kind})")
}

/// A failed completion in words, with the device's own codes.
pub(super) fn completion(done: &ibv_wc, device: &Opened) -> Cause {
    let (what, why) = status(done.status);
    let vendor = match done.vendor_err {
        0 => String::new(),
        code => format!(", vendor code {code:#x}"),
    };
    Cause { what: format!("{what} (status {}{vendor}) on {device}", done.status), why }
}

/// What is known of a failure.
#[derive(Debug, Clone)]
pub(super) struct Cause {
    what: String,
    why: &'static str,
}

impl Cause {
    /// The failure, explained by the state of the port where that is not as it should be; whether it is so.
    pub(super) fn fault(&self, device: &Opened) -> (Fault, bool) {
        let trouble = device.trouble();
        let text = match &trouble {
            Some(trouble) => format!("{trouble}; {}", self.what),
            None => format!("{}: {}", self.what, self.why),
        };
        (Fault::Lost(text), trouble.is_some())
    }
}

/// Whether a completion says only that something else went wrong before.
pub(super) const fn is_consequence(done: &ibv_wc) -> bool {
    done.status == IBV_WC_WR_FLUSH_ERR
}
