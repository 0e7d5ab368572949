//! `synthetic://corpus`: sentences for word2vec, with topics and with pairs of words that stand in
//! the same relation.
//!
//! There are `pairs` topics, each with a word in two roles (`land3` and `city3`). A sentence is
//! about one word: it holds words of its topic and words of its role. Vectors of the two roles then
//! differ by the same amount in every topic, which is what analogy questions ask for.

use std::sync::Arc;

use super::Generator;
use super::url::{FIRST, Parameter, SEED, Url};
use crate::format::{Dictionary, Expander, PartKey, SkipGram, Tokens};
use crate::rng::Rng;
use crate::{Error, Records, Schema};

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::integer("examples", 20_000, 1, "number of sentences"),
    FIRST,
    SEED,
    Parameter::size("pairs", 20, 2, "topics, each with one pair of words"),
    Parameter::size("topic_words", 8, 1, "other words of each topic and of each role"),
    Parameter::size("fillers", 100, 1, "words that occur anywhere"),
    Parameter::size("length", 8, 2, "words of a sentence"),
    Parameter::size("window", 5, 1, "largest distance between the two words of a sample"),
    Parameter::size("negatives", 5, 1, "random words of a sample"),
];

const ROLES: u64 = 2;
/// Sentences that are counted for the frequencies of words.
const COUNTED: u64 = 100_000;

#[derive(Debug)]
pub(super) struct Corpus {
    words: Words,
    dictionary: Arc<Dictionary>,
    samples: SkipGram,
}

/// The vocabulary by number: `<UNK>`, pairs, topic words, role words, fillers.
#[derive(Debug, Clone, Copy)]
struct Words {
    seed: u64,
    pairs: u64,
    topic_words: u64,
    fillers: u64,
    length: u64,
}

pub(super) fn build(url: &Url) -> Result<Arc<dyn Generator>, Error> {
    let words = Words {
        seed: url.integer("seed"),
        pairs: url.integer("pairs"),
        topic_words: url.integer("topic_words"),
        fillers: url.integer("fillers"),
        length: url.integer("length"),
    };
    // One each, so that every word can be drawn as a negative.
    let mut counts = vec![1; words.len() as usize];
    let first = url.integer("first");
    for i in first..first + url.integer("examples").min(COUNTED) {
        words.sentence(i).iter().for_each(|&w| counts[w as usize] += 1);
    }
    let named = (0..).map(|w| words.name(w)).zip(counts).collect();
    let dictionary = Arc::new(Dictionary::new(named)?);
    let (window, negatives) = (url.integer("window") as usize, url.integer("negatives") as usize);
    let samples = SkipGram::new(dictionary.clone(), window, negatives, Tokens::Ids, words.seed)?;
    Ok(Arc::new(Corpus { words, dictionary, samples }))
}

impl Words {
    fn pair(&self, topic: u64, role: u64) -> u64 {
        1 + topic * ROLES + role
    }

    fn topic_word(&self, topic: u64, k: u64) -> u64 {
        1 + self.pairs * ROLES + topic * self.topic_words + k
    }

    fn role_word(&self, role: u64, k: u64) -> u64 {
        self.topic_word(self.pairs + role, k)
    }

    fn filler(&self, k: u64) -> u64 {
        self.topic_word(self.pairs + ROLES, 0) + k
    }

    fn len(&self) -> u64 {
        self.filler(self.fillers)
    }

    fn name(&self, word: u64) -> String {
        let (topics, roles, fillers) =
            (self.topic_word(0, 0), self.role_word(0, 0), self.filler(0));
        let of_group =
            |from: u64| ((word - from) / self.topic_words, (word - from) % self.topic_words);
        if word == 0 {
            "<UNK>".into()
        } else if word < topics {
            format!("{}{}", ["land", "city"][((word - 1) % ROLES) as usize], (word - 1) / ROLES)
        } else if word < roles {
            let (topic, k) = of_group(topics);
            format!("topic{topic}.{k}")
        } else if word < fillers {
            let (role, k) = of_group(roles);
            format!("role{role}.{k}")
        } else {
            format!("filler{}", word - fillers)
        }
    }

    /// The words of a sentence.
    fn sentence(&self, index: u64) -> Vec<u64> {
        let mut rng = Rng::new(self.seed, &[0, index]);
        let (topic, role) = (rng.below(self.pairs), rng.below(ROLES));
        let mut sentence = vec![self.pair(topic, role)];
        for _ in 1..self.length {
            let kind = rng.unit();
            sentence.push(if kind < 0.5 {
                self.topic_word(topic, rng.below(self.topic_words))
            } else if kind < 0.9 {
                self.role_word(role, rng.below(self.topic_words))
            } else {
                self.filler(rng.below(self.fillers))
            });
        }
        rng.shuffle(&mut sentence);
        sentence
    }
}

impl Corpus {
    pub(super) fn dictionary(&self) -> Arc<Dictionary> {
        self.dictionary.clone()
    }

    pub(super) fn sentence(&self, index: u64) -> Vec<u64> {
        self.words.sentence(index)
    }

    /// `land_i` is to `city_i` as `land_j` is to `city_j`, for all i and j.
    pub(super) fn analogies(&self) -> Vec<[u64; 4]> {
        let pair = |topic| [self.words.pair(topic, 0), self.words.pair(topic, 1)];
        let all = (0..self.words.pairs).flat_map(|i| (0..self.words.pairs).map(move |j| (i, j)));
        all.filter(|(i, j)| i != j)
            .map(|(i, j)| [pair(i)[0], pair(i)[1], pair(j)[0], pair(j)[1]])
            .collect()
    }
}

impl Generator for Corpus {
    fn schema(&self) -> Schema {
        self.samples.schema()
    }

    fn generate(&self, example: u64, key: PartKey, out: &mut Records) {
        let expander: Expander = self.samples.expander(key);
        expander.expand(example, &self.words.sentence(example), out);
    }

    fn corpus(&self) -> Option<&Corpus> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn words_have_different_names_and_sentences_a_topic() {
        let synthetic = crate::Synthetic::parse("synthetic://corpus?pairs=3&examples=50").unwrap();
        let dictionary = synthetic.dictionary().unwrap();
        assert_eq!(dictionary.len(), 1 + 6 + 3 * 8 + 2 * 8 + 100);
        assert_eq!(dictionary.word(4), Some("city1"));
        let questions = synthetic.analogies().unwrap();
        assert_eq!(questions.len(), 6);
        let words = |q: [u64; 4]| q.map(|w| dictionary.word(w).unwrap().to_string());
        assert_eq!(words(questions[0]), ["land0", "city0", "land1", "city1"]);
    }
}
