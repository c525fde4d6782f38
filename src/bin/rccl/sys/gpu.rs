//! Work of a GPU on buffers that are owned here: nothing is freed before it is done.

use std::{
    mem::ManuallyDrop,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rccl::{Communicator, cuda::CudaCommunicator};
use rccl_core::{DataType, ReduceOp};
use rccl_transport::cuda::{
    Attribute, DeviceMemory, Event, Graph, HostRegistration, PrimaryContext, Stream, Until, WordOperation,
    relay::Arena,
};

use crate::error::{Error, Result};

/// How long dropping waits for unfinished work before it gives the memory up.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// An all-reduce.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Elements.
    pub(crate) count: u64,
    /// Their type.
    pub(crate) data_type: DataType,
    /// How they are combined.
    pub(crate) op: ReduceOp,
    /// Whether the output is the input.
    pub(crate) in_place: bool,
}

impl Work {
    fn bytes(&self) -> usize {
        self.count as usize * self.data_type.size_bytes()
    }
}

/// What reduces.
pub(crate) trait Reducer: Send {
    /// Enqueues an all-reduce of buffers at addresses of the device.
    ///
    /// # Errors
    /// Those of the library.
    ///
    /// # Safety
    /// The buffers must have the work's elements and stay until the stream is done, as must `self`.
    unsafe fn enqueue(&self, work: &Work, input: u64, output: u64, stream: &Stream) -> Result<()>;

    /// Whether the library has noticed a failure. Never blocks.
    ///
    /// # Errors
    /// The failure.
    fn check(&self) -> Result<()>;
}

/// A rank of a group of this library.
pub(crate) struct Ours {
    pub(crate) cuda: CudaCommunicator,
    pub(crate) _host: Communicator,
    /// Serves the group, on the rank that the others met.
    pub(crate) _root: Option<rccl::Root>,
}

impl Reducer for Ours {
    unsafe fn enqueue(&self, work: &Work, input: u64, output: u64, stream: &Stream) -> Result<()> {
        let &Work { count, data_type, op, .. } = work;
        // SAFETY: passed on to the caller; the stream's context is the device's primary one by its type.
        let enqueued = unsafe { self.cuda.all_reduce(input, output, count, data_type, op, stream.raw().0) };
        Ok(enqueued?)
    }

    fn check(&self) -> Result<()> {
        self.cuda.async_error().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Which of the two buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    Input,
    Output,
}

/// A rank's buffers and the streams that work on them.
pub(crate) struct Desk {
    inner: ManuallyDrop<Inner>,
}

struct Inner {
    stream: Stream,
    /// The streams of a relay: to the host, and from there.
    relay: [Stream; 2],
    buffers: [DeviceMemory; 2],
}

impl Desk {
    pub(crate) fn new(context: &PrimaryContext) -> Result<Self> {
        let stream = || Stream::new(context).map_err(device_error);
        let buffer = || DeviceMemory::new(context, 1).map_err(device_error);
        let inner =
            Inner { stream: stream()?, relay: [stream()?, stream()?], buffers: [buffer()?, buffer()?] };
        Ok(Self { inner: ManuallyDrop::new(inner) })
    }

    pub(crate) fn context(&self) -> &PrimaryContext {
        self.inner.stream.context()
    }

    /// Gives both buffers at least `bytes` bytes, with arbitrary contents.
    ///
    /// # Errors
    /// Those of the driver; code 2 if the device has not so much.
    pub(crate) fn reserve(&mut self, bytes: usize, limit: Duration) -> Result<()> {
        if self.inner.buffers[0].len() >= bytes {
            return Ok(());
        }
        self.wait(limit)?;
        let context = self.context().clone();
        for buffer in &mut self.inner.buffers {
            // The old one goes first: there may be no room for both.
            *buffer = DeviceMemory::new(&context, 1).map_err(device_error)?;
            *buffer = DeviceMemory::new(&context, bytes).map_err(device_error)?;
        }
        Ok(())
    }

