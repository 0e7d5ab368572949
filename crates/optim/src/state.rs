//! What a rule remembers between steps: descriptions of its states, and views of their storage.

/// The largest number of states any rule has.
pub const MAX_STATES: usize = 4;

/// How many numbers one state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// One per weight.
    Element,
    /// One per row of a table.
    Row,
    /// One for the whole parameter; all rows of a table share it. It is a power of a decay that
    /// counts the steps: it begins at the decay, and every step multiplies it by that.
    Scalar,
}

/// Name and extent of a state; the same for every configuration of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Paddle's accumulator name, such as `moment1`.
    pub name: &'static str,
    /// Its extent.
    pub per: Per,
}

impl StateSpec {
    pub(crate) const fn element(name: &'static str) -> Self {
        StateSpec { name, per: Per::Element }
    }

    pub(crate) const fn row(name: &'static str) -> Self {
        StateSpec { name, per: Per::Row }
    }

    pub(crate) const fn scalar(name: &'static str) -> Self {
        StateSpec { name, per: Per::Scalar }
    }

    /// How many numbers this state holds for `n` weights.
    #[inline(always)]
    pub const fn len_for(&self, n: usize) -> usize {
        match self.per {
            Per::Element => n,
            Per::Row | Per::Scalar => 1,
        }
    }
}

/// All there is to know to allocate a state: a [`StateSpec`] and its first value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateDesc {
    /// Paddle's accumulator name, such as `moment1`.
    pub name: &'static str,
    /// Its extent.
    pub per: Per,
    /// The value every number of it starts with.
    pub initial: f32,
}

impl StateDesc {
    /// How many numbers this state holds for `n` weights.
    pub const fn len_for(&self, n: usize) -> usize {
        StateSpec { name: self.name, per: self.per }.len_for(n)
    }

    /// What `steps` steps multiply this state by, if it does nothing but count them.
    pub fn factor_of_steps(&self, steps: u64) -> Option<f32> {
        let steps = i32::try_from(steps).unwrap_or(i32::MAX);
        (self.per == Per::Scalar).then(|| self.initial.powi(steps))
    }
}

/// The states of one parameter, borrowed for one update, in the order of the rule's descriptions.
///
/// Made from separate slices (dense parameters) or by dividing one row of a table. Unused slots are
/// empty slices, so building a view allocates nothing.
#[derive(Debug)]
pub struct StateMut<'a> {
    pub(crate) slices: [&'a mut [f32]; MAX_STATES],
    len: usize,
}

impl<'a> StateMut<'a> {
    /// Divides `row_state`, laid out as `[element states, n each | states per row]`.
    ///
    /// # Panics
    /// If `row_state` does not have exactly the length that `specs` ask for.
    #[inline(always)]
    pub(crate) fn of_row(specs: &[StateSpec], n: usize, row_state: &'a mut [f32]) -> Self {
        let mut view = StateMut::default();
        let mut rest = row_state;
        for spec in specs.iter().filter(|spec| spec.per != Per::Scalar) {
            let (state, tail) = rest.split_at_mut(spec.len_for(n));
            view.slices[view.len] = state;
            view.len += 1;
            rest = tail;
        }
        assert!(rest.is_empty(), "the state of a row is longer than its rule needs");
        view
    }

    /// Adds the states that rows share, which come last.
    ///
    /// # Panics
    /// If there are more than [`MAX_STATES`] in all.
    #[inline(always)]
    pub(crate) fn and_shared(mut self, shared: &'a mut SharedState) -> Self {
        for value in &mut shared.values[..shared.len] {
            self.slices[self.len] = std::slice::from_mut(value);
            self.len += 1;
        }
        self
    }

    /// The slices, for callers that divide them further; unused slots are empty.
    #[inline(always)]
    pub fn into_slices(self) -> [&'a mut [f32]; MAX_STATES] {
        self.slices
    }

    /// How many states were given.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checks count and extents against what a rule expects for `n` weights.
    ///
    /// # Panics
    /// If they differ.
    pub(crate) fn expect(&self, specs: &[StateSpec], n: usize) {
        assert_eq!(self.len, specs.len(), "number of optimizer states");
        for (spec, state) in specs.iter().zip(&self.slices) {
            assert_eq!(state.len(), spec.len_for(n), "length of optimizer state `{}`", spec.name);
        }
    }
}

/// The states that all rows of a table have in common, such as the powers of Adam's betas: they
/// count the steps of the table, whichever rows a step touches.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SharedState {
    values: [f32; MAX_STATES],
    len: usize,
}

impl SharedState {
    pub(crate) fn first(states: impl Iterator<Item = (StateSpec, f32)>) -> SharedState {
        let mut shared = SharedState::default();
        for (_, value) in states.filter(|(spec, _)| spec.per == Per::Scalar) {
            shared.values[shared.len] = value;
            shared.len += 1;
        }
        shared
    }

    /// The values, in the order of the rule's descriptions.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.len]
    }
}

impl Default for StateMut<'_> {
    #[inline(always)]
    fn default() -> Self {
        StateMut { slices: [&mut [], &mut [], &mut [], &mut []], len: 0 }
    }
}

/// # Panics
/// If there are more than [`MAX_STATES`] slices.
impl<'a> FromIterator<&'a mut [f32]> for StateMut<'a> {
    #[inline(always)]
    fn from_iter<I: IntoIterator<Item = &'a mut [f32]>>(states: I) -> Self {
        let mut view = StateMut::default();
        for state in states {
            view.slices[view.len] = state;
            view.len += 1;
        }
        view
    }
}

impl<'a> FromIterator<&'a mut Vec<f32>> for StateMut<'a> {
    fn from_iter<I: IntoIterator<Item = &'a mut Vec<f32>>>(states: I) -> Self {
        states.into_iter().map(Vec::as_mut_slice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: [StateSpec; 3] =
        [StateSpec::element("a"), StateSpec::element("b"), StateSpec::row("c")];

    #[test]
    fn a_row_is_cut_in_order() {
        let mut row = [1.0, 2.0, 3.0, 4.0, 5.0];
        let view = StateMut::of_row(&SPECS, 2, &mut row);
        assert_eq!(view.len(), 3);
        assert_eq!(view.slices[0], [1.0, 2.0]);
        assert_eq!(view.slices[1], [3.0, 4.0]);
        assert_eq!(view.slices[2], [5.0]);
    }

    #[test]
    #[should_panic(expected = "longer than its rule needs")]
    fn a_long_row_is_refused() {
        StateMut::of_row(&SPECS, 1, &mut [0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "length of optimizer state `c`")]
    fn a_state_of_the_wrong_length_is_named() {
        let mut states = [vec![0.0; 2], vec![0.0; 2], vec![0.0; 2]];
        states.iter_mut().collect::<StateMut>().expect(&SPECS, 2);
    }
}
