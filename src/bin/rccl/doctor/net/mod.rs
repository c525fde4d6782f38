//! `rccl doctor net`: opens the NCCL plugin as NCCL would, lists its devices, and runs a transfer over each.

mod table;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use crate::{error::Result, output};
use table::{Device, Object, Plugin};

/// Bytes of a message of the transfer, as NCCL cuts long ones.
const MESSAGE_BYTES: usize = 1 << 20;

/// Messages of a transfer.
const MESSAGES: usize = 256;

/// Messages outstanding, as NCCL has them.
const OUTSTANDING: usize = 8;

/// Longest that a transfer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a check gives; its error is text for a person.
type Outcome<T = ()> = std::result::Result<T, String>;

/// Open the NCCL plugin as NCCL would, list its devices, and run a transfer over each
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The plugin [default: what NCCL_NET_PLUGIN names, else libnccl-net-rccl.so where the loader looks or in ../lib]
    #[arg(long)]
    plugin: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match examine(options.plugin.as_deref()) {
        Ok(text) => output::line(text).map(|()| ExitCode::SUCCESS),
        Err(text) => {
            output::line(format!("FAIL  {text}"))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn examine(given: Option<&Path>) -> Outcome<String> {
    let (path, plugin) = open(given)?;
    let mut lines = vec![format!("ok    plugin     {} ({})", path.display(), plugin.name())];
    let context = plugin.init()?;
    let devices = plugin.devices()?;
    if devices.is_empty() {
        return Err("the plugin has no device, so NCCL would skip it without a word".into());
    }
    for (number, device) in (0..).zip(&devices) {
        lines.push(format!("ok    device {number}   {}", describe(device)));
        let speed = transfer(&plugin, context, number)
            .map_err(|text| format!("transfer over {}: {text}", device.name))?;
        lines.push(format!(
            "ok    transfer   {speed:.2} GB/s from this process to itself, every byte checked"
        ));
    }
    plugin.finalize(context)?;
    lines
        .push("To see that NCCL uses it: NCCL_DEBUG=INFO, and `NET/rccl` in the lines that it prints".into());
    Ok(lines.join("\n"))
}

/// The first plugin that opens.
fn open(given: Option<&Path>) -> Outcome<(PathBuf, Plugin)> {
    let mut failures = Vec::new();
    for path in candidates(given, env::var_os("NCCL_NET_PLUGIN").map(PathBuf::from)) {
        match Plugin::open(&path) {
            Ok(plugin) => return Ok((path, plugin)),
            Err(error) => failures.push(error),
        }
    }
    Err(format!(
        "no plugin opens: {}\n      -> cargo xtask install --prefix DIR, then LD_LIBRARY_PATH=DIR/lib",
        failures.join("; ")
    ))
}

/// Where NCCL would look, and then beside this command.
fn candidates(given: Option<&Path>, named: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(path) = given {
        return vec![std::path::absolute(path).unwrap_or_else(|_| path.to_owned())];
    }
    let mut list = Vec::new();
    if let Some(name) = named {
        list.push(PathBuf::from(format!("libnccl-net-{}.so", name.display())));
        list.push(name);
    } else {
        list.push("libnccl-net-rccl.so".into());
    }
    let beside =
        env::current_exe().ok().and_then(|it| Some(it.parent()?.parent()?.join("lib/libnccl-net-rccl.so")));
    list.extend(beside);
    list
}

fn describe(device: &Device) -> String {
    let place = device.pci_path.as_deref().unwrap_or("no PCI device");
    format!("{} ({} Mbit/s, {place})", device.name, device.speed_mbps)
}

/// Asks until there is an answer.
fn until<T>(what: &str, mut ask: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("{what} did not happen within {PATIENCE:?}"));
        }
        std::thread::yield_now();
    }
}

/// Sends messages over a device from this thread to itself; in GB/s.
fn transfer(plugin: &Plugin, context: Object, device: i32) -> Outcome<f64> {
    let (listener, mut handle) = plugin.listen(context, device)?;
    let (mut send, mut receive) = (Object::NONE, Object::NONE);
    until("connecting", || {
        if send == Object::NONE {
            send = plugin.connect(context, device, &mut handle)?;
        }
        if receive == Object::NONE {
            receive = plugin.accept(listener)?;
        }
        Ok((send != Object::NONE && receive != Object::NONE).then_some(()))
    })?;
    let mut source: Vec<u8> = (0..MESSAGE_BYTES * OUTSTANDING).map(|at| (at % 251) as u8).collect();
    let mut target = vec![0; source.len()];
    let from = plugin.register(send, &mut source)?;
    let to = plugin.register(receive, &mut target)?;
    let started = Instant::now();
    for _ in 0..MESSAGES / OUTSTANDING {
        let mut requests = Vec::new();
        for chunk in target.chunks_mut(MESSAGE_BYTES) {
            requests.push(until("a receive", || taken(plugin.receive(receive, chunk, to)))?);
        }
        for chunk in source.chunks_mut(MESSAGE_BYTES) {
            requests.push(until("a send", || taken(plugin.send(send, chunk, from)))?);
        }
        until("a round of messages", || {
            let mut left = Vec::new();
            for &request in &requests {
                if !plugin.is_done(request)? {
                    left.push(request);
                }
            }
            requests = left;
            Ok(requests.is_empty().then_some(()))
        })?;
    }
    let seconds = started.elapsed().as_secs_f64();
    plugin.deregister(send, from)?;
    plugin.deregister(receive, to)?;
    plugin.close(listener, send, receive)?;
    if source != target {
        return Err("what arrived is not what was sent".into());
    }
    Ok((MESSAGES * MESSAGE_BYTES) as f64 / seconds / 1e9)
}

fn taken(request: Outcome<Object>) -> Outcome<Option<Object>> {
    request.map(|request| (request != Object::NONE).then_some(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_looked_for_as_nccl_does() {
        let names = |named: &str| candidates(None, Some(named.into()))[..2].to_vec();
        assert_eq!(names("rccl"), [PathBuf::from("libnccl-net-rccl.so"), "rccl".into()]);
        assert_eq!(candidates(Some(Path::new("/x/y.so")), Some("rccl".into())), [PathBuf::from("/x/y.so")]);
        assert_eq!(candidates(None, None)[0], PathBuf::from("libnccl-net-rccl.so"));
    }

    #[test]
    fn a_plugin_that_is_not_there_is_a_failure_with_a_remedy() {
        let text = examine(Some(Path::new("/nonexistent/plugin.so"))).unwrap_err();
        assert!(text.contains("/nonexistent/plugin.so") && text.contains("cargo xtask install"), "{text}");
    }
}
