//! How a communicator comes into being: join the group, agree, share memory, connect.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak, atomic::AtomicUsize},
};

use parking_lot::Mutex;
use rccl_core::{Group, Rank, plan::Station};
use rccl_transport::{
    JoinOptions, Membership, Root, UniqueId,
    channel::{Address, Connecting, Listener, RecvChannel, SendChannel},
    deadline::Deadline,
    interface::Choice,
    station::{Arena, Layout, Publisher, Reader, Sizes},
};

use super::{Communicator, Inner, driver::Driver, network::Network};
use crate::{
    Error, Options, Result, TransportChoice,
    engine::{Seat, Work},
    exec::Ports,
    state::State,
};

/// How the ranks of a communicator reach each other, and what that costs.
#[derive(Debug, Clone)]
pub struct Description {
    /// By rank: "self", "shm", "tcp" or "verbs".
    pub transports: Vec<&'static str>,
    /// Bytes of address space of the stations that this host's ranks share. Memory is taken only for what is used.
    pub arena_bytes: usize,
    /// Slots of a station.
    pub slots: u32,
    /// Data bytes of a slot.
    pub slot_bytes: u32,
    /// All-reduces of at most this many bytes take one hop, unless an algorithm was named.
    pub oneshot_bytes: u64,
    /// Connections that were dropped while the group formed, because they did not know the secret.
    pub strangers: u64,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |name| self.transports.iter().filter(|&&transport| transport == name).count();
        write!(
            f,
            "{} ranks (peers: {} by shared memory, {} by RDMA, {} by tcp), {} slots of {} KiB a station, {} KiB of stations",
            self.transports.len(),
            count("shm"),
            count("verbs"),
            count("tcp"),
            self.slots,
            self.slot_bytes >> 10,
            self.arena_bytes >> 10,
        )
    }
}

/// What all ranks must have been given alike, as it is compared.
const AGREED: [&str; 7] =
    ["transport", "algorithm", "oneshot_bytes", "slot_bytes", "slots", "heartbeat", "version"];

fn agreed(options: &Options) -> [String; AGREED.len()] {
    fn or_auto(value: Option<impl fmt::Display>) -> String {
        value.map_or_else(|| "auto".to_owned(), |value| value.to_string())
    }
    [
        options.transport.name().to_owned(),
        or_auto(options.algorithm),
        or_auto(options.oneshot_bytes),
        or_auto(options.slot_bytes),
        or_auto(options.slots),
        format!("{:?}", options.heartbeat),
        crate::VERSION.to_owned(),
    ]
}

impl Communicator {
    /// Joins the group that `id` names, as `rank` of `size`. Every rank calls this with the same id; it returns on all of
    /// them once the last has come.
    ///
    /// # Errors
    /// Arguments and options that make no sense, or differ between ranks; after [`Options::init_timeout`], an error that
    /// names the ranks which did not come.
    pub fn create(id: &UniqueId, rank: u32, size: u32, options: &Options) -> Result<Self> {
        options.check()?;
        let group = Group::new(size, rank)?;
        let deadline = Deadline::after(options.init_timeout);
        let join = JoinOptions {
            deadline: options.init_timeout,
            choice: options.interfaces.clone(),
            ..JoinOptions::default()
        };
        let payload = agreed(options).join("\n").into_bytes();
        let membership = rccl_transport::join(id, group, payload, &join)?;
        Creation { group, options, membership, deadline }.finish()
    }

    /// A group of `size` ranks that all live in this process, for instance one for each of several devices. Each rank must
    /// be driven by a thread of its own, or all by one thread through asynchronous calls.
    ///
    /// # Errors
    /// As [`Communicator::create`].
    pub fn local(size: u32, options: &Options) -> Result<Vec<Self>> {
        Group::new(size, 0)?;
        let options = &Options { interfaces: Choice::loopback(), ..options.clone() };
        let (root, id) = Root::start(&options.root())?;
        let (tell, told) = crossbeam::channel::unbounded();
        std::thread::scope(|threads| {
            for rank in 0..size {
                let (id, tell) = (&id, tell.clone());
                // The channel outlives the scope, so telling succeeds.
                threads.spawn(move || tell.send((rank, Self::create(id, rank, size, options))));
            }
            drop(tell);
            let mut root = Some(root);
            let mut failed = None;
            let mut created = Vec::new();
            for (rank, result) in told {
                match result {
                    Ok(communicator) => created.push((rank, communicator)),
                    Err(error) => {
                        // The first one to fail knows why. Without a root the others do not wait for it.
                        drop(root.take());
                        failed.get_or_insert(error);
                    }
                }
            }
            created.sort_unstable_by_key(|&(rank, _)| rank);
            failed.map_or(Ok(created.into_iter().map(|(_, communicator)| communicator).collect()), Err)
        })
    }

