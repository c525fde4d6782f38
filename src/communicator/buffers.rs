//! What can be said about untyped buffers before they are touched.

use rccl_core::{Group, Request};

use crate::{Error, Result};

/// Checks the request and that the buffers are there, and lie apart or exactly in place.
#[inline]
pub(crate) fn check(group: Group, request: &Request, input: *const u8, output: *mut u8) -> Result<()> {
    request.check(group)?;
    let element = request.data_type.size_bytes();
    let reads = request.root.is_none_or(|root| root == group.rank());
    let input_bytes = if reads { request.input_len(group) as usize * element } else { 0 };
    let output_bytes = request.output_len(group) as usize * element;
    for (what, address, bytes) in
        [("input", input.addr(), input_bytes), ("output", output.addr(), output_bytes)]
    {
        if bytes > 0 && address == 0 {
            let reason =
                format!("it is null, but {} reads or writes {bytes} bytes there", request.collective);
            return Err(Error::Argument { what, reason });
        }
    }
    let (input, output) = (input.addr(), output.addr());
    let overlap = input < output.saturating_add(output_bytes) && output < input.saturating_add(input_bytes);
    if overlap && input_bytes > 0 && output_bytes > 0 && !in_place(group, request, input, output, element) {
        let reason = format!(
            "{input_bytes} bytes of input at {input:#x} and {output_bytes} bytes of output at {output:#x} overlap without \
             being in place; let them lie apart, or where an in-place {} has them",
            request.collective
        );
        return Err(Error::Argument { what: "buffers", reason });
    }
    Ok(())
}

fn in_place(group: Group, request: &Request, input: usize, output: usize, element: usize) -> bool {
    let Some(offset) = request.in_place_offset(group) else { return false };
    let offset = offset as usize * element;
    // The smaller buffer lies within the larger one.
    if request.output_len(group) > request.input_len(group) {
        input.wrapping_sub(output) == offset
    } else {
        output.wrapping_sub(input) == offset
    }
}
