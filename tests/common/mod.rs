//! What the integration tests share. Not every test uses all of it.
#![allow(dead_code, reason = "compiled into each test")]

pub(crate) mod process;

use rccl::{Algorithm, Communicator, Options, TransportChoice};

/// Runs `body` for every rank of a new group, each on a thread of its own, and gives what they return, in rank order.
pub(crate) fn group<R: Send>(
    size: u32,
    options: &Options,
    body: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let communicators = Communicator::local(size, options).expect("the group forms");
    std::thread::scope(|threads| {
        let body = &body;
        let ranks: Vec<_> =
            communicators.into_iter().map(|rank| threads.spawn(move || body(&rank))).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Options with a transport and an algorithm, and with deadlines that end a hanging test.
pub(crate) fn options(transport: TransportChoice, algorithm: Option<Algorithm>) -> Options {
    Options {
        transport,
        algorithm,
        deadline: std::time::Duration::from_secs(60),
        init_timeout: std::time::Duration::from_secs(30),
        ..Options::default()
    }
}

/// Reproducible bytes that look random (SplitMix64).
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    });
    words.flat_map(u64::to_le_bytes).take(len).collect()
}
