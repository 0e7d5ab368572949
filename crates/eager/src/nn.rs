//! A few layers and losses: what a small model in Rust is made of. Larger ones are programs, or
//! Python, whose layers run the same ops.

use std::sync::Arc;

use regatta_ir::Attr;
use regatta_tensor::Rng;

use crate::template::Template;
use crate::{Outputs, Result, Tensor};

/// A function of a tensor, with tensors that are learned.
pub trait Layer {
    /// What it computes.
    ///
    /// # Errors
    /// If the tensor does not fit.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// What is learned, in a fixed order.
    fn parameters(&self) -> Vec<Tensor> {
        vec![]
    }

    /// Says whether it learns from now on, or predicts.
    fn train(&mut self, _training: bool) {}
}

/// Initial values of parameters: they follow from the seed and the order in which layers are made.
#[derive(Debug)]
pub struct Init {
    seed: u64,
    made: u64,
}

impl Init {
    /// Values that follow from a seed.
    pub fn new(seed: u64) -> Init {
        Init { seed, made: 0 }
    }

    /// Uniform numbers in `[-limit, limit)`.
    ///
    /// # Errors
    /// If the shape has more elements than can be counted.
    pub fn uniform(&mut self, shape: &[usize], limit: f32) -> Result<Tensor> {
        let rng = Rng::new(self.seed, self.made);
        self.made += 1;
        let n: usize = shape.iter().product();
        let values = (0..n as u64).map(|i| limit * (2.0 * rng.unit_f32(i) - 1.0)).collect();
        Ok(Tensor::from_f32(shape, values)?.trainable())
    }

    /// Uniform numbers of the size that keeps the variance of what flows through (Glorot).
    ///
    /// # Errors
    /// As [`Init::uniform`].
    pub fn glorot(&mut self, shape: &[usize], fan_in: usize, fan_out: usize) -> Result<Tensor> {
        self.uniform(shape, (6.0 / (fan_in + fan_out) as f32).sqrt())
    }
}

fn filled(shape: &[usize], value: f32) -> Result<Tensor> {
    Tensor::from_f32(shape, vec![value; shape.iter().product()])
}

fn first(outs: Outputs) -> Tensor {
    outs.into_iter().next().expect("the op has a result")
}

/// `act(x W + b)` over the last dimension.
#[derive(Debug)]
pub struct Linear {
    /// `[inputs, outputs]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Tensor,
    op: Arc<Template>,
}

impl Linear {
    /// A layer; `act` is `""`, `"relu"`, `"sigmoid"` or `"tanh"`.
    ///
    /// # Errors
    /// If there is no such activation.
    pub fn new(init: &mut Init, inputs: usize, outputs: usize, act: &str) -> Result<Linear> {
        let slots = [("X", 1), ("W", 1), ("Bias", 1)];
        Ok(Linear {
            weight: init.glorot(&[inputs, outputs], inputs, outputs)?,
            bias: filled(&[outputs], 0.0)?.trainable(),
            op: Template::new("fc", &slots, &[("act", act.into())], &[])?,
        })
    }
}

impl Layer for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(first(self.op.call(&[x, &self.weight, &self.bias])?))
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone(), self.bias.clone()]
    }
}

/// Rows of a table by id. Gradients name the rows that were looked up.
#[derive(Debug)]
pub struct Embedding {
    /// `[ids, dim]`.
    pub weight: Tensor,
    op: Arc<Template>,
}

impl Embedding {
    /// A table of `ids` rows.
    ///
    /// # Errors
    /// As [`Init::uniform`].
    pub fn new(init: &mut Init, ids: usize, dim: usize) -> Result<Embedding> {
        let weight = init.glorot(&[ids, dim], ids, dim)?;
        Ok(Embedding { weight, op: Template::new("embedding", &[("W", 1), ("Ids", 1)], &[], &[])? })
    }
}

impl Layer for Embedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(first(self.op.call(&[&self.weight, ids])?))
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone()]
    }
}

/// Filters over images `[examples, channels, height, width]`.
#[derive(Debug)]
pub struct Conv2D {
    /// `[filters, channels, height, width]`.
    pub weight: Tensor,
    /// `[filters]`.
    pub bias: Tensor,
    op: Arc<Template>,
}

impl Conv2D {
    /// `filters` square filters of `size`, with `stride` and `padding` zeros around the image.
    ///
    /// # Errors
    /// If the numbers make no sense.
    pub fn new(
        init: &mut Init,
        channels: usize,
        filters: usize,
        size: usize,
        stride: usize,
        padding: usize,
    ) -> Result<Conv2D> {
        let twice = |n: usize| Attr::Ints(vec![n as i64; 2]);
        let attrs = [("strides", twice(stride)), ("paddings", twice(padding))];
        let slots = [("X", 1), ("W", 1), ("Bias", 1)];
        let area = size * size;
        Ok(Conv2D {
            weight: init.glorot(
                &[filters, channels, size, size],
                channels * area,
                filters * area,
            )?,
            bias: filled(&[filters], 0.0)?.trainable(),
            op: Template::new("conv2d", &slots, &attrs, &[])?,
        })
    }
}

impl Layer for Conv2D {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(first(self.op.call(&[x, &self.weight, &self.bias])?))
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone(), self.bias.clone()]
    }
}

/// Mean 0 and variance 1 over the last dimension of every example, then a learned scale and shift.
#[derive(Debug)]
pub struct LayerNorm {
    scale: Tensor,
    shift: Tensor,
    op: Arc<Template>,
}