    /// Splits the group: ranks that give the same color form a new communicator, ordered by key, then by rank. A rank that
    /// gives no color gets none. All ranks must call it.
    ///
    /// # Errors
    /// As [`Communicator::create`], and those of the collectives that all ranks agree by.
    pub fn split(&self, color: Option<u32>, key: i32, options: &Options) -> Result<Option<Self>> {
        // A rank whose options make no sense takes part in the first round all the same, so that nobody waits for it.
        let checked = options.check();
        let mine = [color.map_or(-1, i64::from), i64::from(key), i64::from(checked.is_ok())];
        let mut all = vec![0_i64; mine.len() * self.size() as usize];
        self.all_gather(&mine, &mut all)?;
        checked?;
        let (all, _) = all.as_chunks::<3>();
        if let Some(rank) = all.iter().position(|[.., sound]| *sound == 0) {
            let cause = "the options that it gave to split make no sense; its own error says why".to_owned();
            return Err(Error::PeerFailed { rank: rank as u32, cause });
        }
        let mut members: Vec<(i64, u32)> = (0..self.size())
            .filter(|&rank| all[rank as usize][0] == mine[0] && color.is_some())
            .map(|rank| (all[rank as usize][1], rank))
            .collect();
        members.sort_unstable();
        let leads = members.first().is_some_and(|&(_, rank)| rank == self.rank());
        // A leader whose root does not start still takes part in the second round, so that nobody waits for it.
        let root = leads.then(|| Root::start(&options.root())).transpose();
        let id =
            root.as_ref().ok().and_then(Option::as_ref).map_or([0; UniqueId::BYTES], |(_, id)| id.to_bytes());
        let mut ids = vec![0_u8; UniqueId::BYTES * self.size() as usize];
        self.all_gather(&id, &mut ids)?;
        let _root = root?;
        let Some(&(_, leader)) = members.first() else { return Ok(None) };
        let rank = members.iter().position(|&(_, rank)| rank == self.rank());
        let (ids, _) = ids.as_chunks::<{ UniqueId::BYTES }>();
        let id = UniqueId::from_bytes(&ids[leader as usize])?;
        Self::create(&id, rank.unwrap_or(0) as u32, members.len() as u32, options).map(Some)
    }
}

/// A communicator in the making.
struct Creation<'a> {
    group: Group,
    options: &'a Options,
    membership: Membership,
    deadline: Deadline,
}

