//! Medians, percentiles and bandwidths.

use rccl_core::Collective;

/// The median of `values`; of an even number of them the mean of the two in the middle. `None` of nothing.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The smallest of `values` that at least `percent` of them do not exceed. `None` of nothing.
pub(super) fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// What the algorithm bandwidth is multiplied by to give the bus bandwidth, as in nccl-tests: the bytes that must pass each
/// rank's link, for each byte of the size, whatever the algorithm.
pub(super) fn bus_factor(collective: Collective, ranks: u32) -> f64 {
    let n = f64::from(ranks);
    match collective {
        Collective::AllReduce => 2.0 * (n - 1.0) / n,
        Collective::AllGather | Collective::ReduceScatter => (n - 1.0) / n,
        Collective::Broadcast | Collective::SendRecv => 1.0,
    }
}

/// `bytes` in `us` microseconds, in 1e9 bytes a second.
pub(super) fn gigabytes_per_second(bytes: u64, us: f64) -> f64 {
    if us > 0.0 { bytes as f64 / us / 1e3 } else { 0.0 }
}

/// How many operations of `us` microseconds each to time as one batch: enough to fill 20 ms, at least 20 where they take
/// no longer than half a second together, at least 3 in any case.
pub(super) fn iterations(us: f64) -> u32 {
    let us = us.max(0.1);
    let fill = (20e3 / us).ceil();
    let usual = (500e3 / us).floor().min(20.0);
    fill.max(usual).clamp(3.0, 20_000.0) as u32
}

/// How many operations of `us` microseconds each to carry out before timing a batch: 5, fewer where that takes longer than a
/// tenth of a second, at least 1.
pub(super) fn warmup(us: f64) -> u32 {
    (100e3 / us.max(0.1)).clamp(1.0, 5.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn percentiles() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), Some(100.0));
        assert_eq!(percentile(&values, 99.0), Some(198.0));
        assert_eq!(percentile(&values, 100.0), Some(200.0));
        assert_eq!(percentile(&[5.0], 0.0), Some(5.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn bandwidths() {
        assert_eq!(gigabytes_per_second(1_000_000, 1000.0), 1.0);
        assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::AllGather, 4), 0.75);
        assert_eq!(bus_factor(Collective::Broadcast, 4), 1.0);
        assert_eq!(bus_factor(Collective::AllReduce, 1), 0.0);
    }

    #[test]
    fn batches_are_neither_too_short_nor_too_long() {
        assert_eq!(iterations(2.0), 10_000);
        assert_eq!(iterations(0.0), 20_000);
        assert_eq!(iterations(10_000.0), 20);
        assert_eq!(iterations(100_000.0), 5);
        assert_eq!(iterations(5_000_000.0), 3);
        assert_eq!([0.0, 2.0, 40e3, 5e6].map(warmup), [5, 5, 2, 1]);
    }
}
