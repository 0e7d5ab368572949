//! What a sparse table is: a [`SparseConfig`] is written by the caller and checked once.

use regatta_optim::table_rule::Adagrad;
use regatta_optim::{RowLoop, RowRule, Rule, SharedState, StateDesc, TableRule};
use serde::{Deserialize, Serialize};

use crate::row::Kind;
use crate::{Admission, Error, Initializer, Stream, TierConfig};

/// The number of a table, the same on all servers and workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableId(pub u32);

impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table {}", self.0)
    }
}

/// An update rule for rows: the user's optimizer, or one of the rules for click-through rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnyRule {
    /// One of the optimizers, lazily per row: only rows that are pushed move.
    Optimizer(Rule),
    /// One of the rules of Paddle's sparse tables.
    Table(TableRule),
}

impl AnyRule {
    /// The name in configuration files.
    pub fn name(&self) -> &'static str {
        match self {
            AnyRule::Optimizer(rule) => rule.name(),
            AnyRule::Table(rule) => rule.name(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), regatta_optim::Error> {
        match self {
            AnyRule::Optimizer(rule) => rule.validate(),
            AnyRule::Table(rule) => rule.validate(),
        }
    }
}

impl From<Rule> for AnyRule {
    fn from(rule: Rule) -> Self {
        AnyRule::Optimizer(rule)
    }
}

impl From<TableRule> for AnyRule {
    fn from(rule: TableRule) -> Self {
        AnyRule::Table(rule)
    }
}

impl RowRule for AnyRule {
    fn states(&self) -> Vec<StateDesc> {
        match self {
            AnyRule::Optimizer(rule) => rule.states(),
            AnyRule::Table(rule) => rule.states(),
        }
    }

    fn row_state_len(&self, n: usize) -> usize {
        match self {
            AnyRule::Optimizer(rule) => rule.row_state_len(n),
            AnyRule::Table(rule) => rule.row_state_len(n),
        }
    }

    fn init_row_state(&self, n: usize, state: &mut [f32]) {
        match self {
            AnyRule::Optimizer(rule) => rule.init_row_state(n, state),
            AnyRule::Table(rule) => rule.init_row_state(n, state),
        }
    }

    fn shared_state(&self) -> SharedState {
        match self {
            AnyRule::Optimizer(rule) => rule.shared_state(),
            AnyRule::Table(rule) => rule.shared_state(),
        }
    }

    fn advance(&self, shared: &mut SharedState) {
        match self {
            AnyRule::Optimizer(rule) => rule.advance(shared),
            AnyRule::Table(rule) => rule.advance(shared),
        }
    }

    fn run_rows<L: RowLoop>(&self, lr: f32, shared: &SharedState, rows: L) {
        match self {
            AnyRule::Optimizer(rule) => rule.run_rows(lr, shared, rows),
            AnyRule::Table(rule) => rule.run_rows(lr, shared, rows),
        }
    }
}

/// Rows of weights with the state of an update rule, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainConfig {
    /// Weights per row; pulls and pushes have this width.
    pub dim: usize,
    /// How rows are updated.
    pub rule: AnyRule,
    /// How weights of a new row are drawn.
    pub initializer: Initializer,
    /// [`shrink`](crate::SparseTable::shrink) removes rows without a push for more days than this.
    pub delete_after_unseen_days: u32,
}

impl PlainConfig {
    /// Rows that start as zeros and are removed after 30 days without a push.
    pub fn new(dim: usize, rule: impl Into<AnyRule>) -> Self {
        PlainConfig {
            dim,
            rule: rule.into(),
            initializer: Initializer::Constant(0.0),
            delete_after_unseen_days: 30,
        }
    }
}

