//! The host executor over the simulated fabric: every rank on a host of its own, all in one thread, in virtual time. Any
//! failure names its seed, and the seed repeats it.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use rccl_core::{
    Algorithm, Collective, DataType, Group, Rank, ReduceOp, Request, oracle, plan::Station, planner,
};
use rccl_transport::{
    channel::Transport,
    secret::Secret,
    sim,
    station::{Arena, LABEL_BYTES, Label, Layout, Publisher, Reader, Sizes},
    tcp,
};

use super::{Advance, Fault, Ports, Program, Run};

const SIZES: Sizes = Sizes { slots: 2, slot_bytes: 256 };

/// The ports of all ranks, every two joined by simulated channels.
fn ports(fabric: &sim::Fabric, size: u32) -> Vec<Ports> {
    ports_over(size, |rank| Box::new(fabric.transport(rank)), || while fabric.step() {})
}

/// The ports of all ranks, every two joined by channels of the ranks' transports; `settle` lets a connection come about.
fn ports_over(size: u32, transport: impl Fn(u32) -> Box<dyn Transport>, settle: impl Fn()) -> Vec<Ports> {
    let groups: Vec<Group> = (0..size).map(|rank| Group::new(size, rank).unwrap()).collect();
    let arenas: Vec<Arena> = groups
        .iter()
        .map(|group| {
            let layout = Layout { group_size: size, residents: vec![group.rank()], sizes: SIZES };
            Arena::open(Arena::create(&layout).unwrap(), layout).unwrap()
        })
        .collect();
    let mut all: Vec<Ports> = groups
        .iter()
        .zip(&arenas)
        .map(|(&group, arena)| {
            let mut ports = Ports::new(group, arena.doorbell(group.rank()).unwrap());
            group.peers().for_each(|peer| ports.add_doorbell(peer, None));
            ports
        })
        .collect();
    let connect = |from: Rank, to: Rank| {
        let mut listener = transport(to.0).listen().unwrap();
        let mut connecting = transport(from.0).connect(&listener.address()).unwrap();
        let (mut sender, mut receiver) = (None, None);
        while sender.is_none() || receiver.is_none() {
            settle();
            sender = sender.or_else(|| connecting.poll().unwrap());
            receiver = receiver.or_else(|| listener.poll_accept().unwrap());
        }
        (sender.unwrap(), receiver.unwrap())
    };
    for (group, arena) in groups.iter().zip(&arenas) {
        let me = group.rank();
        let pairs = group.peers().map(|reader| Station::Pair { publisher: me, reader });
        for station in pairs.chain([Station::Shared { publisher: me }]) {
            let mut remote = Vec::new();
            for reader in station.readers(size) {
                let (sender, receiver) = connect(me, reader);
                remote.push((reader, sender));
                let reading = Reader::remote(me, SIZES, receiver, &*transport(reader.0)).unwrap();
                all[reader.index()].add_reader(station, reading);
            }
            all[me.index()].add_publisher(station, Publisher::new(arena, station, [], remote));
        }
    }
    all
}

fn request(collective: Collective, count: u64) -> Request {
    match collective {
        Collective::AllReduce => Request::all_reduce(count, DataType::Bfloat16, ReduceOp::Avg),
        Collective::AllGather => Request::all_gather(count, DataType::Bfloat16),
        Collective::ReduceScatter => Request::reduce_scatter(count, DataType::Bfloat16, ReduceOp::Sum),
        Collective::Broadcast => Request::broadcast(count, DataType::Bfloat16, Rank(1)),
        Collective::SendRecv => {
            Request::send_recv(count, Some(Rank(0)), count, Some(Rank(0)), DataType::Bfloat16)
        }
    }
}

/// What `rank` must end with.
fn expected(request: &Request, algorithm: Algorithm, inputs: &[Vec<u8>], rank: usize) -> Vec<u8> {
    let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    match (request.collective, request.op) {
        (Collective::AllReduce, Some(op)) => oracle::all_reduce(algorithm, request.data_type, op, &views),
        (Collective::ReduceScatter, Some(op)) => {
            oracle::reduce_scatter(algorithm, request.data_type, op, &views).swap_remove(rank)
        }
        (Collective::AllGather, _) => inputs.concat(),
        _ => inputs[1].clone(),
    }
}

