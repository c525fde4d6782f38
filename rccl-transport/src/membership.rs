//! A group that has formed: who its members are, and a link to each of them.
//!
//! [`join`] meets the others at the root and then connects every pair of members by one authenticated link, whether they are
//! threads of one process, processes of one host or on different hosts. It returns on all members or, within its deadline,
//! fails on all of them and says whose fault it was.
//!
//! ```
//! use rccl_core::Group;
//! use rccl_transport::{deadline::Deadline, membership::{JoinOptions, join}, rendezvous::{Root, RootOptions}};
//! use std::time::Duration;
//!
//! let (_root, id) = Root::start(&RootOptions::default())?;
//! std::thread::scope(|scope| {
//!     let ranks = (0..3).map(|rank| {
//!         let id = &id;
//!         scope.spawn(move || {
//!             let group = Group::new(3, rank).unwrap();
//!             let mut members = join(id, group, Vec::new(), &JoinOptions::default())?;
//!             members.all_gather(&[rank as u8], &Deadline::after(Duration::from_secs(10)))
//!         })
//!     });
//!     for rank in ranks.collect::<Vec<_>>() {
//!         assert_eq!(rank.join().unwrap()?, [[0], [1], [2]]);
//!     }
//!     Ok::<(), rccl_transport::Error>(())
//! })?;
//! # Ok::<(), rccl_transport::Error>(())
//! ```

use std::{net::TcpStream, time::Duration};

use rccl_core::{Group, Rank};

use crate::{
    Error, HostId, Result, Secret, UniqueId,
    deadline::{Deadline, wait},
    interface::Choice,
    reception::PATIENCE,
    rendezvous::{addresses_of, listen_on_all, meet},
};

mod exchange;
mod mesh;
mod share;

pub use crate::member::{MAX_PAYLOAD_BYTES, Member};
use exchange::{Exchange, Kind};
pub use share::{SHM_DIR_VARIABLE, SharedFile};

/// The most bytes a member can give to [`Membership::all_gather`].
pub const MAX_GATHER_BYTES: usize = 1 << 20;

/// How to join a group.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// How long the group may take to form; 2 minutes unless told otherwise.
    pub deadline: Duration,
    /// How long a connection may take to authenticate; 5 seconds unless told otherwise.
    pub patience: Duration,
    /// The interfaces to be reached at.
    pub choice: Choice,
    /// The host to count as, if not the one that [`HostId::this`] finds.
    pub host: Option<HostId>,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(120), patience: PATIENCE, choice: Choice::any(), host: None }
    }
}

impl JoinOptions {
    /// The defaults, on the interfaces that the environment allows (see [`Choice::from_env`]).
    ///
    /// # Errors
    /// As [`Choice::from_env`].
    pub fn from_env() -> Result<Self> {
        Ok(Self { choice: Choice::from_env()?, ..Self::default() })
    }
}

/// A group that has formed, as one member sees it. Dropping it closes the links.
#[derive(Debug)]
pub struct Membership {
    /// The group and this member's rank.
    pub group: Group,
    /// All members in order of rank.
    pub members: Vec<Member>,
    /// The link to each member, by rank; `None` for this one. Non-blocking, small messages are sent at once. Whoever takes
    /// a link out or speaks over it must not call [`Membership::all_gather`] any more.
    pub links: Vec<Option<TcpStream>>,
    /// Connections to this member that were dropped while the group formed because they did not authenticate.
    pub strangers: u64,
    /// A secret that the members of this group, and nobody else, have.
    pub secret: Secret,
    /// Why the links can no longer be used.
    broken: Option<String>,
}

