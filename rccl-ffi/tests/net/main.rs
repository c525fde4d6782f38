//! The NCCL network plugin from outside: opened as NCCL opens it, every version's table driven with host memory, by one
//! thread, by several, and between processes; over shared memory and over TCP.
//!
//! The plugin reads its environment once a process, so each test that needs another environment runs a suite of cases in a
//! process of its own.

mod cases;
mod endings;
mod pair;
mod processes;
mod strangers;
mod table;

use std::process::Command;

use table::{Api, VERSIONS};

/// Runs an ignored test of this program in a process of its own, in this environment.
fn alone(test: &str, variables: &[(&str, &str)]) {
    let output = child(test, variables).output().expect("this program again");
    let text = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    assert!(output.status.success(), "{test} with {variables:?}: {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "{test} was not run:\n{text}");
}

fn child(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    for name in ["RCCL_SECRET", "RCCL_SECRET_FILE", "RCCL_HOSTID", "NCCL_HOSTID"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command
}

#[test]
fn every_version_over_shared_memory() {
    alone("suite", &[("RCCL_NET_SHM", "1")]);
}

#[test]
fn every_version_over_tcp() {
    alone("suite", &[("RCCL_NET_SHM", "0"), ("RCCL_NET_THREADS", "2")]);
}

#[test]
fn every_version_over_four_sockets_without_helpers() {
    alone("suite", &[("RCCL_NET_SHM", "0"), ("RCCL_TCP_SOCKETS", "4"), ("RCCL_NET_THREADS", "0")]);
}

#[test]
fn nobody_and_strangers_are_answered_in_time() {
    alone("strangers::suite", &[("RCCL_NET_SHM", "0"), ("RCCL_NET_TIMEOUT_S", "1")]);
}

#[test]
fn processes_talk_whatever_their_versions() {
    alone("processes::suite", &[("RCCL_NET_SHM", "1")]);
    alone("processes::suite", &[("RCCL_NET_SHM", "0")]);
}

#[test]
fn a_setting_that_makes_no_sense_is_named() {
    alone("strangers::nonsense", &[("RCCL_NET_SHM", "perhaps")]);
}

/// Runs the cases over every version, in this process's environment.
#[test]
#[ignore = "run by the tests above, each in an environment of its own"]
fn suite() {
    let library = table::open();
    for version in VERSIONS {
        let api = prepared(library, version);
        cases::devices_are_what_the_machine_has(api);
        cases::sizes(api);
        cases::a_stream_of_messages_stays_in_order(api);
        cases::groups(api);
        cases::a_listener_is_used_again(api);
        cases::a_ring_of_threads(api);
        cases::registration_runs_beside_transfers(api);
        endings::closing_with_requests_outstanding(api);
        endings::deregistering_lets_go_of_memory(api);
        endings::aborting_in_nccls_order(api);
        endings::a_closed_side_is_a_dead_peer(api);
        endings::arguments_that_make_no_sense(api);
    }
    let newest = prepared(library, 12);
    cases::beyond_2_gib(newest);
    cases::many_connections(newest);
    endings::a_fork_leaves_the_parent_alone(newest);
    endings::closed_and_opened_again(library);
    let over = if std::env::var("RCCL_NET_SHM").as_deref() == Ok("0") { "over tcp" } else { "over shm" };
    let other = if over == "over tcp" { "over shm" } else { "over tcp" };
    assert!(table::has_said(&["connected", over]) && !table::has_said(&["connected", other]));
}

/// The table of a version, initialised.
fn prepared(library: *mut std::ffi::c_void, version: u32) -> &'static dyn Api {
    let api = table::table(library, version);
    let context = api.init(table::logger()).expect("init");
    api.finalize(context).expect("finalize");
    api
}
