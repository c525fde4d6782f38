//! What memory holds, as expressions over the ranks' inputs instead of bytes.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use crate::Rank;

/// The number of an expression; equal numbers stand for equal bits.
pub(super) type ExpressionId = u32;

/// How elements came about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Expression {
    /// Nobody wrote them.
    Unknown,
    /// A rank's input.
    Input(Rank),
    /// A reduction of values, each with the distance (wrapping) of its base from that of the first.
    Reduction { sources: Vec<(ExpressionId, u64)>, finish: bool },
}

/// A run of elements that came about in the same way: element `i` of them from element `base + i` of the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) len: u64,
    pub(super) expression: ExpressionId,
    pub(super) base: u64,
}

impl Run {
    const fn part(self, start: u64, len: u64) -> Self {
        Self { len, expression: self.expression, base: self.base.wrapping_add(start) }
    }
}

/// An expression and what follows from it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) expression: Expression,
    /// The contributions in the order of addition, with the distance of their base from the run's.
    pub(super) terms: Vec<(Rank, u64)>,
    /// Whether it is finished anywhere inside.
    pub(super) finished: bool,
}

/// All expressions met so far, each once.
#[derive(Debug)]
pub(super) struct Expressions {
    known: Vec<Known>,
    ids: HashMap<Expression, ExpressionId>,
}

impl Expressions {
    /// The number of [`Expression::Unknown`].
    pub(super) const UNKNOWN: ExpressionId = 0;

    pub(super) fn new() -> Self {
        let mut expressions = Self { known: Vec::new(), ids: HashMap::new() };
        expressions.intern(Expression::Unknown);
        expressions
    }

    pub(super) fn known(&self, id: ExpressionId) -> &Known {
        &self.known[id as usize]
    }

    pub(super) fn intern(&mut self, expression: Expression) -> ExpressionId {
        if let Some(&id) = self.ids.get(&expression) {
            return id;
        }
        let (terms, finished) = match &expression {
            Expression::Unknown => (Vec::new(), false),
            Expression::Input(rank) => (vec![(*rank, 0)], false),
            Expression::Reduction { sources, finish } => {
                let inner = |&(id, distance): &(ExpressionId, u64)| {
                    let terms = self.known(id).terms.iter();
                    terms.map(move |&(rank, inside)| (rank, inside.wrapping_add(distance)))
                };
                let finished = *finish || sources.iter().any(|&(id, _)| self.known(id).finished);
                (sources.iter().flat_map(inner).collect(), finished)
            }
        };
        let id = self.known.len() as ExpressionId;
        self.ids.insert(expression.clone(), id);
        self.known.push(Known { expression, terms, finished });
        id
    }

    /// The reduction of equally long `sources`; unknown wherever one of them is.
    pub(super) fn reduce(&mut self, sources: &[Vec<Run>], finish: bool) -> Vec<Run> {
        let mut heads: Vec<_> = sources.iter().map(|runs| (runs.iter(), None::<Run>)).collect();
        let mut result = Vec::new();
        loop {
            for (runs, head) in &mut heads {
                *head = head.filter(|run| run.len > 0).or_else(|| runs.next().copied());
            }
            let Some(current) = heads.iter().map(|&(_, head)| head).collect::<Option<Vec<Run>>>() else {
                return result;
            };
            let len = current.iter().map(|run| run.len).min().unwrap_or(0);
            let base = current[0].base;
            let expression = if current.iter().any(|run| run.expression == Self::UNKNOWN) {
                Self::UNKNOWN
            } else {
                let distances = current.iter().map(|run| (run.expression, run.base.wrapping_sub(base)));
                self.intern(Expression::Reduction { sources: distances.collect(), finish })
            };
            result.push(Run { len, expression, base });
            for (_, head) in &mut heads {
                *head = head.map(|run| run.part(len, run.len - len));
            }
        }
    }
}

/// Memory in which a range may hold input and the rest is unknown until it is written.
#[derive(Debug)]
pub(super) struct Memory {
    written: BTreeMap<u64, Run>,
    input: Range<u64>,
    input_expression: ExpressionId,
}

impl Memory {
    /// Memory that holds the input described by `expression` at the addresses `input`.
    pub(super) const fn new(input: Range<u64>, expression: ExpressionId) -> Self {
        Self { written: BTreeMap::new(), input, input_expression: expression }
    }

