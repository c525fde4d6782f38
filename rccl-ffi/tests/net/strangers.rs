//! Those who do not belong: garbage, other transports, other versions, nobody.

use std::{io::Write, net::TcpStream};

use rccl_ffi::net::handle::Handle;
use rccl_transport::tcp;

use crate::{
    pair::{Pair, pattern, refusal, until},
    table::{self, Api, INVALID_USAGE, Object, REMOTE, has_said},
};

/// With a deadline of a second.
#[test]
#[ignore = "run by main.rs in an environment of its own"]
fn suite() {
    let api = crate::prepared(table::open(), 12);
    garbage_disturbs_nobody(api);
    handles_of_others_are_refused(api);
    nobody_comes(api);
    nobody_accepts(api);
}

/// Whoever connects to a listener and speaks something else is dropped, and who is silent disturbs nobody.
fn garbage_disturbs_nobody(api: &'static dyn Api) {
    let mut handle = [0; 128];
    let listener = api.listen(0, &mut handle).unwrap();
    let address = tcp::candidates(&Handle::decode(&handle).unwrap().tcp).unwrap()[0];
    let _silent = TcpStream::connect(address).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"\x8frccl").unwrap();
    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(&[0x47; 4096]).unwrap();
    let pair = Pair::through(api, listener, &handle);
    until("a line about the stranger", || {
        assert!(api.accept(listener).unwrap().is_null());
        has_said(&["dropped a connection", "did not authenticate"]).then_some(())
    });
    pair.exchange(pattern(1, 100_000));
    pair.close();
    api.close_listener(listener).unwrap();
}

fn handles_of_others_are_refused(api: &'static dyn Api) {
    let mut handle = [0; 128];
    let listener = api.listen(0, &mut handle).unwrap();
    let mut newer = handle;
    newer[8] += 1;
    assert_eq!(refusal(api.connect(Object::NULL, 0, &mut [2; 128])), REMOTE);
    assert!(has_said(&["connect: ", "has not loaded this plugin"]));
    assert_eq!(refusal(api.connect(Object::NULL, 0, &mut newer)), REMOTE);
    assert!(has_said(&["speaks version 2, this one 1"]));
    let mut secret = handle;
    secret[10] = 1;
    assert_eq!(refusal(api.connect(Object::NULL, 0, &mut secret)), INVALID_USAGE);
    assert!(has_said(&["RCCL_SECRET", "set on the other rank"]));
    // Another key is another secret: both sides are told.
    let mut stranger = handle;
    stranger[13] ^= 1;
    let code = until("a refusal", || {
        assert!(api.accept(listener).unwrap().is_null());
        api.connect(Object::NULL, 0, &mut stranger).err()
    });
    assert_eq!(code, REMOTE);
    assert!(has_said(&["connect: ", "secret"]));
    // A number that another attempt has, or none, in a handle starts afresh.
    let mut forged = handle;
    forged[120..].copy_from_slice(&u64::MAX.to_le_bytes());
    Pair::through(api, listener, &forged).close();
    api.close_listener(listener).unwrap();
}

fn nobody_comes(api: &'static dyn Api) {
    let listener = api.listen(0, &mut [0; 128]).unwrap();
    let code = until("the deadline", || match api.accept(listener) {
        Ok(connection) => connection.is_null().then_some(None)?,
        Err(code) => Some(code),
    });
    assert_eq!(code, REMOTE);
    assert!(has_said(&["accept: no rank connected", "within 1s", "has every rank loaded this version"]));
    api.close_listener(listener).unwrap();
}

fn nobody_accepts(api: &'static dyn Api) {
    let mut handle = [0; 128];
    let listener = api.listen(0, &mut handle).unwrap();
    let code = until("the deadline", || match api.connect(Object::NULL, 0, &mut handle) {
        Ok(connection) => connection.is_null().then_some(None)?,
        Err(code) => Some(code),
    });
    assert_eq!(code, REMOTE);
    assert!(has_said(&["connect: ", "did not answer within 1s"]), "{}", table::said());
    api.close_listener(listener).unwrap();
}

/// `init` fails, so that NCCL skips the plugin, and says which variable.
#[test]
#[ignore = "run by main.rs in an environment of its own"]
fn nonsense() {
    let api = table::table(table::open(), 12);
    assert_eq!(api.init(table::logger()), Err(INVALID_USAGE));
    assert!(has_said(&["init: RCCL_NET_SHM is `perhaps`"]));
}
