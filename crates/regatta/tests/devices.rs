//! `regatta devices` with drivers, without drivers and without a library.

use std::process::Command;

fn devices(environment: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.arg("devices").envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Whether PoCL is here; without it the tests that need it say so and pass.
fn has_pocl() -> bool {
    let (_, out, _) = devices(&[]);
    let found = out.contains("Portable Computing Language");
    if !found {
        eprintln!("left out, PoCL is not installed:\n{out}");
    }
    found
}

#[test]
fn software_devices_are_listed_by_name_and_kind() {
    if !has_pocl() {
        return;
    }
    let (code, out, err) = devices(&[("POCL_DEVICES", "pthread pthread")]);
    assert_eq!((code, err.as_str()), (0, ""));
    let row = |name: &str| out.lines().find(|line| line.starts_with(name)).unwrap_or("");
    for name in ["opencl-cpu:0", "opencl-cpu:1"] {
        assert_eq!(row(name).split_whitespace().nth(1), Some("cpu"), "{out}");
    }
    assert!(out.contains("used only when they are named"), "{out}");
    assert!(out.contains("no CUDA devices: "), "{out}");
}

#[test]
fn a_library_without_drivers_is_told() {
    let empty = tempfile::tempdir().unwrap();
    let folder = empty.path().to_str().unwrap();
    // Both names: loaders differ in which one they read.
    let (code, out, _) = devices(&[("OCL_ICD_VENDORS", folder), ("OPENCL_VENDOR_PATH", folder)]);
    assert_eq!(code, 0);
    let without_driver = "no platform: no driver is registered";
    let without_library = "libOpenCL.so.1 cannot be loaded";
    assert!(out.starts_with("no devices\n"), "{out}");
    assert!(out.contains(without_driver) || out.contains(without_library), "{out}");
    assert!(out.contains("to get them: "), "{out}");
}

/// A file of this name that is no library stands for a machine without one.
#[cfg(target_os = "linux")]
#[test]
fn a_machine_without_the_library_is_told_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libOpenCL.so.1"), "no library").unwrap();
    let (code, out, _) = devices(&[("LD_LIBRARY_PATH", folder.path().to_str().unwrap())]);
    assert_eq!(code, 0);
    assert!(out.contains("no OpenCL devices: libOpenCL.so.1 cannot be loaded"), "{out}");
    assert!(out.contains("ocl-icd-libopencl1"), "{out}");
}

/// The library is looked for when a device is asked for, so the binary must start without it.
#[cfg(target_os = "linux")]
#[test]
fn the_binary_needs_no_library_of_a_device() {
    let output = Command::new("ldd").arg(env!("CARGO_BIN_EXE_regatta")).output().unwrap();
    let needed = String::from_utf8(output.stdout).unwrap();
    assert!(needed.contains("libc.so"), "{needed}");
    for library in ["libOpenCL", "libcuda", "libnvrtc"] {
        assert!(!needed.contains(library), "{needed}");
    }
}
