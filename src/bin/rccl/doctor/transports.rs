//! Which transports can be used here, and why not the others.

use serde::Serialize;

use super::facts::Facts;

/// A transport and whether it can be used on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Transport {
    pub(super) name: &'static str,
    pub(super) usable: bool,
    /// Why, or what it would reach.
    pub(super) reason: String,
}

pub(super) fn of(facts: &Facts) -> Vec<Transport> {
    vec![shm(facts), tcp(facts), verbs(facts)]
}

fn shm(facts: &Facts) -> Transport {
    let disabled = ["RCCL_SHM_DISABLE", "NCCL_SHM_DISABLE"]
        .into_iter()
        .find(|name| facts.variable(name).is_some_and(|value| value != "0"));
    let problem = match (disabled, &facts.shared_memory, &facts.futex) {
        (Some(name), _, _) => Some(format!("switched off by {name}")),
        (None, Err(error), _) | (None, Ok(()), Err(error)) => Some(error.clone()),
        (None, Ok(()), Ok(())) => None,
    };
    Transport {
        name: "shm",
        usable: problem.is_none(),
        reason: problem.unwrap_or_else(|| "ranks of this machine".to_owned()),
    }
}

fn tcp(facts: &Facts) -> Transport {
    let reason = match &facts.loopback_v4 {
        Err(error) => error.clone(),
        Ok(()) => {
            let names: Vec<&str> = facts.outward().map(|it| it.name.as_str()).collect();
            if names.is_empty() {
                "ranks of this machine; no interface leads out".to_owned()
            } else {
                format!("ranks of this machine, and of others by {}", names.join(", "))
            }
        }
    };
    Transport { name: "tcp", usable: facts.loopback_v4.is_ok(), reason }
}

fn verbs(facts: &Facts) -> Transport {
    let (usable, reason) = match &facts.rdma {
        Ok(port) => (true, format!("ranks of other machines, by {port}")),
        Err(error) => (false, error.clone()),
    };
    Transport { name: "verbs", usable, reason }
}
