//! Both instruction sets against a naive product in f64.

use super::*;

type Run = fn(&Problem, &mut [f32], &mut GemmScratch);

/// The paths this machine can run, by name.
fn paths() -> Vec<(&'static str, Run)> {
    let mut paths: Vec<(&'static str, Run)> = vec![("portable", run_portable)];
    #[cfg(target_arch = "x86_64")]
    {
        if crate::has_avx2_fma() {
            paths.push(("avx2", |problem, c, scratch| {
                // SAFETY: AVX2 and FMA were just detected.
                unsafe { run_wide(problem, c, &AVX2, scratch) }
            }));
        }
        if crate::has_avx512() {
            paths.push(("avx512", |problem, c, scratch| {
                // SAFETY: AVX-512 was just detected.
                unsafe { run_wide(problem, c, &AVX512, scratch) }
            }));
        }
    }
    paths
}

/// A small generator of test values; the seed names the case in failures.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next() as f32 / (1u64 << 30) as f32 - 1.0).collect()
    }

    /// A stored operand for `rows` x `cols` after transposition, often with gaps between rows.
    fn operand(&mut self, rows: usize, cols: usize) -> (Vec<f32>, usize, bool) {
        let trans = self.flip();
        let (rows, cols) = if trans { (cols, rows) } else { (rows, cols) };
        let ld = cols + if self.flip() { self.below(9) } else { 0 };
        // No slack after the last row: reading past it would be seen by a checker.
        let len = if rows == 0 || cols == 0 { 0 } else { (rows - 1) * ld + cols };
        (self.values(len), ld, trans)
    }
}

/// Element (row, col) of op(mat).
fn element(mat: &Mat, row: usize, col: usize) -> f64 {
    let (row, col) = if mat.trans { (col, row) } else { (row, col) };
    f64::from(mat.data[row * mat.ld + col])
}

