//! Calls captured into graphs, replayed among other calls.

use libtest_mimic::Failed;
use rccl::{DataType, ReduceOp};
use rccl_transport::cuda::{Graph, Stream};

use crate::case::{Case, NAMES, PATIENCE, Side, must_share, named, on_devices, shared};

/// Captures the calls, which must all be taken.
pub(crate) fn captured(side: &Side, cases: &[Case]) -> rccl::Result<Graph> {
    let mut failed = None;
    let graph = Graph::capture(&side.stream, || {
        failed = cases.iter().find_map(|case| side.enqueue(case, &side.stream).err());
        Ok(())
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(graph?),
    }
}

/// A graph of three calls, replayed before, between and after eager calls.
pub(crate) fn graphs_and_calls(ranks: u32, name: &str) -> Result<(), Failed> {
    if name == "bulk" && must_share(ranks) {
        return refused(ranks);
    }
    on_devices(ranks, &named(name), |side| {
        const MOST: usize = 9 << 20;
        let (input, output) = (side.memory(MOST)?, side.memory(MOST)?);
        let (second, other) = (side.memory(MOST)?, side.memory(MOST)?);
        let mut graphs = Vec::new();
        for (seed, bytes) in [64, 256 << 10, 1 << 20, MOST].into_iter().enumerate() {
            let case = Case::sum(input.start(), output.start(), bytes as u64 / 4, seed as u64);
            let mean = Case { output: second.start(), op: ReduceOp::Avg, ..case };
            let eager = Case { output: other.start(), data_type: DataType::Half, ..case };
            graphs.push(captured(side, &[case, mean, case])?);
            for _ in 0..3 {
                side.run(&eager)?;
                side.fill(&case)?;
                side.fill(&mean)?;
                side.barrier()?;
                // SAFETY: the buffers and the graph live until the stream is waited for.
                unsafe { graphs[seed].launch(&side.stream) }?;
                side.enqueue(&mean, &side.stream)?;
                // SAFETY: as above.
                unsafe { graphs[seed].launch(&side.stream) }?;
                side.stream.wait(PATIENCE)?;
                side.verify(&case)?;
                side.verify(&mean)?;
            }
            side.barrier()?;
        }
        side.barrier()
    });
    Ok(())
}

/// Copy engines that several ranks share cannot be captured, which leaves the communicator as it was.
fn refused(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, &named("bulk"), |side| {
        let (input, output) = (side.memory(4096)?, side.memory(4096)?);
        let case = Case::sum(input.start(), output.start(), 1000, 1);
        side.barrier()?;
        let error = captured(side, &[case]).unwrap_err().to_string();
        assert!(error.contains("share a device"), "{error}");
        side.run(&case)?;
        side.barrier()
    });
    Ok(())
}

/// A replay on one stream and calls on another follow each other, though nothing else orders the streams: each overwrites
/// what the one before wrote, so the last one's result must be left.
pub(crate) fn replays_and_streams_take_turns(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, &shared(), |side| {
        const COUNT: u64 = 200_000;
        let second = Stream::new(&side.context)?;
        let (one, two, output) = (side.memory(1 << 20)?, side.memory(1 << 20)?, side.memory(1 << 20)?);
        let first = Case::sum(one.start(), output.start(), COUNT, 1);
        let last = Case::sum(two.start(), output.start(), COUNT, 2);
        let graph = captured(side, &[first])?;
        side.fill(&first)?;
        side.fill(&last)?;
        side.barrier()?;
        for _ in 0..50 {
            // SAFETY: the buffers and the graph live until the streams are waited for.
            unsafe { graph.launch(&side.stream) }?;
            side.enqueue(&last, &second)?;
        }
        side.stream.wait(PATIENCE)?;
        second.wait(PATIENCE)?;
        side.verify(&last)?;
        side.enqueue(&last, &second)?;
        // SAFETY: as above.
        unsafe { graph.launch(&side.stream) }?;
        side.stream.wait(PATIENCE)?;
        side.verify(&first)?;
        side.barrier()
    });
    Ok(())
}

/// A capture that fails leaves the communicator as it was.
pub(crate) fn failed_capture(ranks: u32) -> Result<(), Failed> {
    for name in NAMES.into_iter().filter(|&name| name != "bulk" || !must_share(ranks)) {
        on_devices(ranks, &named(name), |side| {
            let (input, output) = (side.memory(4 << 20)?, side.memory(4 << 20)?);
            let case = Case::sum(input.start(), output.start(), 1 << 20, 3);
            side.barrier()?;
            let mut after = None;
            let broken = Graph::capture(&side.stream, || {
                let enqueued = side.enqueue(&case, &side.stream);
                assert!(enqueued.is_ok(), "{enqueued:?}");
                // Waiting for a stream under capture is not allowed, and invalidates the capture.
                side.stream.synchronize().unwrap_err();
                after = side.enqueue(&case, &side.stream).err();
                Ok(())
            });
            assert!(broken.is_err());
            assert!(after.expect("a broken capture takes no call").to_string().contains("capture"));
            side.run(&case)?;
            let graph = captured(side, &[case])?;
            side.fill(&case)?;
            side.barrier()?;
            // SAFETY: the buffers and the graph live until the stream is waited for.
            unsafe { graph.launch(&side.stream) }?;
            side.stream.wait(PATIENCE)?;
            side.verify(&case)?;
            side.barrier()
        });
    }
    Ok(())
}
