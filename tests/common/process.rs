//! Ranks in processes of their own, as seen by the test that started them.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use libtest_mimic::Failed;

/// A rank's process, killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    _stdin: ChildStdin,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Process {
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
