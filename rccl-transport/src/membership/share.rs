//! One file for several members of a host: the leader's descriptor is passed to the others.
//!
//! The leader tells the others, over the links, the random name of an abstract unix socket; they connect, authenticate and
//! are passed the descriptor (`SCM_RIGHTS`). Each compares device and inode with what the leader said and reports. Where the
//! socket cannot be reached, as between network namespaces, a file in `RCCL_SHM_DIR` takes its place: created for the leader
//! alone, opened by the others, and unlinked before anybody uses it. Either way nothing is left behind, even after a crash
//! in all but that last moment.

use std::{
    ffi::OsString,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::PathBuf,
};

use rccl_core::Rank;

use super::{Kind, Membership};
use crate::{
    Error, Purpose, Result, Secret,
    deadline::{Deadline, wait},
    member::ranks_text,
    reception::{PATIENCE, Reception},
    secret::random_bytes,
    sys::passing::pass,
    wire::{Decoder, Encoder, Malformed},
};

mod descriptor;

use descriptor::{create, identify, listen, open, take, verify};

/// Names a directory that the processes of a host share, for where they cannot reach each other's unix sockets.
pub const SHM_DIR_VARIABLE: &str = "RCCL_SHM_DIR";

const MAX_TEXT_BYTES: usize = 64 << 10;

/// A file that several members have open. All of them were found to have the same device and inode.
#[derive(Debug)]
pub struct SharedFile {
    /// This member's own descriptor of it.
    pub file: OwnedFd,
    /// The device it is on.
    pub device: u64,
    /// Its number on the device.
    pub inode: u64,
}

/// The ways to share a file.
struct Means {
    socket: bool,
    directory: Option<PathBuf>,
}

impl Means {
    fn from_variable(directory: Option<OsString>) -> Result<Self> {
        let directory = directory.map(PathBuf::from);
        if let Some(path) = directory.as_ref().filter(|path| !path.is_absolute() || !path.is_dir()) {
            return Err(Error::Invalid {
                what: SHM_DIR_VARIABLE.into(),
                value: path.display().to_string(),
                reason: "it is no absolute path of a directory".into(),
            });
        }
        Ok(Self { socket: true, directory })
    }
}

/// What leader and followers tell each other.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    /// All is well.
    Done,
    /// It did not work, and why.
    Failed(String),
    /// The file with this identity can be had under this name.
    Offer { name: String, device: u64, inode: u64 },
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        match self {
            Self::Done => encoder.u8(0),
            Self::Failed(why) => encoder.u8(1).bytes(why.as_bytes()),
            Self::Offer { name, device, inode } => {
                encoder.u8(2).bytes(name.as_bytes()).u64(*device).u64(*inode)
            }
        };
        encoder.0
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let message = match decoder.u8()? {
            0 => Self::Done,
            1 => Self::Failed(decoder.text(MAX_TEXT_BYTES)?),
            2 => Self::Offer {
                name: decoder.text(MAX_TEXT_BYTES)?,
                device: decoder.u64()?,
                inode: decoder.u64()?,
            },
            kind => return Err(Malformed(format!("a message of the unknown kind {kind}"))),
        };
        decoder.end()?;
        Ok(message)
    }
}

/// A result that is told to others, as text where it is an error.
type Told<T> = std::result::Result<T, String>;

impl Membership {
    /// Shares the file of `leader` with the ranks `among` (the leader, this one and any others, all of one host). All of
    /// them call it, the leader with the `file`, the others without. It must be new: in `RCCL_SHM_DIR`, where the others
    /// cannot be passed a descriptor, all get another file of the same length, so bytes written before may be lost and the
    /// leader too uses the file it gets back. Blocks until every one has it.
    ///
    /// # Errors
    /// [`Error::Unavailable`], on all of them, if a member cannot be passed the file, with the reason and what would help;
    /// [`Error::Invalid`] if the arguments do not fit together or `RCCL_SHM_DIR` is no directory; otherwise as
    /// [`Membership::all_gather`].
    pub fn share_file(
        &mut self,
        leader: Rank,
        among: &[Rank],
        file: Option<OwnedFd>,
        deadline: &Deadline,
    ) -> Result<SharedFile> {
        let means = Means::from_variable(std::env::var_os(SHM_DIR_VARIABLE))?;
        self.share_by(&means, leader, among, file, deadline)
    }

