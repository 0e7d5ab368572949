//! Layers over images `[batch, channels, rows, columns]` and over sequences `[batch, time, width]`.

use crate::{Builder, Error, Initializer, Op, ParamAttr, Var};

impl Builder {
    /// A convolution with a bias: `maps` maps by a window of the given size. Paddings are zeros on
    /// both sides. Weights start as PaddlePaddle's do, normal with a variance of 2 over the inputs
    /// of a value.
    ///
    /// # Errors
    /// If `x` is no batch of images, or the window does not fit.
    pub fn conv2d(
        &mut self,
        x: &Var,
        maps: i64,
        window: [i64; 2],
        stride: [i64; 2],
        paddings: [i64; 2],
    ) -> Result<Var, Error> {
        let prefix = self.unique("conv2d");
        let channels = self.dim(x, 1);
        let std = (2.0 / (channels * window[0] * window[1]).max(1) as f64).sqrt();
        let attr = ParamAttr::with_init(Initializer::Normal { mean: 0.0, std });
        let shape = [maps, channels, window[0], window[1]];
        let w = self.param(&format!("{prefix}.w_0"), &shape, &attr)?;
        let b = self.param(&format!("{prefix}.b_0"), &[maps], &ParamAttr::bias())?;
        let op = Op::new("conv2d")
            .input("X", x.name())
            .input("W", w.name())
            .input("Bias", b.name())
            .attr("strides", stride.to_vec())
            .attr("paddings", paddings.to_vec())
            .output("Out", &format!("{prefix}.tmp_0"));
        Ok(self.push(op)?.remove(0))
    }

    /// The largest value (`max`) or the mean (`avg`) under a window.
    ///
    /// # Errors
    /// If `x` is no batch of images, the kind is another, or the window does not fit.
    pub fn pool2d(
        &mut self,
        x: &Var,
        kind: &str,
        window: [i64; 2],
        stride: [i64; 2],
        paddings: [i64; 2],
    ) -> Result<Var, Error> {
        let op = Op::new("pool2d")
            .input("X", x.name())
            .attr("pooling_type", kind)
            .attr("ksize", window.to_vec())
            .attr("strides", stride.to_vec())
            .attr("paddings", paddings.to_vec());
        self.emit_one(op)
    }

    /// The states of an LSTM after each step.
    ///
    /// # Errors
    /// If `x` is no batch of sequences with a known length and width.
    pub fn lstm(&mut self, x: &Var, hidden: i64) -> Result<Var, Error> {
        self.recurrent("lstm", x, [4 * hidden, hidden], &["Out", "LastH", "LastC", "Reserve"])
    }

    /// The states of a GRU after each step.
    ///
    /// # Errors
    /// If `x` is no batch of sequences with a known length and width.
    pub fn gru(&mut self, x: &Var, hidden: i64) -> Result<Var, Error> {
        self.recurrent("gru", x, [3 * hidden, hidden], &["Out", "LastH", "Reserve"])
    }

    fn recurrent(
        &mut self,
        kind: &str,
        x: &Var,
        [gates, hidden]: [i64; 2],
        outs: &[&str],
    ) -> Result<Var, Error> {
        let prefix = self.unique(kind);
        let bound = 1.0 / (hidden.max(1) as f64).sqrt();
        let attr = ParamAttr::with_init(Initializer::Uniform { low: -bound, high: bound });
        let width = self.dim(x, 2);
        let params = [
            ("WeightIh", "w_0", vec![gates, width]),
            ("WeightHh", "w_1", vec![gates, hidden]),
            ("BiasIh", "b_0", vec![gates]),
            ("BiasHh", "b_1", vec![gates]),
        ];
        let mut op = Op::new(kind).input("X", x.name());
        for (slot, name, shape) in params {
            let param = self.param(&format!("{prefix}.{name}"), &shape, &attr)?;
            op = op.input(slot, param.name());
        }
        for (i, slot) in outs.iter().enumerate() {
            op = op.output(slot, &format!("{prefix}.tmp_{i}"));
        }
        Ok(self.push(op)?.remove(0))
    }

    /// A dimension of a variable, or 1 where it has none or it is unknown: what it should have been
    /// is said by the op.
    fn dim(&self, x: &Var, at: usize) -> i64 {
        let dim = self.ty(x).ok().and_then(|ty| ty.shape.get(at).copied());
        dim.filter(|d| *d > 0).unwrap_or(1)
    }
}