/// Joins the group that `id` stands for as the rank that `group` says, and tells the others `payload` (at most
/// [`MAX_PAYLOAD_BYTES`]). Blocks until every rank has come and is linked to every other one.
///
/// # Errors
/// [`Error::Timeout`] naming the ranks that are missing; [`Error::Refused`] if the secret is wrong, or ranks or sizes do not
/// fit together, naming both sides; [`Error::PeerLost`] if the root cannot be reached, or a member or the root goes away
/// meanwhile; [`Error::Invalid`] if the payload is too long or as [`Choice::addresses`]; [`Error::Io`].
pub fn join(id: &UniqueId, group: Group, payload: Vec<u8>, options: &JoinOptions) -> Result<Membership> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(too_long("the payload of a member", payload.len(), MAX_PAYLOAD_BYTES));
    }
    let deadline = Deadline::after(options.deadline);
    let listeners = listen_on_all(&options.choice.addresses()?)?;
    let this = Member::this(group.rank(), options.host, addresses_of(&listeners)?, payload)?;
    let (members, nonce) = meet(id, group.size(), this, &deadline)?;
    let secret = id.secret().derive_from("group", &nonce);
    let mesh = mesh::Mesh::new(group, &members, &secret, listeners, options.patience)?;
    let (links, strangers) = mesh.finish(&deadline)?;
    Ok(Membership { group, members, links, strangers, secret, broken: None })
}

impl Membership {
    /// Whether `rank` runs on the same host as this member.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn same_host(&self, rank: Rank) -> bool {
        self.members[rank.index()].host == self.members[self.group.rank().index()].host
    }

    /// Gives everyone this member's `bytes` (at most [`MAX_GATHER_BYTES`]) and gets everyone's, in order of rank. All
    /// members must call it; it thus serves as a barrier too. Blocks until all have.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming the ranks that are missing; [`Error::PeerLost`] naming the rank that went away;
    /// [`Error::Refused`] if a member does something else meanwhile; [`Error::Invalid`] if `bytes` are too many. After all
    /// but the last, links can no longer be used, and every further call fails.
    pub fn all_gather(&mut self, bytes: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        if bytes.len() > MAX_GATHER_BYTES {
            return Err(too_long("the bytes to gather", bytes.len(), MAX_GATHER_BYTES));
        }
        let peers: Vec<Rank> = self.group.peers().collect();
        let mut all = self.exchange(Kind::Gather, Some((&peers, bytes)), &peers, deadline)?;
        all[self.group.rank().index()] = bytes.to_vec();
        Ok(all)
    }

    /// Sends to some members and receives from some; what came, by rank.
    fn exchange(
        &mut self,
        kind: Kind,
        send: Option<(&[Rank], &[u8])>,
        receive: &[Rank],
        deadline: &Deadline,
    ) -> Result<Vec<Vec<u8>>> {
        let mut exchange = self.start(kind, send, receive)?;
        while !self.advance(&mut exchange)? {
            let mut descriptors = Vec::new();
            exchange.watch(&self.links, &mut descriptors);
            if !wait(&mut descriptors, deadline)? {
                return Err(self.late(&exchange, deadline));
            }
        }
        Ok(exchange.into_received())
    }

    fn start(&self, kind: Kind, send: Option<(&[Rank], &[u8])>, receive: &[Rank]) -> Result<Exchange> {
        match &self.broken {
            Some(cause) => {
                Err(Error::PeerLost { peer: "the group".into(), cause: format!("it failed before: {cause}") })
            }
            None => Ok(Exchange::new(kind, send, receive, self.members.len())),
        }
    }

    fn advance(&mut self, exchange: &mut Exchange) -> Result<bool> {
        exchange
            .advance(&mut self.links, &self.members)
            .inspect_err(|error| self.broken = Some(error.to_string()))
    }

    /// The deadline's error, which leaves messages half received.
    fn late(&mut self, exchange: &Exchange, deadline: &Deadline) -> Error {
        let error = deadline.error(format!("a message from {}", exchange.missing()));
        self.broken = Some(error.to_string());
        error
    }
}

fn too_long(what: &str, bytes: usize, limit: usize) -> Error {
    let reason = format!("at most {limit} bytes are allowed");
    Error::Invalid { what: what.into(), value: format!("{bytes} bytes"), reason }
}

#[cfg(test)]
mod tests;
