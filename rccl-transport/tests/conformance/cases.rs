//! Messages that arrive.

use std::{os::fd::BorrowedFd, sync::atomic::AtomicBool, sync::atomic::Ordering::Relaxed, time::Duration};

use rccl_transport::{
    Region,
    channel::{Part, Ticket},
    deadline::{Deadline, wait},
};
use rustix::event::{PollFd, PollFlags};

use crate::subject::{Subject, bytes, pattern};

const MIB: usize = 1 << 20;

/// Filler that no message may change where it does not belong.
const UNTOUCHED: u8 = 0xee;

/// Every length arrives whole, with its real length, and nothing around it changes.
pub(crate) fn sizes(subject: &Subject) {
    let mut ends = subject.channel();
    let room = subject.region(vec![UNTOUCHED; 6 * MIB]);
    for (number, len) in [0, 1, 7, 4096, MIB, 5 * MIB + 3, 0, 65537].into_iter().enumerate() {
        let sent = pattern(number as u64, len);
        let part = Part { slice: room.slice(3..3 + len + 5), tag: 0 };
        let source = subject.message(sent.clone());
        if number % 2 == 0 {
            ends.1.post(&[part]).unwrap().unwrap();
            ends.0.post(&source, 0).unwrap().unwrap();
        } else {
            ends.0.post(&source, 0).unwrap().unwrap();
            ends.1.post(&[part]).unwrap().unwrap();
        }
        let (out, arrived) = subject.both(&mut ends);
        assert_eq!((&out.lengths[..], &arrived.lengths[..]), (&[len as u64][..], &[len as u64][..]));
        assert!(bytes(&room.slice(3..3 + len)) == sent, "{}: {len} bytes arrived changed", subject.name);
        let around = [bytes(&room.slice(0..3)), bytes(&room.slice(3 + len..8 + len))].concat();
        assert_eq!(around, [UNTOUCHED; 8], "{}: around {len} bytes", subject.name);
        write(&room.slice(3..3 + len), UNTOUCHED);
    }
}

fn write(slice: &rccl_transport::Slice, byte: u8) {
    // SAFETY: the slice keeps its region alive, and no channel has it outstanding.
    unsafe { slice.start().as_ptr().write_bytes(byte, slice.len()) };
}

/// Lengths do not wrap where 32 bits end.
pub(crate) fn beyond_2_gib(subject: &Subject) {
    const LEN: usize = (1 << 31) + 5;
    let mut ends = subject.channel();
    let source = subject.zeroed(LEN);
    let tail = source.slice(LEN - 9..LEN);
    write(&tail, 7);
    let room = subject.zeroed(LEN);
    ends.1.post(&[Part { slice: room.slice(0..LEN), tag: 0 }]).unwrap().unwrap();
    ends.0.post(&source.slice(0..LEN), 0).unwrap().unwrap();
    let (out, arrived) = subject.both(&mut ends);
    assert_eq!((out.lengths[0], arrived.lengths[0]), (LEN as u64, LEN as u64));
    assert_eq!(bytes(&room.slice(LEN - 10..LEN)), [0, 7, 7, 7, 7, 7, 7, 7, 7, 7], "{}", subject.name);
}

/// Messages arrive, and completions come, in the order posted.
pub(crate) fn order(subject: &Subject) {
    const MESSAGES: u64 = 60;
    let mut ends = subject.channel();
    let room = subject.zeroed(MESSAGES as usize * 200_000);
    let lengths: Vec<usize> = (0..MESSAGES).map(|n| (pattern(n, 8)[3] as usize * 997) % 200_000).collect();
    let slot = |n: u64, len: usize| room.slice(n as usize * 200_000..n as usize * 200_000 + len);
    let (mut posted, mut expected, mut sent, mut received) = (0, 0, 0, 0);
    subject.until("all messages", || {
        while posted < MESSAGES {
            let source = subject.message(pattern(posted, lengths[posted as usize]));
            let Some(ticket) = ends.0.post(&source, posted).unwrap() else { break };
            assert_eq!(ticket, Ticket(posted));
            posted += 1;
        }
        while expected < MESSAGES {
            let part = Part { slice: slot(expected, 200_000), tag: 0 };
            let Some(ticket) = ends.1.post(&[part]).unwrap() else { break };
            assert_eq!(ticket, Ticket(expected));
            expected += 1;
        }
        while let Some(done) = ends.0.poll().unwrap() {
            assert_eq!((done.ticket, done.lengths[0]), (Ticket(sent), lengths[sent as usize] as u64));
            sent += 1;
        }
        while let Some(done) = ends.1.poll().unwrap() {
            assert_eq!((done.ticket, done.lengths[0]), (Ticket(received), lengths[received as usize] as u64));
            received += 1;
        }
        (sent == MESSAGES && received == MESSAGES).then_some(())
    });
    for n in 0..MESSAGES {
        let len = lengths[n as usize];
        assert!(bytes(&slot(n, len)) == pattern(n, len), "{}: message {n} of {len} bytes", subject.name);
    }
}

