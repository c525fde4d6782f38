//! Connecting a verbs channel: a tcp connection, then the first pair of addresses over which packets are answered.

use std::{net::SocketAddr, sync::Arc};

use super::{
    DEPTH, Options,
    device::Opened,
    exchange::{Frame, Numbers, Place},
    gid::{self, GidKind},
    info::LinkLayer,
    link::Link,
    pairs::{End, Pairs, Way},
    send::Sender,
};
use crate::{
    Error, Hello, Purpose, Result, Secret,
    channel::{Connecting, SendChannel},
    connect::{Connected, Race},
    deadline::Deadline,
    ends::Sending,
    tcp::{self, ListenerId},
};

/// How long connecting may take in all.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// How long one pair of addresses may take.
pub(super) const WAY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(12);

/// A channel being connected.
#[derive(Debug)]
pub(super) struct Dialing {
    device: Arc<Opened>,
    options: Options,
    deadline: Deadline,
    peer: String,
    /// The pairs of addresses that are left to try.
    ways: std::vec::IntoIter<Way>,
    attempts: u32,
    failures: Vec<String>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Racing(Box<Race>),
    /// The other side owes its place.
    Meeting(Link),
    /// The other side has been told which way to try.
    Trying(Link, Box<Attempt>),
    Over,
}

/// One pair of addresses being tried.
#[derive(Debug)]
struct Attempt {
    way: Way,
    pairs: Pairs,
    deadline: Deadline,
    /// The other side's queue pairs, once it has told them.
    theirs: Option<Numbers>,
    /// Packets that are still to be answered, once they have been sent.
    unanswered: Option<usize>,
}

impl Dialing {
    pub(super) fn new(
        device: &Arc<Opened>,
        options: &Options,
        listener: ListenerId,
        candidates: &[SocketAddr],
        secret: &Secret,
    ) -> Result<Self> {
        let secret = tcp::listener_secret(secret, listener);
        let greet =
            move |peer| Ok(Some(Hello::initiate(&secret, Purpose::VerbsChannel, &[])?.with_peer(peer)));
        Ok(Self {
            device: Arc::clone(device),
            options: options.clone(),
            deadline: Deadline::after(PATIENCE),
            peer: "the listener".into(),
            ways: Vec::new().into_iter(),
            attempts: 0,
            failures: Vec::new(),
            stage: Stage::Racing(Box::new(Race::new("the listener", candidates, Box::new(greet))?)),
        })
    }

    fn lost(&self, cause: impl ToString) -> Error {
        Error::PeerLost { peer: self.peer.clone(), cause: cause.to_string() }
    }

    /// Moves on as far as possible. The stage is `Over` after an error and at the end.
    fn step(&mut self) -> Result<Option<Sender>> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Racing(mut race) => {
                    let Some(Connected { stream, address }) = race.advance()? else {
                        self.stage = Stage::Racing(race);
                        return Ok(None);
                    };
                    tcp::prepare(&stream)?;
                    self.peer = address.to_string();
                    let mut link = Link::new(stream);
                    let place = place(&self.device, &self.options)?;
                    link.say(&Frame::Place(place)).map_err(|fault| fault.error(&self.peer))?;
                    self.stage = Stage::Meeting(link);
                }
                Stage::Meeting(mut link) => match link.hear().map_err(|fault| fault.error(&self.peer))? {
                    None => {
                        self.stage = Stage::Meeting(link);
                        return Ok(None);
                    }
                    Some(Frame::Place(theirs)) => {
                        let ours = place(&self.device, &self.options)?;
                        self.peer = format!("{} ({})", self.peer, theirs.name);
                        self.ways = self.ways_to(&ours, &theirs)?.into_iter();
                        self.stage = self.next_way(link)?;
                    }
                    Some(Frame::Broken { why }) => return Err(self.lost(why)),
                    Some(other) => {
                        return Err(self.lost(format!("protocol: {other:?} where its place is due")));
                    }
                },
                Stage::Trying(link, attempt) => return self.advance_attempt(link, attempt),
                Stage::Over => return Ok(None),
            }
        }
    }

    /// The ways to try.
    fn ways_to(&self, ours: &Place, theirs: &Place) -> Result<Vec<Way>> {
        let mtu = ours.mtu.min(theirs.mtu);
        let (infiniband, lid) = (ours.infiniband && theirs.infiniband, theirs.lid as u16);
        let found = gid::pairs(&ours.gids, &theirs.gids, self.options.v6_first);
        let ways = found.into_iter().map(|(ours, theirs)| Way { ours, theirs, mtu, infiniband, lid });
        let ways: Vec<_> = ways.collect();
        if !ways.is_empty() && ours.infiniband == theirs.infiniband {
            return Ok(ways);
        }
        let list = |place: &Place| {
            let gids: Vec<_> = place.gids.iter().map(ToString::to_string).collect();
            format!("{} has {}", place.name, if gids.is_empty() { "no GID".into() } else { gids.join(", ") })
        };
        Err(self.lost(format!(
            "no pair of GIDs is of one kind and family: {}, and {}; give both interfaces addresses of one family, or unset \
             NCCL_IB_GID_INDEX",
            list(ours),
            list(theirs)
        )))
    }

    /// Begins with the next way.
    fn next_way(&mut self, mut link: Link) -> Result<Stage> {
        let Some(way) = self.ways.next() else {
            let hint =
                if self.options.gid_index.is_some() { "; NCCL_IB_GID_INDEX allows no other" } else { "" };
            return Err(self.lost(format!("no packets get through {}{hint}", self.failures.join("; "))));
        };
        self.attempts += 1;
        let pairs = Pairs::new(&self.device, self.options.queue_pairs, End::Sender)?;
        let frame = Frame::Try {
            attempt: self.attempts,
            theirs: way.theirs.index,
            ours: way.ours.index,
            mtu: way.mtu,
            numbers: pairs.numbers(),
        };
        link.say(&frame).map_err(|fault| fault.error(&self.peer))?;
        let deadline = Deadline::after(WAY_PATIENCE);
        let attempt = Attempt { way, pairs, deadline, theirs: None, unanswered: None };
        Ok(Stage::Trying(link, Box::new(attempt)))
    }

    fn advance_attempt(&mut self, mut link: Link, mut attempt: Box<Attempt>) -> Result<Option<Sender>> {
        let failure = match link.hear().map_err(|fault| fault.error(&self.peer))? {
            Some(Frame::Ready { attempt: of, numbers }) if of == self.attempts => {
                if numbers.pairs.len() != attempt.pairs.queues.len() {
                    return Err(self.lost("protocol: it has another number of queue pairs"));
                }
                attempt.theirs = Some(numbers);
                None
            }
            Some(Frame::Failed { attempt: of, why }) if of == self.attempts => Some(why),
            Some(Frame::Broken { why }) => return Err(self.lost(why)),
            Some(_) | None => None,
        };
        let failure = match failure {
            None => match attempt.advance(&self.options) {
                Ok(false) if !attempt.deadline.is_over() => {
                    self.stage = Stage::Trying(link, attempt);
                    return Ok(None);
                }
                Ok(false) => attempt.unfinished(),
                Ok(true) => {
                    link.say(&Frame::Done).map_err(|fault| fault.error(&self.peer))?;
                    return Ok(Some(Sender::new(attempt.pairs, link)));
                }
                Err(why) => why,
            },
            Some(why) => why,
        };
        tracing::debug!("{} {}: {failure}", self.peer, attempt.way);
        self.failures.push(format!("{}: {failure}", attempt.way));
        drop(attempt);
        self.stage = self.next_way(link)?;
        Ok(None)
    }
}

