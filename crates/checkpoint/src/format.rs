//! What all files carry: the version of the format, and which program they belong to.

use std::path::Path;

use regatta_ir::Program;
use regatta_tensor::Tensor;

use crate::tensors::type_text;
use crate::{Difference, Error, Metadata};

/// Version of all formats of this crate. Files of another version are refused.
pub const FORMAT_VERSION: u32 = 1;

const VERSION_KEY: &str = "regatta.format_version";
const PROGRAM_KEY: &str = "regatta.program";
const HASH_KEY: &str = "regatta.program_hash";

/// A hash of the program's text, the same on every machine and in every version.
pub fn program_hash(program: &Program) -> String {
    text_hash(&program.to_string())
}

/// FNV-1a, in hexadecimal.
pub(crate) fn text_hash(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// The metadata of a file that belongs to a program.
pub(crate) fn metadata_of(program: &Program) -> Metadata {
    Metadata::from([
        (VERSION_KEY.to_string(), FORMAT_VERSION.to_string()),
        (PROGRAM_KEY.to_string(), program.name.clone()),
        (HASH_KEY.to_string(), program_hash(program)),
    ])
}

/// The program hash that a file carries, after a look at its version.
pub(crate) fn check_metadata<'a>(path: &Path, metadata: &'a Metadata) -> Result<&'a str, Error> {
    let Some(version) = metadata.get(VERSION_KEY) else {
        let reason = format!("a safetensors file, but not of a program: no '{VERSION_KEY}' entry");
        return Err(Error::corrupt(path, reason));
    };
    check_version(path, version)?;
    let hash = metadata.get(HASH_KEY).map(String::as_str);
    hash.ok_or_else(|| Error::corrupt(path, format!("has no '{HASH_KEY}' entry")))
}

pub(crate) fn check_version(path: &Path, found: &str) -> Result<(), Error> {
    if found == FORMAT_VERSION.to_string() {
        return Ok(());
    }
    let found = found.to_string();
    Err(Error::Version { path: path.to_path_buf(), found, supported: FORMAT_VERSION })
}

/// How the values that `lookup` finds differ from the program's persistables.
pub(crate) fn differences<'t>(
    program: &Program,
    lookup: impl Fn(&str) -> Option<&'t Tensor>,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for var in program.persistables() {
        let (name, expected) = (var.name.clone(), var.ty.to_string());
        match lookup(&name) {
            None => differences.push(Difference::Missing { name, expected }),
            Some(tensor) if type_text(tensor) != expected => {
                let actual = type_text(tensor);
                differences.push(Difference::Type { name, expected, actual });
            }
            Some(_) => {}
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fixed() {
        // The published test vector of FNV-1a; a change would orphan every saved model.
        assert_eq!(text_hash("foobar"), "85944171f73967e8");
    }
}
