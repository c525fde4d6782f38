//! Whether the device can use what a call names.

use rccl_core::{DataType, ReduceOp};
use rccl_transport::cuda::{PointerInfo, PointerKind, PrimaryContext, Stream};

use crate::{Error, Result};

fn argument(what: &'static str, reason: String) -> Error {
    Error::Argument { what, reason }
}

/// The legacy and the per-thread default stream, which belong to every context, have these numbers.
const DEFAULT_STREAMS: std::ops::RangeInclusive<usize> = 0..=2;

/// Checks that a stream belongs to its device.
pub(super) fn check_stream(stream: &Stream) -> Result<()> {
    let raw = stream.raw().0.addr();
    if DEFAULT_STREAMS.contains(&raw) || stream.owner()? == stream.context().raw() {
        return Ok(());
    }
    let own = stream.context().device().ordinal();
    let reason = format!(
        "{raw:#x} is not a stream of the primary context of device {own}; create it while that device is current"
    );
    Err(argument("all_reduce: stream", reason))
}

/// Checks a call. Whether it asks for the average.
pub(super) fn check(
    context: &PrimaryContext,
    input: u64,
    output: u64,
    count: u64,
    data_type: DataType,
    op: ReduceOp,
) -> Result<bool> {
    if !matches!(data_type, DataType::Float | DataType::Half | DataType::Bfloat16) {
        let reason = format!("devices reduce float, half and bfloat16, not {data_type}; use host buffers");
        return Err(argument("all_reduce: data type", reason));
    }
    let average = match op {
        ReduceOp::Sum => false,
        ReduceOp::Avg => true,
        _ => {
            let reason = format!("devices reduce with sum and avg, not {op}; use host buffers");
            return Err(argument("all_reduce: operator", reason));
        }
    };
    if count == 0 {
        return Ok(average);
    }
    let size = data_type.size_bytes() as u64;
    let bytes = count.checked_mul(size).filter(|&bytes| bytes < 1 << 48).ok_or_else(|| {
        argument(
            "all_reduce: count",
            format!("{count} elements of {data_type} are more than any device holds"),
        )
    })?;
    check_buffer(context, "all_reduce: input", input, bytes, size)?;
    if output != input {
        check_buffer(context, "all_reduce: output", output, bytes, size)?;
        if output < input + bytes && input < output + bytes {
            let reason = format!(
                "{bytes} bytes at {output:#x} overlap the input at {input:#x}; they must lie apart or be the same"
            );
            return Err(argument("all_reduce: output", reason));
        }
    }
    Ok(average)
}

fn check_buffer(
    context: &PrimaryContext,
    what: &'static str,
    start: u64,
    bytes: u64,
    size: u64,
) -> Result<()> {
    if !start.is_multiple_of(size) {
        return Err(argument(
            what,
            format!("{start:#x} is not a multiple of {size}, the size of an element"),
        ));
    }
    let info = PointerInfo::of(context, start)?;
    check_kind(context, what, start, info.kind)?;
    let end = start.saturating_add(bytes);
    if end > info.range_start.saturating_add(info.range_bytes) {
        // Allocations may be mapped in several pieces: what counts is what lies at the end.
        check_kind(context, what, end - 1, PointerInfo::of(context, end - 1)?.kind)?;
    }
    Ok(())
}

fn check_kind(context: &PrimaryContext, what: &'static str, address: u64, kind: PointerKind) -> Result<()> {
    let own = context.device().ordinal();
    let found = match kind {
        PointerKind::Device { ordinal } if ordinal == own => return Ok(()),
        PointerKind::Device { ordinal } => format!("is memory of device {ordinal}"),
        PointerKind::Host => "is host memory (for that there is Communicator::all_reduce)".to_owned(),
        PointerKind::Managed => "is managed memory, which moves".to_owned(),
        PointerKind::Unknown => {
            "is not memory of any device: not from CUDA, freed, or past its end".to_owned()
        }
    };
    Err(argument(what, format!("{address:#x} {found}; memory of device {own} is needed")))
}
