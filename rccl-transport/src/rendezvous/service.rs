//! The root's thread: one poll loop over everyone who is connected.

use std::{
    collections::BTreeMap,
    io::Read,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rccl_core::{Group, Rank};
use rustix::event::{PollFd, PollFlags};

use super::{Answer, MAX_REGISTRATION_BYTES, Registration, RootOptions};
use crate::{
    Result,
    deadline::{Deadline, wait},
    member::{Member, ranks_text},
    reception::{Guest, Reception},
    secret::random_bytes,
    wire::{FrameReader, FrameWriter},
};

/// How long a member may take to read its answer.
const FAREWELL: Duration = Duration::from_secs(10);

pub(super) struct Service {
    reception: Reception<TcpListener>,
    wake: Arc<OwnedFd>,
    strangers: Arc<AtomicU64>,
    deadline: Deadline,
    patience: Duration,
    nonce: [u8; 32],
    visitors: Vec<Visitor>,
    /// Those who have introduced themselves, while the group gathers.
    members: BTreeMap<Rank, Registered>,
    /// The first one's word for the size of the group.
    size: Option<(u32, String)>,
    leaving: Vec<Leaving>,
    /// What everyone was told; those who come later are told it too.
    verdict: Option<Verdict>,
}

enum Verdict {
    Complete,
    Failed(FrameWriter),
}

/// Authenticated, but has not introduced itself yet.
struct Visitor {
    stream: TcpStream,
    from: String,
    reader: FrameReader,
    deadline: Deadline,
}

struct Registered {
    stream: TcpStream,
    member: Member,
    answer_by: Deadline,
    deadline_ms: u64,
}

/// Is being told the answer.
struct Leaving {
    stream: TcpStream,
    answer: FrameWriter,
    deadline: Deadline,
}

impl Service {
    pub(super) fn new(
        reception: Reception<TcpListener>,
        wake: Arc<OwnedFd>,
        strangers: Arc<AtomicU64>,
        options: &RootOptions,
    ) -> Result<Self> {
        Ok(Self {
            reception,
            wake,
            strangers,
            deadline: Deadline::after(options.deadline),
            patience: options.patience,
            nonce: random_bytes()?,
            visitors: Vec::new(),
            members: BTreeMap::new(),
            size: None,
            leaving: Vec::new(),
            verdict: None,
        })
    }

    pub(super) fn run(mut self) {
        loop {
            let dropped = matches!(rustix::io::read(&*self.wake, &mut [0; 8]), Ok(8));
            if dropped {
                self.fail(&Answer::Lost {
                    peer: "the root of the group".into(),
                    cause: format!("it was closed before {} came", self.missing()),
                });
            }
            let over = dropped || self.deadline.is_over();
            if let Err(error) = self.advance() {
                tracing::warn!("the root of the group stops: {error}");
                self.fail(&Answer::Lost { peer: "the root of the group".into(), cause: error.to_string() });
                return;
            }
            let told = matches!(self.verdict, Some(Verdict::Complete)) && self.leaving.is_empty();
            if told || over {
                return;
            }
            if let Err(error) = self.sleep() {
                tracing::warn!("the root of the group stops: {error}");
                return;
            }
        }
    }

    /// Waits until something happens or somebody's time is up.
    fn sleep(&self) -> Result<()> {
        let mut descriptors = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        self.reception.watch(&mut descriptors);
        let readable = |stream| PollFd::from_borrowed_fd(TcpStream::as_fd(stream), PollFlags::IN);
        descriptors.extend(self.visitors.iter().map(|visitor| readable(&visitor.stream)));
        descriptors.extend(self.members.values().map(|registered| readable(&registered.stream)));
        descriptors.extend(
            self.leaving
                .iter()
                .map(|leaving| PollFd::from_borrowed_fd(leaving.stream.as_fd(), PollFlags::OUT)),
        );
        let times = self
            .visitors
            .iter()
            .map(|visitor| &visitor.deadline)
            .chain(self.members.values().map(|registered| &registered.answer_by))
            .chain(self.leaving.iter().map(|leaving| &leaving.deadline));
        let first = times.map(Deadline::remaining).chain(self.reception.wake()).min();
        let until = first.map_or(self.deadline, |left| self.deadline.at_most(left));
        wait(&mut descriptors, &until).map(drop)
    }

    fn advance(&mut self) -> Result<()> {
        for Guest { stream, from, .. } in self.reception.advance()? {
            let deadline = Deadline::after(self.patience);
            self.visitors.push(Visitor {
                stream,
                from,
                reader: FrameReader::new(MAX_REGISTRATION_BYTES),
                deadline,
            });
        }
        self.hear_visitors();
        self.check_members();
        self.complete();
        self.leaving.retain_mut(|leaving| {
            matches!(leaving.answer.advance(&mut leaving.stream), Ok(false)) && !leaving.deadline.is_over()
        });
        self.strangers.store(self.reception.strangers(), Ordering::Relaxed);
        Ok(())
    }

    fn hear_visitors(&mut self) {
        let mut introduced = Vec::new();
        let mut still = Vec::new();
        for mut visitor in std::mem::take(&mut self.visitors) {
            match visitor.reader.advance(&mut visitor.stream) {
                Ok(None) if !visitor.deadline.is_over() => still.push(visitor),
                Ok(Some(frame)) => match Registration::decode(&frame) {
                    Ok(registration) => introduced.push((visitor.stream, registration)),
                    Err(error) => self.dismiss(&visitor.from, &error),
                },
                // A member that reached the root at two addresses at once keeps one and closes the other.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
                Ok(None) => self.dismiss(&visitor.from, &"no introduction in time"),
                Err(error) => self.dismiss(&visitor.from, &error),
            }
        }
        self.visitors = still;
        for (stream, registration) in introduced {
            self.register(stream, registration);
        }
    }

    fn dismiss(&mut self, from: &str, why: &dyn std::fmt::Display) {
        tracing::debug!("dropped {from}: {why}");
        self.reception.count_stranger();
    }

    fn register(&mut self, stream: TcpStream, registration: Registration) {
        if let Some(Verdict::Failed(answer)) = &self.verdict {
            self.leaving.push(Leaving {
                stream,
                answer: answer.clone(),
                deadline: Deadline::after(FAREWELL),
            });
            return;
        }
        let Registration { size, answer_within_ms, deadline_ms, member } = registration;
        let misfit = self.misfit(size, &member);
        let answer_by = Deadline::after(Duration::from_millis(answer_within_ms));
        if let Some(answer) = misfit {
            self.fail(&answer);
            if let Some(Verdict::Failed(answer)) = &self.verdict {
                self.leaving.push(Leaving {
                    stream,
                    answer: answer.clone(),
                    deadline: Deadline::after(FAREWELL),
                });
            }
            return;
        }
        self.size.get_or_insert_with(|| (size, member.to_string()));
        self.members.insert(member.rank, Registered { stream, member, answer_by, deadline_ms });
    }

    /// Why `member` cannot be one of the group that has gathered so far.
    fn misfit(&self, size: u32, member: &Member) -> Option<Answer> {
        let refused =
            |reason: String| Some(Answer::Refused { peer: format!("rank {}", member.rank), reason });
        if matches!(self.verdict, Some(Verdict::Complete)) {
            return refused(format!("{} came after the group was complete", member.place()));
        }
        if Group::new(size, member.rank.0).is_err() {
            let place = member.place();
            return refused(format!("{place} says that it is rank {} of a group of {size}", member.rank));
        }
        if let Some((known, who)) = self.size.as_ref().filter(|(known, _)| *known != size) {
            return refused(format!(
                "{who} says that the group has {known} ranks, {member} that it has {size}"
            ));
        }
        let other = &self.members.get(&member.rank)?.member;
        refused(format!(
            "{} and {} both say that they are rank {}",
            other.place(),
            member.place(),
            member.rank
        ))
    }

    /// Looks for members that have gone away or whose time is up.
    fn check_members(&mut self) {
        let gone = self.members.values_mut().find_map(|registered| match registered.stream.read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Ok(0) => Some((registered.member.to_string(), "it closed the connection".to_owned())),
            Ok(_) => Some((registered.member.to_string(), "it spoke out of turn".to_owned())),
            Err(error) => Some((registered.member.to_string(), error.to_string())),
        });
        if self.is_complete() {
            return;
        }
        if let Some((peer, why)) = gone {
            let cause = format!("{why} while the group waited for {}", self.missing());
            return self.fail(&Answer::Lost { peer, cause });
        }
        let late = self.members.values().find(|registered| registered.answer_by.is_over());
        let late = late.map(|registered| registered.deadline_ms);
        let own = u64::try_from(self.deadline.length().as_millis()).ok().filter(|_| self.deadline.is_over());
        if let Some(after_ms) = late.or(own) {
            let size = self.size.as_ref().map_or(0, |(size, _)| *size);
            let waiting_for = format!("the arrival of {} (of a group of {size})", self.missing());
            self.fail(&Answer::Late { waiting_for, after_ms });
        }
    }

    fn is_complete(&self) -> bool {
        self.size.as_ref().is_some_and(|(size, _)| *size as usize == self.members.len())
    }

    fn complete(&mut self) {
        if !self.is_complete() {
            return;
        }
        let members = std::mem::take(&mut self.members);
        let (streams, members) =
            members.into_values().map(|registered| (registered.stream, registered.member)).unzip();
        self.answer(streams, &FrameWriter::new(&Answer::Table { nonce: self.nonce, members }.encode()));
        self.verdict = Some(Verdict::Complete);
    }

    /// Ends the gathering, unless it has ended, and tells everyone why.
    fn fail(&mut self, answer: &Answer) {
        if self.verdict.is_some() {
            return;
        }
        let answer = FrameWriter::new(&answer.encode());
        let members = std::mem::take(&mut self.members);
        self.answer(members.into_values().map(|registered| registered.stream).collect(), &answer);
        self.verdict = Some(Verdict::Failed(answer));
    }

    fn answer(&mut self, streams: Vec<TcpStream>, answer: &FrameWriter) {
        let deadline = Deadline::after(FAREWELL);
        self.leaving.extend(streams.into_iter().map(|mut stream| {
            let mut answer = answer.clone();
            // Mostly that is all; what is left, or wrong, is dealt with in the loop.
            let _ = answer.advance(&mut stream);
            Leaving { stream, answer, deadline }
        }));
    }

    fn missing(&self) -> String {
        match &self.size {
            None => "any rank".into(),
            Some((size, _)) => {
                ranks_text((0..*size).map(Rank).filter(|rank| !self.members.contains_key(rank)))
            }
        }
    }
}
