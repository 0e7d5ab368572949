//! A generated click log with a known structure: users like two genres, and click what belongs to
//! them.

use std::fmt::Write;

/// How a log is written.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub(crate) rows: usize,
    pub(crate) seed: u64,
    pub(crate) users: u64,
    pub(crate) items: u64,
    /// Put before every item of a history.
    pub(crate) history_prefix: &'static str,
}

impl Default for Log {
    fn default() -> Log {
        Log { rows: 2000, seed: 1, users: 200, items: 60, history_prefix: "" }
    }
}

const GENRES: [&str; 6] = ["drama", "comedy", "crime, thriller", "sci-fi", "western", "musical"];

/// Numbers that follow from a state, well mixed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// One example, before it is written down.
pub(crate) struct Example {
    pub(crate) clicked: bool,
    pub(crate) user: String,
    pub(crate) item: String,
    pub(crate) tags: Vec<String>,
    pub(crate) history: Vec<String>,
    pub(crate) age: Option<u64>,
    pub(crate) price: Option<f64>,
}

fn genre(item: u64) -> usize {
    (item % GENRES.len() as u64) as usize
}

fn likes(user: u64, item: u64) -> bool {
    let n = GENRES.len() as u64;
    [Numbers(user).below(n), Numbers(user ^ 0xff).below(n)].contains(&(genre(item) as u64))
}

impl Log {
    pub(crate) fn examples(&self) -> Vec<Example> {
        let mut numbers = Numbers(self.seed << 32);
        (0..self.rows).map(|_| self.example(&mut numbers)).collect()
    }

    fn example(&self, numbers: &mut Numbers) -> Example {
        let (user, item) = (numbers.below(self.users), numbers.below(self.items));
        let name = |item: u64| format!("Film \"{item}\"");
        let mut history = Vec::new();
        for _ in 0..30 {
            let past = numbers.below(self.items);
            if history.len() < 8 && past != item && likes(user, past) {
                history.push(format!("{}{}", self.history_prefix, name(past)));
            }
        }
        let mut tags = vec![GENRES[genre(item)].to_string()];
        if numbers.chance(30) {
            tags.push(format!("year {}", 1950 + numbers.below(70)));
        }
        if numbers.chance(5) {
            tags.clear();
        }
        Example {
            clicked: numbers.chance(if likes(user, item) { 80 } else { 10 }),
            user: format!("u{user}"),
            item: name(item),
            tags,
            history,
            age: numbers.chance(80).then(|| 15 + numbers.below(60)),
            price: numbers.chance(90).then(|| numbers.below(2000) as f64 / 100.0),
        }
    }

    /// As CSV with these names of columns: quoted, with empty and NULL values, the byte-order mark
    /// of other programs and both ends of lines.
    pub(crate) fn csv(&self, names: [&str; 7]) -> String {
        let mut text = format!("\u{feff}{}\r\n", names.join(","));
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        for (i, e) in self.examples().iter().enumerate() {
            let age = e.age.map_or(["", "NULL"][i % 2].to_string(), |age| format!("{age}.0"));
            let price = e.price.map_or(String::new(), |price| price.to_string());
            let (tags, history) = (quoted(&e.tags.join("|")), quoted(&e.history.join("|")));
            let (clicked, item) = (u8::from(e.clicked), quoted(&e.item));
            let end = if i % 3 == 0 { "\r\n" } else { "\n" };
            let user = &e.user;
            write!(text, "{clicked}.0,{user},{item},{tags},{history},{age},{price}{end}").unwrap();
        }
        text
    }
}

pub(crate) const NAMES: [&str; 7] = ["clicked", "user", "item", "tags", "history", "age", "price"];

/// A configuration with features of all kinds.
pub(crate) fn config(model: &str, features: &str) -> String {
    format!(
        "model: {model}
runner:
  train_data_dir: train
  test_data_dir: test
  data_format: csv
  train_batch_size: 50
  epochs: 2
  model_save_path: epochs
  use_auc: True
features:
{features}
hyper_parameters:
  optimizer: {{class: Adam, learning_rate: 0.01}}
"
    )
}

pub(crate) const FEATURES: &str = "  label: {kind: label, column: clicked}
  user: {kind: vocabulary}
  item: {kind: hash, buckets: 1000, dim: 9}
  tags: {kind: hash, buckets: 200, split: '|', pooling: mean}
  history: {kind: sequence, of: item, split: '|', length: 5, pooling: mean}
  age: {kind: bucketize, quantiles: 8}
  price: {kind: standardize}
  cost: {kind: log, column: price, default: 1}
  user_age: {kind: cross, column: [user, age], buckets: 5000}";
