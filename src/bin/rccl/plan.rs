//! `rccl plan`: what a rank does in a collective, as the planner says.

use std::process::ExitCode;

use rccl_core::{Algorithm, Collective, DataType, Group, Plan, Rank, ReduceOp, Request, planner};

use crate::{
    error::{Error, Result},
    names, output, size,
};

/// Show what a rank does in a collective
///
/// Nothing runs: the plan is what every executor would be given. Sizes mean what they mean in `rccl bench`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  rccl plan all-reduce --algorithm relay --ranks 4\n  \
    rccl plan all-gather --algorithm ring --ranks 8 --rank 3 -b 64M --json")]
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
    /// Print the plan as JSON
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

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let plan = options.plan(options.rank)?;
    output::json(&plan)?;
    Ok(ExitCode::SUCCESS)
}
