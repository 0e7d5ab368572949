//! Matrix products: fully connected layers and `matmul`.

use regatta_device::{Act, Arg as DeviceArg, Gemm, Grid};

use super::{Lower, Rule};
use crate::Error;
use crate::device::codes::{COPY, RELU, SIGMOID, TANH};
use crate::device::launch::{Arg, Count, Place, Work};
use crate::device::refused;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("fc", fc),
    ("fc_grad", fc_grad),
    ("fc_grad_through_relu", fc_grad),
    ("matmul", matmul),
    ("matmul_sum", matmul),
    ("matmul_grad", matmul_grad),
];

/// A matrix, and whether it is turned.
#[derive(Debug, Clone, Copy)]
struct Mat {
    place: Place,
    trans: bool,
}

/// Rows, columns and depth of a product.
#[derive(Debug, Clone, Copy)]
struct Size {
    m: u32,
    n: u32,
    k: u32,
}

/// For each matrix of a result, the pairs of matrices whose products it is the sum of.
type Pairs = Vec<Vec<(u32, u32)>>;

/// What becomes of a finished element of a product.
#[derive(Debug, Clone, Copy, Default)]
struct End {
    bias: Option<Place>,
    act: Act,
    /// The output of a relu: the result is 0 where it is not positive.
    open: Option<Place>,
}

impl Lower<'_, '_> {
    /// One product.
    fn product(&mut self, size: Size, a: Mat, b: Mat, out: Place, end: End) {
        let Size { m, n, k } = size;
        let gemm = Gemm { trans_a: a.trans, trans_b: b.trans, act: end.act, ..Gemm::new(m, n, k) };
        let (bias, open) = (end.bias.unwrap_or(out), end.open.unwrap_or(out));
        let places = [a.place, b.place, out, bias, open].map(Arg::At).into_iter();
        let sizes = gemm.sizes(end.bias.is_some(), end.open.is_some());
        let args = places.chain(sizes.into_iter().filter_map(number)).collect();
        let kind = self.to.kind;
        self.launch(gemm.kernel(kind), Work::Exactly(gemm.grid(kind)), args);
    }

    /// Many small products.
    fn products(&mut self, size: Size, a: Mat, b: Mat, pairs: &Pairs, out: Place) {
        let mut list = vec![0];
        for group in pairs {
            list.push(list[list.len() - 1] + group.len() as u32);
        }
        list.extend(pairs.iter().flatten().flat_map(|&(a, b)| [a, b]));
        let (count, list) = (pairs.len() as u32, self.to.sizes(list));
        let Size { m, n, k } = size;
        let args = vec![
            Arg::U32(count),
            Arg::U32(m),
            Arg::U32(n),
            Arg::U32(k),
            Arg::I32(i32::from(a.trans)),
            Arg::I32(i32::from(b.trans)),
            Arg::At(list),
            Arg::At(a.place),
            Arg::At(b.place),
            Arg::At(out),
        ];
        self.each("products", Count::fixed(count * m * n), args);
    }

    /// Rows and width of an input seen as a matrix whose rows are its last dimension.
    fn matrix(&self, slot: &str) -> (u32, u32) {
        let dims = self.dims(slot);
        let width = dims.last().copied().unwrap_or(1);
        (dims[..dims.len().saturating_sub(1)].iter().product(), width)
    }

    fn activation(&self) -> Result<Act, Error> {
        match self.op.str("act")? {
            "" => Ok(Act::None),
            "relu" => Ok(Act::Relu),
            "tanh" => Ok(Act::Tanh),
            "sigmoid" => Ok(Act::Sigmoid),
            other => Err(refused(self.op, format!("act '{other}'"))),
        }
    }
}

fn plain(place: Place) -> Mat {
    Mat { place, trans: false }
}

fn turned(place: Place) -> Mat {
    Mat { place, trans: true }
}

