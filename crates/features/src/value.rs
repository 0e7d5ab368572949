//! What a row holds: text of a file, a column of a table, a value of JSON.

use std::borrow::Cow;

/// The raw value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Nothing, or null.
    Missing,
    /// Text. An empty one, `NULL`, `null`, `\N`, `NaN` and `nan` are missing values.
    Text(&'a [u8]),
    /// A whole number.
    Int(i128),
    /// A number.
    Float(f64),
    /// A number of single precision, whose text is shorter.
    Single(f32),
    /// Several values.
    List(&'a [Value<'a>]),
}

/// Bytes of a text that a message shows.
const LONGEST: usize = 60;

impl<'a> Value<'a> {
    /// Whether there is a value.
    pub fn is_missing(&self) -> bool {
        match self {
            Value::Missing => true,
            Value::Text(text) => is_null(text.trim_ascii()),
            Value::Float(x) => x.is_nan(),
            Value::Single(x) => x.is_nan(),
            Value::Int(_) => false,
            Value::List(values) => values.is_empty(),
        }
    }

    /// The text that stands for a value: `5`, `5.0` and the number 5 are one value, whatever the
    /// file it comes from makes of it.
    pub(crate) fn key(&self) -> Cow<'a, [u8]> {
        match *self {
            Value::Missing | Value::List(_) => Cow::Borrowed(b""),
            Value::Text(text) => Cow::Borrowed(without_zeros(text.trim_ascii())),
            Value::Int(x) => Cow::Owned(x.to_string().into_bytes()),
            // Rust prints the shortest text that is this number, and none of `.0`.
            Value::Float(x) => Cow::Owned(x.to_string().into_bytes()),
            Value::Single(x) => Cow::Owned(x.to_string().into_bytes()),
        }
    }

    /// The number that it is.
    pub(crate) fn number(&self) -> Option<f64> {
        match *self {
            Value::Text(text) => std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok(),
            Value::Int(x) => Some(x as f64),
            Value::Float(x) => Some(x),
            Value::Single(x) => Some(f64::from(x)),
            Value::Missing | Value::List(_) => None,
        }
    }

    /// The id that it is.
    pub(crate) fn id(&self) -> Option<u64> {
        match *self {
            Value::Text(text) => {
                std::str::from_utf8(without_zeros(text.trim_ascii())).ok()?.parse().ok()
            }
            Value::Int(x) => u64::try_from(x).ok(),
            Value::Float(_) | Value::Single(_) => {
                let x = self.number().filter(|x| x.fract() == 0.0)?;
                (0.0..2_f64.powi(64)).contains(&x).then_some(x as u64)
            }
            Value::Missing | Value::List(_) => None,
        }
    }

    /// For messages.
    pub(crate) fn text(&self) -> String {
        match self {
            Value::Missing => "nothing".into(),
            Value::Text(b"") => "nothing".into(),
            Value::Text(text) if text.len() > LONGEST => {
                format!("'{}...'", String::from_utf8_lossy(&text[..LONGEST]))
            }
            Value::Text(text) => format!("'{}'", String::from_utf8_lossy(text)),
            Value::Int(x) => x.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Single(x) => x.to_string(),
            Value::List(values) => format!("a list of {}", values.len()),
        }
    }
}

/// What files write where there is no value.
fn is_null(text: &[u8]) -> bool {
    matches!(text, b"" | b"NULL" | b"null" | b"\\N" | b"NaN" | b"nan")
}

/// A whole number that was written as a float, as columns with missing values are by other
/// programs, without its zeros.
fn without_zeros(text: &[u8]) -> &[u8] {
    let Some(point) = text.iter().rposition(|b| *b == b'.') else { return text };
    let (whole, zeros) = (&text[..point], &text[point + 1..]);
    let digits = whole.strip_prefix(b"-").unwrap_or(whole);
    let is_whole = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    match is_whole && !zeros.is_empty() && zeros.iter().all(|b| *b == b'0') {
        true => whole,
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_has_one_text() {
        let text = |value: Value<'_>| String::from_utf8(value.key().into_owned()).unwrap();
        for value in [Value::Text(b"5"), Value::Text(b" 5.0 "), Value::Int(5), Value::Float(5.0)] {
            assert_eq!(text(value), "5");
        }
        for kept in ["1.2.0", "v5.0", ".0", "5.", "5.01", "1e3"] {
            assert_eq!(text(Value::Text(kept.as_bytes())), kept);
        }
        assert_eq!(text(Value::Text(b"-7.000")), "-7");
        assert_eq!(text(Value::Float(0.1)), "0.1");
        assert_eq!(text(Value::Single(0.1)), "0.1");
    }

    #[test]
    fn missing_values() {
        for missing in [&b""[..], b"  ", b"NULL", b"null", b"\\N", b"nan"] {
            assert!(Value::Text(missing).is_missing());
        }
        assert!(Value::Float(f64::NAN).is_missing());
        assert!(!Value::Text(b"NA").is_missing());
    }

    #[test]
    fn ids_are_whole_numbers() {
        assert_eq!(Value::Text(b"17.0").id(), Some(17));
        assert_eq!(Value::Float(17.0).id(), Some(17));
        assert_eq!(Value::Float(17.5).id(), None);
        assert_eq!(Value::Int(-1).id(), None);
        assert_eq!(Value::Text(b"18446744073709551615").id(), Some(u64::MAX));
    }
}
