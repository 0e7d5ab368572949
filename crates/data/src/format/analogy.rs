//! word2vec's analogy questions: four words per line, the last one to be found from the others.

use std::sync::Arc;

use super::Dictionary;
use crate::{Error, LineError, LineParser, Records, Schema, SlotKind};

pub(crate) fn check(schema: &Schema) -> Result<(), Error> {
    let one = |s: &crate::Slot| s.kind == SlotKind::FixedIds { count: 1 };
    if schema.slots().len() == 4 && schema.slots().iter().all(one) {
        return Ok(());
    }
    Err(Error::config("analogy questions need four slots of one id"))
}

pub(crate) struct AnalogyParser {
    dictionary: Arc<Dictionary>,
}

impl AnalogyParser {
    pub(crate) fn new(dictionary: &Arc<Dictionary>) -> AnalogyParser {
        AnalogyParser { dictionary: dictionary.clone() }
    }
}

impl LineParser for AnalogyParser {
    /// Unknown words become `<UNK>`; without it, a question that has one is left out. Lines that
    /// begin with a colon are headings.
    fn parse_line(
        &mut self,
        _number: u64,
        line: &[u8],
        out: &mut Records,
    ) -> Result<(), Box<LineError>> {
        let text = std::str::from_utf8(line)
            .map_err(|e| LineError::at(line, e.valid_up_to(), "UTF-8 text"))?;
        if text.trim_start().starts_with(':') {
            return Ok(());
        }
        let n = text.split_whitespace().count();
        if n != 4 {
            return Err(LineError::whole("4 words", format!("{n} words")));
        }
        if text.split_whitespace().any(|w| self.dictionary.id(w).is_none()) {
            return Ok(());
        }
        for (slot, word) in text.split_whitespace().enumerate() {
            out.push_id(slot, self.dictionary.id(word).expect("looked up above"));
        }
        out.end_record()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    #[test]
    fn words_become_ids() {
        let words = ["<UNK>", "athens", "greece"].map(|w| (w.to_string(), 1)).to_vec();
        let mut parser = AnalogyParser::new(&Arc::new(Dictionary::new(words).unwrap()));
        let slots = ["a", "b", "c", "d"].map(|n| Slot::fixed_ids(n, 1)).to_vec();
        let schema = Schema::new(slots).unwrap();
        check(&schema).unwrap();
        let mut out = Records::new(&schema);
        for line in [": capitals", "Athens Greece Oslo Norway"] {
            parser.parse_line(1, line.as_bytes(), &mut out).unwrap();
        }
        let batch = crate::Batch::assemble(out.clone(), vec![]);
        let ids: Vec<u64> = batch.values().iter().map(|v| v.as_dense().unwrap().u64()[0]).collect();
        assert_eq!(ids, [1, 2, 0, 0]);
        let e = parser.parse_line(1, b"a b c", &mut out).unwrap_err();
        assert_eq!((e.expected.as_str(), e.found.as_str()), ("4 words", "3 words"));
    }
}
