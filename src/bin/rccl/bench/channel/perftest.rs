//! perftest's programs between the same two devices.

use std::{
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use rccl_transport::verbs;

use super::Test;
use crate::error::{Error, Result};

/// How long a program may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each run has a port of its own, from here on.
static NEXT_PORT: AtomicU16 = AtomicU16::new(21_000);

/// Microseconds a message of `ib_write_bw`, or half a round trip of `ib_send_lat`, both waiting for each completion.
pub(super) fn measure(
    devices: Option<&[verbs::Options; 2]>,
    test: Test,
    bytes: u64,
    messages: u64,
    queue_pairs: u8,
) -> Result<f64> {
    let [near, far] = devices.ok_or_else(|| failed("there is no RDMA device"))?;
    let (program, output) = match test {
        Test::OneWay => ("ib_write_bw", "bandwidth"),
        Test::RoundTrip => ("ib_send_lat", "latency"),
    };
    let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
    let command = |end: &verbs::Options| -> Result<Command> {
        let (device, gid) = end.describe().map_err(|error| failed(&error.to_string()))?;
        let mut command = Command::new(program);
        command.args(["-F", "-d", &device, "-x", &gid.to_string(), "-s", &bytes.to_string()]);
        command.args(["-n", &messages.to_string(), "-p", &port.to_string(), &format!("--output={output}")]);
        if test == Test::OneWay {
            // A completion for each message, as ours.
            command.args(["-Q", "1", "-q", &queue_pairs.to_string(), "--report_gbits"]);
        }
        Ok(command)
    };
    let mut server = start(command(far)?.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let answer = ask(&mut command(near)?);
    // It ends with its client; one that has not is of no more use.
    let deadline = Instant::now() + Duration::from_secs(2);
    while server.try_wait()?.is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    _ = server.kill();
    _ = server.wait();
    let value = answer?;
    Ok(match test {
        // Gbit/s of messages of so many bytes.
        Test::OneWay => bytes as f64 * 8.0 / value / 1e3,
        Test::RoundTrip => value,
    })
}

/// Runs the client until the server listens; the number that it prints.
fn ask(client: &mut Command) -> Result<f64> {
    let give_up = Instant::now() + PATIENCE;
    let client = client.arg("127.0.0.1");
    loop {
        let output = client.output().map_err(|error| missing(&error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).next_back();
        if let Some(number) = number.filter(|_| output.status.success()) {
            return Ok(number);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        if Instant::now() > give_up || !said.contains("ouldn't connect") {
            return Err(failed(&format!("{client:?}: {}; {}", output.status, said.trim())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(command: &mut Command) -> Result<Child> {
    command.spawn().map_err(|error| missing(&error))
}

fn missing(error: &std::io::Error) -> Error {
    failed(&format!(
        "{error}; install the package perftest, or run this in the lab: cargo xtask lab -- rccl bench channel"
    ))
}

fn failed(what: &str) -> Error {
    Error::Processes(format!("perftest: {what}"))
}

/// What it calls itself.
pub(super) fn version() -> String {
    let output = Command::new("ib_write_bw").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|_| "unknown".to_owned()).trim_start_matches("Version: ").to_owned()
}
