//! Launches of the matrix products in `kernels/gemm.cl`.

use crate::{Arg, Buffer, Device, Error, Grid, Kind, Queue};

/// Rows and columns of C that a group computes on GPUs and on processors.
const TILE: [u32; 2] = [64, 64];
const CPU_TILE: [u32; 2] = [96, 32];

/// What becomes of a finished element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Act {
    /// Nothing.
    #[default]
    None,
    /// What is negative becomes 0.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// A product `C = op(A) op(B)`, row-major without gaps: sizes, and what happens to its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gemm {
    /// Rows of C.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// Terms of a sum.
    pub k: u32,
    /// A is stored `k` x `m`.
    pub trans_a: bool,
    /// B is stored `n` x `k`.
    pub trans_b: bool,
    /// Products one after the other, each with matrices of its own.
    pub batch: u32,
    /// C is added to.
    pub accumulate: bool,
    /// What becomes of an element.
    pub act: Act,
}

impl Gemm {
    /// One product of these sizes.
    pub fn new(m: u32, n: u32, k: u32) -> Gemm {
        Gemm { m, n, k, batch: 1, ..Gemm::default() }
    }

    /// The kernel's name: devices that are processors have kernels of their own.
    pub fn kernel(&self, kind: Kind) -> &'static str {
        match (kind, self.trans_a, self.trans_b) {
            (Kind::Cpu, false, false) => "gemm_cpu_nn",
            (Kind::Cpu, false, true) => "gemm_cpu_nt",
            (Kind::Cpu, true, false) => "gemm_cpu_tn",
            (Kind::Cpu, true, true) => "gemm_cpu_tt",
            (_, false, false) => "gemm_nn",
            (_, false, true) => "gemm_nt",
            (_, true, false) => "gemm_tn",
            (_, true, true) => "gemm_tt",
        }
    }

    /// How many groups run it.
    pub fn grid(&self, kind: Kind) -> Grid {
        let ([rows, cols], local) = match kind {
            Kind::Cpu => (CPU_TILE, [1, 1, 1]),
            Kind::Gpu | Kind::Accelerator => (TILE, [16, 16, 1]),
        };
        Grid {
            groups: [self.n.div_ceil(cols).max(1), self.m.div_ceil(rows).max(1), self.batch],
            local,
        }
    }

    /// The kernel's argument `flags`: `bias` and `open` say whether these buffers count.
    pub fn flags(&self, bias: bool, open: bool) -> i32 {
        let act = match self.act {
            Act::None => 0,
            Act::Relu => 1,
            Act::Tanh => 2,
            Act::Sigmoid => 3,
        };
        i32::from(bias) | i32::from(open) << 1 | i32::from(self.accumulate) << 2 | act << 4
    }

    /// The kernel's arguments from `m` on.
    pub fn sizes(&self, bias: bool, open: bool) -> [Arg<'static>; 10] {
        let Gemm { m, n, k, .. } = *self;
        let lda = if self.trans_a { m } else { k };
        let ldb = if self.trans_b { k } else { n };
        let area = |a: u32, b: u32| Arg::U64(u64::from(a) * u64::from(b));
        let flags = Arg::I32(self.flags(bias, open));
        let [m_arg, n_arg, k_arg] = [m, n, k].map(Arg::U32);
        let [lda, ldb, ldc] = [lda, ldb, n].map(Arg::U32);
        [m_arg, n_arg, k_arg, lda, ldb, ldc, area(m, k), area(k, n), area(m, n), flags]
    }
}

impl Device {
    /// Puts a product on a queue. `bias` has a value per column of C. C becomes 0 where `open`,
    /// the output of a relu as large as C, is not positive: so a gradient goes back through it.
    ///
    /// # Errors
    /// If a buffer is too small, or the driver refuses.
    pub fn gemm(
        &self,
        queue: Queue,
        gemm: &Gemm,
        [a, b, c]: [&Buffer; 3],
        bias: Option<&Buffer>,
        open: Option<&Buffer>,
    ) -> Result<(), Error> {
        self.gemm_as(self.info().kind, queue, gemm, [a, b, c], bias, open)
    }

    /// As [`Device::gemm`], by the kernel for devices of a kind: both run everywhere.
    ///
    /// # Errors
    /// As [`Device::gemm`].
    pub fn gemm_as(
        &self,
        kind: Kind,
        queue: Queue,
        gemm: &Gemm,
        [a, b, c]: [&Buffer; 3],
        bias: Option<&Buffer>,
        open: Option<&Buffer>,
    ) -> Result<(), Error> {
        let kernel = self.kernel(gemm.kernel(kind))?;
        let area = |x: u32, y: u32| u64::from(gemm.batch) * u64::from(x) * u64::from(y) * 4;
        for (buffer, bytes) in [
            (Some(a), area(gemm.m, gemm.k)),
            (Some(b), area(gemm.k, gemm.n)),
            (Some(c), area(gemm.m, gemm.n)),
            (bias, u64::from(gemm.n) * 4),
            (open, area(gemm.m, gemm.n)),
        ] {
            if let Some(buffer) = buffer {
                self.check(buffer, 0, bytes, "a matrix of a product")?;
            }
        }
        let buffers = [a, b, c, bias.unwrap_or(c), open.unwrap_or(c)].map(Arg::Buffer);
        let sizes = gemm.sizes(bias.is_some(), open.is_some());
        let args: Vec<Arg<'_>> = buffers.into_iter().chain(sizes).collect();
        self.launch(queue, &kernel, gemm.grid(kind), &args)
    }

    /// Puts the sums of the columns of a matrix of `rows` x `n` on a queue.
    ///
    /// # Errors
    /// If a buffer is too small, or the driver refuses.
    pub fn column_sums(
        &self,
        queue: Queue,
        x: &Buffer,
        out: &Buffer,
        [rows, n]: [u32; 2],
    ) -> Result<(), Error> {
        self.check(x, 0, u64::from(rows) * u64::from(n) * 4, "a matrix whose columns are summed")?;
        self.check(out, 0, u64::from(n) * 4, "sums of columns")?;
        let args = [Arg::Buffer(x), Arg::Buffer(out), Arg::U32(rows), Arg::U32(n)];
        let grid = Grid { groups: [n.div_ceil(32).max(1), 1, 1], local: [32, 8, 1] };
        self.launch(queue, &self.kernel("column_sums")?, grid, &args)
    }
}
