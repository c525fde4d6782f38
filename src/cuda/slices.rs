//! All-reduce on cudarc's slices and streams.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use rccl_core::ReduceOp;

use super::CudaCommunicator;
use crate::{Element, Error, Result};

impl CudaCommunicator {
    /// [`CudaCommunicator::all_reduce`] on slices or views of cudarc: enqueues the all-reduce of `input` into `output` on
    /// `stream` and returns. `f32`, `half::f16` and `half::bf16`; sum and average.
    ///
    /// cudarc orders the slices' other uses and their end by events, unless the program has turned that off
    /// (`CudaContext::disable_event_tracking`): then all uses belong on one stream, or are ordered by the program. It must
    /// be off for slices that are used in a capture, and these must live until the graph's last replay is done.
    ///
    /// # Errors
    /// As [`CudaCommunicator::all_reduce`]; [`Error::Argument`] if the lengths differ.
    ///
    /// ```no_run
    /// # fn on_each_rank(cuda: &rccl::cuda::CudaCommunicator) -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = cudarc::driver::CudaContext::new(0)?.new_stream()?;
    /// let input = stream.clone_htod(&[1.0_f32; 1024])?;
    /// let mut sums = stream.alloc_zeros::<f32>(1024)?;
    /// cuda.all_reduce_slices(&input, &mut sums, rccl::ReduceOp::Sum, &stream)?;
    /// println!("{:?}", stream.clone_dtoh(&sums)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn all_reduce_slices<T: Element>(
        &self,
        input: &impl DevicePtr<T>,
        output: &mut impl DevicePtrMut<T>,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<()> {
        if input.len() != output.len() {
            let reason = format!("{} elements for an input of {}", output.len(), input.len());
            return Err(Error::Argument { what: "all_reduce: output", reason });
        }
        let count = input.len() as u64;
        let (from, _reading) = input.device_ptr(stream);
        let (to, _writing) = output.device_ptr_mut(stream);
        // SAFETY: both slices have `count` elements; cudarc frees them only after the uses that the guards record, and the
        // borrows keep them apart. The stream is alive.
        unsafe { self.all_reduce(from, to, count, T::DATA_TYPE, op, stream.cu_stream().cast()) }
    }

    /// As [`CudaCommunicator::all_reduce_slices`], in place.
    ///
    /// # Errors
    /// As [`CudaCommunicator::all_reduce`].
    pub fn all_reduce_slice_in_place<T: Element>(
        &self,
        buffer: &mut impl DevicePtrMut<T>,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<()> {
        let count = buffer.len() as u64;
        let (start, _using) = buffer.device_ptr_mut(stream);
        // SAFETY: as in `all_reduce_slices`.
        unsafe { self.all_reduce(start, start, count, T::DATA_TYPE, op, stream.cu_stream().cast()) }
    }
}
