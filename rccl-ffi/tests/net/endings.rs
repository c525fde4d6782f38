//! How connections end: with requests outstanding, in NCCL's order, by the other side, in a forked child.

use std::{ffi::c_void, ptr};

use crate::{
    pair::{HOST, Pair, pattern, refusal, until},
    table::{self, Api, INVALID_ARGUMENT, INVALID_USAGE, Object, REMOTE},
};

/// Enough that a sender is held back.
const LONG: usize = 32 << 20;

/// Either side goes first, in the middle of a long message and of receives that nobody answers.
pub(crate) fn closing_with_requests_outstanding(api: &'static dyn Api) {
    for sender_first in [true, false] {
        let pair = Pair::new(api);
        let mut message = pair.memory(pair.send, vec![1; LONG]);
        let mut room = pair.memory(pair.receive, vec![0; 16]);
        let sending = pair.post_send(&mut message, 0);
        for _ in 0..3 {
            api.test(sending).unwrap();
        }
        let other = Pair::new(api);
        let mut unanswered = other.memory(other.receive, vec![0; 16]);
        other.post_receive(&mut unanswered, 0);
        other.post_receive(&mut room, 0);
        if sender_first {
            api.close_send(pair.send).unwrap();
            api.close_receive(pair.receive).unwrap();
            other.close();
        } else {
            api.close_receive(pair.receive).unwrap();
            api.close_send(pair.send).unwrap();
            api.close_receive(other.receive).unwrap();
            api.close_send(other.send).unwrap();
        }
    }
}

/// Once `deregMr` has returned nobody writes or reads the memory, though a receive was outstanding and its message comes.
pub(crate) fn deregistering_lets_go_of_memory(api: &'static dyn Api) {
    let pair = Pair::new(api);
    let mut room = pair.memory(pair.receive, vec![0; LONG]);
    let mut message = pair.memory(pair.send, vec![1; LONG]);
    let receiving = pair.post_receive(&mut room, 0);
    let sending = pair.post_send(&mut message, 0);
    until("the first bytes", || {
        assert!(api.test(sending).unwrap().is_none() || room.bytes[LONG - 1] == 1);
        _ = api.test(receiving);
        (room.bytes[0] == 1).then_some(())
    });
    api.deregister(pair.receive, room.handle).unwrap();
    room.bytes.fill(7);
    assert!(matches!(pair.failure(receiving), INVALID_USAGE));
    assert_eq!(pair.failure(sending), REMOTE);
    assert!(room.bytes.iter().all(|&byte| byte == 7), "deregistered memory was written");
    api.deregister(pair.send, message.handle).unwrap();
    pair.close();
}

/// As NCCL aborts: with requests outstanding all memory is deregistered, freed, and only then are connections closed.
pub(crate) fn aborting_in_nccls_order(api: &'static dyn Api) {
    let pairs: Vec<Pair> = (0..2).map(|_| Pair::new(api)).collect();
    let mut memories = Vec::new();
    for pair in &pairs {
        for n in 0..8 {
            let mut message = pair.memory(pair.send, pattern(n, 1 << 20));
            let mut room = pair.memory(pair.receive, vec![0; 1 << 20]);
            pair.post_receive(&mut room, 0);
            pair.post_send(&mut message, 0);
            memories.push((pair.send, message));
            memories.push((pair.receive, room));
        }
    }
    for (connection, memory) in memories {
        api.deregister(connection, memory.handle).unwrap();
        drop(memory);
    }
    pairs.into_iter().for_each(Pair::close);
}

