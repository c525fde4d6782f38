use std::{
    collections::VecDeque,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use proptest::prelude::*;

use super::{format::NONCE_BYTES, *};

/// One end of a connection in memory that takes and gives at most `pace` bytes a call and then would block once.
struct Pipe<'a> {
    reads: &'a mut VecDeque<u8>,
    writes: &'a mut VecDeque<u8>,
    pace: usize,
    rested: bool,
}

impl Pipe<'_> {
    fn ready(&mut self) -> io::Result<()> {
        self.rested = !self.rested;
        if self.rested { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

impl Read for Pipe<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.reads.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.ready()?;
        let limit = buffer.len().min(self.pace);
        self.reads.read(&mut buffer[..limit])
    }
}

impl Write for Pipe<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.ready()?;
        self.writes.write(&bytes[..bytes.len().min(self.pace)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Outcome = Result<PeerHello>;

/// Lets two sides talk in turns until both have a result; also gives what was left unread.
fn converse(mut initiator: Hello, mut responder: Hello, pace: usize) -> (Outcome, Outcome, usize) {
    let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
    let (mut left, mut right) = (None, None);
    for _ in 0..100_000 {
        if left.is_none() {
            let mut pipe = Pipe { reads: &mut back, writes: &mut there, pace, rested: false };
            left = initiator.advance(&mut pipe).transpose();
        }
        if right.is_none() {
            let mut pipe = Pipe { reads: &mut there, writes: &mut back, pace, rested: false };
            right = responder.advance(&mut pipe).transpose();
        }
        if let (Some(_), Some(_)) = (&left, &right) {
            return (left.unwrap(), right.unwrap(), there.len() + back.len());
        }
    }
    panic!("no result: {left:?} {right:?}");
}

fn secret(seed: u8) -> Secret {
    Secret::from_bytes([seed; 32])
}

fn refusal(outcome: Outcome) -> String {
    match outcome {
        Err(error @ Error::Refused { .. }) => error.to_string(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn both_sides_learn_the_others_payload_whatever_the_pace() {
    for pace in [1, 7, 5000] {
        for bytes in [0, 1, MAX_PAYLOAD_BYTES] {
            let (to, back) = (vec![1; bytes], vec![2; MAX_PAYLOAD_BYTES - bytes]);
            let initiator = Hello::initiate(&secret(1), Purpose::TcpChannel, &to).unwrap();
            let responder =
                Hello::respond(&secret(1), Purpose::TcpChannel).unwrap().answering(&back).unwrap();
            let (left, right, unread) = converse(initiator, responder, pace);
            assert_eq!(left.unwrap().payload, back);
            assert_eq!(right.unwrap().payload, to);
            assert_eq!(unread, 0);
        }
    }
}

#[test]
fn a_wrong_secret_is_refused_on_both_sides() {
    let initiator = Hello::initiate(&secret(1), Purpose::Control, b"let me in").unwrap();
    let responder = Hello::respond(&secret(2), Purpose::Control).unwrap().with_peer("10.0.0.1:5");
    let (left, right, _) = converse(initiator, responder, 5000);
    assert!(refusal(left).contains("this side does not know its group's secret"));
    assert_eq!(refusal(right), "10.0.0.1:5 was refused: it does not know this group's secret");
}

#[test]
fn purposes_and_roles_must_match() {
    let initiator = Hello::initiate(&secret(1), Purpose::Control, b"").unwrap();
    let responder = Hello::respond(&secret(1), Purpose::Rendezvous).unwrap();
    let (left, right, _) = converse(initiator, responder, 5000);
    assert!(refusal(left).contains("it wants a rendezvous, this side a control link"));
    assert!(refusal(right).contains("it wants a control link, this side a rendezvous"));
    let [one, other] = [1, 1].map(|seed| Hello::initiate(&secret(seed), Purpose::Control, b"").unwrap());
    let (left, right, _) = converse(one, other, 5000);
    assert!(refusal(left).contains("same end"));
    assert!(refusal(right).contains("same end"));
}

#[test]
fn another_version_is_refused_with_both_versions() {
    let mut initiator = Hello::initiate(&secret(1), Purpose::Control, b"").unwrap();
    initiator.output[8..10].copy_from_slice(&77u16.to_le_bytes());
    let responder = Hello::respond(&secret(1), Purpose::Control).unwrap();
    let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
    let mut pipe = Pipe { reads: &mut back, writes: &mut there, pace: 5000, rested: false };
    assert!(initiator.advance(&mut pipe).unwrap().is_none());
    let mut responder = responder;
    let mut pipe = Pipe { reads: &mut there, writes: &mut back, pace: 5000, rested: false };
    let reason = refusal(
        responder
            .advance(&mut pipe)
            .and_then(|hello| hello.map_or_else(|| responder.advance(&mut pipe).map(Option::unwrap), Ok)),
    );
    assert!(reason.contains("version 77") && reason.contains("version 1;"), "{reason}");
}

/// Answers a responder with `bytes` and then closes.
fn answer(bytes: &[u8]) -> Outcome {
    let (mut stranger, mut stream) = UnixStream::pair().unwrap();
    stranger.write_all(bytes).unwrap();
    stranger.shutdown(std::net::Shutdown::Write).unwrap();
    let responder = Hello::respond(&secret(1), Purpose::Control).unwrap();
    responder.finish(&mut stream, &Deadline::after(Duration::from_secs(60)))
}

#[test]
fn strangers_are_told_apart() {
    let reason = refusal(answer(b"GET / HTTP/1.1\r\n"));
    assert!(reason.contains("a side without rccl") && reason.contains("version 1"), "{reason}");
    for cut in [0, 3, 20, GREETING_BYTES] {
        let greeting = greeting(Purpose::Control, Role::Initiator, &[3; NONCE_BYTES]);
        assert!(matches!(answer(&greeting[..cut]), Err(Error::PeerLost { .. })), "{cut}");
    }
}

#[test]
fn a_replayed_hello_is_refused() {
    let mut initiator = Hello::initiate(&secret(1), Purpose::Control, b"once").unwrap();
    let mut responder = Hello::respond(&secret(1), Purpose::Control).unwrap();
    let (mut recorded, mut there, mut back) = (Vec::new(), VecDeque::new(), VecDeque::new());
    for _ in 0..4 {
        let mut fresh = VecDeque::new();
        let mut pipe = Pipe { reads: &mut back, writes: &mut fresh, pace: 5000, rested: false };
        let _ = initiator.advance(&mut pipe).unwrap();
        recorded.extend(fresh.iter());
        there.extend(fresh);
        let mut pipe = Pipe { reads: &mut there, writes: &mut back, pace: 5000, rested: false };
        if responder.advance(&mut pipe).unwrap().is_some() {
            break;
        }
    }
    assert_eq!(recorded.len(), GREETING_BYTES + HEADER_BYTES + 4 + TAG_BYTES);
    assert!(refusal(answer(&recorded)).contains("does not know this group's secret"));
}

#[test]
fn a_silent_side_runs_into_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let hello = Hello::initiate(&secret(1), Purpose::Control, b"").unwrap().with_peer("rank 3");
    let error = hello.finish(&mut stream, &Deadline::after(Duration::from_millis(5))).unwrap_err();
    assert_eq!(error.to_string(), "a hello from rank 3 did not happen within 5ms");
}

#[test]
fn a_payload_too_long_is_an_error() {
    let long = vec![0; MAX_PAYLOAD_BYTES + 1];
    let error = Hello::initiate(&secret(1), Purpose::Control, &long).unwrap_err();
    assert_eq!(error.to_string(), "the payload of a hello is `1025 bytes`: it can have at most 1024");
}

proptest! {
    #[test]
    fn random_bytes_never_pass(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(check_greeting(&bytes, Purpose::Control, Role::Responder).is_err());
        if let Ok(length) = check_header(&bytes) {
            prop_assert!(length <= MAX_PAYLOAD_BYTES);
        }
    }

    #[test]
    fn a_true_greeting_with_random_bytes_behind_it_never_passes(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
        let mut said = greeting(Purpose::Control, Role::Initiator, &[3; NONCE_BYTES]).to_vec();
        said.extend_from_slice(&[ACCEPTED, 0, 16, 0]);
        said.extend_from_slice(&bytes);
        prop_assert!(answer(&said).is_err());
    }

    #[test]
    fn a_greeting_changed_anywhere_never_passes(at in 0..GREETING_BYTES + HEADER_BYTES + 4 + TAG_BYTES, flip in 1..=255u8) {
        let mut initiator = Hello::initiate(&secret(1), Purpose::Control, b"data").unwrap();
        let mut responder = Hello::respond(&secret(1), Purpose::Control).unwrap();
        let (mut there, mut back, mut sent) = (VecDeque::new(), VecDeque::new(), 0);
        let mut outcome = None;
        for _ in 0..6 {
            let mut fresh = VecDeque::new();
            let mut pipe = Pipe { reads: &mut back, writes: &mut fresh, pace: 5000, rested: false };
            if initiator.advance(&mut pipe).is_err() {
                break;
            }
            for byte in fresh {
                there.push_back(if sent == at { byte ^ flip } else { byte });
                sent += 1;
            }
            let mut pipe = Pipe { reads: &mut there, writes: &mut back, pace: 5000, rested: false };
            match responder.advance(&mut pipe) {
                Ok(None) => {}
                Ok(Some(hello)) => outcome = Some(hello),
                Err(_) => break,
            }
            if outcome.is_some() {
                break;
            }
        }
        prop_assert!(outcome.is_none());
    }
}
