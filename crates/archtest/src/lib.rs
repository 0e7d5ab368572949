//! The architecture as data, compared with the workspace by the tests below: which crate may depend
//! on which, and what some crates must not touch. ARCHITECTURE.md says why.

/// Every crate that stands above.
const ALL_ABOVE: &[&str] = &["*"];

/// Each crate (without the prefix `regatta-`) and the crates of this workspace that it may depend
/// on. Dependencies only point down: a crate may only name crates that stand above it here. Crates
/// that do not exist yet are listed with what they will need.
pub const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("kernels", &[]),
    ("net", &[]),
    ("cluster", &[]),
    ("store", &["cluster"]),
    ("optim", &["kernels"]),
    ("ir", &["tensor"]),
    ("data", &["store", "tensor"]),
    ("table", &["kernels", "optim", "tensor"]),
    ("checkpoint", &["ir", "table", "tensor"]),
    ("ps", &["checkpoint", "kernels", "net", "optim", "table", "tensor"]),
    ("collective", &["kernels", "net", "tensor"]),
    ("ops", &["ir", "kernels", "optim", "tensor"]),
    ("passes", &["ir", "ops", "optim", "tensor"]),
    ("exec", &["ir", "kernels", "ops", "passes", "tensor"]),
    ("fleet", ALL_ABOVE),
    ("predict", ALL_ABOVE),
    ("rec", ALL_ABOVE),
    ("plan", ALL_ABOVE),
    ("launch", &["cluster", "net"]),
    ("serve", &["ir", "tensor"]),
    ("regatta", ALL_ABOVE),
    ("bench", ALL_ABOVE),
    ("archtest", &[]),
];

/// What the sources of a crate must not mention: these crates have no files, sockets, threads,
/// clock or environment, so that everything in them can be tested by calling it.
pub const MUST_NOT_MENTION: &[(&str, &[&str])] = &[
    ("tensor", OUTSIDE_WORLD),
    ("optim", OUTSIDE_WORLD),
    ("ir", OUTSIDE_WORLD),
    ("passes", OUTSIDE_WORLD),
    ("ops", OUTSIDE_WORLD),
    ("table", &["std::net", "tokio", "async fn"]),
    ("cluster", &["TcpStream", "TcpListener", "ToSocketAddrs", "std::thread", "std::process"]),
];

const OUTSIDE_WORLD: &[&str] =
    &["std::fs", "std::net", "std::thread", "std::time", "std::process", "std::env"];

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use serde_json::Value;

    use super::{ALL_ABOVE, MAY_DEPEND_ON, MUST_NOT_MENTION};

    /// What cargo knows of the packages of this workspace.
    fn packages() -> Vec<Value> {
        let cargo = option_env!("CARGO").unwrap_or("cargo");
        let output = Command::new(cargo)
            .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
        metadata["packages"].as_array().expect("packages").clone()
    }

    /// `regatta-ir` is `ir`; the facade `regatta` is itself; other crates are not ours.
    fn short(name: &str) -> Option<&str> {
        if name == "regatta" { Some(name) } else { name.strip_prefix("regatta-") }
    }

    /// The crates that one may depend on; nothing if it is not listed.
    fn allowed(name: &str) -> Option<Vec<&'static str>> {
        let at = MAY_DEPEND_ON.iter().position(|(listed, _)| *listed == name)?;
        let list = MAY_DEPEND_ON[at].1;
        let above = || MAY_DEPEND_ON[..at].iter().map(|(listed, _)| *listed);
        Some(if list == ALL_ABOVE { above().collect() } else { list.to_vec() })
    }

    #[test]
    fn crates_depend_only_on_what_they_may() {
        let mut problems = Vec::new();
        for package in packages() {
            let name = package["name"].as_str().expect("a name");
            let Some(name) = short(name) else {
                problems.push(format!("package {name}: call it regatta-{name}"));
                continue;
            };
            let Some(allowed) = allowed(name) else {
                problems.push(format!(
                    "crate {name} is not listed: add it to MAY_DEPEND_ON in \
                     crates/archtest/src/lib.rs and its charter to ARCHITECTURE.md"
                ));
                continue;
            };
            for dependency in package["dependencies"].as_array().expect("dependencies") {
                let to = short(dependency["name"].as_str().expect("a name"));
                let for_tests = dependency["kind"] == "dev";
                if let Some(to) = to
                    && !for_tests
                    && !allowed.contains(&to)
                {
                    problems.push(format!(
                        "crate {name} depends on {to}, which it must not know: move what it needs \
                         down, or change MAY_DEPEND_ON in crates/archtest/src/lib.rs and say why \
                         in ARCHITECTURE.md"
                    ));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn dependencies_point_down() {
        let listed = MAY_DEPEND_ON.iter().enumerate().filter(|(_, (_, list))| *list != ALL_ABOVE);
        for (i, (name, list)) in listed {
            for to in *list {
                let above = MAY_DEPEND_ON[..i].iter().any(|(earlier, _)| earlier == to);
                assert!(above, "{name} may depend on {to}, which does not stand above it");
            }
        }
    }

    #[test]
    fn some_crates_do_not_touch_the_outside_world() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/").to_path_buf();
        let mut problems = Vec::new();
        for (name, words) in MUST_NOT_MENTION {
            for file in rust_files(&crates.join(name).join("src")) {
                let text = std::fs::read_to_string(&file).expect("a readable source file");
                let code = text.lines().enumerate().filter(|(_, l)| !l.trim().starts_with("//"));
                for (i, line) in code {
                    for word in words.iter().filter(|word| line.contains(**word)) {
                        let at = file.strip_prefix(&crates).unwrap_or(&file).display();
                        problems.push(format!("{at}:{}: crate {name} mentions {word}", i + 1));
                    }
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    fn rust_files(dir: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                files.extend(rust_files(&path));
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
        files
    }
}
