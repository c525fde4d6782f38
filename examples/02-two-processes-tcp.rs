//! Two processes all-reduce over TCP. The first one makes the id and starts the second one, which finds the id in its
//! environment; on a cluster a launcher would pass it on.

use std::process::{Command, ExitCode};

use rccl::{Communicator, Options, ReduceOp, Root, TransportChoice, UniqueId};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::var("RCCL_ID") {
        Ok(id) => rank(&id.parse()?, 1),
        Err(_) => {
            let (_root, id) = Root::start(&Default::default())?;
            let mut second = Command::new(std::env::current_exe()?).env("RCCL_ID", id.to_string()).spawn()?;
            rank(&id, 0)?;
            let status = second.wait()?;
            if status.success() {
                Ok(())
            } else {
                Err(format!("the second process ended with {status}").into())
            }
        }
    }
}

fn rank(id: &UniqueId, rank: u32) -> Result<(), Box<dyn std::error::Error>> {
    let options = Options { transport: TransportChoice::Tcp, ..Options::from_env()? };
    let communicator = Communicator::create(id, rank, 2, &options)?;
    let mine: Vec<f64> = (0..1000).map(|i| f64::from(i) * f64::from(rank + 1)).collect();
    let mut sum = vec![0.0; mine.len()];
    communicator.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
    assert!(sum.iter().zip(0..).all(|(&value, i)| value == f64::from(3 * i)));
    println!("rank {rank}: {}; sum[999] = {}", communicator.describe(), sum[999]);
    Ok(communicator.finalize()?)
}
