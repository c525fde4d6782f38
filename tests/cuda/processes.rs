//! Ranks in processes of their own. On a machine with fewer devices than ranks these take turns: slow, but right.

use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rccl::{Communicator, Options, TransportChoice, UniqueId, cuda::CudaOptions};

use crate::{
    calls,
    case::{Case, PATIENCE, Side},
    common::process::{Process, say, start_group, variable},
    faults::{ABORT_LIMIT, ended},
    graphs,
};

const LIMIT: Duration = Duration::from_secs(100);

/// Starts ranks whose options say more than the test's.
fn start(case: &str, environment: &[(&str, &str)]) -> (rccl::Root, Vec<Process>) {
    let mut all = vec![("RCCL_ALLOW_SHARED_GPU", "1")];
    all.extend(environment);
    start_group(case, 2, TransportChoice::Auto, &all, |_| "")
}

pub(crate) fn agree(protocol: &str) -> Result<(), Failed> {
    let (_root, group) = start("agree", &[("RCCL_PROTOCOL", protocol)]);
    for process in &group {
        let line = process.line(LIMIT)?;
        if line != "done" {
            return Err(line.into());
        }
    }
    Ok(())
}

/// With one hardware queue a device runs everything in the order in which it was enqueued.
pub(crate) fn one_connection() -> Result<(), Failed> {
    let (_root, group) = start("agree", &[("CUDA_DEVICE_MAX_CONNECTIONS", "1")]);
    for process in &group {
        let line = process.line(LIMIT)?;
        if line != "done" {
            return Err(line.into());
        }
    }
    Ok(())
}

/// Kills rank 1 while rank 0's device waits for it.
pub(crate) fn killed(protocol: &str) -> Result<(), Failed> {
    let (_root, group) = start("killed", &[("RCCL_PROTOCOL", protocol)]);
    for process in &group {
        let line = process.line(LIMIT)?;
        if line != "waiting" {
            return Err(line.into());
        }
    }
    group[1].signal(libc::SIGKILL);
    let killed = Instant::now();
    let line = group[0].line(ABORT_LIMIT)?;
    if !line.starts_with("rank 1 is lost") || killed.elapsed() > ABORT_LIMIT {
        return Err(format!("after {:?}: {line}", killed.elapsed()).into());
    }
    let line = group[0].line(LIMIT)?;
    if line == "done" { Ok(()) } else { Err(line.into()) }
}

/// The rank's side.
pub(crate) fn rank(case: &str) {
    match member(case) {
        Ok(()) => say("done"),
        Err(error) => say(&format!("error: {error}")),
    }
}

fn member(case: &str) -> rccl::Result<()> {
    let id: UniqueId = variable("RCCL_TEST_ID").parse().unwrap();
    let (rank, size) =
        (variable("RCCL_TEST_RANK").parse().unwrap(), variable("RCCL_TEST_SIZE").parse().unwrap());
    let communicator = Communicator::create(&id, rank, size, &Options::from_env()?)?;
    let side = Side::new(&communicator, &CudaOptions::from_env()?)?;
    if case == "agree" {
        calls::cases(&side, &[4, 20_000, 300_000, 2_500_000])?;
        return replays(&side);
    }
    let memory = side.memory(32 << 20)?;
    let count = if variable("RCCL_PROTOCOL") == "ll" { 1000 } else { 8 << 20 };
    let call = Case::sum(memory.start(), memory.start(), count, 0);
    communicator.barrier()?;
    if rank == 0 {
        side.enqueue(&call, &side.stream)?;
        assert!(!side.stream.is_idle()?, "it waits for rank 1");
    }
    say("waiting");
    let since = Instant::now();
    while side.cuda.async_error().is_none() {
        if since.elapsed() > LIMIT {
            return Ok(());
        }
        std::thread::yield_now();
    }
    let lost = Instant::now();
    ended(&side, &call, lost)?;
    say(&side.cuda.async_error().map_or_else(String::new, |error| error.to_string()));
    Ok(())
}

/// Replays graphs of calls of several sizes, among them one that goes round all slots of copy engines.
fn replays(side: &Side) -> rccl::Result<()> {
    const MOST: usize = 9 << 20;
    let (input, output) = (side.memory(MOST)?, side.memory(MOST)?);
    for bytes in [64, 300_000, MOST] {
        let case = Case::sum(input.start(), output.start(), bytes as u64 / 4, bytes as u64);
        let graph = graphs::captured(side, &[case, case])?;
        side.run(&case)?;
        side.fill(&case)?;
        side.barrier()?;
        for _ in 0..3 {
            // SAFETY: the buffers and the graph live until the stream is waited for.
            unsafe { graph.launch(&side.stream) }?;
        }
        side.stream.wait(PATIENCE)?;
        side.verify(&case)?;
        side.barrier()?;
    }
    Ok(())
}
