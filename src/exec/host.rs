use std::sync::Arc;

use rccl_core::{Progress, Rank, plan::Buffer};
use rccl_transport::{
    reduce::{self, Source, Target},
    station::{LABEL_BYTES, Origin, StationError},
};

use super::{Ports, Program, Way, program::HostOperand, program::HostStep};
use crate::{Error, call::Call, state::State};

/// One call being carried out by the processor. Nothing here waits: whoever drives it decides when to look again.
#[derive(Debug)]
pub(crate) struct Run {
    program: Arc<Program>,
    progress: Progress,
    input: *const u8,
    output: *mut u8,
    /// The number of the call, for those who wonder where a message comes from.
    call: u64,
    /// How slots and results are written.
    way: Way,
    scratch: Vec<u8>,
    /// Kept between steps for their room.
    sources: Vec<Source>,
    targets: Vec<Target>,
}

// SAFETY: the pointers are to buffers that the caller of the erased entry promised to leave alone until the call has ended,
// from whatever thread it is driven.
unsafe impl Send for Run {}

/// Why a run cannot go on.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A channel to another host failed.
    Station(StationError),
    /// A peer's message belongs to another call.
    Mismatch(Box<Mismatch>),
}

/// Two calls that should be the same and are not.
#[derive(Debug)]
pub(crate) struct Mismatch {
    me: Rank,
    /// The call that this rank is in.
    ours: [u8; LABEL_BYTES],
    peer: Rank,
    /// What the peer's message belongs to.
    theirs: Origin,
}

impl From<StationError> for Fault {
    fn from(error: StationError) -> Self {
        Self::Station(error)
    }
}

impl Fault {
    /// The error for the caller. Where the peer's message belongs to an earlier call than ours, that is the call in which
    /// the two went apart, if it differs.
    pub(crate) fn explain(self, state: &State) -> Error {
        match self {
            Self::Station(error) => error.into(),
            Self::Mismatch(mismatch) => {
                let Mismatch { me, ours, peer, theirs } = *mismatch;
                let then = state.call(theirs.number).filter(|then| *then != theirs.text);
                let calls = [Call::describe(&then.unwrap_or(ours)), Call::describe(&theirs.text)];
                Error::Mismatch { ranks: [me.0, peer.0], calls }
            }
        }
    }
}

type Result<T> = std::result::Result<T, Fault>;

/// What a look at a run brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advance {
    /// Some steps ran.
    Moved,
    /// Nothing could run.
    Blocked,
    /// Everything has run, and all messages have been handed over.
    Done,
}

impl Run {
    /// The number of calls that are not counted, because not all ranks make them.
    pub(crate) const NO_CALL: u64 = u64::MAX;

    /// A run that has not begun.
    ///
    /// # Safety
    /// `input` and `output` must be valid for the lengths of the program's plan, and not be touched by others, until the
    /// run is done or dropped.
    pub(crate) unsafe fn new(program: Arc<Program>, input: *const u8, output: *mut u8) -> Self {
        let mut run = Self {
            progress: Progress::default(),
            call: Self::NO_CALL,
            way: Way::default(),
            scratch: Vec::new(),
            sources: Vec::new(),
            targets: Vec::new(),
            program,
            input,
            output,
        };
        run.restart();
        run
    }

    /// Begins anew, with another program and other buffers, using the room of this one.
    ///
    /// # Safety
    /// As [`Run::new`].
    pub(crate) unsafe fn reuse(&mut self, program: &Arc<Program>, input: *const u8, output: *mut u8) {
        if !Arc::ptr_eq(&self.program, program) {
            self.program = Arc::clone(program);
        }
        (self.input, self.output, self.call) = (input, output, Self::NO_CALL);
        self.restart();
    }

    fn restart(&mut self) {
        self.progress.restart(&self.program.plan);
        let scratch = self.program.plan.scratch_len as usize * self.program.element_bytes;
        if self.scratch.len() < scratch {
            self.scratch.resize(scratch, 0);
        }
    }

    /// Tells the run which call it is.
    pub(crate) const fn number(&mut self, call: u64) {
        self.call = call;
    }

    /// Says how slots and results are to be written.
    pub(crate) const fn write(&mut self, way: Way) {
        self.way = way;
    }

    /// Whether the input is part of the output.
    pub(crate) fn is_in_place(&self) -> bool {
        let start = self.output.addr();
        (start..start.saturating_add(self.program.output_bytes as usize)).contains(&self.input.addr())
    }

    /// The program being run.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Runs every step that can run now.
    pub(crate) fn advance(&mut self, ports: &mut Ports) -> Result<Advance> {
        let mut moved = false;
        loop {
            let mut again = false;
            for lane in 0..self.program.plan.lanes.len() {
                again |= self.advance_lane(ports, lane)?;
            }
            moved |= again;
            if !again || self.progress.is_done() {
                break;
            }
        }
        if moved {
            ports.ring();
        }
        // What has been published may still have to be handed to the network, which peers may be waiting for.
        if (!moved || self.progress.is_done()) && ports.drive()? && self.progress.is_done() {
            return Ok(Advance::Done);
        }
        Ok(if moved { Advance::Moved } else { Advance::Blocked })
    }

