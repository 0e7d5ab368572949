//! The words of a corpus: ids and counts, from PaddleRec's two dictionary files.

use std::collections::HashMap;
use std::path::Path;

use regatta_store::Stores;

use crate::lines::{Line, Lines};
use crate::number::parse_u64;
use crate::{Error, LineError, Malformed, open};

/// The word that stands for all words outside the dictionary.
const UNKNOWN: &str = "<UNK>";

/// Words with ids `0..len` and how often each occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dictionary {
    /// By id.
    words: Vec<String>,
    /// By id.
    counts: Vec<u64>,
    ids: HashMap<String, u64>,
}

impl Dictionary {
    /// A dictionary in which the position of a word is its id.
    ///
    /// # Errors
    /// If there are no words, a word occurs twice, or no word has a count.
    pub fn new(words: Vec<(String, u64)>) -> Result<Dictionary, Error> {
        let n = words.len();
        let (words, counts): (Vec<_>, Vec<_>) = words.into_iter().unzip();
        let ids: HashMap<_, _> = words.iter().cloned().zip(0..).collect();
        if ids.len() < n {
            return Err(Error::config("a word occurs twice in the dictionary"));
        }
        if counts.iter().all(|c| *c == 0) {
            return Err(Error::config("a dictionary needs at least one word with a count"));
        }
        Ok(Dictionary { words, counts, ids })
    }

    /// Reads `word count` lines from one file and `word id` lines from the other.
    ///
    /// # Errors
    /// If a file cannot be read, a line is malformed, a word is in only one of the files, or the
    /// ids are not `0..n`, each once.
    pub fn load(count_file: &Path, id_file: &Path) -> Result<Dictionary, Error> {
        let counts: HashMap<String, u64> =
            read_pairs(count_file)?.into_iter().map(|(_, word, count)| (word, count)).collect();
        let pairs = read_pairs(id_file)?;
        let n = pairs.len();
        let mut words = vec![None; n];
        for (line, word, id) in pairs {
            let bad = |expected: String, found: String| {
                malformed(id_file, line, *LineError::whole(expected, found))
            };
            let Some(&count) = counts.get(&word) else {
                let expected = format!("a word of {}", count_file.display());
                return Err(bad(expected, format!("'{word}'")));
            };
            match words.get_mut(id as usize) {
                Some(place @ None) => *place = Some((word, count)),
                Some(_) => {
                    return Err(bad("another id for each word".into(), format!("id {id} again")));
                }
                None => {
                    return Err(bad(
                        format!("an id below {n}, the number of words"),
                        format!("{id}"),
                    ));
                }
            }
        }
        if n != counts.len() {
            return Err(Error::config(format!(
                "{} has {} words, {} has {n}",
                count_file.display(),
                counts.len(),
                id_file.display()
            )));
        }
        Dictionary::new(words.into_iter().flatten().collect())
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are no words. There always are some.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The word with that id.
    pub fn word(&self, id: u64) -> Option<&str> {
        self.words.get(id as usize).map(String::as_str)
    }

    /// How often each word occurs, by id.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The id of a word: as written, else in lower case, else that of `<UNK>` if there is one.
    pub fn id(&self, word: &str) -> Option<u64> {
        let id = |word: &str| self.ids.get(word).copied();
        id(word).or_else(|| id(&word.to_lowercase())).or_else(|| id(UNKNOWN))
    }
}

fn malformed(file: &Path, line: u64, error: LineError) -> Error {
    Error::Malformed(Box::new(Malformed { file: file.into(), line, error, command: None }))
}

/// The `word number` lines of a file, with their line numbers.
fn read_pairs(file: &Path) -> Result<Vec<(u64, String, u64)>, Error> {
    let mut lines = Lines::new(open::open(file, &Stores::new())?, 1 << 20);
    let mut pairs = Vec::new();
    loop {
        let number = lines.number() + 1;
        let bad = |error: Box<LineError>| malformed(file, number, *error);
        let line = match lines.next().map_err(|e| Error::io(file, e))? {
            Line::Text(line) => line,
            Line::TooLong | Line::Unclosed => {
                return Err(bad(LineError::whole("a word and a number", "a long line")));
            }
            Line::End => return Ok(pairs),
        };
        let Ok(text) = std::str::from_utf8(line) else {
            return Err(bad(LineError::found(0, "UTF-8 text", line)));
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        match fields[..] {
            [] => {}
            [word, n] => match parse_u64(n.as_bytes()) {
                Some(n) => pairs.push((number, word.to_string(), n)),
                None => return Err(bad(LineError::found(word.len() + 1, "a u64", n.as_bytes()))),
            },
            _ => return Err(bad(LineError::found(0, "a word and a number", line))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(counts: &str, ids: &str) -> Result<Dictionary, String> {
        let dir = tempfile::tempdir().unwrap();
        let (c, i) = (dir.path().join("count"), dir.path().join("id"));
        std::fs::write(&c, counts).unwrap();
        std::fs::write(&i, ids).unwrap();
        Dictionary::load(&c, &i)
            .map_err(|e| e.to_string().replace(&format!("{}/", dir.path().display()), ""))
    }

    #[test]
    fn words_ids_and_counts() {
        let d = load("<UNK> 5\nthe 3\n\nof 2\n", "of 2\nthe 1\n<UNK> 0\n").unwrap();
        assert_eq!((d.len(), d.counts()), (3, &[5, 3, 2][..]));
        assert_eq!((d.id("The"), d.id("of"), d.id("Athens")), (Some(1), Some(2), Some(0)));
        assert_eq!(d.word(2), Some("of"));
    }

    #[test]
    fn broken_dictionaries() {
        for (counts, ids, error) in [
            ("a 1\n", "a x\n", "id:1: column 3: expected a u64, found 'x'"),
            ("a 1\n", "a\n", "id:1: column 1: expected a word and a number, found 'a'"),
            ("a 1\n", "b 0\n", "id:1: column 1: expected a word of count, found 'b'"),
            (
                "a 1\n",
                "a 1\n",
                "id:1: column 1: expected an id below 1, the number of words, found 1",
            ),
            (
                "a 1\nb 1\n",
                "a 0\nb 0\n",
                "id:2: column 1: expected another id for each word, found id 0 again",
            ),
            ("a 1\nb 1\n", "a 0\n", "count has 2 words, id has 1"),
            ("a 0\n", "a 0\n", "a dictionary needs at least one word with a count"),
        ] {
            assert_eq!(load(counts, ids).unwrap_err(), error);
        }
    }
}
