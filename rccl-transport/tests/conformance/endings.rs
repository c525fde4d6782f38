//! Channels that end.

use std::sync::Arc;

use rccl_transport::{
    Error,
    channel::{Address, Part},
};

use crate::subject::{Subject, bytes, pattern};

/// Longer than anything a transport keeps in between.
const LONG: usize = 64 << 20;

/// A message that does not fit its receive is an error, and writes nothing beyond it.
pub(crate) fn truncation(subject: &Subject) {
    let mut ends = subject.channel();
    let room = subject.region(vec![7; 16]);
    let held = Arc::strong_count(&room);
    ends.1.post(&[Part { slice: room.slice(0..4), tag: 0 }]).unwrap().unwrap();
    ends.0.post(&subject.message(vec![1; 10]), 0).unwrap().unwrap();
    let error = subject.until("the error", || {
        let _ = ends.0.poll();
        ends.1.poll().err()
    });
    let whole = matches!(error, Error::Truncated { message_bytes: 10, posted_bytes: 4 });
    assert!(whole, "{}: {error}", subject.name);
    assert_eq!(Arc::strong_count(&room), held, "{}: the receiver's memory is still held", subject.name);
    assert_eq!(bytes(&room.slice(4..16)), [7; 12]);
    assert!(matches!(ends.1.poll(), Err(Error::Truncated { .. })));
    assert!(ends.1.post(&[Part { slice: room.slice(0..4), tag: 0 }]).is_err());
}

fn assert_lost(subject: &Subject, error: &Error) {
    assert!(matches!(error, Error::PeerLost { .. }), "{}: {error}", subject.name);
}

/// A sender that goes away in the middle of a message is noticed, and the receive's memory let go.
pub(crate) fn sender_dies(subject: &Subject) {
    let (mut sender, mut receiver) = subject.channel();
    let (source, room) = (subject.zeroed(LONG), subject.zeroed(LONG));
    let held = (Arc::strong_count(&source), Arc::strong_count(&room));
    receiver.post(&[Part { slice: room.slice(0..8), tag: 0 }]).unwrap().unwrap();
    receiver.post(&[Part { slice: room.slice(0..LONG), tag: 0 }]).unwrap().unwrap();
    sender.post(&subject.message(vec![1; 8]), 0).unwrap().unwrap();
    sender.post(&source.slice(0..LONG), 0).unwrap().unwrap();
    let first = subject.until("the first message", || {
        let _ = sender.poll().unwrap();
        receiver.poll().unwrap()
    });
    assert_eq!(first.lengths[..], [8]);
    drop(sender);
    assert_eq!(Arc::strong_count(&source), held.0, "{}: the sender's memory is still held", subject.name);
    assert_lost(subject, &subject.failure(|| receiver.poll()));
    assert_eq!(Arc::strong_count(&room), held.1, "{}: the receiver's memory is still held", subject.name);
    assert_lost(subject, &receiver.poll().unwrap_err());
    assert_lost(subject, &receiver.post(&[Part { slice: room.slice(0..8), tag: 0 }]).unwrap_err());
}

/// A receiver that goes away in the middle of a message is noticed, and the message's memory let go.
pub(crate) fn receiver_dies(subject: &Subject) {
    let (mut sender, mut receiver) = subject.channel();
    let (source, room) = (subject.zeroed(LONG), subject.zeroed(LONG));
    let held = (Arc::strong_count(&source), Arc::strong_count(&room));
    receiver.post(&[Part { slice: room.slice(0..8), tag: 0 }]).unwrap().unwrap();
    receiver.post(&[Part { slice: room.slice(0..LONG), tag: 0 }]).unwrap().unwrap();
    sender.post(&subject.message(vec![1; 8]), 0).unwrap().unwrap();
    sender.post(&source.slice(0..LONG), 0).unwrap().unwrap();
    subject.until("the first message", || {
        let _ = sender.poll().unwrap();
        receiver.poll().unwrap()
    });
    drop(receiver);
    assert_eq!(Arc::strong_count(&room), held.1, "{}: the receiver's memory is still held", subject.name);
    assert_lost(subject, &subject.failure(|| sender.poll()));
    assert_eq!(Arc::strong_count(&source), held.0, "{}: the sender's memory is still held", subject.name);
    assert_lost(subject, &sender.poll().unwrap_err());
    assert_lost(subject, &sender.post(&source.slice(0..8), 0).unwrap_err());
}

