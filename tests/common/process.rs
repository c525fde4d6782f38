//! Ranks in processes of their own: a test program starts itself with `RCCL_TEST_CASE`, and then is a rank.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use libtest_mimic::Failed;
use rccl::{Root, TransportChoice};
use rccl_transport::RootOptions;

/// A rank's process, killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    _stdin: ChildStdin,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Process {
    /// Starts this test program anew as one that runs `case` over `transport`.
    pub(crate) fn of_case(case: &str, transport: TransportChoice, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("RCCL_TEST_CASE", case).env("RCCL_TRANSPORT", transport.name());
        command.envs(environment.iter().copied());
        Self::start(command)
    }

    /// Starts it. Its standard input stays open until it is dropped; its output comes by lines.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, _stdin: stdin, lines }
    }

    /// The next line that it says.
    pub(crate) fn line(&self, limit: Duration) -> Result<String, Failed> {
        self.lines
            .recv_timeout(limit)
            .map_err(|error| Failed::from(format!("no line within {limit:?}: {error}")))
    }

    /// Its next line must be this one.
    pub(crate) fn expect(&self, wanted: &str) -> Result<(), Failed> {
        let line = self.line(Duration::from_secs(60))?;
        if line == wanted { Ok(()) } else { Err(format!("expected `{wanted}`, got `{line}`").into()) }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: a signal to a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id().cast_signed(), signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `size` ranks of one group, all with the variables `shared`; `host` names the host that a rank pretends to live on.
pub(crate) fn start_group(
    case: &str,
    size: u32,
    transport: TransportChoice,
    shared: &[(&str, &str)],
    host: fn(u32) -> &'static str,
) -> (Root, Vec<Process>) {
    let (root, id) = Root::start(&RootOptions::default()).unwrap();
    let processes = (0..size)
        .map(|rank| {
            let (id, rank_text, size) = (id.to_string(), rank.to_string(), size.to_string());
            let mut environment = shared.to_vec();
            environment.extend([
                ("RCCL_TEST_ID", id.as_str()),
                ("RCCL_TEST_RANK", &rank_text),
                ("RCCL_TEST_SIZE", &size),
            ]);
            if !host(rank).is_empty() {
                environment.push(("RCCL_HOSTID", host(rank)));
            }
            Process::of_case(case, transport, &environment)
        })
        .collect();
    (root, processes)
}

// What a rank says and is told.

/// What a rank says.
pub(crate) fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}

/// A variable that a rank was given.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}
