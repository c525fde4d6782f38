//! One end of a connection: its queue pairs, and the completion queue that they share.

use std::{cell::Cell, io, os::fd::RawFd, ptr::NonNull, sync::Arc};

use super::{
    Context,
    abi::*,
    context::{check, nonblocking},
};
use crate::{Error, Result, Slice};

/// The most requests given to the device with one call.
pub(crate) const BATCH: usize = 16;

/// How large the queues of each pair are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Queue pairs.
    pub(crate) pairs: usize,
    /// Sends and writes outstanding on each.
    pub(crate) sends: u32,
    /// Receives outstanding on each.
    pub(crate) receives: u32,
    /// Bytes of payload that are to be copied into requests, if the device can.
    pub(crate) inline_bytes: u32,
}

/// Where a queue pair leads, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    /// The other side's queue pair.
    pub(crate) queue_pair: u32,
    /// The number of the first packet that this side sends.
    pub(crate) first_packet: u32,
    /// The number of the first packet that the other side sends.
    pub(crate) their_first_packet: u32,
    /// MTU as the library counts it: 1 for 256 bytes, 5 for 4096.
    pub(crate) mtu: u32,
    /// The way there.
    pub(crate) address: ibv_ah_attr,
    /// Retransmission timeout: 4.096 us times 2 to this.
    pub(crate) timeout: u8,
    /// How often a packet is sent again.
    pub(crate) retries: u8,
}

/// What a request does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    /// Send to a receive of the other side.
    Send,
    /// Write to the other side's memory, unnoticed.
    Write { address: u64, key: u32 },
    /// Write to the other side's memory and complete one of its receives with a number.
    WriteNoticed { address: u64, key: u32, number: u32 },
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work<'a> {
    /// Comes back with the completion.
    pub(crate) id: u64,
    /// What it does.
    pub(crate) operation: Operation,
    /// The payload.
    pub(crate) slice: &'a Slice,
    /// The key of its registration.
    pub(crate) local_key: u32,
    /// Whether it completes by itself; errors always do.
    pub(crate) signalled: bool,
}

/// How often a packet is sent again to a receiver that is not ready. Receives are always posted first, so that is a fault.
const NOT_READY_RETRIES: u8 = 6;
/// 0.64 ms between such retries.
const NOT_READY_TIMER: u8 = 12;

/// Queue pairs, their completion queue and its channel.
#[derive(Debug)]
pub(crate) struct Queues {
    context: Arc<Context>,
    channel: NonNull<ibv_comp_channel>,
    completions: NonNull<ibv_cq>,
    pairs: Vec<NonNull<ibv_qp>>,
    inline_bytes: usize,
    /// Events taken from the channel, which the library wants back before the queue can be destroyed.
    taken: Cell<u32>,
    armed: Cell<bool>,
}

// SAFETY: the library's objects may be used from any thread.
unsafe impl Send for Queues {}

