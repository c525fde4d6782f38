//! Variables that change what rccl and other libraries do.

use super::{Check, facts::Facts};
use crate::topo::net;

/// What a variable may be set to.
enum Form {
    /// 0 or 1.
    Switch,
    /// A number in a range.
    Number(i64, i64),
    /// One of some words, in any case, or a number in a range.
    Word(&'static [&'static str], Option<(i64, i64)>),
    /// Interfaces: prefixes, `=` exact names, `^` all others.
    Interfaces,
    /// Anything.
    Text,
}

const LEVELS: &[&str] = &["LOC", "NVL", "PIX", "PXB", "PHB", "NODE", "SYS"];

/// Variables that are honoured with the prefixes `RCCL_` and `NCCL_`.
const SHARED: &[(&str, Form)] = &[
    ("P2P_DISABLE", Form::Switch),
    ("P2P_LEVEL", Form::Word(LEVELS, Some((0, 7)))),
    ("SHM_DISABLE", Form::Switch),
    ("SOCKET_IFNAME", Form::Interfaces),
    ("SOCKET_FAMILY", Form::Word(&["AF_INET", "AF_INET6"], None)),
    ("IB_HCA", Form::Text),
    ("IB_GID_INDEX", Form::Number(-1, 255)),
    ("IB_TC", Form::Number(0, 255)),
    ("IB_SL", Form::Number(0, 15)),
    ("IB_TIMEOUT", Form::Number(1, 31)),
    ("IB_RETRY_CNT", Form::Number(0, 7)),
    ("NET_GDR_LEVEL", Form::Word(LEVELS, Some((0, 7)))),
    ("BUFFSIZE", Form::Number(4096, 1 << 30)),
    ("DEBUG", Form::Word(&["VERSION", "WARN", "INFO", "ABORT", "TRACE"], None)),
    ("HOSTID", Form::Text),
];

/// Variables of rccl alone.
const OWN: &[(&str, Form)] = &[
    ("RCCL_SHM_DIR", Form::Text),
    ("RCCL_SECRET", Form::Text),
    ("RCCL_SECRET_FILE", Form::Text),
    ("RCCL_ALLOW_SHARED_GPU", Form::Switch),
    ("RCCL_TRANSPORT", Form::Word(&["auto", "shm", "tcp"], None)),
    ("RCCL_PROTOCOL", Form::Word(&["auto", "ll", "stripe", "bulk"], None)),
    ("RCCL_LL_BYTES", Form::Number(0, i64::MAX)),
    ("RCCL_BULK_BYTES", Form::Number(0, i64::MAX)),
    ("RCCL_ALGORITHM", Form::Word(&["auto", "oneshot", "relay", "ring"], None)),
    ("RCCL_ONESHOT_BYTES", Form::Number(0, i64::MAX)),
    ("RCCL_SLOT_BYTES", Form::Number(4096, 64 << 20)),
    ("RCCL_SLOTS", Form::Number(1, 64)),
    ("RCCL_TCP_SOCKETS", Form::Number(1, 16)),
    // Seconds may have fractions; the library itself says what is wrong with them.
    ("RCCL_INIT_TIMEOUT_S", Form::Text),
    ("RCCL_TIMEOUT_S", Form::Text),
    ("RCCL_HEARTBEAT_S", Form::Text),
    ("RCCL_CACHE", Form::Text),
];

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    vec![preload(facts), variables(facts)]
}

fn preload(facts: &Facts) -> Check {
    let name = "preloaded libraries";
    let mut found = Vec::new();
    found.extend(facts.variable("LD_PRELOAD").map(|value| format!("LD_PRELOAD={value}")));
    found.extend(
        facts.preload_file.as_ref().map(|text| format!("/etc/ld.so.preload: {}", text.replace('\n', " "))),
    );
    if found.is_empty() {
        return Check::ok(name, "none");
    }
    Check::warn(
        name,
        found.join("; "),
        "libraries that step between programs and the driver (virtual GPU shims, profilers) are known to deadlock \
         collectives; try without",
    )
}

fn variables(facts: &Facts) -> Check {
    let name = "variables";
    let mut wrong = Vec::new();
    let mut unknown = Vec::new();
    let mut seen = Vec::new();
    for (key, value) in facts.environment.iter().filter(|(_, value)| !value.is_empty()) {
        match form(key) {
            Some(form) => {
                seen.push(key.as_str());
                if let Err(reason) = form.check(value, &facts.machine.interfaces) {
                    wrong.push(format!("{key} is `{value}`: {reason}"));
                }
            }
            None if key.starts_with("RCCL_") => unknown.push(key.as_str()),
            None => {}
        }
    }
    if let (true, Err(error)) = (wrong.is_empty(), &facts.library_options) {
        wrong.push(error.clone());
    }
    if !wrong.is_empty() {
        return Check::fail(
            name,
            wrong.join("; "),
            "correct or unset them; rccl refuses to start with such values",
        );
    }
    if !unknown.is_empty() {
        return Check::warn(
            name,
            format!("{} mean nothing to rccl", unknown.join(", ")),
            format!("misspelt? Known: {}", known_names().join(" ")),
        );
    }
    Check::ok(
        name,
        if seen.is_empty() { "none set".to_owned() } else { format!("{} make sense", seen.join(", ")) },
    )
}

fn form(key: &str) -> Option<&'static Form> {
    let shared = key.strip_prefix("RCCL_").or_else(|| key.strip_prefix("NCCL_"));
    let found = shared.and_then(|name| SHARED.iter().find(|(known, _)| *known == name));
    found.or_else(|| OWN.iter().find(|(known, _)| *known == key)).map(|(_, form)| form)
}

fn known_names() -> Vec<String> {
    let shared = SHARED.iter().map(|(name, _)| format!("RCCL_{name}"));
    shared.chain(OWN.iter().map(|(name, _)| (*name).to_owned())).collect()
}

impl Form {
    fn check(&self, value: &str, interfaces: &[net::Interface]) -> Result<(), String> {
        let in_range =
            |(low, high): (i64, i64)| value.parse::<i64>().is_ok_and(|number| (low..=high).contains(&number));
        match self {
            Self::Switch if ["0", "1"].contains(&value) => Ok(()),
            Self::Switch => Err("expected 0 or 1".to_owned()),
            Self::Number(low, high) if in_range((*low, *high)) => Ok(()),
            Self::Number(low, high) => Err(format!("expected a number from {low} to {high}")),
            Self::Word(words, range) => {
                let is_word = words.iter().any(|word| word.eq_ignore_ascii_case(value));
                if is_word || range.is_some_and(in_range) {
                    return Ok(());
                }
                let numbers = range
                    .map_or_else(String::new, |(low, high)| format!(", or a number from {low} to {high}"));
                Err(format!("expected one of {}{numbers}", words.join(" ")))
            }
            Self::Interfaces => check_interfaces(value, interfaces),
            Self::Text => Ok(()),
        }
    }
}

/// Whether a choice of interfaces leaves any.
fn check_interfaces(value: &str, interfaces: &[net::Interface]) -> Result<(), String> {
    let (exclude, rest) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
    let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
    let matches = |name: &str| {
        rest.split(',')
            .any(|part| if exact { name == part } else { !part.is_empty() && name.starts_with(part) })
    };
    if interfaces.iter().any(|it| matches(&it.name) != exclude) {
        return Ok(());
    }
    let names: Vec<&str> = interfaces.iter().map(|it| it.name.as_str()).collect();
    Err(format!("leaves no interface; this machine has {}", names.join(" ")))
}