fn fc(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, w) = (to.floats("X")?, to.floats("W")?);
    let ((m, k), n, act) = (to.matrix("X"), to.dims("W")[1], to.activation()?);
    let bias = match to.op.input_var("Bias") {
        Some(_) => Some(to.floats("Bias")?),
        None => None,
    };
    let out = to.out("Out")?;
    let end = End { bias, act, open: None };
    to.product(Size { m, n, k }, plain(x), plain(w), out, end);
    Ok(())
}

fn fc_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, w, d) = (to.floats("X")?, to.floats("W")?, to.floats("dOut")?);
    let ((m, k), n, act) = (to.matrix("X"), to.dims("W")[1], to.activation()?);
    let mut dz = d;
    if act != Act::None {
        let out = to.floats("Out")?;
        dz = to.to.scratch(u64::from(m * n) * 4);
        to.slope(act, out, d, dz, m * n);
    }
    if let Some(dbias) = to.wanted("dBias")? {
        let args = vec![Arg::At(dz), Arg::At(dbias), Arg::U32(m), Arg::U32(n)];
        let grid = Grid { groups: [n.div_ceil(32).max(1), 1, 1], local: [32, 8, 1] };
        to.launch("column_sums", Work::Exactly(grid), args);
    }
    if let Some(dw) = to.wanted("dW")? {
        let size = Size { m: k, n, k: m };
        to.product(size, turned(x), plain(dz), dw, End::default());
    }
    if let Some(dx) = to.wanted("dX")? {
        let through = to.op.kind == "fc_grad_through_relu";
        let end = End { open: through.then_some(x), ..End::default() };
        to.product(Size { m, n: k, k: n }, plain(dz), turned(w), dx, end);
    }
    Ok(())
}

impl Lower<'_, '_> {
    /// The gradient before an activation, from its result.
    fn slope(&mut self, act: Act, out: Place, d: Place, dz: Place, n: u32) {
        let code = match act {
            Act::None => COPY,
            Act::Relu => RELU,
            Act::Tanh => TANH,
            Act::Sigmoid => SIGMOID,
        };
        let n = Count::fixed(n);
        let places = [out, d, dz].map(Arg::At).into_iter();
        let head = [Arg::I32(code), Arg::Count(n)].into_iter();
        let args = head.chain(places).chain([Arg::F32(0.0), Arg::F32(0.0)]).collect();
        self.each("unary_grad", n, args);
    }
}

/// A number among the arguments of a kernel.
fn number(arg: DeviceArg<'_>) -> Option<Arg> {
    match arg {
        DeviceArg::I32(x) => Some(Arg::I32(x)),
        DeviceArg::U32(x) => Some(Arg::U32(x)),
        DeviceArg::U64(x) => Some(Arg::U64(x)),
        DeviceArg::F32(x) => Some(Arg::F32(x)),
        DeviceArg::Buffer(_) => None,
    }
}

/// The operands of a `matmul` as matrices.
struct Operands {
    size: Size,
    trans_x: bool,
    trans_y: bool,
    /// For each product, which matrix of X and which of Y.
    pairs: Vec<(u32, u32)>,
}

fn operands(to: &Lower<'_, '_>) -> Result<Operands, Error> {
    let (x, y) = (to.dims("X"), to.dims("Y"));
    // A vector has no other side to be turned to.
    let trans_x = to.op.bool("trans_x")? && x.len() > 1;
    let trans_y = to.op.bool("trans_y")? && y.len() > 1;
    let (x_leading, x) = x.split_at(x.len().saturating_sub(2));
    let (y_leading, y) = y.split_at(y.len().saturating_sub(2));
    let (rows, cols) = if x.len() == 1 { (1, x[0]) } else { (x[0], x[1]) };
    let (m, k) = if trans_x { (cols, rows) } else { (rows, cols) };
    let (rows, cols) = if y.len() == 1 { (y[0], 1) } else { (y[0], y[1]) };
    let n = if trans_y { rows } else { cols };
    let pairs = pairs(x_leading, y_leading);
    Ok(Operands { size: Size { m, n, k }, trans_x, trans_y, pairs })
}

