use rccl_core::{
    Collective, Plan,
    plan::{Action, Buffer, Operand, Step},
};
use rccl_transport::{
    reduce::Reducer,
    station::{LABEL_BYTES, Label},
};

use super::Ports;
use crate::call::Call;

/// A plan made ready for the host executor: operands are ports and byte offsets, the reduction is a function.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) plan: Plan,
    pub(crate) element_bytes: usize,
    pub(crate) reducer: Reducer,
    pub(crate) steps: Vec<HostStep>,
    label: Label,
    /// Bytes of the output.
    pub(crate) output_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct HostStep {
    pub(crate) sources: Vec<HostOperand>,
    pub(crate) raw: Vec<bool>,
    pub(crate) targets: Vec<HostOperand>,
    /// `None` copies; else whether the reduction finishes.
    pub(crate) finish: Option<bool>,
    /// What the messages of this step must be, or are, labelled.
    pub(crate) label: Label,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum HostOperand {
    /// A span of a buffer, from element `start`.
    Local { buffer: Buffer, start: u64 },
    /// The next slot of the reader or publisher with this number.
    Slot { port: usize },
}

impl Program {
    /// Prepares a plan.
    pub(crate) fn new(plan: Plan, ports: &Ports) -> Self {
        let request = &plan.request;
        let element_bytes = request.data_type.size_bytes();
        let op = request.op.unwrap_or(rccl_core::ReduceOp::Sum);
        let steps = plan.steps.iter().map(|step| HostStep::new(&plan, step, ports)).collect();
        Self {
            element_bytes,
            reducer: Reducer::new(request.data_type, op, plan.group.size()),
            steps,
            label: Call::new(request, plan.algorithm).label(),
            output_bytes: plan.output_len().saturating_mul(element_bytes as u64),
            plan,
        }
    }

    /// What all ranks must call.
    pub(crate) fn call(&self) -> Call {
        let request = &self.plan.request;
        // Who only receives means that message.
        let count =
            if request.to.is_none() { request.count.max(request.receive_count) } else { request.count };
        Call { count, ..Call::new(request, self.plan.algorithm) }
    }

    /// Whether every rank of the group takes part.
    pub(crate) fn is_collective(&self) -> bool {
        self.plan.request.collective != Collective::SendRecv
    }

    /// The call as the text of a label.
    pub(crate) const fn label_text(&self) -> &[u8; LABEL_BYTES] {
        &self.label.text
    }
}

impl HostStep {
    fn new(plan: &Plan, step: &Step, ports: &Ports) -> Self {
        let call = Call::new(&plan.request, plan.algorithm);
        // The two ends of a send-recv know the length of the message, not of each other's other message.
        let call = match plan.request.collective {
            Collective::SendRecv => Call { count: step.len, ..call },
            _ => call,
        };
        let source = |operand: &Operand| match *operand {
            Operand::Local { buffer, start } => HostOperand::Local { buffer, start },
            Operand::Slot(station) => HostOperand::Slot { port: ports.reader_port(station) },
        };
        let target = |operand: &Operand| match *operand {
            Operand::Local { buffer, start } => HostOperand::Local { buffer, start },
            Operand::Slot(station) => HostOperand::Slot { port: ports.publisher_port(station) },
        };
        Self {
            sources: step.sources.iter().map(|from| source(&from.operand)).collect(),
            raw: step.sources.iter().map(|from| from.contribution).collect(),
            targets: step.targets.iter().map(target).collect(),
            finish: match step.action {
                Action::Copy => None,
                Action::Reduce { finish } => Some(finish),
            },
            label: call.label(),
        }
    }
}