/// One call on every rank, driven until all are done or one fails.
fn call(
    fabric: &sim::Fabric,
    ports: &mut [Ports],
    request: &Request,
    algorithm: Algorithm,
    inputs: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, Fault> {
    let size = ports.len() as u32;
    let output_len = |group| request.output_len(group) as usize * request.data_type.size_bytes();
    let mut outputs: Vec<Vec<u8>> =
        (0..size).map(|rank| vec![0x5a; output_len(Group::new(size, rank).unwrap())]).collect();
    let mut runs: Vec<Run> = (0..size)
        .zip(ports.iter())
        .map(|(rank, ports)| {
            let plan = planner::plan(Group::new(size, rank).unwrap(), request, algorithm, 128).unwrap();
            let (input, output) = (inputs[rank as usize].as_ptr(), outputs[rank as usize].as_mut_ptr());
            // SAFETY: both buffers have the plan's lengths and outlive the run.
            unsafe { Run::new(Arc::new(Program::new(plan, ports)), input, output) }
        })
        .collect();
    loop {
        let mut done = 0;
        for (run, ports) in runs.iter_mut().zip(ports.iter_mut()) {
            done += usize::from(run.advance(ports)? == Advance::Done);
        }
        if done == runs.len() {
            return Ok(outputs);
        }
        fabric.step();
    }
}

fn inputs(request: &Request, size: u32, seed: u64) -> Vec<Vec<u8>> {
    (0..size)
        .map(|rank| {
            let len = request.input_len(Group::new(size, rank).unwrap()) as usize;
            // Small whole numbers, so that any order of addition is exact, and different on every rank.
            (0..len)
                .flat_map(|i| {
                    half::bf16::from_f32(((i as u64 * 7 + seed + u64::from(rank)) % 17) as f32).to_le_bytes()
                })
                .collect()
        })
        .collect()
}

#[test]
fn every_collective_survives_delay_jitter_and_stalls() {
    for seed in 0..30 {
        let settings =
            sim::Settings { delay: 3, jitter: 40, stalls_per_mille: 30, stall: 300, ..Default::default() };
        let fabric = sim::Fabric::new(seed, settings);
        let size = 2 + seed as u32 % 3;
        let mut ports = ports(&fabric, size);
        // One after another on the same stations, without a barrier in between.
        for collective in Collective::ALL.into_iter().filter(|&collective| collective != Collective::SendRecv)
        {
            for &algorithm in collective.algorithms() {
                for count in [1, 100, 999] {
                    let request = request(collective, count);
                    let inputs = inputs(&request, size, seed);
                    let outputs = call(&fabric, &mut ports, &request, algorithm, &inputs)
                        .unwrap_or_else(|fault| panic!("seed {seed}: {fault:?}"));
                    for (rank, output) in outputs.iter().enumerate() {
                        let expected = expected(&request, algorithm, &inputs, rank);
                        assert!(
                            *output == expected,
                            "seed {seed}: {collective} of {count} by {algorithm} on rank {rank} of {size}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_cut_link_is_reported_with_the_rank_behind_it() {
    for seed in 0..20 {
        let fabric = sim::Fabric::new(seed, sim::Settings::default());
        let mut ports = ports(&fabric, 3);
        let request = request(Collective::AllReduce, 2000);
        let inputs = inputs(&request, 3, seed);
        call(&fabric, &mut ports, &request, Algorithm::Relay, &inputs).unwrap();
        fabric.cut(sim::Link::between(0, 2));
        let fault = call(&fabric, &mut ports, &request, Algorithm::Relay, &inputs).unwrap_err();
        let Fault::Station(error) = fault else { panic!("seed {seed}: {fault:?}") };
        assert!([0, 2].contains(&error.rank.0), "seed {seed}: {error}");
    }
}

#[test]
fn another_call_on_a_peer_is_a_mismatch_and_writes_nothing() {
    let fabric = sim::Fabric::new(7, sim::Settings::default());
    let mut ports = ports(&fabric, 2);
    let mut outputs = [vec![0xa5_u8; 400], vec![0xa5; 400]];
    let input = [0_u8; 400];
    let mut runs = Vec::new();
    for (rank, count) in [(0, 100), (1, 200)] {
        let request = Request::all_reduce(count, DataType::Half, ReduceOp::Sum);
        let plan = planner::plan(Group::new(2, rank).unwrap(), &request, Algorithm::Oneshot, 128).unwrap();
        let program = Arc::new(Program::new(plan, &ports[rank as usize]));
        // SAFETY: both buffers have at least the plan's lengths and outlive the run.
        runs.push(unsafe { Run::new(program, input.as_ptr(), outputs[rank as usize].as_mut_ptr()) });
    }
    let mut faults = 0;
    for _ in 0..10_000 {
        for (run, ports) in runs.iter_mut().zip(&mut ports) {
            faults += usize::from(matches!(run.advance(ports), Err(Fault::Mismatch(_))));
        }
        if faults >= 2 {
            break;
        }
        fabric.step();
    }
    assert!(faults >= 2);
    drop(runs);
    assert!(outputs.iter().flatten().all(|&byte| byte == 0xa5));
}

/// Publishes a short message for rank 0 and waits until the network has taken it.
fn send_to_first(ports: &mut Ports, from: u32) {
    let station = Station::Pair { publisher: Rank(from), reader: Rank(0) };
    let port = ports.publisher_port(station);
    let publisher = ports.publishers[port].as_mut().unwrap();
    publisher.claim(8).unwrap().expect("the station is empty");
    publisher.publish(&Label { signature: 1, text: [0; LABEL_BYTES] }, Run::NO_CALL, 8).unwrap();
    while !ports.drive().unwrap() {}
}

#[test]
fn who_waits_for_one_rank_sleeps_through_what_others_send_early() {
    let secret = Secret::random().unwrap();
    let transport = |_| -> Box<dyn Transport> {
        Box::new(tcp::Transport::new(tcp::Options::loopback(), secret.clone()).unwrap())
    };
    let [first, mut second, mut third] = <[Ports; 3]>::try_from(ports_over(3, transport, || ())).unwrap();
    send_to_first(&mut second, 1);
    // Whatever rank 1 sends has arrived once somebody who waits for it is woken.
    first.poll(Duration::from_secs(20), &[Rank(1)]);
    let (woken, wakes) = mpsc::channel();
    let sleeper = thread::spawn(move || {
        first.poll(Duration::from_secs(20), &[Rank(2)]);
        woken.send(()).unwrap();
        first
    });
    assert!(wakes.recv_timeout(Duration::from_millis(100)).is_err(), "woken by a rank that nobody waits for");
    send_to_first(&mut third, 2);
    wakes.recv_timeout(Duration::from_secs(10)).expect("woken by the rank that is waited for");
    sleeper.join().unwrap();
}