/// The matrices of X and of Y that meet, in the order of the results.
fn pairs(x: &[u32], y: &[u32]) -> Vec<(u32, u32)> {
    let rank = x.len().max(y.len());
    let dim = |s: &[u32], at: usize| (at + s.len()).checked_sub(rank).map_or(1, |at| s[at]);
    let mut pairs = vec![(0, 0)];
    for at in 0..rank {
        let (in_x, in_y) = (dim(x, at), dim(y, at));
        let size = if in_x == 1 { in_y } else { in_x };
        let step = |of: u32, size: u32, i: u32| of * size + if size == 1 { 0 } else { i };
        let next = pairs.iter().flat_map(|&(of_x, of_y)| {
            (0..size).map(move |i| (step(of_x, in_x, i), step(of_y, in_y, i)))
        });
        pairs = next.collect();
    }
    pairs
}

fn matmul(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, y, o) = (to.floats("X")?, to.floats("Y")?, operands(to)?);
    let out = to.out("Out")?;
    let (a, b) = (Mat { place: x, trans: o.trans_x }, Mat { place: y, trans: o.trans_y });
    let (mut size, count) = (o.size, o.pairs.len() as u32);
    let sum = to.op.kind == "matmul_sum";
    let x_in_order = o.pairs.iter().enumerate().all(|(i, &(x, _))| x == i as u32);
    if !sum && !o.trans_x && x_in_order && o.pairs.iter().all(|&(_, y)| y == 0) {
        // All rows of X meet the same Y: one tall product.
        size.m *= count;
        to.product(size, a, b, out, End::default());
    } else if sum && o.trans_x && !o.trans_y {
        // X and Y are each in order: one deep product.
        size.k *= count;
        to.product(size, a, b, out, End::default());
    } else {
        let each = o.pairs.iter().map(|&pair| vec![pair]).collect();
        let pairs: Pairs = if sum { vec![o.pairs.clone()] } else { each };
        to.products(size, a, b, &pairs, out);
    }
    Ok(())
}

fn matmul_grad(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let (x, y, d) = (to.floats("X")?, to.floats("Y")?, to.floats("dOut")?);
    let o = operands(to)?;
    let Size { m, n, k } = o.size;
    // For each matrix of an operand, the results it took part in and the matrices it met there.
    let taking_part = |count: u32, of_x: bool| {
        let mut groups: Pairs = vec![Vec::new(); count as usize];
        for (i, &(of, with)) in o.pairs.iter().enumerate() {
            let (own, other) = if of_x { (of, with) } else { (with, of) };
            groups[own as usize].push((i as u32, other));
        }
        groups
    };
    let turn = |groups: Pairs| -> Pairs {
        let turned = |group: Vec<(u32, u32)>| group.into_iter().map(|(a, b)| (b, a)).collect();
        groups.into_iter().map(turned).collect()
    };
    if let Some(dx) = to.wanted("dX")? {
        let groups = taking_part(to.len("X") / (m * k), true);
        match o.trans_x {
            false => {
                let b = Mat { place: y, trans: !o.trans_y };
                to.products(Size { m, n: k, k: n }, plain(d), b, &groups, dx);
            }
            true => {
                let a = Mat { place: y, trans: o.trans_y };
                to.products(Size { m: k, n: m, k: n }, a, turned(d), &turn(groups), dx);
            }
        }
    }
    if let Some(dy) = to.wanted("dY")? {
        let groups = taking_part(to.len("Y") / (k * n), false);
        match o.trans_y {
            false => {
                let a = Mat { place: x, trans: !o.trans_x };
                to.products(Size { m: k, n, k: m }, a, plain(d), &turn(groups), dy);
            }
            true => {
                let b = Mat { place: x, trans: o.trans_x };
                to.products(Size { m: n, n: k, k: m }, turned(d), b, &groups, dy);
            }
        }
    }
    Ok(())
}
