//! The `rccl` command as its users meet it: the built program, its output and its exit status.
#![cfg(feature = "cli")]

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rccl_transport::cuda::{Device, Driver};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

/// The program, in an environment without any variable of ours or NCCL's.
fn program(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rccl"));
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("RCCL_") || name.starts_with("NCCL_") {
            command.env_remove(&key);
        }
    }
    command.args(line.split_whitespace());
    command
}

fn rccl(line: &str) -> Output {
    program(line).output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn succeeds(line: &str) -> String {
    let output = rccl(line);
    assert!(output.status.success(), "{line}: {}\n{}", output.status, stderr(&output));
    stdout(&output)
}

/// The complaint about a line that makes no sense.
fn refused(line: &str) -> String {
    let output = rccl(line);
    assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
    assert!(stdout(&output).is_empty(), "{line}");
    stderr(&output)
}

#[test]
fn help_names_every_command_and_no_internal_one() {
    let help = succeeds("--help");
    for command in ["bench", "plan", "topo", "doctor", "tune"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(!help.contains("bench-worker"), "{help}");
    assert!(help.contains("not AMD's RCCL"));
}

#[test]
fn the_benchmarks_help_explains_options_columns_and_statuses() {
    let help = succeeds("bench --help");
    let options = "-b -e -f -i -n -w -c -d -o -r -z --ranks --algorithm --path --transport --protocol --device --graph \
                   --peer --peer-env --nccl-library --json --csv --plot busbw Examples: status:";
    for part in options.split_whitespace() {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
}

#[test]
fn a_plan_as_text_with_proof_and_price() {
    let text = succeeds("plan all-reduce --algorithm relay --ranks 4 --rank 1 --check --cost");
    for part in
        ["all-reduce by relay, rank 1 of 4", "lane 0", "proved for 4 ranks", "2 hop(s)", "rank 3: 1 MiB sent"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn a_plan_as_json() {
    let plan: Value =
        serde_json::from_str(&succeeds("plan all-gather -a ring -n 3 --count 10 --json")).unwrap();
    assert_eq!(plan["request"]["collective"], "all-gather");
    assert_eq!(plan["request"]["count"], 10);
    assert_eq!(plan["group"]["size"], 3);
    let all = succeeds("plan broadcast -n 3 --root 2 -b 64K --json --check --cost");
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["check"]["sound"], true);
    assert_eq!(all["cost"]["sent_bytes"], serde_json::json!([0, 0, 65_536]));
    assert_eq!(all["plan"]["request"]["count"], 16_384);
}

#[test]
fn every_plan_there_is_can_be_shown_and_proved() {
    for (collective, algorithms) in [
        ("all-reduce", "oneshot relay ring"),
        ("all-gather", "oneshot ring"),
        ("reduce-scatter", "oneshot ring"),
        ("broadcast", "oneshot ring"),
        ("send-recv", "oneshot"),
    ] {
        for algorithm in algorithms.split(' ') {
            let text = succeeds(&format!("plan {collective} -a {algorithm} -n 5 -b 1M -d half --check"));
            assert!(text.contains("proved for 5 ranks"), "{text}");
        }
    }
}

#[test]
fn the_machine_as_text_and_json() {
    let text = succeeds("topo");
    for heading in ["Machine", "Processors", "Memory", "Network interfaces", "RDMA ports", "GPUs"] {
        assert!(text.contains(heading), "{text}");
    }
    let machine: Value = serde_json::from_str(&succeeds("topo --json")).unwrap();
    assert!(machine["cpu"]["usable"].as_u64().unwrap() >= 1);
    assert!(machine["memory"]["total_bytes"].as_u64().unwrap() > 0);
    for list in ["numa_nodes", "interfaces", "rdma", "gpus", "gpu_pairs"] {
        assert!(machine[list].is_array(), "{list}");
    }
}

/// The exit status must agree with the verdict, whatever the machine the tests run on is like.
#[test]
fn the_doctor_as_json() {
    let output = rccl("doctor --json --ranks 2");
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 10);
    for check in checks {
        assert_eq!(check["verdict"] == "ok", check["fix"].is_null(), "{check}");
    }
    let failed = checks.iter().any(|check| check["verdict"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(failed)));
    assert_eq!(report["transports"].as_array().unwrap().len(), 3);
}

#[test]
fn a_variable_that_makes_no_sense_fails_the_doctor() {
    let output = program("doctor").env("NCCL_SHM_DISABLE", "perhaps").output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let said = stdout(&output);
    assert!(said.contains("NCCL_SHM_DISABLE is `perhaps`: expected 0 or 1"), "{said}");
}

#[test]
fn the_doctor_fails_where_there_is_no_plugin() {
    let output = rccl("doctor net --plugin /nonexistent/plugin.so");
    assert_eq!(output.status.code(), Some(1));
    let said = stdout(&output);
    assert!(said.contains("FAIL") && said.contains("cargo xtask install"), "{said}");
}

#[test]
fn complaints_name_the_argument_and_the_remedy() {
    for (line, hints) in [
        ("plan all-reduc", &["all-reduc", "all-reduce"][..]),
        ("plan all-gather --algorithm relay", &["all-gather has no algorithm relay", "oneshot, ring"]),
        ("plan all-reduce --ranks 0", &["group of 0"]),
        ("plan all-reduce --rank 4", &["rank 4 of a group of 4"]),
        ("plan all-reduce -b 1Q", &["`1Q`", "64K"]),
        ("plan all-reduce -b 1M --count 3", &["cannot be used with"]),
        ("plan all-reduce -s 1", &["--segment-bytes", "4 bytes"]),
        ("plan broadcast --root 9", &["root is rank 9", "0 to 3"]),
        ("bench all-reduce -d float,quad", &["--dtype", "`quad`", "bfloat16"]),
        ("bench -b 2K -e 1K", &["-b", "above the largest"]),
        ("bench all-gather --device cuda", &["--device", "cuda"]),
        ("bench --graph", &["--graph", "--device cuda"]),
        ("tune --transport verbs", &["--transport", "shm or tcp"]),
        ("bench --transport verbs --path host", &["--transport", "leave one of the two out"]),
        ("bench --protocol bulk", &["--protocol", "host memory"]),
        ("bench --peer nccl", &["--peer", "gloo or openmpi"]),
        ("bench --json /nonexistent/points.jsonl", &["/nonexistent/points.jsonl"]),
        ("bench --ranks 0", &["--ranks"]),
        ("doctor --ranks many", &["many"]),
    ] {
        let complaint = refused(line);
        for hint in hints {
            assert!(complaint.contains(hint), "{line}: {hint} is missing in\n{complaint}");
        }
    }
}

#[test]
fn whoever_stops_reading_gets_no_complaint() {
    let script = format!("{} plan all-reduce --ranks 1000 --json | head -c 1", env!("CARGO_BIN_EXE_rccl"));
    let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert_eq!(stderr(&output), "");
}

#[test]
fn every_collective_is_measured_and_right() {
    for collective in ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "send-recv"] {
        for transport in ["shm", "tcp"] {
            let line = format!("bench {collective} --ranks 3 -b 64 -e 4K -f 8 -n 3 --transport {transport}");
            let text = succeeds(&line);
            assert!(text.contains("Out of bounds values : 0 OK"), "{line}\n{text}");
            assert!(text.contains(&format!("transport {transport}")), "{text}");
            let rows = text.lines().filter(|line| line.starts_with("  ")).count();
            assert_eq!(rows, 3, "{line}\n{text}");
        }
    }
}

/// Every element right where there is a GPU, and elsewhere a word on what is missing.
#[test]
fn gpus_are_measured_where_there_are_some() {
    let devices = Driver::open().and_then(|driver| Device::count(&driver)).unwrap_or(0);
    let line = "bench --device cuda -b 8 -e 4M -f 64 -n 3";
    if devices == 0 {
        let complaint = refused(line);
        assert!(complaint.contains("--device: cuda needs a GPU"), "{complaint}");
        return;
    }
    for line in [line.to_owned(), format!("{line} --graph -d half,bfloat16 -o avg")] {
        let text = succeeds(&line);
        assert!(text.contains("Out of bounds values : 0 OK"), "{line}\n{text}");
    }
}

#[test]
fn tuning_prints_variables_that_the_library_reads() {
    let text = succeeds("tune --rounds 1");
    let variables: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let [variable] = variables[..] else { panic!("{text}") };
    let (name, value) = variable.split_once('=').expect(variable);
    assert_eq!(name, "RCCL_ONESHOT_BYTES");
    let output = program("bench -b 1K -e 1K -n 1 --transport shm").env(name, value).output();
    assert!(output.expect("the program starts").status.success(), "{variable}");
    let report: Value = serde_json::from_str(&succeeds("tune --rounds 1 --transport tcp --json")).unwrap();
    assert!(report["variables"]["RCCL_ONESHOT_BYTES"].is_u64(), "{report}");
    assert_eq!(report["measured"][0]["points"].as_array().map(Vec::len), Some(11));
}

#[test]
fn every_type_operator_and_algorithm_is_right() {
    let text = succeeds("bench -d all -o all -b 200 -e 200 -n 1 -w 0 --ranks 3 --transport shm");
    assert!(text.contains("0 OK"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("  ")).count(), 12 * 6, "{text}");
    for algorithm in ["oneshot", "relay", "ring"] {
        let line =
            format!("bench -d half,int8 -o avg,mulsum -b 3K -e 3K -n 1 --ranks 3 --algorithm {algorithm}");
        assert!(succeeds(&line).contains("0 OK"), "{line}");
    }
}

#[test]
fn points_are_written_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (csv, svg) = (file("points.csv"), file("points.svg"));
    let line = format!(
        "bench -b 1K -e 4K -n 2 --rounds 3 --transport shm --percentiles --json - --csv {csv} --plot {svg} --record"
    );
    let output = program(&line).current_dir(folder.path()).output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let json = stdout(&output);
    let points: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(points.len(), 4, "two sizes, out of place and in place");
    for point in &points {
        assert_eq!((&point["what"], &point["transport"]), (&"cpu-shm".into(), &"shm".into()));
        assert_eq!((&point["wrong"], &point["peer"]), (&0.into(), &"none".into()));
        assert!(point["ours_us"].as_f64().unwrap() > 0.0 && point["limit_busbw"].as_f64().unwrap() > 0.0);
    }
    assert!(
        stderr(&output).contains("p99") && stderr(&output).contains("0 OK"),
        "the table goes to standard error"
    );
    assert_eq!(fs::read_to_string(csv).unwrap().lines().count(), 5);
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg"));
    let records: Vec<_> = fs::read_dir(folder.path().join("benches/record")).unwrap().flatten().collect();
    assert_eq!(records.len(), 1);
    assert!(records[0].file_name().to_string_lossy().ends_with("Z-cpu-shm.jsonl"));
    assert_eq!(fs::read_to_string(records[0].path()).unwrap(), json);
}

/// A benchmark in the middle of a batch that takes minutes, and the processes of its ranks.
fn busy(transport: &str) -> (Child, BufReader<std::process::ChildStdout>, Vec<Pid>) {
    let mut launcher = program(&format!("bench --ranks 3 -b 64M -n 100000 --transport {transport}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut out = BufReader::new(launcher.stdout.take().unwrap());
    let mut line = String::new();
    // The table's head is printed once the group stands.
    while !line.contains("algbw") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the benchmark ended early");
    }
    let id = launcher.id();
    let children =
        fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("a kernel that lists children");
    let ranks: Vec<Pid> =
        children.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
    assert_eq!(ranks.len(), 3);
    (launcher, out, ranks)
}

/// Processes end on their own time; this is how long they may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn all_gone(pids: &[Pid]) -> bool {
    let deadline = Instant::now() + PATIENCE;
    // A process that nobody has waited for yet can still be signalled, so ask what it is doing.
    let gone = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
        test_kill_process(*pid).is_err() || stat.contains(") Z ")
    };
    while !pids.iter().all(gone) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn a_rank_that_dies_ends_the_benchmark_with_its_name() {
    for transport in ["shm", "tcp"] {
        let (launcher, _out, ranks) = busy(transport);
        kill_process(ranks[1], Signal::KILL).unwrap();
        let output = launcher.wait_with_output().unwrap();
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{complaint}");
        assert!(complaint.contains("rank 1 died: signal: 9"), "{complaint}");
        assert!(all_gone(&ranks), "{transport}: ranks are left behind");
    }
}

#[test]
fn nothing_outlives_a_benchmark_that_is_killed() {
    let (mut launcher, _out, ranks) = busy("shm");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    assert!(all_gone(&ranks), "ranks are left behind");
}

#[test]
fn a_peer_that_is_not_installed_says_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = program("bench -b 1K -e 1K --transport tcp --peer gloo")
        .env("RCCL_CACHE", folder.path())
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("cargo xtask peers gloo"), "{}", stderr(&output));
}