    fn place(&self, buffer: Buffer, offset: usize, bytes: usize) -> u64 {
        let memory = &self.inner.buffers[usize::from(buffer == Buffer::Output)];
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= memory.len()), "within the buffer");
        memory.start() + offset as u64
    }

    /// Copies `bytes` to the device, and waits for it.
    pub(crate) fn upload(&self, buffer: Buffer, offset: usize, bytes: &[u8], limit: Duration) -> Result<()> {
        let to = self.place(buffer, offset, bytes.len());
        // SAFETY: the range was checked; pageable memory is read before the driver returns.
        let copied = unsafe { self.inner.stream.copy(to, bytes.as_ptr().addr() as u64, bytes.len()) };
        copied.map_err(device_error)?;
        self.wait(limit)
    }

    /// Fills `bytes` from the device, and waits for it.
    pub(crate) fn download(
        &self,
        buffer: Buffer,
        offset: usize,
        bytes: &mut [u8],
        limit: Duration,
    ) -> Result<()> {
        let from = self.place(buffer, offset, bytes.len());
        // SAFETY: the range was checked; pageable memory is written before the driver returns.
        let copied = unsafe { self.inner.stream.copy(bytes.as_mut_ptr().addr() as u64, from, bytes.len()) };
        copied.map_err(device_error)?;
        self.wait(limit)
    }

    /// Enqueues setting `bytes` bytes to `value`.
    pub(crate) fn fill(&self, buffer: Buffer, value: u8, bytes: usize) -> Result<()> {
        let start = self.place(buffer, 0, bytes);
        // SAFETY: the range was checked, and the memory stays until the stream is done (`Drop`, `reserve`).
        unsafe { self.inner.stream.fill(start, value, bytes) }.map_err(device_error)
    }

    /// Enqueues an all-reduce.
    ///
    /// # Panics
    /// If the buffers were not reserved for it.
    pub(crate) fn enqueue(&self, reducer: &dyn Reducer, work: &Work) -> Result<()> {
        let input = self.place(Buffer::Input, 0, work.bytes());
        let output = if work.in_place { input } else { self.place(Buffer::Output, 0, work.bytes()) };
        // SAFETY: the ranges were checked, and the memory stays until the stream is done (`Drop`, `reserve`).
        unsafe { reducer.enqueue(work, input, output, &self.inner.stream) }
    }

    /// Captures `operations` all-reduces in a graph.
    pub(crate) fn capture(
        &self,
        reducer: &dyn Reducer,
        work: &Work,
        operations: u32,
    ) -> Result<Captured<'_>> {
        let mut refused = None;
        let captured = Graph::capture(&self.inner.stream, || {
            for _ in 0..operations {
                if let Err(error) = self.enqueue(reducer, work) {
                    let reason = error.to_string();
                    refused = Some(error);
                    return Err(rccl_transport::Error::Unavailable { what: "a graph".to_owned(), reason });
                }
            }
            Ok(())
        });
        match (captured, refused) {
            (Ok(graph), _) => Ok(Captured { desk: self, graph }),
            (Err(_), Some(error)) => Err(Error::Processes(format!("--graph: cannot capture: {error}"))),
            (Err(error), None) => Err(Error::Processes(format!("--graph: cannot capture: {error}"))),
        }
    }

    /// Enqueues a time stamp.
    pub(crate) fn mark(&self) -> Result<Event> {
        let event = Event::new(self.context(), true).map_err(device_error)?;
        event.record(&self.inner.stream).map_err(device_error)?;
        Ok(event)
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// [`Error::Processes`] if that takes longer than `limit`, or the device failed.
    pub(crate) fn wait(&self, limit: Duration) -> Result<()> {
        self.streams().try_for_each(|stream| stream.wait(limit).map_err(device_error))
    }

    /// Waits until all work of collectives is done, in the driver, as applications do: without asking again and again, which
    /// would stand in the way of a library whose threads talk to the driver meanwhile, and without a limit.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.inner.stream.synchronize().map_err(device_error)
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        std::iter::once(&self.inner.stream).chain(&self.inner.relay)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if self.wait(DROP_PATIENCE).is_ok() {
            // SAFETY: dropped once, here, and `self` is not used any more. No work uses the buffers.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// All-reduces in a graph.
pub(crate) struct Captured<'a> {
    desk: &'a Desk,
    graph: Graph,
}

impl Captured<'_> {
    /// Enqueues them all.
    pub(crate) fn launch(&self) -> Result<()> {
        // SAFETY: the desk's buffers stay as long as `self` borrows it, and dropping waits for the work.
        unsafe { self.graph.launch(&self.desk.inner.stream) }.map_err(device_error)
    }
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        let _ = self.desk.wait(DROP_PATIENCE);
    }
}

