//! All-reduce between threads: every thread is a rank, and all end with the same sum.

use std::process::ExitCode;

use rccl::{Communicator, Options, ReduceOp};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> rccl::Result<()> {
    let ranks = Communicator::local(4, &Options::from_env()?)?;
    std::thread::scope(|threads| {
        for communicator in &ranks {
            threads.spawn(move || {
                let mine = vec![communicator.rank() as f32; 1_000_000];
                let mut sum = vec![0.0; mine.len()];
                communicator.all_reduce(&mine, &mut sum, ReduceOp::Sum).expect("all ranks take part");
                assert!(sum.iter().all(|&value| value == 0.0 + 1.0 + 2.0 + 3.0));
                println!("rank {}: every element is {}", communicator.rank(), sum[0]);
            });
        }
    });
    Ok(())
}
