//! The programs of servers and trainers together are the program of one machine.

mod common;

use common::{ROWS, model};
use regatta_exec::{Scope, run_startup};
use regatta_fleet::DistributeTranspiler;
use regatta_optim::{Adam, Rule};
use regatta_passes::Optimizer;

const SERVERS: &str = "127.0.0.1:6174,127.0.0.1:6175,127.0.0.1:6176";

#[test]
fn servers_start_with_the_values_of_one_machine_and_hold_each_float_once() {
    let model = model(&Optimizer::new(Rule::Adam(Adam::default()), 0.01));
    let t = DistributeTranspiler::transpile(&model.programs, 1, SERVERS, 2).unwrap();
    let mut local = Scope::new();
    run_startup(&model.programs.startup, &mut local).unwrap();
    let mut blocks: Vec<(String, Vec<f32>)> = Vec::new();
    for endpoint in SERVERS.split(',') {
        let main = t.get_pserver_program(endpoint).unwrap();
        let startup = t.get_startup_program(endpoint, &main).unwrap();
        let mut scope = Scope::new();
        run_startup(&startup, &mut scope).unwrap();
        for param in main.param_names() {
            let values = scope.get(&param).unwrap().f32().to_vec();
            if param == "table" {
                assert_eq!(values.len() as i64, ROWS * common::DIM);
                assert_eq!(values, local.get("table").unwrap().f32());
            } else {
                blocks.push((param, values));
            }
        }
    }
    for spec in &model.split.dense {
        let mut own: Vec<_> =
            blocks.iter().filter(|(name, _)| name.starts_with(&spec.name)).collect();
        own.sort_by(|a, b| a.0.cmp(&b.0));
        let joined: Vec<f32> = own.iter().flat_map(|(_, v)| v.clone()).collect();
        assert_eq!(joined, local.get(&spec.name).unwrap().f32(), "{}", spec.name);
    }
    assert!(blocks.len() > model.split.dense.len(), "a large parameter is cut into blocks");
}

#[test]
fn the_trainer_updates_nothing() {
    let model = model(&Optimizer::new(Rule::Adam(Adam::default()), 0.01));
    let t = DistributeTranspiler::transpile(&model.programs, 0, SERVERS, 2).unwrap();
    let text = t.get_trainer_program().to_string();
    assert!(!text.contains("adam(") && !text.contains("moment"), "{text}");
    assert!(
        text.contains("pull_sparse(") && text.contains("push_sparse(") && text.contains("send(")
    );
}

#[test]
fn wrong_numbers_and_endpoints_are_named() {
    let model = model(&Optimizer::new(Rule::Adam(Adam::default()), 0.01));
    let e = DistributeTranspiler::transpile(&model.programs, 2, SERVERS, 2).unwrap_err();
    assert_eq!(e.to_string(), "trainer_id is 2, but with 2 trainers it is below 2");
    let t = DistributeTranspiler::transpile(&model.programs, 0, SERVERS, 2).unwrap();
    let e = t.get_pserver_program("127.0.0.1:1").unwrap_err();
    assert!(e.to_string().starts_with("there is no server at '127.0.0.1:1'"), "{e}");
    let other = t.get_pserver_program("127.0.0.1:6174").unwrap();
    let e = t.get_startup_program("127.0.0.1:6175", &other).unwrap_err();
    assert_eq!(e.to_string(), "this is not the program of the server 127.0.0.1:6175");
}
