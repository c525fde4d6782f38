//! What launcher and workers say to each other: one JSON object a line.

use rccl_core::{Algorithm, Collective, DataType, Group, Rank, ReduceOp, Request};
use serde::{Deserialize, Serialize};

use super::settings::factor;
use crate::plan;

/// What a worker is told when it is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setup {
    /// The first of the ranks that live in it.
    pub(super) first_rank: u32,
    /// How many they are: 1, but where ranks share GPUs.
    pub(super) local_ranks: u32,
    /// Ranks of the group.
    pub(super) ranks: u32,
    /// The transport's name.
    pub(super) transport: String,
    /// The algorithm's name, or "auto".
    pub(super) algorithm: String,
    /// The library's deadlines.
    pub(super) timeout_s: u64,
    /// What buffers in GPU memory need; without it they are in host memory.
    pub(super) gpu: Option<GpuSetup>,
}

/// How ranks use GPUs. Rank `r` has device `r` modulo their number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuSetup {
    /// Devices of this machine.
    pub(super) devices: u32,
    /// Which library reduces.
    pub(super) library: Library,
}

/// What reduces in GPU memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Library {
    /// This one.
    Rccl {
        /// The protocol of all calls; none chooses by size.
        protocol: Option<String>,
        /// The descriptor of the memory through which the limit is measured.
        stations: i32,
    },
    /// NCCL.
    Nccl {
        /// The file.
        path: String,
    },
}

/// What all workers are asked to do together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum Command {
    /// Measure a collective.
    Measure(Job),
    /// Measure how fast all ranks together copy as many bytes from one buffer to another.
    Copy {
        /// Bytes that each rank copies.
        bytes: u64,
        /// Copies to time.
        iterations: u32,
    },
    /// Measure how fast copy engines alone bring the bytes of an all-reduce to all ranks.
    Relay(Relay),
}

/// A relay of bytes by copy engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Relay {
    /// Bytes that each rank sends.
    pub(super) bytes: u64,
    /// Bytes of a piece.
    pub(super) chunk_bytes: u64,
    /// Slots of each rank's station.
    pub(super) slots: u32,
    /// Relays to time.
    pub(super) iterations: u32,
}

/// A collective to be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    /// The collective's fixed name.
    pub(super) collective: String,
    /// The data type's fixed name.
    pub(super) data_type: String,
    /// The operator's fixed name, "none" where nothing is reduced.
    pub(super) op: String,
    /// The root of a broadcast.
    pub(super) root: u32,
    /// Elements, as [`Request::count`] counts them.
    pub(super) count: u64,
    /// Whether input and output share memory.
    pub(super) in_place: bool,
    /// Operations before the clock starts.
    pub(super) warmup: u32,
    /// Operations timed as one batch.
    pub(super) iterations: u32,
    /// Operations timed one by one.
    pub(super) samples: u32,
    /// Whether each operation is waited for before the next is enqueued; host memory knows nothing else.
    pub(super) blocking: bool,
    /// Whether operations on GPUs are captured in a graph, which is launched again and again.
    pub(super) graph: bool,
    /// Seeds of the data of operations whose results are checked, one each.
    pub(super) checks: Vec<u64>,
}

/// What a worker says first, when the group stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Who speaks.
    pub(super) rank: u32,
    /// How it reaches the others, in the library's words.
    pub(super) describe: String,
    /// The slowest kind of transport it uses: "tcp" if any, else "verbs" if any, else "shm".
    pub(super) transport: String,
    /// The version of another library that is measured.
    pub(super) version: Option<String>,
    /// Milliseconds that making the group took, where that was timed.
    pub(super) created_ms: Option<f64>,
}

/// What a worker measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Microseconds an operation: those of the batch, divided by its length.
    pub(super) us: f64,
    /// The same by the GPU's clock, from its start on the batch to its end.
    pub(super) device_us: Option<f64>,
    /// Microseconds of each operation that was timed alone.
    pub(super) samples_us: Vec<f64>,
    /// Processor seconds that this process spent on the batch, in all its threads.
    pub(super) cpu_s: f64,
    /// Elements that differ from what they should be, in all checked operations together.
    pub(super) wrong: u64,
}

/// What a worker says first and after each command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Answer<T> {
    /// It did not work; the worker ends.
    Failed {
        /// Why, in words.
        error: String,
    },
    /// It worked.
    Done(T),
}

impl Job {
    /// The request that the job makes of a member of a group.
    ///
    /// # Errors
    /// A name that is none.
    pub(super) fn request(&self, group: Group) -> rccl_core::Result<Request> {
        let data_type: DataType = self.data_type.parse()?;
        let op = if self.op == "none" { ReduceOp::Sum } else { factor(self.op.parse()?, data_type) };
        let collective: Collective = self.collective.parse()?;
        Ok(plan::request(collective, group, self.count, data_type, op, Rank(self.root)))
    }
}

/// The algorithm whose rounding the results must show: `auto` chooses among those that round once.
pub(super) fn rounding(collective: Collective, asked: Option<Algorithm>) -> Algorithm {
    asked.filter(|it| collective.algorithms().contains(it)).unwrap_or(collective.algorithms()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_journey() {
        let job = Job {
            collective: "all-reduce".to_owned(),
            data_type: "half".to_owned(),
            op: "mulsum".to_owned(),
            root: 0,
            count: 17,
            in_place: true,
            warmup: 1,
            iterations: 2,
            samples: 3,
            blocking: false,
            graph: true,
            checks: vec![u64::MAX],
        };
        let request = job.request(Group::new(3, 1).unwrap()).unwrap();
        assert_eq!((request.count, request.data_type), (17, DataType::Half));
        let relay = Relay { bytes: 8, chunk_bytes: 8, slots: 2, iterations: 1 };
        for command in
            [Command::Measure(job), Command::Copy { bytes: 8, iterations: 1 }, Command::Relay(relay)]
        {
            let line = serde_json::to_string(&command).unwrap();
            assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), command);
        }
        let failed: Answer<Hello> = serde_json::from_str(r#"{"error": "rank 1 is gone"}"#).unwrap();
        assert_eq!(failed, Answer::Failed { error: "rank 1 is gone".to_owned() });
        let hello = Hello {
            rank: 1,
            describe: "2 ranks".to_owned(),
            transport: "shm".to_owned(),
            version: None,
            created_ms: None,
        };
        let library = Library::Rccl { protocol: Some("ll".to_owned()), stations: 3 };
        let setup = Setup {
            first_rank: 0,
            local_ranks: 2,
            ranks: 2,
            transport: "auto".to_owned(),
            algorithm: "auto".to_owned(),
            timeout_s: 5,
            gpu: Some(GpuSetup { devices: 1, library }),
        };
        let line = serde_json::to_string(&setup).unwrap();
        assert_eq!(serde_json::from_str::<Setup>(&line).unwrap(), setup);
        let line = serde_json::to_string(&Answer::Done(hello.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Answer<Hello>>(&line).unwrap(), Answer::Done(hello));
    }
}
