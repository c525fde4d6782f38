//! `cargo xtask ci`: the steps in order, timed, stopping at the first that fails.

mod checks;
mod examples;
mod readme;
pub(crate) mod steps;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::Result;
use steps::{STEPS, Step};

/// Which steps to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Show the steps and run none
    #[arg(long)]
    list: bool,
    /// Run only this step (may be repeated)
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Leave out this step (may be repeated)
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
}

/// Runs the steps that were asked for.
///
/// # Errors
/// When a step does not exist, or the first that fails.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result {
    let chosen = choose(arguments)?;
    if arguments.list {
        for step in chosen {
            println!("{:<14} {}", step.name, step.about);
        }
        return Ok(());
    }
    let mut done: Vec<(&str, Duration)> = Vec::new();
    for (index, step) in chosen.iter().enumerate() {
        println!("\n== {} ({} of {}): {}", step.name, index + 1, chosen.len(), step.about);
        let start = Instant::now();
        let outcome = (step.run)(root);
        let took = start.elapsed();
        if let Err(error) = outcome {
            summarise(&done);
            println!("{:<14} {:>7.1} s  FAILED", step.name, took.as_secs_f64());
            return Err(
                format!("step {}: {error}\nagain: cargo xtask ci --only {}", step.name, step.name).into()
            );
        }
        done.push((step.name, took));
    }
    summarise(&done);
    println!("ci: all {} steps passed", done.len());
    Ok(())
}

fn choose(arguments: &Arguments) -> Result<Vec<&'static Step>> {
    for name in arguments.only.iter().chain(&arguments.skip) {
        if !STEPS.iter().any(|s| s.name == name) {
            let names: Vec<_> = STEPS.iter().map(|s| s.name).collect();
            return Err(format!("there is no step '{name}'; the steps are {}", names.join(", ")).into());
        }
    }
    let wanted = |s: &&Step| {
        (arguments.only.is_empty() || arguments.only.iter().any(|n| n == s.name))
            && !arguments.skip.iter().any(|n| n == s.name)
    };
    let chosen: Vec<_> = STEPS.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err("--only and --skip leave no step to run".into());
    }
    Ok(chosen)
}

fn summarise(done: &[(&str, Duration)]) {
    println!("\n== summary");
    for (name, took) in done {
        println!("{name:<14} {:>7.1} s  ok", took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(only: &[&str], skip: &[&str]) -> Arguments {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Arguments { list: false, only: owned(only), skip: owned(skip) }
    }

    #[test]
    fn only_and_skip_choose_steps_in_their_order() {
        let names = |a: &Arguments| choose(a).unwrap().iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names(&arguments(&["test", "fmt"], &[])), ["fmt", "test"]);
        let rest = names(&arguments(&[], &["fmt"]));
        assert_eq!(rest.len(), STEPS.len() - 1);
        assert!(!rest.contains(&"fmt"));
    }

    #[test]
    fn a_step_that_does_not_exist_is_refused_with_the_list() {
        let error = choose(&arguments(&["tests"], &[])).err().unwrap().to_string();
        assert!(error.contains("'tests'") && error.contains("clippy"), "{error}");
        assert!(choose(&arguments(&["fmt"], &["fmt"])).is_err());
    }
}