    fn share_by(
        &mut self,
        means: &Means,
        leader: Rank,
        among: &[Rank],
        file: Option<OwnedFd>,
        deadline: &Deadline,
    ) -> Result<SharedFile> {
        let own = self.group.rank();
        let invalid = |reason: String| Error::Invalid {
            what: "the ranks to share a file".into(),
            value: ranks_text(among.iter().copied()),
            reason,
        };
        if let Some(rank) = among.iter().find(|rank| rank.0 >= self.group.size() || !self.same_host(**rank)) {
            return Err(invalid(format!("rank {rank} is not on the host of rank {own}")));
        }
        if !among.contains(&leader) || !among.contains(&own) {
            return Err(invalid(format!("they must include the leader {leader} and this rank {own}")));
        }
        match file {
            Some(file) if own == leader => {
                let mut others: Vec<Rank> = among.iter().copied().filter(|rank| *rank != own).collect();
                others.sort();
                others.dedup();
                self.lead(means, &others, file, deadline)
            }
            None if own != leader => self.follow(means, leader, deadline),
            _ => Err(invalid(format!("the leader {leader}, and it alone, gives the file"))),
        }
    }

    fn lead(
        &mut self,
        means: &Means,
        others: &[Rank],
        file: OwnedFd,
        deadline: &Deadline,
    ) -> Result<SharedFile> {
        let shared = identify(file)?;
        let name = random_name()?;
        let door = if means.socket { listen(&name) } else { Err("sockets are not used".into()) };
        let offer = match &door {
            Ok(_) => Message::Offer { name: name.clone(), device: shared.device, inode: shared.inode },
            Err(why) => Message::Failed(why.clone()),
        };
        self.tell(others, &offer, deadline)?;
        let secret = passing_secret(&self.secret, &name);
        let doors = door.into_iter().collect();
        let mut reception = Reception::new(doors, &secret, Purpose::FilePassing, b"", PATIENCE);
        let by_socket = self.serve(&mut reception, others, &shared.file, deadline)?;
        drop(reception);
        let Err(why_no_socket) = by_socket else {
            self.tell(others, &Message::Done, deadline)?;
            return Ok(shared);
        };
        let (outcome, why) = match create(means, &name, &shared.file) {
            Ok((replacement, entry)) => {
                let SharedFile { device, inode, .. } = replacement;
                self.tell(others, &Message::Offer { name, device, inode }, deadline)?;
                let opened = self.hear(others, deadline)?;
                drop(entry);
                opened.map_or_else(|why| (None, why), |()| (Some(replacement), String::new()))
            }
            Err(why) => (None, why),
        };
        let verdict = outcome
            .as_ref()
            .map_or_else(|| Message::Failed(format!("{why_no_socket}; {why}")), |_| Message::Done);
        self.tell(others, &verdict, deadline)?;
        match (outcome, verdict) {
            (Some(shared), _) => Ok(shared),
            (None, Message::Failed(reason)) => Err(unavailable(reason)),
            (None, _) => unreachable!("without a file the verdict is a failure"),
        }
    }

