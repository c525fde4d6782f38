use std::sync::Arc;

use super::*;
use crate::{
    Slice,
    channel::{Part, RecvChannel, SendChannel, Transport as _},
    sys::memory,
};

type Ends = (Box<dyn SendChannel>, Box<dyn RecvChannel>);

fn channel(fabric: &Fabric, from: u32, to: u32) -> Ends {
    let mut listener = fabric.transport(to).listen().unwrap();
    let mut connecting = fabric.transport(from).connect(&listener.address()).unwrap();
    while fabric.step() {}
    (connecting.poll().unwrap().unwrap(), listener.poll_accept().unwrap().unwrap())
}

fn filled(byte: u8, len: usize) -> Slice {
    Region::from_vec(vec![byte; len]).slice(0..len)
}

fn receive(receiver: &mut dyn RecvChannel, slice: &Slice) {
    receiver.post(&[Part { slice: slice.clone(), tag: 0 }]).unwrap().unwrap();
}

fn bytes(slice: &Slice) -> Vec<u8> {
    let mut out = vec![0; slice.len()];
    // SAFETY: the slice is as long as `out`, and the fabric is not being stepped.
    unsafe { slice.start().as_ptr().copy_to(out.as_mut_ptr(), out.len()) };
    out
}

/// Moves messages over three channels at once; gives the order in which they were received, and the trace.
fn run(seed: u64) -> (Vec<usize>, u64) {
    let fabric = Fabric::new(seed, Settings::default());
    let mut channels: Vec<_> = (0..3).map(|n| channel(&fabric, n, n + 1)).collect();
    for (sender, receiver) in &mut channels {
        for n in 0..8 {
            sender.post(&filled(n, 100), 0).unwrap().unwrap();
            receive(&mut **receiver, &filled(0, 100));
        }
    }
    let mut order = Vec::new();
    while fabric.step() {
        for (n, (_, receiver)) in channels.iter_mut().enumerate() {
            order.extend(receiver.poll().unwrap().map(|_| n));
        }
    }
    assert_eq!(order.len(), 24);
    (order, fabric.trace())
}

#[test]
fn the_seed_decides_what_happens() {
    let mut orders = std::collections::BTreeSet::new();
    let mut traces = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let first = run(seed);
        assert_eq!(first, run(seed), "seed {seed}");
        orders.insert(first.0);
        traces.insert(first.1);
    }
    assert_eq!((orders.len(), traces.len()), (20, 20));
}

#[test]
fn memory_is_read_when_the_message_arrives() {
    let fabric = Fabric::new(3, Settings { pieces: 1, ..Settings::default() });
    let (mut sender, mut receiver) = channel(&fabric, 0, 1);
    let (source, room) = (filled(1, 8), filled(0, 8));
    sender.post(&source, 0).unwrap().unwrap();
    receive(&mut *receiver, &room);
    // A bug in the caller: the send is not complete.
    memory::fill(&source, 2);
    while fabric.step() {}
    assert_eq!(bytes(&room), [2; 8]);
}

#[test]
fn memory_read_before_completion_holds_noise() {
    let early = (0..20).any(|seed| {
        let fabric = Fabric::new(seed, Settings::default());
        let (mut sender, mut receiver) = channel(&fabric, 0, 1);
        let room = filled(0, 1000);
        sender.post(&filled(1, 1000), 0).unwrap().unwrap();
        receive(&mut *receiver, &room);
        let mut seen = false;
        while receiver.poll().unwrap().is_none() {
            assert!(fabric.step());
            seen |= bytes(&room).iter().any(|&byte| byte > 1);
        }
        assert_eq!(bytes(&room), [1; 1000]);
        seen
    });
    assert!(early);
}

#[test]
fn a_cut_link_fails_its_channels_and_no_others() {
    let cuts = vec![(100_000, Link::between(1, 0))];
    let fabric = Fabric::new(5, Settings { cuts, stalls_per_mille: 0, ..Settings::default() });
    let mut listener = fabric.transport(1).listen().unwrap();
    let mut connecting = fabric.transport(0).connect(&listener.address()).unwrap();
    let mut other = fabric.transport(2).connect(&listener.address()).unwrap();
    let (mut accepted, mut cut, mut whole) = (Vec::new(), None, None);
    while fabric.now() < 100_000 {
        if cut.is_none() {
            cut = connecting.poll().unwrap();
        }
        if whole.is_none() {
            whole = other.poll().unwrap();
        }
        accepted.extend(listener.poll_accept().unwrap());
        assert!(fabric.step());
    }
    let (mut cut, mut whole) = (cut.unwrap(), whole.unwrap());
    let source = filled(1, 8);
    assert!(whole.post(&source, 0).unwrap().is_some());
    let said = cut.post(&source, 0).unwrap_err().to_string();
    assert_eq!(said, "connection to node 1 lost: the link is cut");
    let ends: Vec<_> = accepted.iter_mut().map(|receiver| receiver.poll().is_err()).collect();
    assert_eq!(ends.iter().filter(|&&failed| failed).count(), 1);

    let mut late = fabric.transport(0).connect(&listener.address()).unwrap();
    while fabric.step() {}
    assert!(late.poll().unwrap_err().to_string().contains("the link is cut"));
}

#[test]
fn unregistered_memory_is_refused_and_deregistered_memory_let_go() {
    let fabric = Fabric::new(9, Settings { needs_registration: true, pieces: 100, ..Settings::default() });
    let (mut sender, mut receiver) = channel(&fabric, 0, 1);
    let (source, room) = (filled(1, 1000), filled(0, 1000));
    assert!(sender.post(&source, 0).unwrap_err().to_string().contains("not registered"));
    let node = fabric.transport(0);
    let registered = node.register(source.region()).unwrap();
    let _room = node.register(room.region()).unwrap();
    sender.post(&source, 0).unwrap().unwrap();
    receive(&mut *receiver, &room);
    while bytes(&room)[0] == 0 {
        assert!(fabric.step());
    }
    drop(registered);
    assert!(receiver.poll().unwrap_err().to_string().contains("deregistered"));
    assert_eq!(Arc::strong_count(source.region()), 1);
}
