//! Safetensors files on a real disk: to the bit, and every kind of damage is an error.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use regatta_checkpoint::{Error, Metadata, OpenTensors, load_checked, load_tensors, save_tensors};
use regatta_tensor::{Data, Tensor};

/// Shape and bits: `==` on floats would take -0 for 0 and a NaN for nothing at all.
fn bits(tensor: &Tensor) -> (Vec<usize>, String, Vec<u64>) {
    let bits = match tensor.data() {
        Data::F32(v) => v.iter().map(|x| u64::from(x.to_bits())).collect(),
        Data::F16(v) | Data::BF16(v) => v.iter().map(|x| u64::from(*x)).collect(),
        Data::I64(v) => v.iter().map(|x| *x as u64).collect(),
        Data::U64(v) => v.clone(),
    };
    (tensor.shape().to_vec(), tensor.dtype().to_string(), bits)
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    (vec(0usize..5, 0..4), 0..5, any::<u64>()).prop_map(|(shape, dtype, seed)| {
        let n: usize = shape.iter().product();
        let rng = regatta_tensor::Rng::new(seed, 0);
        let bits = (0..n as u64).map(|i| rng.u64(i));
        let data = match dtype {
            // All bit patterns: denormals, infinities, NaNs of every payload.
            0 => Data::F32(bits.map(|b| f32::from_bits(b as u32)).collect()),
            1 => Data::I64(bits.map(|b| b as i64).collect()),
            2 => Data::F16(bits.map(|b| b as u16).collect()),
            3 => Data::BF16(bits.map(|b| b as u16).collect()),
            _ => Data::U64(bits.collect()),
        };
        Tensor::new(&shape, data).unwrap()
    })
}

proptest! {
    #[test]
    fn whatever_is_saved_comes_back_to_the_bit(
        tensors in btree_map("[a-zA-Z0-9_.@/ \"\\\\é-]{1,12}", any_tensor(), 0..6),
        metadata in btree_map(".{0,8}", ".{0,20}", 0..4),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        save_tensors(&path, &tensors, &metadata).unwrap();
        let file = load_tensors(&path).unwrap();
        prop_assert_eq!(&file.metadata, &metadata);
        let all = |map: &BTreeMap<String, Tensor>| -> Vec<_> {
            map.iter().map(|(name, t)| (name.clone(), bits(t))).collect()
        };
        prop_assert_eq!(all(&file.tensors), all(&tensors));
    }
}

#[test]
fn special_floats_keep_their_bits() {
    let patterns = [0x7fc0_0000, 0x7fa1_2345, 0xffff_ffff, 0x8000_0000, 0x0000_0001, 0x7f80_0000];
    let values = patterns.map(f32::from_bits).to_vec();
    let tensor = Tensor::from_f32(&[6], values).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nan");
    save_tensors(&path, [("x", &tensor)], &Metadata::new()).unwrap();
    let loaded = load_tensors(&path).unwrap();
    let found: Vec<u32> = loaded.tensors["x"].f32().iter().map(|x| x.to_bits()).collect();
    assert_eq!(found, patterns);
}

/// A file of a few hundred bytes with several element types.
fn sample(path: &Path) -> Vec<u8> {
    let w = Tensor::from_f32(&[4, 5], (0..20).map(|i| i as f32).collect()).unwrap();
    let n = Tensor::from_i64(&[1], vec![-7]).unwrap();
    let ids = Tensor::from_u64(&[3], vec![1, 2, u64::MAX]).unwrap();
    let metadata = Metadata::from([("b".into(), "2".into()), ("a".into(), "1".into())]);
    save_tensors(path, [("w", &w), ("n", &n), ("ids", &ids)], &metadata).unwrap();
    fs::read(path).unwrap()
}

#[test]
fn the_same_content_gives_the_same_bytes_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let first = sample(&path);
    let file = load_tensors(&path).unwrap();
    save_tensors(&path, file.tensors.iter().rev(), &file.metadata).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
    let header = String::from_utf8_lossy(&first[8..]).into_owned();
    let metadata = r#"{"__metadata__":{"a":"1","b":"2","regatta.checksum":""#;
    assert!(header.starts_with(metadata), "{header}");
    let ids = header.find(r#""},"ids":{"#).unwrap();
    assert_eq!(ids, metadata.len() + 16, "{header}");
}

#[test]
fn every_flipped_bit_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let good = sample(&path);
    load_checked(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bad).unwrap();
        let error = load_checked(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "bit {bit}: {error}");
    }
    // A file from elsewhere has no checksum, and is no file of ours.
    let tensor = Tensor::from_f32(&[1], vec![1.0]).unwrap();
    let bytes = bytemuck::bytes_of(&1.0_f32);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], bytes);
    fs::write(&path, safetensors::serialize([("w", view.unwrap())], None).unwrap()).unwrap();
    assert_eq!(load_tensors(&path).unwrap().tensors["w"], tensor);
    let error = load_checked(&path).unwrap_err().to_string();
    assert!(error.contains("it holds no checksum"), "{error}");
}

