//! One mapping for each op of inference programs.

use regatta_ir::Op;
use regatta_tensor::DType;

use super::graph::{Attr, FLOAT, INT64, UINT64};
use super::{Graph, Mapper};
use crate::Error;

impl Mapper<'_> {
    /// Adds the nodes of an op.
    pub(super) fn op(&mut self, op: &Op) -> Result<(), Error> {
        match op.kind.as_str() {
            "embedding" => self.embedding(op),
            "sequence_pad" => self.sequence_pad(op),
            "sequence_mask" => self.sequence_mask(op),
            "fc" => self.fc(op),
            "matmul" => self.matmul(op),
            "elementwise_add" => self.binary(op, "Add"),
            "elementwise_sub" => self.binary(op, "Sub"),
            "elementwise_mul" => self.binary(op, "Mul"),
            "elementwise_div" => self.binary(op, "Div"),
            "elementwise_max" => self.binary(op, "Max"),
            "elementwise_min" => self.binary(op, "Min"),
            "sum" => self.sum(op),
            "concat" => self.several(op, "Concat", &[Attr::Int("axis", op.int("axis")?)]),
            "split" => self.split(op),
            "slice" => self.slice(op),
            "reshape" => self.reshape(op),
            "transpose" => self.transpose(op),
            "reduce_sum" => self.reduce(op, "ReduceSum"),
            "reduce_mean" => self.reduce(op, "ReduceMean"),
            "reduce_max" => self.reduce(op, "ReduceMax"),
            "mean" => self.mean(op),
            "softmax" => self.unary(op, "Softmax", &[Attr::Int("axis", op.int("axis")?)]),
            "scale" => self.scale(op),
            "cast" => self.cast(op),
            "one_hot" => self.one_hot(op),
            "lower_triangle" => self.lower_triangle(op),
            "cos_sim" => self.cos_sim(op),
            "batch_norm" => self.batch_norm(op),
            "layer_norm" => self.layer_norm(op),
            "conv2d" => self.conv2d(op),
            "pool2d" => self.pool2d(op),
            // In programs for inference both pass on what they get.
            "assign" | "dropout" => self.unary(op, "Identity", &[]),
            "fill_constant" => self.fill_constant(op),
            _ => self.function(op),
        }
    }

    /// Functions of one element.
    fn function(&mut self, op: &Op) -> Result<(), Error> {
        match op.kind.as_str() {
            "relu" => self.unary(op, "Relu", &[]),
            "tanh" => self.unary(op, "Tanh", &[]),
            "sigmoid" => self.unary(op, "Sigmoid", &[]),
            "leaky_relu" => {
                let alpha = op.float("alpha")? as f32;
                self.unary(op, "LeakyRelu", &[Attr::Float("alpha", alpha)])
            }
            "log" => self.unary(op, "Log", &[]),
            "exp" => self.unary(op, "Exp", &[]),
            "sqrt" => self.unary(op, "Sqrt", &[]),
            "abs" => self.unary(op, "Abs", &[]),
            "sign" => self.unary(op, "Sign", &[]),
            "floor" => self.unary(op, "Floor", &[]),
            "softsign" => self.unary(op, "Softsign", &[]),
            "rsqrt" => {
                let x = self.input(op, "X")?;
                let root = self.graph.node("Sqrt", &[&x], &[]);
                self.emit(op, "Out", "Reciprocal", &[&root], &[])
            }
            "log1p" => {
                let (x, one) = (self.input(op, "X")?, self.graph.float(1.0));
                let more = self.graph.node("Add", &[&x, &one], &[]);
                self.emit(op, "Out", "Log", &[&more], &[])
            }
            "square" => {
                let x = self.input(op, "X")?;
                self.emit(op, "Out", "Mul", &[&x, &x], &[])
            }
            "pow" => {
                let factor = self.graph.float(op.float("factor")? as f32);
                let x = self.input(op, "X")?;
                self.emit(op, "Out", "Pow", &[&x, &factor], &[])
            }
            "clip" => self.clip(op),
            "gelu" => self.gelu(op),
            other => {
                let made: Vec<&str> = op.output_vars().collect();
                let made = made.join(", ");
                Err(self.refused(format!("op '{other}', which makes '{made}', has no counterpart")))
            }
        }
    }

    /// The variable of a slot, in the graph; parameters enter it when they are first used.
    pub(super) fn input(&mut self, op: &Op, slot: &str) -> Result<String, Error> {
        let Some(var) = op.input_var(slot) else {
            return Err(self.refused(format!("op '{}' has no input {slot}", op.kind)));
        };
        self.value(var)
    }

    fn value(&mut self, var: &str) -> Result<String, Error> {
        if let Some(tensor) = self.params.get(var).copied()
            && self.graph.take(var)
        {
            if tensor.dtype() != DType::F32 {
                let reason = format!("parameter '{var}' is {}, not f32", tensor.dtype());
                return Err(self.refused(reason));
            }
            self.graph.floats_to(var, tensor.shape(), tensor.f32());
        }
        Ok(var.to_string())
    }

    /// Adds the node that makes the output of an op.
    pub(super) fn emit(
        &mut self,
        op: &Op,
        slot: &str,
        kind: &str,
        inputs: &[&str],
        attrs: &[Attr<'_>],
    ) -> Result<(), Error> {
        let out = self.output(op, slot)?;
        self.graph.node_to(kind, inputs, &out, attrs);
        Ok(())
    }

    fn output(&mut self, op: &Op, slot: &str) -> Result<String, Error> {
        let Some(var) = op.output_var(slot) else {
            return Err(self.refused(format!("op '{}' has no output {slot}", op.kind)));
        };
        if !self.graph.take(var) {
            return Err(self.refused(format!("'{var}' is made twice")));
        }
        Ok(var.to_string())
    }

    fn unary(&mut self, op: &Op, kind: &str, attrs: &[Attr<'_>]) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        self.emit(op, "Out", kind, &[&x], attrs)
    }

    fn binary(&mut self, op: &Op, kind: &str) -> Result<(), Error> {
        let (x, y) = (self.input(op, "X")?, self.input(op, "Y")?);
        self.emit(op, "Out", kind, &[&x, &y], &[])
    }

    /// `Sum` takes floats only.
    fn sum(&mut self, op: &Op) -> Result<(), Error> {
        if self.ty(op.input_var("X").unwrap_or_default())?.dtype == DType::F32 {
            return self.several(op, "Sum", &[]);
        }
        let mut sum = self.input(op, "X")?;
        let zero = self.graph.int(0);
        for var in &op.ins("X")[1..] {
            let var = self.value(var)?;
            sum = self.graph.node("Add", &[&sum, &var], &[]);
        }
        self.emit(op, "Out", "Add", &[&sum, &zero], &[])
    }

    fn several(&mut self, op: &Op, kind: &str, attrs: &[Attr<'_>]) -> Result<(), Error> {
        let inputs = op.ins("X").iter().map(|var| self.value(var));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.emit(op, "Out", kind, &inputs, attrs)
    }

    fn fc(&mut self, op: &Op) -> Result<(), Error> {
        let (x, w) = (self.input(op, "X")?, self.input(op, "W")?);
        let act = match op.str("act")? {
            "" => None,
            "relu" => Some("Relu"),
            "tanh" => Some("Tanh"),
            "sigmoid" => Some("Sigmoid"),
            other => return Err(self.refused(format!("fc with activation '{other}'"))),
        };
        let bias = op.input_var("Bias").map(|bias| self.value(bias)).transpose()?;
        let mut steps: Vec<(&str, Vec<&str>)> = vec![("MatMul", vec![&x, &w])];
        steps.extend(bias.as_deref().map(|bias| ("Add", vec![bias])));
        steps.extend(act.map(|act| (act, vec![])));
        self.chain(op, "Out", &steps)
    }

    /// Nodes in a row: each gets the output of the one before as its first input.
    fn chain(&mut self, op: &Op, slot: &str, steps: &[(&str, Vec<&str>)]) -> Result<(), Error> {
        let out = self.output(op, slot)?;
        let mut last: Option<String> = None;
        for (i, (kind, inputs)) in steps.iter().enumerate() {
            let all: Vec<&str> =
                last.as_deref().into_iter().chain(inputs.iter().copied()).collect();
            if i + 1 == steps.len() {
                self.graph.node_to(kind, &all, &out, &[]);
            } else {
                last = Some(self.graph.node(kind, &all, &[]));
            }
        }
        Ok(())
    }

    fn matmul(&mut self, op: &Op) -> Result<(), Error> {
        let mut sides = Vec::new();
        for (slot, flag) in [("X", "trans_x"), ("Y", "trans_y")] {
            let x = self.input(op, slot)?;
            let rank = self.ty(&x)?.shape.len() as i64;
            sides.push(if op.bool(flag)? && rank > 1 {
                let mut perm: Vec<i64> = (0..rank).collect();
                perm.swap(rank as usize - 1, rank as usize - 2);
                self.graph.node("Transpose", &[&x], &[Attr::Ints("perm", &perm)])
            } else {
                x
            });
        }
        if sides.iter().map(|x| self.ty(x)).all(|ty| ty.is_ok_and(|ty| ty.shape.len() == 1)) {
            let product = self.graph.node("MatMul", &[&sides[0], &sides[1]], &[]);
            let shape = self.graph.ints(&[1]);
            return self.emit(op, "Out", "Reshape", &[&product, &shape], &[]);
        }
        self.emit(op, "Out", "MatMul", &[&sides[0], &sides[1]], &[])
    }

    fn split(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let sections = self.graph.ints(&op.ints("sections")?);
        for var in op.outs("Out") {
            if !self.graph.take(var) {
                return Err(self.refused(format!("'{var}' is made twice")));
            }
        }
        let outputs: Vec<&str> = op.outs("Out").iter().map(String::as_str).collect();
        let attrs = [Attr::Int("axis", op.int("axis")?)];
        self.graph.node_of("", "Split", &[&x, &sections], &outputs, &attrs);
        Ok(())
    }

    fn slice(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let numbers = ["start", "end", "axis"].map(|name| op.int(name));
        let mut inputs = vec![x];
        for number in numbers {
            inputs.push(self.graph.ints(&[number?]));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.emit(op, "Out", "Slice", &inputs, &[])
    }

    /// A size of 0 keeps the dimension, there as here.
    fn reshape(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let shape = self.graph.ints(&op.ints("shape")?);
        self.emit(op, "Out", "Reshape", &[&x, &shape], &[])
    }

    fn transpose(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let rank = self.ty(&x)?.shape.len() as i64;
        let perm: Vec<i64> = op.ints("perm")?.iter().map(|&d| (d + rank) % rank).collect();
        self.emit(op, "Out", "Transpose", &[&x], &[Attr::Ints("perm", &perm)])
    }

    fn reduce(&mut self, op: &Op, kind: &str) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let rank = self.ty(&x)?.shape.len();
        let mut dims = op.ints("dims")?;
        if dims.is_empty() {
            dims = (0..rank as i64).collect();
        }
        let keep = op.bool("keep_dim")?;
        // Over all dimensions, what is left is `[1]` here and has no dimension there.
        let alone = dims.len() == rank && !keep;
        let axes = self.graph.ints(&dims);
        let attrs = [Attr::Int("keepdims", i64::from(keep))];
        if !alone {
            return self.emit(op, "Out", kind, &[&x, &axes], &attrs);
        }
        let one = self.graph.node(kind, &[&x, &axes], &attrs);
        let shape = self.graph.ints(&[1]);
        self.emit(op, "Out", "Reshape", &[&one, &shape], &[])
    }

    fn mean(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let dims: Vec<i64> = (0..self.ty(&x)?.shape.len() as i64).collect();
        let axes = self.graph.ints(&dims);
        let mean = self.graph.node("ReduceMean", &[&x, &axes], &[Attr::Int("keepdims", 0)]);
        let shape = self.graph.ints(&[1]);
        self.emit(op, "Out", "Reshape", &[&mean, &shape], &[])
    }

    fn scale(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let factor = self.graph.float(op.float("scale")? as f32);
        let bias = self.graph.float(op.float("bias")? as f32);
        self.chain(op, "Out", &[("Mul", vec![&x, &factor]), ("Add", vec![&bias])])
    }

    /// Ids are the bits of unsigned numbers: as numbers they are read as such.
    fn cast(&mut self, op: &Op) -> Result<(), Error> {
        let mut x = self.input(op, "X")?;
        let to = match op.str("dtype")? {
            "f32" => FLOAT,
            "i64" | "u64" => INT64,
            other => return Err(self.refused(format!("a cast to {other} has no counterpart"))),
        };
        if self.ty(&x)?.dtype == DType::U64 && to == FLOAT {
            x = self.graph.cast(&x, UINT64);
        }
        self.emit(op, "Out", "Cast", &[&x], &[Attr::Int("to", to)])
    }

    /// The last dimension, which is 1, becomes `depth`.
    fn one_hot(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let depth = op.int("depth")?;
        let places = self.graph.ints(&(0..depth).collect::<Vec<_>>());
        let same = self.graph.node("Equal", &[&x, &places], &[]);
        self.emit(op, "Out", "Cast", &[&same], &[Attr::Int("to", FLOAT)])
    }

    fn sequence_mask(&mut self, op: &Op) -> Result<(), Error> {
        let lengths = self.input(op, "Lengths")?;
        let places = self.graph.ints(&(0..op.int("maxlen")?).collect::<Vec<_>>());
        let before = self.graph.node("Less", &[&places, &lengths], &[]);
        self.emit(op, "Out", "Cast", &[&before], &[Attr::Int("to", FLOAT)])
    }

    /// The matrix as one row, of which the positions below the diagonal are taken.
    fn lower_triangle(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let shape = &self.ty(&x)?.shape;
        let n = shape[shape.len() - 1];
        // A size of 0 keeps the dimension.
        let mut flat = vec![0; shape.len() - 2];
        flat.push(n * n);
        let axis = flat.len() as i64 - 1;
        let flat = self.graph.ints(&flat);
        let rows = self.graph.node("Reshape", &[&x, &flat], &[]);
        let below: Vec<i64> = (0..n).flat_map(|i| (0..i).map(move |j| i * n + j)).collect();
        let below = self.graph.ints(&below);
        self.emit(op, "Out", "Gather", &[&rows, &below], &[Attr::Int("axis", axis)])
    }

    /// Rows without length have the cosine 0 with every other.
    fn cos_sim(&mut self, op: &Op) -> Result<(), Error> {
        let (x, y) = (self.input(op, "X")?, self.input(op, "Y")?);
        let graph = &mut self.graph;
        let along = graph.ints(&[-1]);
        let dot = |graph: &mut Graph, a: &str, b: &str| {
            let products = graph.node("Mul", &[a, b], &[]);
            graph.node("ReduceSum", &[&products, &along], &[Attr::Int("keepdims", 1)])
        };
        let (least, one, zero) =
            (graph.float(f32::MIN_POSITIVE), graph.float(1.0), graph.float(0.0));
        let mut inverse = |a: &str| {
            let squares = dot(graph, a, a);
            let short = graph.node("Less", &[&squares, &least], &[]);
            let safe = graph.node("Where", &[&short, &one, &squares], &[]);
            let length = graph.node("Sqrt", &[&safe], &[]);
            let inverse = graph.node("Div", &[&one, &length], &[]);
            graph.node("Where", &[&short, &zero, &inverse], &[])
        };
        let (of_x, of_y) = (inverse(&x), inverse(&y));
        let product = dot(graph, &x, &y);
        self.chain(op, "Out", &[("Mul", vec![&product, &of_x]), ("Mul", vec![&of_y])])
    }

    /// `(x - mean) * (scale / sqrt(variance + epsilon)) + bias` over the last dimension.
    fn batch_norm(&mut self, op: &Op) -> Result<(), Error> {
        if !op.bool("is_test")? {
            return Err(self.refused("batch_norm of a program for training".into()));
        }
        if op.str("data_layout")? == "NCHW" {
            let slots = ["X", "Scale", "Bias", "Mean", "Variance"];
            let inputs =
                slots.iter().map(|slot| self.input(op, slot)).collect::<Result<Vec<_>, _>>();
            let inputs = inputs?;
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            let epsilon = Attr::Float("epsilon", op.float("epsilon")? as f32);
            return self.emit(op, "Y", "BatchNormalization", &inputs, &[epsilon]);
        }
        let stats = |slot: &str| {
            let name = op.input_var(slot).unwrap_or_default();
            let tensor = self.params.get(name).copied();
            tensor.ok_or_else(|| self.refused(format!("batch_norm: {slot} '{name}' has no value")))
        };
        let (scale, variance) = (stats("Scale")?, stats("Variance")?);
        let epsilon = op.float("epsilon")?;
        let both = scale.f32().iter().zip(variance.f32());
        let factor: Vec<f32> =
            both.map(|(s, v)| (f64::from(*s) / (f64::from(*v) + epsilon).sqrt()) as f32).collect();
        let factor = self.graph.floats(&[factor.len()], &factor);
        let (x, mean, bias) =
            (self.input(op, "X")?, self.input(op, "Mean")?, self.input(op, "Bias")?);
        let steps = [
            ("Sub", vec![x.as_str(), mean.as_str()]),
            ("Mul", vec![&factor]),
            ("Add", vec![&bias]),
        ];
        self.chain(op, "Y", &steps)
    }

    fn layer_norm(&mut self, op: &Op) -> Result<(), Error> {
        let inputs = [self.input(op, "X")?, self.input(op, "Scale")?, self.input(op, "Bias")?];
        let inputs = inputs.each_ref().map(String::as_str);
        let attrs = [Attr::Int("axis", -1), Attr::Float("epsilon", op.float("epsilon")? as f32)];
        self.emit(op, "Y", "LayerNormalization", &inputs, &attrs)
    }

    fn clip(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let min = self.graph.float(op.float("min")? as f32);
        let max = self.graph.float(op.float("max")? as f32);
        self.emit(op, "Out", "Clip", &[&x, &min, &max], &[])
    }

    /// `x / 2 * (1 + erf(x / sqrt 2))`.
    fn gelu(&mut self, op: &Op) -> Result<(), Error> {
        let x = self.input(op, "X")?;
        let graph = &mut self.graph;
        let (root, one, half) =
            (graph.float(std::f32::consts::FRAC_1_SQRT_2), graph.float(1.0), graph.float(0.5));
        let scaled = graph.node("Mul", &[&x, &root], &[]);
        let erf = graph.node("Erf", &[&scaled], &[]);
        let above = graph.node("Add", &[&erf, &one], &[]);
        self.chain(op, "Out", &[("Mul", vec![&x, &half]), ("Mul", vec![&above])])
    }

    fn fill_constant(&mut self, op: &Op) -> Result<(), Error> {
        let shape = op.ints("shape")?;
        if op.str("dtype")? != "f32" || shape.iter().any(|&d| d < 0) {
            let reason = "fill_constant of other than f32 of known size has no counterpart";
            return Err(self.refused(reason.into()));
        }
        let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
        let values = vec![op.float("value")? as f32; shape.iter().product()];
        let name = self.output(op, "Out")?;
        self.graph.floats_to(&name, &shape, &values);
        Ok(())
    }
}
