//! Ranks in processes of their own: results, deaths, stops, forks, limits, leaks.
//!
//! This program is its own test runner. Started with `RCCL_TEST_CASE` it is a rank instead: it joins the group named in its
//! environment, does what the case says, and prints what came of it.

mod common;

use std::{
    io::{Read, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use common::process::{Process, say, start_group, variable};

use libtest_mimic::{Arguments, Failed, Trial};
use rccl::{Communicator, Error, Options, ReduceOp, TransportChoice, UniqueId};

/// A death must be reported within this time.
const DEATH_LIMIT: Duration = Duration::from_secs(2);

const COLLECTIVES: [&str; 5] = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send-recv"];

fn main() -> ExitCode {
    if let Ok(case) = std::env::var("RCCL_TEST_CASE") {
        return rank(&case);
    }
    let mut trials = Vec::new();
    let mut trial =
        |name: String, body: fn(&str, TransportChoice) -> Result<(), Failed>, case: &str, transport| {
            let case = case.to_owned();
            trials.push(Trial::test(name, move || body(&case, transport)));
        };
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let name = transport.name();
        trial(format!("processes_agree_over_{name}"), processes_agree, "agree", transport);
        for collective in COLLECTIVES {
            trial(format!("killed_in_{collective}_over_{name}"), killed, collective, transport);
        }
        trial(format!("stopped_over_{name}"), stopped, "all-reduce", transport);
    }
    trial("two_hosts_of_two_ranks".into(), two_hosts, "agree", TransportChoice::Auto);
    trial("fork_rules".into(), single, "fork", TransportChoice::Auto);
    trial("a_thousand_communicators_leak_nothing".into(), single, "leaks", TransportChoice::Auto);
    trial("leaks_over_tcp".into(), single, "leaks-tcp", TransportChoice::Tcp);
    trial("too_few_descriptors".into(), single, "descriptors", TransportChoice::Auto);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

// --- The test's side -------------------------------------------------------------------------------------------------

fn processes_agree(case: &str, transport: TransportChoice) -> Result<(), Failed> {
    for size in [2, 4] {
        let (_root, group) = start_group(case, size, transport, &[], |_| "");
        for process in &group {
            process.expect("joined")?;
            process.expect("done")?;
        }
    }
    Ok(())
}

fn two_hosts(case: &str, transport: TransportChoice) -> Result<(), Failed> {
    let (_root, group) =
        start_group(case, 4, transport, &[], |rank| if rank % 2 == 0 { "here" } else { "there" });
    for process in &group {
        process.expect("joined")?;
        process.expect("done")?;
    }
    Ok(())
}

/// Kills a rank while all of them run the collective over and over: five times, a different rank each time. With five
/// collectives and two transports that makes fifty.
fn killed(case: &str, transport: TransportChoice) -> Result<(), Failed> {
    for round in 0..5_u32 {
        let size = 3;
        let (_root, mut group) = start_group(case, size, transport, &[], |_| "");
        for process in &group {
            process.expect("joined")?;
            process.expect("running")?;
        }
        let victim = round % size;
        group[victim as usize].signal(libc::SIGKILL);
        let killed_at = Instant::now();
        for (rank, process) in group.iter_mut().enumerate() {
            if rank as u32 == victim {
                continue;
            }
            let line = process.line(DEATH_LIMIT)?;
            if !line.starts_with(&format!("error: rank {victim} is lost")) {
                return Err(format!("rank {rank} said `{line}` after rank {victim} was killed").into());
            }
        }
        if killed_at.elapsed() > DEATH_LIMIT {
            return Err(format!("the death was reported only after {:?}", killed_at.elapsed()).into());
        }
    }
    Ok(())
}

fn stopped(case: &str, transport: TransportChoice) -> Result<(), Failed> {
    let (_root, group) = start_group(case, 3, transport, &[], |_| "");
    for process in &group {
        process.expect("joined")?;
        process.expect("running")?;
    }
    group[1].signal(libc::SIGSTOP);
    for rank in [0, 2] {
        let line = group[rank].line(Duration::from_secs(30))?;
        if !line.starts_with("error: rank 1 has not responded for 2s") {
            return Err(format!("rank {rank} said `{line}`").into());
        }
    }
    group[1].signal(libc::SIGCONT);
    Ok(())
}

/// A case that needs one process and makes its own groups.
fn single(case: &str, transport: TransportChoice) -> Result<(), Failed> {
    let process = Process::of_case(case, transport, &[]);
    let line = process.line(Duration::from_secs(300))?;
    if line == "done" { Ok(()) } else { Err(line.into()) }
}

// --- The rank's side -------------------------------------------------------------------------------------------------

fn rank(case: &str) -> ExitCode {
    let result = match case {
        "fork" => fork_rules(),
        "leaks" => leaks(1000, 2),
        "leaks-tcp" => leaks(100, 3),
        "descriptors" => too_few_descriptors(),
        _ => member(case),
    };
    match result {
        Ok(()) => say("done"),
        Err(error) => say(&format!("error: {error}")),
    }
    ExitCode::SUCCESS
}

fn member(case: &str) -> rccl::Result<()> {
    let id: UniqueId = variable("RCCL_TEST_ID").parse().unwrap();
    let (rank, size) =
        (variable("RCCL_TEST_RANK").parse().unwrap(), variable("RCCL_TEST_SIZE").parse().unwrap());
    let options = Options {
        heartbeat: Duration::from_secs(2),
        deadline: Duration::from_secs(60),
        init_timeout: Duration::from_secs(60),
        ..Options::from_env()?
    };
    let communicator = Communicator::create(&id, rank, size, &options)?;
    say("joined");
    if case == "agree" {
        return agree(&communicator);
    }
    let count = 300_000;
    let (mut input, mut output) = (vec![1_f32; count * size as usize], vec![0_f32; count * size as usize]);
    for round in 0_u64.. {
        match case {
            "all-reduce" => communicator.all_reduce(&input, &mut output, ReduceOp::Sum)?,
            "all-gather" => communicator.all_gather(&input[..count], &mut output)?,
            "reduce-scatter" => communicator.reduce_scatter(&input, &mut output[..count], ReduceOp::Sum)?,
            "broadcast" => communicator.broadcast_in_place(&mut input, (round % u64::from(size)) as u32)?,
            "send-recv" => {
                communicator.send_recv(&input, (rank + 1) % size, &mut output, (rank + size - 1) % size)?;
            }
            other => panic!("no case {other}"),
        }
        if round == 2 {
            say("running");
        }
    }
    Ok(())
}

/// Runs calls of many sizes and checks every element.
fn agree(communicator: &Communicator) -> rccl::Result<()> {
    let (rank, size) = (communicator.rank(), communicator.size());
    for count in [1, 2, 100, 5_000, 70_001, 1_000_003] {
        for round in 0..3 {
            let value = |rank: u32, i: usize| u64::from(rank + 1) * (i as u64 + round);
            let input: Vec<u64> = (0..count).map(|i| value(rank, i)).collect();
            let mut output = vec![0; count];
            communicator.all_reduce(&input, &mut output, ReduceOp::Sum)?;
            for (i, &sum) in output.iter().enumerate() {
                let expected: u64 = (0..size).map(|rank| value(rank, i)).sum();
                assert_eq!(sum, expected, "element {i} of {count}");
            }
            let mut all = vec![0; count * size as usize];
            communicator.all_gather(&input, &mut all)?;
            for (i, &found) in all.iter().enumerate() {
                assert_eq!(found, value((i / count) as u32, i % count));
            }
        }
    }
    communicator.barrier()
}

fn fork_rules() -> rccl::Result<()> {
    let group = Communicator::local(2, &common::options(TransportChoice::Auto, None))?;
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child only makes calls that are refused, drops, writes to a pipe and leaves without running destructors
    // of the test runner. The engine thread holds no lock that these need: they end at the check of the generation.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut text = String::new();
        for communicator in &group {
            let error = communicator.barrier().unwrap_err();
            text += if matches!(error, Error::Forked) { "refused " } else { "allowed " };
            communicator.abort();
            text +=
                if matches!(communicator.async_error(), Some(Error::Forked)) { "forked " } else { "alive " };
        }
        drop(group);
        // The child may make communicators of its own.
        let own = Communicator::local(1, &Options::default()).unwrap();
        own[0].barrier().unwrap();
        drop(own);
        writer.write_all((text + "own").as_bytes()).unwrap();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "refused forked refused forked own");
    // What the child did has not disturbed the parent's group.
    std::thread::scope(|threads| {
        for communicator in &group {
            threads.spawn(|| communicator.barrier().unwrap());
        }
    });
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    Ok(())
}

/// What a process holds: descriptors, mappings, threads.
fn holdings() -> [usize; 3] {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let arenas = maps.lines().filter(|line| line.contains("rccl")).count();
    [count("/proc/self/fd"), arenas, count("/proc/self/task")]
}

fn leaks(rounds: usize, size: u32) -> rccl::Result<()> {
    let options = Options { init_timeout: Duration::from_secs(60), ..Options::from_env()? };
    let round = || -> rccl::Result<()> {
        let group = Communicator::local(size, &options)?;
        std::thread::scope(|threads| {
            for communicator in &group {
                threads.spawn(|| communicator.barrier().unwrap());
            }
        });
        Ok(())
    };
    round()?;
    let before = holdings();
    for _ in 0..rounds {
        round()?;
    }
    // Threads that have returned may take a moment to be gone.
    let give_up = Instant::now() + Duration::from_secs(10);
    let mut after = holdings();
    while after != before && Instant::now() < give_up {
        std::thread::yield_now();
        after = holdings();
    }
    assert_eq!(after, before, "descriptors, arenas and threads before and after {rounds} groups of {size}");
    let left: Vec<_> =
        std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("rccl")), "{left:?}");
    Ok(())
}

fn too_few_descriptors() -> rccl::Result<()> {
    let few = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 + 12;
    let limit = libc::rlimit { rlim_cur: few, rlim_max: few };
    // SAFETY: lowers this process's own limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let options = Options { init_timeout: Duration::from_secs(5), ..Options::from_env()? };
    let error = Communicator::local(8, &options).unwrap_err().to_string();
    assert!(error.contains("open files") || error.contains("ulimit -n"), "{error}");
    Ok(())
}
