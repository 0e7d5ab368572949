//! Scores become JSON, row by row.

use regatta_tensor::{Data, Tensor};

/// Begins the answer to a request.
pub(crate) fn begin(single: bool, json: &mut Vec<u8>) {
    json.extend_from_slice(if single { b"{\"prediction\":" } else { b"{\"predictions\":[" });
}

/// Ends it.
pub(crate) fn end(single: bool, json: &mut Vec<u8>) {
    json.extend_from_slice(if single { b"}" } else { b"]}" });
}

/// One row of all outputs, as an object with an array for each; `names` are already JSON.
pub(crate) fn row(names: &[String], outputs: &[Tensor], row_idx: usize, json: &mut Vec<u8>) {
    json.push(b'{');
    for (i, (name, output)) in names.iter().zip(outputs).enumerate() {
        if i > 0 {
            json.push(b',');
        }
        json.extend_from_slice(name.as_bytes());
        json.extend_from_slice(b":[");
        let width = output.numel() / output.shape().first().copied().unwrap_or(1).max(1);
        numbers(output.data(), row_idx * width, width, json);
        json.push(b']');
    }
    json.push(b'}');
}

fn numbers(data: &Data, from: usize, n: usize, json: &mut Vec<u8>) {
    for i in from..from + n {
        if i > from {
            json.push(b',');
        }
        // Writing to memory cannot fail. What is no number is `null`, as JSON has no word for it.
        let written = match data {
            Data::F32(v) => serde_json::to_writer(&mut *json, &v[i]),
            Data::I64(v) => serde_json::to_writer(&mut *json, &v[i]),
            Data::U64(v) => serde_json::to_writer(&mut *json, &v[i]),
            Data::F16(_) | Data::BF16(_) => unreachable!("such outputs are refused when opened"),
        };
        written.expect("memory takes all numbers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_objects_of_arrays() {
        let names = ["\"p\"".to_string(), "\"n\"".to_string()];
        let p = Tensor::from_f32(&[2, 2], vec![0.1, 0.9, f32::NAN, -2.0]).unwrap();
        let n = Tensor::from_i64(&[2], vec![3, -4]).unwrap();
        let mut json = Vec::new();
        row(&names, &[p, n], 1, &mut json);
        assert_eq!(String::from_utf8(json).unwrap(), r#"{"p":[null,-2.0],"n":[-4]}"#);
    }
}
