//! Where the buffers of a rank lie.

use crate::{Plan, plan::Buffer};

/// Maps the buffers of a rank to memories: three separate ones, or in place two, the smaller buffer lying in the larger.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    in_place: bool,
    input_start: u64,
    output_start: u64,
}

impl Layout {
    pub(super) fn new(plan: &Plan, in_place: bool) -> Self {
        let offset = if in_place { plan.request.in_place_offset(plan.group).unwrap_or(0) } else { 0 };
        if plan.input_len() <= plan.output_len() {
            Self { in_place, input_start: offset, output_start: 0 }
        } else {
            Self { in_place, input_start: 0, output_start: offset }
        }
    }

    /// The memory that holds element `start` of `buffer`, and its address there.
    pub(super) const fn address(self, buffer: Buffer, start: u64) -> (Buffer, u64) {
        match buffer {
            Buffer::Scratch => (Buffer::Scratch, start),
            Buffer::Output => (Buffer::Output, self.output_start + start),
            Buffer::Input if self.in_place => (Buffer::Output, self.input_start + start),
            Buffer::Input => (Buffer::Input, start),
        }
    }
}
