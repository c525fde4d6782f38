//! Links between all members: each connects to the listeners of the ranks below it and is called by those above.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    time::Duration,
};

use rccl_core::{Group, Rank};
use rustix::event::{PollFd, PollFlags};

use crate::{
    Error, Hello, Purpose, Result, Secret,
    connect::Race,
    deadline::{Deadline, wait},
    member::{Member, ranks_text},
    reception::{Guest, Reception},
};

/// Said by the one who connected, over the one connection of possibly several that it keeps.
const CHOSEN: u8 = 1;
/// Said by both once all of their links stand. Nobody leaves before all have said it, so that either all members have a
/// group or none.
const COMPLETE: u8 = 2;

pub(super) struct Mesh<'a> {
    group: Group,
    members: &'a [Member],
    reception: Reception<TcpListener>,
    patience: Duration,
    races: BTreeMap<Rank, Race>,
    /// Authenticated, but perhaps not the connection that the caller keeps.
    callers: Vec<Caller>,
    links: Vec<Option<Link>>,
    announced: bool,
}

struct Caller {
    rank: Rank,
    stream: TcpStream,
    deadline: Deadline,
}

struct Link {
    stream: TcpStream,
    peer_complete: bool,
}

/// The links by rank, and the number of strangers that were dropped.
type Links = (Vec<Option<TcpStream>>, u64);

impl<'a> Mesh<'a> {
    pub(super) fn new(
        group: Group,
        members: &'a [Member],
        secret: &Secret,
        listeners: Vec<TcpListener>,
        patience: Duration,
    ) -> Result<Self> {
        let own = group.rank();
        let reception = Reception::new(
            listeners,
            &secret_of(secret, own),
            Purpose::Control,
            &own.0.to_le_bytes(),
            patience,
        );
        let mut races = BTreeMap::new();
        for peer in group.ranks().take(own.index()) {
            // Who answers at the address of another rank does not have that rank's secret.
            let secret = secret_of(secret, peer);
            let greet = move |address| {
                Ok(Some(Hello::initiate(&secret, Purpose::Control, &own.0.to_le_bytes())?.with_peer(address)))
            };
            let addresses = addresses_between(&members[own.index()], &members[peer.index()]);
            races.insert(peer, Race::new(&members[peer.index()], &addresses, Box::new(greet))?);
        }
        let links = group.ranks().map(|_| None).collect();
        Ok(Self { group, members, reception, patience, races, callers: Vec::new(), links, announced: false })
    }

    /// Blocks until every member is linked to every other one.
    pub(super) fn finish(mut self, deadline: &Deadline) -> Result<Links> {
        loop {
            self.call()?;
            self.be_called()?;
            self.announce()?;
            self.hear()?;
            if self.announced && self.unheard().next().is_none() {
                let links = self.links.into_iter().map(|link| link.map(|link| link.stream)).collect();
                return Ok((links, self.reception.strangers()));
            }
            self.sleep(deadline)?;
            if deadline.is_over() {
                return Err(deadline.error(self.missing()));
            }
        }
    }

    /// Moves on the connections to the ranks below.
    fn call(&mut self) -> Result<()> {
        let mut made = Vec::new();
        for (&rank, race) in &mut self.races {
            if let Some(connected) = race.advance()? {
                made.push((rank, connected.stream));
            }
        }
        for (rank, mut stream) in made {
            self.races.remove(&rank);
            write_byte(&mut stream, CHOSEN).map_err(|error| self.lost(rank, error))?;
            self.link(rank, stream);
        }
        Ok(())
    }