impl LayerNorm {
    /// For a last dimension of `width`.
    ///
    /// # Errors
    /// None for a width above 0.
    pub fn new(width: usize) -> Result<LayerNorm> {
        let slots = [("X", 1), ("Scale", 1), ("Bias", 1)];
        Ok(LayerNorm {
            scale: filled(&[width], 1.0)?.trainable(),
            shift: filled(&[width], 0.0)?.trainable(),
            op: Template::new("layer_norm", &slots, &[], &[])?,
        })
    }
}

impl Layer for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(first(self.op.call(&[x, &self.scale, &self.shift])?))
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.scale.clone(), self.shift.clone()]
    }
}

/// Mean 0 and variance 1 over the batch for every channel (dimension 1), then a learned scale and
/// shift. While predicting, running statistics take the place of those of the batch.
#[derive(Debug)]
pub struct BatchNorm {
    scale: Tensor,
    shift: Tensor,
    /// Running mean of each channel.
    pub mean: Tensor,
    /// Running variance of each channel.
    pub variance: Tensor,
    training: Arc<Template>,
    predicting: Arc<Template>,
    is_training: bool,
}

impl BatchNorm {
    /// For `channels` channels.
    ///
    /// # Errors
    /// None for a number above 0.
    pub fn new(channels: usize) -> Result<BatchNorm> {
        let slots = [("X", 1), ("Scale", 1), ("Bias", 1), ("Mean", 1), ("Variance", 1)];
        let of = |is_test: bool| {
            let attrs = [("data_layout", "NCHW".into()), ("is_test", is_test.into())];
            // Running statistics that are not updated are no results.
            let kept = usize::from(!is_test);
            let counts =
                [("SavedMean", 1), ("SavedInvStd", 1), ("MeanOut", kept), ("VarianceOut", kept)];
            Template::new("batch_norm", &slots, &attrs, &counts)
        };
        Ok(BatchNorm {
            scale: filled(&[channels], 1.0)?.trainable(),
            shift: filled(&[channels], 0.0)?.trainable(),
            mean: filled(&[channels], 0.0)?,
            variance: filled(&[channels], 1.0)?,
            training: of(false)?,
            predicting: of(true)?,
            is_training: true,
        })
    }
}

impl Layer for BatchNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let op = if self.is_training { &self.training } else { &self.predicting };
        Ok(first(op.call(&[x, &self.scale, &self.shift, &self.mean, &self.variance])?))
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.scale.clone(), self.shift.clone()]
    }

    fn train(&mut self, training: bool) {
        self.is_training = training;
    }
}

/// An op with one input and attributes: an activation, a pooling, a reshape.
#[derive(Debug)]
pub struct Apply(Arc<Template>);

impl Apply {
    /// The op of a kind whose input is `X`.
    ///
    /// # Errors
    /// If there is no such op, or an attribute does not fit.
    pub fn new(kind: &str, attrs: &[(&str, Attr)]) -> Result<Apply> {
        Ok(Apply(Template::new(kind, &[("X", 1)], attrs, &[])?))
    }
}

impl Layer for Apply {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(first(self.0.call(&[x])?))
    }
}

/// Layers one after the other.
///
/// ```
/// use regatta_eager::nn::{Init, Layer, Linear, Sequential, cross_entropy};
/// use regatta_eager::{Optimizer, Param, Tensor};
/// use regatta_optim::{Adam, Rule};
/// let mut init = Init::new(1);
/// let model = Sequential::new()
///     .add(Linear::new(&mut init, 2, 16, "relu")?)
///     .add(Linear::new(&mut init, 16, 2, "")?);
/// let x = Tensor::from_f32(&[4, 2], vec![0., 0., 0., 1., 1., 0., 1., 1.])?;
/// let label = Tensor::from_i64(&[4, 1], vec![0, 1, 1, 0])?;
/// let parameters = model.parameters();
/// let params: Vec<Param<'_>> = parameters.iter().map(Param::new).collect();
/// let mut adam = Optimizer::new(Rule::Adam(Adam::default()));
/// let mut last = 0.0;
/// for _ in 0..200 {
///     let loss = cross_entropy(&model.forward(&x)?, &label)?;
///     loss.backward(None, false)?;
///     adam.step(&params, 0.05)?;
///     parameters.iter().for_each(|p| p.clear_grad(false));
///     last = loss.to_f32()[0];
/// }
/// assert!(last < 0.05, "{last}");
/// # Ok::<(), regatta_eager::Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer + Send + Sync>>,
}

impl std::fmt::Debug for Sequential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sequential of {} layers", self.layers.len())
    }
}

impl Sequential {
    /// No layers.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// One layer more.
    #[expect(clippy::should_implement_trait, reason = "layers are added, not numbers")]
    #[must_use]
    pub fn add(mut self, layer: impl Layer + Send + Sync + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Layer for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.layers.iter().flat_map(|layer| layer.parameters()).collect()
    }

    fn train(&mut self, training: bool) {
        self.layers.iter_mut().for_each(|layer| layer.train(training));
    }
}

/// The mean over examples of the softmax cross entropy of logits `[examples, classes]` and classes
/// `i64[examples, 1]`.
///
/// # Errors
/// If the shapes do not fit or a class does not exist.
pub fn cross_entropy(logits: &Tensor, label: &Tensor) -> Result<Tensor> {
    let slots = [("Logits", 1), ("Label", 1)];
    let loss = Template::new("softmax_with_cross_entropy", &slots, &[], &[])?;
    first(loss.call(&[logits, label])?).op("mean", &[])
}

/// The mean of squared differences.
///
/// # Errors
/// If the shapes differ.
pub fn mean_squared_error(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let cost = Template::new("square_error_cost", &[("X", 1), ("Label", 1)], &[], &[])?;
    first(cost.call(&[x, y])?).op("mean", &[])
}
