//! How large messages are best written: slots and results each through the cache, or past it.
//!
//! Slots: where the cores of publisher and reader share a cache, the reader finds a slot there, and writing through it is
//! best. Where they do not, reading what lies modified in another core's cache can be several times slower than reading
//! memory, and writing past the cache is best. Results: writing past the cache saves reading what is about to be
//! overwritten, but costs where the output's lines are in the cache already, as they are in place. Measured: up to 4x between
//! the two ways of writing slots, in either direction, and 1.5x for results. What holds depends on the CPU, and on where the
//! scheduler, or a hypervisor, puts the ranks, which changes while they run. So the times of all ways are kept, for calls of
//! about a size, and the slower ones are tried again now and then. The choice is each rank's own: it changes no byte of any
//! message. But trials follow from the number of calls alone, so that all ranks make them together: one rank's haste is
//! nothing while it waits for the others.

use std::{collections::HashMap, time::Duration};

/// A way to write what a call writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Way {
    /// Whether slots are written past the cache.
    pub(crate) streams_slots: bool,
    /// Whether results are written past the cache.
    pub(crate) streams_output: bool,
}

impl Way {
    /// All of them.
    const ALL: [Self; 4] = [
        Self { streams_slots: false, streams_output: false },
        Self { streams_slots: false, streams_output: true },
        Self { streams_slots: true, streams_output: false },
        Self { streams_slots: true, streams_output: true },
    ];
}

/// What is known about calls of all sizes.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// By the binary logarithm of the bytes and whether the calls are in place: no more than 128.
    by_kind: HashMap<(u32, bool), Times>,
}

/// From this many bytes on it matters how slots and results are written.
const MIN_BYTES: u64 = 32 << 10;

impl Ways {
    /// What is known about calls with outputs of about `bytes`, if that matters.
    pub(crate) fn of(&mut self, bytes: u64, in_place: bool) -> Option<&mut Times> {
        let kind = (bytes.checked_ilog2()?, in_place);
        (bytes >= MIN_BYTES).then(|| self.by_kind.entry(kind).or_insert_with(|| Times::new(bytes)))
    }
}

/// What is known about the ways, by their number in [`Way::ALL`].
///
/// Ways are timed in bursts of calls, since one short call may be anything: a rank that comes late finds everything there.
#[derive(Debug)]
pub(crate) struct Times {
    /// The seconds that a call takes.
    took_s: [Option<f64>; Way::ALL.len()],
    /// The numbers of the ways that come into question.
    candidates: &'static [usize],
    /// Calls of a burst.
    burst: u32,
    /// The way of the burst, what its calls took so far, and how many are left of it.
    current: usize,
    sum_s: f64,
    left: u32,
    /// Bursts so far.
    bursts: usize,
}

/// Results shorter than this are not written past the cache: the caller reads them next.
const STREAM_OUTPUT_BYTES: u64 = 1 << 20;

/// Every so many bursts one way is tried: if it is four times slower, that costs 2 % of the time.
const TRIAL_INTERVAL: usize = 128;

/// Bytes that the calls of a burst move together, and the bounds of its length.
const BURST_BYTES: u64 = 4 << 20;
const MAX_BURST: u64 = 64;

/// The weight of a new measurement against what was known before.
const WEIGHT: f64 = 0.5;

impl Times {
    /// For calls of about `bytes`, of which nothing is known yet.
    fn new(bytes: u64) -> Self {
        let burst = (BURST_BYTES / bytes.max(1)).clamp(1, MAX_BURST) as u32;
        Self {
            took_s: [None; Way::ALL.len()],
            candidates: if bytes < STREAM_OUTPUT_BYTES { &[0, 2] } else { &[0, 1, 2, 3] },
            burst,
            current: 0,
            sum_s: 0.0,
            left: burst,
            bursts: 0,
        }
    }

    /// The best way as far as is known; the first if nothing is.
    pub(crate) fn best(&self) -> Way {
        Way::ALL[self.best_number()]
    }

    fn best_number(&self) -> usize {
        let known = self.took_s.iter().enumerate().filter_map(|(number, took)| Some((number, (*took)?)));
        known.min_by(|one, other| one.1.total_cmp(&other.1)).map_or(0, |(number, _)| number)
    }

    /// The way for the next call, which is timed and [noted](Self::note).
    pub(crate) const fn choose(&self) -> Way {
        Way::ALL[self.current]
    }

    /// Notes how long the call took that [`Self::choose`] was asked about.
    pub(crate) fn note(&mut self, took: Duration) {
        self.sum_s += took.as_secs_f64();
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        // The first calls meet cold memory, and tell nothing.
        if self.bursts > 0 {
            self.learn(self.sum_s / f64::from(self.burst));
        }
        self.bursts += 1;
        (self.current, self.sum_s, self.left) = (self.next(), 0.0, self.burst);
    }

