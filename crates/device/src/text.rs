//! Kernel texts: written once, compiled by OpenCL drivers and by CUDA's NVRTC.
//!
//! A text uses the words of the preludes (`kernels/prelude_opencl.cl`, `kernels/prelude_cuda.cu`):
//! `KERNEL`, `GLOBAL`, `LOCAL`, `BARRIER()`, `GROUP_X`, `LOCAL_X`, `GLOBAL_X`. The parameters of a
//! kernel are read from its text, so that a launch with other arguments is an error instead of a
//! crash. A kernel stays within the ranges that its arguments say.

use std::borrow::Cow;

use crate::Error;

/// A piece of source with kernels in it; it is built as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Text {
    /// Its name in messages.
    pub name: Cow<'static, str>,
    /// The source, without a prelude.
    pub source: Cow<'static, str>,
}

/// What a kernel takes at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Param {
    /// A pointer to memory of the device.
    Buffer,
    /// `uint`.
    U32,
    /// `int`.
    I32,
    /// `ulong`.
    U64,
    /// `float`.
    F32,
}

/// A kernel's name and parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The kernel.
    pub name: String,
    /// Its parameters in order.
    pub params: Vec<Param>,
    /// The sizes of a group that the kernel is written for, if it is.
    pub local: Option<[u32; 2]>,
}

macro_rules! text {
    ($name:literal) => {
        Text {
            name: Cow::Borrowed($name),
            source: Cow::Borrowed(include_str!(concat!("../kernels/", $name, ".cl"))),
        }
    };
}

/// The texts of this crate, one per file.
static TEXTS: &[Text] = &[
    text!("elementwise"),
    text!("gemm"),
    text!("gemm_cpu"),
    text!("lookup"),
    text!("losses"),
    text!("memory"),
    text!("norm"),
    text!("rows"),
    text!("rules"),
    text!("shape"),
    text!("table_rules"),
];

/// All texts of this crate.
pub fn texts() -> &'static [Text] {
    TEXTS
}

impl Text {
    /// A text made while a program runs.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Text {
        Text { name: Cow::Owned(name.into()), source: Cow::Owned(source.into()) }
    }

    /// The kernels of this text.
    ///
    /// # Errors
    /// [`Error::Text`] if a parameter has a type that launches cannot give.
    pub fn signatures(&self) -> Result<Vec<Signature>, Error> {
        let source = without_comments(&self.source);
        let mut found = Vec::new();
        let mut rest = source.as_str();
        while let Some(at) = find_word(rest, "KERNEL") {
            rest = &rest[at + "KERNEL".len()..];
            found.push(self.signature(&mut rest)?);
        }
        Ok(found)
    }

    /// Reads on behind `KERNEL` or in `KERNEL_SIZED(x, y)`.
    fn signature(&self, rest: &mut &str) -> Result<Signature, Error> {
        let wrong = |wrong: String| Error::Text { text: self.name.to_string(), wrong };
        let mut local = None;
        if let Some(sized) = rest.strip_prefix("_SIZED") {
            let (sizes, after) =
                parenthesis(sized).ok_or_else(|| wrong("KERNEL_SIZED wants (x, y)".into()))?;
            let sizes: Vec<u32> = sizes.split(',').filter_map(|s| s.trim().parse().ok()).collect();
            let &[x, y] = sizes.as_slice() else {
                return Err(wrong("KERNEL_SIZED wants two numbers".into()));
            };
            (local, *rest) = (Some([x, y]), after);
        }
        let head = rest.trim_start().strip_prefix("void").map(str::trim_start);
        let name: String = head.unwrap_or("").chars().take_while(|c| is_word(*c)).collect();
        let (params, after) = head
            .filter(|_| !name.is_empty())
            .and_then(|head| parenthesis(&head[name.len()..]))
            .ok_or_else(|| wrong("a KERNEL goes on with 'void name(parameters)'".into()))?;
        *rest = after;
        let params: Result<Vec<Param>, String> = params.split(',').map(param).collect();
        let params = params.map_err(|param| wrong(format!("kernel '{name}': '{param}'")))?;
        Ok(Signature { name, params, local })
    }
}

fn param(text: &str) -> Result<Param, String> {
    if text.contains('*') {
        return match text.trim_start().starts_with("GLOBAL") {
            true => Ok(Param::Buffer),
            false => Err(text.trim().to_string()),
        };
    }
    let mut words = text.split_whitespace().filter(|word| *word != "const");
    match words.next() {
        Some("uint") => Ok(Param::U32),
        Some("int") => Ok(Param::I32),
        Some("ulong") => Ok(Param::U64),
        Some("float") => Ok(Param::F32),
        _ => Err(text.trim().to_string()),
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Where `word` begins a word: `KERNEL` is found in `KERNEL_SIZED`, not in `MY_KERNEL`.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find(word).map(|at| from + at) {
        let before = text[..at].chars().next_back();
        let after = &text[at + word.len()..];
        let ends = !after.starts_with(is_word) || after.starts_with("_SIZED(");
        if ends && !before.is_some_and(is_word) {
            return Some(at);
        }
        from = at + word.len();
    }
    None
}

/// The inside of the parenthesis that `text` begins with, and what is behind it.
fn parenthesis(text: &str) -> Option<(&str, &str)> {
    text.trim_start().strip_prefix('(')?.split_once(')')
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match rest.as_bytes().get(1) {
            Some(b'/') => rest.find('\n').unwrap_or(rest.len()),
            Some(b'*') => rest.find("*/").map_or(rest.len(), |end| end + 2),
            _ => {
                kept.push('/');
                1
            }
        };
        rest = &rest[end..];
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_from_the_text() {
        let text = Text::new(
            "t",
            "// KERNEL void not_this(uint a)\n#define KERNELS 1\n\
             KERNEL void one(GLOBAL const float *RESTRICT a, GLOBAL uint* b, const ulong n) { a / b; }\n\
             /* KERNEL */ KERNEL_SIZED(16, 8) void two(int i, float f,\n  uint n)\n{}",
        );
        let signatures = text.signatures().unwrap();
        let one = Signature {
            name: "one".into(),
            params: vec![Param::Buffer, Param::Buffer, Param::U64],
            local: None,
        };
        let two = Signature {
            name: "two".into(),
            params: vec![Param::I32, Param::F32, Param::U32],
            local: Some([16, 8]),
        };
        assert_eq!(signatures, [one, two]);
    }

    #[test]
    fn what_a_launch_cannot_give_is_refused() {
        for source in ["KERNEL void k(double x)", "KERNEL void k(float *x)", "KERNEL int k(uint n)"]
        {
            let error = Text::new("t", source).signatures().unwrap_err();
            assert!(error.to_string().starts_with("kernel text 't'"), "{error}");
        }
    }

    #[test]
    fn kernels_of_all_texts_have_names_of_their_own() {
        let mut names = Vec::new();
        for text in texts() {
            names.extend(text.signatures().unwrap().into_iter().map(|signature| signature.name));
        }
        let n_names = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n_names);
    }
}
