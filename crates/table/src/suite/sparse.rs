//! The suite of sparse tables.

use regatta_optim::{
    Adadelta, Adagrad, Adam, AdamD2Sum, AdamW, Ftrl, Lamb, LarsMomentum, Momentum, RmsProp, Rule,
    Sgd, Sum, Summary, TableRule, table_rule,
};

use super::{Choices, Model, assert_same_bits};
use crate::{
    Accessor, Admission, AnyRule, Create, CtrConfig, Error, Initializer, PlainConfig, PullCounts,
    PullMode, PushCounts, Row, RowBody, SaveMode, Scratch, ShardRows, ShrinkCounts, SparseConfig,
    SparseTable, Stats, Stream, TableId, row_order,
};

/// What the suite asks of a table of rows. The contracts are those of [`SparseTable`].
#[expect(missing_docs, reason = "each method is described where SparseTable has it")]
pub trait RowStore: Sized {
    fn make(config: &SparseConfig) -> Result<Self, Error>;
    fn pull(
        &self,
        keys: &[u64],
        out: &mut [f32],
        mode: PullMode<'_>,
        scratch: &mut Scratch,
    ) -> Result<PullCounts, Error>;
    fn push(
        &self,
        keys: &[u64],
        values: &[f32],
        lr: f32,
        scratch: &mut Scratch,
    ) -> Result<PushCounts, Error>;
    fn widths(&self) -> (usize, usize);
    fn end_day(&self);
    fn shrink(&self, unseen_days: Option<u32>) -> Result<ShrinkCounts, Error>;
    fn clear(&self) -> Result<(), Error>;
    fn export(&self, mode: SaveMode) -> Result<Vec<ShardRows>, Error>;
    fn saved(&self, rows: &ShardRows) -> Result<(), Error>;
    fn import<'a>(&self, rows: impl IntoIterator<Item = Row<'a>>) -> Result<usize, Error>;
    fn steps(&self) -> u64;
    fn set_steps(&self, steps: u64);
    fn stats(&self) -> Result<Stats, Error>;
}

impl RowStore for SparseTable {
    fn make(config: &SparseConfig) -> Result<Self, Error> {
        SparseTable::new(config.clone())
    }
    fn pull(
        &self,
        keys: &[u64],
        out: &mut [f32],
        mode: PullMode<'_>,
        scratch: &mut Scratch,
    ) -> Result<PullCounts, Error> {
        SparseTable::pull(self, keys, out, mode, scratch)
    }
    fn push(
        &self,
        keys: &[u64],
        values: &[f32],
        lr: f32,
        scratch: &mut Scratch,
    ) -> Result<PushCounts, Error> {
        SparseTable::push(self, keys, values, lr, scratch)
    }
    fn widths(&self) -> (usize, usize) {
        (self.pull_width(), self.push_width())
    }
    fn end_day(&self) {
        SparseTable::end_day(self);
    }
    fn shrink(&self, unseen_days: Option<u32>) -> Result<ShrinkCounts, Error> {
        SparseTable::shrink(self, unseen_days)
    }
    fn clear(&self) -> Result<(), Error> {
        SparseTable::clear(self)
    }
    fn export(&self, mode: SaveMode) -> Result<Vec<ShardRows>, Error> {
        (0..self.n_shards()).map(|shard| SparseTable::export(self, shard, mode)).collect()
    }
    fn saved(&self, rows: &ShardRows) -> Result<(), Error> {
        SparseTable::saved(self, &rows.receipt())
    }
    fn import<'a>(&self, rows: impl IntoIterator<Item = Row<'a>>) -> Result<usize, Error> {
        SparseTable::import(self, rows)
    }
    fn steps(&self) -> u64 {
        SparseTable::steps(self)
    }
    fn set_steps(&self, steps: u64) {
        SparseTable::set_steps(self, steps);
    }
    fn stats(&self) -> Result<Stats, Error> {
        SparseTable::stats(self)
    }
}

