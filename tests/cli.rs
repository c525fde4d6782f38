//! The `rccl` command as its users meet it: the built program, its output and its exit status.
#![cfg(feature = "cli")]

use std::process::{Command, Output};

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
    for command in ["bench", "plan", "topo", "doctor"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(!help.contains("bench-worker"), "{help}");
    assert!(help.contains("not AMD's RCCL"));
}

#[test]
fn the_benchmarks_help_explains_options_columns_and_statuses() {
    let help = succeeds("bench --help");
    let options = "-b -e -f -i -n -w -c -d -o -r -z --ranks --algorithm --path --transport --protocol --device --peer \
                   --peer-env --json --csv --plot busbw Examples: status:";
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
    for list in ["numa_nodes", "interfaces", "rdma", "gpus"] {
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
        ("bench --device cuda", &["--device", "not built in this version"]),
        ("bench --transport verbs", &["--transport", "shm or tcp"]),
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
