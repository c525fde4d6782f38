//! The order of a rank's calls, whatever streams and graphs they come from.

use rccl_transport::{
    Result,
    cuda::{Capture, Event, PrimaryContext, RecordNode, Stream},
};

/// Every call starts after the one before it: eager calls and replays follow each other by one event, and the calls
/// within a capture by another.
#[derive(Debug)]
pub(super) struct Order {
    /// The end of the latest call or replay.
    last: Event,
    /// The end of the latest call of the capture.
    chain: Event,
    capture: Option<(u64, RecordNode)>,
}

impl Order {
    pub(super) fn new(context: &PrimaryContext) -> Result<Self> {
        Ok(Self { last: Event::new(context, false)?, chain: Event::new(context, false)?, capture: None })
    }

    /// Whether everything enqueued so far is done, replays included.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.last.is_done()
    }

    /// Has what is enqueued on `stream` from now on wait for the call before.
    pub(super) fn begin(&self, stream: &Stream, capture: Option<&Capture>) -> Result<()> {
        match (capture, self.capture) {
            (None, _) => stream.wait_event(&self.last),
            (Some(capture), Some((id, _))) if id == capture.id() => stream.wait_event(&self.chain),
            (Some(_), _) => stream.wait_outside_event(&self.last),
        }
    }

    /// Marks the end of a call of which at least one operation was enqueued.
    pub(super) fn end(&mut self, stream: &Stream) -> Result<()> {
        let Some(capture) = Capture::of(stream)? else { return self.last.record(stream) };
        self.chain.record(stream)?;
        match self.capture {
            // One node for the whole graph: of several, nobody knows which comes last.
            Some((id, node)) if id == capture.id() => capture.delay(node),
            _ => {
                self.capture = Some((capture.id(), capture.record(&self.last)?));
                Ok(())
            }
        }
    }
}
