//! Data that is computed instead of read, with something to learn in it.
//!
//! Every example follows from the seed and its index alone, by counter-based random numbers and
//! arithmetic that is exact to the last bit on every machine, so any thread or worker makes the
//! same one. Test data are the same source with another `first`: the hidden model depends on `seed`
//! only.

mod corpus;
mod ctr;
mod din;
mod dssm;
mod hidden;
mod multitask;
mod ncf;
mod url;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub use url::Parameter;
pub use write::write_synthetic;

use self::url::Url;
use crate::format::{Dictionary, PartKey};
use crate::read::{PartReader, ReadContext};
use crate::stages::Stage;
use crate::{Error, Records, Schema};

/// Examples in one part of a synthetic source.
const PART_EXAMPLES: u64 = 65_536;

/// A family of synthetic data, described by its parameters.
struct Family {
    name: &'static str,
    parameters: &'static [Parameter],
    build: fn(&Url) -> Result<Arc<dyn Generator>, Error>,
}

const FAMILIES: [Family; 6] = [
    Family { name: "ctr", parameters: ctr::PARAMETERS, build: ctr::build },
    Family { name: "din", parameters: din::PARAMETERS, build: din::build },
    Family { name: "multitask", parameters: multitask::PARAMETERS, build: multitask::build },
    Family { name: "ncf", parameters: ncf::PARAMETERS, build: ncf::build },
    Family { name: "dssm", parameters: dssm::PARAMETERS, build: dssm::build },
    Family { name: "corpus", parameters: corpus::PARAMETERS, build: corpus::build },
];

/// Makes examples of one family.
trait Generator: Send + Sync + fmt::Debug {
    fn schema(&self) -> Schema;

    /// Appends the record (for a corpus: the records) of one example.
    fn generate(&self, example: u64, key: PartKey, out: &mut Records);

    /// Probability with which the example's label was drawn as 1, for families that have one.
    fn probability(&self, _example: u64) -> Option<f64> {
        None
    }

    fn corpus(&self) -> Option<&corpus::Corpus> {
        None
    }
}

/// A synthetic source: `synthetic://FAMILY?parameter=value&...`.
///
/// Families, with their slots and what is to be learnt:
///
/// - `ctr` (`label`, `1`..`slots`, `dense_input`): a logistic model over ids, floats and pairs of
///   ids
/// - `din` (`label`, `hist_item_seq`, `hist_cat_seq`, `target_item`, `target_cat`): whether the
///   target's category is among the user's
/// - `multitask` (`click`, `conversion`, `1`..`slots`, `dense_input`): two related logistic models;
///   conversions need a click
/// - `ncf` (`user_input`, `item_input`, `label`): groups of users that like groups of items
/// - `dssm` (`query`, `doc_pos`, `doc_neg_0`..): queries and documents of the same topic
/// - `corpus` (`input_word`, `true_label`, `neg_label`): words of a topic, and pairs with the same
///   relation
///
/// [`Synthetic::parameters`] lists the parameters of a family with their defaults.
#[derive(Debug, Clone)]
pub struct Synthetic {
    url: Url,
    first: u64,
    examples: u64,
    generator: Arc<dyn Generator>,
}

impl Synthetic {
    /// Whether a data path is the URL of a synthetic source.
    pub fn is_url(path: &str) -> bool {
        path.starts_with(url::SCHEME)
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// If the family or a parameter is unknown (the message names the nearest known one), or a
    /// value is out of its range.
    pub fn parse(text: &str) -> Result<Synthetic, Error> {
        let name = Url::family(text)?;
        let names: Vec<&str> = FAMILIES.iter().map(|f| f.name).collect();
        let Some(family) = FAMILIES.iter().find(|f| f.name == name) else {
            let nearest = url::nearest(name, &names);
            return Err(Error::config(format!(
                "{text}: unknown synthetic source '{name}' (did you mean '{nearest}'?)"
            )));
        };
        let url = Url::parse(text, family.name, family.parameters)?;
        let generator = (family.build)(&url)?;
        Ok(Synthetic {
            first: url.integer("first"),
            examples: url.integer("examples"),
            url,
            generator,
        })
    }

    /// The parameters of a family.
    pub fn parameters(family: &str) -> Option<&'static [Parameter]> {
        FAMILIES.iter().find(|f| f.name == family).map(|f| f.parameters)
    }

    /// Names of all families.
    pub fn families() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().map(|f| f.name)
    }

    /// The slots.
    pub fn schema(&self) -> Schema {
        self.generator.schema()
    }

    /// Number of examples; for `corpus`, of sentences.
    pub fn examples(&self) -> u64 {
        self.examples
    }

    /// Appends the records of the examples with these indices, from 0.
    pub fn generate(&self, examples: std::ops::Range<u64>, out: &mut Records) {
        for i in examples {
            self.generator.generate(self.first + i, PartKey { pass: 0, file: 0 }, out);
        }
    }

    /// The probability with which label 1 was drawn for an example, where a hidden model says so:
    /// the best any model can predict.
    pub fn probability(&self, example: u64) -> Option<f64> {
        self.generator.probability(self.first + example)
    }

    /// The words of a `corpus`.
    pub fn dictionary(&self) -> Option<Arc<Dictionary>> {
        self.generator.corpus().map(corpus::Corpus::dictionary)
    }

    /// The analogy questions of a `corpus`: the fourth word is to be found from the others.
    pub fn analogies(&self) -> Option<Vec<[u64; 4]>> {
        self.generator.corpus().map(corpus::Corpus::analogies)
    }

    pub(crate) fn n_parts(&self) -> usize {
        self.examples.div_ceil(PART_EXAMPLES) as usize
    }
}

impl fmt::Display for Synthetic {
    /// The URL with all parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

/// Makes the records of one part.
pub(crate) struct SyntheticReader {
    synthetic: Arc<Synthetic>,
    key: PartKey,
    next: u64,
    end: u64,
    context: Arc<ReadContext>,
}

impl SyntheticReader {
    pub(crate) fn new(
        synthetic: &Arc<Synthetic>,
        key: PartKey,
        context: &Arc<ReadContext>,
    ) -> SyntheticReader {
        let start = key.file * PART_EXAMPLES;
        let end = (start + PART_EXAMPLES).min(synthetic.examples);
        // The key names no file: random numbers depend on the example's index.
        let key = PartKey { file: 0, ..key };
        let (synthetic, context) = (synthetic.clone(), context.clone());
        SyntheticReader { synthetic, key, next: start, end, context }
    }
}

impl PartReader for SyntheticReader {
    fn read(&mut self, target: usize, out: &mut Records) -> Result<bool, Error> {
        let begin = Instant::now();
        let Synthetic { first, generator, .. } = &*self.synthetic;
        while out.len() < target && self.next < self.end {
            generator.generate(first + self.next, self.key, out);
            self.next += 1;
        }
        self.context.timers.add(Stage::Parse, begin.elapsed());
        Ok(self.next < self.end)
    }

    fn line(&self) -> u64 {
        self.next
    }
}