/// Rows with impression and click statistics for click-through-rate models.
///
/// A pull gives `show, click, embed, embedx[embedx_dim]`; a push carries `slot, show, click, embed
/// gradient, embedx gradient[embedx_dim]`. A row begins without the embedx part, which comes into
/// being when the score of the row reaches `embedx_threshold`.
///
/// The defaults are those of Paddle's table description.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CtrConfig {
    /// Width of the extended vector.
    pub embedx_dim: usize,
    /// Score from which a row has the extended vector.
    pub embedx_threshold: f32,
    /// Weight of an impression without click in the score.
    pub nonclk_coeff: f32,
    /// Weight of a click in the score.
    pub click_coeff: f32,
    /// Smallest score of rows in base and delta saves.
    pub base_threshold: f32,
    /// Smallest score since the last save of rows in delta saves.
    pub delta_threshold: f32,
    /// Rows without a push for more days than this are left out of base and delta saves.
    pub delta_keep_days: u32,
    /// What a shrink leaves of shows and clicks.
    pub show_click_decay_rate: f32,
    /// A shrink removes rows with a smaller score.
    pub delete_threshold: f32,
    /// A shrink removes rows without a push for more days than this.
    pub delete_after_unseen_days: u32,
    /// Whether rules divide a gradient by its impressions.
    pub show_scale: bool,
    /// Whether the weight of a new row is zero instead of random.
    pub zero_init: bool,
    /// How the single weight is updated.
    pub embed_rule: TableRule,
    /// How the extended vector is updated.
    pub embedx_rule: TableRule,
}

impl Default for CtrConfig {
    fn default() -> Self {
        CtrConfig {
            embedx_dim: 8,
            embedx_threshold: 10.0,
            nonclk_coeff: 0.1,
            click_coeff: 1.0,
            base_threshold: 1.5,
            delta_threshold: 0.25,
            delta_keep_days: 16,
            show_click_decay_rate: 0.98,
            delete_threshold: 0.8,
            delete_after_unseen_days: 30,
            show_scale: true,
            zero_init: true,
            embed_rule: TableRule::Adagrad(Adagrad::default()),
            embedx_rule: TableRule::Adagrad(Adagrad::default()),
        }
    }
}

/// What a row holds; there is no default, because the choice changes what training does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Accessor {
    /// Weights and optimizer state.
    Plain(PlainConfig),
    /// Statistics, a weight, and an extended vector for rows that earn it.
    Ctr(CtrConfig),
}

/// What brings a row into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Create {
    /// A training pull: the worker trains with the values it got. Pushes to absent rows, which were
    /// evicted or never admitted, change nothing.
    OnPull,
    /// A push, as Paddle's `pserver_create_value_when_push`: pulls of absent rows give zeros.
    OnPush,
}

/// All that makes a sparse table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseConfig {
    /// Its number.
    pub table: TableId,
    /// Seed of initial values and of admission by probability.
    pub seed: u64,
    /// The random sequence of initial values.
    pub stream: Stream,
    /// What a row holds.
    pub accessor: Accessor,
    /// Which ids become rows.
    pub admission: Admission,
    /// What brings rows into being.
    pub create: Create,
    /// An id that always pulls zeros and is never created.
    pub padding_idx: Option<u64>,
    /// Number of independently locked parts, a power of two.
    pub n_shards: usize,
    /// Whether to ask the system for huge pages.
    pub huge_pages: bool,
    /// If not all rows are to be in memory: how many, and where the others are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierConfig>,
}

/// What one table and one request can hold at most: slots and positions are `u32`.
const MAX_SHARDS: usize = 1 << 12;
const MAX_DIM: usize = 1 << 20;