    /// Lets in the ranks above.
    fn be_called(&mut self) -> Result<()> {
        for Guest { stream, payload, .. } in self.reception.advance()? {
            let rank = payload.try_into().map(|bytes| Rank(u32::from_le_bytes(bytes)));
            match rank {
                Ok(rank) if rank > self.group.rank() && rank.0 < self.group.size() => {
                    self.callers.push(Caller { rank, stream, deadline: Deadline::after(self.patience) });
                }
                _ => self.reception.count_stranger(),
            }
        }
        for mut caller in std::mem::take(&mut self.callers) {
            match read_byte(&mut caller.stream) {
                Ok(Some(CHOSEN)) if self.links[caller.rank.index()].is_none() => {
                    self.link(caller.rank, caller.stream);
                }
                Ok(None) if !caller.deadline.is_over() => self.callers.push(caller),
                Ok(None | Some(_)) => self.reception.count_stranger(),
                // It keeps another connection.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn link(&mut self, rank: Rank, stream: TcpStream) {
        self.links[rank.index()] = Some(Link { stream, peer_complete: false });
    }

    /// Tells everyone, once, that all links stand.
    fn announce(&mut self) -> Result<()> {
        if self.announced || self.links.iter().flatten().count() + 1 < self.links.len() {
            return Ok(());
        }
        for (index, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link {
                let said = write_byte(&mut link.stream, COMPLETE);
                said.map_err(|error| lost(&self.members[index], error))?;
            }
        }
        self.announced = true;
        Ok(())
    }

    /// Hears who has all of its links. A peer that leaves before has given up.
    fn hear(&mut self) -> Result<()> {
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link.as_mut().filter(|link| !link.peer_complete) else { continue };
            match read_byte(&mut link.stream) {
                Ok(None) => {}
                Ok(Some(COMPLETE)) => link.peer_complete = true,
                Ok(Some(_)) => return Err(lost(&self.members[index], "it spoke out of turn")),
                Err(error) => return Err(lost(&self.members[index], error)),
            }
        }
        Ok(())
    }

    fn sleep(&self, deadline: &Deadline) -> Result<()> {
        let mut descriptors = Vec::new();
        self.reception.watch(&mut descriptors);
        self.races.values().for_each(|race| race.watch(&mut descriptors));
        let readable = |stream| PollFd::from_borrowed_fd(TcpStream::as_fd(stream), PollFlags::IN);
        descriptors.extend(self.callers.iter().map(|caller| readable(&caller.stream)));
        let unheard = self.links.iter().flatten().filter(|link| !link.peer_complete);
        descriptors.extend(unheard.map(|link| readable(&link.stream)));
        let times = self.races.values().filter_map(Race::wake).chain(self.reception.wake());
        let first = times.chain(self.callers.iter().map(|caller| caller.deadline.remaining())).min();
        wait(&mut descriptors, &first.map_or(*deadline, |left| deadline.at_most(left))).map(drop)
    }

    fn unheard(&self) -> impl Iterator<Item = Rank> {
        let unheard = |rank: &Rank| self.links[rank.index()].as_ref().is_none_or(|link| !link.peer_complete);
        self.group.ranks().filter(|&rank| rank != self.group.rank()).filter(unheard)
    }

    /// What is waited for: links that do not stand, or else those who miss links of their own.
    fn missing(&self) -> String {
        let linked = |rank: &Rank| self.links[rank.index()].is_some();
        let unlinked = self.group.ranks().filter(|rank| *rank != self.group.rank() && !linked(rank));
        let unlinked: Vec<Rank> = unlinked.collect();
        if unlinked.is_empty() {
            return format!("the word that all links of {} stand", ranks_text(self.unheard()));
        }
        let mut text = format!("a link with {}", ranks_text(unlinked.iter().copied()));
        for rank in unlinked {
            let member = &self.members[rank.index()];
            let how = self.races.get(&rank).map_or_else(|| "it has not called".into(), Race::status);
            text.push_str(&format!("; {member}: {how}"));
        }
        text
    }

    fn lost(&self, rank: Rank, cause: impl std::fmt::Display) -> Error {
        lost(&self.members[rank.index()], cause)
    }
}

fn lost(member: &Member, cause: impl std::fmt::Display) -> Error {
    let cause = format!("{cause}; it gave up, or ended, while the group formed");
    Error::PeerLost { peer: member.to_string(), cause }
}

fn secret_of(group: &Secret, rank: Rank) -> Secret {
    group.derive(&format!("links of rank {rank}"))
}

/// The addresses of `peer` that `own` can try: those for its host alone only from that host, unless it has no others.
fn addresses_between(own: &Member, peer: &Member) -> Vec<SocketAddr> {
    let outside: Vec<SocketAddr> =
        peer.addresses.iter().copied().filter(|address| !address.ip().is_loopback()).collect();
    if own.host == peer.host || outside.is_empty() { peer.addresses.clone() } else { outside }
}

/// Writes one byte to a fresh connection, whose buffer has room.
fn write_byte(stream: &mut TcpStream, byte: u8) -> io::Result<()> {
    stream.write_all(&[byte])
}

/// The next byte, if there is one; the end of the stream is an error.
fn read_byte(stream: &mut TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(_) => return Ok(Some(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