#[test]
fn the_library_reads_our_files_and_we_read_its() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let bytes = sample(&path);
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.tensor("ids").unwrap().shape(), [3]);
    let again = safetensors::serialize(theirs.tensors(), None).unwrap();
    let ours = load_tensors(&path).unwrap().tensors;
    fs::write(&path, again).unwrap();
    assert_eq!(load_tensors(&path).unwrap().tensors, ours);
}

#[test]
fn pieces_are_read_from_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pieces.safetensors");
    let floats: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let floats = Tensor::from_f32(&[20, 5], floats).unwrap();
    let numbers = Tensor::from_u64(&[7], (10..17).collect()).unwrap();
    let both = [("floats", &floats), ("numbers", &numbers)];
    save_tensors(&path, both, &Metadata::new()).unwrap();

    let file = OpenTensors::open(&path).unwrap();
    assert_eq!(file.names(), ["numbers", "floats"]);
    assert_eq!(file.describe("floats").unwrap(), (floats.dtype(), &[20, 5][..]));
    assert_eq!(file.read("floats").unwrap(), floats);
    let (mut some, mut last) = ([0.0; 3], [0; 2]);
    file.read_f32("floats", 49, &mut some).unwrap();
    file.read_u64("numbers", 5, &mut last).unwrap();
    assert_eq!((some, last), ([49.0, 50.0, 51.0], [15, 16]));

    let wrong = [
        (file.read_u64("numbers", 6, &mut last), "'numbers' has 7 numbers, not 2 from 6 on"),
        (file.read_u64("numbers", usize::MAX, &mut last), "'numbers' has 7 numbers"),
        (file.read_f32("numbers", 0, &mut some), "'numbers' is of type u64, not f32"),
        (file.read_f32("none", 0, &mut some), "it holds no 'none'"),
    ];
    for (outcome, expected) in wrong {
        let error = outcome.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
        assert!(error.contains(expected), "{error} lacks '{expected}'");
    }
    // A file that is shortened while it is open gives no values that are not in it.
    fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(matches!(file.read("floats").unwrap_err(), Error::Io { .. }));
}

#[test]
fn every_truncation_is_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.safetensors");
    let whole = sample(&path);
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let error = load_tensors(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
        assert!(error.contains("truncated"), "{len} of {} bytes: {error}", whole.len());
    }
    fs::write(&path, [whole.as_slice(), b"more"].concat()).unwrap();
    let error = load_tensors(&path).unwrap_err().to_string();
    assert!(error.ends_with("4 bytes too many after the last tensor"), "{error}");
}

#[test]
fn flipped_header_bytes_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let whole = sample(&path);
    let header_end = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for at in 0..header_end {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x15;
        fs::write(&path, bytes).unwrap();
        // Some flips make another valid file (a letter of a name); none may do worse.
        let _ = load_tensors(&path);
    }
}

#[test]
fn foreign_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = |header: &str, data: &[u8]| {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    };
    let one = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let cases = [
        (b"PK\x03\x04 a zip archive of some sort".to_vec(), "not a safetensors file: it does not"),
        (vec![0; 64], "not a safetensors file"),
        (file("{nonsense}", b""), "not a safetensors file: invalid JSON in header"),
        (
            file(r#"{"h":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}}"#, b"12"),
            "'h' is of type I16",
        ),
        (file(&format!(r#"{{"a":{one},"a":{one}}}"#), b"1234"), "holds 'a' twice"),
        (
            file(r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}"#, b"1234"),
            "not a safetensors file",
        ),
        (
            file(
                r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}"#,
                b"1234",
            ),
            "not a safetensors file",
        ),
    ];
    for (bytes, expected) in cases {
        fs::write(&path, &bytes).unwrap();
        let error = load_tensors(&path).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error} lacks '{expected}'");
    }
    let missing = dir.path().join("none");
    let error = load_tensors(&missing).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot read {}: No such file", missing.display())),
        "{error}"
    );
}

#[test]
fn bad_names_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let t = Tensor::scalar(1.0);
    let twice = save_tensors(&path, [("a", &t), ("a", &t)], &Metadata::new()).unwrap_err();
    assert_eq!(twice.to_string(), "cannot save a tensor under the name 'a': there are two of it");
    save_tensors(&path, [("__metadata__", &t)], &Metadata::new()).unwrap_err();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
