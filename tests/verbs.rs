//! Communicators over RDMA, each rank a process on one of two hosts: results, and what they say when something breaks.
//!
//! Made for the lab (`cargo xtask lab`), whose network it disturbs; nothing runs elsewhere. This program is its own runner:
//! started with `RCCL_TEST_CASE` it is a rank.

mod common;

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use common::process::{Process, say, variable};
use libtest_mimic::{Arguments, Failed, Trial};

use rccl::{Algorithm, Communicator, Options, ReduceOp, Root, UniqueId};
use rccl_transport::{
    Region, Secret,
    channel::{Part, Transport as _},
    verbs,
};

/// How long ranks may take to say something: the lab is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// A failure must be known to all ranks within this time.
const FAILURE_LIMIT: Duration = Duration::from_secs(20);

type Test = fn() -> Result<(), Failed>;

fn main() -> ExitCode {
    if let Ok(case) = std::env::var("RCCL_TEST_CASE") {
        return rank(&case);
    }
    let arguments = Arguments::from_args();
    if std::env::var_os("RCCL_LAB").is_none() {
        if !arguments.list {
            println!(
                "not run: these tests need the lab's devices and namespaces; `cargo xtask lab` runs them there"
            );
        }
        return libtest_mimic::run(&arguments, Vec::new()).exit_code();
    }
    let tests: [(&str, Test); 13] = [
        ("two_ranks_on_two_hosts", || agree(&group("agree", 2, &[]))),
        ("four_ranks_on_two_hosts", || agree(&group("agree", 4, &[]))),
        ("over_rdma_within_one_host_too", one_host),
        ("lost_doubled_and_reordered_packets", bad_network),
        ("a_cable_is_pulled", || port_fails("-n sw link set p1 down", "-n sw link set p1 up", None)),
        ("a_port_is_put_down", || port_fails("link set v1 down", "link set v1 up", Some("port 1 of rxe1"))),
        ("a_rank_is_killed", killed),
        ("too_little_memory_may_be_locked", too_little_memory),
        ("a_gid_that_is_none", || refused(&[("NCCL_IB_GID_INDEX", "9")], "NCCL_IB_GID_INDEX is `9`")),
        ("mtus_that_differ", mtus_that_differ),
        ("packets_that_do_not_fit_the_path", packets_that_do_not_fit),
        ("rdma_that_leads_nowhere_is_replaced_by_tcp", rdma_leads_nowhere),
        ("a_thousand_connections_leak_nothing", thousand_connections),
    ];
    let trials = tests.into_iter().map(|(name, test)| Trial::test(name, test)).collect();
    libtest_mimic::run(&Arguments { test_threads: Some(1), ..arguments }, trials).exit_code()
}

// --- The test's side -------------------------------------------------------------------------------------------------

/// Starts `size` ranks of one group, odd ones on host 1 with device 1, the others on host 0. Rank 0 makes the group's id.
fn group(case: &str, size: u32, environment: &[(&str, &str)]) -> Vec<Process> {
    let mut processes: Vec<Process> = Vec::new();
    let mut id = String::new();
    for rank in 0..size {
        let host = rank % 2;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("h{host}")]).arg(std::env::current_exe().unwrap());
        command.env("RCCL_TEST_CASE", case).env("RCCL_TEST_RANK", rank.to_string());
        command.env("RCCL_TEST_SIZE", size.to_string()).env("RCCL_TEST_ID", &id);
        command.env("RCCL_HOSTID", format!("host{host}")).env("NCCL_IB_HCA", format!("=rxe{host}"));
        command.env("NCCL_IB_TIMEOUT", "14").envs(environment.iter().copied());
        let process = Process::start(command);
        if rank == 0 {
            id = process.line(PATIENCE).unwrap();
        }
        processes.push(process);
    }
    processes
}

fn agree(group: &[Process]) -> Result<(), Failed> {
    agree_over("verbs", group)
}

