//! `rccl bench --device cuda` with a process a rank, on a driver whose two devices are the processor: who starts whom, what they
//! share, and that results are judged. It says nothing of speed.
#![cfg(feature = "cli")]

#[path = "../rccl-transport/tests/fake_cuda/compile.rs"]
mod fake;

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

/// Runs the command with a driver of its own.
fn rccl(test: &str, flags: &[&str], line: &str) -> Output {
    let more = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench_gpus/driver.c");
    let renamed = [
        "-DWITHOUT_BATCH",
        "-DcuStreamWaitValue32_v2=fake_wait_once",
        "-DcuModuleGetFunction=fake_get_function",
        "-DcuLaunchKernel=fake_launch",
        more.to_str().expect("a path of text"),
    ];
    let (library, _folder) = fake::compile(test, &[&renamed, flags].concat());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rccl"));
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("RCCL_") || name.starts_with("NCCL_") {
            command.env_remove(&key);
        }
    }
    command.env("RCCL_LIBCUDA", library).args(line.split_whitespace());
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_process_a_rank_is_measured_checked_and_recorded() {
    let line = "bench --device cuda --protocol bulk -b 4 -e 4M -f 1024 -n 3 --rounds 2 -o sum,avg --json -";
    let output = rccl("processes", &[], line);
    let (points, table) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{table}");
    assert!(table.contains("Out of bounds values : 0 OK"), "{table}");
    assert!(table.contains("one process a rank, each with a GPU of its own (2 of 2)"), "{table}");
    let points: Vec<Value> = points.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    // Three sizes, two operators, out of place and in place.
    assert_eq!(points.len(), 12);
    for point in &points {
        assert_eq!((&point["what"], &point["path"]), (&"gpu-no-p2p".into(), &"host".into()), "{point}");
        assert_eq!((&point["ranks"], &point["processes"]), (&2.into(), &2.into()), "{point}");
        assert_eq!((&point["protocol"], &point["wrong"]), (&"bulk".into(), &0.into()), "{point}");
        assert!(point["limit_busbw"].as_f64().is_some_and(|limit| limit > 0.0), "{point}");
    }
}

#[test]
fn work_that_a_device_leaves_out_is_counted() {
    let output = rccl("forgets", &["-DFORGETS"], "bench --device cuda --protocol bulk -b 4K -e 4K -n 1");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}\n{}", text(&output.stderr));
    // Out of place every element of both ranks is wrong, and in place too: nothing was added.
    assert!(said.contains("Out of bounds values : 4096 FAILED"), "{said}");
}

#[test]
fn what_cannot_be_captured_or_loaded_is_said() {
    for (test, line, hint) in [
        ("capture", "bench --device cuda --protocol bulk --graph -b 8 -e 8", "--graph: cannot capture"),
        (
            "nccl",
            "bench --device cuda -b 8 -e 8 --peer nccl --nccl-library /nonexistent/libnccl.so.2",
            "cannot load NCCL: /nonexistent/libnccl.so.2",
        ),
    ] {
        let output = rccl(test, &[], line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{line}: {said}");
        assert!(said.contains(hint), "{line}: {said}");
    }
}