impl SparseConfig {
    /// A table that admits every id. Plain rows are created on pull and CTR rows on push.
    pub fn new(table: TableId, seed: u64, accessor: Accessor) -> Self {
        let create = match accessor {
            Accessor::Plain(_) => Create::OnPull,
            Accessor::Ctr(_) => Create::OnPush,
        };
        SparseConfig {
            table,
            seed,
            stream: Stream::Table,
            accessor,
            admission: Admission::None,
            create,
            padding_idx: None,
            n_shards: 16,
            huge_pages: true,
            tier: None,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`] or [`Error::Rule`] names the table and the field.
    pub fn validate(&self) -> Result<(), Error> {
        if let Some(what) = self.problem() {
            return Err(Error::Config { table: self.table, what });
        }
        let rules = match &self.accessor {
            Accessor::Plain(plain) => vec![plain.rule],
            Accessor::Ctr(ctr) => vec![ctr.embed_rule.into(), ctr.embedx_rule.into()],
        };
        rules
            .iter()
            .try_for_each(AnyRule::validate)
            .map_err(|source| Error::Rule { table: self.table, source })
    }

    fn problem(&self) -> Option<String> {
        if !self.n_shards.is_power_of_two() || self.n_shards > MAX_SHARDS {
            let n = self.n_shards;
            return Some(format!("`n_shards` is {n}, expected a power of two up to {MAX_SHARDS}"));
        }
        let accessor = match &self.accessor {
            Accessor::Plain(plain) if !(1..=MAX_DIM).contains(&plain.dim) => {
                Some(format!("`dim` is {}, expected 1 to {MAX_DIM}", plain.dim))
            }
            Accessor::Plain(plain) => match self.admission {
                Admission::ShowClick { .. } => Some(format!(
                    "`admission` is {}, which needs the ctr accessor, but the accessor is plain",
                    self.admission
                )),
                _ => plain.initializer.problem(),
            },
            Accessor::Ctr(ctr) => ctr.problem(),
        };
        let tier = || self.tier.as_ref().and_then(|tier| tier.problem(&Kind::new(self)));
        accessor.or_else(|| self.admission.problem()).or_else(tier)
    }
}

impl CtrConfig {
    fn problem(&self) -> Option<String> {
        if self.embedx_dim > MAX_DIM {
            return Some(format!("`embedx_dim` is {}, expected up to {MAX_DIM}", self.embedx_dim));
        }
        if !(0.0..=1.0).contains(&self.show_click_decay_rate) {
            let rate = self.show_click_decay_rate;
            return Some(format!("`show_click_decay_rate` is {rate}, expected 0 to 1"));
        }
        let numbers = [
            ("embedx_threshold", self.embedx_threshold),
            ("nonclk_coeff", self.nonclk_coeff),
            ("click_coeff", self.click_coeff),
            ("base_threshold", self.base_threshold),
            ("delta_threshold", self.delta_threshold),
            ("delete_threshold", self.delete_threshold),
        ];
        let bad = numbers.iter().find(|(_, value)| !value.is_finite());
        bad.map(|(name, value)| format!("`{name}` is {value}, expected a finite number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_optim::{Adam, Sgd};

    fn plain(dim: usize) -> SparseConfig {
        let accessor = Accessor::Plain(PlainConfig::new(dim, Rule::Sgd(Sgd {})));
        SparseConfig::new(TableId(4), 1, accessor)
    }

    fn refusal(config: &SparseConfig) -> String {
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        assert_eq!(plain(8).validate(), Ok(()));
        assert!(refusal(&plain(0)).starts_with("table 4: `dim` is 0"));
        let config = SparseConfig { n_shards: 12, ..plain(8) };
        assert!(refusal(&config).contains("`n_shards` is 12"));
        let config = SparseConfig { admission: Admission::Probability(2.0), ..plain(8) };
        assert!(refusal(&config).contains("probability 2"));
        let show_click = Admission::ShowClick { show: "s".into(), click: "c".into() };
        let config = SparseConfig { admission: show_click.clone(), ..plain(8) };
        assert!(refusal(&config).contains("needs the ctr accessor"));
        let ctr = SparseConfig::new(TableId(0), 0, Accessor::Ctr(CtrConfig::default()));
        assert_eq!(SparseConfig { admission: show_click, ..ctr }.validate(), Ok(()));
        let bad = CtrConfig { show_click_decay_rate: 1.5, ..CtrConfig::default() };
        let config = SparseConfig::new(TableId(0), 0, Accessor::Ctr(bad));
        assert!(refusal(&config).contains("`show_click_decay_rate` is 1.5"));
        let rule = Rule::Adam(Adam { beta1: 2.0, ..Adam::default() });
        let accessor = Accessor::Plain(PlainConfig::new(8, rule));
        let error = refusal(&SparseConfig::new(TableId(1), 0, accessor));
        assert!(error.starts_with("table 1: adam: `beta1` is 2"), "{error}");
    }

    #[test]
    fn configurations_can_be_written_down() {
        for accessor in [plain(9).accessor, Accessor::Ctr(CtrConfig::default())] {
            let config = SparseConfig {
                admission: Admission::CountFilter(3),
                ..SparseConfig::new(TableId(7), 11, accessor)
            };
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<SparseConfig>(&text).unwrap(), config);
        }
    }
}
