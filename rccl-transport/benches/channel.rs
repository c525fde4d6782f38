//! Channels between two threads: the round trip of a small message, and the rate of large ones one way.

use std::{
    hint::black_box,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rccl_transport::{
    Region, Result, Secret,
    channel::{Completion, Part, RecvChannel, SendChannel, Transport},
    shm, tcp,
};

type Ends = (Box<dyn SendChannel>, Box<dyn RecvChannel>);

/// Asks until there is an answer: at once a few times, then letting others run.
fn spin<T>(mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    for round in 0.. {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if round < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    unreachable!("the loop has no end")
}

fn channel(transport: &dyn Transport) -> Ends {
    let mut listener = transport.listen().unwrap();
    let mut connecting = transport.connect(&listener.address()).unwrap();
    let (mut sender, mut receiver) = (None, None);
    while sender.is_none() || receiver.is_none() {
        if sender.is_none() {
            sender = connecting.poll().unwrap();
        }
        if receiver.is_none() {
            receiver = listener.poll_accept().unwrap();
        }
    }
    (sender.unwrap(), receiver.unwrap())
}

fn send(sender: &mut dyn SendChannel, region: &Arc<Region>) -> Result<Completion> {
    spin(|| sender.post(&region.slice(0..region.len()), 0))?;
    spin(|| sender.poll())
}

fn receive(receiver: &mut dyn RecvChannel, region: &Arc<Region>) -> Result<Completion> {
    spin(|| receiver.post(&[Part { slice: region.slice(0..region.len()), tag: 0 }]))?;
    spin(|| receiver.poll())
}

/// Returns every message of 8 bytes, until the other side goes away.
fn echo(mut sender: Box<dyn SendChannel>, mut receiver: Box<dyn RecvChannel>) -> JoinHandle<()> {
    let region = Region::zeroed(8);
    std::thread::spawn(move || {
        while receive(&mut *receiver, &region).and_then(|_| send(&mut *sender, &region)).is_ok() {}
    })
}

/// Sends as fast as it can, `WINDOW` messages at a time, until the other side goes away.
fn flood(mut sender: Box<dyn SendChannel>, message_bytes: usize) -> JoinHandle<()> {
    let region = Region::zeroed(message_bytes);
    std::thread::spawn(move || {
        let mut outstanding = 0;
        let mut step = || -> Result<()> {
            while outstanding < WINDOW && sender.post(&region.slice(0..message_bytes), 0)?.is_some() {
                outstanding += 1;
            }
            spin(|| sender.poll())?;
            outstanding -= 1;
            Ok(())
        };
        while step().is_ok() {}
    })
}

/// Messages outstanding on each side: what NCCL keeps.
const WINDOW: usize = 8;

const MESSAGE_BYTES: usize = 1 << 20;

fn round_trip(criterion: &mut Criterion, name: &str, transport: &dyn Transport) {
    let (there, back) = (channel(transport), channel(transport));
    let (mut sender, mut receiver) = (there.0, back.1);
    let echo = echo(back.0, there.1);
    let region = Region::zeroed(8);
    criterion.bench_function(&format!("round trip of 8 bytes/{name}"), |bencher| {
        bencher.iter(|| {
            send(&mut *sender, &region).unwrap();
            black_box(receive(&mut *receiver, &region).unwrap())
        });
    });
    drop((sender, receiver));
    echo.join().unwrap();
}

fn one_way(criterion: &mut Criterion, name: &str, transport: &dyn Transport) {
    let (sender, mut receiver) = channel(transport);
    let flood = flood(sender, MESSAGE_BYTES);
    let region = Region::zeroed(WINDOW * MESSAGE_BYTES);
    let mut group = criterion.benchmark_group("1 MiB one way");
    group.throughput(Throughput::Bytes(MESSAGE_BYTES as u64));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|messages| {
            let started = Instant::now();
            let (mut posted, mut received) = (0, 0);
            while received < messages {
                while posted < messages && posted < received + WINDOW as u64 {
                    let at = posted as usize % WINDOW * MESSAGE_BYTES;
                    let part = Part { slice: region.slice(at..at + MESSAGE_BYTES), tag: 0 };
                    receiver.post(&[part]).unwrap().expect("the depth exceeds the window");
                    posted += 1;
                }
                spin(|| receiver.poll()).unwrap();
                received += 1;
            }
            started.elapsed()
        });
    });
    group.finish();
    drop(receiver);
    flood.join().unwrap();
}

fn channels(criterion: &mut Criterion) {
    let secret = Secret::random().unwrap();
    let shm = shm::Transport::new(secret.clone()).unwrap();
    let tcp = |sockets| {
        let options = tcp::Options::loopback().with_sockets(sockets);
        tcp::Transport::new(options, secret.clone()).unwrap()
    };
    let (one, two) = (tcp(1), tcp(2));
    let transports: [(&str, &dyn Transport); 3] =
        [("shm", &shm), ("tcp, 1 socket", &one), ("tcp, 2 sockets", &two)];
    for (name, transport) in transports {
        round_trip(criterion, name, transport);
        one_way(criterion, name, transport);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = channels
}
criterion_main!(benches);
