use crate::plan::{Plan, Step};

/// How far one rank has come in a plan: a cursor for each lane. Knows nothing of time, memory or peers; executors ask it
/// what may run and tell it what has run.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    cursors: Vec<Cursor>,
    unfinished: usize,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    iteration: u64,
    position: u32,
}

impl Progress {
    /// The start of `plan`.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let mut progress = Self::default();
        progress.restart(plan);
        progress
    }

    /// Goes back to the start, of this or of another plan, without allocating where there is room.
    pub fn restart(&mut self, plan: &Plan) {
        self.cursors.clear();
        self.cursors.resize(plan.lanes.len(), Cursor { iteration: 0, position: 0 });
        // Every step of a plan has at least one element, so no lane starts with an empty iteration.
        self.unfinished = self.cursors.len();
    }

    /// Whether every step of every iteration has run.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.unfinished == 0
    }

    /// The step that `lane` is at and its iteration, if the lane has not finished and no dependency holds the step back.
    /// Slots are not looked at: that is the executor's part.
    #[must_use]
    pub fn ready<'p>(&self, plan: &'p Plan, lane: usize) -> Option<(&'p Step, u64)> {
        let cursor = self.cursors[lane];
        if cursor.iteration >= plan.iterations {
            return None;
        }
        let step = plan.step(plan.lanes[lane][cursor.position as usize]);
        let free = step.after.iter().all(|&id| self.has_run(plan, plan.step(id), cursor.iteration));
        free.then_some((step, cursor.iteration))
    }

    /// Records that the step `lane` was at has run; steps with nothing to do in their iteration are passed over.
    pub fn complete(&mut self, plan: &Plan, lane: usize) {
        let cursor = &mut self.cursors[lane];
        let steps = &plan.lanes[lane];
        loop {
            cursor.position += 1;
            if cursor.position as usize == steps.len() {
                cursor.position = 0;
                cursor.iteration += 1;
                if cursor.iteration == plan.iterations {
                    self.unfinished -= 1;
                    return;
                }
            }
            let step = plan.step(steps[cursor.position as usize]);
            if !step.segment(plan, cursor.iteration).is_empty() {
                return;
            }
        }
    }

    fn has_run(&self, plan: &Plan, step: &Step, iteration: u64) -> bool {
        let cursor = self.cursors[step.lane as usize];
        debug_assert!(cursor.iteration <= plan.iterations);
        (cursor.iteration, cursor.position) > (iteration, step.position)
    }
}