    /// Runs one step of a lane, if it can run now. One at a time, so that segments pass through the cache while warm.
    fn advance_lane(&mut self, ports: &mut Ports, lane: usize) -> Result<bool> {
        let program = Arc::clone(&self.program);
        let Some((step, iteration)) = self.progress.ready(&program.plan, lane) else { return Ok(false) };
        let id = program.plan.lanes[lane][step.position as usize] as usize;
        let host = &program.steps[id];
        let segment = step.segment(&program.plan, iteration);
        let elements = (segment.end - segment.start) as usize;
        if !self.gather_operands(&program, host, segment.start, elements, ports)? {
            return Ok(false);
        }
        self.compute(&program, host, elements);
        for target in &host.targets {
            if let HostOperand::Slot { port } = *target {
                let publisher = ports.publishers[port].as_mut().expect("a plan's stations exist");
                publisher.publish(&host.label, self.call, elements * program.element_bytes)?;
            }
        }
        for source in &host.sources {
            if let HostOperand::Slot { port } = *source {
                ports.readers[port].as_mut().expect("a plan's stations exist").release();
            }
        }
        self.progress.complete(&program.plan, lane);
        Ok(true)
    }

    /// Looks up all operands of a step; false if a message or a free slot is missing.
    fn gather_operands(
        &mut self,
        program: &Program,
        host: &HostStep,
        start: u64,
        elements: usize,
        ports: &mut Ports,
    ) -> Result<bool> {
        let len = elements * program.element_bytes;
        self.sources.clear();
        self.targets.clear();
        for (operand, &raw) in host.sources.iter().zip(&host.raw) {
            let pointer = match *operand {
                HostOperand::Local { buffer, start: base } => self.local(buffer, base, start).cast_const(),
                HostOperand::Slot { port } => {
                    let reader = ports.readers[port].as_mut().expect("a plan's stations exist");
                    let Some(message) = reader.front(len, host.label.signature)? else { return Ok(false) };
                    if message.signature != host.label.signature {
                        return Err(mismatch(ports, port, host, program.plan.group.rank()));
                    }
                    message.payload.as_ptr().cast_const()
                }
            };
            self.sources.push(Source { ptr: pointer, raw });
        }
        for operand in &host.targets {
            let target = match *operand {
                HostOperand::Local { buffer, start: base } => {
                    let stream = self.way.streams_output && buffer == Buffer::Output;
                    Target { ptr: self.local(buffer, base, start), stream }
                }
                HostOperand::Slot { port } => {
                    let publisher = ports.publishers[port].as_mut().expect("a plan's stations exist");
                    let Some(slot) = publisher.claim(len)? else { return Ok(false) };
                    Target { ptr: slot.as_ptr(), stream: self.way.streams_slots }
                }
            };
            self.targets.push(target);
        }
        Ok(true)
    }

    fn compute(&mut self, program: &Program, host: &HostStep, elements: usize) {
        if let Some(finish) = host.finish {
            // SAFETY: all operands are valid for `elements` elements: spans by the plan's proof and the caller's promise,
            // slots because a segment fits them; a source and a target are equal or apart.
            unsafe { program.reducer.run(&self.sources, &self.targets, elements, finish) };
        } else {
            let (source, len) = (self.sources[0].ptr, elements * program.element_bytes);
            // In place, a rank's own chunk is where it should be.
            self.targets.retain(|target| target.ptr.cast_const() != source);
            // SAFETY: as above, and no target is the source.
            unsafe { reduce::copy(source, &self.targets, len) };
        }
    }

    /// The address of element `start` (moved on by the iteration, but in scratch) of a buffer.
    fn local(&mut self, buffer: Buffer, base: u64, segment_start: u64) -> *mut u8 {
        let element_bytes = self.program.element_bytes;
        let (memory, element) = match buffer {
            Buffer::Input => (self.input.cast_mut(), base + segment_start),
            Buffer::Output => (self.output, base + segment_start),
            Buffer::Scratch => (self.scratch.as_mut_ptr(), base),
        };
        memory.wrapping_add(element as usize * element_bytes)
    }

    /// The ranks whose messages or releases the run waits for, for an error's text. Empty if nothing is known.
    pub(crate) fn waits_for(&self, ports: &mut Ports) -> Vec<Rank> {
        let plan = &self.program.plan;
        let mut ranks = Vec::new();
        for lane in 0..plan.lanes.len() {
            let Some((step, _)) = self.progress.ready(plan, lane) else { continue };
            let missing = step.collects().filter(|&station| {
                let port = ports.reader_port(station);
                !ports.readers[port].as_mut().is_some_and(|reader| reader.drive())
            });
            let missing: Vec<Rank> = missing.map(|station| station.publisher()).collect();
            if missing.is_empty() {
                ranks.extend(step.publishes().flat_map(|station| station.readers(plan.group.size())));
            }
            ranks.extend(missing);
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

fn mismatch(ports: &Ports, port: usize, host: &HostStep, me: Rank) -> Fault {
    let theirs = ports.readers[port].as_ref().expect("a plan's stations exist").origin();
    let (ours, peer) = (host.label.text, ports.publisher_of(port));
    Fault::Mismatch(Box::new(Mismatch { me, ours, peer, theirs }))
}
