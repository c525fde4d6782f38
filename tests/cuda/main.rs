//! All-reduce on real devices: every bit of every element. Without a driver or a device the tests count as ignored; ranks
//! share devices if there are fewer.
//!
//! This program is its own test runner. Started with `RCCL_TEST_CASE` it is a rank instead.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod case;
mod faults;
mod graphs;
mod processes;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use rccl::{Algorithm, cuda::CudaProtocol};
use rccl_transport::cuda::{Device, Driver};

fn main() -> ExitCode {
    if let Ok(case) = std::env::var("RCCL_TEST_CASE") {
        processes::rank(&case);
        return ExitCode::SUCCESS;
    }
    if std::env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() {
        // Ranks that share a device need hardware queues of their own.
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    }
    let devices = Driver::open().and_then(|driver| Device::count(&driver)).unwrap_or(0);
    if devices == 0 {
        eprintln!("no GPU here: the tests of devices are ignored");
    }
    let mut arguments = Arguments::from_args();
    // Kernels of several tests would wait for room on the devices.
    arguments.test_threads = Some(1);
    let trials = trials().into_iter().map(|trial| trial.with_ignored_flag(devices == 0));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn trials() -> Vec<Trial> {
    type Body = fn(u32) -> Result<(), Failed>;
    let of =
        |name: &str, ranks: u32, body: Body| Trial::test(format!("{name}_of_{ranks}"), move || body(ranks));
    let mut trials = Vec::new();
    for ranks in [2, 4, 8] {
        trials.push(of("sizes_and_types", ranks, calls::sizes_and_types));
        trials.push(of("every_protocol", ranks, calls::every_protocol));
        trials.push(of("one_thread_for_all", ranks, calls::one_thread_for_all));
    }
    for ranks in [2, 4] {
        for name in case::NAMES {
            let body = move || graphs::graphs_and_calls(ranks, name);
            trials.push(Trial::test(format!("graphs_and_calls_by_{name}_of_{ranks}"), body));
        }
        trials.push(of("replays_and_streams_take_turns", ranks, graphs::replays_and_streams_take_turns));
    }
    trials.push(of("failed_capture", 2, graphs::failed_capture));
    trials.push(of("two_streams", 2, calls::two_streams));
    trials.push(of("wrong_arguments", 2, faults::wrong_arguments));
    trials.push(of("made_beside_work", 2, faults::made_beside_work));
    trials.push(of("leaks", 2, faults::leaks));
    let aborts = |name: &str, protocol, algorithm| {
        Trial::test(format!("abort_ends_{name}"), move || faults::aborts(protocol, algorithm))
    };
    trials.push(aborts("ll", CudaProtocol::Ll, None));
    trials.push(aborts("stripe", CudaProtocol::Stripe, Some(Algorithm::Oneshot)));
    trials.push(aborts("relay", CudaProtocol::Stripe, Some(Algorithm::Relay)));
    trials.push(aborts("bulk", CudaProtocol::Bulk, None));
    for protocol in ["ll", "stripe", "bulk"] {
        trials
            .push(Trial::test(format!("processes_agree_by_{protocol}"), move || processes::agree(protocol)));
        trials.push(Trial::test(format!("killed_in_{protocol}"), move || processes::killed(protocol)));
    }
    trials.push(Trial::test("processes_agree_in_one_queue", processes::one_connection));
    trials
}
