//! Drives runs: looks, waits without burning a shared core, and gives up with a reason.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use rccl_core::{Group, Rank, Request, planner};

use crate::{
    Error, Result,
    choice::Thresholds,
    engine::{GRACE_AFTER_GOODBYE, Seat},
    exec::{Advance, Ports, Program, Run, Way, Ways},
    state::State,
};

/// What one thread at a time may use to carry out calls.
#[derive(Debug)]
pub(crate) struct Driver {
    group: Group,
    thresholds: Thresholds,
    pub(crate) ports: Ports,
    programs: HashMap<Request, Arc<Program>>,
    last: Option<(Request, Arc<Program>)>,
    spare: Option<Run>,
    /// How slots and results are best written.
    ways: Ways,
    patience: Patience,
    deadline: Duration,
}

/// Programs that are kept. A training step has a few dozen different calls; beyond this all are forgotten.
const MAX_PROGRAMS: usize = 1024;

impl Driver {
    pub(crate) fn new(
        group: Group,
        thresholds: Thresholds,
        ports: Ports,
        residents: usize,
        deadline: Duration,
    ) -> Self {
        Self {
            group,
            thresholds,
            ports,
            programs: HashMap::new(),
            last: None,
            spare: None,
            ways: Ways::default(),
            patience: Patience::new(residents),
            deadline,
        }
    }

    /// The program for a request, from the cache if it was asked for before.
    pub(crate) fn program(&mut self, request: &Request) -> Result<Arc<Program>> {
        if let Some((last, program)) = &self.last
            && last == request
        {
            return Ok(Arc::clone(program));
        }
        let program = match self.programs.get(request) {
            Some(program) => Arc::clone(program),
            None => self.compile(request)?,
        };
        self.last = Some((*request, Arc::clone(&program)));
        Ok(program)
    }

    fn compile(&mut self, request: &Request) -> Result<Arc<Program>> {
        request.check(self.group)?;
        let algorithm = self.thresholds.algorithm(request);
        let segment = self.thresholds.segment(self.group, request, algorithm);
        let plan = planner::plan(self.group, request, algorithm, segment)?;
        let program = Arc::new(Program::new(plan, &self.ports));
        if self.programs.len() >= MAX_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(*request, Arc::clone(&program));
        Ok(program)
    }

    /// Begins a run of `program`, the next call of this rank.
    ///
    /// # Safety
    /// As [`Run::new`].
    pub(crate) unsafe fn begin(
        &mut self,
        state: &State,
        program: &Arc<Program>,
        input: *const u8,
        output: *mut u8,
    ) -> Run {
        let mut run = match self.spare.take() {
            Some(mut run) => {
                // SAFETY: passed on to the caller.
                unsafe { run.reuse(program, input, output) };
                run
            }
            // SAFETY: passed on to the caller.
            None => unsafe { Run::new(Arc::clone(program), input, output) },
        };
        let times = self.ways.of(program.output_bytes, run.is_in_place());
        run.write(times.map_or(Way::default(), |times| times.best()));
        if program.is_collective() {
            run.number(state.begin(program.label_text()));
        }
        run
    }

    /// Keeps the room of a run that has ended.
    pub(crate) fn recycle(&mut self, run: Run) {
        self.spare = Some(run);
    }

    /// Carries out a run that has not begun, in the way that has been quickest, and notes how long it took.
    pub(crate) fn carry_out(&mut self, run: &mut Run, state: &State, seat: &Seat) -> Result<()> {
        let kind = (run.program().output_bytes, run.is_in_place());
        let Some(times) = self.ways.of(kind.0, kind.1) else {
            return self.finish(run, Wait::default(), state, seat);
        };
        run.write(times.choose());
        let began = Instant::now();
        self.finish(run, Wait::default(), state, seat)?;
        if let Some(times) = self.ways.of(kind.0, kind.1) {
            times.note(began.elapsed());
        }
        Ok(())
    }

    /// Carries a run out, from wherever it has come to, waiting as long as it takes or the deadline allows; `wait` has the
    /// clocks of whoever drove it before.
    pub(crate) fn finish(&mut self, run: &mut Run, mut wait: Wait, state: &State, seat: &Seat) -> Result<()> {
        // A channel told its end to whoever drove the run before, and will not tell it again.
        if let Some((_, error)) = wait.lost.take() {
            return Err(error);
        }
        loop {
            match run.advance(&mut self.ports).map_err(|fault| fault.explain(state))? {
                Advance::Done => return Ok(()),
                Advance::Moved => wait.moved(),
                Advance::Blocked => self.wait(run, &mut wait, state, seat)?,
            }
        }
    }

    /// Waits a little, in the way that suits how long it has waited already.
    fn wait(&mut self, run: &mut Run, wait: &mut Wait, state: &State, seat: &Seat) -> Result<()> {
        state.check()?;
        wait.looks += 1;
        if wait.looks <= self.patience.spins {
            std::hint::spin_loop();
            return Ok(());
        }
        if wait.looks <= self.patience.spins + self.patience.yields {
            std::thread::yield_now();
            return Ok(());
        }
        self.give_up_if_hopeless(run, wait, state, seat)?;
        self.sleep(run, wait, state)
    }

