//! Neighbouring functions of single elements become one launch, and what lies between them is
//! never written.
//!
//! A chain carries one value from step to step; each step may read one more array, at an index
//! that repeats elements as broadcasting does. A launch joins the one that makes an operand of it
//! if nobody else reads that operand.
//!
//! Launches of a step before and after: deepfm 51 and 46, fm 42 and 37, xdeepfm 66 and 63, dcn 63
//! and 61; dnn, wide_deep, dlrm and slot_dnn have no such neighbours (2026-11-18; to repeat:
//! `cargo test -p regatta-rec --test zoo device::models -- --nocapture`).

use super::builder::Constant;
use super::launch::{Arg, Count, Launch, Place, Work};

/// Steps of one launch, and arrays that it reads.
const MOST_STEPS: usize = 8;
const MOST_ARRAYS: usize = 5;

/// What a step does with its operand; `chain_step` in `elementwise.cl` has the same numbers.
pub(super) const OF_BOTH: u32 = 100;
const OF_BOTH_TURNED: u32 = 200;
pub(super) const SLOPE_OF_KEPT: u32 = 300;
const SLOPE_OF_GRADIENT: u32 = 400;
pub(super) const ADD_SCALED: u32 = 500;

/// Element `i` of a chain meets element `i / over * by + i % within` of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) over: u32,
    pub(super) by: u32,
    pub(super) within: u32,
}

impl Index {
    /// The same element.
    pub(super) const SAME: Index = Index { over: 1, by: 1, within: 1 };

    /// The index into an input of a walk: of dimensions that are not 1, sizes and strides, 0 where
    /// the input repeats. Some walks have none.
    pub(super) fn of(dims: &[(u32, u32)]) -> Option<Index> {
        let total = dims.iter().map(|dim| dim.0).product::<u32>().max(1);
        let mut stride = 1;
        let gapless = dims.iter().rev().all(|&(size, step)| {
            let fits = step == stride;
            stride *= size;
            fits
        });
        match *dims {
            _ if gapless => Some(Index::SAME),
            [(_, 0)] => Some(Index { over: total, by: 0, within: 1 }),
            [(_, 0), (c, 1)] => Some(Index { over: total, by: 0, within: c }),
            [(_, 1), (c, 0)] => Some(Index { over: c, by: 1, within: 1 }),
            [(_, by), (r, 0), (c, 1)] if by == c => Some(Index { over: r * c, by, within: c }),
            _ => None,
        }
    }
}

/// An array that a chain reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Operand {
    pub(super) place: Place,
    pub(super) index: Index,
}

impl Operand {
    /// Read element by element.
    pub(super) fn same(place: Place) -> Operand {
        Operand { place, index: Index::SAME }
    }
}

/// One function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) code: u32,
    pub(super) operand: Option<Operand>,
    pub(super) params: [f32; 2],
}

impl Step {
    /// The step that carries its operand and reads what was carried.
    fn turned(self, carried: Operand) -> Option<Step> {
        let code = match self.code / 100 * 100 {
            OF_BOTH => self.code - OF_BOTH + OF_BOTH_TURNED,
            OF_BOTH_TURNED => self.code - OF_BOTH_TURNED + OF_BOTH,
            SLOPE_OF_KEPT => self.code - SLOPE_OF_KEPT + SLOPE_OF_GRADIENT,
            SLOPE_OF_GRADIENT => self.code - SLOPE_OF_GRADIENT + SLOPE_OF_KEPT,
            _ => return None,
        };
        Some(Step { code, operand: Some(carried), ..self })
    }
}

/// A launch as functions of single elements.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chain {
    pub(super) n: Count,
    pub(super) first: Operand,
    pub(super) steps: Vec<Step>,
    pub(super) out: Place,
}

impl Chain {
    fn operands(&self) -> impl Iterator<Item = Operand> {
        std::iter::once(self.first).chain(self.steps.iter().filter_map(|step| step.operand))
    }

