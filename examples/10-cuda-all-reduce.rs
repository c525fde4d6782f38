//! All-reduce between GPUs that cannot reach each other, on cudarc's slices: called, and captured in a CUDA graph.
//! Needs a GPU; with one alone, two ranks share it.
//!
//! ```sh
//! cargo run --release --features cudarc-cuda-12020 --example 10-cuda-all-reduce
//! ```

use std::{process::ExitCode, thread};

use cudarc::driver::{
    CudaContext,
    sys::{CUgraphInstantiate_flags, CUstreamCaptureMode},
};
use rccl::{Communicator, Options, ReduceOp, cuda::CudaOptions};
use rccl_transport::cuda::{Device, Driver};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const COUNT: usize = 100_000;
const REPLAYS: i32 = 3;

fn main() -> ExitCode {
    // cudarc panics without a driver; rccl says what is missing.
    let devices = match Driver::open().and_then(|driver| Device::count(&driver)) {
        Ok(devices) if devices > 0 => devices,
        Ok(_) => return explain("the CUDA driver finds no device"),
        Err(error) => return explain(&error.to_string()),
    };
    match all(devices) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => explain(&error.to_string()),
    }
}

fn explain(why: &str) -> ExitCode {
    eprintln!("this example needs a GPU: {why}");
    ExitCode::FAILURE
}

/// One thread a rank; one process a rank works the same way, with `Communicator::create`.
fn all(devices: u32) -> Result {
    let group = Communicator::local(devices.max(2), &Options::from_env()?)?;
    thread::scope(|threads| {
        let ranks: Vec<_> =
            group.iter().map(|communicator| threads.spawn(move || rank(communicator, devices))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
    })
}

fn rank(communicator: &Communicator, devices: u32) -> Result {
    let (rank, size) = (communicator.rank(), communicator.size());
    let device = rank % devices;
    let options = CudaOptions { allow_shared_gpu: devices < size, ..CudaOptions::from_env()? };
    let cuda = communicator.cuda(device, &options)?;
    println!("rank {rank}: {}", cuda.describe());

    let context = CudaContext::new(device as usize)?;
    // SAFETY: everything is done on one stream, in order, so no other order of the slices' uses is needed. Events of that
    // kind, recorded outside of a capture, would break it.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let mine = stream.clone_htod(&vec![rank as f32 + 1.0; COUNT])?;
    let mut sums = stream.alloc_zeros::<f32>(COUNT)?;
    stream.synchronize()?;
    // Where ranks share a device, none takes memory there while another's kernels wait for it.
    communicator.barrier()?;

    cuda.all_reduce_slices(&mine, &mut sums, ReduceOp::Sum, &stream)?;
    let expected = (size * (size + 1) / 2) as f32;
    check(&stream.clone_dtoh(&sums)?, expected)?;
    println!("rank {rank}: every one of {COUNT} sums is {expected}");
    communicator.barrier()?;

    // The same in a graph: each replay multiplies what the last one left by the number of ranks.
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    cuda.all_reduce_slice_in_place(&mut sums, ReduceOp::Sum, &stream)?;
    let graph = stream
        .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?
        .ok_or("an empty graph")?;
    graph.upload()?;
    stream.synchronize()?;
    communicator.barrier()?;
    for _ in 0..REPLAYS {
        graph.launch()?;
    }
    let expected = expected * (size as f32).powi(REPLAYS);
    check(&stream.clone_dtoh(&sums)?, expected)?;
    println!("rank {rank}: after {REPLAYS} replays each is {expected}");
    // Nothing is freed before all are done, and graphs go before the communicator whose calls they hold.
    communicator.barrier()?;
    drop(graph);
    drop(cuda);
    Ok(())
}

fn check(found: &[f32], expected: f32) -> Result {
    match found.iter().position(|&sum| sum != expected) {
        Some(at) => Err(format!("element {at} is {} instead of {expected}", found[at]).into()),
        None => Ok(()),
    }
}
