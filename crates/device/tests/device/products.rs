//! Matrix products and sums of columns against loops in f64.

use regatta_device::{Act, Device, Gemm, Kind, Queue};

use super::{device, noise};

/// `op(x)[row, col]` of a matrix stored with `cols` or, the other way round, `rows` columns.
fn at(x: &[f32], trans: bool, [rows, cols]: [usize; 2], row: usize, col: usize) -> f64 {
    f64::from(if trans { x[col * rows + row] } else { x[row * cols + col] })
}

struct Case {
    gemm: Gemm,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    bias: Option<Vec<f32>>,
    open: Option<Vec<f32>>,
}

impl Case {
    fn new(gemm: Gemm, bias: bool, open: bool) -> Case {
        let Gemm { m, n, k, batch, .. } = gemm;
        let [m, n, k, batch] = [m, n, k, batch].map(|x| x as usize);
        Case {
            gemm,
            a: noise(1, batch * m * k),
            b: noise(2, batch * k * n),
            c: noise(3, batch * m * n),
            bias: bias.then(|| noise(4, n)),
            open: open.then(|| noise(5, batch * m * n)),
        }
    }

    fn expected(&self) -> Vec<f64> {
        let Gemm { m, n, k, batch, trans_a, trans_b, .. } = self.gemm;
        let [m, n, k, batch] = [m, n, k, batch].map(|x| x as usize);
        let mut out = Vec::new();
        for (z, row, col) in (0..batch)
            .flat_map(|z| (0..m).flat_map(move |row| (0..n).map(move |col| (z, row, col))))
        {
            let (a, b) = (&self.a[z * m * k..], &self.b[z * k * n..]);
            let term = |q| at(a, trans_a, [m, k], row, q) * at(b, trans_b, [k, n], q, col);
            let mut sum: f64 = (0..k).map(term).sum();
            let i = (z * m + row) * n + col;
            sum += if self.gemm.accumulate { f64::from(self.c[i]) } else { 0.0 };
            sum += self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[col]));
            sum = match self.gemm.act {
                Act::None => sum,
                Act::Relu => sum.max(0.0),
                Act::Tanh => sum.tanh(),
                Act::Sigmoid => 1.0 / (1.0 + (-sum).exp()),
            };
            let closed = self.open.as_ref().is_some_and(|open| open[i] <= 0.0);
            out.push(if closed { 0.0 } else { sum });
        }
        out
    }

    fn run(&self, device: &Device, kind: Kind) -> Vec<f32> {
        let [a, b, c] = [&self.a, &self.b, &self.c].map(|x| device.buffer_of(x).unwrap());
        let bias = self.bias.as_ref().map(|x| device.buffer_of(x).unwrap());
        let open = self.open.as_ref().map(|x| device.buffer_of(x).unwrap());
        let buffers = [&a, &b, &c];
        device
            .gemm_as(kind, Queue::Compute, &self.gemm, buffers, bias.as_ref(), open.as_ref())
            .unwrap();
        device.read_floats(Queue::Compute, &c, 0, self.c.len()).unwrap()
    }
}

fn check(device: &Device, case: &Case) {
    let (expected, got) = (case.expected(), case.run(device, Kind::Gpu));
    for (i, (want, have)) in expected.iter().zip(&got).enumerate() {
        let near = (want - f64::from(*have)).abs() <= 1e-5 * want.abs().max(1.0);
        assert!(near, "{:?}: element {i} is {have}, not {want}", case.gemm);
    }
    assert_eq!(got, case.run(device, Kind::Gpu), "the same bits again");
    assert_eq!(got, case.run(device, Kind::Cpu), "{:?}: the same bits by both kernels", case.gemm);
}

#[test]
fn products_of_odd_sizes_in_all_directions() {
    let Some(device) = device() else { return };
    let sizes = [
        [1, 1, 1],
        [97, 33, 200],
        [3, 2, 5],
        [64, 64, 16],
        [65, 63, 17],
        [128, 1, 70],
        [7, 130, 33],
    ];
    for [m, n, k] in sizes {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let gemm = Gemm { trans_a, trans_b, ..Gemm::new(m, n, k) };
            check(&device, &Case::new(gemm, false, false));
        }
    }
    let empty_sum = Gemm::new(4, 5, 0);
    check(&device, &Case::new(empty_sum, true, false));
}

#[test]
fn what_happens_to_a_finished_element() {
    let Some(device) = device() else { return };
    for act in [Act::None, Act::Relu, Act::Tanh, Act::Sigmoid] {
        check(&device, &Case::new(Gemm { act, ..Gemm::new(33, 66, 9) }, true, false));
    }
    check(&device, &Case::new(Gemm { trans_b: true, ..Gemm::new(33, 66, 9) }, false, true));
    check(&device, &Case::new(Gemm { accumulate: true, ..Gemm::new(5, 70, 20) }, true, false));
    check(
        &device,
        &Case::new(Gemm { batch: 3, trans_b: true, ..Gemm::new(27, 27, 16) }, false, false),
    );
}

#[test]
fn sums_of_columns() {
    let Some(device) = device() else { return };
    for [rows, n] in [[1, 1], [7, 33], [8, 32], [513, 5], [100, 200]] {
        let x = noise(6, rows * n);
        let buffer = device.buffer_of(&x).unwrap();
        let out = device.alloc(n as u64 * 4).unwrap();
        device.column_sums(Queue::Compute, &buffer, &out, [rows as u32, n as u32]).unwrap();
        let got = device.read_floats(Queue::Compute, &out, 0, n).unwrap();
        for (col, have) in got.iter().enumerate() {
            let want: f64 = (0..rows).map(|row| f64::from(x[row * n + col])).sum();
            assert!((want - f64::from(*have)).abs() < 1e-5 * want.abs().max(1.0), "{rows} x {n}");
        }
    }
}

#[test]
fn a_matrix_that_does_not_fit_is_refused() {
    let Some(device) = device() else { return };
    let [a, b, c] = [16, 16, 15].map(|n| device.alloc(n * 4).unwrap());
    let error = device.gemm(Queue::Compute, &Gemm::new(4, 4, 4), [&a, &b, &c], None, None);
    assert!(error.unwrap_err().to_string().contains("bytes 0..64 are not in a buffer of 60"));
}
