//! Skip-gram samples from lines of words: a centre word, one word near it, and random others.
//!
//! For every centre word a radius is drawn from `1..=window_size`; every word within it gives one
//! sample. Each sample draws its own `negatives` words with probability `count^0.75`. As in
//! PaddleRec's reader, a negative may equal the true word.

use std::sync::Arc;

use super::{Dictionary, PartKey};
use crate::number::{ends, scan_u64, skip_blanks};
use crate::records::Column;
use crate::rng::{AliasTable, Rng};
use crate::{Error, LineError, LineParser, Records, Schema, Slot, SlotKind};

/// What the words of a corpus are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tokens {
    /// Ids of the dictionary, as in PaddleRec's converted corpora.
    #[default]
    Ids,
    /// Words, looked up in the dictionary. Unknown ones become `<UNK>`, or are left out without it.
    Words,
}

/// How lines of words become samples.
#[derive(Debug, Clone)]
pub struct SkipGram {
    dictionary: Arc<Dictionary>,
    noise: Arc<AliasTable>,
    window_size: u64,
    negatives: usize,
    tokens: Tokens,
    seed: u64,
}

impl SkipGram {
    /// Samples over the words of `dictionary`. Everything random follows from `seed`, the pass, the
    /// file and the line.
    ///
    /// # Errors
    /// If the window or the number of negatives is 0.
    pub fn new(
        dictionary: Arc<Dictionary>,
        window_size: usize,
        negatives: usize,
        tokens: Tokens,
        seed: u64,
    ) -> Result<SkipGram, Error> {
        if window_size == 0 || negatives == 0 {
            return Err(Error::config("window_size and neg_num must be at least 1"));
        }
        // x^0.75 by square roots, which are exact to the last bit everywhere.
        let weight = |&c: &u64| (c as f64).sqrt() * (c as f64).sqrt().sqrt();
        let weights: Vec<f64> = dictionary.counts().iter().map(weight).collect();
        let noise = Arc::new(AliasTable::new(&weights));
        Ok(SkipGram { dictionary, noise, window_size: window_size as u64, negatives, tokens, seed })
    }

    /// The slots of a sample by PaddleRec's names: `input_word`, `true_label` (one id each) and
    /// `neg_label`.
    pub fn schema(&self) -> Schema {
        let slots = vec![
            Slot::fixed_ids("input_word", 1),
            Slot::fixed_ids("true_label", 1),
            Slot::fixed_ids("neg_label", self.negatives),
        ];
        Schema::new(slots).expect("three slots with different names")
    }

    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Error> {
        let kinds: Vec<SlotKind> = schema.slots().iter().map(|s| s.kind).collect();
        let own: Vec<SlotKind> = self.schema().slots().iter().map(|s| s.kind).collect();
        if kinds == own {
            return Ok(());
        }
        let n = self.negatives;
        Err(Error::config(format!("skip-gram samples need three slots of 1, 1 and {n} ids")))
    }

    pub(crate) fn parser(&self, key: PartKey) -> SkipGramParser {
        SkipGramParser { expander: Expander { options: self.clone(), key }, words: Vec::new() }
    }

    /// Samples of lines that are already ids.
    pub(crate) fn expander(&self, key: PartKey) -> Expander {
        Expander { options: self.clone(), key }
    }
}

pub(crate) struct SkipGramParser {
    expander: Expander,
    /// Ids of the line's words; kept for its memory.
    words: Vec<u64>,
}

impl LineParser for SkipGramParser {
    fn parse_line(
        &mut self,
        number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        self.words.clear();
        match self.expander.options.tokens {
            Tokens::Ids => self.read_ids(line)?,
            Tokens::Words => self.read_words(line)?,
        }
        self.expander.expand(number, &self.words, out);
        Ok(())
    }
}

impl SkipGramParser {
    fn read_ids(&mut self, line: &[u8]) -> Result<(), Box<LineError>> {
        let n_words = self.expander.options.dictionary.len() as u64;
        let mut at = skip_blanks(line, 0);
        while at < line.len() {
            match scan_u64(line, at) {
                Some((id, end)) if ends(line, end) && id < n_words => {
                    self.words.push(id);
                    at = skip_blanks(line, end);
                }
                _ => return Err(LineError::at(line, at, format!("a word id below {n_words}"))),
            }
        }
        Ok(())
    }