/// The driver's errors end a measurement.
pub(crate) fn device_error(error: rccl_transport::Error) -> Error {
    Error::Library(error.into())
}

/// Pinned host memory that all ranks share, of the kind that the library's stations lie in, laid out for a bare relay.
pub(crate) struct Stations {
    arena: Arc<Arena>,
    registration: HostRegistration,
}

/// Bytes between words of different writers.
const WORD_BYTES: u64 = 128;
const SLOTS: u64 = 4;

/// Bytes of a slot of a bare relay among so many ranks: what the library's own arena has room for.
pub(crate) fn slot_bytes(ranks: u32) -> u64 {
    let each = part_bytes(ranks) / SLOTS;
    (1 << each.ilog2()).min(8 << 20)
}

/// Bytes of a rank's part of the arena.
fn part_bytes(ranks: u32) -> u64 {
    ((Arena::len_bytes(ranks) - Arena::CONTROL_BYTES) as u64 / u64::from(ranks)) & !4095
}

impl Stations {
    /// Maps the memory behind a descriptor of [`Arena::create`], and takes the parts of this process's ranks near their
    /// devices, as the library does with its own. `meet` returns when all processes have; then all is registered.
    pub(crate) fn new(
        fd: impl AsFd,
        ranks: u32,
        own: &[(u32, &Desk)],
        meet: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let arena = Arc::new(Arena::map(fd, ranks).map_err(device_error)?);
        let words = u64::from(ranks) * SLOTS * u64::from(ranks) * WORD_BYTES;
        assert!(WORD_BYTES + words <= Arena::CONTROL_BYTES as u64, "words of {ranks} ranks fit");
        for &(rank, desk) in own {
            let node = desk.context().device().attribute(Attribute::HOST_NUMA);
            let node = node.ok().and_then(|node| u32::try_from(node).ok());
            arena.occupy(rank, node).map_err(device_error)?;
        }
        meet()?;
        let context = own[0].1.context();
        let registration = HostRegistration::new(context, arena.region()).map_err(device_error)?;
        Ok(Self { arena, registration })
    }

    /// What one process does before the first relay: all slots are free.
    pub(crate) fn prepare(&self) {
        let ranks = self.arena.ranks();
        for publisher in 0..ranks {
            for slot in 0..SLOTS {
                (0..ranks).for_each(|reader| {
                    let word = self.full(publisher, slot, reader) + WORD_BYTES / 2;
                    self.arena.word(word as usize).store(1, Ordering::Release);
                });
            }
        }
    }

    /// The word that says that a slot holds something for `reader`; half a line further on, that it needs nothing there.
    fn full(&self, publisher: u32, slot: u64, reader: u32) -> u64 {
        let ranks = u64::from(self.arena.ranks());
        WORD_BYTES * (1 + (u64::from(publisher) * SLOTS + slot) * ranks + u64::from(reader))
    }

    fn slot(&self, publisher: u32, slot: u64) -> u64 {
        let ranks = self.arena.ranks();
        let start = Arena::CONTROL_BYTES as u64 + u64::from(publisher) * part_bytes(ranks);
        start + slot * slot_bytes(ranks)
    }