/// The side that stays is told that the other is gone, and told so again.
pub(crate) fn a_closed_side_is_a_dead_peer(api: &'static dyn Api) {
    let pair = Pair::new(api);
    let mut room = pair.memory(pair.receive, vec![0; 8]);
    let receiving = pair.post_receive(&mut room, 0);
    api.close_send(pair.send).unwrap();
    assert_eq!(pair.failure(receiving), REMOTE);
    assert_eq!(refusal(api.receive(pair.receive, &[room.part(0)], Object::NULL)), REMOTE);
    api.deregister(pair.receive, room.handle).unwrap();
    api.close_receive(pair.receive).unwrap();

    let pair = Pair::new(api);
    let mut message = pair.memory(pair.send, vec![0; LONG]);
    let sending = pair.post_send(&mut message, 0);
    api.close_receive(pair.receive).unwrap();
    assert_eq!(pair.failure(sending), REMOTE);
    api.deregister(pair.send, message.handle).unwrap();
    api.close_send(pair.send).unwrap();
}

pub(crate) fn arguments_that_make_no_sense(api: &'static dyn Api) {
    let pair = Pair::new(api);
    let mut memory = pair.memory(pair.send, vec![0; 8]);
    let data = memory.bytes.as_mut_ptr();
    let send = |data, connection| api.send(connection, data, 0, memory.handle, Object::NULL);
    assert_eq!(refusal(send((data, 9), pair.send)), INVALID_ARGUMENT);
    assert_eq!(refusal(send((data.wrapping_sub(1), 1), pair.send)), INVALID_ARGUMENT);
    assert_eq!(refusal(send((data, 8), Object::NULL)), INVALID_ARGUMENT);
    assert_eq!(refusal(api.receive(pair.receive, &[], Object::NULL)), INVALID_ARGUMENT);
    let nine = vec![memory.part(0); 9];
    assert_eq!(refusal(api.receive(pair.receive, &nine, Object::NULL)), INVALID_ARGUMENT);
    assert_eq!(refusal(api.register(pair.send, ptr::null_mut(), 8, HOST)), INVALID_ARGUMENT);
    assert_eq!(refusal(api.register(pair.send, data, 8, 2)), INVALID_ARGUMENT, "memory of a GPU");
    assert_eq!(refusal(api.test(Object::NULL)), INVALID_ARGUMENT);
    assert_eq!(refusal(api.listen(99, &mut [0; 128])), INVALID_ARGUMENT);
    for nothing in [api.close_send(Object::NULL), api.deregister(pair.send, Object::NULL)] {
        nothing.unwrap();
    }
    // None of it has hurt the connection.
    pair.exchange(pattern(1, 100));
    api.deregister(pair.send, memory.handle).unwrap();
    pair.close();
}

/// A child that was forked is refused, may clean up, and the parent goes on.
pub(crate) fn a_fork_leaves_the_parent_alone(api: &'static dyn Api) {
    let pair = Pair::new(api);
    let mut memory = pair.memory(pair.send, vec![0; 8]);
    let mut room = pair.memory(pair.receive, vec![0; 8]);
    let outstanding = pair.post_receive(&mut room, 0);
    let data = (memory.bytes.as_mut_ptr(), 8);
    // SAFETY: the child calls the plugin, which takes no lock then, and leaves without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = api.send(pair.send, data, 0, memory.handle, Object::NULL) == Err(INVALID_USAGE)
            && api.test(outstanding) == Err(INVALID_USAGE)
            && api.deregister(pair.send, memory.handle).is_ok()
            && api.close_send(pair.send).is_ok()
            && api.close_receive(pair.receive).is_ok();
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: a child of ours, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not refused as it should be");
    let sending = pair.post_send(&mut memory, 0);
    pair.wait(outstanding);
    pair.wait(sending);
    pair.exchange(pattern(1, 100_000));
    pair.close();
}

/// NCCL closes the library with its last communicator, and opens it again for the next.
pub(crate) fn closed_and_opened_again(library: *mut c_void) {
    for version in [6, 11, 12] {
        // SAFETY: opened before; the library stays, since it is linked so.
        assert_eq!(unsafe { libc::dlclose(library) }, 0);
        let api = table::table(table::open(), version);
        let context = api.init(table::logger()).unwrap();
        let pair = Pair::new(api);
        pair.exchange(pattern(u64::from(version), 1 << 20));
        pair.close();
        api.finalize(context).unwrap();
    }
}