    fn read_words(&mut self, line: &[u8]) -> Result<(), Box<LineError>> {
        let text = std::str::from_utf8(line)
            .map_err(|e| LineError::at(line, e.valid_up_to(), "UTF-8 text"))?;
        let dictionary = &self.expander.options.dictionary;
        self.words.extend(text.split_whitespace().filter_map(|w| dictionary.id(w)));
        Ok(())
    }
}

/// Makes the samples of a line of word ids.
pub(crate) struct Expander {
    options: SkipGram,
    key: PartKey,
}

impl Expander {
    pub(crate) fn expand(&self, line: u64, words: &[u64], out: &mut Records) {
        let SkipGram { noise, window_size, negatives, seed, .. } = &self.options;
        let mut rng = Rng::new(*seed, &[self.key.pass, self.key.file, line]);
        for (i, &centre) in words.iter().enumerate() {
            let radius = 1 + rng.below(*window_size) as usize;
            let first = i.saturating_sub(radius);
            let last = (i + radius).min(words.len() - 1);
            for &near in words[first..i].iter().chain(&words[i + 1..=last]) {
                let [input, truth, others] = out.columns_mut() else {
                    unreachable!("the schema has been checked")
                };
                push(input, centre);
                push(truth, near);
                (0..*negatives).for_each(|_| push(others, noise.sample(&mut rng)));
                out.end_checked_record();
            }
        }
    }
}

fn push(column: &mut Column, id: u64) {
    match column {
        Column::FixedIds { values, .. } => values.push(id),
        _ => unreachable!("the schema has been checked"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip_gram(window: usize, tokens: Tokens) -> SkipGram {
        let words = [("<UNK>", 50), ("a", 30), ("b", 20), ("c", 10)];
        let words = words.map(|(w, n)| (w.to_string(), n)).to_vec();
        SkipGram::new(Arc::new(Dictionary::new(words).unwrap()), window, 3, tokens, 7).unwrap()
    }

    fn parse(format: &SkipGram, number: u64, line: &str) -> Result<Records, Box<LineError>> {
        let mut out = Records::new(&format.schema());
        let mut parser = format.parser(PartKey { pass: 0, file: 0 });
        parser.parse_line(number, line.as_bytes(), &mut out).map(|()| out)
    }

    fn ids(records: &Records, slot: usize) -> Vec<u64> {
        match &records.columns()[slot] {
            Column::FixedIds { values, .. } => values.clone(),
            _ => panic!(),
        }
    }

    #[test]
    fn a_window_of_one_gives_the_neighbours() {
        let out = parse(&skip_gram(1, Tokens::Ids), 1, " 3 1 2 ").unwrap();
        assert_eq!(ids(&out, 0), [3, 1, 1, 2]);
        assert_eq!(ids(&out, 1), [1, 3, 2, 1]);
        assert_eq!(ids(&out, 2).len(), 12);
        assert_eq!(parse(&skip_gram(5, Tokens::Ids), 1, "2").unwrap().len(), 0);
    }

    #[test]
    fn samples_depend_on_the_line_only() {
        let format = skip_gram(3, Tokens::Ids);
        let text = "1 2 3 1 2 3 1 2";
        assert_eq!(parse(&format, 4, text), parse(&format, 4, text));
        assert_ne!(parse(&format, 4, text), parse(&format, 5, text));
        let words = skip_gram(3, Tokens::Words);
        assert_eq!(parse(&words, 4, "a B c a b c a b"), parse(&format, 4, text));
        assert_eq!(parse(&words, 4, "x a"), parse(&format, 4, "0 1"));
    }

    #[test]
    fn ids_beyond_the_dictionary_are_malformed() {
        for (line, column) in [("1 4", 3), ("1 x", 3), ("-1", 1)] {
            let e = parse(&skip_gram(3, Tokens::Ids), 1, line).unwrap_err();
            assert_eq!((e.column, e.expected.as_str()), (column, "a word id below 4"));
        }
    }
}
