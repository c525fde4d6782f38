//! Two connected sides, memory, and how to drive them.

use std::{
    ffi::c_int,
    time::{Duration, Instant},
};

use rccl_ffi::net::handle::Bytes;

use crate::table::{Answer, Api, Object, Receive};

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const HOST: c_int = 1;

/// Asks again and again until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::yield_now();
        assert!(started.elapsed() < PATIENCE, "{what} did not happen\n{}", crate::table::said());
    }
}

/// Both sides of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) api: &'static dyn Api,
    pub(crate) send: Object,
    pub(crate) receive: Object,
}

/// Memory registered on a connection.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) handle: Object,
}

impl Pair {
    /// A new pair through a new listener, driven by this thread alone: neither side may block.
    pub(crate) fn new(api: &'static dyn Api) -> Self {
        let mut handle = [0; 128];
        let listener = api.listen(0, &mut handle).unwrap();
        let pair = Self::through(api, listener, &handle);
        api.close_listener(listener).unwrap();
        pair
    }

    /// A new pair through a listener.
    pub(crate) fn through(api: &'static dyn Api, listener: Object, handle: &Bytes) -> Self {
        let (mut send, mut receive, mut handle) = (Object::NULL, Object::NULL, *handle);
        until("a connection", || {
            if send.is_null() {
                send = api.connect(Object::NULL, 0, &mut handle).unwrap();
            }
            if receive.is_null() {
                receive = api.accept(listener).unwrap();
            }
            (!send.is_null() && !receive.is_null()).then_some(())
        });
        Self { api, send, receive }
    }

    pub(crate) fn memory(&self, connection: Object, bytes: Vec<u8>) -> Memory {
        let mut bytes = bytes;
        let handle = self.api.register(connection, bytes.as_mut_ptr(), bytes.len(), HOST).unwrap();
        Memory { bytes, handle }
    }

    /// Posts a send of the whole memory, retrying while it is not taken.
    pub(crate) fn post_send(&self, memory: &mut Memory, tag: c_int) -> Object {
        let data = (memory.bytes.as_mut_ptr(), memory.bytes.len());
        until("a send", || {
            let request = self.api.send(self.send, data, tag, memory.handle, Object::NULL).unwrap();
            (!request.is_null()).then_some(request)
        })
    }

    /// Posts a receive into the whole memory.
    pub(crate) fn post_receive(&self, memory: &mut Memory, tag: c_int) -> Object {
        let part = memory.part(tag);
        until("a receive", || {
            // As NCCL does where it does not need the completion.
            let request = self.api.receive(self.receive, &[part], Object(1 as _)).unwrap();
            assert_ne!(request, Object(1 as _), "the request was left as it was");
            (!request.is_null()).then_some(request)
        })
    }

    /// The lengths of a request once it is done.
    pub(crate) fn wait(&self, request: Object) -> [c_int; 8] {
        until("a completion", || self.api.test(request).unwrap())
    }

    /// Sends `message` and checks that it arrives, driven by this thread alone.
    pub(crate) fn exchange(&self, message: Vec<u8>) {
        let len = message.len();
        let mut room = self.memory(self.receive, vec![0xee; len + 1]);
        let mut message = self.memory(self.send, message);
        let receiving = self.post_receive(&mut room, 0);
        let sending = self.post_send(&mut message, 0);
        let (mut sent, mut received) = (None, None);
        until("an exchange", || {
            sent = sent.or_else(|| self.api.test(sending).unwrap());
            received = received.or_else(|| self.api.test(receiving).unwrap());
            (sent.is_some() && received.is_some()).then_some(())
        });
        assert_eq!([sent.unwrap()[0], received.unwrap()[0]], [len as c_int; 2]);
        assert!(room.bytes[..len] == message.bytes[..], "{len} bytes arrived changed");
        assert_eq!(room.bytes[len], 0xee, "more than {len} bytes were written");
        self.api.deregister(self.send, message.handle).unwrap();
        self.api.deregister(self.receive, room.handle).unwrap();
    }

    pub(crate) fn close(self) {
        self.api.close_send(self.send).unwrap();
        self.api.close_receive(self.receive).unwrap();
    }

    /// The code that polling a request ends in, if it ends in an error.
    pub(crate) fn failure(&self, request: Object) -> c_int {
        until("a failure", || match self.api.test(request) {
            Ok(None) => None,
            Ok(Some(lengths)) => panic!("it was done: {lengths:?}"),
            Err(code) => Some(code),
        })
    }
}

impl Memory {
    pub(crate) fn part(&mut self, tag: c_int) -> Receive {
        Receive { data: self.bytes.as_mut_ptr(), bytes: self.bytes.len(), tag, memory: self.handle }
    }
}

/// `len` bytes that differ from those of another seed and repeat after a prime number.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut block = [0; 4093];
    for byte in &mut block {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    let mut bytes: Vec<u8> = Vec::with_capacity(len + block.len());
    while bytes.len() < len {
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(len);
    bytes
}

/// A call that must fail, and its code.
pub(crate) fn refusal<T: std::fmt::Debug>(answer: Answer<T>) -> c_int {
    answer.unwrap_err()
}
