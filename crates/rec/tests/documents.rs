//! Documents mention everything that they promise to list.

use regatta_data::Synthetic;
use regatta_fleet::strategy::DistributedStrategy;
use regatta_rec::config::{RULES, SCHEDULES, keys, optimizer_keys};

fn document(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_key_is_in_config_md() {
    let text = document("config.md");
    for key in keys::KEYS {
        assert!(text.contains(&format!("| `{}` |", key.name)), "{}", key.name);
    }
    for (section, _) in keys::IGNORED_SECTIONS {
        assert!(text.contains(&format!("| `{section}` ")), "{section}");
    }
    for key in optimizer_keys() {
        let name = key.rsplit('.').next().unwrap();
        assert!(text.contains(&format!("`{name}`")), "{key}");
    }
    for name in RULES.iter().copied().chain(SCHEDULES.iter().map(|s| s.0)) {
        assert!(text.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn defaults_are_those_of_config_md() {
    let text = document("config.md");
    for key in keys::KEYS {
        let Some(default) = key.default else { continue };
        let row = text.lines().find(|l| l.starts_with(&format!("| `{}` |", key.name))).unwrap();
        assert_eq!(row.split(" | ").nth(2), Some(format!("`{default}`").as_str()), "{row}");
    }
}

#[test]
fn defaults_of_a_sync_configs_are_those_of_api_md() {
    let text = document("api.md");
    let options = DistributedStrategy::new().options();
    let names = ["max_merge_var_num", "send_queue_size", "min_send_grad_num_before_recv"];
    let others = ["send_wait_times", "pull_ahead", "dense_ahead", "thread_pool_size"];
    for name in names.into_iter().chain(others).chain(["independent_recv_thread"]) {
        let path = format!("a_sync_configs.{name}");
        let default = options.iter().find(|(p, _)| *p == path).map(|(_, value)| value);
        let default = default.map_or("none".to_string(), |value| format!("`{value}`"));
        let row = text.lines().find(|l| l.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("{name} is not in api.md"));
        assert_eq!(row.split(" | ").nth(1), Some(default.as_str()), "{row}");
    }
}

#[test]
fn every_synthetic_parameter_is_in_data_md() {
    let text = document("data.md");
    let section = |name: &str, level: &str| {
        let start = text.find(&format!("\n{level} {name}\n")).unwrap_or_else(|| panic!("{name}"));
        text[start + 1..].split("\n### ").next().unwrap().to_string()
    };
    let general = section("Synthetic sources", "##");
    for family in Synthetic::families() {
        let mut own = section(family, "###");
        if family == "multitask" {
            own += &section("ctr", "###");
        }
        for parameter in Synthetic::parameters(family).unwrap() {
            let (name, default) = (parameter.name, parameter.default);
            let row = format!("| `{name}` |");
            assert!(own.contains(&row) || general.contains(&row), "{family}: {row}");
            let value = [format!("| `{name}` | {default} |"), format!("`{name}` {default}")];
            let said = value.iter().any(|v| own.contains(v) || general.contains(v));
            assert!(said || name == "examples", "{family}: {name} is {default}");
        }
    }
    for format in keys::DATA_FORMATS {
        let heading = |l: &str| l.starts_with("### ") && l[4..].split(", ").any(|f| f == *format);
        assert!(text.lines().any(heading), "{format}");
    }
}
