//! The only place that divides lengths.
//!
//! Everything else asks here for a piece by its number. The property that matters, tested exhaustively below: the
//! pieces tile the whole, in order, without gap or overlap.

use std::ops::Range;

/// Piece `index` of `parts` nearly equal pieces of `0..total`, each starting at a multiple of `align`.
///
/// The total is counted in blocks of `align` elements (the last block may be short); the first `blocks % parts` pieces
/// get one block more than the others. Pieces may be empty.
///
/// # Panics
/// If `parts` or `align` is 0 or `index` is not below `parts`.
///
/// ```
/// use rccl_core::split::share;
/// assert_eq!([share(10, 3, 0, 1), share(10, 3, 1, 1), share(10, 3, 2, 1)], [0..4, 4..7, 7..10]);
/// assert_eq!([share(10, 2, 0, 4), share(10, 2, 1, 4)], [0..8, 8..10]);
/// ```
#[must_use]
pub fn share(total: u64, parts: u64, index: u64, align: u64) -> Range<u64> {
    assert!(align > 0 && index < parts, "share {index} of {parts} aligned to {align}");
    let blocks = total.div_ceil(align);
    let (every, extra) = (blocks / parts, blocks % parts);
    let first = index * every + index.min(extra);
    let count = every + u64::from(index < extra);
    let start = first.saturating_mul(align).min(total);
    start..(first + count).saturating_mul(align).min(total)
}

/// The number of segments of at most `segment` elements that `len` elements need.
///
/// # Panics
/// If `segment` is 0.
#[must_use]
pub const fn segments(len: u64, segment: u64) -> u64 {
    assert!(segment > 0);
    len.div_ceil(segment)
}

/// Segment `index` of a span of `len` elements cut into segments of `segment` elements: its range relative to the
/// start of the span, empty past the end.
#[must_use]
pub fn segment(len: u64, segment: u64, index: u64) -> Range<u64> {
    let start = index.saturating_mul(segment).min(len);
    start..start.saturating_add(segment).min(len)
}

/// Whole elements of `data_type` in `bytes` bytes.
#[must_use]
pub const fn elements(bytes: u64, data_type: crate::DataType) -> u64 {
    bytes / data_type.size_bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_tile_the_whole_exhaustively() {
        for total in 0..70 {
            for parts in 1..20 {
                for align in [1, 2, 3, 4, 16, 64] {
                    let mut end = 0;
                    for index in 0..parts {
                        let piece = share(total, parts, index, align);
                        assert_eq!(piece.start, end, "{total} {parts} {index} {align}");
                        assert!(
                            piece.start <= piece.end
                                && (piece.start.is_multiple_of(align) || piece.is_empty())
                        );
                        end = piece.end;
                    }
                    assert_eq!(end, total);
                }
            }
        }
    }

    #[test]
    fn shares_differ_by_at_most_one_block() {
        for total in 0..200 {
            for parts in 1..20 {
                let lens: Vec<u64> =
                    (0..parts).map(|i| share(total, parts, i, 1)).map(|r| r.end - r.start).collect();
                assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn shares_tile_the_largest_lengths() {
        for total in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 33) + 7] {
            for parts in [1, 2, 3, 7, 1024] {
                let mut end = 0;
                for index in 0..parts {
                    let piece = share(total, parts, index, 16);
                    assert_eq!(piece.start, end);
                    end = piece.end;
                }
                assert_eq!(end, total);
            }
        }
    }

    #[test]
    fn segments_tile_a_span() {
        for len in 0..50 {
            for size in 1..20 {
                let mut end = 0;
                for index in 0..segments(len, size) {
                    let piece = segment(len, size, index);
                    assert!(piece.start == end && !piece.is_empty());
                    end = piece.end;
                }
                assert_eq!(end, len);
                assert!(segment(len, size, segments(len, size)).is_empty());
            }
        }
    }
}
