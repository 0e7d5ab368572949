//! `group_norm`: each group of channels of each example to mean 0 and variance 1, then scaled and
//! shifted by learned vectors, one value per channel. `X` is `[batch, channels, ..]`. With as many
//! groups as channels it normalises instances. `Mean` and `InvStd` are kept for the gradient.

use regatta_ir::schema::{AttrDef, AttrKind, one, optional};
use regatta_ir::{Error, Schema, VarType};
use regatta_kernels::norm::Features;

use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, Infer, Kernel, OpDef, Sample, Spec};

const ATTRS: &[AttrDef] = &[("epsilon", AttrKind::Float(1e-5)), ("groups", AttrKind::Int(1))];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "group_norm",
            inputs: &[one("X"), optional("Scale"), optional("Bias")],
            outputs: &[one("Y"), one("Mean"), one("InvStd")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| {
            let mut read = vec!["X", "Mean", "InvStd"];
            if g.op.input_var("Scale").is_some() {
                read.push("Scale");
            }
            Ok(g.several(&read, "Y", &["X", "Scale", "Bias"]))
        }),
        kernel: forward,
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "group_norm_grad",
            inputs: &[one("X"), one("Mean"), one("InvStd"), optional("Scale"), one("dY")],
            outputs: &[optional("dX"), optional("dScale"), optional("dBias")],
            attrs: ATTRS,
        },
        infer: |i| {
            let x = i.ty("X");
            let of = |slot: &str| if slot == "dX" { x.clone() } else { VarType::f32([x.shape[1]]) };
            Ok(i.op.outputs.iter().map(|(slot, _)| of(slot)).collect())
        },
        grad: NO_SECOND,
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let x = i.floats("X")?;
    if x.shape.len() < 2 || x.shape[1..].iter().any(|d| *d < 1) {
        return Err(i.wrong("X", "f32[batch, channels, ..] with known sizes"));
    }
    let (channels, groups) = (x.shape[1], i.op.int("groups")?);
    if groups < 1 || channels % groups != 0 {
        let reason = format!("is {groups}, but should divide the {channels} channels");
        return Err(i.bad_attr("groups", reason));
    }
    let epsilon = i.op.float("epsilon")?;
    if epsilon.is_nan() || epsilon < 0.0 {
        return Err(i.bad_attr("epsilon", format!("is {epsilon}, but should not be below 0")));
    }
    for slot in ["Scale", "Bias"] {
        if i.opt(slot).is_some() {
            i.expect(slot, &VarType::f32([channels]))?;
        }
    }
    let stat = VarType::f32([x.shape[0], groups]);
    Ok(vec![x.clone(), stat.clone(), stat])
}

/// Sizes of one example.
struct Sizes {
    channels: usize,
    pixels: usize,
    groups: usize,
}

impl Sizes {
    fn of(s: &Spec<'_>) -> Result<Sizes, Error> {
        let dims = s.dims(0);
        let pixels = dims[2..].iter().product();
        Ok(Sizes { channels: dims[1], pixels, groups: s.op.int("groups")? as usize })
    }

    fn in_group(&self) -> usize {
        self.channels / self.groups
    }

    /// Values that are normalised together.
    fn together(&self) -> usize {
        self.in_group() * self.pixels
    }

    /// Groups as features of an example.
    fn of_groups(&self) -> Features {
        Features { count: self.groups, pixels: self.together() }
    }

    /// Channels as features of an example.
    fn of_channels(&self) -> Features {
        Features { count: self.channels, pixels: self.pixels }
    }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let sizes = Sizes::of(s)?;
    let epsilon = s.op.float("epsilon")?;
    let (scale, bias) = (s.at("Scale"), s.at("Bias"));
    let Sizes { channels, pixels, groups } = sizes;
    let mut sums = vec![0.0f64; groups];
    let (mut factor, mut offset) = (vec![0.0f32; channels], vec![0.0f32; channels]);
    Ok(Box::new(move |io, _| {
        let (scale, bias) = (scale.map(|at| io.f32(at)), bias.map(|at| io.f32(at)));
        let examples = io.f32(0).chunks_exact(channels * pixels);
        let (y, mean, inv) = (io.out_f32(0), io.out_f32(1), io.out_f32(2));
        let stats = mean.chunks_exact_mut(groups).zip(inv.chunks_exact_mut(groups));
        for ((x, y), (mean, inv)) in examples.zip(y.chunks_exact_mut(channels * pixels)).zip(stats)
        {
            sizes.of_groups().sums(x, &mut sums);
            let share = 1.0 / sizes.together() as f64;
            mean.iter_mut().zip(&sums).for_each(|(mean, sum)| *mean = (sum * share) as f32);
            sizes.of_groups().squares(x, mean, &mut sums);
            for (inv, sum) in inv.iter_mut().zip(&sums) {
                *inv = (1.0 / (sum * share + epsilon).sqrt()) as f32;
            }
            for c in 0..channels {
                let group = c / sizes.in_group();
                factor[c] = inv[group] * scale.map_or(1.0, |scale| scale[c]);
                offset[c] = bias.map_or(0.0, |bias| bias[c]) - mean[group] * factor[c];
            }
            sizes.of_channels().stretch(x, &factor, &offset, y);
        }
        Ok(())
    }))
}

