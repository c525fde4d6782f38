//! The process at the other end: it says where it listens, and then does what it is told, a line at a time.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use rccl_transport::{Secret, channel::Address};

use super::{
    Options, Test,
    ends::{Ends, Side, Unmet, failed},
};
use crate::error::{Error, Result};

/// The other process. Dropping it ends it.
pub(super) struct Partner {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    secret: Secret,
}

impl Partner {
    /// Starts this program again, as the other end.
    pub(super) fn start(options: &Options) -> Result<Self> {
        let secret = Secret::random().map_err(failed)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "channel", "--serve", "--transport", options.transport.name()]);
        command.args(["--queue-pairs", &options.queue_pairs.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(mut commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Processes("the other process has no pipes".into()));
        };
        writeln!(commands, "{}", hex(secret.expose()))?;
        Ok(Self { child, commands, answers: BufReader::new(answers), secret })
    }

    /// Connects the two channels.
    pub(super) fn connect(&mut self, options: &Options) -> Result<Ends> {
        let unmet = Unmet::new(options, Side::Near, &self.secret)?;
        writeln!(self.commands, "{}", hex(&unmet.address().0))?;
        let theirs = self.hear()?;
        unmet.meet(&Address(unhex(&theirs)?))
    }

    /// Lets both sides do the test; microseconds a message, and the seconds of processor time of this side.
    pub(super) fn measure(
        &mut self,
        ends: &mut Ends,
        test: Test,
        bytes: u64,
        messages: u64,
    ) -> Result<(f64, f64)> {
        let name = if test == Test::OneWay { "sink" } else { "echo" };
        writeln!(self.commands, "{name} {bytes} {messages}")?;
        self.expect("ready")?;
        let cpu = cpu_seconds();
        let started = Instant::now();
        match test {
            Test::OneWay => ends.stream(bytes, messages)?,
            Test::RoundTrip => ends.ping(bytes, messages, true, || Ok(()))?,
        }
        let us = started.elapsed().as_secs_f64() * 1e6 / messages as f64;
        let cpu = cpu_seconds() - cpu;
        self.expect("done")?;
        Ok((if test == Test::OneWay { us } else { us / 2.0 }, cpu))
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(Error::Processes(format!("the process at the other end ended: {status}")));
        }
        Ok(line.trim().to_owned())
    }

    fn expect(&mut self, wanted: &str) -> Result<()> {
        let line = self.hear()?;
        if line == wanted {
            Ok(())
        } else {
            Err(Error::Processes(format!("the other end said `{line}`, not {wanted}")))
        }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The other end: until its input ends.
pub(super) fn serve(options: &Options) -> Result<()> {
    let mut lines = io::stdin().lines();
    let mut next = || lines.next().transpose();
    let damaged = || Error::Processes("`rccl bench channel` starts this process itself".into());
    let secret: [u8; 32] = unhex(&next()?.ok_or_else(damaged)?)?.try_into().map_err(|_| damaged())?;
    let unmet = Unmet::new(options, Side::Far, &Secret::from_bytes(secret))?;
    let address = Address(unhex(&next()?.ok_or_else(damaged)?)?);
    say(&hex(&unmet.address().0))?;
    let mut ends = unmet.meet(&address)?;
    while let Some(line) = next()? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[name, bytes, messages] = words.as_slice() else { return Err(damaged()) };
        let (Ok(bytes), Ok(messages)) = (bytes.parse(), messages.parse()) else { return Err(damaged()) };
        match name {
            "sink" => ends.sink(bytes, messages, || say("ready"))?,
            _ => ends.ping(bytes, messages, false, || say("ready"))?,
        }
        say("done")?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Processor time of this process so far.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let damaged = || Error::Processes(format!("`{text}` is no address"));
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(damaged()) };
    let digit =
        |pair: &[u8; 2]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    pairs.iter().map(digit).collect::<Option<_>>().ok_or_else(damaged)
}
