//! Recurrent layers against PaddlePaddle 2.6.2, on inputs that both sides compute.

use regatta_tensor::Tensor;

use crate::case::{Case, case, close, dense, f32s, i64s, numbers};

fn layer(kind: &str, gates: usize) -> Case {
    let of = |shape: &[usize], seed, factor: f32| {
        let values: Vec<f32> = numbers(shape, seed).f32().iter().map(|x| x * factor).collect();
        f32s(shape, &values)
    };
    case(kind)
        .input("X", of(&[2, 3, 2], 5, 4.0))
        .input("WeightIh", of(&[gates * 2, 2], 1, 2.0))
        .input("WeightHh", of(&[gates * 2, 2], 2, 2.0))
        .input("BiasIh", of(&[gates * 2], 3, 2.0))
        .input("BiasHh", of(&[gates * 2], 4, 2.0))
        .input("InitH", of(&[2, 2], 6, 1.0))
        .input("SequenceLength", i64s(&[2], &[2, 3]))
}

fn check(kind: &str, case: Case, out: [f32; 12], last: [f32; 4]) {
    let env = case.run().unwrap();
    close(kind, &dense(&env, "Out"), &out);
    close(kind, &dense(&env, "LastH"), &last);
}

#[test]
fn lstm_is_that_of_paddle() {
    let lstm = || layer("lstm", 4).input("InitC", numbers(&[2, 2], 7));
    let out = [
        0.25564, -0.291344, 0.330129, -0.412111, 0.0, 0.0, 0.063083, 0.102287, 0.29864, -0.15232,
        0.341474, -0.353598,
    ];
    check("lstm", lstm(), out, [0.330129, -0.412111, 0.341474, -0.353598]);
    let last_c = dense(&lstm().run().unwrap(), "LastC");
    close("LastC", &last_c, &[0.587099, -0.998473, 0.632457, -0.717597]);
    let back = [
        0.366363, -0.344075, 0.299399, -0.336651, 0.0, 0.0, 0.035676, 0.106835, 0.387072,
        -0.298328, 0.373561, -0.132895,
    ];
    let last = [0.366363, -0.344075, 0.035676, 0.106835];
    check("lstm backwards", lstm().attr("is_reverse", true), back, last);
}

#[test]
fn gru_is_that_of_paddle() {
    let out = [
        0.212685, -0.700805, 0.648057, -0.805723, 0.0, 0.0, 0.197534, 0.313604, 0.443925,
        -0.145653, 0.831826, -0.470332,
    ];
    check("gru", layer("gru", 3), out, [0.648057, -0.805723, 0.831826, -0.470332]);
    let back = [
        0.516224, -0.798556, 0.667636, -0.685572, 0.0, 0.0, 0.107217, 0.57596, 0.636693, -0.501389,
        0.809525, -0.164031,
    ];
    let last = [0.516224, -0.798556, 0.107217, 0.57596];
    check("gru backwards", layer("gru", 3).attr("is_reverse", true), back, last);
}

#[test]
fn simple_rnn_is_that_of_paddle() {
    let out = [
        -0.698028, 0.434909, 0.578665, -0.63057, 0.0, 0.0, -0.781805, 0.982733, 0.140252,
        -0.735272, 0.217442, 0.391993,
    ];
    let last = [0.578665, -0.63057, 0.217442, 0.391993];
    check("simple_rnn", layer("simple_rnn", 1), out, last);
    let error = layer("simple_rnn", 1).attr("activation", "gelu").error();
    assert_eq!(
        error,
        "op simple_rnn: attribute 'activation' is 'gelu', but should be tanh or relu"
    );
}

#[test]
fn weights_must_fit() {
    let error = case("gru")
        .input("X", numbers(&[2, 3, 4], 1))
        .input("WeightIh", numbers(&[6, 4], 1))
        .input("WeightHh", numbers(&[8, 2], 1))
        .error();
    assert_eq!(error, "op gru: WeightHh 'WeightHh' should be f32[6, 2], but is f32[8, 2]");
    let empty = |shape: &[usize]| Tensor::from_f32(shape, vec![]).unwrap();
    let env = case("gru")
        .input("X", empty(&[0, 3, 4]))
        .input("WeightIh", numbers(&[6, 4], 1))
        .input("WeightHh", numbers(&[6, 2], 1))
        .run()
        .unwrap();
    assert_eq!(dense(&env, "Out").shape(), [0, 3, 2]);
}