/// What the gradient of one example needs per channel.
#[derive(Default)]
struct Slopes {
    mean: Vec<f32>,
    inv: Vec<f32>,
    factor: Vec<f32>,
    slope: Vec<f32>,
    offset: Vec<f32>,
    sums: Vec<f64>,
    products: Vec<f64>,
}

impl Slopes {
    fn new(n: usize) -> Slopes {
        let [mean, inv, factor, slope, offset] = [(); 5].map(|()| vec![0.0; n]);
        Slopes { mean, inv, factor, slope, offset, sums: vec![0.0; n], products: vec![0.0; n] }
    }

    /// The sums over each channel.
    fn add_up(&mut self, sizes: &Sizes, x: &[f32], d: &[f32], mean: &[f32], inv: &[f32]) {
        for c in 0..sizes.channels {
            let group = c / sizes.in_group();
            (self.mean[c], self.inv[c]) = (mean[group], inv[group]);
        }
        let Slopes { mean, inv, sums, products, .. } = self;
        sizes.of_channels().grad_sums(x, d, mean, inv, sums, products);
    }

    /// Mean and variance depend on all values of a group.
    fn prepare(&mut self, sizes: &Sizes, scale: Option<&[f32]>) {
        let scale = |c: usize| scale.map_or(1.0, |scale| scale[c]);
        for group in 0..sizes.groups {
            let channels = group * sizes.in_group()..(group + 1) * sizes.in_group();
            let mean_of = |sums: &[f64]| -> f32 {
                let sum: f64 = channels.clone().map(|c| f64::from(scale(c)) * sums[c]).sum();
                (sum / sizes.together() as f64) as f32
            };
            let (mean_d, mean_product) = (mean_of(&self.sums), mean_of(&self.products));
            for c in channels {
                self.factor[c] = self.inv[c] * scale(c);
                self.slope[c] = -self.inv[c] * self.inv[c] * mean_product;
                self.offset[c] = -self.inv[c] * mean_d;
            }
        }
    }
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let sizes = Sizes::of(s)?;
    let (scale, d_at) = (s.at("Scale"), s.at("dY").expect("a slot of the schema"));
    let (dx, dscale, dbias) = (s.out_at("dX"), s.out_at("dScale"), s.out_at("dBias"));
    let mut slopes = Slopes::new(sizes.channels);
    let example = sizes.channels * sizes.pixels;
    let groups = sizes.groups;
    Ok(Box::new(move |io, _| {
        let (x, d) = (io.f32(0), io.f32(d_at));
        let (mean, inv, scale) = (io.f32(1), io.f32(2), scale.map(|at| io.f32(at)));
        let mut dx = dx.map(|at| io.out_f32(at).chunks_exact_mut(example));
        let mut totals = [dscale, dbias].map(|at| at.map(|at| io.out_f32(at)));
        totals.iter_mut().flatten().for_each(|total| total.fill(0.0));
        let stats = mean.chunks_exact(groups).zip(inv.chunks_exact(groups));
        for ((x, d), (mean, inv)) in x.chunks_exact(example).zip(d.chunks_exact(example)).zip(stats)
        {
            slopes.add_up(&sizes, x, d, mean, inv);
            for (total, sums) in totals.iter_mut().zip([&slopes.products, &slopes.sums]) {
                let total = total.iter_mut().flat_map(|total| total.iter_mut());
                total.zip(sums).for_each(|(total, sum)| *total += *sum as f32);
            }
            if let Some(dx) = dx.as_mut().and_then(Iterator::next) {
                slopes.prepare(&sizes, scale);
                let Slopes { mean, factor, slope, offset, .. } = &slopes;
                sizes.of_channels().grad(x, d, mean, [factor, slope, offset], dx);
            }
        }
        Ok(())
    }))
}

fn samples() -> Vec<Sample> {
    let plain = |name, shape: &[usize], groups: i64| {
        Sample::x(name, spread(shape, -2.0, 2.0))
            .attr("groups", groups)
            .ignore("Mean")
            .ignore("InvStd")
    };
    let of = |name, shape: &[usize], groups| {
        plain(name, shape, groups)
            .with("Scale", spread(&[shape[1]], 0.5, 1.5))
            .with("Bias", spread(&[shape[1]], -0.5, 0.5))
    };
    vec![
        of("groups of images", &[2, 4, 3, 2], 2),
        of("instances", &[2, 3, 5], 3),
        of("one group", &[2, 3, 2, 2], 1),
        of("no pixels", &[3, 8], 2),
        plain("without scale and bias", &[2, 4, 5], 2),
    ]
}
