//! Ops over images `[batch, channels, rows, columns]`.

use regatta_ir::Op;

use super::Mapper;
use super::graph::Attr;
use crate::Error;

impl Mapper<'_> {
    pub(super) fn conv2d(&mut self, op: &Op) -> Result<(), Error> {
        let mut inputs = vec![self.input(op, "X")?, self.input(op, "W")?];
        if op.input_var("Bias").is_some() {
            inputs.push(self.input(op, "Bias")?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let (strides, pads) = (pair(op, "strides", [1, 1])?, pads(op)?);
        let attrs = [
            Attr::Ints("strides", &strides),
            Attr::Ints("pads", &pads),
            Attr::Ints("dilations", &pair(op, "dilations", [1, 1])?),
            Attr::Int("group", op.int("groups")?),
        ];
        self.emit(op, "Out", "Conv", &inputs, &attrs)
    }

    pub(super) fn pool2d(&mut self, op: &Op) -> Result<(), Error> {
        let is_max = op.str("pooling_type")? == "max";
        if op.bool("adaptive")? {
            return self.adaptive_pool2d(op, is_max);
        }
        let ceil = op.bool("ceil_mode")?;
        if ceil && !is_max {
            // Readers of the format differ in what counts beyond the last pixel.
            return Err(self.refused("pool2d of means with ceil_mode has no counterpart".into()));
        }
        let ksize = pair(op, "ksize", [0, 0])?;
        let (strides, pads) = (pair(op, "strides", ksize)?, pads(op)?);
        let mut attrs = vec![
            Attr::Ints("kernel_shape", &ksize),
            Attr::Ints("strides", &strides),
            Attr::Ints("pads", &pads),
            Attr::Int("ceil_mode", i64::from(ceil)),
        ];
        if !is_max {
            attrs.push(Attr::Int("count_include_pad", i64::from(!op.bool("exclusive")?)));
        }
        let x = self.input(op, "X")?;
        self.emit(op, "Out", if is_max { "MaxPool" } else { "AveragePool" }, &[&x], &attrs)
    }

    /// Windows that follow from the size of the result: those of one size can be written.
    fn adaptive_pool2d(&mut self, op: &Op, is_max: bool) -> Result<(), Error> {
        let (x, result) = (self.input(op, "X")?, pair(op, "ksize", [0, 0])?);
        if result == [1, 1] {
            let kind = if is_max { "GlobalMaxPool" } else { "GlobalAveragePool" };
            return self.emit(op, "Out", kind, &[&x], &[]);
        }
        let shape = &self.ty(&x)?.shape;
        let sizes = [shape[2], shape[3]];
        if (0..2).any(|d| sizes[d] % result[d] != 0) {
            let reason = format!(
                "adaptive pool2d from {sizes:?} to {result:?} has windows of different sizes"
            );
            return Err(self.refused(reason));
        }
        let window = [sizes[0] / result[0], sizes[1] / result[1]];
        let attrs = [Attr::Ints("kernel_shape", &window), Attr::Ints("strides", &window)];
        self.emit(op, "Out", if is_max { "MaxPool" } else { "AveragePool" }, &[&x], &attrs)
    }
}

/// Two sizes, or the default if none are given.
fn pair(op: &Op, attr: &str, default: [i64; 2]) -> Result<[i64; 2], Error> {
    Ok(op.ints(attr)?.try_into().unwrap_or(default))
}

/// Zeros at the top, left, bottom and right.
fn pads(op: &Op) -> Result<[i64; 4], Error> {
    Ok(match op.ints("paddings")?[..] {
        [rows, columns] => [rows, columns, rows, columns],
        [top, bottom, left, right] => [top, left, bottom, right],
        _ => [0; 4],
    })
}
