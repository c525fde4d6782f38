//! The loops of a reduction, the same for all levels. All of it is inlined into the kernels.

use std::ops::Range;

use super::{LINE_BYTES, Simd, end_streaming};
use crate::reduce::{
    Constants, STREAM_MIN_BYTES, Source, Target,
    number::{Accumulator, Number},
    operator::Operator,
};

/// Elements of the chunks that work on what is shorter than a whole one.
const SHORT: usize = 8;

/// The body of every kernel, working on `W` elements at a time.
///
/// # Safety
/// As [`super::Kernel`].
#[inline(always)]
pub(super) unsafe fn reduce<N: Number, O: Operator, S: Simd, const W: usize>(
    simd: S,
    constants: &Constants,
    sources: &[Source],
    targets: &[Target],
    elems: usize,
) {
    let chunks = Chunks { simd, constants: *constants, streams: false };
    let streams = elems * size_of::<N>() >= STREAM_MIN_BYTES && targets.iter().any(|target| target.stream);
    if let (&[first, second], &[target], false) = (sources, targets, streams) {
        // The hot case by itself: where the compiler knows their lengths, the loops over sources and targets vanish.
        // SAFETY: the caller's promise, passed on.
        unsafe { chunks.span::<N, O, W>(&[first, second], &[target], 0..elems) };
        return;
    }
    let chunks = Chunks { streams, ..chunks };
    let head = if streams { elems_to_line::<N>(targets).min(elems) } else { 0 };
    for span in [0..head, head..elems] {
        // SAFETY: the caller's promise, passed on; both spans lie within the elements.
        unsafe { chunks.span::<N, O, W>(sources, targets, span) };
    }
    if streams {
        end_streaming();
    }
}

/// Elements up to the first cache line of the first streamed target that begins with an element, if there is one.
fn elems_to_line<N>(targets: &[Target]) -> usize {
    targets
        .iter()
        .filter(|target| target.stream)
        .map(|target| target.ptr.addr().wrapping_neg() % LINE_BYTES)
        .find(|bytes| bytes.is_multiple_of(size_of::<N>()))
        .map_or(0, |bytes| bytes / size_of::<N>())
}

/// How chunks are reduced.
#[derive(Clone, Copy)]
struct Chunks<S> {
    simd: S,
    constants: Constants,
    /// Whether targets that ask for it are streamed.
    streams: bool,
}

impl<S: Simd> Chunks<S> {
    /// Reduces the elements of `span`.
    ///
    /// # Safety
    /// As [`super::Kernel`]; `span` must lie within the elements.
    #[inline(always)]
    unsafe fn span<N: Number, O: Operator, const W: usize>(
        self,
        sources: &[Source],
        targets: &[Target],
        mut span: Range<usize>,
    ) {
        while span.len() >= W {
            // SAFETY: the caller's promise; the span still has as many elements.
            unsafe { self.chunk::<N, O, W>(sources, targets, span.start) };
            span.start += W;
        }
        while span.len() >= SHORT {
            // SAFETY: as above.
            unsafe { self.chunk::<N, O, SHORT>(sources, targets, span.start) };
            span.start += SHORT;
        }
        for index in span {
            // SAFETY: as above.
            unsafe { self.chunk::<N, O, 1>(sources, targets, index) };
        }
    }

    /// Reduces `W` elements from element `first` on. Everything is read before anything is written, so that a target may be a
    /// source.
    ///
    /// # Safety
    /// As [`super::Kernel`]; the elements must exist.
    #[inline(always)]
    unsafe fn chunk<N: Number, O: Operator, const W: usize>(
        self,
        sources: &[Source],
        targets: &[Target],
        first: usize,
    ) {
        let offset = first * size_of::<N>();
        // SAFETY: kernels get at least one source, and the caller vouches for its elements.
        let mut result = unsafe { self.load::<N, O, W>(&sources[0], offset) };
        for source in &sources[1..] {
            // SAFETY: the caller vouches for the elements.
            let next = unsafe { self.load::<N, O, W>(source, offset) };
            for index in 0..W {
                result[index] = O::combine(result[index], next[index]);
            }
        }
        if O::DIVIDES {
            for value in &mut result {
                *value = value.divided_by(self.constants.ranks);
            }
        }
        let result = N::encode(self.simd, &result);
        for target in targets {
            // SAFETY: the caller vouches for the elements.
            unsafe { self.store(target, offset, &result) };
        }
    }

    /// # Safety
    /// `W` elements of the source, `offset` bytes from its start on, must be valid for reads.
    #[inline(always)]
    unsafe fn load<N: Number, O: Operator, const W: usize>(
        self,
        source: &Source,
        offset: usize,
    ) -> [N::Accumulator; W] {
        // SAFETY: the offset lies within the source, by the caller's promise.
        let from = unsafe { source.ptr.add(offset) };
        // SAFETY: the caller vouches for the bytes, any of which are elements (`Element` is sealed over plain old data).
        let chunk = unsafe { from.cast::<[N; W]>().read_unaligned() };
        let mut values = N::decode(self.simd, &chunk);
        if O::SCALES && source.raw {
            let scalar = N::Accumulator::from_low_bits(self.constants.scalar);
            for value in &mut values {
                *value = value.times(scalar);
            }
        }
        values
    }

    /// # Safety
    /// `W` elements of the target, `offset` bytes from its start on, must be valid for writes.
    #[inline(always)]
    unsafe fn store<N: Number, const W: usize>(self, target: &Target, offset: usize, chunk: &[N; W]) {
        // SAFETY: the offset lies within the target, by the caller's promise.
        let to = unsafe { target.ptr.add(offset) };
        let whole_lines = size_of::<[N; W]>().is_multiple_of(LINE_BYTES);
        if !(whole_lines && self.streams && target.stream && to.addr().is_multiple_of(LINE_BYTES)) {
            // SAFETY: the caller vouches for the bytes.
            unsafe { to.cast::<[N; W]>().write_unaligned(*chunk) };
            return;
        }
        for line in (0..size_of::<[N; W]>()).step_by(LINE_BYTES) {
            // SAFETY: the chunk is of whole lines.
            let from = unsafe { chunk.as_ptr().cast::<u8>().add(line) };
            // SAFETY: the caller vouches for as many bytes of the target as the chunk has.
            let to = unsafe { to.add(line) };
            // SAFETY: both lines were just seen to exist; the alignment was checked above; `reduce` ends streaming.
            unsafe { self.simd.stream(from, to) };
        }
    }
}