    /// Takes in what a call of the last burst took.
    fn learn(&mut self, took_s: f64) {
        let known = &mut self.took_s[self.current];
        // A way that has become better is believed at once.
        *known = Some(known.map_or(took_s, |known| took_s.min(known + WEIGHT * (took_s - known))));
    }

    /// The way of the next burst: each candidate in turn at first, and one of them every so often.
    fn next(&self) -> usize {
        let count = self.candidates.len();
        let trial = match self.bursts {
            first if first <= count => Some(first - 1),
            later if later.is_multiple_of(TRIAL_INTERVAL) => Some(later / TRIAL_INTERVAL),
            _ => None,
        };
        trial.map_or_else(|| self.best_number(), |trial| self.candidates[trial % count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large enough for bursts of one call.
    const LARGE: u64 = BURST_BYTES;

    /// Makes calls that take `us` by their ways; how often each was taken.
    fn run(ways: &mut Times, calls: u32, us: [u64; 4]) -> [u32; 4] {
        let mut count = [0; 4];
        for _ in 0..calls {
            let way = ways.choose();
            let number = Way::ALL.iter().position(|one| *one == way).unwrap();
            ways.note(Duration::from_micros(us[number]));
            count[number] += 1;
        }
        count
    }

    #[test]
    fn every_way_is_tried_at_first() {
        for (bytes, burst) in [(LARGE, 1), (LARGE / 4, 4), (u64::MAX, 1)] {
            let mut ways = Times::new(bytes);
            assert_eq!(ways.best(), Way::default());
            assert_eq!(run(&mut ways, burst, [500; 4]), [burst, 0, 0, 0], "cold memory");
            assert_eq!(run(&mut ways, 4 * burst, [130, 120, 100, 110]), [burst; 4]);
            assert_eq!(ways.best(), Way { streams_slots: true, streams_output: false });
        }
    }

    #[test]
    fn calls_of_about_a_size_learn_together() {
        let mut ways = Ways::default();
        assert!(ways.of(0, false).is_none() && ways.of(MIN_BYTES - 1, true).is_none());
        run(ways.of(LARGE, false).unwrap(), 10, [130, 120, 100, 110]);
        let best = Way { streams_slots: true, streams_output: false };
        assert_eq!(ways.of(LARGE + LARGE / 2, false).unwrap().best(), best);
        assert_eq!(ways.of(LARGE, true).unwrap().best(), Way::default());
        assert_eq!(ways.of(2 * LARGE, false).unwrap().best(), Way::default());
    }

    #[test]
    fn short_results_stay_in_the_cache() {
        let mut ways = Times::new(STREAM_OUTPUT_BYTES - 1);
        let count = run(&mut ways, 10_000, [100, 10, 90, 10]);
        assert!(count[0] > 0 && count[2] > count[0] && count[1] + count[3] == 0, "{count:?}");
    }

    #[test]
    fn the_best_way_is_taken_and_others_are_tried_now_and_then() {
        let mut ways = Times::new(LARGE);
        run(&mut ways, 5, [100, 130, 140, 150]);
        assert_eq!(run(&mut ways, 4 * TRIAL_INTERVAL as u32, [100, 130, 140, 150]), [4 * 127 + 1, 1, 1, 1]);
    }

    #[test]
    fn a_change_of_circumstances_is_noticed() {
        let mut ways = Times::new(LARGE);
        let calls = 100 * TRIAL_INTERVAL as u32;
        run(&mut ways, calls, [100, 130, 400, 400]);
        let count = run(&mut ways, calls, [400, 400, 100, 130]);
        assert!(count[2] > calls / 10 * 9, "{count:?}");
        let count = run(&mut ways, calls, [100, 130, 400, 400]);
        assert!(count[0] > calls / 10 * 9, "{count:?}");
    }

    #[test]
    fn ranks_with_different_times_make_trials_together() {
        let [mut one, mut other] = [Times::new(LARGE), Times::new(LARGE)];
        run(&mut one, 1000, [100, 130, 140, 150]);
        run(&mut other, 1000, [150, 140, 130, 100]);
        let trials = |ways: &mut Times, us| (0..1000).filter(|_| run(ways, 1, us)[1] == 1).count();
        assert_eq!(trials(&mut one, [100, 130, 140, 150]), trials(&mut other, [150, 140, 130, 100]));
    }

    #[test]
    fn a_single_odd_call_among_short_ones_changes_nothing() {
        let mut ways = Times::new(LARGE / 16);
        let us = [100, 130, 130, 130];
        run(&mut ways, 5 * 16, us);
        for odd_us in [500, 0] {
            ways.note(Duration::from_micros(odd_us));
            run(&mut ways, 15, us);
            assert_eq!(ways.best(), Way::default());
        }
    }
}
