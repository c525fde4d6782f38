//! A transport under test, and how to drive it.

use std::{
    cell::RefCell,
    io::{Read, Write},
    net::TcpStream,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use rccl_transport::{
    Error, Region, Result, Secret, Slice,
    channel::{Address, Completion, Connecting, Listener, RecvChannel, Registration, SendChannel, Transport},
    shm, sim, tcp, verbs,
};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Simulated fabrics that each case is run on.
const SEEDS: u64 = 10;

/// Counting descriptors needs the process to itself; everything else shares it.
static DESCRIPTORS: RwLock<()> = RwLock::new(());

/// A raw connection to a listener, by someone who does not know the protocol.
pub(crate) trait Raw: Read + Write {}
impl<T: Read + Write> Raw for T {}

type Knock = fn(&Address) -> Box<dyn Raw>;

/// A transport under test.
pub(crate) struct Subject {
    /// For messages: the transport and, where it is simulated, the seed.
    pub(crate) name: String,
    /// The side that connects.
    pub(crate) near: Arc<dyn Transport>,
    /// The side that listens.
    pub(crate) far: Arc<dyn Transport>,
    /// A connecting side with another secret, where the transport has secrets.
    pub(crate) wrong: Option<Arc<dyn Transport>>,
    /// Connects to a listener as a stranger, where strangers can.
    pub(crate) knock: Option<Knock>,
    /// Lets time pass, where the transport does not do so by itself.
    pub(crate) pump: Box<dyn Fn()>,
    /// Keeps what the case posts registered, where that is needed.
    pub(crate) registered: RefCell<Vec<Registration>>,
}

/// Both ends of a channel.
pub(crate) type Ends = (Box<dyn SendChannel>, Box<dyn RecvChannel>);

/// Runs a case over each subject in turn, beside other cases.
pub(crate) fn run(subjects: impl FnOnce() -> Vec<Subject>, case: fn(&Subject)) {
    let _shared = DESCRIPTORS.read().unwrap_or_else(PoisonError::into_inner);
    subjects().iter().for_each(case);
}

/// Runs a case over each subject in turn, while no other case runs: for those that count the process's descriptors.
pub(crate) fn run_alone(subjects: impl FnOnce() -> Vec<Subject>, case: fn(&Subject)) {
    let _alone = DESCRIPTORS.write().unwrap_or_else(PoisonError::into_inner);
    subjects().iter().for_each(case);
}

impl Subject {
    /// A tcp transport.
    pub(crate) fn tcp(options: tcp::Options) -> Vec<Self> {
        let secret = Secret::random().unwrap();
        let transport = |secret| Arc::new(tcp::Transport::new(options.clone(), secret).unwrap());
        let knock = |address: &Address| -> Box<dyn Raw> {
            Box::new(TcpStream::connect(tcp::candidates(address).unwrap()[0]).unwrap())
        };
        vec![Self {
            name: format!("tcp {options:?}"),
            near: transport(secret.clone()),
            far: transport(secret),
            wrong: Some(transport(Secret::random().unwrap())),
            knock: Some(knock),
            pump: Box::new(std::thread::yield_now),
            registered: RefCell::default(),
        }]
    }

    /// Shared memory.
    pub(crate) fn shm(adapt: fn(shm::Transport) -> shm::Transport) -> Vec<Self> {
        let secret = Secret::random().unwrap();
        let transport = |secret| Arc::new(adapt(shm::Transport::new(secret).unwrap()));
        let knock = |address: &Address| -> Box<dyn Raw> {
            let name = SocketAddr::from_abstract_name(shm::socket(address).unwrap()).unwrap();
            Box::new(UnixStream::connect_addr(&name).unwrap())
        };
        vec![Self {
            name: "shm".into(),
            near: transport(secret.clone()),
            far: transport(secret),
            wrong: Some(transport(Secret::random().unwrap())),
            knock: Some(knock),
            pump: Box::new(std::thread::yield_now),
            registered: RefCell::default(),
        }]
    }

    /// RDMA from the first to the last of this machine's usable devices; nothing where there is none.
    pub(crate) fn verbs(queue_pairs: usize) -> Vec<Self> {
        let found = verbs::devices().map(|devices| {
            let options = |device: &verbs::Device| {
                let options = verbs::Options::loopback().with_queue_pairs(queue_pairs);
                let options = options.on_port(&device.name, device.ports.first()?.number);
                options.choose(&devices).ok().map(|_| options)
            };
            devices.iter().filter_map(options).collect::<Vec<_>>()
        });
        let usable = match &found {
            Ok(usable) if !usable.is_empty() => usable,
            nothing => {
                assert!(std::env::var_os("RCCL_LAB").is_none(), "the lab must have devices: {nothing:?}");
                println!("not run: there is no RDMA device here ({nothing:?}); `cargo xtask lab` has two");
                return Vec::new();
            }
        };
        let secret = Secret::random().unwrap();
        let transport = |options: Option<&verbs::Options>, secret| {
            Arc::new(verbs::Transport::new(options.unwrap().clone(), secret).unwrap())
        };
        let knock = |address: &Address| -> Box<dyn Raw> {
            Box::new(TcpStream::connect(verbs::candidates(address).unwrap()[0]).unwrap())
        };
        vec![Self {
            name: format!("verbs with {queue_pairs} queue pairs"),
            near: transport(usable.first(), secret.clone()),
            far: transport(usable.last(), secret),
            wrong: Some(transport(usable.first(), Secret::random().unwrap())),
            knock: Some(knock),
            pump: Box::new(std::thread::yield_now),
            registered: RefCell::default(),
        }]
    }

    /// Simulated fabrics of many seeds.
    pub(crate) fn sims(settings: &sim::Settings) -> Vec<Self> {
        let subject = |seed| {
            let fabric = sim::Fabric::new(seed, settings.clone());
            Self {
                name: format!("sim of seed {seed}"),
                near: Arc::new(fabric.transport(0)),
                far: Arc::new(fabric.transport(1)),
                wrong: None,
                knock: None,
                pump: Box::new(move || _ = fabric.step()),
                registered: RefCell::default(),
            }
        };
        (0..SEEDS).map(subject).collect()
    }

    /// Memory that may be posted on both sides.
    pub(crate) fn region(&self, bytes: Vec<u8>) -> Arc<Region> {
        let region = Region::from_vec(bytes);
        for side in [&self.near, &self.far] {
            if side.caps().needs_registration {
                self.registered.borrow_mut().push(side.register(&region).unwrap());
            }
        }
        region
    }

    /// `len` zero bytes that may be posted on both sides.
    pub(crate) fn zeroed(&self, len: usize) -> Arc<Region> {
        self.region(vec![0; len])
    }

    /// A message of its own region.
    pub(crate) fn message(&self, bytes: Vec<u8>) -> Slice {
        let len = bytes.len();
        self.region(bytes).slice(0..len)
    }

    /// Asks again and again, letting time pass, until there is an answer.
    pub(crate) fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            (self.pump)();
            assert!(started.elapsed() < PATIENCE, "{}: {what} did not happen", self.name);
        }
    }

    /// A new channel from the near side to the far side.
    pub(crate) fn channel(&self) -> Ends {
        self.channel_to(&mut *self.far.listen().unwrap())
    }

    /// A new channel from the far side to the near side.
    pub(crate) fn channel_back(&self) -> Ends {
        let mut listener = self.near.listen().unwrap();
        let mut connecting = self.far.connect(&listener.address()).unwrap();
        self.establish(&mut *connecting, &mut *listener)
    }

    /// A new channel from the near side to a listener.
    pub(crate) fn channel_to(&self, listener: &mut dyn Listener) -> Ends {
        let mut connecting = self.near.connect(&listener.address()).unwrap();
        self.establish(&mut *connecting, listener)
    }

    /// The channel that is being connected.
    pub(crate) fn establish(&self, connecting: &mut dyn Connecting, listener: &mut dyn Listener) -> Ends {
        let (mut sender, mut receiver) = (None, None);
        self.until("connecting", || {
            if sender.is_none() {
                sender = connecting.poll().unwrap();
            }
            if receiver.is_none() {
                receiver = listener.poll_accept().unwrap();
            }
            (sender.is_some() && receiver.is_some()).then_some(())
        });
        (sender.unwrap(), receiver.unwrap())
    }

    /// The next completion of each end.
    pub(crate) fn both(&self, ends: &mut Ends) -> (Completion, Completion) {
        let (mut sent, mut received) = (None, None);
        self.until("a message", || {
            if sent.is_none() {
                sent = ends.0.poll().unwrap();
            }
            if received.is_none() {
                received = ends.1.poll().unwrap();
            }
            (sent.is_some() && received.is_some()).then_some(())
        });
        (sent.unwrap(), received.unwrap())
    }

    /// The error that polling ends in; completions before it do not count.
    pub(crate) fn failure(&self, mut poll: impl FnMut() -> Result<Option<Completion>>) -> Error {
        self.until("a failure", || poll().err())
    }
}

/// `len` bytes that differ from those of another seed. They repeat after a prime number of bytes, so that pieces that got
/// mixed up show.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut block = [0; 1021];
    for byte in &mut block {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    let mut bytes = Vec::with_capacity(len + block.len());
    while bytes.len() < len {
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(len);
    bytes
}

/// A copy of a slice that no channel touches now.
pub(crate) fn bytes(slice: &Slice) -> Vec<u8> {
    let mut out = vec![0; slice.len()];
    // SAFETY: `out` is as long as the slice, which keeps its region alive, and no channel has it outstanding.
    unsafe { slice.start().as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    out
}
