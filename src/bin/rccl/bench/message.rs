//! What launcher and workers say to each other: one JSON object a line.

use rccl_core::{Algorithm, Collective, DataType, Group, Rank, ReduceOp, Request};
use serde::{Deserialize, Serialize};

use super::settings::factor;
use crate::plan;

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
}

/// What a worker measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Microseconds an operation: those of the batch, divided by its length.
    pub(super) us: f64,
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
            checks: vec![u64::MAX],
        };
        let request = job.request(Group::new(3, 1).unwrap()).unwrap();
        assert_eq!((request.count, request.data_type), (17, DataType::Half));
        for command in [Command::Measure(job), Command::Copy { bytes: 8, iterations: 1 }] {
            let line = serde_json::to_string(&command).unwrap();
            assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), command);
        }
        let failed: Answer<Hello> = serde_json::from_str(r#"{"error": "rank 1 is gone"}"#).unwrap();
        assert_eq!(failed, Answer::Failed { error: "rank 1 is gone".to_owned() });
        let hello = Hello { rank: 1, describe: "2 ranks".to_owned(), transport: "shm".to_owned() };
        let line = serde_json::to_string(&Answer::Done(hello.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Answer<Hello>>(&line).unwrap(), Answer::Done(hello));
    }
}