/// Every rule, accessor, admission policy and way of creation, in tables that meet their limits
/// within a few days.
pub fn sparse_configs() -> Vec<SparseConfig> {
    let mut configs = Vec::new();
    let policies = [Admission::None, Admission::CountFilter(3), Admission::Probability(0.3)];
    for (i, rule) in plain_rules().into_iter().enumerate() {
        let initializer = [
            Initializer::Uniform { low: -0.5, high: 0.5 },
            Initializer::TruncatedNormal { mean: 0.1, std: 0.5 },
            Initializer::Normal { mean: 0.0, std: 0.1 },
            Initializer::Constant(0.25),
        ][i % 4];
        let plain = PlainConfig {
            initializer,
            delete_after_unseen_days: 2,
            ..PlainConfig::new([1, 8, 9, 33][i % 4], rule)
        };
        configs.push(SparseConfig {
            admission: policies[i % 3].clone(),
            create: if i % 5 == 4 { Create::OnPush } else { Create::OnPull },
            padding_idx: (i % 2 == 0).then_some(7),
            n_shards: [1, 4, 32][i % 3],
            stream: if i % 2 == 0 { Stream::Table } else { Stream::Variable("emb".into()) },
            huge_pages: i % 2 == 0,
            ..SparseConfig::new(TableId(i as u32), i as u64, Accessor::Plain(plain))
        });
    }
    for (i, rule) in table_rules().into_iter().enumerate() {
        let ctr = CtrConfig {
            embedx_dim: [8, 1, 0, 9][i % 4],
            embedx_threshold: 2.0,
            delete_threshold: 0.3,
            delete_after_unseen_days: 2,
            delta_keep_days: 1,
            show_scale: i % 2 == 0,
            zero_init: i % 3 != 0,
            embed_rule: rule,
            embedx_rule: table_rules()[(i + 1) % 6],
            ..CtrConfig::default()
        };
        let show_click = Admission::ShowClick { show: "show".into(), click: "click".into() };
        configs.push(SparseConfig {
            admission: if i == 3 { show_click } else { policies[i % 3].clone() },
            create: if i % 4 == 3 { Create::OnPull } else { Create::OnPush },
            padding_idx: (i % 2 == 1).then_some(7),
            n_shards: [16, 1, 2][i % 3],
            ..SparseConfig::new(TableId(100 + i as u32), i as u64, Accessor::Ctr(ctr))
        });
    }
    configs
}

fn plain_rules() -> Vec<AnyRule> {
    let optimizers = [
        Rule::Sgd(Sgd::default()),
        Rule::Momentum(Momentum::default()),
        Rule::Adagrad(Adagrad::default()),
        Rule::Adam(Adam::default()),
        Rule::AdamW(AdamW::default()),
        Rule::RmsProp(RmsProp::default()),
        Rule::Adadelta(Adadelta::default()),
        Rule::Ftrl(Ftrl::default()),
        Rule::Lamb(Lamb::default()),
        Rule::LarsMomentum(LarsMomentum::default()),
        Rule::AdamD2Sum(AdamD2Sum::default()),
        Rule::Sum(Sum::default()),
        Rule::Summary(Summary::default()),
    ];
    let table_rules = table_rules().into_iter().map(AnyRule::from);
    optimizers.into_iter().map(AnyRule::from).chain(table_rules).collect()
}

fn table_rules() -> [TableRule; 6] {
    [
        TableRule::Naive(table_rule::Naive::default()),
        TableRule::Adagrad(table_rule::Adagrad::default()),
        TableRule::StdAdagrad(table_rule::StdAdagrad::default()),
        TableRule::AdagradV2(table_rule::AdagradV2::default()),
        TableRule::Adam(table_rule::Adam::default()),
        TableRule::SharedAdam(table_rule::SharedAdam::default()),
    ]
}

/// Runs `n_steps` random requests against a table and the model.
///
/// # Panics
/// If they ever differ; the message names table, seed and step.
pub fn sparse<S: RowStore>(config: &SparseConfig, seed: u64, n_steps: usize) {
    let made = S::make(config).unwrap_or_else(|error| panic!("{error}"));
    let mut run = Run {
        config,
        at: format!("{}, seed {seed}", config.table),
        choices: Choices::new(seed),
        table: made,
        model: Model::new(config),
        scratch: Scratch::default(),
        pulled: Vec::new(),
    };
    let place = run.at.clone();
    for step in 0..n_steps {
        run.at = format!("{place}, step {step}");
        run.step();
    }
    run.compare(SaveMode::All);
}

struct Run<'a, S> {
    config: &'a SparseConfig,
    at: String,
    choices: Choices,
    table: S,
    model: Model,
    scratch: Scratch,
    /// Distinct keys of the last pull; none if that had others.
    pulled: Vec<u64>,
}

