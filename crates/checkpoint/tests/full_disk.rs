//! A disk that fills up in the middle of a save.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use regatta_checkpoint::{Metadata, load_tensors, save_inference_model, save_tensors};
use regatta_tensor::Tensor;

const FILE: &str = "t.safetensors";

/// Not a test of its own: the part that runs in the limited child process, in its directory.
#[test]
#[ignore = "run by the tests below"]
fn child() {
    let dir = Path::new(".");
    let small = Tensor::from_f32(&[8], vec![1.0; 8]).unwrap();
    save_tensors(dir.join(FILE), [("w", &small)], &Metadata::new()).unwrap();

    let large = Tensor::from_f32(&[1 << 20], vec![2.0; 1 << 20]).unwrap();
    let error = save_tensors(dir.join(FILE), [("w", &large)], &Metadata::new()).unwrap_err();
    println!("file: {error}");
    let program = "program infer\nblock 0\n  param w: f32[1048576]\n";
    let program = regatta_ir::text::parse(program).unwrap();
    let lookup = |_: &str| Some(&large);
    let error = save_inference_model(dir.join("model"), &program, &[], &["w"], lookup).unwrap_err();
    println!("model: {error}");

    assert_eq!(load_tensors(dir.join(FILE)).unwrap().tensors["w"], small);
    let names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [FILE], "something half-written is left");
}

/// Runs `child` under a shell line that limits it; `$0` is the test program, `.` its directory.
fn run(limit: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{limit} exec \"$0\" --exact child --ignored --nocapture");
    let program = std::env::current_exe().unwrap();
    Command::new("sh").arg("-c").arg(line).arg(program).current_dir(dir.path()).output().unwrap()
}

fn check(output: &Output, reason: &str) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("file: cannot write ./{FILE}: {reason}")), "{text}");
    assert!(
        text.contains(&format!("model: cannot write ./model/params.safetensors: {reason}")),
        "{text}"
    );
}

#[test]
fn a_limit_on_file_sizes() {
    // 1 MiB or half of it, depending on the shell; the tensor has 4 MiB. The signal that goes with
    // the limit would end the process, so it is ignored.
    check(&run("trap '' XFSZ; ulimit -f 1024;"), "File too large");
}

#[test]
fn a_full_file_system() {
    // A file system of 1 MiB in a mount namespace of its own; not every machine allows that.
    let allowed = Command::new("unshare").args(["-rm", "true"]).output();
    if !allowed.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: mount namespaces are not allowed here");
        return;
    }
    let mount = "mkdir full && mount -t tmpfs -o size=1m none full && cd full &&";
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{mount} exec \"$0\" --exact child --ignored --nocapture");
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", &line])
        .arg(std::env::current_exe().unwrap())
        .current_dir(dir.path())
        .output()
        .unwrap();
    check(&output, "No space left on device");
}