    fn sleep(&mut self, run: &mut Run, wait: &mut Wait, state: &State) -> Result<()> {
        if self.ports.has_remote() {
            // Nobody rings for a descriptor, and nobody's doorbell is a descriptor: with peers of both kinds, look often.
            let nap = if self.ports.has_local() { Duration::from_micros(100) } else { MAX_NAP };
            let awaited = self.awaited(run);
            self.ports.poll(nap, &awaited);
            return Ok(());
        }
        let doorbell = self.ports.own().clone();
        let mut found = Ok(Advance::Blocked);
        doorbell.sleep_unless(MAX_NAP, || {
            found = run.advance(&mut self.ports);
            !matches!(found, Ok(Advance::Blocked)) || state.cause().is_some()
        });
        if found.map_err(|fault| fault.explain(state))? == Advance::Moved {
            wait.moved();
        }
        Ok(())
    }

    /// The checks that need a clock.
    fn give_up_if_hopeless(&mut self, run: &Run, wait: &mut Wait, state: &State, seat: &Seat) -> Result<()> {
        let now = Instant::now();
        let began = *wait.began.get_or_insert(now);
        let stuck = now.duration_since(*wait.stuck_since.get_or_insert(now));
        if stuck >= wait.announce_after {
            wait.announce_after *= 2;
            if run.program().is_collective() {
                seat.announce();
            }
        }
        if let Some(rank) = self.awaited(run).into_iter().find(|&rank| state.has_left(rank)) {
            let since = *wait.left_since.get_or_insert(now);
            if now.duration_since(since) > GRACE_AFTER_GOODBYE {
                let waiting_for = format!("{} still needs it", run.program().call());
                return Err(Error::PeerLeft { rank: rank.0, waiting_for });
            }
        }
        if now.duration_since(began) < self.deadline {
            return Ok(());
        }
        let ranks: Vec<String> = self.awaited(run).iter().map(Rank::to_string).collect();
        let waiting_for = match ranks.as_slice() {
            [] => "its last messages were not taken over by the network".to_owned(),
            [rank] => format!("it waits for rank {rank}"),
            ranks => format!("it waits for ranks {}", ranks.join(", ")),
        };
        Err(Error::Timeout { call: run.program().call().to_string(), after: self.deadline, waiting_for })
    }

    fn awaited(&mut self, run: &Run) -> Vec<Rank> {
        run.waits_for(&mut self.ports)
    }

    /// One look at a run that nobody waits for; the engine's part. `wait` carries its clocks from look to look.
    pub(crate) fn look(
        &mut self,
        run: &mut Run,
        wait: &mut Wait,
        state: &State,
        seat: &Seat,
    ) -> Result<Advance> {
        state.check()?;
        let found = run.advance(&mut self.ports).map_err(|fault| fault.explain(state))?;
        match found {
            Advance::Moved => wait.moved(),
            Advance::Blocked => {
                wait.looks += 1;
                if wait.looks > self.patience.spins {
                    self.give_up_if_hopeless(run, wait, state, seat)?;
                }
            }
            Advance::Done => {}
        }
        Ok(found)
    }
}

/// The longest sleep before looking again without having been woken.
const MAX_NAP: Duration = Duration::from_millis(20);

/// How long a rank may be stuck before it asks whether all ranks make the same call.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(50);

/// The clocks of one call that waits.
#[derive(Debug)]
pub(crate) struct Wait {
    looks: u32,
    began: Option<Instant>,
    stuck_since: Option<Instant>,
    left_since: Option<Instant>,
    /// When a channel broke, and what it said.
    lost: Option<(Instant, Error)>,
    announce_after: Duration,
}

impl Default for Wait {
    fn default() -> Self {
        Self {
            looks: 0,
            began: None,
            stuck_since: None,
            left_since: None,
            lost: None,
            announce_after: ANNOUNCE_AFTER,
        }
    }
}

impl Wait {
    fn moved(&mut self) {
        (self.looks, self.stuck_since, self.left_since) = (0, None, None);
    }

    /// Looks, and holds back the error of a broken channel for `grace`: the engine, which is the one that looks, cannot wait
    /// for the first cause and hear of it too. Once it has, the look ends with that.
    pub(crate) fn with_grace(
        &mut self,
        grace: Duration,
        look: impl FnOnce(&mut Self) -> Result<Advance>,
    ) -> Result<Advance> {
        match (look(self), self.lost.clone()) {
            (Err(error @ Error::PeerLost { .. }), None) => {
                self.lost = Some((Instant::now(), error));
                Ok(Advance::Blocked)
            }
            // A channel tells of its end only once.
            (Ok(Advance::Blocked) | Err(Error::PeerLost { .. }), Some((since, error))) => {
                if since.elapsed() < grace { Ok(Advance::Blocked) } else { Err(error) }
            }
            (found, _) => found,
        }
    }
}

/// How often to look before sleeping.
#[derive(Debug, Clone, Copy)]
struct Patience {
    spins: u32,
    yields: u32,
}

impl Patience {
    /// For a rank that shares the host with `residents - 1` others. Where every rank has a core, spinning is the fastest
    /// way to wait, for a short while: the scheduler may have put two ranks on one core all the same, and then, as where
    /// there are more ranks than cores, spinning keeps the very rank from running that is waited for.
    fn new(residents: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if residents <= cores { Self { spins: 300, yields: 1000 } } else { Self { spins: 10, yields: 40 } }
    }
}
