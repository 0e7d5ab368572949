//! Whether there is anything for the devices that a job names.

use std::fs;

use regatta_cluster::{Env, names};
use regatta_net::counted;

use crate::flags::Shape;

/// How files of accelerators begin: NVIDIA (also on boards and in Windows), AMD, Ascend, Kunlun,
/// Cambricon and those of the kernel's own class.
const FILES: [&str; 9] =
    ["nvidia", "nvhost", "nvgpu", "dxg", "kfd", "davinci", "xpu", "cambricon", "accel"];

/// Without accelerators, devices only say how many ranks there are: takes them out of the job, so
/// that its processes are told to use processors. Returns what the user should know.
pub(crate) fn without_missing(shape: &mut Shape, env: &Env) -> Option<String> {
    let names = fs::read_dir("/dev").into_iter().flatten().flatten().map(|e| e.file_name());
    without(shape, is_forced(env) || names.filter_map(|n| n.into_string().ok()).any(is_file))
}

fn without(shape: &mut Shape, has_accelerator: bool) -> Option<String> {
    let Shape::Collective { per_node, devices, .. } = shape else { return None };
    if devices.is_empty() || has_accelerator {
        return None;
    }
    let list = std::mem::take(devices).concat().join(",");
    let ranks = match *per_node {
        1 => "1 rank runs".to_string(),
        n => format!("{} run", counted(n, "rank")),
    };
    Some(format!("this machine has no accelerator for devices {list}: {ranks} on its processors"))
}

/// Whether the user says that there are devices, of whatever kind.
fn is_forced(env: &Env) -> bool {
    env.get(names::BACKEND).is_some_and(|backend| backend != "gloo")
        || env.get("PADDLE_XCCL_BACKEND").is_some()
}

fn is_file(name: String) -> bool {
    FILES.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(devices: &[&[&str]]) -> Shape {
        let list = |d: &&[&str]| d.iter().map(|d| d.to_string()).collect();
        let devices: Vec<Vec<String>> = devices.iter().map(list).collect();
        let per_node = devices.len().max(1);
        Shape::Collective { nodes: 1, ips: vec![], per_node, devices, rank: None }
    }

    #[test]
    fn ranks_stay_and_devices_go() {
        let mut two = shape(&[&["1"], &["3"]]);
        let kept = two.clone();
        assert_eq!(without(&mut two, true), None);
        assert_eq!(two, kept);
        let note = without(&mut two, false).unwrap();
        assert!(note.ends_with("for devices 1,3: 2 ranks run on its processors"), "{note}");
        assert!(
            matches!(&two, Shape::Collective { per_node: 2, devices, .. } if devices.is_empty())
        );
        // Said once; and there is nothing to say without devices.
        assert_eq!(without(&mut two, false), None);
        assert_eq!(without(&mut shape(&[]), false), None);
    }

    #[test]
    fn files_and_users_tell() {
        assert!(
            ["nvidia0", "nvidiactl", "kfd", "davinci7"].map(String::from).map(is_file) == [true; 4]
        );
        assert!(!is_file("null".into()));
        assert!(is_forced(&Env::from([("PADDLE_DISTRI_BACKEND", "nccl")])));
        assert!(!is_forced(&Env::from([("PADDLE_DISTRI_BACKEND", "gloo")])));
    }
}
