//! How large messages are best written to slots: through the cache, or past it.
//!
//! Where the cores of publisher and reader share a cache, the reader finds a slot there, and writing through it is best (by
//! 1.3x, measured). Where they do not, reading what lies modified in another core's cache is several times slower than
//! reading memory, and writing past the cache is best (by 4x). Which is the case depends on where the scheduler, or a
//! hypervisor, puts the ranks, and changes while they run. So every program keeps both times and tries the slower way again
//! now and then. The choice is each rank's own: it changes no byte of any message.

use std::time::Duration;

/// A way to write slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the cache.
    Cached,
    /// Past the cache.
    Streamed,
}

/// What is known about the two ways.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    uses: u64,
    cached: Option<f64>,
    streamed: Option<f64>,
}

/// Every so many calls the slower way is tried again. All ranks count the same calls, so they try together.
const TRY_AGAIN: u64 = 64;

/// The weight of a new measurement against what was known before.
const WEIGHT: f64 = 0.3;

impl Ways {
    /// The way for the next call.
    pub(crate) fn choose(&mut self) -> Way {
        self.uses += 1;
        let (Some(cached), Some(streamed)) = (self.cached, self.streamed) else {
            return if self.cached.is_none() { Way::Cached } else { Way::Streamed };
        };
        let again = self.uses.is_multiple_of(TRY_AGAIN);
        if (cached <= streamed) != again { Way::Cached } else { Way::Streamed }
    }

    /// Notes how long a call took.
    pub(crate) fn note(&mut self, way: Way, took: Duration) {
        let known = match way {
            Way::Cached => &mut self.cached,
            Way::Streamed => &mut self.streamed,
        };
        let took = took.as_secs_f64();
        // A way that has become better is believed at once; a single slow call may be anything.
        *known = Some(known.map_or(took, |before| took.min(before + WEIGHT * (took - before))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ways: &mut Ways, calls: u32, cached_us: u64, streamed_us: u64) -> [u32; 2] {
        let mut count = [0; 2];
        for _ in 0..calls {
            let way = ways.choose();
            let us = if way == Way::Cached { cached_us } else { streamed_us };
            ways.note(way, Duration::from_micros(us));
            count[way as usize] += 1;
        }
        count
    }

    #[test]
    fn the_better_way_is_taken_and_the_other_tried_now_and_then() {
        let mut ways = Ways::default();
        assert_eq!(run(&mut ways, 2, 100, 130), [1, 1]);
        assert_eq!(run(&mut ways, 128, 100, 130), [126, 2]);
    }

    #[test]
    fn a_change_of_circumstances_is_noticed() {
        let mut ways = Ways::default();
        run(&mut ways, 100, 100, 130);
        let [cached, streamed] = run(&mut ways, 640, 400, 130);
        assert!(cached < 30 && streamed > 600, "{cached} {streamed}");
        let [cached, streamed] = run(&mut ways, 640, 100, 130);
        assert!(cached > 500 && streamed < 140, "{cached} {streamed}");
    }
}
