//! The collectives on typed slices.

use rccl_core::{Element, Rank, ReduceOp, Request};

use super::Communicator;
use crate::{Error, Result};

/// A request whose buffers have been checked.
pub(crate) struct Checked {
    pub(crate) request: Request,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
}

/// Checks that two slices have the lengths that a request needs. That they do not overlap is the borrow checker's doing.
pub(crate) fn check<T: Element>(
    communicator: &Communicator,
    request: &Request,
    input: &[T],
    output: &mut [T],
) -> Result<Checked> {
    let group = communicator.inner.group;
    request.check(group)?;
    length("input", request, input.len(), request.input_len(group))?;
    length("output", request, output.len(), request.output_len(group))?;
    Ok(Checked { request: *request, input: input.as_ptr().cast(), output: output.as_mut_ptr().cast() })
}

fn length(what: &'static str, request: &Request, found: usize, needed: u64) -> Result<()> {
    if found as u64 == needed {
        return Ok(());
    }
    let reason = format!("{} needs {needed} elements here and got {found}", request.collective);
    Err(Error::Argument { what, reason })
}

/// The elements of one chunk of a buffer that holds one for each rank.
fn chunk_len(collective: &str, len: usize, size: u32) -> Result<u64> {
    if !len.is_multiple_of(size as usize) {
        let reason = format!(
            "{collective} in place needs a multiple of {size} elements (one chunk a rank) and got {len}"
        );
        return Err(Error::Argument { what: "buffer", reason });
    }
    Ok(rccl_core::split::share(len as u64, u64::from(size), 0, 1).end)
}