impl Queues {
    /// Makes them. The pairs are in their first state: nothing can be posted.
    ///
    /// # Errors
    /// [`Error::Io`]; those of sizes name the device's limits.
    pub(crate) fn new(context: &Arc<Context>, sizes: Sizes) -> Result<Self> {
        let last = |call: &'static str| Error::io(call, io::Error::last_os_error());
        let functions = context.functions;
        // SAFETY: the context is open.
        let channel = unsafe { (functions.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| last("ibv_create_comp_channel"))?;
        let count = sizes.pairs as u32 * (sizes.sends + sizes.receives);
        // SAFETY: context and channel are open; no pointer is kept for the caller.
        let completions = unsafe {
            (functions.ibv_create_cq)(
                context.raw.as_ptr(),
                count as i32,
                std::ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(completions) = NonNull::new(completions) else {
            let error = last("ibv_create_cq");
            // SAFETY: made above and used by nothing.
            unsafe { (functions.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let mut queues = Self {
            context: Arc::clone(context),
            channel,
            completions,
            pairs: Vec::with_capacity(sizes.pairs),
            inline_bytes: 0,
            taken: Cell::new(0),
            armed: Cell::new(false),
        };
        nonblocking(queues.wakes())?;
        for _ in 0..sizes.pairs {
            queues.add_pair(sizes)?;
        }
        Ok(queues)
    }

    fn add_pair(&mut self, sizes: Sizes) -> Result<()> {
        let mut inline_bytes = sizes.inline_bytes;
        loop {
            let cap = ibv_qp_cap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            };
            let mut attr = ibv_qp_init_attr {
                qp_context: std::ptr::null_mut(),
                send_cq: self.completions.as_ptr(),
                recv_cq: self.completions.as_ptr(),
                srq: std::ptr::null_mut(),
                cap,
                qp_type: IBV_QPT_RC,
                sq_sig_all: 0,
            };
            let functions = self.context.functions;
            // SAFETY: the domain and the queues are open, and `attr` is live for the call.
            let raw = unsafe { (functions.ibv_create_qp)(self.context.domain.as_ptr(), &raw mut attr) };
            match NonNull::new(raw) {
                Some(pair) => {
                    self.pairs.push(pair);
                    self.inline_bytes = inline_bytes as usize;
                    return Ok(());
                }
                None if inline_bytes == 0 => {
                    let error = io::Error::last_os_error();
                    return Err(Error::io(format!("ibv_create_qp with {cap:?}"), error));
                }
                // Not every device can.
                None => inline_bytes = 0,
            }
        }
    }

    /// How many pairs there are.
    pub(crate) const fn len(&self) -> usize {
        self.pairs.len()
    }

    /// The number of each pair.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        // SAFETY: the pairs live until `self` is dropped.
        self.pairs.iter().map(|pair| unsafe { pair.as_ref() }.qp_num).collect()
    }

    /// Binds every pair to a port, after which receives can be posted.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn bind(&self, port: u8) -> Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE as u32,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        (0..self.pairs.len()).try_for_each(|pair| self.modify(pair, &mut attr, mask, "ibv_modify_qp to INIT"))
    }

    /// Connects a pair, for receiving first. The kernel may look for the other side's hardware address meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`]: `ETIMEDOUT` if the address was not found, which may be tried again.
    pub(crate) fn ready_to_receive(&self, pair: usize, path: &Path) -> Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: path.mtu,
            dest_qp_num: path.queue_pair,
            rq_psn: path.their_first_packet,
            max_dest_rd_atomic: 1,
            min_rnr_timer: NOT_READY_TIMER,
            ah_attr: path.address,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(pair, &mut attr, mask, "ibv_modify_qp to RTR")
    }

    /// Connects a pair for sending too.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn ready_to_send(&self, pair: usize, path: &Path) -> Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: path.first_packet,
            timeout: path.timeout,
            retry_cnt: path.retries,
            rnr_retry: NOT_READY_RETRIES,
            max_rd_atomic: 1,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(pair, &mut attr, mask, "ibv_modify_qp to RTS")
    }

    fn modify(&self, pair: usize, attr: &mut ibv_qp_attr, mask: i32, call: &'static str) -> Result<()> {
        // SAFETY: the pair lives until `self` is dropped, and `attr` is live for the call.
        let code = unsafe { (self.context.functions.ibv_modify_qp)(self.pairs[pair].as_ptr(), attr, mask) };
        check(call, code)
    }

    /// Posts receives to a pair: one for each of `rooms`, or `count` without memory.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn post_receives(&self, pair: usize, rooms: &[(u64, &Slice, u32)]) -> Result<()> {
        for &(id, slice, key) in rooms {
            let mut piece = piece(slice, key);
            let mut request = ibv_recv_wr {
                wr_id: id,
                next: std::ptr::null_mut(),
                sg_list: &raw mut piece,
                num_sge: i32::from(!slice.is_empty()),
            };
            self.post_receive(pair, &mut request)?;
        }
        Ok(())
    }

    /// Posts `count` receives without memory, for writes that are to be noticed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn post_notices(&self, pair: usize, count: usize) -> Result<()> {
        let empty =
            ibv_recv_wr { wr_id: 0, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
        let mut left = count;
        while left > 0 {
            let now = left.min(BATCH);
            let mut requests = [empty; BATCH];
            chain(&mut requests[..now], |request, next| request.next = next);
            self.post_receive(pair, &mut requests[0])?;
            left -= now;
        }
        Ok(())
    }

    fn post_receive(&self, pair: usize, first: &mut ibv_recv_wr) -> Result<()> {
        let post = self.context.data_path().post_recv.ok_or_else(|| no_entry("post_recv"))?;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is live; the chain and its pieces are live for the call, which copies them. Their memory is
        // registered, so the device writes it only while its registration keeps it alive.
        check("post_recv", unsafe { post(self.pairs[pair].as_ptr(), first, &raw mut bad) })
    }

