//! All kernel texts by NVIDIA's compilers, which need no GPU: NVRTC, then ptxas for two
//! architectures without a spilled register. `bench/check_cuda` installs both and runs this.

use std::process::Command;

use regatta_device::{Text, cuda_ptx, texts};

/// Assembles PTX, and returns what ptxas says about registers.
fn assemble(ptx: &str, arch: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.ptx");
    std::fs::write(&file, ptx).unwrap();
    let output = Command::new("ptxas")
        .args(["-v", &format!("-arch={arch}"), "-o", "/dev/null"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(output.status.success(), "{arch}: {said}");
    said
}

#[test]
#[ignore = "needs NVRTC and ptxas: run bench/check_cuda"]
fn all_texts_become_machine_code_without_spills() {
    let mut n_kernels = 0;
    for text in texts() {
        let signatures = text.signatures().unwrap();
        for number in [80, 90] {
            let ptx = cuda_ptx(text, &format!("compute_{number}")).unwrap();
            for signature in &signatures {
                assert!(ptx.contains(&format!(".entry {}(", signature.name)), "{}", text.name);
            }
            let contracted = ["fma.rn.f32", "mad.f32"].iter().any(|word| ptx.contains(word));
            let asked = text.source.contains("fma(") || uses_functions(text);
            assert!(asked || !contracted, "{}: contracted arithmetic", text.name);
            let said = assemble(&ptx, &format!("sm_{number}"));
            let spills = said.matches("bytes spill stores").count();
            assert_eq!(spills, signatures.len(), "{}: {said}", text.name);
            let none = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
            assert_eq!(said.matches(none).count(), spills, "{}: {said}", text.name);
        }
        n_kernels += signatures.len();
    }
    println!("{} texts with {n_kernels} kernels for sm_80 and sm_90, no spills", texts().len());
}

/// Division, roots and the functions of the library contain multiply-adds of their own.
fn uses_functions(text: &Text) -> bool {
    ["/ ", "sqrt(", "exp(", "log(", "tanh(", "pow("].iter().any(|word| text.source.contains(word))
}

#[test]
#[ignore = "needs NVRTC: run bench/check_cuda"]
fn a_text_that_does_not_compile_shows_the_log() {
    let text = Text::new("broken", "KERNEL void broken(GLOBAL float *x) { x[0] = nothing; }");
    let error = cuda_ptx(&text, "compute_80").unwrap_err().to_string();
    assert!(error.contains("'broken'") && error.contains("nothing"), "{error}");
}
