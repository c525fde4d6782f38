use std::io::Write;

use proptest::prelude::*;
use rccl_core::Rank;

use super::*;
use crate::{HostId, connect::reserve};

const LONG: Duration = Duration::from_secs(60);

fn options() -> RootOptions {
    RootOptions { choice: Choice::loopback(), ..RootOptions::default() }
}

fn member(rank: u32) -> Member {
    let addresses = vec!["127.0.0.1:1".parse().unwrap()];
    Member::this(Rank(rank), Some(HostId([7; 16])), addresses, vec![rank as u8; 3]).unwrap()
}

type Met = Result<(Vec<Member>, [u8; 32])>;

/// Lets ranks with what they think of the group's size meet, all at once.
fn meet_all(id: &UniqueId, ranks: &[(u32, u32)], within: Duration) -> Vec<Met> {
    std::thread::scope(|scope| {
        let threads = ranks
            .iter()
            .map(|&(rank, size)| scope.spawn(move || meet(id, size, member(rank), &Deadline::after(within))));
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn errors(id: &UniqueId, ranks: &[(u32, u32)], within: Duration) -> Vec<String> {
    meet_all(id, ranks, within).into_iter().map(|met| met.unwrap_err().to_string()).collect()
}

#[test]
fn everyone_gets_the_same_table() {
    let (_root, id) = Root::start(&options()).unwrap();
    let met = meet_all(&id, &[(2, 3), (0, 3), (1, 3)], LONG);
    let (members, nonce) = met[0].as_ref().unwrap();
    assert_eq!(*members, [0, 1, 2].map(member));
    assert!(met.iter().all(|other| other.as_ref().unwrap() == &(members.clone(), *nonce)));
}

#[test]
fn the_missing_ranks_are_named() {
    let (_root, id) = Root::start(&options()).unwrap();
    // The root reads in order of arrival, so rank 2 is there when rank 0 comes.
    let mut early = introduce(&id, 6, member(2), &Deadline::after(LONG)).unwrap();
    // A busy machine may not even connect within a brief deadline; then a longer one is tried.
    let brief = [30, 300, 3000].into_iter().find_map(|ms| {
        let error = errors(&id, &[(0, 6)], Duration::from_millis(ms)).remove(0);
        let within = Duration::from_millis(ms);
        let whole = format!("the arrival of ranks 1, 3-5 (of a group of 6) did not happen within {within:?}");
        (error == whole).then_some(whole)
    });
    let brief = brief.expect("the missing ranks are named");
    // Who would have waited longer, and who comes later, learn the same.
    assert_eq!(answer(&mut early, 6, &Deadline::after(LONG)).unwrap_err().to_string(), brief);
    assert_eq!(errors(&id, &[(1, 6)], LONG), [brief]);
}

#[test]
fn the_roots_own_deadline_counts_too() {
    // A root may be over before anyone comes; then a longer one is tried.
    let error = [30, 300, 3000, 30_000].into_iter().map(|ms| {
        let brief = RootOptions { deadline: Duration::from_millis(ms), ..options() };
        let (_root, id) = Root::start(&brief).unwrap();
        errors(&id, &[(1, 2)], LONG).remove(0)
    });
    let error = error.into_iter().find(|error| !error.contains("connection to the root")).unwrap();
    assert!(error.starts_with("the arrival of rank 0 (of a group of 2)"), "{error}");
}

#[test]
fn ranks_and_sizes_that_do_not_fit_are_told_to_both_sides() {
    let (_root, id) = Root::start(&options()).unwrap();
    for error in errors(&id, &[(1, 3), (1, 3)], LONG) {
        let place = member(1).place();
        let whole = format!("rank 1 was refused: {place} and {place} both say that they are rank 1");
        assert_eq!(error, whole);
    }
    let (_root, id) = Root::start(&options()).unwrap();
    for error in errors(&id, &[(0, 3), (1, 4)], LONG) {
        let [three, four] = ["rank 0 (process", "rank 1 (process"].map(|side| error.contains(side));
        assert!(three && four && error.contains('3') && error.contains('4'), "{error}");
    }
    let (_root, id) = Root::start(&options()).unwrap();
    for error in errors(&id, &[(5, 3), (0, 3)], LONG) {
        assert!(error.ends_with("says that it is rank 5 of a group of 3"), "{error}");
    }
}

#[test]
fn a_wrong_secret_is_refused_and_disturbs_nobody() {
    let (root, id) = Root::start(&options()).unwrap();
    let wrong = UniqueId::new(id.addresses(), &Secret::random().unwrap());
    let error = errors(&wrong, &[(0, 2)], LONG).remove(0);
    assert!(error.starts_with("the root of the group was refused"), "{error}");
    assert!(error.contains("this side does not know its group's secret"), "{error}");
    assert!(meet_all(&id, &[(0, 2), (1, 2)], LONG).iter().all(Result::is_ok));
    assert!(root.strangers() >= 1);
}

fn wait_for_strangers(root: &Root, count: u64) {
    let deadline = Deadline::after(LONG);
    while root.strangers() < count {
        deadline.check("the strangers").unwrap();
        wait(&mut [], &Deadline::after(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn strangers_disturb_nobody() {
    let (root, id) = Root::start(&options()).unwrap();
    let address = id.addresses()[0];
    let _silent = TcpStream::connect(address).unwrap();
    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(&[b'x'; 5000]).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"\x8frccl").unwrap();
    // Authenticated, but then talks nonsense, too much of it, or nothing.
    let guest = || reach(&id, &Deadline::after(LONG)).unwrap();
    let (mut nonsense, mut endless, _mute) = (guest(), guest(), guest());
    nonsense.write_all(&[3, 0, 0, 0, 1, 2, 3]).unwrap();
    endless.write_all(&u32::MAX.to_le_bytes()).unwrap();
    wait_for_strangers(&root, 3);
    assert!(meet_all(&id, &[(0, 2), (1, 2)], LONG).iter().all(Result::is_ok));
}

#[test]
fn patience_ends() {
    let patience = Duration::from_millis(1);
    let (root, id) = Root::start(&RootOptions { patience, ..options() }).unwrap();
    let _silent = TcpStream::connect(id.addresses()[0]).unwrap();
    wait_for_strangers(&root, 1);
}

#[test]
fn a_root_that_is_gone_is_told_at_once() {
    let (_port, address) = reserve("127.0.0.1:0").unwrap();
    let id = UniqueId::new(&[address], &Secret::random().unwrap());
    let error = errors(&id, &[(0, 2)], LONG).remove(0);
    assert!(error.starts_with("connection to the root of the group lost: none of its addresses"), "{error}");
    assert!(error.contains(&format!("{}: Connection refused", id.addresses()[0])), "{error}");
}

#[test]
fn a_dropped_root_tells_those_who_wait() {
    let (root, id) = Root::start(&options()).unwrap();
    let mut waiting = introduce(&id, 2, member(1), &Deadline::after(LONG)).unwrap();
    drop(root);
    let error = answer(&mut waiting, 2, &Deadline::after(LONG)).unwrap_err().to_string();
    assert!(error.starts_with("connection to the root of the group lost"), "{error}");
}

#[test]
fn a_member_that_goes_away_ends_the_gathering() {
    let (_root, id) = Root::start(&options()).unwrap();
    drop(introduce(&id, 3, member(2), &Deadline::after(LONG)).unwrap());
    let error = errors(&id, &[(0, 3)], LONG).remove(0);
    assert!(error.starts_with("connection to rank 2 (process"), "{error}");
    assert!(error.contains("while the group waited for"), "{error}");
}

#[test]
fn a_fixed_address_may_be_tried_before_the_root_listens() {
    let (_port, free) = reserve("127.0.0.1:0").unwrap();
    let id = UniqueId::from_address_and_secret(free, &Secret::random().unwrap());
    let error = errors(&id, &[(1, 2)], Duration::from_millis(20)).remove(0);
    assert!(error.starts_with(&format!("a root listening at {free}: Connection refused")), "{error}");
    std::thread::scope(|scope| {
        let early = scope.spawn(|| meet_all(&id, &[(0, 2), (1, 2)], LONG));
        let _root = Root::start_for(&id, &options()).unwrap();
        assert!(early.join().unwrap().iter().all(Result::is_ok));
    });
}

#[test]
fn a_root_is_over_once_everyone_was_told() {
    let (root, id) = Root::start(&options()).unwrap();
    assert!(meet_all(&id, &[(0, 1)], LONG)[0].is_ok());
    let deadline = Deadline::after(LONG);
    while !root.is_over() {
        deadline.check("the end of the root").unwrap();
        wait(&mut [], &Deadline::after(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn ipv6_alone_is_enough() {
    let Ok((_port, address)) = reserve("[::1]:0") else {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    };
    let id = UniqueId::from_address_and_secret(address, &Secret::random().unwrap());
    let _root = Root::start_for(&id, &options()).unwrap();
    assert!(meet_all(&id, &[(0, 2), (1, 2)], LONG).iter().all(Result::is_ok));
}

#[test]
fn answers_come_back() {
    let text = String::from;
    for answer in [
        Answer::Table { nonce: [9; 32], members: vec![member(0), member(1)] },
        Answer::Late { waiting_for: text("rank 1"), after_ms: 5 },
        Answer::Refused { peer: text("rank 1"), reason: text("so") },
        Answer::Lost { peer: text("rank 1"), cause: text("so") },
    ] {
        assert_eq!(Answer::decode(&answer.encode()).unwrap(), answer);
    }
}

proptest! {
    #[test]
    fn random_bytes_are_no_registration(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Answer::decode(&bytes);
        if let Ok(registration) = Registration::decode(&bytes) {
            prop_assert_eq!(registration.encode().len(), bytes.len());
        }
    }
}
