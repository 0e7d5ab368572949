//! Every schedule against values worked out by hand: step 0, at a boundary, beyond the end.

use regatta_optim::{Error, Schedule};

#[track_caller]
fn check(schedule: &Schedule, base: f64, expected: &[(u64, f64)]) {
    schedule.validate(base).unwrap();
    for &(step, lr) in expected {
        let actual = f64::from(schedule.lr(base, step));
        assert!((actual - lr).abs() <= 1e-6 * lr, "step {step}: {actual} but expected {lr}");
    }
    let text = serde_json::to_string(schedule).unwrap();
    assert_eq!(&serde_json::from_str::<Schedule>(&text).unwrap(), schedule, "{text}");
}

#[test]
fn constant() {
    check(&Schedule::Constant, 0.1, &[(0, 0.1), (u64::MAX, 0.1)]);
}

#[test]
fn exponential() {
    let smooth = Schedule::Exponential { decay_steps: 10, decay_rate: 0.25, staircase: false };
    check(&smooth, 0.8, &[(0, 0.8), (5, 0.4), (10, 0.2), (20, 0.05)]);
    let stairs = Schedule::Exponential { decay_steps: 10, decay_rate: 0.25, staircase: true };
    check(&stairs, 0.8, &[(0, 0.8), (9, 0.8), (10, 0.2), (19, 0.2), (20, 0.05)]);
}

#[test]
fn natural_exp() {
    let smooth = Schedule::NaturalExp { decay_steps: 10, decay_rate: 0.5, staircase: false };
    check(&smooth, 1.0, &[(0, 1.0), (4, 0.818730753), (20, 0.367879441)]);
    let stairs = Schedule::NaturalExp { decay_steps: 10, decay_rate: 0.5, staircase: true };
    check(&stairs, 1.0, &[(9, 1.0), (10, 0.606530660), (20, 0.367879441)]);
}

#[test]
fn inverse_time() {
    let smooth = Schedule::InverseTime { decay_steps: 10, decay_rate: 0.5, staircase: false };
    check(&smooth, 0.3, &[(0, 0.3), (10, 0.2), (15, 0.3 / 1.75), (40, 0.1)]);
    let stairs = Schedule::InverseTime { decay_steps: 10, decay_rate: 0.5, staircase: true };
    check(&stairs, 0.3, &[(9, 0.3), (10, 0.2), (15, 0.2), (40, 0.1)]);
}

#[test]
fn polynomial() {
    let once = Schedule::Polynomial { decay_steps: 100, end_lr: 0.1, power: 2.0, cycle: false };
    check(&once, 0.5, &[(0, 0.5), (50, 0.2), (100, 0.1), (101, 0.1), (u64::MAX, 0.1)]);
    let cycle = Schedule::Polynomial { decay_steps: 100, end_lr: 0.1, power: 1.0, cycle: true };
    // Beyond 100 the line runs to 200: at 150 a quarter of it is left.
    check(&cycle, 0.5, &[(0, 0.5), (50, 0.3), (100, 0.1), (150, 0.2), (200, 0.1), (300, 0.1)]);
}

#[test]
fn piecewise() {
    let schedule = Schedule::Piecewise { boundaries: vec![100, 200], values: vec![1.0, 0.5, 0.1] };
    check(&schedule, 0.0, &[(0, 1.0), (99, 1.0), (100, 0.5), (199, 0.5), (200, 0.1), (999, 0.1)]);
    let single = Schedule::Piecewise { boundaries: vec![], values: vec![0.5] };
    check(&single, 0.0, &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn cosine() {
    let schedule = Schedule::Cosine { step_each_epoch: 10, epochs: 3 };
    check(&schedule, 0.4, &[(0, 0.4), (9, 0.4), (10, 0.3), (29, 0.1), (60, 0.4)]);
    assert!(schedule.lr(0.4, 30).abs() < 1e-9);
}

#[test]
fn noam() {
    let schedule = Schedule::Noam { d_model: 64, warmup_steps: 4 };
    // 1/8 * min(n^-0.5, n / 8) with n = step + 1
    let peak = 0.0625;
    check(&schedule, 1.0, &[(0, peak / 4.0), (1, peak / 2.0), (3, peak), (15, peak / 2.0)]);
    check(&schedule, 2.0, &[(3, 2.0 * peak)]);
}

#[test]
fn linear_warmup() {
    let inner =
        Box::new(Schedule::Exponential { decay_steps: 10, decay_rate: 0.5, staircase: false });
    let schedule = Schedule::LinearWarmup { inner, warmup_steps: 10, start_lr: 0.1, end_lr: 0.3 };
    check(&schedule, 0.8, &[(0, 0.1), (5, 0.2), (9, 0.28), (10, 0.4), (20, 0.2)]);
    let none = Schedule::LinearWarmup {
        inner: Box::default(),
        warmup_steps: 0,
        start_lr: 0.1,
        end_lr: 0.3,
    };
    check(&none, 0.8, &[(0, 0.8)]);
}

#[test]
fn files_may_leave_out_what_has_a_default() {
    let parse = |text| serde_json::from_str::<Schedule>(text);
    let schedule = parse(r#"{"schedule": "polynomial", "decay_steps": 5}"#).unwrap();
    let expected = Schedule::Polynomial { decay_steps: 5, end_lr: 1e-4, power: 1.0, cycle: false };
    assert_eq!(schedule, expected);
    let text = r#"{"schedule": "noam", "d_model": 5, "warmup_steps": 3, "power": 1}"#;
    let error = parse(text).unwrap_err();
    assert!(error.to_string().contains("unknown field `power`"), "{error}");
}

#[track_caller]
fn refused(schedule: Schedule, base: f64, message: &str) {
    assert_eq!(schedule.validate(base).unwrap_err().to_string(), message);
}

#[test]
fn impossible_schedules_are_refused() {
    let expected = "a finite number >= 0";
    refused(
        Schedule::Constant,
        -0.1,
        &format!("constant: `learning_rate` is -0.1, expected {expected}"),
    );
    refused(
        Schedule::InverseTime { decay_steps: 0, decay_rate: 0.5, staircase: false },
        0.1,
        "inverse_time: `decay_steps` is 0, expected at least 1",
    );
    refused(
        Schedule::Exponential { decay_steps: 1, decay_rate: 1.5, staircase: false },
        0.1,
        "exponential: `decay_rate` is 1.5, expected 0 <= value <= 1",
    );
    refused(
        Schedule::Piecewise { boundaries: vec![20, 20], values: vec![0.1; 3] },
        0.1,
        "piecewise: `boundaries` must rise, but 20 is followed by 20",
    );
    let inner = Box::new(Schedule::Cosine { step_each_epoch: 1, epochs: 0 });
    refused(
        Schedule::LinearWarmup { inner, warmup_steps: 10, start_lr: 0.0, end_lr: 0.1 },
        0.1,
        "cosine: `epochs` is 0, expected at least 1",
    );
    let error = Schedule::Piecewise { boundaries: vec![10, 20], values: vec![0.1, 0.2] }
        .validate(0.1)
        .unwrap_err();
    assert!(matches!(error, Error::WrongCount { field: "values", actual: 2, expected: 3, .. }));
    assert_eq!(error.to_string(), "piecewise: `values` has 2 entries, expected 3");
}
