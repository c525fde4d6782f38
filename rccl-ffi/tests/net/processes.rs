//! Two processes, of any two versions; one that is killed.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use crate::{
    child,
    pair::{Pair, pattern, until},
    table::{self, Api, Object, REMOTE, VERSIONS, has_said},
};

const MESSAGES: usize = 12;

/// A dead peer must be noticed within this; the bar of PyTorch's users is 10 s.
const NOTICED: Duration = Duration::from_secs(10);

fn len(n: usize) -> usize {
    [0, 9, 66_000, 1 << 20][n % 4] + n / 4
}

/// Sender and receiver of different versions, then a receiver and a sender that are killed.
#[test]
#[ignore = "run by main.rs in an environment of its own"]
fn suite() {
    let library = table::open();
    for (mine, theirs) in [(5, 12), (12, 6), (8, 9), (11, 10), (7, 11)] {
        assert!(VERSIONS.contains(&mine) && VERSIONS.contains(&theirs));
        let api = crate::prepared(library, mine);
        let mut peer = Peer::start(theirs, "all");
        let pair = peer.pair(api);
        for n in 0..MESSAGES {
            let mut memory = pair.memory(pair.send, pattern(n as u64, len(n)));
            let request = pair.post_send(&mut memory, 0);
            pair.wait(request);
            api.deregister(pair.send, memory.handle).unwrap();
        }
        for n in 0..MESSAGES {
            let mut memory = pair.memory(pair.receive, vec![0; len(n)]);
            let request = pair.post_receive(&mut memory, 0);
            assert_eq!(pair.wait(request)[0], len(n) as i32);
            assert!(memory.bytes == pattern(n as u64, len(n)), "message {n} of v{theirs}");
            api.deregister(pair.receive, memory.handle).unwrap();
        }
        pair.close();
        assert!(peer.process.wait().unwrap().success());
    }
    let api = crate::prepared(library, 12);
    a_killed_peer_is_noticed(api);
    let over = if std::env::var("RCCL_NET_SHM").as_deref() == Ok("0") { "over tcp" } else { "over shm" };
    assert!(has_said(&["connected", over]));
}

/// Both a sender that is held back and a receiver that waits are told, in time.
fn a_killed_peer_is_noticed(api: &'static dyn Api) {
    let mut peer = Peer::start(12, "stop");
    let pair = peer.pair(api);
    let mut message = pair.memory(pair.send, vec![1; 64 << 20]);
    let mut room = pair.memory(pair.receive, vec![0; 8]);
    let (sending, receiving) = (pair.post_send(&mut message, 0), pair.post_receive(&mut room, 0));
    for request in [sending, receiving] {
        assert_eq!(api.test(request), Ok(None));
    }
    peer.process.kill().unwrap();
    let killed = Instant::now();
    assert_eq!(pair.failure(sending), REMOTE);
    assert_eq!(pair.failure(receiving), REMOTE);
    assert!(killed.elapsed() < NOTICED, "after {:?}", killed.elapsed());
    api.deregister(pair.send, message.handle).unwrap();
    api.deregister(pair.receive, room.handle).unwrap();
    pair.close();
}

/// The other process. Handles go over its standard input and output.
struct Peer {
    process: Child,
}

impl Peer {
    fn start(version: u32, what: &str) -> Self {
        let version = version.to_string();
        let mut command =
            child("processes::peer", &[("RCCL_TEST_VERSION", version.as_str()), ("RCCL_TEST_DO", what)]);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { process }
    }

    /// The connections to and from it.
    fn pair(&mut self, api: &'static dyn Api) -> Pair {
        let mut lines = BufReader::new(self.process.stdout.as_mut().unwrap()).lines();
        let theirs = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once("handle ")?.1.to_owned()));
        establish(api, |mine| {
            writeln!(self.process.stdin.as_mut().unwrap(), "{mine}").unwrap();
            theirs.expect("a handle")
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Connects both ways; `trade` gives the other side's handle for ours.
fn establish(api: &'static dyn Api, trade: impl FnOnce(String) -> String) -> Pair {
    let mut mine = [0_u8; 128];
    let listener = api.listen(0, &mut mine).unwrap();
    let text = trade(mine.iter().map(|byte| format!("{byte:02x}")).collect());
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    let mut theirs: [u8; 128] = std::array::from_fn(byte);
    let (mut send, mut receive) = (Object::NULL, Object::NULL);
    until("connections between processes", || {
        if send.is_null() {
            send = api.connect(Object::NULL, 0, &mut theirs).unwrap();
        }
        if receive.is_null() {
            receive = api.accept(listener).unwrap();
        }
        (!send.is_null() && !receive.is_null()).then_some(())
    });
    api.close_listener(listener).unwrap();
    Pair { api, send, receive }
}

/// What the other process does: it sends back what it receives, or does nothing at all.
#[test]
#[ignore = "run by the suite, which talks to it"]
fn peer() {
    let version = std::env::var("RCCL_TEST_VERSION").unwrap().parse().unwrap();
    let api = crate::prepared(table::open(), version);
    let pair = establish(api, |mine| {
        println!("handle {mine}");
        std::io::stdin().lock().lines().next().unwrap().unwrap()
    });
    if std::env::var("RCCL_TEST_DO").unwrap() == "stop" {
        // Until it is killed, or forgotten.
        std::thread::sleep(crate::pair::PATIENCE);
        return;
    }
    let mut messages = Vec::new();
    for n in 0..MESSAGES {
        let mut memory = pair.memory(pair.receive, vec![0; len(n)]);
        let request = pair.post_receive(&mut memory, 0);
        pair.wait(request);
        messages.push(memory);
    }
    for message in messages {
        let mut memory = pair.memory(pair.send, message.bytes.clone());
        let request = pair.post_send(&mut memory, 0);
        pair.wait(request);
    }
    pair.close();
}
