//! Streams messages from one process to another and says how fast that was.
//!
//! ```text
//! cargo run --release -p rccl-transport --example stream -- tcp|shm [SOCKETS]
//! ```
//! The process starts itself a second time as the sender.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rccl_transport::{
    Region, Result, Secret,
    channel::{Address, Part, RecvChannel, Transport},
    deadline::Deadline,
    shm, tcp,
};

const MESSAGE_BYTES: usize = 1 << 20;
const MESSAGES: usize = 4096;
/// Messages outstanding on each side.
const WINDOW: usize = 8;

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let kind = arguments.get(1).map_or("tcp", String::as_str);
    let sockets = arguments.get(2).map_or("2", String::as_str);
    match arguments.get(3) {
        None => receive_from_child(kind, sockets),
        Some(_) => send_to_parent(kind, sockets),
    }
}

fn transport(kind: &str, sockets: &str, secret: Secret) -> Outcome<Box<dyn Transport>> {
    Ok(match kind {
        "tcp" => {
            let options = tcp::Options::loopback().with_sockets(sockets.parse()?);
            Box::new(tcp::Transport::new(options, secret)?)
        }
        "shm" => Box::new(shm::Transport::new(secret)?),
        _ => return Err(format!("the first argument is `{kind}`; it is tcp or shm").into()),
    })
}

/// Asks until there is an answer, for a minute.
fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Deadline::after(Duration::from_secs(60));
    loop {
        for _ in 0..1000 {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
        }
        deadline.check(what)?;
        std::thread::yield_now();
    }
}

/// The sender: secret and address come through its standard input.
fn send_to_parent(kind: &str, sockets: &str) -> Outcome<()> {
    let mut secret = [0; 32];
    std::io::stdin().read_exact(&mut secret)?;
    let mut address = Vec::new();
    std::io::stdin().read_to_end(&mut address)?;
    let transport = transport(kind, sockets, Secret::from_bytes(secret))?;
    let mut connecting = transport.connect(&Address(address))?;
    let mut sender = until("connecting", || connecting.poll())?;
    let region = Region::from_vec(vec![1; WINDOW * MESSAGE_BYTES]);
    for n in 0..MESSAGES + WINDOW {
        if n >= WINDOW {
            until("a send", || sender.poll())?;
        }
        if n < MESSAGES {
            let at = n % WINDOW * MESSAGE_BYTES;
            until("a free place", || sender.post(&region.slice(at..at + MESSAGE_BYTES), 0))?;
        }
    }
    Ok(())
}

fn receive_from_child(kind: &str, sockets: &str) -> Outcome<()> {
    let secret = Secret::random()?;
    let transport = transport(kind, sockets, secret.clone())?;
    let mut listener = transport.listen()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([kind, sockets, "child"])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("the child has no standard input")?;
    stdin.write_all(secret.expose())?;
    stdin.write_all(&listener.address().0)?;
    drop(stdin);
    let mut receiver = until("accepting", || listener.poll_accept())?;
    let region = Region::from_vec(vec![0; WINDOW * MESSAGE_BYTES]);
    let post = |receiver: &mut dyn RecvChannel, n: usize| {
        let at = n % WINDOW * MESSAGE_BYTES;
        let part = Part { slice: region.slice(at..at + MESSAGE_BYTES), tag: 0 };
        until("a free place", || receiver.post(std::slice::from_ref(&part)))
    };
    for n in 0..WINDOW {
        post(&mut *receiver, n)?;
    }
    let started = Instant::now();
    for n in 0..MESSAGES {
        until("a message", || receiver.poll())?;
        if n + WINDOW < MESSAGES {
            post(&mut *receiver, n + WINDOW)?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = (MESSAGES * MESSAGE_BYTES) as f64 / seconds / 1e9;
    println!("{kind}: {MESSAGES} messages of {MESSAGE_BYTES} bytes in {seconds:.3} s, {rate:.2} GB/s");
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the sender failed: {status}").into()) }
}