/// As [`agree`], where `network` carries what goes between hosts.
fn agree_over(network: &str, group: &[Process]) -> Result<(), Failed> {
    for (rank, process) in group.iter().enumerate() {
        let transports = process.line(PATIENCE)?;
        let expected = (0..group.len()).map(|other| match (other == rank, other % 2 == rank % 2) {
            (true, _) => "self",
            (_, true) => "shm",
            _ => network,
        });
        let expected = expected.collect::<Vec<_>>().join(" ");
        if transports != expected {
            return Err(format!("rank {rank}: expected `{expected}`, got `{transports}`").into());
        }
    }
    group.iter().try_for_each(|process| process.expect("done"))
}

/// Ranks of one host, which do not share memory if RDMA is asked for.
fn one_host() -> Result<(), Failed> {
    agree(&group("agree-briefly", 2, &[("RCCL_TRANSPORT", "verbs"), ("RCCL_HOSTID", "one")]))
}

/// Runs `ip` with these arguments.
fn ip(arguments: &str) {
    run("ip", arguments);
}

fn run(program: &str, arguments: &str) {
    let status = Command::new(program).args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "{program} {arguments}: {status}");
}

/// Waits until both devices' ports are usable.
fn ports_are_up() {
    let give_up = Instant::now() + PATIENCE;
    let active = |device: &verbs::Device| device.ports.iter().any(|port| port.active && port.gids.len() > 1);
    while !verbs::devices().unwrap().iter().all(active) {
        assert!(Instant::now() < give_up, "{:?}", verbs::devices());
        std::thread::yield_now();
    }
}

fn bad_network() -> Result<(), Failed> {
    for (device, faults) in [("p0", "loss 1% duplicate 2%"), ("p1", "delay 1ms reorder 30% 50% loss 1%")] {
        run("ip", &format!("netns exec sw tc qdisc replace dev {device} root netem limit 100000 {faults}"));
    }
    let result = agree(&group("agree-briefly", 2, &[]));
    for device in ["p0", "p1"] {
        run("ip", &format!("netns exec sw tc qdisc del dev {device} root"));
    }
    result
}

/// Breaks the way between two ranks in the middle of a transfer: both learn the cause, and a new group works afterwards.
fn port_fails(down: &str, up: &str, cause: Option<&str>) -> Result<(), Failed> {
    let running = group("all-reduce", 2, &[]);
    for process in &running {
        process.line(PATIENCE)?;
        process.expect("running")?;
    }
    ip(down);
    let broken_at = Instant::now();
    let said: Vec<String> =
        running.iter().map(|process| process.line(FAILURE_LIMIT)).collect::<Result<_, _>>()?;
    let took = broken_at.elapsed();
    ip(up);
    ports_are_up();
    for (rank, line) in said.iter().enumerate() {
        let other = 1 - rank;
        let named = line.contains(&format!("rank {other}")) || line.contains(&format!("rank {rank}"));
        let causes = ["no answer after all retries", "port 1 of rxe", "its side failed"];
        if !line.starts_with("error: ") || !named || !causes.iter().any(|cause| line.contains(cause)) {
            return Err(format!("rank {rank} of {said:?} after {took:?}").into());
        }
    }
    if let Some(cause) = cause.filter(|cause| !said.iter().any(|line| line.contains(cause))) {
        return Err(format!("nobody named {cause}: {said:?}").into());
    }
    if took > FAILURE_LIMIT {
        return Err(format!("the failure was known after {took:?}").into());
    }
    agree(&group("agree-briefly", 2, &[]))
}

fn killed() -> Result<(), Failed> {
    let running = group("all-reduce", 2, &[]);
    for process in &running {
        process.line(PATIENCE)?;
        process.expect("running")?;
    }
    running[1].signal(libc::SIGKILL);
    let line = running[0].line(FAILURE_LIMIT)?;
    if line.starts_with("error: rank 1 is lost") { Ok(()) } else { Err(line.into()) }
}

fn too_little_memory() -> Result<(), Failed> {
    refused(&[("RCCL_TEST_LOCKED_KIB", "64")], "ulimit -l")
}

/// Both ranks of a group with this environment must fail, one of them with these words.
fn refused(environment: &[(&str, &str)], words: &str) -> Result<(), Failed> {
    let environment = [environment, &[("RCCL_TRANSPORT", "verbs")]].concat();
    let group = group("agree", 2, &environment);
    let said: Vec<String> = group.iter().map(|process| process.line(PATIENCE)).collect::<Result<_, _>>()?;
    let failed = said.iter().all(|line| line.starts_with("error: "));
    if failed && said.iter().any(|line| line.contains(words)) {
        Ok(())
    } else {
        Err(format!("{said:?}").into())
    }
}

