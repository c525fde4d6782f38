//! The table, in the columns of nccl-tests.

use std::fmt::Write as _;

use super::{
    measure::{Point, Row},
    statistics::percentile,
};

/// Which columns there are besides the usual.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    pub(super) percentiles: bool,
    /// Whether GPUs' clocks are shown too.
    pub(super) device: bool,
    pub(super) peer: bool,
    /// Whether operations in place are measured.
    pub(super) in_place: bool,
}

const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];

/// The width of the columns before the measured ones.
const LEFT: usize = 12 + 13 + 10 + 8 + 6;

impl Columns {
    /// The lines above the first row.
    pub(super) fn header(self) -> String {
        let width = self.mode(["", "", "", ""], "", ["", "", ""], ["", ""]).len();
        let modes: &[&str] = if self.in_place { &["out-of-place", "in-place"] } else { &["out-of-place"] };
        let titles: String = modes.iter().map(|title| format!("{title:^width$}")).collect();
        let names = self.mode(
            ["time", "algbw", "busbw", "#wrong"],
            "device",
            ["p50", "p90", "p99"],
            ["peer", "ratio"],
        );
        let units =
            self.mode(["(us)", "(GB/s)", "(GB/s)", ""], "(us)", ["(us)", "(us)", "(us)"], ["(us)", ""]);
        let lines = [
            format!("#{:LEFT$}{titles}", ""),
            format!(
                "#{:>12}{:>13}{:>10}{:>8}{:>6}{}{:>9}",
                "size",
                "count",
                "type",
                "redop",
                "root",
                names.repeat(modes.len()),
                "limit"
            ),
            format!(
                "#{:>12}{:>13}{:24}{}{:>9}",
                "(B)",
                "(elements)",
                "",
                units.repeat(modes.len()),
                "(GB/s)"
            ),
        ];
        lines.map(|line| line.trim_end().to_owned()).join("\n")
    }

    fn mode(self, usual: [&str; 4], device: &str, percentiles: [&str; 3], peer: [&str; 2]) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "{:>12}{:>9}{:>9}{:>8}", usual[0], usual[1], usual[2], usual[3]);
        if self.device {
            let _ = write!(text, "{device:>11}");
        }
        if self.percentiles {
            percentiles.iter().for_each(|cell| _ = write!(text, "{cell:>11}"));
        }
        if self.peer {
            let _ = write!(text, "{:>12}{:>8}", peer[0], peer[1]);
        }
        text
    }

    /// The line of one size.
    pub(super) fn row(self, row: &Row) -> String {
        let root = row.root.map_or(-1, i64::from);
        let left = format!(
            " {:>12}{:>13}{:>10}{:>8}{root:>6}",
            row.bytes,
            row.count,
            row.data_type.name(),
            row.op.map_or("none", |op| op.name())
        );
        let points: String = row.points.iter().map(|point| self.point(point)).collect();
        format!("{left}{points}{:>9}", bandwidth(row.limit_busbw))
    }

    fn point(self, point: &Point) -> String {
        let wrong = point.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
        let percentiles = PERCENTILES.map(|percent| cell(percentile(&point.samples_us, percent), time));
        let peer = point.peer.as_ref();
        self.mode(
            [&time(point.us), &bandwidth(point.algbw), &bandwidth(point.busbw), &wrong],
            &cell(point.device_us, time),
            percentiles.each_ref().map(String::as_str),
            [
                &cell(peer.map(|it| it.us), time),
                &cell(peer.map(|it| it.ratio), |ratio| format!("{ratio:.2}")),
            ],
        )
    }
}

fn cell(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// Microseconds, to about four digits.
pub(super) fn time(us: f64) -> String {
    let digits = if us < 10.0 {
        3
    } else if us < 100.0 {
        2
    } else {
        usize::from(us < 1000.0)
    };
    format!("{us:.digits$}")
}

/// A bandwidth: two decimals as in nccl-tests, more where those would show nothing.
fn bandwidth(gigabytes: f64) -> String {
    let digits = if gigabytes < 0.1 { 4 } else { 2 };
    format!("{gigabytes:.digits$}")
}

/// The lines below the last row.
pub(super) fn footer(wrong: Option<u64>, busbw: &[f64]) -> String {
    let verdict = match wrong {
        Some(0) => "0 OK".to_owned(),
        Some(wrong) => format!("{wrong} FAILED"),
        None => "not checked".to_owned(),
    };
    let average = if busbw.is_empty() { 0.0 } else { busbw.iter().sum::<f64>() / busbw.len() as f64 };
    format!("# Out of bounds values : {verdict}\n# Avg bus bandwidth    : {average:.4}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::PeerPoint;
    use rccl_core::{DataType, ReduceOp};

    fn row() -> Row {
        let point = Point {
            in_place: false,
            us: 412.34,
            algbw: 2.543,
            busbw: 2.543,
            device_us: Some(408.7),
            cpu_s_per_gb: 0.5,
            samples_us: vec![400.0, 410.0, 900.0],
            wrong: Some(0),
            peer: Some(PeerPoint { us: 824.0, busbw: 1.27, cpu_s_per_gb: 0.9, ratio: 2.0, in_place: true }),
        };
        Row {
            bytes: 1 << 20,
            count: 1 << 18,
            data_type: DataType::Float,
            op: Some(ReduceOp::Sum),
            root: None,
            points: vec![point.clone(), Point { in_place: true, wrong: None, ..point }],
            limit_busbw: 9.5,
        }
    }

    #[test]
    fn columns_stand_below_their_names() {
        for (percentiles, device) in [(false, false), (false, true), (true, false), (true, true)] {
            for peer in [false, true] {
                let columns = Columns { percentiles, device, peer, in_place: true };
                let header = columns.header();
                let (names, row) = (header.lines().nth(1).unwrap(), columns.row(&row()));
                assert_eq!(names.len(), row.len(), "{header}\n{row}");
                assert_eq!(
                    names.replace('#', " ").split_whitespace().count(),
                    row.split_whitespace().count()
                );
                assert!(row.contains("412.3") && row.contains("N/A"));
                assert_eq!(row.contains("900.0"), percentiles);
                assert_eq!(row.contains("408.7"), device);
                assert_eq!(row.contains("2.00"), peer);
            }
        }
    }

    #[test]
    fn times_have_about_four_digits() {
        assert_eq!([1.2345, 12.345, 123.45, 1234.5].map(time), ["1.234", "12.35", "123.5", "1234"]);
    }

    #[test]
    fn the_footer_passes_judgement() {
        assert!(footer(Some(0), &[1.0, 2.0]).contains("0 OK"));
        assert!(footer(Some(0), &[1.0, 2.0]).contains("1.5000"));
        assert!(footer(Some(3), &[]).contains("3 FAILED"));
        assert!(footer(None, &[]).contains("not checked"));
    }
}
