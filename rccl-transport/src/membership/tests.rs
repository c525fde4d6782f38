use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpStream},
};

use super::*;
use crate::{
    connect::reserve,
    rendezvous::{Root, RootOptions, answer, introduce},
};

pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) fn options() -> JoinOptions {
    JoinOptions { choice: Choice::loopback(), deadline: LONG, ..JoinOptions::default() }
}

fn root() -> (Root, UniqueId) {
    Root::start(&RootOptions { choice: Choice::loopback(), ..RootOptions::default() }).unwrap()
}

/// Runs `act` on every rank of a group of threads.
pub(super) fn with_group<T: Send>(size: u32, act: impl Fn(Membership) -> T + Sync) -> Vec<T> {
    let (_root, id) = root();
    with_ranks(size, |rank| {
        let group = Group::new(size, rank).unwrap();
        act(join(&id, group, vec![rank as u8; 2], &options()).unwrap())
    })
}

fn with_ranks<T: Send>(size: u32, act: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || act(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn deadline() -> Deadline {
    Deadline::after(LONG)
}

#[test]
fn groups_of_many_sizes_form_and_gather() {
    for size in [1, 2, 5, 16] {
        let secrets = with_group(size, |mut membership| {
            let own = membership.group.rank().0;
            let links = membership.links.iter().map(Option::is_some);
            assert!(links.eq((0..size).map(|rank| rank != own)));
            for (rank, member) in (0..size).zip(&membership.members) {
                assert_eq!((member.rank.0, &member.payload[..]), (rank, &[rank as u8; 2][..]));
                assert!(membership.same_host(member.rank));
            }
            for round in 0..3usize {
                let bytes = vec![own as u8; round * 1000 * own as usize];
                let all = membership.all_gather(&bytes, &deadline()).unwrap();
                let want = (0..size).map(|rank| vec![rank as u8; round * 1000 * rank as usize]);
                assert!(all.into_iter().eq(want));
            }
            assert_eq!(membership.strangers, 0);
            membership.secret
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));
    }
}

#[test]
fn large_messages_all_ways_at_once_do_not_block_each_other() {
    with_group(3, |mut membership| {
        let bytes = vec![membership.group.rank().0 as u8; MAX_GATHER_BYTES];
        let all = membership.all_gather(&bytes, &deadline()).unwrap();
        assert!(
            all.iter()
                .zip(0..)
                .all(|(got, rank)| got.len() == MAX_GATHER_BYTES && got[MAX_GATHER_BYTES - 1] == rank)
        );
        let error = membership.all_gather(&vec![0; MAX_GATHER_BYTES + 1], &deadline()).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }));
    });
}

#[test]
fn two_groups_with_one_secret_have_secrets_of_their_own() {
    let secret = Secret::random().unwrap();
    let form = || {
        let (_port, address) = reserve("127.0.0.1:0").unwrap();
        let id = UniqueId::from_address_and_secret(address, &secret);
        let _root = Root::start_for(&id, &RootOptions::default()).unwrap();
        join(&id, Group::new(1, 0).unwrap(), Vec::new(), &options()).unwrap().secret
    };
    assert_ne!(form(), form());
}

#[test]
fn all_interfaces_together_work_too() {
    let (_root, id) = Root::start(&RootOptions::default()).unwrap();
    with_ranks(3, |rank| {
        let group = Group::new(3, rank).unwrap();
        let mut membership = join(&id, group, Vec::new(), &JoinOptions::default()).unwrap();
        membership.all_gather(b"x", &deadline()).unwrap();
    });
}

#[test]
fn hosts_are_told_apart() {
    let (_root, id) = root();
    with_ranks(4, |rank| {
        let host = Some(HostId::from_text(["one", "two"][rank as usize % 2]));
        let group = Group::new(4, rank).unwrap();
        let membership = join(&id, group, Vec::new(), &JoinOptions { host, ..options() }).unwrap();
        for peer in group.ranks() {
            assert_eq!(membership.same_host(peer), peer.0 % 2 == rank % 2);
        }
    });
}

