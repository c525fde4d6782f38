//! Calls of all sizes, types, operators and protocols, on one stream and on two, from a thread a rank and from one for all.

use libtest_mimic::Failed;
use rccl::{Communicator, DataType, ReduceOp, cuda::CudaCommunicator};
use rccl_transport::cuda::{DeviceMemory, Stream};

use crate::{
    case::{Case, NAMES, PATIENCE, Side, context_of, named, on_devices, shared},
    common,
};

const TYPES: [DataType; 3] = [DataType::Float, DataType::Half, DataType::Bfloat16];

pub(crate) fn cases(side: &Side, sizes: &[usize]) -> rccl::Result<()> {
    let most = sizes.iter().max().copied().unwrap_or(0);
    let (input, output) = (side.memory(most)?, side.memory(most)?);
    side.barrier()?;
    for &bytes in sizes {
        for data_type in TYPES {
            let size = data_type.size_bytes() as u64;
            for (op, shift, in_place) in
                [(ReduceOp::Sum, 0, false), (ReduceOp::Avg, 1, false), (ReduceOp::Sum, 3, true)]
            {
                let input = input.start() + shift * size;
                let output = if in_place { input } else { output.start() + 3 * shift * size };
                let count = (bytes as u64 / size).max(1);
                side.run(&Case { input, output, count, data_type, op, seed: bytes as u64 })?;
            }
        }
    }
    side.barrier()
}

pub(crate) fn sizes_and_types(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, &shared(), |side| {
        cases(side, &[8, 1000, 32 << 10, 512 << 10, (512 << 10) + 4, 1 << 20, (1 << 20) + 12, 5 << 20])
    });
    on_devices(ranks, &shared(), |side| cases(side, &[64 << 20]));
    Ok(())
}

pub(crate) fn every_protocol(ranks: u32) -> Result<(), Failed> {
    for name in NAMES {
        on_devices(ranks, &named(name), |side| cases(side, &[4, 12_340, 200_004, 3_000_012]));
    }
    Ok(())
}

pub(crate) fn two_streams(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, &shared(), |side| {
        let second = Stream::new(&side.context)?;
        let memory = || side.memory(2 << 20);
        let (a, b) = ([memory()?, memory()?], [memory()?, memory()?]);
        let case = |pair: &[DeviceMemory; 2], count, seed| Case {
            data_type: DataType::Half,
            ..Case::sum(pair[0].start(), pair[1].start(), count, seed)
        };
        side.barrier()?;
        for count in [5, 300_000, 1_000_000] {
            let (first, other) = (case(&a, count, 7), case(&b, count, 8));
            side.fill(&first)?;
            side.fill(&other)?;
            side.barrier()?;
            for _ in 0..20 {
                side.enqueue(&first, &side.stream)?;
                side.enqueue(&other, &second)?;
            }
            side.stream.wait(PATIENCE)?;
            second.wait(PATIENCE)?;
            side.verify(&first)?;
            side.verify(&other)?;
        }
        side.barrier()
    });
    Ok(())
}

/// One thread drives all ranks and enqueues 2000 calls on each without waiting for anything.
pub(crate) fn one_thread_for_all(ranks: u32) -> Result<(), Failed> {
    const CALLS: usize = 2000;
    let communicators = Communicator::local(ranks, &common::options(rccl::TransportChoice::Auto, None))?;
    let make = |communicator: &Communicator| -> rccl::Result<CudaCommunicator> {
        let context = context_of(communicator.rank())?;
        communicator.cuda(context.device().ordinal(), &shared())
    };
    let made: Vec<_> = std::thread::scope(|threads| {
        let threads: Vec<_> = communicators.iter().map(|rank| threads.spawn(|| make(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sides = communicators
        .iter()
        .zip(made)
        .map(|(communicator, cuda)| {
            let context = context_of(communicator.rank())?;
            Ok(Side { communicator, cuda: cuda?, stream: Stream::new(&context)?, context })
        })
        .collect::<rccl::Result<Vec<_>>>()?;
    let counts = [250, 200_000, 700_000];
    let memory = sides
        .iter()
        .map(|side| {
            Ok([side.memory(4 << 20)?, side.memory(4 << 20)?, side.memory(4 << 20)?, side.memory(4 << 20)?])
        })
        .collect::<rccl::Result<Vec<_>>>()?;
    let case = |rank: usize, which: usize| {
        let [input, outputs @ ..] = &memory[rank];
        Case::sum(input.start(), outputs[which].start(), counts[which], 11)
    };
    for (rank, side) in sides.iter().enumerate() {
        (0..counts.len()).try_for_each(|which| side.fill(&case(rank, which)))?;
    }
    for call in 0..CALLS {
        for (rank, side) in sides.iter().enumerate() {
            side.enqueue(&case(rank, call % counts.len()), &side.stream)?;
        }
    }
    for (rank, side) in sides.iter().enumerate() {
        side.stream.wait(PATIENCE)?;
        (0..counts.len()).try_for_each(|which| side.verify(&case(rank, which)))?;
    }
    Ok(())
}
