//! What a connection carries.

use std::{ffi::CStr, sync::Barrier, time::Instant};

use crate::{
    pair::{HOST, Pair, pattern, until},
    table::{Api, Object, Receive},
};

/// Connections made one after the other, unless `RCCL_TEST_CONNECTIONS` says how many. NCCL's largest jobs make 10,000 on a
/// host; this many take a second or two, and leaks of a descriptor each show as well.
const CONNECTIONS: usize = 1_000;

pub(crate) fn devices_are_what_the_machine_has(api: &dyn Api) {
    let count = api.devices().unwrap();
    assert!(count >= 1);
    for device in 0..count {
        let name = api.name_of(device).unwrap();
        // SAFETY: the plugin's strings end in NUL and live as long as the process.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
        let named = |part: &str| std::path::Path::new("/sys/class/net").join(part).exists();
        assert!(name.split('+').all(named), "{name}");
    }
    assert!(api.name_of(count).is_err() && api.name_of(-1).is_err());
}

pub(crate) fn sizes(api: &'static dyn Api) {
    let pair = Pair::new(api);
    for len in [0, 1, 7, 96, 97, 4096, 16_384, 65_535, 65_536, 65_537, 300_000, (1 << 20) + 3, 5 << 20] {
        pair.exchange(pattern(len as u64, len));
    }
    pair.close();
}

/// As NCCL streams: several steps outstanding, each tested in turn, the receiver at times later than the sender.
pub(crate) fn a_stream_of_messages_stays_in_order(api: &'static dyn Api) {
    const MESSAGES: usize = 48;
    const OUTSTANDING: usize = 8;
    let pair = Pair::new(api);
    let len = |n: usize| [300_000, 0, 5, 70_000][n % 4] + n;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut posted = Vec::new();
            for n in 0..MESSAGES {
                let mut memory = pair.memory(pair.send, pattern(n as u64, len(n)));
                let request = pair.post_send(&mut memory, 3);
                posted.push((request, memory));
                if posted.len() == OUTSTANDING {
                    let (request, memory) = posted.remove(0);
                    pair.wait(request);
                    api.deregister(pair.send, memory.handle).unwrap();
                }
            }
            posted.into_iter().for_each(|(request, _)| _ = pair.wait(request));
        });
        let mut posted = Vec::new();
        for n in 0..MESSAGES {
            let mut memory = pair.memory(pair.receive, vec![0; len(n) + 9]);
            let request = pair.post_receive(&mut memory, 3);
            posted.push((n, request, memory));
            if posted.len() == OUTSTANDING || n + 1 == MESSAGES {
                for (n, request, memory) in posted.drain(..) {
                    assert_eq!(pair.wait(request)[0], len(n) as i32);
                    assert!(memory.bytes[..len(n)] == pattern(n as u64, len(n))[..], "message {n}");
                    api.deregister(pair.receive, memory.handle).unwrap();
                }
            }
        }
    });
    pair.close();
}

/// Tags tell the messages of a group apart.
pub(crate) fn groups(api: &'static dyn Api) {
    let pair = Pair::new(api);
    for count in [1, 2, 8] {
        let mut rooms: Vec<_> = (0..count).map(|_| pair.memory(pair.receive, vec![0; 70_000])).collect();
        let parts: Vec<Receive> =
            rooms.iter_mut().enumerate().map(|(n, memory)| memory.part(n as i32)).collect();
        let receiving = api.receive(pair.receive, &parts, Object::NULL).unwrap();
        let mut sending = Vec::new();
        for n in (0..count).rev() {
            let mut memory = pair.memory(pair.send, pattern(n as u64, 60_000 + n));
            sending.push((pair.post_send(&mut memory, n as i32), memory));
        }
        let (mut lengths, mut done) = (None, 0);
        until("a group", || {
            lengths = lengths.or_else(|| api.test(receiving).unwrap());
            while done < count && api.test(sending[done].0).unwrap().is_some() {
                done += 1;
            }
            (lengths.is_some() && done == count).then_some(())
        });
        for (n, room) in rooms.iter().enumerate() {
            assert_eq!(lengths.unwrap()[n], 60_000 + n as i32);
            assert!(room.bytes[..60_000 + n] == pattern(n as u64, 60_000 + n)[..], "part {n} of {count}");
        }
    }
    pair.close();
}

pub(crate) fn a_listener_is_used_again(api: &'static dyn Api) {
    let mut handle = [0; 128];
    let listener = api.listen(0, &mut handle).unwrap();
    let pairs: Vec<Pair> = (0..4).map(|_| Pair::through(api, listener, &handle)).collect();
    api.close_listener(listener).unwrap();
    for (n, pair) in pairs.into_iter().enumerate() {
        pair.exchange(pattern(n as u64, 1000 + n));
        pair.close();
    }
}