/// Makes a nuisance of itself at an address: silence, garbage, half a greeting.
fn intrude(address: SocketAddr) -> Vec<TcpStream> {
    let connect = || TcpStream::connect(address).unwrap();
    let (silent, mut garbage, mut half) = (connect(), connect(), connect());
    garbage.write_all(&[b'x'; 3000]).unwrap();
    half.write_all(b"\x8frccl\r\n\0").unwrap();
    vec![silent, garbage, half]
}

#[test]
fn strangers_at_the_root_and_at_the_members_disturb_nobody() {
    let (root, id) = root();
    let mut strangers = id.addresses().iter().flat_map(|&address| intrude(address)).collect::<Vec<_>>();
    // Rank 0 is told about a rank 1 whose place the test takes, so that rank 0 is still linking when strangers come.
    let deadline = deadline();
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| join(&id, Group::new(2, 0).unwrap(), Vec::new(), &options()).unwrap());
        let listeners = listen_on_all(&Choice::loopback().addresses().unwrap()).unwrap();
        let this = Member::this(Rank(1), None, addresses_of(&listeners).unwrap(), Vec::new()).unwrap();
        let (members, nonce) = meet(&id, 2, this, &deadline).unwrap();
        for &address in &members[0].addresses {
            strangers.extend(intrude(address));
        }
        let secret = id.secret().derive_from("group", &nonce);
        let mesh = mesh::Mesh::new(Group::new(2, 1).unwrap(), &members, &secret, listeners, LONG).unwrap();
        mesh.finish(&deadline).unwrap();
        // The garbage at the address that rank 1 called came first.
        assert!(zero.join().unwrap().strangers >= 1);
    });
    drop(root);
}

#[test]
fn a_missing_rank_is_named_by_everyone_who_came() {
    let (_root, id) = root();
    let mut early = [0, 1].map(|rank| {
        let this = Member::this(Rank(rank), None, Vec::new(), Vec::new()).unwrap();
        introduce(&id, 4, this, &deadline()).unwrap()
    });
    // A busy machine may not even connect within a brief deadline; then a longer one is tried.
    let error = [80, 800, 8000].into_iter().find_map(|ms| {
        let brief = JoinOptions { deadline: Duration::from_millis(ms), ..options() };
        let error = join(&id, Group::new(4, 2).unwrap(), Vec::new(), &brief).unwrap_err().to_string();
        let whole =
            format!("the arrival of rank 3 (of a group of 4) did not happen within {:?}", brief.deadline);
        (error == whole).then_some(whole)
    });
    let error = error.expect("the missing rank is named");
    for stream in &mut early {
        assert_eq!(answer(stream, 4, &deadline()).unwrap_err().to_string(), error);
    }
}

#[test]
fn a_member_that_never_links_is_named() {
    let (_root, id) = root();
    // Rank 0 listens, but nobody answers there.
    let mut there = listen_on_all(&Choice::loopback().addresses().unwrap()).unwrap();
    there.truncate(1);
    let absent = Member::this(Rank(0), None, addresses_of(&there).unwrap(), Vec::new()).unwrap();
    let _absent = introduce(&id, 2, absent, &deadline()).unwrap();
    let this = Member::this(Rank(1), None, Vec::new(), Vec::new()).unwrap();
    let (members, _) = meet(&id, 2, this, &deadline()).unwrap();
    let secret = Secret::random().unwrap();
    let mesh = mesh::Mesh::new(Group::new(2, 1).unwrap(), &members, &secret, Vec::new(), LONG).unwrap();
    let error = mesh.finish(&Deadline::after(Duration::from_millis(100))).unwrap_err().to_string();
    assert!(error.starts_with("a link with rank 0; rank 0 (process"), "{error}");
    assert!(error.contains("connected, but no hello yet did not happen within 100ms"), "{error}");
}

#[test]
fn a_member_that_dies_while_links_are_made_fails_the_others_at_once() {
    let (_root, id) = root();
    let (_port, address) = reserve("127.0.0.1:0").unwrap();
    let present = std::thread::scope(|scope| {
        let dead = Member::this(Rank(0), None, vec![address], Vec::new()).unwrap();
        let _dead = introduce(&id, 3, dead, &deadline()).unwrap();
        let others = [1, 2].map(|rank| {
            let id = &id;
            scope.spawn(move || join(id, Group::new(3, rank).unwrap(), Vec::new(), &options()).unwrap_err())
        });
        others.map(|other| other.join().unwrap())
    });
    for error in present {
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    }
}