    /// Enqueues, for all ranks of this process, the relay of `bytes` bytes of the input in pieces of `chunk_bytes` through
    /// `slots` slots: each rank sends all of them, and gets from each other one the share that makes up an all-reduce.
    ///
    /// Pieces are enqueued in order, for all ranks each: whatever order a device works in, it gets to the end.
    ///
    /// # Panics
    /// If the buffers were not reserved for it, or pieces do not fit slots.
    pub(crate) fn relay(
        &self,
        desks: &[(u32, &Desk)],
        bytes: u64,
        chunk_bytes: u64,
        slots: u32,
    ) -> Result<()> {
        let largest = slot_bytes(self.arena.ranks());
        assert!((1..=largest).contains(&chunk_bytes) && (1..=SLOTS).contains(&u64::from(slots)));
        for number in 0..bytes.div_ceil(chunk_bytes) {
            let offset = number * chunk_bytes;
            let chunk = (offset, chunk_bytes.min(bytes - offset), number % u64::from(slots));
            for &(rank, desk) in desks {
                self.publish(rank, desk, chunk).map_err(device_error)?;
            }
            for &(rank, desk) in desks {
                self.collect(rank, desk, chunk).map_err(device_error)?;
            }
        }
        Ok(())
    }

    fn peers(&self, rank: u32) -> impl Iterator<Item = u32> {
        (0..self.arena.ranks()).filter(move |&peer| peer != rank)
    }

    fn publish(
        &self,
        rank: u32,
        desk: &Desk,
        (offset, bytes, slot): (u64, u64, u64),
    ) -> rccl_transport::Result<()> {
        let base = self.registration.device_start(desk.context())?;
        let stream = &desk.inner.relay[0];
        let full = |peer| base + self.full(rank, slot, peer);
        let take = |peer| {
            let free = full(peer) + WORD_BYTES / 2;
            [WordOperation::Wait(free, Until::Equal(1)), WordOperation::Write(free, 0)]
        };
        let taken: Vec<_> = self.peers(rank).flat_map(take).collect();
        let filled: Vec<_> = self.peers(rank).map(|peer| WordOperation::Write(full(peer), 1)).collect();
        let from = desk.place(Buffer::Input, offset as usize, bytes as usize);
        // SAFETY: words of registered memory, which outlives the work (`rank` waits for it before it drops anything).
        unsafe { stream.word_operations(&taken) }?;
        // SAFETY: both ranges were checked; the words keep everybody else away from the slot.
        unsafe { stream.copy(base + self.slot(rank, slot), from, bytes as usize) }?;
        // SAFETY: as for the first words.
        unsafe { stream.word_operations(&filled) }
    }

    fn collect(
        &self,
        rank: u32,
        desk: &Desk,
        (offset, bytes, slot): (u64, u64, u64),
    ) -> rccl_transport::Result<()> {
        let base = self.registration.device_start(desk.context())?;
        let stream = &desk.inner.relay[1];
        // Of an all-reduce of S bytes each of n ranks gets 2 S / n from each other one.
        let share = (bytes * 2).div_ceil(u64::from(self.arena.ranks())).min(bytes);
        let to = desk.place(Buffer::Output, offset as usize, share as usize);
        for peer in self.peers(rank) {
            let full = base + self.full(peer, slot, rank);
            let taken = [WordOperation::Wait(full, Until::Equal(1)), WordOperation::Write(full, 0)];
            // SAFETY: as in `publish`.
            unsafe { stream.word_operations(&taken) }?;
            // SAFETY: both ranges were checked; the words keep the publisher away from the slot.
            unsafe { stream.copy(to, base + self.slot(peer, slot), share as usize) }?;
            // SAFETY: as in `publish`.
            unsafe { stream.write_word(full + WORD_BYTES / 2, 1) }?;
        }
        Ok(())
    }
}