impl Creation<'_> {
    fn finish(mut self) -> Result<Communicator> {
        self.agree()?;
        let residents = self.residents()?;
        let arena = self.share_arena(&residents)?;
        let me = self.group.rank();
        let own = arena.doorbell(me).expect("a rank lives on its own host");
        let mut ports = Ports::new(self.group, own.clone());
        for peer in self.group.peers() {
            ports.add_doorbell(peer, arena.doorbell(peer));
        }
        let network = (residents.len() < self.group.size() as usize).then(|| self.network_transports());
        let mut network = network.transpose()?;
        let channels = match &mut network {
            Some(network) => self.connect_by_network(&residents, network)?,
            None => Channels::default(),
        };
        add_stations(&mut ports, self.group, &arena, &residents, channels, network.as_ref())?;

        let transport = |rank: Rank| match (rank == me, residents.contains(&rank)) {
            (true, _) => "self",
            (_, true) => "shm",
            _ => network.as_ref().map_or("tcp", |network| network.to(rank).caps().name),
        };
        let sizes = arena.layout().sizes;
        let thresholds = self.options.thresholds(self.group.size(), self.network());
        let description = Description {
            transports: self.group.ranks().map(transport).collect(),
            arena_bytes: arena.layout().len_bytes(),
            slots: sizes.slots,
            slot_bytes: sizes.slot_bytes,
            oneshot_bytes: thresholds.oneshot_bytes,
            strangers: self.membership.strangers,
        };
        // Nobody publishes before everybody has mapped and connected everything.
        self.all_gather(&[])?;
        let state = Arc::new(State::new(me, self.group.size(), self.options.heartbeat, own));
        let inner = Arc::new(Inner {
            group: self.group,
            state: Arc::clone(&state),
            driver: Mutex::new(Driver::new(
                self.group,
                thresholds,
                ports,
                residents.len(),
                self.options.deadline,
            )),
            jobs: Mutex::default(),
            jobs_left: AtomicUsize::new(0),
            running: Mutex::new(None),
            seat: OnceLock::new(),
            description,
            registered: AtomicUsize::new(0),
        });
        let work: Arc<dyn Work> = Arc::<Inner>::clone(&inner);
        let work: Weak<dyn Work> = Arc::downgrade(&work);
        let seat = Seat::take(&state, std::mem::take(&mut self.membership.links), work)?;
        inner.seat.set(seat).expect("set once");
        Ok(Communicator::new(inner))
    }

    /// Compares what each rank was given.
    fn agree(&self) -> Result<()> {
        let texts: Vec<String> = self
            .membership
            .members
            .iter()
            .map(|member| String::from_utf8_lossy(&member.payload).into_owned())
            .collect();
        for (rank, text) in texts.iter().enumerate() {
            for (what, (ours, theirs)) in AGREED.into_iter().zip(texts[0].lines().zip(text.lines())) {
                if ours != theirs {
                    let (ours, theirs) = (ours.to_owned(), theirs.to_owned());
                    return Err(Error::Options { rank: rank as u32, what, ours, theirs });
                }
            }
        }
        Ok(())
    }

    /// Whether some ranks of the group reach each other over a network. All ranks come to the same answer.
    fn network(&self) -> bool {
        let members = &self.membership.members;
        let together = members.iter().all(|member| member.host == members[0].host);
        self.group.size() > 1 && (self.all_by_network() || !together)
    }

    /// Whether ranks reach each other over a network also where they live on one host.
    fn all_by_network(&self) -> bool {
        matches!(self.options.transport, TransportChoice::Tcp | TransportChoice::Verbs)
    }

    /// The ranks that this one shares memory with, itself included.
    fn residents(&self) -> Result<Vec<Rank>> {
        let me = self.group.rank();
        let apart = self.all_by_network();
        let here = |&rank: &Rank| rank == me || (!apart && self.membership.same_host(rank));
        let residents: Vec<Rank> = self.group.ranks().filter(here).collect();
        if self.options.transport == TransportChoice::Shm && residents.len() < self.group.size() as usize {
            let elsewhere = self.group.ranks().find(|rank| !residents.contains(rank)).unwrap_or(me);
            return Err(Error::Argument {
                what: "Options::transport",
                reason: format!("it is shm, but rank {elsewhere} lives on another host; use auto or tcp"),
            });
        }
        Ok(residents)
    }

    /// Makes or opens the arena of this host.
    fn share_arena(&mut self, residents: &[Rank]) -> Result<Arena> {
        let size = self.group.size();
        let network = self.network();
        let (slots, slot_bytes) = (self.options.slots(size, network), self.options.slot_bytes(size, network));
        let sizes = Sizes { slots, slot_bytes };
        let layout = Layout { group_size: size, residents: residents.to_vec(), sizes };
        let leads = residents[0] == self.group.rank();
        let file = if leads { Some(Arena::create(&layout)?) } else { None };
        let file = match file {
            Some(file) if residents.len() == 1 => file,
            file => self.membership.share_file(residents[0], residents, file, &self.deadline)?.file,
        };
        let arena = Arena::open(&file, layout)?;
        let nonce = if leads { random_nonce()? } else { [0; 2] };
        if leads {
            arena.mark(nonce);
        }
        let nonces = self.all_gather(&nonce.map(u64::to_le_bytes).concat())?;
        arena.verify(nonce_from(&nonces[residents[0].index()]))?;
        Ok(arena)
    }

    /// Connects over RDMA where both ends have it, and over TCP alone if that fails for anybody: an adapter may be there whose
    /// network leads nowhere. Who asked for RDMA by name gets the error. All ranks that have peers elsewhere call it.
    fn connect_by_network(&mut self, residents: &[Rank], network: &mut Network) -> Result<Channels> {
        if self.options.transport == TransportChoice::Verbs || !network.uses_rdma() {
            return self.connect_elsewhere(residents, network, self.deadline);
        }
        let trial = self.deadline.at_most(RDMA_TRIAL);
        let attempt = self.connect_elsewhere(residents, network, trial);
        let failure = attempt.as_ref().err().map_or_else(String::new, Error::to_string);
        let failures = self.all_gather(failure.as_bytes())?;
        let Some(rank) = failures.iter().position(|failure| !failure.is_empty()) else { return attempt };
        let why = String::from_utf8_lossy(&failures[rank]);
        tracing::warn!(
            "TCP is used between hosts although they have RDMA: on rank {rank}, {why} (NCCL_IB_DISABLE=1 saves the attempt, \
             RCCL_TRANSPORT=verbs makes this an error)"
        );
        drop(attempt);
        network.give_up_rdma();
        self.connect_elsewhere(residents, network, self.deadline)
    }

    /// Connects the stations whose other end lives on another host: two channels each way for every such rank.
    fn connect_elsewhere(
        &mut self,
        residents: &[Rank],
        network: &Network,
        deadline: Deadline,
    ) -> Result<Channels> {
        let elsewhere: Vec<Rank> = self.group.ranks().filter(|rank| !residents.contains(rank)).collect();
        let mut channels = Channels::default();
        let me = self.group.rank();
        let mut addresses = Vec::new();
        let listening = self.listen(&elsewhere, network, &mut addresses);
        if listening.is_err() {
            addresses.clear();
        }
        // Before anything may fail, so that all ranks exchange as often.
        let tables = self.all_gather(&addresses)?;
        let mut listening = listening?;
        let mut connecting = Vec::new();
        for &peer in &elsewhere {
            for (station, address) in decode_addresses(&tables[peer.index()], me, peer)? {
                connecting.push(Channel { station, peer, end: network.to(peer).connect(&address)? });
            }
        }
        while !listening.is_empty() || !connecting.is_empty() {
            let before = listening.len() + connecting.len();
            listening = poll_all(listening, &mut channels.readers, |listener| listener.poll_accept())?;
            connecting = poll_all(connecting, &mut channels.publishers, |attempt| attempt.poll())?;
            if deadline.is_over() {
                return Err(self.missing_channels(&listening, &connecting));
            }
            if listening.len() + connecting.len() == before {
                // Between two looks the peers need the processor more than this rank does.
                std::thread::sleep(CONNECT_NAP);
            }
        }
        Ok(channels)
    }

    /// Listens for the channels that come from the ranks `elsewhere`, and appends where, for them to be told.
    fn listen(
        &self,
        elsewhere: &[Rank],
        network: &Network,
        addresses: &mut Vec<u8>,
    ) -> Result<Vec<Channel<Box<dyn Listener>>>> {
        let me = self.group.rank();
        let mut listening = Vec::new();
        for &peer in elsewhere {
            for station in
                [Station::Shared { publisher: peer }, Station::Pair { publisher: peer, reader: me }]
            {
                let end = network.to(peer).listen()?;
                encode_address(peer, &station, &end.address(), addresses);
                listening.push(Channel { station, peer, end });
            }
        }
        Ok(listening)
    }

    /// What carries messages to ranks on other hosts. All ranks that have some call it.
    fn network_transports(&mut self) -> Result<Network> {
        let mut network = Network::new(self.options, &self.membership.secret)?;
        let told = self.all_gather(&network.offer())?;
        network.agree(&told);
        Ok(network)
    }

    fn missing_channels(
        &self,
        listening: &[Channel<Box<dyn Listener>>],
        connecting: &[Channel<Box<dyn Connecting>>],
    ) -> Error {
        let from = listening.iter().map(|channel| channel.peer);
        let mut ranks: Vec<Rank> = from.chain(connecting.iter().map(|channel| channel.peer)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
        let waiting_for = format!("connecting channels with ranks {}", ranks.join(", "));
        rccl_transport::Error::Timeout { waiting_for, after: self.options.init_timeout }.into()
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.membership.all_gather(bytes, &self.deadline)?)
    }
}