    fn arrays(&self) -> Vec<Place> {
        let mut arrays = Vec::new();
        for operand in self.operands() {
            if !arrays.contains(&operand.place) {
                arrays.push(operand.place);
            }
        }
        arrays
    }

    /// This chain with what `made` does before, whose result it reads.
    fn after(&self, made: &Chain) -> Option<Chain> {
        let is_result = |operand: Operand| operand == Operand::same(made.out);
        if self.operands().filter(|operand| operand.place == made.out).count() != 1 {
            return None;
        }
        let mut joined = self.clone();
        if made.steps.is_empty() {
            // Only another way to read an array.
            let all = std::iter::once(&mut joined.first)
                .chain(joined.steps.iter_mut().filter_map(|step| step.operand.as_mut()));
            all.into_iter().find(|operand| is_result(**operand)).map(|o| *o = made.first)?;
        } else if is_result(self.first) {
            joined.first = made.first;
            joined.steps = [made.steps.as_slice(), &self.steps].concat();
        } else {
            let (second, rest) = self.steps.split_first()?;
            second.operand.filter(|operand| is_result(*operand))?;
            joined.first = made.first;
            joined.steps = [&made.steps, &[second.turned(self.first)?][..], rest].concat();
        }
        let fits = joined.steps.len() <= MOST_STEPS && joined.arrays().len() <= MOST_ARRAYS;
        fits.then_some(joined)
    }

    fn launch(self, constants: &mut Vec<Constant>) -> Launch {
        let arrays = self.arrays();
        let at = |operand: Operand| {
            let array = arrays.iter().position(|place| *place == operand.place).unwrap_or(0);
            let Index { over, by, within } = operand.index;
            [array as u32, over, by, within]
        };
        let mut steps = at(self.first).to_vec();
        for step in &self.steps {
            steps.push(step.code);
            steps.extend(step.operand.map_or([0; 4], at));
        }
        let params: Vec<f32> = self.steps.iter().flat_map(|step| step.params).collect();
        let mut constant = |constant: Constant| {
            constants.push(constant);
            Arg::At(Place::Const(constants.len() - 1))
        };
        let count = Arg::U32(self.steps.len() as u32);
        let mut args = vec![Arg::Count(self.n), count];
        args.push(constant(Constant::Sizes(steps)));
        args.push(constant(Constant::Floats(params)));
        args.extend((0..MOST_ARRAYS).map(|i| Arg::At(*arrays.get(i).unwrap_or(&arrays[0]))));
        args.push(Arg::At(self.out));
        Launch { kernel: "chain", work: Work::Items(self.n), args, chain: Some(self) }
    }
}

/// Temporaries that must be left alone.
pub(super) struct Untouched<'a> {
    /// Read by others than launches.
    pub(super) kept: &'a [usize],
    /// Written more than once.
    pub(super) rewritten: &'a [usize],
}

/// Joins what can be joined.
pub(super) fn join_chains(
    launches: Vec<Launch>,
    untouched: &Untouched<'_>,
    constants: &mut Vec<Constant>,
) -> Vec<Launch> {
    let mut all: Vec<Option<Launch>> = launches.into_iter().map(Some).collect();
    let mut has_joined = vec![false; all.len()];
    for at in 0..all.len() {
        while let Some((from, joined)) = next_join(&all, at, untouched) {
            (all[from], has_joined[at]) = (None, true);
            // Its constants are made when nothing more joins.
            all[at] = Some(joined.launch(&mut Vec::new()));
        }
    }
    let left =
        all.into_iter().zip(has_joined).filter_map(|(launch, joined)| Some((launch?, joined)));
    let finish = |(launch, joined): (Launch, bool)| match launch.chain {
        Some(chain) if joined => chain.launch(constants),
        _ => launch,
    };
    left.map(finish).collect()
}

