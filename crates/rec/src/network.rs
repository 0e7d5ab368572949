//! A configuration becomes programs: forward, backward and updates, with the names of what is
//! fetched.

use regatta_data::{Schema, Slot, SlotKind};
use regatta_ir::{Op, Origin, Program, Programs};
use regatta_passes::pipeline::Watch;
use regatta_passes::{Backward, Clip, Optimizer, minimize_watched};

use regatta_tensor::Tensor;
use regatta_train::metrics::{Meter, Metric};

use crate::{Config, Error};

/// The programs of a model and what is read and fetched.
pub struct Network {
    /// Prediction and loss only.
    pub forward: Programs,
    /// With backward and updates.
    pub train: Programs,
    /// Name of the loss.
    pub loss: String,
    /// The predictions.
    pub heads: Vec<Prediction>,
    /// What an exported model gives: the predictions, or what there is instead of them.
    pub outputs: Vec<String>,
    /// What an example looks like.
    pub schema: Schema,
}

/// A head by the names of its variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    /// Name of its metric.
    pub metric: &'static str,
    /// How it is judged.
    pub kind: Metric,
    /// The variable with predictions.
    pub predict: String,
    /// The variable with labels.
    pub label: String,
}

impl Network {
    /// Builds the model of a configuration.
    ///
    /// # Errors
    /// If its hyper-parameters do not fit together.
    pub fn build(config: &Config) -> Result<Network, Error> {
        Network::build_with(config, &config.optimizer)
    }

    /// As [`Network::build`], with another optimizer.
    ///
    /// # Errors
    /// As [`Network::build`].
    pub fn build_with(config: &Config, optimizer: &Optimizer) -> Result<Network, Error> {
        Network::build_watched(config, optimizer, &mut |_, _, _| {})
    }

    /// As [`Network::build_with`]; `watch` sees what every compiler pass makes.
    ///
    /// # Errors
    /// As [`Network::build`].
    pub fn build_watched(
        config: &Config,
        optimizer: &Optimizer,
        watch: &mut Watch<'_>,
    ) -> Result<Network, Error> {
        let schema = config.model.schema_of(&config.hyper)?;
        let mut builder = regatta_ops::builder(config.runner.seed);
        let net = (config.model.build)(&config.hyper, &mut builder)?;
        let forward = builder.finish();
        let mut optimizer = optimizer.clone();
        optimizer.clip = optimizer.clip.or(net.clip_norm.map(Clip::GlobalNorm));
        if let Some(amp) = &mut optimizer.amp {
            // Metrics compare predictions: rounded to 16 bits, many would be equal.
            amp.custom_black_varnames
                .extend(net.heads.iter().map(|h| h.predict.name().to_string()));
        }
        let loss = net.loss.name().to_string();
        let train =
            minimize_watched(&forward, &loss, &optimizer, &Backward::default(), watch)?.programs;
        let predictions = net.heads.iter().map(|head| &head.predict);
        let outputs = predictions.chain(&net.vectors).map(|var| var.name().to_string()).collect();
        let heads = net
            .heads
            .iter()
            .map(|head| Prediction {
                metric: head.metric,
                kind: head.kind,
                predict: head.predict.name().to_string(),
                label: head.label.name().to_string(),
            })
            .collect();
        Ok(Network { forward, train, loss, heads, outputs, schema })
    }

    /// The schema with what the network can compute on, so that readers name the line of a value
    /// that is out of range: labels of classes, and ids of tables that this process has as a whole.
    ///
    /// # Errors
    /// If the program does not declare what its ops read, which the verifier would have found.
    pub fn checked_schema(&self, whole_tables: bool) -> Result<Schema, Error> {
        let slots = self.schema.slots().iter().map(|slot| {
            let heads = self.heads.iter().filter(|h| h.kind == Metric::Auc && h.label == slot.name);
            let ops = self.forward.main.block().ops.iter();
            let of_ops = ops.filter_map(|op| limit_of(&self.forward.main, op, &slot.name));
            let of_ops = of_ops.filter(|_| whole_tables || slot.kind == SlotKind::Label);
            let limit = heads.map(|_| 2).chain(of_ops).min();
            Slot { limit, ..slot.clone() }
        });
        Ok(Schema::new(slots.collect())?)
    }

    /// Numbers that are learned.
    pub fn parameters(&self) -> u64 {
        let params = self.forward.main.block().params();
        params.map(|p| p.ty.numel().unwrap_or(0) as u64).sum()
    }

    /// What a step fetches: the loss, then prediction and label of each head.
    pub fn fetches(&self) -> Vec<&str> {
        let heads = self.heads.iter().flat_map(|h| [h.predict.as_str(), h.label.as_str()]);
        std::iter::once(self.loss.as_str()).chain(heads).collect()
    }

    /// An output as files of scores have it. It is called `score` where there is one prediction, of
    /// several after their measures (`ctr` for `auc_ctr`); other outputs keep their names. Of the
    /// probabilities of two classes it is that of the positive one.
    pub fn named_output(&self, variable: &str, values: &Tensor) -> (String, Tensor) {
        let head = self.heads.iter().find(|head| head.predict == variable);
        let name = match (head, self.heads.len()) {
            (None, _) => variable,
            (Some(_), 1) => "score",
            (Some(head), _) => head.metric.strip_prefix("auc_").unwrap_or(head.metric),
        };
        let positive = match (head, values.shape()) {
            (Some(head), &[rows, 2]) if head.kind == Metric::Auc => {
                let column = values.f32().iter().skip(1).step_by(2).copied().collect();
                Tensor::from_f32(&[rows, 1], column).ok()
            }
            _ => None,
        };
        (name.to_string(), positive.unwrap_or_else(|| values.clone()))
    }

    /// One meter for each head.
    pub fn meters(&self, make: fn(&'static str, Metric) -> Meter) -> Vec<Meter> {
        self.heads.iter().map(|h| make(h.metric, h.kind)).collect()
    }
}

/// Names of the inputs that a program reads.
pub(crate) fn inputs(program: &Program) -> Vec<String> {
    let vars = program.block().vars.values();
    vars.filter(|v| v.origin == Origin::Data).map(|v| v.name.clone()).collect()
}

/// The number that the values of an input must be below for an op, if it has such a number.
fn limit_of(program: &Program, op: &Op, input: &str) -> Option<u64> {
    let reads = |slot: &str| op.ins(slot).iter().any(|name| name == input);
    let size = |slot: &str, dim: fn(&[i64]) -> Option<&i64>| {
        let var = program.block().vars.get(op.ins(slot).first()?)?;
        u64::try_from(*dim(&var.ty.shape)?).ok()
    };
    match op.kind.as_str() {
        "embedding" if reads("Ids") && !op.bool("hash").ok()? => {
            let rows = size("W", <[i64]>::first)?;
            // An id for nothing need not have a row.
            let padding = u64::try_from(op.int("padding_idx").ok()?).ok();
            padding.is_none_or(|id| id < rows).then_some(rows)
        }
        "softmax_with_cross_entropy" if reads("Label") && !op.bool("soft_label").ok()? => {
            size("Logits", <[i64]>::last)
        }
        "cross_entropy" if reads("Label") && !op.bool("soft_label").ok()? => {
            size("X", <[i64]>::last)
        }
        _ => None,
    }
}