/// Messages whose sends are complete arrive, though their sender is gone before the receiver looks; then the loss shows.
pub(crate) fn what_was_sent_arrives_after_the_sender_is_gone(subject: &Subject) {
    let messages = subject.near.caps().depth.min(20) as u64;
    let (mut sender, mut receiver) = subject.channel();
    let room = subject.zeroed(3000 * messages as usize);
    let slot = |n: u64| room.slice(3000 * n as usize..3000 * (n as usize + 1));
    for n in 0..messages {
        receiver.post(&[Part { slice: slot(n), tag: 0 }]).unwrap().unwrap();
        sender.post(&subject.message(pattern(n, 3000)), 0).unwrap().unwrap();
    }
    for _ in 0..messages {
        subject.until("a send", || sender.poll().unwrap());
    }
    drop(sender);
    for n in 0..messages {
        subject.until("a receive", || receiver.poll().unwrap());
        assert_eq!(bytes(&slot(n)), pattern(n, 3000), "{}", subject.name);
    }
    receiver.post(&[Part { slice: slot(0), tag: 0 }]).unwrap().unwrap();
    assert_lost(subject, &subject.failure(|| receiver.poll()));
}

/// So do long messages of which part is still on its way, and which went by several ways.
pub(crate) fn long_messages_arrive_after_the_sender_is_gone(subject: &Subject) {
    const LEN: usize = (3 << 20) + 5;
    const MESSAGES: usize = 4;
    let (mut sender, mut receiver) = subject.channel();
    let room = subject.zeroed(MESSAGES * LEN);
    for n in 0..MESSAGES {
        receiver.post(&[Part { slice: room.slice(n * LEN..(n + 1) * LEN), tag: 0 }]).unwrap().unwrap();
        sender.post(&subject.message(pattern(n as u64, LEN)), 0).unwrap().unwrap();
    }
    let (mut sent, mut received) = (0, 0);
    subject.until("all sends", || {
        received += usize::from(receiver.poll().unwrap().is_some());
        sent += usize::from(sender.poll().unwrap().is_some());
        (sent == MESSAGES).then_some(())
    });
    drop(sender);
    while received < MESSAGES {
        subject.until("a receive", || receiver.poll().unwrap());
        received += 1;
    }
    for n in 0..MESSAGES {
        let arrived = bytes(&room.slice(n * LEN..(n + 1) * LEN));
        assert!(arrived == pattern(n as u64, LEN), "{}: message {n}", subject.name);
    }
    receiver.post(&[Part { slice: room.slice(0..8), tag: 0 }]).unwrap().unwrap();
    assert_lost(subject, &subject.failure(|| receiver.poll()));
}

/// Addresses that mean nothing and listeners that are gone are errors, not waits.
pub(crate) fn nobody_listens(subject: &Subject) {
    for bytes in [vec![], vec![0; 16], vec![0xff; 120]] {
        let error = subject.near.connect(&Address(bytes)).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{}: {error}", subject.name);
    }
    let address = subject.far.listen().unwrap().address();
    let error = match subject.near.connect(&address) {
        Err(error) => error,
        Ok(mut connecting) => subject.until("a refusal", || connecting.poll().err()),
    };
    assert!(matches!(error, Error::PeerLost { .. } | Error::Refused { .. }), "{}: {error}", subject.name);
}

/// Channels that are gone leave no descriptor open.
pub(crate) fn nothing_is_left_behind(subject: &Subject) {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for round in 0..4 {
        let mut listener = subject.far.listen().unwrap();
        let mut channels: Vec<_> = (0..50).map(|_| subject.channel_to(&mut *listener)).collect();
        let room = subject.zeroed(8);
        for ends in channels.iter_mut().skip(round) {
            ends.1.post(&[Part { slice: room.slice(0..8), tag: 0 }]).unwrap().unwrap();
            ends.0.post(&subject.message(vec![1; 8]), 0).unwrap().unwrap();
            subject.both(ends);
        }
    }
    assert_eq!(open(), before, "{}: descriptors", subject.name);
}