/// The smaller MTU is taken.
fn mtus_that_differ() -> Result<(), Failed> {
    ip("link set v1 mtu 1500");
    ports_are_up();
    let result = agree(&group("agree-briefly", 2, &[]));
    ip("link set v1 mtu 4500");
    ports_are_up();
    result
}

/// A switch that drops large packets is found out when connecting, and named.
fn packets_that_do_not_fit() -> Result<(), Failed> {
    ip("-n sw link set p1 mtu 1500");
    let result = refused(&[("NCCL_IB_GID_INDEX", "1")], "packets of 4096 bytes");
    ip("-n sw link set p1 mtu 4500");
    result
}

/// Nobody asked for RDMA by name, so TCP, which takes another way, does instead.
fn rdma_leads_nowhere() -> Result<(), Failed> {
    ip("-n sw link set p1 mtu 1500");
    let result = agree_over("tcp", &group("agree-briefly", 2, &[("NCCL_IB_GID_INDEX", "1")]));
    ip("-n sw link set p1 mtu 4500");
    result
}

/// What the kernel holds for this process: descriptors, and the RDMA objects of the machine.
fn holdings() -> (usize, String) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let resources = Command::new("rdma").arg("resource").output().unwrap().stdout;
    (descriptors, String::from_utf8_lossy(&resources).into_owned())
}

fn thousand_connections() -> Result<(), Failed> {
    let secret = Secret::random()?;
    let transport = |device| {
        verbs::Transport::new(verbs::Options::loopback().on_port(device, 1), secret.clone()).unwrap()
    };
    let (near, far) = (transport("rxe0"), transport("rxe1"));
    let (source, room) = (Region::from_vec(vec![7; 8]), Region::zeroed(8));
    let _registered = (near.register(&source)?, far.register(&room)?);
    let before = holdings();
    for _ in 0..20 {
        let mut listener = far.listen()?;
        for _ in 0..50 {
            exchange(&near, &mut *listener, &source, &room)?;
        }
    }
    let after = holdings();
    if before == after { Ok(()) } else { Err(format!("before: {before:?}, after: {after:?}").into()) }
}

/// Connects, sends eight bytes, and drops both ends.
fn exchange(
    near: &verbs::Transport,
    listener: &mut dyn rccl_transport::channel::Listener,
    source: &Arc<Region>,
    room: &Arc<Region>,
) -> Result<(), Failed> {
    let mut connecting = near.connect(&listener.address())?;
    let (mut sender, mut receiver, mut sent, mut received) = (None, None, false, false);
    let give_up = Instant::now() + PATIENCE;
    while !sent || !received {
        assert!(Instant::now() < give_up);
        match (&mut sender, &mut receiver) {
            (None, _) | (_, None) => {
                sender = sender.or(connecting.poll()?);
                receiver = receiver.or(listener.poll_accept()?);
                if let (Some(sender), Some(receiver)) = (&mut sender, &mut receiver) {
                    receiver.post(&[Part { slice: room.slice(0..8), tag: 0 }])?;
                    sender.post(&source.slice(0..8), 0)?;
                }
            }
            (Some(sender), Some(receiver)) => {
                sent |= sender.poll()?.is_some();
                received |= receiver.poll()?.is_some();
            }
        }
    }
    Ok(())
}

// --- The rank's side -------------------------------------------------------------------------------------------------

fn rank(case: &str) -> ExitCode {
    if let Ok(kib) = std::env::var("RCCL_TEST_LOCKED_KIB") {
        return limit_locked_memory(&kib);
    }
    match member(case) {
        Ok(()) => say("done"),
        Err(error) => say(&format!("error: {error}")),
    }
    ExitCode::SUCCESS
}

