//! `synthetic://dssm`: a query, a document that answers it and some that do not, as bags of words.
//!
//! Words belong to hidden topics. Most words of a query and of its document are of one topic; the
//! other documents are of other topics. Words are `1..=vocab`; id 0 stays free for padding.

use std::sync::Arc;

use super::Generator;
use super::url::{EXAMPLES, FIRST, Parameter, SEED, Url};
use crate::format::PartKey;
use crate::rng::{Rng, Zipf};
use crate::{Error, Records, Schema, Slot};

pub(super) const PARAMETERS: &[Parameter] = &[
    EXAMPLES,
    FIRST,
    SEED,
    Parameter::integer("vocab", 2000, 2, "different words"),
    Parameter::integer("topics", 20, 2, "hidden topics"),
    Parameter::size("query_words", 4, 1, "words of a query"),
    Parameter::size("doc_words", 12, 1, "words of a document"),
    Parameter::size("negatives", 4, 1, "documents that do not answer the query"),
];

#[derive(Debug)]
struct Dssm {
    seed: u64,
    topics: u64,
    vocab: u64,
    query_words: u64,
    doc_words: u64,
    negatives: usize,
    /// Rank of a word within its topic.
    rank: Zipf,
}

pub(super) fn build(url: &Url) -> Result<Arc<dyn Generator>, Error> {
    let (vocab, topics) = (url.integer("vocab"), url.integer("topics"));
    if vocab < topics {
        return Err(Error::config(format!("{url}: there are fewer words than topics")));
    }
    Ok(Arc::new(Dssm {
        seed: url.integer("seed"),
        topics,
        vocab,
        query_words: url.integer("query_words"),
        doc_words: url.integer("doc_words"),
        negatives: url.integer("negatives") as usize,
        rank: Zipf::new(vocab / topics, 0.8),
    }))
}

impl Dssm {
    fn push_text(&self, slot: usize, words: u64, topic: u64, rng: &mut Rng, out: &mut Records) {
        for _ in 0..words {
            let word = if rng.unit() < 0.75 {
                topic + self.topics * self.rank.sample(rng)
            } else {
                rng.below(self.vocab)
            };
            out.push_id(slot, 1 + word);
        }
    }
}

impl Generator for Dssm {
    fn schema(&self) -> Schema {
        let slots = vec![Slot::ids("query"), Slot::ids("doc_pos")];
        let others = (0..self.negatives).map(|i| Slot::ids(format!("doc_neg_{i}"))).collect();
        Schema::new([slots, others].concat()).expect("slots are numbered")
    }

    fn generate(&self, example: u64, _key: PartKey, out: &mut Records) {
        let mut rng = Rng::new(self.seed, &[0, example]);
        let topic = rng.below(self.topics);
        self.push_text(0, self.query_words, topic, &mut rng, out);
        self.push_text(1, self.doc_words, topic, &mut rng, out);
        for i in 0..self.negatives {
            let other = (topic + 1 + rng.below(self.topics - 1)) % self.topics;
            self.push_text(2 + i, self.doc_words, other, &mut rng, out);
        }
        out.end_checked_record();
    }
}
