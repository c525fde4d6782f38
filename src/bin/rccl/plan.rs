//! `rccl plan`: what a rank does in a collective, as the planner says.

use std::process::ExitCode;

use rccl_core::{
    Algorithm, Collective, DataType, Group, Plan, Rank, ReduceOp, Request, check,
    cost::{self, Cost, Links, Topology},
    planner,
};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    names, output, size,
};

/// Show what a rank does in a collective
///
/// Nothing runs: the plan is what every executor would be given. Spans are those of the whole loop; iterations work on
/// segments of them. Sizes mean what they mean in `rccl bench`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  rccl plan all-reduce --algorithm relay --ranks 4\n  \
    rccl plan all-gather --algorithm ring --ranks 8 --rank 3 -b 64M --json\n  \
    rccl plan all-reduce --algorithm ring --ranks 8 --check --cost\n\n\
    Exit status: 0, 1 if --check finds a fault, 2 if an option makes no sense.")]
pub(crate) struct Options {
    /// Which collective
    #[arg(value_parser = names::collective())]
    collective: Collective,
    /// How it is done [default: the first that the collective has]
    #[arg(short, long, value_parser = names::algorithm())]
    algorithm: Option<Algorithm>,
    /// Ranks in the group
    #[arg(short = 'n', long, default_value_t = 4)]
    ranks: u32,
    /// The rank whose plan is shown
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Bytes of the larger of a rank's two buffers; K, M and G are understood [default: 1M]
    #[arg(short = 'b', long, value_parser = size::parse, conflicts_with = "count")]
    bytes: Option<u64>,
    /// Elements instead of bytes: of each buffer, or of one rank's chunk for all-gather and reduce-scatter
    #[arg(long)]
    count: Option<u64>,
    /// Type of the elements
    #[arg(short = 'd', long, default_value = "float", value_parser = names::data_type())]
    dtype: DataType,
    /// How contributions are combined
    #[arg(short = 'o', long, default_value = "sum", value_parser = names::op())]
    op: ReduceOp,
    /// Root of a broadcast
    #[arg(short = 'r', long, default_value_t = 0)]
    root: u32,
    /// Bytes moved by one message, at most
    #[arg(short = 's', long, default_value = "256K", value_parser = size::parse)]
    segment_bytes: u64,
    /// Prove the plans of the whole group: no races, every message met, every contribution exactly once, no deadlock
    #[arg(long)]
    check: bool,
    /// Price the plans of the whole group: hops, bytes of each rank, and estimated times on two machines
    #[arg(long)]
    cost: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The request for `bytes` of the larger buffer, as the benchmark counts them, or for `count` elements.
pub(crate) fn request(
    collective: Collective,
    group: Group,
    count: u64,
    data_type: DataType,
    op: ReduceOp,
    root: Rank,
) -> Request {
    match collective {
        Collective::AllReduce => Request::all_reduce(count, data_type, op),
        Collective::AllGather => Request::all_gather(count, data_type),
        Collective::ReduceScatter => Request::reduce_scatter(count, data_type, op),
        Collective::Broadcast => Request::broadcast(count, data_type, root),
        Collective::SendRecv => {
            Request::send_recv(count, Some(group.after(1)), count, Some(group.before(1)), data_type)
        }
    }
}

/// Elements of a [`Request`] whose larger buffer has `bytes` bytes, rounded down.
pub(crate) fn count(collective: Collective, ranks: u32, data_type: DataType, bytes: u64) -> u64 {
    let elements = bytes / data_type.size_bytes() as u64;
    match collective {
        Collective::AllGather | Collective::ReduceScatter => elements / u64::from(ranks),
        Collective::AllReduce | Collective::Broadcast | Collective::SendRecv => elements,
    }
}

impl Options {
    fn plan(&self, rank: u32) -> Result<Plan> {
        let group = Group::new(self.ranks, rank)?;
        let bytes = self.bytes.unwrap_or(1 << 20);
        let count = self.count.unwrap_or_else(|| count(self.collective, self.ranks, self.dtype, bytes));
        let root = group.member("root", self.root)?;
        let request = request(self.collective, group, count, self.dtype, self.op, root);
        let segment = self.segment_bytes / self.dtype.size_bytes() as u64;
        if segment == 0 {
            let reason = format!("less than one {} of {} bytes", self.dtype, self.dtype.size_bytes());
            return Err(Error::usage("--segment-bytes", reason));
        }
        let algorithm = self.algorithm.unwrap_or(self.collective.algorithms()[0]);
        Ok(planner::plan(group, &request, algorithm, segment)?)
    }
}

/// The machines that `--cost` estimates times on.
fn machines() -> [(&'static str, Topology); 2] {
    let machine = |alpha_ns, link, memory| Topology {
        alpha_ns,
        links: Links::Shared(link),
        memory_bytes_per_ns: memory,
    };
    [
        // A GPU on PCIe 4.0 x16: a wait costs a few microseconds, the link is shared by all a rank's messages.
        ("GPUs on PCIe gen4 x16", machine(5e3, 25.0, 900.0)),
        // Processes on one host: a wait costs a few cache misses.
        ("processes in host memory", machine(500.0, 10.0, 20.0)),
    ]
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let plan = options.plan(options.rank)?;
    let plans = if options.check || options.cost {
        (0..options.ranks).map(|rank| options.plan(rank)).collect::<Result<Vec<_>>>()?
    } else {
        Vec::new()
    };
    let checked = options.check.then(|| check::group(&plans));
    let sound = checked.as_ref().is_none_or(|result| result.is_ok());
    // Only plans that belong together have a price.
    let cost = (options.cost && sound).then(|| cost::of(&plans));
    if options.json {
        output::json(&as_json(&plan, checked.as_ref(), cost.as_ref(), &plans))?;
    } else {
        output::line(as_text(&plan, checked.as_ref(), cost.as_ref(), &plans).trim_end())?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Checked = std::result::Result<check::Proof, Vec<check::Fault>>;

fn as_text(plan: &Plan, checked: Option<&Checked>, cost: Option<&Cost>, plans: &[Plan]) -> String {
    let mut text = plan.to_string();
    match checked {
        Some(Ok(proof)) => text += &format!("\n{proof}\n"),
        Some(Err(faults)) => {
            text += "\nnot sound:\n";
            faults.iter().for_each(|fault| text += &format!("  {fault}\n"));
        }
        None => {}
    }
    if let Some(cost) = cost {
        text += &format!("\n{} hop(s)\n", cost.hops);
        for (rank, (sent, received)) in cost.sent_bytes.iter().zip(&cost.received_bytes).enumerate() {
            text +=
                &format!("rank {rank}: {} sent, {} received\n", size::human(*sent), size::human(*received));
        }
        for (name, machine) in machines() {
            text += &format!("estimated on {name}: {:.1} us\n", machine.estimate_ns(plans) / 1e3);
        }
    }
    text
}

/// The plan alone where nothing else was asked for, or an object of all that was.
fn as_json(plan: &Plan, checked: Option<&Checked>, cost: Option<&Cost>, plans: &[Plan]) -> Value {
    if checked.is_none() && cost.is_none() {
        return json!(plan);
    }
    let mut object = json!({ "plan": plan });
    if let Some(checked) = checked {
        let faults: Vec<String> =
            checked.as_ref().err().into_iter().flatten().map(ToString::to_string).collect();
        object["check"] = json!({ "sound": faults.is_empty(), "faults": faults });
    }
    if let Some(cost) = cost {
        let estimates: Vec<Value> = machines()
            .iter()
            .map(|(name, machine)| json!({ "machine": name, "us": machine.estimate_ns(plans) / 1e3 }))
            .collect();
        object["cost"] = json!({
            "hops": cost.hops,
            "sent_bytes": cost.sent_bytes,
            "received_bytes": cost.received_bytes,
            "estimates": estimates,
        });
    }
    object
}