/// One end of a channel, or of one in the making, that joins the two halves of a station.
struct Channel<E> {
    station: Station,
    /// The rank at the other end.
    peer: Rank,
    end: E,
}

/// The channels to and from ranks on other hosts.
#[derive(Default)]
struct Channels {
    publishers: Vec<Channel<Box<dyn SendChannel>>>,
    readers: Vec<Channel<Box<dyn RecvChannel>>>,
}

/// How long RDMA is tried where TCP would do as well.
const RDMA_TRIAL: std::time::Duration = std::time::Duration::from_secs(20);

/// The sleep between two looks at connections in the making.
const CONNECT_NAP: std::time::Duration = std::time::Duration::from_micros(200);

/// Asks every end once whether it has become a channel; gives those that have not.
fn poll_all<E, C>(
    ends: Vec<Channel<E>>,
    made: &mut Vec<Channel<C>>,
    mut poll: impl FnMut(&mut E) -> rccl_transport::Result<Option<C>>,
) -> Result<Vec<Channel<E>>> {
    let mut still = Vec::new();
    for mut channel in ends {
        let rank = channel.peer.0;
        let polled = poll(&mut channel.end).map_err(|error| match error {
            rccl_transport::Error::PeerLost { cause, .. } => Error::PeerLost { rank, cause },
            error => error.into(),
        });
        match polled? {
            Some(end) => made.push(Channel { station: channel.station, peer: channel.peer, end }),
            None => still.push(channel),
        }
    }
    Ok(still)
}