/// A full channel says so, and takes posts again once something has completed.
pub(crate) fn depth(subject: &Subject) {
    let depth = subject.near.caps().depth;
    let mut ends = subject.channel();
    let source = subject.message(pattern(1, 8));
    let room = subject.zeroed(8);
    let part = || [Part { slice: room.slice(0..8), tag: 0 }];
    for _ in 0..3 {
        for _ in 0..depth {
            assert!(ends.0.post(&source, 0).unwrap().is_some());
            assert!(ends.1.post(&part()).unwrap().is_some());
        }
        assert_eq!(ends.0.post(&source, 0).unwrap(), None);
        assert_eq!(ends.1.post(&part()).unwrap(), None);
        subject.both(&mut ends);
        assert!(ends.0.post(&source, 0).unwrap().is_some());
        assert!(ends.1.post(&part()).unwrap().is_some());
        for _ in 0..depth {
            subject.both(&mut ends);
        }
        assert_eq!((ends.0.poll().unwrap(), ends.1.poll().unwrap()), (None, None));
    }
}

/// Within a group tags say which message goes where; between groups, order does.
pub(crate) fn groups(subject: &Subject) {
    let most = subject.far.caps().max_group;
    let mut ends = subject.channel();
    let room = subject.zeroed(1000 * most * 2);
    let slot = |group: usize, part: usize| {
        let at = 1000 * (group * most + part);
        room.slice(at..at + 1000)
    };
    let text = |group: usize, part: usize| pattern((group * 100 + part) as u64, 30 * part + group);
    let tag = |part: usize| 7 * part as u64;
    for count in 1..=most {
        let groups = (subject.near.caps().depth / count).min(2);
        for group in 0..groups {
            let parts: Vec<_> =
                (0..count).map(|part| Part { slice: slot(group, part), tag: tag(part) }).collect();
            ends.1.post(&parts).unwrap().unwrap();
            for part in (0..count).rev().map(|part| (part + 2) % count) {
                ends.0.post(&subject.message(text(group, part)), tag(part)).unwrap().unwrap();
            }
        }
        let (mut sent, mut done) = (0, Vec::new());
        subject.until("two groups", || {
            sent += usize::from(ends.0.poll().unwrap().is_some());
            done.extend(ends.1.poll().unwrap());
            (sent == groups * count && done.len() == groups).then_some(())
        });
        for (group, done) in done.iter().enumerate() {
            let texts: Vec<_> = (0..count).map(|part| text(group, part)).collect();
            let lengths: Vec<_> = texts.iter().map(|text| text.len() as u64).collect();
            assert_eq!(done.lengths[..], lengths, "{}: group of {count}", subject.name);
            for (part, text) in texts.iter().enumerate() {
                assert_eq!(
                    bytes(&slot(group, part).first(text.len())),
                    *text,
                    "{}: part {part}",
                    subject.name
                );
            }
        }
    }
}

/// A receive that is alone has nothing to be told apart from.
pub(crate) fn a_single_receive_takes_any_tag(subject: &Subject) {
    let mut ends = subject.channel();
    let room = subject.zeroed(8);
    ends.1.post(&[Part { slice: room.slice(0..8), tag: 1 }]).unwrap().unwrap();
    ends.0.post(&subject.message(pattern(1, 8)), 2).unwrap().unwrap();
    assert_eq!(subject.both(&mut ends).1.lengths[..], [8]);
    assert_eq!(bytes(&room.slice(0..8)), pattern(1, 8));
}

/// Without receives the sender is held back, so that nobody keeps its messages; with them everything arrives.
pub(crate) fn late_receives_hold_the_sender_back(subject: &Subject) {
    let messages = subject.near.caps().depth.min(128);
    let mut ends = subject.channel();
    let source = subject.message(pattern(5, MIB));
    for _ in 0..messages {
        ends.0.post(&source, 0).unwrap().unwrap();
    }
    let mut sent = 0;
    for _ in 0..2000 {
        sent += usize::from(ends.0.poll().unwrap().is_some());
        assert_eq!(ends.1.poll().unwrap(), None);
        (subject.pump)();
    }
    assert!(sent < messages, "{}: {sent} MiB were sent to nobody", subject.name);
    let room = subject.zeroed(MIB);
    for _ in 0..messages {
        ends.1.post(&[Part { slice: room.slice(0..MIB), tag: 0 }]).unwrap().unwrap();
        subject.until("a late message", || {
            sent += usize::from(ends.0.poll().unwrap().is_some());
            ends.1.poll().unwrap()
        });
    }
    assert!(bytes(&room.slice(0..MIB)) == pattern(5, MIB), "{}", subject.name);
    subject.until("all sends", || {
        sent += usize::from(ends.0.poll().unwrap().is_some());
        (sent == messages).then_some(())
    });
}