/// An earlier launch that makes an operand of a chain for it alone, and the chain with both.
fn next_join(
    all: &[Option<Launch>],
    at: usize,
    untouched: &Untouched<'_>,
) -> Option<(usize, Chain)> {
    let chain = all[at].as_ref()?.chain.as_ref()?;
    let is_in = |place: Place, list: &[usize]| matches!(place, Place::Temp(t) if list.contains(&t));
    for operand in chain.operands() {
        let Place::Temp(temp) = operand.place else { continue };
        let touches = |launch: &Launch| launch.temps().any(|other| other == temp);
        let mut users = (0..all.len()).filter(|&i| all[i].as_ref().is_some_and(touches));
        let (Some(from), Some(to), None) = (users.next(), users.next(), users.next()) else {
            continue;
        };
        let Some(made) = all[from].as_ref().and_then(|launch| launch.chain.as_ref()) else {
            continue;
        };
        let is_made = to == at && made.out == operand.place && made.n == chain.n;
        let is_read_later = is_in(made.out, untouched.kept);
        let mut places = made.operands().map(|o| o.place).chain([made.out]);
        let is_rewritten = places.any(|place| is_in(place, untouched.rewritten));
        if !is_made || is_read_later || is_rewritten {
            continue;
        }
        if let Some(joined) = chain.after(made) {
            return Some((from, joined));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(first: Operand, steps: Vec<Step>, out: usize) -> Launch {
        let chain = Chain { n: Count::fixed(6), first, steps, out: Place::Temp(out) };
        chain.launch(&mut Vec::new())
    }

    fn step(code: u32, operand: Option<usize>) -> Step {
        let operand = operand.map(|temp| Operand::same(Place::Temp(temp)));
        Step { code, operand, params: [0.0; 2] }
    }

    #[test]
    fn what_lies_between_is_not_written() {
        let temp = |temp| Operand::same(Place::Temp(temp));
        let row = Index { over: 6, by: 0, within: 3 };
        let launches = vec![
            launch(Operand { place: Place::Param(0), index: row }, vec![], 1),
            launch(temp(0), vec![step(5, None)], 2),
            launch(temp(0), vec![step(OF_BOTH + 1, Some(2))], 3),
            launch(temp(3), vec![step(OF_BOTH, Some(1))], 4),
        ];
        let mut constants = Vec::new();
        let none = Untouched { kept: &[], rewritten: &[] };
        let joined = join_chains(launches.clone(), &none, &mut constants);
        let [Launch { chain: Some(chain), .. }] = joined.as_slice() else { panic!("{joined:?}") };
        // x - x^2 is x^2 taken from x, then the row is added.
        let codes: Vec<u32> = chain.steps.iter().map(|step| step.code).collect();
        assert_eq!(codes, [5, OF_BOTH_TURNED + 1, OF_BOTH]);
        assert_eq!(chain.arrays(), [Place::Temp(0), Place::Param(0)]);
        assert_eq!(constants.len(), 2);
        let kept = Untouched { kept: &[3], rewritten: &[] };
        assert_eq!(join_chains(launches.clone(), &kept, &mut vec![]).len(), 2);
        let rewritten = Untouched { kept: &[], rewritten: &[0] };
        assert_eq!(join_chains(launches, &rewritten, &mut vec![]).len(), 3);
    }

    #[test]
    fn indices_repeat_as_broadcasting_does() {
        let at = |n: Index| (0..12).map(move |i| i / n.over * n.by + i % n.within);
        let of = |dims: &[(u32, u32)]| Index::of(dims).map(|index| at(index).collect::<Vec<u32>>());
        assert_eq!(Index::of(&[(3, 4), (4, 1)]), Some(Index::SAME));
        assert_eq!(of(&[(3, 0), (4, 1)]).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(of(&[(3, 1), (4, 0)]).unwrap(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(of(&[(2, 2), (3, 0), (2, 1)]).unwrap(), [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]);
        assert_eq!(of(&[(12, 0)]).unwrap(), [0; 12]);
        assert_eq!(of(&[(2, 0), (3, 2), (2, 0)]), None);
    }
}
