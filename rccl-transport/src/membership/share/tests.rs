use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{
    super::tests::{LONG, with_group},
    *,
};

fn deadline() -> Deadline {
    Deadline::after(LONG)
}

fn memfd(len: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file
}

/// Shares a file of rank 1 among `among` of 4, and checks that what one writes all others read.
fn share_and_use(means: &(dyn Fn() -> Means + Sync), among: &[u32]) {
    with_group(4, |mut membership| {
        let own = membership.group.rank();
        if among.contains(&own.0) {
            let ranks: Vec<Rank> = among.iter().map(|rank| Rank(*rank)).collect();
            let file = (own.0 == 1).then(|| memfd(4096));
            let shared = membership.share_by(&means(), Rank(1), &ranks, file, &deadline()).unwrap();
            let file = File::from(shared.file);
            assert_eq!(file.metadata().unwrap().len(), 4096);
            file.write_all_at(&[own.0 as u8 + 1], u64::from(own.0)).unwrap();
            membership.all_gather(b"", &deadline()).unwrap();
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!((0..4).all(|rank| (bytes[rank as usize] == rank + 1) == among.contains(&rank.into())));
        } else {
            membership.all_gather(b"", &deadline()).unwrap();
        }
    });
}

#[test]
fn the_leaders_file_reaches_all_or_some() {
    let means = || Means { socket: true, directory: None };
    share_and_use(&means, &[0, 1, 2, 3]);
    share_and_use(&means, &[3, 1]);
    share_and_use(&means, &[1]);
}

#[test]
fn a_directory_takes_the_place_of_the_socket_and_is_left_empty() {
    let directory = tempfile::tempdir().unwrap();
    share_and_use(&|| Means { socket: false, directory: Some(directory.path().into()) }, &[0, 1, 2, 3]);
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn without_socket_and_directory_everyone_learns_what_would_help() {
    let errors = with_group(2, |mut membership| {
        let file = (membership.group.rank().0 == 0).then(|| memfd(1));
        let means = Means { socket: false, directory: None };
        let ranks = [Rank(0), Rank(1)];
        let error = membership.share_by(&means, Rank(0), &ranks, file, &deadline()).unwrap_err().to_string();
        // The links are still good.
        membership.all_gather(b"x", &deadline()).unwrap();
        error
    });
    for error in errors {
        assert!(
            error.starts_with("memory shared between processes of this host cannot be used here"),
            "{error}"
        );
        assert!(error.contains("RCCL_SHM_DIR is not set: set it to a directory"), "{error}");
    }
}

#[test]
fn a_member_without_the_directory_is_named_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let errors = with_group(2, |mut membership| {
        let own = membership.group.rank().0;
        let means = Means { socket: false, directory: (own == 0).then(|| directory.path().into()) };
        let file = (own == 0).then(|| memfd(1));
        membership.share_by(&means, Rank(0), &[Rank(0), Rank(1)], file, &deadline()).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("rank 1: RCCL_SHM_DIR is not set"), "{error}");
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn arguments_must_fit_together() {
    with_group(2, |mut membership| {
        let mut refusal = |leader, among: &[u32], file| {
            let among: Vec<Rank> = among.iter().map(|rank| Rank(*rank)).collect();
            membership.share_file(Rank(leader), &among, file, &deadline()).unwrap_err().to_string()
        };
        assert!(refusal(0, &[0, 1, 2], None).contains("rank 2 is not on the host"));
        assert!(refusal(0, &[1], None).contains("they must include the leader 0"));
        assert!(refusal(0, &[], None).contains("they must include"));
        let own = membership.group.rank();
        let file = (own.0 == 1).then(|| memfd(1));
        let error = membership.share_file(Rank(0), &[Rank(0), Rank(1)], file, &deadline()).unwrap_err();
        assert!(error.to_string().contains("it alone, gives the file"), "{error}");
    });
}

#[test]
fn doing_different_things_is_noticed() {
    let errors = with_group(2, |mut membership| {
        if membership.group.rank().0 == 0 {
            membership.share_file(Rank(1), &[Rank(0), Rank(1)], None, &deadline()).unwrap_err()
        } else {
            membership.all_gather(b"", &Deadline::after(std::time::Duration::from_millis(50))).unwrap_err()
        }
    });
    let text = errors[0].to_string();
    assert!(
        text.contains("takes part in an all-gather while this rank takes part in the sharing of a file"),
        "{text}"
    );
}

#[test]
fn the_variable_must_name_a_directory() {
    for value in ["", "relative", "/nonexistent/directory", "/dev/null"] {
        let error = Means::from_variable(Some(value.into())).err().unwrap().to_string();
        assert_eq!(error, format!("RCCL_SHM_DIR is `{value}`: it is no absolute path of a directory"));
    }
    assert!(Means::from_variable(Some("/tmp".into())).is_ok());
}

#[test]
fn a_socket_that_is_not_there_is_explained() {
    let secret = Secret::random().unwrap();
    let error = take(&random_name().unwrap(), &secret, Rank(0), &deadline()).unwrap_err();
    assert!(error.contains("Connection refused") && error.contains("another network namespace?"), "{error}");
}

#[test]
fn another_file_and_a_strange_name_are_noticed() {
    let shared = identify(memfd(1)).unwrap();
    assert!(verify(memfd(1), shared.device, shared.inode).unwrap_err().contains("another file"));
    let means = Means { socket: false, directory: Some("/tmp".into()) };
    assert!(open(&means, "../etc/passwd").unwrap_err().contains("name for the file is none"));
    assert!(open(&means, "rccl-gone").unwrap_err().contains("/tmp/rccl-gone"));
}

#[test]
fn messages_come_back_and_nonsense_is_an_error() {
    let text = String::from;
    let offer = Message::Offer { name: text("rccl-1"), device: 1, inode: u64::MAX };
    for message in [Message::Done, Message::Failed(text("so")), offer] {
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes).unwrap(), message);
        assert!((0..bytes.len()).all(|cut| Message::decode(&bytes[..cut]).is_err()));
    }
    assert!(Message::decode(&[9]).is_err());
}