impl Communicator {
    /// Reduces the inputs of all ranks with `op`, element by element; every rank's `output` gets the result, with the same
    /// bits on all of them.
    ///
    /// # Errors
    /// [`Error::Argument`] if the slices differ in length; else see [`Communicator`].
    pub fn all_reduce<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let request = Request::all_reduce(input.len() as u64, T::DATA_TYPE, op);
        self.run_checked(&check(self, &request, input, output)?)
    }

    /// [`Communicator::all_reduce`] with input and output in the same buffer.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let request = Request::all_reduce(buffer.len() as u64, T::DATA_TYPE, op);
        self.run_in_place(&request, buffer, 0, 0)
    }

    /// Gathers the inputs of all ranks, in rank order, in every rank's `output`, which has [`Communicator::size`] times as
    /// many elements.
    ///
    /// # Errors
    /// [`Error::Argument`] for other lengths; else see [`Communicator`].
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let request = Request::all_gather(input.len() as u64, T::DATA_TYPE);
        self.run_checked(&check(self, &request, input, output)?)
    }

    /// [`Communicator::all_gather`] in place: the rank's input is already in its chunk of `buffer`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the length is no multiple of the number of ranks; else see [`Communicator`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = chunk_len("all-gather", buffer.len(), self.size())?;
        let request = Request::all_gather(count, T::DATA_TYPE);
        let own = (count * u64::from(self.rank())) as usize;
        self.run_in_place(&request, buffer, own, 0)
    }

    /// Reduces the inputs of all ranks with `op` and leaves chunk `r` of the result in rank `r`'s `output`. The input has
    /// [`Communicator::size`] times as many elements as the output.
    ///
    /// # Errors
    /// [`Error::Argument`] for other lengths; else see [`Communicator`].
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let request = Request::reduce_scatter(output.len() as u64, T::DATA_TYPE, op);
        self.run_checked(&check(self, &request, input, output)?)
    }

    /// [`Communicator::reduce_scatter`] in place: the result lands in the rank's own chunk of `buffer`; the other chunks are
    /// left as they were.
    ///
    /// # Errors
    /// [`Error::Argument`] if the length is no multiple of the number of ranks; else see [`Communicator`].
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let count = chunk_len("reduce-scatter", buffer.len(), self.size())?;
        let request = Request::reduce_scatter(count, T::DATA_TYPE, op);
        let own = (count * u64::from(self.rank())) as usize;
        self.run_in_place(&request, buffer, 0, own)
    }

    /// Copies the root's input to every rank's output. Only the root's input is read; other ranks may pass an empty one.
    ///
    /// # Errors
    /// [`Error::Argument`] if the root's slices differ in length, [`Error::Core`] if there is no such root; else see
    /// [`Communicator`].
    pub fn broadcast<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        let request = Request::broadcast(output.len() as u64, T::DATA_TYPE, Rank(root));
        if self.rank() == root || !input.is_empty() {
            return self.run_checked(&check(self, &request, input, output)?);
        }
        self.run_in_place(&request, output, 0, 0)
    }

    /// [`Communicator::broadcast`] with input and output in the same buffer.
    ///
    /// # Errors
    /// [`Error::Core`] if there is no such root; else see [`Communicator`].
    pub fn broadcast_in_place<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<()> {
        let request = Request::broadcast(buffer.len() as u64, T::DATA_TYPE, Rank(root));
        self.run_in_place(&request, buffer, 0, 0)
    }

    /// Sends `input` to rank `to`, which must receive as many elements of the same type. May return before they have been
    /// received, or wait until they are: two ranks that send to each other use [`Communicator::send_recv`].
    ///
    /// # Errors
    /// [`Error::Core`] if there is no such rank, [`Error::Argument`] if it is this one; else see [`Communicator`].
    pub fn send<T: Element>(&self, input: &[T], to: u32) -> Result<()> {
        self.not_to_itself("send: to", to)?;
        let request = Request::send_recv(input.len() as u64, Some(Rank(to)), 0, None, T::DATA_TYPE);
        self.run_checked(&check(self, &request, input, &mut [])?)
    }

    /// Receives as many elements as `output` has from rank `from`.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn recv<T: Element>(&self, output: &mut [T], from: u32) -> Result<()> {
        self.not_to_itself("recv: from", from)?;
        let request = Request::send_recv(0, None, output.len() as u64, Some(Rank(from)), T::DATA_TYPE);
        self.run_checked(&check(self, &request, &[], output)?)
    }

    /// Sends `input` to rank `to` while receiving `output` from rank `from`. If both are this rank, copies.
    ///
    /// # Errors
    /// [`Error::Argument`] if only one of them is this rank, or both are and the lengths differ; else as
    /// [`Communicator::send`].
    pub fn send_recv<T: Element>(&self, input: &[T], to: u32, output: &mut [T], from: u32) -> Result<()> {
        let (me, lens) = (self.rank(), (input.len() as u64, output.len() as u64));
        if (to == me) != (from == me) {
            self.not_to_itself("send_recv: to", to)?;
            self.not_to_itself("send_recv: from", from)?;
        }
        if to == me && lens.0 != lens.1 {
            return length(
                "output",
                &Request::send_recv(0, None, 0, None, T::DATA_TYPE),
                output.len(),
                lens.0,
            );
        }
        let request = Request::send_recv(lens.0, Some(Rank(to)), lens.1, Some(Rank(from)), T::DATA_TYPE);
        self.run_checked(&check(self, &request, input, output)?)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        self.all_reduce_in_place(&mut [0_u8], ReduceOp::Max)
    }

    fn not_to_itself(&self, what: &'static str, rank: u32) -> Result<()> {
        if rank == self.rank() {
            let reason = format!("rank {rank} is this rank; only send_recv with itself on both sides copies");
            return Err(Error::Argument { what, reason });
        }
        Ok(())
    }

    fn run_checked(&self, call: &Checked) -> Result<()> {
        // SAFETY: the lengths were checked against the request; the slices are borrowed for the call and lie apart.
        unsafe { self.run(&call.request, call.input, call.output) }
    }

    /// Runs a request whose input and output start at these elements of one buffer.
    fn run_in_place<T: Element>(
        &self,
        request: &Request,
        buffer: &mut [T],
        input: usize,
        output: usize,
    ) -> Result<()> {
        let start = buffer.as_mut_ptr();
        let (input, output) = (start.wrapping_add(input), start.wrapping_add(output));
        // SAFETY: the callers above place both parts within the buffer, as `Request::in_place_offset` defines; it is
        // borrowed for the call.
        unsafe { self.run(request, input.cast::<u8>().cast_const(), output.cast()) }
    }
}