impl<S: RowStore> Run<'_, S> {
    fn ok<T>(&self, result: Result<T, Error>) -> T {
        result.unwrap_or_else(|error| panic!("{}: {error}", self.at))
    }

    fn step(&mut self) {
        match self.choices.below(24) {
            0..6 => self.pull(PullMode::Train),
            6..8 => self.pull_counted(),
            8..10 => self.pull(PullMode::Test),
            10..18 => self.push(),
            18..20 => {
                self.push();
                self.pull(PullMode::Train);
            }
            20 => {
                self.table.end_day();
                self.model.end_day();
            }
            21 => {
                let days = [None, None, Some(1), Some(0)][self.choices.below(4)];
                let counts = self.ok(self.table.shrink(days));
                assert_eq!(counts, self.model.shrink(days), "{}: shrink", self.at);
            }
            22 => self.save(),
            _ => self.reload(),
        }
        let stats = self.ok(self.table.stats());
        let (rows, candidates) = self.model.len();
        let both = (stats.rows as usize, stats.candidates as usize);
        assert_eq!(both, (rows, candidates), "{}: rows and candidates", self.at);
    }

    fn pull(&mut self, mode: PullMode<'_>) {
        match (mode, self.choices.below(2)) {
            (PullMode::TrainCounted(_), _) => unreachable!("has its own function"),
            (_, 0) => {
                let keys = self.choices.keys();
                self.check_pull(&keys, mode);
                self.pulled.clear();
            }
            _ => {
                let keys = self.choices.distinct_keys();
                self.check_pull(&keys, mode);
                self.pulled = keys;
            }
        }
    }

    fn pull_counted(&mut self) {
        let keys = self.choices.distinct_keys();
        let counts: Vec<u32> = keys.iter().map(|_| 1 + self.choices.below(3) as u32).collect();
        self.check_pull(&keys, PullMode::TrainCounted(&counts));
        self.pulled = keys;
    }

    fn check_pull(&mut self, keys: &[u64], mode: PullMode<'_>) {
        let mut out = vec![f32::NAN; keys.len() * self.table.widths().0];
        let counts = self.table.pull(keys, &mut out, mode, &mut self.scratch);
        let counts = self.ok(counts);
        let (wanted, wanted_counts) = self.model.pull(keys, mode);
        assert_same_bits(&out, &wanted, &format!("{}: pull {mode:?} {keys:?}", self.at));
        assert_eq!(counts, wanted_counts, "{}: pull", self.at);
    }

    /// Gradients; for CTR pushes led by a slot, shows and clicks.
    fn values(&mut self, n_keys: usize) -> Vec<f32> {
        let width = self.table.widths().1;
        let mut values = self.choices.values(n_keys * width);
        if matches!(self.config.accessor, Accessor::Ctr(_)) {
            for push in values.chunks_mut(width) {
                push[0] = self.choices.below(26) as f32;
                push[1] = 1.0 + self.choices.below(4) as f32;
                push[2] = self.choices.below(2) as f32;
            }
        }
        values
    }

    /// Half of these pushes have the keys of the last pull, whatever happened since.
    fn push(&mut self) {
        let keys = match self.choices.below(2) {
            0 if !self.pulled.is_empty() => self.pulled.clone(),
            _ => self.choices.distinct_keys(),
        };
        let values = self.values(keys.len());
        let counts = self.table.push(&keys, &values, 0.2, &mut self.scratch);
        let counts = self.ok(counts);
        let wanted = self.model.push(&keys, &values, 0.2);
        assert_eq!(counts, wanted, "{}: push {keys:?}", self.at);
    }

    fn save(&mut self) {
        let modes =
            [SaveMode::All, SaveMode::Base, SaveMode::Delta, SaveMode::Day, SaveMode::Patch];
        let mode = modes[self.choices.below(modes.len())];
        let rows = self.compare(mode);
        // A save may fail; then nothing is acknowledged.
        if self.choices.below(3) > 0 {
            for shard in &rows {
                self.ok(self.table.saved(shard));
            }
            self.model.saved(mode);
        }
        self.compare(SaveMode::All);
    }

    /// Fills the table again, empty or as it is, or continues with one of another number of shards.
    fn reload(&mut self) {
        let (rows, steps) = (self.compare(SaveMode::All), self.table.steps());
        match self.choices.below(3) {
            0 => {
                self.ok(self.table.clear());
                assert_eq!(self.ok(self.table.stats()).rows, 0);
            }
            1 => {
                let n_shards = 1 << self.choices.below(6);
                let config = SparseConfig { n_shards, ..self.config.clone() };
                self.table = self.ok(S::make(&config));
            }
            _ => {}
        }
        let n = rows.iter().map(ShardRows::len).sum::<usize>();
        let taken = self.table.import(rows.iter().flat_map(ShardRows::rows));
        assert_eq!(self.ok(taken), n, "{}: import", self.at);
        self.table.set_steps(steps);
        self.compare(SaveMode::All);
    }

    /// Exports what `mode` asks for and compares it with the model, bit by bit.
    fn compare(&self, mode: SaveMode) -> Vec<ShardRows> {
        let shards = self.ok(self.table.export(mode));
        let mut rows: Vec<Row<'_>> = Vec::new();
        for shard in &shards {
            assert!(shard.rows().is_sorted_by_key(|row| row_order(row.key)), "{}: order", self.at);
            rows.extend(shard.rows());
        }
        rows.sort_by_key(|row| row.key);
        let wanted = self.model.export(mode);
        assert_eq!(rows.len(), wanted.len(), "{}: rows of {mode:?}", self.at);
        for (row, wanted) in rows.iter().zip(&wanted) {
            let what = format!("{}: {mode:?} of key {}", self.at, row.key);
            let head = |row: &Row<'_>| (row.key, row.unseen_days, row.changed);
            assert_eq!(head(row), head(wanted), "{what}");
            match (row.body, wanted.body) {
                (RowBody::Base(got), RowBody::Base(wanted))
                | (RowBody::Extended(got), RowBody::Extended(wanted)) => {
                    assert_same_bits(got, wanted, &what);
                }
                (got, wanted) => assert_eq!(got, wanted, "{what}"),
            }
        }
        shards
    }
}