fn activate(act: Act, x: f64) -> f64 {
    match act {
        Act::None => x,
        Act::Relu => x.max(0.0),
        Act::Tanh => x.tanh(),
        Act::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

/// Runs one product on every path and compares.
fn check(problem: &Problem, old: &[f32], scratch: &mut GemmScratch, case: &str) {
    super::check(problem, old);
    for (path, run) in paths() {
        check_path(path, &run, problem, old, scratch, case);
    }
}

/// Runs one product and compares; elements outside C must not change.
fn check_path(
    path: &str,
    run: &dyn Fn(&Problem, &mut [f32], &mut GemmScratch),
    problem: &Problem,
    old: &[f32],
    scratch: &mut GemmScratch,
    case: &str,
) {
    let &Problem { m, n, k, ref a, ref b, accumulate, ldc, epilogue } = problem;
    {
        let mut c = old.to_vec();
        run(problem, &mut c, scratch);
        for (at, (new, old)) in c.iter().zip(old).enumerate() {
            let (i, j) = (at / ldc.max(1), at % ldc.max(1));
            if i >= m || j >= n {
                assert_eq!(new.to_bits(), old.to_bits(), "{case} {path}: wrote outside C at {at}");
                continue;
            }
            let before = if accumulate { f64::from(*old) } else { 0.0 };
            let bias = epilogue.bias.map_or(0.0, |bias| f64::from(bias[j]));
            let product: f64 = (0..k).map(|p| element(a, i, p) * element(b, p, j)).sum();
            let open = epilogue.open.is_none_or(|open| open[at] > 0.0);
            let wanted = activate(epilogue.act, before + product + bias);
            let wanted = if open { wanted } else { 0.0 };
            let error = (f64::from(*new) - wanted).abs();
            let bound = 1e-6 * (1.0 + k as f64).sqrt() + 1e-6;
            assert!(error <= bound, "{case} {path}: C[{i}, {j}] = {new}, wanted {wanted}");
        }
    }
}

fn random_case(seed: u64, largest: usize, scratch: &mut GemmScratch) {
    let mut random = Random(seed);
    random.next();
    let (m, n, k) = (random.below(largest), random.below(largest), random.below(largest));
    let (a, a_ld, a_trans) = random.operand(m, k);
    let (b, b_ld, b_trans) = random.operand(k, n);
    let bias = random.values(n);
    let act = [Act::None, Act::Relu, Act::Tanh, Act::Sigmoid][random.below(4)];
    let ldc = n + random.below(5);
    let c_len = if m == 0 { 0 } else { (m - 1) * ldc + n };
    let (old, open) = (random.values(c_len), random.values(c_len));
    let problem = Problem {
        m,
        n,
        k,
        a: Mat { data: &a, ld: a_ld, trans: a_trans },
        b: Mat { data: &b, ld: b_ld, trans: b_trans },
        accumulate: random.flip(),
        ldc,
        epilogue: Epilogue {
            bias: random.flip().then_some(&bias[..]),
            act,
            open: random.flip().then_some(&open[..]),
        },
    };
    let case = format!("seed {seed}: {m} x {n} x {k}, transposed {a_trans} {b_trans}");
    check(&problem, &old, scratch, &case);
}

#[test]
fn random_small_products() {
    let mut scratch = GemmScratch::default();
    for seed in 0..1500 {
        random_case(seed, 10, &mut scratch);
        random_case(seed, 40, &mut scratch);
    }
}

#[test]
fn random_products_of_several_blocks() {
    let mut scratch = GemmScratch::default();
    for seed in 0..12 {
        random_case(seed, 250, &mut scratch);
    }
}

/// Values of which about one in three is not zero, with a NaN or an infinity nowhere.
fn mostly_zeros(random: &mut Random, len: usize) -> Vec<f32> {
    let mut values = random.values(len);
    values.iter_mut().for_each(|x| *x = if random.below(3) == 0 { *x } else { 0.0 });
    values
}

/// Products with a sparse operand on either side, by the kernel for them and by the choice of gemm.
#[cfg(target_arch = "x86_64")]
#[test]
fn products_with_many_zeros() {
    use super::sparse::{self, Side};
    let mut scratch = GemmScratch::default();
    let shapes =
        [(5, 7, 9), (33, 100, 65), (200, 97, 130), (193, 8, 64), (70, 400, 41), (400, 247, 150)];
    for (case, (m, n, k)) in (0..).zip(shapes.into_iter().flat_map(|shape| [shape; 16])) {
        let mut random = Random(case);
        let side = if case & 1 > 0 { Side::Left } else { Side::Right };
        let (mut a, a_ld, a_trans) = random.operand(m, k);
        let (mut b, b_ld, b_trans) = random.operand(k, n);
        match side {
            Side::Left => a = mostly_zeros(&mut random, a.len()),
            Side::Right => b = mostly_zeros(&mut random, b.len()),
        }
        let ldc = n + random.below(5);
        let (bias, old) = (random.values(n), random.values((m - 1) * ldc + n));
        let open = random.values(old.len());
        let act = [Act::None, Act::Relu, Act::Tanh][random.below(3)];
        let problem = Problem {
            m,
            n,
            k,
            a: Mat { data: &a, ld: a_ld, trans: a_trans },
            b: Mat { data: &b, ld: b_ld, trans: b_trans },
            accumulate: random.flip(),
            ldc,
            epilogue: Epilogue {
                bias: random.flip().then_some(&bias[..]),
                act,
                open: random.flip().then_some(&open[..]),
            },
        };
        let name = format!("case {case}: {m} x {n} x {k}, {side:?} sparse");
        check(&problem, &old, &mut scratch, &name);
        if crate::has_avx2_fma() {
            let sets = [("sparse", &AVX2.lists), ("sparse, avx512", &AVX512.lists)];
            for (path, kernels) in &sets[..1 + usize::from(crate::has_avx512())] {
                let run = |problem: &Problem, c: &mut [f32], scratch: &mut GemmScratch| {
                    // SAFETY: AVX2 and FMA were just detected, and AVX-512 for the second.
                    unsafe { sparse::run(problem, c, kernels, scratch, side) }
                };
                check_path(path, &run, &problem, &old, &mut scratch, &name);
            }
            // SAFETY: as above.
            let chosen = unsafe { sparse::side(&problem) };
            assert_eq!(chosen, (m * n * k > 1 << 20).then_some(side), "{name}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_nearest_cache_has_a_sensible_size() {
    let bytes = sparse::nearest_cache();
    assert!((8 << 10..=1 << 20).contains(&bytes), "{bytes}");
}

/// Rows of whole cache lines are read where they lie, to the last float of the slice.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_dense_operand_of_whole_lines_beside_many_zeros() {
    let mut random = Random(3);
    let (m, n, k) = (130, 400, 150);
    let (zeros, padded) = (mostly_zeros(&mut random, m * k), random.values(k * n + 16));
    let start = padded.as_ptr().align_offset(64);
    let problem = Problem {
        m,
        n,
        k,
        a: Mat::new(&zeros, k),
        b: Mat::new(&padded[start..start + k * n], n),
        accumulate: false,
        ldc: n,
        epilogue: Epilogue::default(),
    };
    check(&problem, &vec![0.0; m * n], &mut GemmScratch::default(), "whole lines");
}

/// Sums run in the same order whatever the width of the vectors, so a model is the same on both
/// machines.
#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_and_avx512_give_the_same_bits() {
    if !crate::has_avx512() {
        return;
    }
    let mut scratch = GemmScratch::default();
    for (case, (m, n, k)) in
        (0..).zip([(97, 130, 401), (200, 400, 247), (512, 97, 900), (30, 33, 12)])
    {
        for zeros in [false, true] {
            let mut random = Random(case);
            let (mut a, a_ld, a_trans) = random.operand(m, k);
            if zeros {
                a = mostly_zeros(&mut random, a.len());
            }
            let (b, b_ld, b_trans) = random.operand(k, n);
            let (bias, old) = (random.values(n), random.values(m * n));
            let problem = Problem {
                m,
                n,
                k,
                a: Mat { data: &a, ld: a_ld, trans: a_trans },
                b: Mat { data: &b, ld: b_ld, trans: b_trans },
                accumulate: random.flip(),
                ldc: n,
                epilogue: Epilogue { bias: Some(&bias), act: Act::Relu, open: None },
            };
            let [narrow, wide] = [&AVX2, &AVX512].map(|set| {
                let mut c = old.clone();
                // SAFETY: AVX-512 was just detected, beside AVX2 and FMA.
                unsafe { run_wide(&problem, &mut c, set, &mut scratch) };
                c
            });
            let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&narrow), bits(&wide), "{m} x {n} x {k}, zeros: {zeros}");
        }
    }
}

/// Shapes that cross every block boundary, are thin on either side, or have one extent of zero.
#[test]
fn chosen_products() {
    let mut scratch = GemmScratch::default();
    let shapes = [
        (97, 33, 401),
        (12, 20, 900),
        (200, 17, 65),
        (7, 2070, 3),
        (130, 24, 130),
        (50, 2, 247),
        (400, 2, 128),
        (1, 300, 77),
        (3, 65, 100),
        (4, 4, 9),
        (6, 16, 0),
        (0, 5, 3),
        (5, 0, 3),
        (2, 2, 0),
    ];
    for (m, n, k) in shapes {
        for choice in 0..8 {
            let mut random = Random(choice);
            let (a_trans, b_trans) = (choice & 1 > 0, choice & 2 > 0);
            let (a, b) = (random.values(m * k), random.values(k * n));
            let (bias, old) = (random.values(n), random.values(m * n));
            let problem = Problem {
                m,
                n,
                k,
                a: Mat { data: &a, ld: if a_trans { m } else { k }, trans: a_trans },
                b: Mat { data: &b, ld: if b_trans { k } else { n }, trans: b_trans },
                accumulate: choice & 4 > 0,
                ldc: n,
                epilogue: Epilogue { bias: Some(&bias), act: Act::Tanh, open: None },
            };
            check(&problem, &old, &mut scratch, &format!("{m} x {n} x {k}, choice {choice}"));
        }
    }
}

/// Rows a page apart are packed rather than read in place.
#[test]
fn rows_a_page_apart() {
    let mut random = Random(5);
    let (a, b) = (random.values(1024 * 12 + 30), random.values(30 * 20));
    let problem = Problem {
        m: 13,
        n: 20,
        k: 30,
        a: Mat::new(&a, 1024),
        b: Mat::new(&b, 20),
        accumulate: false,
        ldc: 20,
        epilogue: Epilogue::default(),
    };
    check(&problem, &[0.0; 260], &mut GemmScratch::default(), "ld 1024");
}

#[test]
fn nan_passes_relu() {
    let a = [f32::NAN; 8 * 8];
    let b = [1.0; 8 * 8];
    for (path, run) in paths() {
        let mut c = [0.0; 64];
        let problem = Problem {
            m: 8,
            n: 8,
            k: 8,
            a: Mat::new(&a, 8),
            b: Mat::new(&b, 8),
            accumulate: false,
            ldc: 8,
            epilogue: Epilogue { bias: None, act: Act::Relu, open: None },
        };
        run(&problem, &mut c, &mut GemmScratch::default());
        assert!(c.iter().all(|c| c.is_nan()), "{path}");
    }
}

fn multiply(a_len: usize, b_ld: usize, c_len: usize, bias_len: usize) {
    let (a, b, bias) = (vec![0.0; a_len], vec![0.0; 100], vec![0.0; bias_len]);
    let epilogue = Epilogue { bias: Some(&bias), act: Act::None, open: None };
    let (a, b) = (Mat::new(&a, 6), Mat::new(&b, b_ld));
    gemm(5, 7, 6, a, b, false, &mut vec![0.0; c_len], 7, epilogue, &mut GemmScratch::default());
}

#[test]
#[should_panic(expected = "gemm: A is 5 x 6 with rows 6 apart, but its slice holds 29")]
fn short_operand_panics() {
    multiply(29, 7, 35, 7);
}

#[test]
#[should_panic(expected = "gemm: rows of B are 7 long but only 6 apart")]
fn short_leading_dimension_panics() {
    multiply(30, 6, 35, 7);
}

#[test]
#[should_panic(expected = "gemm: C is 5 x 7")]
fn short_result_panics() {
    multiply(30, 7, 34, 7);
}

#[test]
#[should_panic(expected = "gemm: the bias holds 6 values for 7 columns")]
fn short_bias_panics() {
    multiply(30, 7, 35, 6);
}