    fn follow(&mut self, means: &Means, leader: Rank, deadline: &Deadline) -> Result<SharedFile> {
        let mut taken = match self.told(leader, deadline)? {
            Message::Offer { name, device, inode } => {
                let secret = passing_secret(&self.secret, &name);
                let me = self.group.rank();
                take(&name, &secret, me, deadline).and_then(|file| verify(file, device, inode))
            }
            Message::Failed(why) => Err(format!("the leader could not listen: {why}")),
            Message::Done => Err("the leader offered nothing".into()),
        };
        self.report(leader, &taken, deadline)?;
        let mut verdict = self.told(leader, deadline)?;
        if let Message::Offer { name, device, inode } = &verdict {
            taken = open(means, name).and_then(|file| verify(file, *device, *inode));
            self.report(leader, &taken, deadline)?;
            verdict = self.told(leader, deadline)?;
        }
        match (verdict, taken) {
            (Message::Done, Ok(shared)) => Ok(shared),
            (Message::Failed(reason), _) | (_, Err(reason)) => Err(unavailable(reason)),
            (Message::Offer { .. }, _) => Err(unavailable("the leader offered a third way".into())),
        }
    }

    fn tell(&mut self, ranks: &[Rank], message: &Message, deadline: &Deadline) -> Result<()> {
        self.exchange(Kind::Share, Some((ranks, &message.encode())), &[], deadline).map(drop)
    }

    fn report(&mut self, leader: Rank, outcome: &Told<SharedFile>, deadline: &Deadline) -> Result<()> {
        let message = outcome.as_ref().map_or_else(|why| Message::Failed(why.clone()), |_| Message::Done);
        self.tell(&[leader], &message, deadline)
    }

    fn told(&mut self, leader: Rank, deadline: &Deadline) -> Result<Message> {
        let received = self.exchange(Kind::Share, None, &[leader], deadline)?;
        self.read(leader, &received)
    }

    /// Hears whether it worked out for everyone; the reasons of those for whom it did not.
    fn hear(&mut self, ranks: &[Rank], deadline: &Deadline) -> Result<Told<()>> {
        let received = self.exchange(Kind::Share, None, ranks, deadline)?;
        self.outcomes(ranks, &received)
    }

    /// [`Membership::hear`], passing the file to everyone who comes for it meanwhile.
    fn serve(
        &mut self,
        reception: &mut Reception<UnixListener>,
        ranks: &[Rank],
        file: &OwnedFd,
        deadline: &Deadline,
    ) -> Result<Told<()>> {
        let mut reports = self.start(Kind::Share, None, ranks)?;
        loop {
            for guest in reception.advance()? {
                // Its own report says whether it got the file.
                if let Err(errno) = pass(&guest.stream, file) {
                    tracing::debug!("passing a file to {}: {errno}", guest.from);
                }
            }
            if self.advance(&mut reports)? {
                return self.outcomes(ranks, &reports.into_received());
            }
            let mut descriptors = Vec::new();
            reception.watch(&mut descriptors);
            reports.watch(&self.links, &mut descriptors);
            let until = reception.wake().map_or(*deadline, |left| deadline.at_most(left));
            wait(&mut descriptors, &until)?;
            if deadline.is_over() {
                return Err(self.late(&reports, deadline));
            }
        }
    }

    fn outcomes(&self, ranks: &[Rank], received: &[Vec<u8>]) -> Result<Told<()>> {
        let mut failures = Vec::new();
        for &rank in ranks {
            match self.read(rank, received)? {
                Message::Done => {}
                Message::Failed(why) => failures.push(format!("rank {rank}: {why}")),
                Message::Offer { .. } => failures.push(format!("rank {rank}: it thinks that it leads")),
            }
        }
        Ok(if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) })
    }

    fn read(&self, rank: Rank, received: &[Vec<u8>]) -> Result<Message> {
        Message::decode(&received[rank.index()]).map_err(|Malformed(reason)| Error::Refused {
            peer: self.members[rank.index()].to_string(),
            reason,
        })
    }
}

fn unavailable(reason: String) -> Error {
    Error::Unavailable { what: "memory shared between processes of this host".into(), reason }
}

fn passing_secret(group: &Secret, name: &str) -> Secret {
    group.derive_from("file passing", name.as_bytes())
}

fn random_name() -> Result<String> {
    let bytes: [u8; 16] = random_bytes()?;
    Ok(bytes.iter().fold("rccl-".to_owned(), |name, byte| format!("{name}{byte:02x}")))
}

#[cfg(test)]
mod tests;
