//! Averages real numbers: the gradient of a linear model on the diabetes study (442 patients, 10 measurements each; the
//! file comes with the crate `linfa-datasets`). Each of four ranks has a quarter of the patients, computes the gradient of
//! its part, and all-reduces the average; the result is checked against a serial computation over all patients.

use std::process::ExitCode;

use rccl::{Communicator, Options, ReduceOp};

const RANKS: usize = 4;
const STEPS: usize = 200;
const RATE: f64 = 2.0;

/// One patient: measurements and the progression of the disease.
type Patient = (Vec<f64>, f64);

/// The sum of the squared error's gradient over some patients, for every weight and then the offset.
fn gradient(patients: &[Patient], weights: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; weights.len()];
    for (measurements, progression) in patients {
        let values = measurements.iter().chain([&1.0]);
        let predicted: f64 = values.clone().zip(weights).map(|(value, weight)| value * weight).sum();
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += (predicted - progression) * value;
        }
    }
    sum
}

/// Gradient descent in which `total` turns the gradient of this rank's patients into that of all.
fn train(patients: &[Patient], all: usize, mut total: impl FnMut(&mut Vec<f64>)) -> Vec<f64> {
    let mut weights = vec![0.0; patients[0].0.len() + 1];
    for _ in 0..STEPS {
        let mut gradient = gradient(patients, &weights);
        total(&mut gradient);
        for (weight, slope) in weights.iter_mut().zip(gradient) {
            *weight -= RATE * slope / all as f64;
        }
    }
    weights
}

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
    let data = linfa_datasets::diabetes();
    let patients: Vec<Patient> = data
        .records
        .rows()
        .into_iter()
        .zip(&data.targets)
        .map(|(row, &target)| (row.to_vec(), target))
        .collect();
    let serial = train(&patients, patients.len(), |_| ());

    let ranks = Communicator::local(RANKS as u32, &Options::from_env()?)?;
    std::thread::scope(|threads| {
        for (communicator, part) in ranks.iter().zip(patients.chunks(patients.len().div_ceil(RANKS))) {
            let (serial, all) = (&serial, patients.len());
            threads.spawn(move || {
                let weights = train(part, all, |gradient| {
                    communicator.all_reduce_in_place(gradient, ReduceOp::Sum).expect("all ranks take part");
                });
                let error = weights.iter().zip(serial).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(error < 1e-9, "rank {} is off by {error}", communicator.rank());
                println!(
                    "rank {}: {} of {all} patients, {STEPS} steps, largest difference from the serial weights {error:.1e}",
                    communicator.rank(),
                    part.len(),
                );
            });
        }
    });
    Ok(())
}