/// Puts both ends of every station in their ports.
fn add_stations(
    ports: &mut Ports,
    group: Group,
    arena: &Arena,
    residents: &[Rank],
    mut channels: Channels,
    network: Option<&Network>,
) -> Result<()> {
    let me = group.rank();
    let slots = arena.layout().stations_of(me).expect("a rank lives on its own host");
    let registration = network.map(|network| network.register(&arena.region().part(slots))).transpose()?;
    let own = group.peers().map(|reader| Station::Pair { publisher: me, reader });
    for station in own.chain([Station::Shared { publisher: me }]) {
        let readers = station.readers(group.size()).filter(|rank| residents.contains(rank));
        let remote = channels.publishers.extract_if(.., |channel| channel.station == station);
        let remote: Vec<_> = remote.map(|channel| (channel.peer, channel.end)).collect();
        let mut publisher = Publisher::new(arena, station, readers, remote);
        registration.iter().flatten().for_each(|registration| publisher.keep(Arc::clone(registration)));
        ports.add_publisher(station, publisher);
    }
    for peer in group.peers().filter(|peer| residents.contains(peer)) {
        for station in [Station::Shared { publisher: peer }, Station::Pair { publisher: peer, reader: me }] {
            ports.add_reader(station, Reader::local(arena, station, me));
        }
    }
    for Channel { station, peer, end } in channels.readers {
        let network = network.expect("there are channels");
        ports.add_reader(station, Reader::remote(peer, arena.layout().sizes, end, network.to(peer))?);
    }
    Ok(())
}

/// Appends where this rank listens for the channel of a station that `publisher` publishes.
fn encode_address(publisher: Rank, station: &Station, address: &Address, bytes: &mut Vec<u8>) {
    bytes.extend(publisher.0.to_le_bytes());
    bytes.push(u8::from(matches!(station, Station::Pair { .. })));
    bytes.push(address.0.len() as u8);
    bytes.extend(&address.0);
}

/// The stations that `me` publishes and `peer` reads, and where `peer` listens for their channels.
fn decode_addresses(mut bytes: &[u8], me: Rank, peer: Rank) -> Result<Vec<(Station, Address)>> {
    if bytes.is_empty() {
        let cause = "it cannot be connected to; its own error says why".to_owned();
        return Err(Error::PeerFailed { rank: peer.0, cause });
    }
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<6>() {
        let publisher = Rank(u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
        let len = usize::from(header[5]);
        let Some(address) = rest.get(..len) else { break };
        bytes = &rest[len..];
        if publisher == me {
            let pair = Station::Pair { publisher: me, reader: peer };
            let station = if header[4] == 1 { pair } else { Station::Shared { publisher: me } };
            found.push((station, Address(address.to_vec())));
        }
    }
    if found.len() != 2 || !bytes.is_empty() {
        let reason = format!("its {} bytes of channel addresses are damaged", bytes.len());
        return Err(rccl_transport::Error::Refused { peer: format!("rank {peer}"), reason }.into());
    }
    Ok(found)
}

fn random_nonce() -> Result<[u64; 2]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| rccl_transport::Error::io("getrandom of a nonce", std::io::Error::other(error)))?;
    Ok(nonce_from(&bytes))
}

fn nonce_from(bytes: &[u8]) -> [u64; 2] {
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
    [word(0), word(8)]
}