    pub(super) fn read(&self, range: Range<u64>) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let run = self.run_at(at);
            let run = run.part(0, run.len.min(range.end - at));
            at += run.len;
            runs.push(run);
        }
        runs
    }

    /// The longest known run that starts at address `at`.
    fn run_at(&self, at: u64) -> Run {
        if let Some((&start, run)) = self.written.range(..=at).next_back()
            && at - start < run.len
        {
            return run.part(at - start, run.len - (at - start));
        }
        let next = self.written.range(at..).next().map_or(u64::MAX, |(&start, _)| start);
        if self.input.contains(&at) {
            let len = next.min(self.input.end) - at;
            Run { len, expression: self.input_expression, base: at - self.input.start }
        } else {
            let end = if at < self.input.start { next.min(self.input.start) } else { next };
            Run { len: end - at, expression: Expressions::UNKNOWN, base: 0 }
        }
    }

    pub(super) fn write(&mut self, start: u64, runs: &[Run]) {
        let end = start + runs.iter().map(|run| run.len).sum::<u64>();
        self.clear(start..end);
        let mut at = start;
        for &run in runs {
            self.written.insert(at, run);
            at += run.len;
        }
    }

    fn clear(&mut self, range: Range<u64>) {
        let before = self.written.range(..range.start).next_back().map(|(&start, &run)| (start, run));
        if let Some((start, run)) = before
            && start + run.len > range.start
        {
            self.written.insert(start, run.part(0, range.start - start));
            self.written.insert(range.start, run.part(range.start - start, run.len - (range.start - start)));
        }
        let last = self.written.range(range.clone()).next_back().map(|(&start, &run)| (start, run));
        if let Some((start, run)) = last
            && start + run.len > range.end
        {
            self.written.insert(range.end, run.part(range.end - start, run.len - (range.end - start)));
        }
        let inside: Vec<_> = self.written.range(range).map(|(&start, _)| start).collect();
        for start in inside {
            self.written.remove(&start);
        }
    }

    /// What was written, in runs as long as possible, with their addresses.
    pub(super) fn written(&self) -> Vec<(u64, Run)> {
        let mut joined: Vec<(u64, Run)> = Vec::new();
        for (&start, &run) in &self.written {
            match joined.last_mut() {
                Some((first, last))
                    if *first + last.len == start
                        && last.expression == run.expression
                        && last.base.wrapping_add(last.len) == run.base =>
                {
                    last.len += run.len;
                }
                _ => joined.push((start, run)),
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(len: u64, expression: ExpressionId, base: u64) -> Run {
        Run { len, expression, base }
    }

    #[test]
    fn memory_keeps_what_surrounds_a_write() {
        let mut memory = Memory::new(2..8, 7);
        memory.write(4, &[run(2, 9, 100)]);
        assert_eq!(
            memory.read(0..10),
            [run(2, 0, 0), run(2, 7, 0), run(2, 9, 100), run(2, 7, 4), run(2, 0, 0)]
        );
        memory.write(0, &[run(10, 5, 50)]);
        memory.write(3, &[run(1, 6, 0), run(2, 6, 1)]);
        assert_eq!(memory.read(2..7), [run(1, 5, 52), run(1, 6, 0), run(2, 6, 1), run(1, 5, 56)]);
        assert_eq!(memory.written(), [(0, run(3, 5, 50)), (3, run(3, 6, 0)), (6, run(4, 5, 56))]);
    }

    #[test]
    fn a_reduction_lists_its_contributions_in_order() {
        let mut expressions = Expressions::new();
        let [a, b, c] = [3, 1, 2].map(|rank| expressions.intern(Expression::Input(Rank(rank))));
        let partial = expressions.reduce(&[vec![run(4, a, 10)], vec![run(1, b, 10), run(3, b, 0)]], false);
        assert_eq!(partial.len(), 2);
        let sum = expressions.reduce(&[partial, vec![run(4, c, 10)]], true);
        assert_eq!(sum.iter().map(|run| run.len).collect::<Vec<_>>(), [1, 3]);
        let known = expressions.known(sum[1].expression);
        assert_eq!(sum[1].base, 11);
        assert_eq!(known.terms, [(Rank(3), 0), (Rank(1), 0u64.wrapping_sub(11)), (Rank(2), 0)]);
        assert!(known.finished && !expressions.known(a).finished);
    }
}