/// Starts this program again with less memory that may be locked, and without the right to lock more.
fn limit_locked_memory(kib: &str) -> ExitCode {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    let bytes = kib.parse::<u64>().unwrap() << 10;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: lowers this process's own limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
    // SAFETY: takes a right away from what this process executes.
    assert_eq!(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) }, 0);
    let error = Command::new(std::env::current_exe().unwrap()).env_remove("RCCL_TEST_LOCKED_KIB").exec();
    panic!("{error}");
}

fn member(case: &str) -> rccl::Result<()> {
    let (rank, size): (u32, u32) =
        (variable("RCCL_TEST_RANK").parse().unwrap(), variable("RCCL_TEST_SIZE").parse().unwrap());
    let options = |algorithm| -> rccl::Result<Options> {
        Ok(Options {
            heartbeat: Duration::from_secs(20),
            deadline: PATIENCE,
            init_timeout: PATIENCE,
            algorithm,
            ..Options::from_env()?
        })
    };
    let (_root, id) = if rank == 0 {
        let (root, id) = Root::start(&options(None)?.root())?;
        say(&id.to_string());
        (Some(root), id)
    } else {
        (None, variable("RCCL_TEST_ID").parse::<UniqueId>().unwrap())
    };
    let communicator = Communicator::create(&id, rank, size, &options(None)?)?;
    say(&communicator.describe().transports.join(" "));
    match case {
        "agree" => {
            every_collective(&communicator, &[0, 4, 52, 1000, 70_004, 1 << 20])?;
            for algorithm in Algorithm::ALL {
                let split = communicator.split(Some(0), rank as i32, &options(Some(algorithm))?)?;
                every_collective(&split.expect("all have a colour"), &[20, 50_004])?;
            }
            communicator.barrier()
        }
        "agree-briefly" => {
            every_collective(&communicator, &[0, 4, 1000, 50_004])?;
            communicator.barrier()
        }
        _ => over_and_over(&communicator),
    }
}

/// Runs every collective on buffers of which the larger has each of `counts` elements of four bytes, and checks every element.
fn every_collective(communicator: &Communicator, counts: &[usize]) -> rccl::Result<()> {
    let (me, size) = (communicator.rank(), communicator.size());
    let value = |rank: u32, i: usize| (rank + 1).wrapping_mul(i as u32 ^ 0x55);
    let from = |rank: u32, count: usize| (0..count).map(|i| value(rank, i)).collect::<Vec<u32>>();
    let sum = |i: usize| (0..size).fold(0_u32, |sum, rank| sum.wrapping_add(value(rank, i)));
    for &count in counts {
        let share = count / size as usize;
        let input = from(me, count);
        let mut output = vec![0; count];
        communicator.all_reduce(&input, &mut output, ReduceOp::Sum)?;
        assert!(output.iter().enumerate().all(|(i, &found)| found == sum(i)), "all-reduce of {count}");

        let mut all = vec![0; share * size as usize];
        communicator.all_gather(&input[..share], &mut all)?;
        let expected: Vec<u32> = (0..size).flat_map(|rank| from(rank, share)).collect();
        assert!(all == expected, "all-gather of {count}");

        let mut part = vec![0; share];
        communicator.reduce_scatter(&input[..share * size as usize], &mut part, ReduceOp::Sum)?;
        let first = me as usize * share;
        let right = |(i, &found): (usize, &u32)| found == sum(first + i);
        assert!(part.iter().enumerate().all(right), "reduce-scatter of {count}");

        for root in 0..size {
            let mut buffer = from(me, share);
            communicator.broadcast_in_place(&mut buffer, root)?;
            assert!(buffer == from(root, share), "broadcast of {share} by {root}");
        }

        let (to, origin) = ((me + 1) % size, (me + size - 1) % size);
        communicator.send_recv(&input, to, &mut output, origin)?;
        assert!(output == from(origin, count), "send-recv of {count}");
    }
    Ok(())
}

/// All-reduces until one fails.
fn over_and_over(communicator: &Communicator) -> rccl::Result<()> {
    let (input, mut output) = (vec![1_u32; 1 << 20], vec![0_u32; 1 << 20]);
    for round in 0_u64.. {
        communicator.all_reduce(&input, &mut output, ReduceOp::Sum)?;
        if round == 2 {
            say("running");
        }
    }
    Ok(())
}
