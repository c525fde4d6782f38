//! Channels over two rails between two network namespaces, one of them slow.
//!
//! Needs `unshare`, `nsenter`, `ip` and `tc`, and a system that lets users make namespaces; says so and passes where there is none.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rccl_transport::{
    Region, Secret,
    channel::{Address, Part, Transport as _},
    tcp,
};

const PATIENCE: Duration = Duration::from_secs(60);
const MESSAGE_BYTES: usize = 4 << 20;
const MESSAGES: usize = 24;

/// Two veth rails; rail $SLOW carries 100 Mbit/s. The sender is in the first namespace, the receiver in the second.
const SCRIPT: &str = r#"
set -eu
ip link set lo up
unshare -n sleep 60 & far=$!
trap 'kill $far' EXIT
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
for rail in 0 1; do
    ip link add near$rail type veth peer name far$rail
    ip link set far$rail netns $far
    ip addr add 10.9.$rail.1/24 dev near$rail
    ip link set near$rail up
    nsenter -t $far -n ip addr add 10.9.$rail.2/24 dev far$rail
    nsenter -t $far -n ip link set far$rail up
done
tc qdisc add dev near$SLOW root tbf rate 100mbit burst 128k latency 50ms
nsenter -t $far -n "$PROGRAM" --exact receiver --ignored --nocapture & receiver=$!
"$PROGRAM" --exact sender --ignored --nocapture
wait $receiver
"#;

#[test]
fn traffic_goes_to_the_better_rail() {
    let works = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let namespaces = works(
        Command::new("unshare")
            .args(["-rn", "ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0"]),
    );
    let shaping = works(Command::new("unshare").args([
        "-rn", "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "400mbit", "burst", "128k",
        "latency", "50ms",
    ]));
    if !namespaces || !shaping {
        eprintln!("SKIPPED: no namespaces (unshare -rn), no veth or no tc here");
        return;
    }
    for slow in ["0", "1"] {
        let folder = tempfile::tempdir().unwrap();
        let mut run = Command::new("unshare");
        run.args(["-rn", "bash", "-c", SCRIPT]).env("SLOW", slow).env("RCCL_TEST_FOLDER", folder.path());
        run.env("PROGRAM", std::env::current_exe().unwrap()).stdin(Stdio::null());
        let output = run.output().unwrap();
        let text =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
        assert!(output.status.success(), "slow rail {slow}: {}\n{text}", output.status);
        print!(
            "{}",
            text.lines()
                .find(|line| line.starts_with("slow rail"))
                .map(|it| format!("{it}\n"))
                .unwrap_or_default()
        );
    }
}

fn options(end: u8) -> tcp::Options {
    let addresses = [0, 1].map(|rail| ([10, 9, rail, end], 0).into());
    tcp::Options::new(addresses).with_sockets(2).with_rails(2)
}

fn transport(end: u8) -> tcp::Transport {
    tcp::Transport::new(options(end), Secret::from_bytes([7; 32])).unwrap()
}

fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::yield_now();
    }
}

/// Bytes that have gone out over an interface of this namespace.
fn sent(interface: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':')).unwrap();
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

fn address_file() -> std::path::PathBuf {
    Path::new(&std::env::var_os("RCCL_TEST_FOLDER").unwrap()).join("address")
}

fn message() -> Vec<u8> {
    (0..MESSAGE_BYTES).map(|at| (at % 251) as u8).collect()
}

#[test]
#[ignore = "run in a namespace of its own"]
fn sender() {
    let address = until("an address", || std::fs::read(address_file()).ok());
    let mut connecting = transport(1).connect(&Address(address)).unwrap();
    let mut channel = until("a channel", || connecting.poll().unwrap());
    let region = Region::from_vec(message());
    for _ in 0..MESSAGES {
        channel.post(&region.slice(0..MESSAGE_BYTES), 0).unwrap().unwrap();
    }
    let mut done = 0;
    until("the messages", || {
        done += usize::from(channel.poll().unwrap().is_some());
        (done == MESSAGES).then_some(())
    });
    let slow = std::env::var("SLOW").unwrap();
    let fast = if slow == "0" { "1" } else { "0" };
    let [slow, fast] = until("counting all that was sent", || {
        // What the system has taken is counted only when it goes out.
        let counts = [slow.as_str(), fast].map(|rail| sent(&format!("near{rail}")));
        (counts[0] + counts[1] >= (MESSAGES * MESSAGE_BYTES) as u64).then_some(counts)
    });
    println!("slow rail {slow} bytes, fast rail {fast} bytes");
    assert!(slow > 1 << 20 && fast > 2 * slow, "slow rail {slow} bytes, fast rail {fast}");
}

#[test]
#[ignore = "run in a namespace of its own"]
fn receiver() {
    let mut listener = transport(2).listen().unwrap();
    let path = address_file();
    std::fs::write(path.with_extension("part"), listener.address().0).unwrap();
    std::fs::rename(path.with_extension("part"), path).unwrap();
    let mut channel = until("a channel", || listener.poll_accept().unwrap());
    let room = Region::zeroed(MESSAGE_BYTES);
    let wanted = message();
    for _ in 0..MESSAGES {
        channel.post(&[Part { slice: room.slice(0..MESSAGE_BYTES), tag: 0 }]).unwrap().unwrap();
        until("a message", || channel.poll().unwrap());
        assert!(bytes(&room) == wanted);
    }
}

fn bytes(region: &Arc<Region>) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    // SAFETY: as long as the region, on which nothing is posted now.
    unsafe { region.start().as_ptr().copy_to(out.as_mut_ptr(), out.len()) };
    out
}