/// Four ranks, each a thread, each sending to the next: as a ring of NCCL does.
pub(crate) fn a_ring_of_threads(api: &'static dyn Api) {
    const RANKS: usize = 4;
    let listeners: Vec<_> = (0..RANKS)
        .map(|_| {
            let mut handle = [0; 128];
            (api.listen(0, &mut handle).unwrap(), handle)
        })
        .collect();
    let start = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (listeners, start) = (&listeners, &start);
            scope.spawn(move || {
                start.wait();
                let mut handle = listeners[(rank + 1) % RANKS].1;
                let (mut send, mut receive) = (Object::NULL, Object::NULL);
                until("a ring", || {
                    if send.is_null() {
                        send = api.connect(Object::NULL, 0, &mut handle).unwrap();
                    }
                    if receive.is_null() {
                        receive = api.accept(listeners[rank].0).unwrap();
                    }
                    (!send.is_null() && !receive.is_null()).then_some(())
                });
                api.close_listener(listeners[rank].0).unwrap();
                let ends = Pair { api, send, receive };
                for round in 0..5 {
                    let seed = |rank: usize| (round * RANKS + rank) as u64;
                    let mut room = ends.memory(receive, vec![0; 400_000]);
                    let mut message = ends.memory(send, pattern(seed(rank), 400_000));
                    let (receiving, sending) =
                        (ends.post_receive(&mut room, 0), ends.post_send(&mut message, 0));
                    let (mut sent, mut received) = (false, false);
                    until("a round", || {
                        sent |= !sent && api.test(sending).unwrap().is_some();
                        received |= !received && api.test(receiving).unwrap().is_some();
                        (sent && received).then_some(())
                    });
                    assert!(room.bytes == pattern(seed((rank + RANKS - 1) % RANKS), 400_000));
                    api.deregister(send, message.handle).unwrap();
                    api.deregister(receive, room.handle).unwrap();
                }
                start.wait();
                ends.close();
            });
        }
    });
}

/// NCCL's service thread registers and deregisters user buffers while its progress thread sends.
pub(crate) fn registration_runs_beside_transfers(api: &'static dyn Api) {
    let pair = Pair::new(api);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = vec![0; 4096];
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                for side in [pair.send, pair.receive] {
                    let memory = api.register(side, other.as_mut_ptr(), other.len(), HOST).unwrap();
                    api.deregister(side, memory).unwrap();
                }
            }
        });
        for n in 0..20 {
            pair.exchange(pattern(n, 400_000));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    pair.close();
}

/// 2 GiB and more, in memory that is 64 MiB mapped again and again. Lengths are told in an `int`, which saturates.
pub(crate) fn beyond_2_gib(api: &'static dyn Api) {
    const PIECE: usize = 64 << 20;
    const LEN: usize = (2 << 30) + PIECE / 2;
    let pair = Pair::new(api);
    let map = || {
        let name = c"rccl test";
        // SAFETY: the name ends in NUL.
        let file = unsafe { libc::memfd_create(name.as_ptr(), 0) };
        // SAFETY: a file of our own.
        assert!(file >= 0 && unsafe { libc::ftruncate(file, PIECE as i64) } == 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a place that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LEN + PIECE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        for at in (0..LEN).step_by(PIECE) {
            let (place, flags) = (start.wrapping_byte_add(at), libc::MAP_SHARED | libc::MAP_FIXED);
            // SAFETY: within the range that was reserved above.
            assert_eq!(unsafe { libc::mmap(place, PIECE, access, flags, file, 0) }, place);
        }
        start.cast::<u8>()
    };
    let [from, to] = [map(), map()];
    let mark = |at: usize| (at % 251) as u8;
    for at in (0..PIECE).step_by(4096) {
        // SAFETY: within the first piece.
        unsafe { from.wrapping_add(at).write(mark(at)) };
    }
    let [source, target] = [(pair.send, from), (pair.receive, to)]
        .map(|(side, start)| api.register(side, start, LEN, HOST).unwrap());
    let part = Receive { data: to, bytes: LEN, tag: 0, memory: target };
    let receiving = api.receive(pair.receive, &[part], Object::NULL).unwrap();
    let sending = api.send(pair.send, (from, LEN), 0, source, Object::NULL).unwrap();
    let (mut sent, mut received) = (None, None);
    until("2 GiB", || {
        sent = sent.or_else(|| api.test(sending).unwrap());
        received = received.or_else(|| api.test(receiving).unwrap());
        (sent.is_some() && received.is_some()).then_some(())
    });
    assert_eq!(received.unwrap()[0], i32::MAX);
    for at in (0..PIECE).step_by(4096) {
        // SAFETY: within the first piece.
        assert_eq!(unsafe { to.wrapping_add(at).read() }, mark(at), "byte {at}");
    }
    pair.close();
    for start in [from, to] {
        // SAFETY: reserved above as long as this, and nobody uses it any more.
        unsafe { libc::munmap(start.cast(), LEN + PIECE) };
    }
}

/// Connections come and go, and leave no descriptor behind.
pub(crate) fn many_connections(api: &'static dyn Api) {
    let count = std::env::var("RCCL_TEST_CONNECTIONS").map_or(CONNECTIONS, |text| text.parse().unwrap());
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    Pair::new(api).close();
    let (before, started) = (open(), Instant::now());
    for n in 0..count / 10 {
        let pairs: Vec<Pair> = (0..10).map(|_| Pair::new(api)).collect();
        pairs[n % 10].exchange(vec![n as u8; 100]);
        pairs.into_iter().for_each(Pair::close);
    }
    println!("{count} connections in {:?}", started.elapsed());
    assert_eq!(open(), before, "descriptors");
}
