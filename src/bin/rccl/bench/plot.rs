//! Bus bandwidth over size, as a picture.

use std::{fmt::Write as _, fs, path::Path};

use super::record::Record;
use crate::{
    error::{Error, Result},
    size,
};

/// A line of the picture.
struct Series {
    name: String,
    /// How the line is interrupted: ours is not, the peer's and the limit are.
    dashes: &'static str,
    /// Bytes and busbw, in the order measured.
    points: Vec<(u64, f64)>,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 270.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];

/// Writes the picture of `records` to an SVG file.
///
/// # Errors
/// [`Error::File`] if it cannot be written.
pub(super) fn write(path: &Path, records: &[Record]) -> Result<()> {
    fs::write(path, svg(records)).map_err(|error| Error::file(path, error))
}

/// Ours and the peer's lines, out of place and in place, and the limit of each transport.
fn series(records: &[Record]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let mut add = |name: String, dashes, bytes, busbw| match all.iter_mut().find(|it| it.name == name) {
        Some(series) => series.points.push((bytes, busbw)),
        None => all.push(Series { name, dashes, points: vec![(bytes, busbw)] }),
    };
    for record in records.iter().filter(|record| record.bytes > 0) {
        let Record { dtype, op, bytes, .. } = record;
        let transport = if record.what.starts_with("gpu") { "gpu" } else { &record.transport };
        let place = if record.in_place { "in place" } else { "out of place" };
        let name = format!("{transport} {dtype} {op}");
        add(format!("{name}, {place}"), "none", *bytes, record.ours_busbw);
        if let Some(busbw) = record.peer_busbw {
            add(format!("{} {name}, {place}", record.peer), "7 4", *bytes, busbw);
        }
        if !record.in_place {
            add(format!("limit {name}"), "2 4", *bytes, record.limit_busbw);
        }
    }
    all
}

fn svg(records: &[Record]) -> String {
    let series = series(records);
    let bytes = || series.iter().flat_map(|it| it.points.iter().map(|point| point.0));
    let (first, last) = (bytes().min().unwrap_or(1), bytes().max().unwrap_or(1));
    let highest = series.iter().flat_map(|it| it.points.iter().map(|point| point.1)).fold(0.0, f64::max);
    let step = tick(highest);
    let top = step * (highest / step).ceil().max(1.0);
    let span = (last as f64 / first as f64).log2().max(1.0);
    let x = |bytes: u64| LEFT + (bytes as f64 / first as f64).log2() / span * (WIDTH - LEFT - RIGHT);
    let y = |busbw: f64| HEIGHT - BOTTOM - busbw / top * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let right = WIDTH - RIGHT;
    let title = records
        .first()
        .map_or_else(String::new, |it| format!("{}, {} ranks: bus bandwidth", it.collective, it.ranks));
    text(&mut svg, LEFT, 22.0, "start", &title);
    text(&mut svg, LEFT, 38.0, "start", records.first().map_or("", |it| it.machine.as_str()));
    text(&mut svg, LEFT - 8.0, TOP - 8.0, "end", "GB/s");
    let mut value = 0.0;
    while value <= top * 1.001 {
        line(&mut svg, (LEFT, y(value)), (right, y(value)));
        text(&mut svg, LEFT - 8.0, y(value) + 4.0, "end", &format!("{}", (value * 1e6).round() / 1e6));
        value += step;
    }
    for power in first.ilog2()..=last.ilog2() {
        // Every second power of two is labelled; more would run into each other.
        let bytes = 1_u64 << power;
        if bytes >= first && power % 2 == 0 {
            line(&mut svg, (x(bytes), TOP), (x(bytes), HEIGHT - BOTTOM));
            text(&mut svg, x(bytes), HEIGHT - BOTTOM + 18.0, "middle", &size::human(bytes));
        }
    }
    for (index, it) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let style = format!(
            "fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{}\"",
            it.dashes
        );
        let points: Vec<String> =
            it.points.iter().map(|&(b, w)| format!("{:.1},{:.1}", x(b), y(w))).collect();
        let legend = TOP + 18.0 * index as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<polyline {style} points=\"{}\"/>", points.join(" "));
        let _ = writeln!(svg, "<path {style} d=\"M{} {legend}h24\"/>", right + 12.0);
        text(&mut svg, right + 42.0, legend + 4.0, "start", &it.name);
    }
    svg + "</svg>\n"
}

/// A round distance between marks that gives four to ten of them.
fn tick(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf((highest / 4.0).log10().floor());
    let factor = [5.0, 2.0, 1.0].into_iter().find(|factor| factor * power <= highest / 4.0).unwrap_or(1.0);
    factor * power
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ =
        writeln!(svg, "<path stroke=\"#ddd\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>", from.0, from.1, to.0, to.1);
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::record;

    #[test]
    fn every_line_is_drawn_and_named() {
        let mut records = Vec::new();
        for bytes in [1024, 4096, 16_384] {
            for in_place in [false, true] {
                let peer = ("a<b".to_owned(), Some(0.2));
                records.push(Record { bytes, in_place, peer: peer.0, peer_busbw: peer.1, ..record() });
            }
        }
        let svg = svg(&records);
        assert_eq!(svg.matches("<polyline").count(), 5);
        assert!(svg.contains("a&lt;b shm float sum, in place") && svg.contains("limit shm float sum"));
        assert!(svg.contains("4 KiB") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn marks_are_round_and_few() {
        for highest in [0.003, 0.4, 1.0, 9.9, 10.0, 47.0, 1234.0] {
            let marks = highest / tick(highest);
            assert!((3.99..=10.01).contains(&marks), "{highest}: {marks}");
        }
    }

    #[test]
    fn one_point_or_none_is_a_picture_too() {
        for records in [vec![], vec![record()], vec![Record { bytes: 0, ..record() }]] {
            assert!(!svg(&records).contains("NaN"));
        }
    }
}
