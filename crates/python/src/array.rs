//! Numpy arrays to values and back.

use numpy::{
    Element, IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use regatta_tensor::{Data, Ragged, Tensor, Value};

use crate::error::{raise, wrong};

/// A feed: an array, or `(values, offsets)` for an input with any number of ids per example.
/// Writes into `old` where that has the same shape, so that a steady loop allocates nothing.
pub(crate) fn read_feed(name: &str, fed: &Bound<'_, PyAny>, old: &mut Value) -> PyResult<()> {
    if let Ok(pair) = fed.cast::<PyTuple>() {
        *old = ragged(name, pair)?;
        return Ok(());
    }
    if let Value::Dense(tensor) = old
        && read_into(fed, tensor)
    {
        return Ok(());
    }
    *old = Value::Dense(tensor_of(name, fed)?);
    Ok(())
}

/// Copies an array into a tensor of its shape and type; false if it is of another.
fn read_into(fed: &Bound<'_, PyAny>, tensor: &mut Tensor) -> bool {
    macro_rules! copy {
        ($type:ty, $variant:ident) => {
            if let Ok(array) = fed.cast::<PyArrayDyn<$type>>() {
                if array.shape() != tensor.shape() {
                    return false;
                }
                if let (Ok(array), Data::$variant(to)) = (array.try_readonly(), tensor.data_mut())
                    && let Some(from) = row_major(&array)
                {
                    to.copy_from_slice(from);
                    return true;
                }
                return false;
            }
        };
    }
    copy!(f32, F32);
    copy!(i64, I64);
    copy!(u64, U64);
    false
}

/// A tensor of an array, or of anything that numpy makes one of: 32-bit floats and 64-bit integers
/// as they are, other floats as 32-bit ones, other integers and truth values as 64-bit ones.
pub(crate) fn tensor_of(name: &str, fed: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Some(tensor) = exact(fed)? {
        return Ok(tensor);
    }
    let numpy = fed.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (fed,))?;
    if let Some(tensor) = exact(&array)? {
        return Ok(tensor);
    }
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let wanted = match kind.as_str() {
        "f" => "float32",
        "i" | "b" => "int64",
        "u" if array.getattr("dtype")?.getattr("itemsize")?.extract::<usize>()? < 8 => "int64",
        "u" => "uint64",
        _ => {
            let dtype = array.getattr("dtype")?;
            return Err(wrong(format!("'{name}': an array of type {dtype} holds no numbers")));
        }
    };
    let array = numpy.call_method1("ascontiguousarray", (array, wanted))?;
    // An array of one number may lose its empty shape on the way.
    exact(&array)?.ok_or_else(|| wrong(format!("'{name}': numpy gave no array of {wanted}")))
}

fn exact(array: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    macro_rules! take {
        ($type:ty, $variant:ident) => {
            if let Ok(array) = array.cast::<PyArrayDyn<$type>>() {
                let shape = array.shape().to_vec();
                let values = array.try_readonly().ok();
                let values = values.and_then(|a| row_major(&a).map(<[_]>::to_vec));
                let Some(values) = values else { return contiguous(array.as_any()) };
                return Ok(Some(Tensor::new(&shape, Data::$variant(values)).map_err(raise)?));
            }
        };
    }
    take!(f32, F32);
    take!(i64, I64);
    take!(u64, U64);
    Ok(None)
}

/// The values of an array that lies in memory in the order of its indices. `as_slice` of numpy's
/// crate alone also gives the values of one in column-major order, in that order.
pub(crate) fn row_major<'a, T: Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> Option<&'a [T]> {
    array.is_c_contiguous().then(|| array.as_slice().ok()).flatten()
}

/// The same values in row-major order.
fn contiguous(array: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    exact(&array.call_method1("copy", ("C",))?)
}

/// `(values, offsets)`: the ids of example i are `values[offsets[i]..offsets[i + 1]]`.
fn ragged(name: &str, pair: &Bound<'_, PyTuple>) -> PyResult<Value> {
    if pair.len() != 2 {
        return Err(wrong(format!("'{name}': a feed of ids is (values, offsets)")));
    }
    let values = match tensor_of(name, &pair.get_item(0)?)?.into_data() {
        Data::U64(values) => values,
        Data::I64(values) => {
            if let Some(id) = values.iter().find(|id| **id < 0) {
                return Err(wrong(format!("'{name}': {id} is no id, ids begin with 0")));
            }
            values.into_iter().map(|id| id as u64).collect()
        }
        _ => return Err(wrong(format!("'{name}': ids are integers"))),
    };
    let offsets: Option<Vec<u32>> = match tensor_of(name, &pair.get_item(1)?)?.into_data() {
        Data::I64(offsets) => offsets.into_iter().map(|o| u32::try_from(o).ok()).collect(),
        Data::U64(offsets) => offsets.into_iter().map(|o| u32::try_from(o).ok()).collect(),
        _ => return Err(wrong(format!("'{name}': offsets are integers"))),
    };
    let offsets = offsets
        .ok_or_else(|| wrong(format!("'{name}': offsets are positions among the values")))?;
    Ok(Ragged::new(Data::U64(values), offsets).map_err(raise)?.into())
}

/// The array of a tensor; 16-bit floats become 32-bit ones.
pub(crate) fn to_numpy<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let shape = tensor.shape();
    Ok(match tensor.data() {
        Data::F32(v) => v.clone().into_pyarray(py).reshape(shape)?.into_any(),
        Data::I64(v) => v.clone().into_pyarray(py).reshape(shape)?.into_any(),
        Data::U64(v) => v.clone().into_pyarray(py).reshape(shape)?.into_any(),
        Data::F16(bits) | Data::BF16(bits) => {
            let is_f16 = matches!(tensor.data(), Data::F16(_));
            let widen =
                |b: &u16| if is_f16 { f16_to_f32(*b) } else { f32::from_bits(u32::from(*b) << 16) };
            let values: Vec<f32> = bits.iter().map(widen).collect();
            values.into_pyarray(py).reshape(shape)?.into_any()
        }
    })
}

/// IEEE half to single precision.
fn f16_to_f32(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, (bits >> 10) & 0x1f, bits & 0x3ff);
    let magnitude = match (exponent, fraction) {
        (0x1f, 0) => f32::INFINITY,
        (0x1f, _) => f32::NAN,
        (0, f) => f32::from(f) * 2f32.powi(-24),
        (e, f) => (1.0 + f32::from(f) / 1024.0) * 2f32.powi(i32::from(e) - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// Named feeds of a dictionary, with the memory of those of the last call.
pub(crate) fn read_feeds(feed: &Bound<'_, PyDict>, old: &mut Vec<(String, Value)>) -> PyResult<()> {
    old.truncate(feed.len());
    for (i, (name, value)) in feed.iter().enumerate() {
        let name = name.cast::<pyo3::types::PyString>()?.to_cow()?.into_owned();
        if old.get(i).is_none_or(|(had, _)| *had != name) {
            old.truncate(i);
            let empty = Tensor::zeros(regatta_tensor::DType::F32, &[0]);
            old.push((name, empty.into()));
        }
        let (name, to) = &mut old[i];
        read_feed(name, &value, to)?;
    }
    Ok(())
}