/// Two channels, one each way, do not wait for each other.
pub(crate) fn both_ways(subject: &Subject) {
    const MESSAGES: usize = 8;
    let mut there = subject.channel();
    let mut back = subject.channel_back();
    let rooms = [subject.zeroed(MESSAGES * MIB), subject.zeroed(MESSAGES * MIB)];
    for (way, ends) in [&mut there, &mut back].into_iter().enumerate() {
        for n in 0..MESSAGES {
            ends.1
                .post(&[Part { slice: rooms[way].slice(n * MIB..(n + 1) * MIB), tag: 0 }])
                .unwrap()
                .unwrap();
            ends.0.post(&subject.message(pattern((way * 100 + n) as u64, MIB - n)), 0).unwrap().unwrap();
        }
    }
    let mut missing = [MESSAGES; 4];
    subject.until("both ways", || {
        let polls = [there.0.poll(), there.1.poll(), back.0.poll(), back.1.poll()];
        for (missing, poll) in missing.iter_mut().zip(polls) {
            *missing -= usize::from(poll.unwrap().is_some());
        }
        (missing == [0; 4]).then_some(())
    });
    for (way, room) in rooms.iter().enumerate() {
        for n in 0..MESSAGES {
            let len = MIB - n;
            assert!(bytes(&room.slice(n * MIB..n * MIB + len)) == pattern((way * 100 + n) as u64, len));
        }
    }
}

/// A flush completes after the receives before it, with no lengths.
pub(crate) fn flush(subject: &Subject) {
    let mut ends = subject.channel();
    let room = subject.zeroed(8).slice(0..8);
    let receive = ends.1.post(&[Part { slice: room.clone(), tag: 0 }]).unwrap().unwrap();
    let flush = ends.1.flush(&[room]).unwrap().unwrap();
    assert_eq!(ends.1.poll().unwrap(), None);
    ends.0.post(&subject.message(vec![1; 8]), 0).unwrap().unwrap();
    assert_eq!(subject.both(&mut ends).1.ticket, receive);
    let flushed = subject.until("the flush", || ends.1.poll().unwrap());
    assert_eq!((flushed.ticket, flushed.lengths.len()), (flush, 0));
}

/// Regions come and go on another thread while messages move.
pub(crate) fn registration(subject: &Subject) {
    let mut ends = subject.channel();
    let moving = subject.region(pattern(3, 100_000));
    let room = subject.zeroed(100_000);
    let (near, far) = (&subject.near, &subject.far);
    let _kept = (near.register(&moving).unwrap(), far.register(&room).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let region = Region::zeroed(4096);
                let registered = (near.register(&region).unwrap(), far.register(&region).unwrap());
                drop(registered);
                std::thread::yield_now();
            }
        });
        for _ in 0..50 {
            ends.1.post(&[Part { slice: room.slice(0..100_000), tag: 0 }]).unwrap().unwrap();
            ends.0.post(&moving.slice(0..100_000), 0).unwrap().unwrap();
            subject.both(&mut ends);
        }
        over.store(true, Relaxed);
    });
    assert!(bytes(&room.slice(0..100_000)) == pattern(3, 100_000), "{}", subject.name);
}

/// Who waits on the descriptors a channel names after a poll that gave nothing does not wait in vain.
pub(crate) fn descriptors_tell_when_to_poll(subject: &Subject) {
    let mut ends = subject.channel();
    let room = subject.zeroed(5 * MIB);
    for len in [8, 5 * MIB, 0, 70_000] {
        ends.0.post(&subject.message(pattern(len as u64, len)), 0).unwrap().unwrap();
        ends.1.post(&[Part { slice: room.slice(0..len), tag: 0 }]).unwrap().unwrap();
        let (mut sent, mut received) = (false, false);
        subject.until("waiting on descriptors", || {
            sent |= ends.0.poll().unwrap().is_some();
            received |= ends.1.poll().unwrap().is_some();
            if sent && received {
                return Some(());
            }
            let (writing, reading) = (ends.0.descriptors(), ends.1.descriptors());
            if !writing.is_empty() || !reading.is_empty() {
                // SAFETY: the channel owns the descriptor and is not touched during the wait.
                let borrow = |fd: &i32| unsafe { BorrowedFd::borrow_raw(*fd) };
                let either = PollFlags::OUT | PollFlags::IN;
                let out = writing.iter().map(|fd| PollFd::from_borrowed_fd(borrow(fd), either));
                let into = reading.iter().map(|fd| PollFd::from_borrowed_fd(borrow(fd), PollFlags::IN));
                let mut waits: Vec<_> = out.chain(into).collect();
                assert!(
                    wait(&mut waits, &Deadline::after(Duration::from_secs(10))).unwrap(),
                    "{}",
                    subject.name
                );
            }
            None
        });
        assert!(bytes(&room.slice(0..len)) == pattern(len as u64, len));
    }
}
