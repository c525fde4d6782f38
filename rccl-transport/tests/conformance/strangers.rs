//! Those who connect and do not belong.

use rccl_transport::{Error, channel::Part};

use crate::subject::Subject;

/// Garbage is counted, and neither it nor silence, half a hello or hanging up disturbs anybody.
pub(crate) fn strangers_are_harmless(subject: &Subject) {
    let Some(knock) = subject.knock else { return };
    let mut listener = subject.far.listen().unwrap();
    let address = listener.address();
    let silent = knock(&address);
    let mut half = knock(&address);
    half.write_all(b"\x8frccl").unwrap();
    let mut garbage = knock(&address);
    garbage.write_all(&[0x47; 4096]).unwrap();
    drop(knock(&address));
    let mut ends = subject.channel_to(&mut *listener);
    subject.until("counting the garbage", || {
        assert!(listener.poll_accept().unwrap().is_none());
        (listener.strangers() >= 1).then_some(())
    });
    let room = subject.zeroed(8);
    ends.1.post(&[Part { slice: room.slice(0..8), tag: 0 }]).unwrap().unwrap();
    ends.0.post(&subject.message(vec![1; 8]), 0).unwrap().unwrap();
    subject.both(&mut ends);
    drop((silent, half));
    subject.channel_to(&mut *listener);
}

/// Who does not know the secret is refused, and who does is not disturbed.
pub(crate) fn the_secret_is_needed(subject: &Subject) {
    let Some(wrong) = &subject.wrong else { return };
    let mut listener = subject.far.listen().unwrap();
    let mut connecting = wrong.connect(&listener.address()).unwrap();
    let error = subject.until("a refusal", || {
        assert!(listener.poll_accept().unwrap().is_none());
        connecting.poll().err()
    });
    assert!(matches!(error, Error::Refused { .. } | Error::PeerLost { .. }), "{}: {error}", subject.name);
    subject.until("counting the stranger", || {
        assert!(listener.poll_accept().unwrap().is_none());
        (listener.strangers() == 1).then_some(())
    });
    subject.channel_to(&mut *listener);
    assert_eq!(listener.strangers(), 1);
}