#[test]
fn a_member_that_dies_later_is_named() {
    let errors = with_group(3, |mut membership| {
        if membership.group.rank().0 == 1 {
            return None;
        }
        let error = membership.all_gather(b"x", &deadline()).unwrap_err().to_string();
        let again = membership.all_gather(b"x", &deadline()).unwrap_err().to_string();
        assert!(again.starts_with("connection to the group lost: it failed before"), "{again}");
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        // The first to notice closes its links too.
        assert!(error.starts_with("connection to rank"), "{error}");
    }
}

#[test]
fn a_member_that_does_not_gather_is_named() {
    let barrier = std::sync::Barrier::new(2);
    with_group(2, |mut membership| {
        if membership.group.rank().0 == 0 {
            let error = membership.all_gather(b"x", &Deadline::after(Duration::from_millis(10))).unwrap_err();
            assert_eq!(error.to_string(), "a message from rank 1 did not happen within 10ms");
        }
        barrier.wait();
    });
}

#[test]
fn a_payload_too_long_is_an_error() {
    let (_root, id) = root();
    let long = vec![0; MAX_PAYLOAD_BYTES + 1];
    let error = join(&id, Group::new(1, 0).unwrap(), long, &options()).unwrap_err().to_string();
    assert!(error.starts_with("the payload of a member is `65537 bytes`"), "{error}");
}

/// Runs one test of this module again in a process of its own, told what to do by a variable.
fn run_again(test: &str, variable: &str, value: &str) -> std::process::Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("membership::tests::{test}"), "--test-threads=1", "--nocapture"])
        .env(variable, value)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Shares 4 bytes of rank 0 and gives what rank 1 wrote there.
fn share_across(id: &UniqueId, rank: u32) -> [u8; 4] {
    let mut membership = join(id, Group::new(2, rank).unwrap(), Vec::new(), &options()).unwrap();
    let file =
        (rank == 0).then(|| rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    let shared = membership.share_file(Rank(0), &[Rank(0), Rank(1)], file, &deadline()).unwrap();
    if rank == 1 {
        rustix::io::pwrite(&shared.file, b"mine", 0).unwrap();
    }
    membership.all_gather(b"", &deadline()).unwrap();
    let mut bytes = [0; 4];
    assert_eq!(rustix::io::pread(&shared.file, &mut bytes, 0).unwrap(), 4);
    bytes
}

#[test]
fn processes_form_a_group_and_share_a_file() {
    const MARK: &str = "RCCL_TEST_UNIQUE_ID";
    if let Ok(id) = std::env::var(MARK) {
        share_across(&id.parse().unwrap(), 1);
        return;
    }
    let (_root, id) = root();
    let mut child = run_again("processes_form_a_group_and_share_a_file", MARK, &id.to_string());
    assert_eq!(&share_across(&id, 0), b"mine");
    assert!(child.wait().unwrap().success());
}

/// Tests that count what the process has open must not run beside others that open things; cargo test runs all tests of a
/// crate in one process, so the counting runs in a process of its own.
#[test]
fn fifty_groups_leave_nothing_behind() {
    const MARK: &str = "RCCL_TEST_COUNTS_DESCRIPTORS";
    if std::env::var_os(MARK).is_none() {
        let mut child = run_again("fifty_groups_leave_nothing_behind", MARK, "1");
        assert!(child.wait().unwrap().success(), "the counts are on standard error");
        return;
    }
    let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let form = || {
        with_group(3, |mut membership| {
            let file = (membership.group.rank().0 == 1)
                .then(|| rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
            let all = [0, 1, 2].map(Rank);
            membership.share_file(Rank(1), &all, file, &deadline()).unwrap();
        })
    };
    form();
    let before = (count("fd"), count("task"));
    for _ in 0..50 {
        form();
    }
    assert_eq!((count("fd"), count("task")), before);
}
