//! Running other programs, each with a deadline.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::Result;

/// How often a running child is asked whether it has ended.
const POLL: Duration = Duration::from_millis(10);

/// Runs `command` with its output going where ours goes.
///
/// # Errors
/// When it cannot be started, ends with anything but 0, or runs longer than `limit` (it is then killed).
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result {
    let line = text(command);
    let child = command.spawn().map_err(|e| cannot_start(command, &e))?;
    judge(&line, wait(child, limit)?, limit)
}

/// Runs `command` and returns what it wrote to its standard output; its standard error goes where ours goes.
///
/// # Errors
/// As for [`run`].
pub(crate) fn output(command: &mut Command, limit: Duration) -> Result<String> {
    capture(command, limit, false)
}

/// As [`output`], showing each line as it comes.
///
/// # Errors
/// As for [`run`].
pub(crate) fn output_shown(command: &mut Command, limit: Duration) -> Result<String> {
    capture(command, limit, true)
}

/// The command as a person would type it.
pub(crate) fn text(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Waits for `child` until the deadline; `None` if it had to be killed.
///
/// # Errors
/// When the operating system refuses to wait.
pub(crate) fn wait(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

fn capture(command: &mut Command, limit: Duration, show: bool) -> Result<String> {
    let line = text(command);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| cannot_start(command, &e))?;
    let stdout = child.stdout.take().ok_or("the child has no standard output")?;
    // Read beside the wait, so that a full pipe cannot stop the child and a silent child cannot stop us.
    let reader = thread::spawn(move || {
        let mut all = String::new();
        for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
            if show {
                println!("{line}");
            }
            all.push_str(&line);
            all.push('\n');
        }
        all
    });
    let status = wait(child, limit)?;
    judge(&line, status, limit)?;
    reader.join().map_err(|_| format!("reading the output of `{line}` failed").into())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start `{}`: {error}", command.get_program().to_string_lossy())
}

fn judge(line: &str, status: Option<ExitStatus>, limit: Duration) -> Result {
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("`{line}` failed: {status}").into()),
        None => Err(format!("`{line}` was still running after {} s and was killed", limit.as_secs()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_captured_and_failure_names_the_command() {
        assert_eq!(output(&mut shell("echo one; echo two"), LIMIT).unwrap(), "one\ntwo\n");
        let error = run(&mut shell("exit 3"), LIMIT).unwrap_err().to_string();
        assert!(error.contains("sh -c exit 3") && error.contains('3'), "{error}");
        let error = run(&mut Command::new("no-such-program-here"), LIMIT).unwrap_err().to_string();
        assert!(error.contains("no-such-program-here"), "{error}");
    }

    #[test]
    fn a_child_past_its_deadline_is_killed() {
        let error = run(&mut shell("exec cat /dev/zero >/dev/null"), Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("was killed"), "{error}");
    }
}
