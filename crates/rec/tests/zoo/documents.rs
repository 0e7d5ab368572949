//! `docs/models.md` tells of every model and of every hyper-parameter with its default.

use regatta_rec::{HyperValue, zoo};

#[test]
fn every_model_and_key_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/models.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut missing = Vec::new();
    for model in zoo::all() {
        let heading = format!("\n### {}\n", model.name);
        let Some(at) = text.find(&heading) else {
            missing.push(format!("'{}'", heading.trim()));
            continue;
        };
        let section = text[at + heading.len()..].split("\n##").next().unwrap_or_default();
        for key in model.keys {
            let row = format!("| `{}` | {} | {} |", key.name, shown(key.default.into()), key.doc);
            if !section.contains(&row) {
                missing.push(format!("{}: {row}", model.name));
            }
        }
        let class = format!("{} {}", model.optimizer.class, model.optimizer.learning_rate);
        if !section.contains(&class) {
            missing.push(format!("{}: {class}", model.name));
        }
    }
    assert!(missing.is_empty(), "docs/models.md lacks\n{}", missing.join("\n"));
}

fn shown(value: HyperValue) -> String {
    match value {
        HyperValue::Int(x) => x.to_string(),
        HyperValue::Float(x) => x.to_string(),
        HyperValue::Bool(x) => if x { "True" } else { "False" }.to_string(),
        HyperValue::Ints(x) => format!("{x:?}"),
        HyperValue::Strs(x) => x.join(", "),
        HyperValue::Str(x) => x,
        other => format!("{other:?}"),
    }
}