impl Attempt {
    /// Whether the way works; the error says why it does not.
    fn advance(&mut self, options: &Options) -> std::result::Result<bool, String> {
        let Some(theirs) = &self.theirs else { return Ok(false) };
        let Some(unanswered) = &mut self.unanswered else {
            if self.pairs.connect(theirs, &self.way, options).map_err(|error| error.to_string())? {
                self.pairs.try_out(&self.way).map_err(|error| error.to_string())?;
                self.unanswered = Some(self.pairs.queues.len());
            }
            return Ok(false);
        };
        let (room, count) = self.pairs.take().map_err(|fault| fault.text())?;
        for done in &room[..count] {
            if done.status != 0 {
                let fault = match self.pairs.explain(done) {
                    Ok(cause) => cause.fault(&self.pairs.device).0,
                    Err(fault) => fault,
                };
                return Err(fault.text());
            }
            *unanswered -= 1;
        }
        let answered = *unanswered == 0;
        self.pairs.give_back(room);
        Ok(answered)
    }

    fn unfinished(&self) -> String {
        match (&self.theirs, self.unanswered) {
            (None, _) => "the other side did not connect its queue pairs".into(),
            (Some(_), None) => "the hardware address of its GID was not found".into(),
            (Some(_), Some(_)) => "no answer".into(),
        }
    }
}

/// Where this side is: its port as it is now.
///
/// # Errors
/// [`Error::Unavailable`] if it has no GID that may be used.
pub(super) fn place(device: &Opened, options: &Options) -> Result<Place> {
    let port = device.port_now()?;
    let infiniband = port.link_layer == LinkLayer::Infiniband;
    let mut gids = port.gids;
    match options.gid_index {
        Some(index) => {
            gids.retain(|gid| gid.index == index);
            if gids.is_empty() {
                return Err(Error::Invalid {
                    what: "environment variable NCCL_IB_GID_INDEX".into(),
                    value: index.to_string(),
                    reason: format!("{device} has no such GID; `rccl topo` lists them"),
                });
            }
        }
        None => gids.retain(|gid| infiniband || gid.kind == GidKind::RoceV2),
    }
    let mtu = (port.mtu_bytes / 128).trailing_zeros() as u8;
    Ok(Place { name: device.to_string(), mtu, infiniband, lid: port.lid.into(), gids })
}

impl Connecting for Dialing {
    fn poll(&mut self) -> Result<Option<Box<dyn SendChannel>>> {
        if let Some(sender) = self.step()? {
            return Ok(Some(Box::new(Sending::new(self.peer.clone(), DEPTH, sender))));
        }
        if self.deadline.is_over() && !matches!(self.stage, Stage::Over) {
            let stage = std::mem::replace(&mut self.stage, Stage::Over);
            return Err(self.lost(format!("it did not connect within {PATIENCE:?} ({stage:?})")));
        }
        Ok(None)
    }
}