    /// Posts up to [`BATCH`] requests to a pair, with one call.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If there are more.
    pub(crate) fn post<'a>(&self, pair: usize, works: impl ExactSizeIterator<Item = Work<'a>>) -> Result<()> {
        let count = works.len();
        assert!(count <= BATCH, "{count} requests at once");
        if count == 0 {
            return Ok(());
        }
        let mut pieces = [ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH];
        let mut requests = [ibv_send_wr::EMPTY; BATCH];
        for ((work, slot), request) in works.zip(&mut pieces).zip(&mut requests) {
            *slot = piece(work.slice, work.local_key);
            *request = self.request(&work, slot);
        }
        chain(&mut requests[..count], |request, next| request.next = next);
        let post = self.context.data_path().post_send.ok_or_else(|| no_entry("post_send"))?;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair is live; chain and pieces are live for the call, which copies them, and so are the slices whose
        // bytes it copies inline. All other memory is registered, so the device reads it only while its registration
        // keeps it alive.
        check("post_send", unsafe { post(self.pairs[pair].as_ptr(), &raw mut requests[0], &raw mut bad) })
    }

    fn request(&self, work: &Work<'_>, piece: &mut ibv_sge) -> ibv_send_wr {
        let (opcode, remote_addr, rkey, number) = match work.operation {
            Operation::Send => (IBV_WR_SEND, 0, 0, 0),
            Operation::Write { address, key } => (IBV_WR_RDMA_WRITE, address, key, 0),
            Operation::WriteNoticed { address, key, number } => {
                (IBV_WR_RDMA_WRITE_WITH_IMM, address, key, number)
            }
        };
        let inline = !work.slice.is_empty() && work.slice.len() <= self.inline_bytes;
        ibv_send_wr {
            wr_id: work.id,
            sg_list: piece,
            num_sge: i32::from(!work.slice.is_empty()),
            opcode,
            send_flags: if work.signalled { IBV_SEND_SIGNALED } else { 0 }
                | if inline { IBV_SEND_INLINE } else { 0 },
            imm_data: number.to_be(),
            remote_addr,
            rkey,
            ..ibv_send_wr::EMPTY
        }
    }

    /// Takes completions; how many.
    ///
    /// # Errors
    /// [`Error::Io`] if the queue has overflowed or the device is gone.
    pub(crate) fn poll(&self, completions: &mut [ibv_wc]) -> Result<usize> {
        let poll = self.context.data_path().poll_cq.ok_or_else(|| no_entry("poll_cq"))?;
        // SAFETY: the queue is live, and the array has room for as many as are asked for.
        let count =
            unsafe { poll(self.completions.as_ptr(), completions.len() as i32, completions.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| {
            Error::io("poll_cq", io::Error::from_raw_os_error(if count == -1 { libc::EIO } else { -count }))
        })
    }

    /// The descriptor that becomes readable at the next completion after [`Queues::arm`].
    pub(crate) const fn wakes(&self) -> RawFd {
        // SAFETY: the channel lives until `self` is dropped.
        unsafe { self.channel.as_ref() }.fd
    }

    /// Makes the next completion wake whoever waits on the descriptor. Completions that are there already do not.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn arm(&self) -> Result<()> {
        if self.armed.replace(true) {
            return Ok(());
        }
        let notify = self.context.data_path().req_notify_cq.ok_or_else(|| no_entry("req_notify_cq"))?;
        // SAFETY: the queue is live.
        check("req_notify_cq", unsafe { notify(self.completions.as_ptr(), 0) })
    }

    /// Takes back what [`Queues::arm`] asked for, if it has come. Does nothing, cheaply, unless armed.
    pub(crate) fn disarm(&self) {
        if !self.armed.get() {
            return;
        }
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is live and does not block; the out pointers are live.
        let got = unsafe {
            (self.context.functions.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut context)
        };
        if got == 0 {
            self.taken.set(self.taken.get() + 1);
            self.armed.set(false);
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let functions = self.context.functions;
        let destroyed = |call, code: i32| {
            if code != 0 {
                tracing::warn!("{call}: {}", io::Error::from_raw_os_error(code.abs()));
            }
        };
        for pair in &self.pairs {
            // SAFETY: made by `add_pair`, destroyed once; after this the device does nothing more for it.
            destroyed("ibv_destroy_qp", unsafe { (functions.ibv_destroy_qp)(pair.as_ptr()) });
        }
        // SAFETY: as many events as were taken from this queue's channel; destroying waits for this.
        unsafe { (functions.ibv_ack_cq_events)(self.completions.as_ptr(), self.taken.get()) };
        // SAFETY: its pairs are gone; destroyed once.
        destroyed("ibv_destroy_cq", unsafe { (functions.ibv_destroy_cq)(self.completions.as_ptr()) });
        // SAFETY: its queue is gone; destroyed once.
        let code = unsafe { (functions.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        destroyed("ibv_destroy_comp_channel", code);
    }
}

fn piece(slice: &Slice, key: u32) -> ibv_sge {
    let length = u32::try_from(slice.len()).expect("requests are cut to fit");
    ibv_sge { addr: slice.start().as_ptr().expose_provenance() as u64, length, lkey: key }
}

/// Links requests, each to the next.
fn chain<T>(requests: &mut [T], mut link: impl FnMut(&mut T, *mut T)) {
    for index in (1..requests.len()).rev() {
        let (before, after) = requests.split_at_mut(index);
        link(&mut before[index - 1], &raw mut after[0]);
    }
}

fn no_entry(name: &str) -> Error {
    super::unavailable(format!("the device's driver has no {name}; update rdma-core"))
}
