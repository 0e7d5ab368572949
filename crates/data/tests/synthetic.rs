//! Synthetic data: the same everywhere, the same by every way, and learnable.

mod support;

use std::collections::HashMap;

use regatta_data::*;
use regatta_tensor::Value;

fn batches(source: Source, threads: usize, batch_size: usize) -> Vec<Batch> {
    let options = QueueOptions { thread_num: threads, ..QueueOptions::new(batch_size) };
    let mut batches = QueueDataset::new(source, options).unwrap().pass(0).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = batches.next().unwrap() {
        all.push(batch);
    }
    all
}

fn records(url: &str) -> Records {
    let synthetic = Synthetic::parse(url).unwrap();
    let mut records = Records::new(&synthetic.schema());
    synthetic.generate(0..synthetic.examples(), &mut records);
    records
}

fn text(records: &Records) -> String {
    let mut out = Vec::new();
    write_records(records, &TextFormat::MultiSlot, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_values_never_change() {
    // Short enough to compare by eye; any change breaks experiments that name a seed.
    for (url, expected) in [
        (
            "ctr?examples=3&slots=4&dense=2",
            "1 1 1 2798 1 10011 1 21179 1 30054 2 0.99012667 0.6721538\n\
             1 0 1 12 1 10006 1 22349 1 30003 2 0.560128 0.49998873\n\
             1 0 1 1 1 10199 1 25318 1 30219 2 0.23349679 0.37376344\n",
        ),
        ("din?examples=1&history=3", "1 1 3 368 599 128 3 8 19 8 1 234 1 14\n"),
        ("multitask?examples=1&slots=2&dense=1", "1 1 1 0 1 425 1 1007 1 0.8423496\n"),
        ("ncf?examples=2", "1 910 1 429 1 1\n1 910 1 50 1 0\n"),
        (
            "dssm?examples=1&doc_words=3&negatives=1",
            "4 1219 1959 19 1139 3 720 559 419 3 391 101 1981\n",
        ),
        ("corpus?examples=1&length=2&negatives=2", "1 37 1 205 2 15 314\n1 205 1 37 2 301 204\n"),
    ] {
        assert_eq!(text(&records(&format!("synthetic://{url}"))), expected, "{url}");
    }
    // Computed by a second implementation, in another language.
    let synthetic = Synthetic::parse("synthetic://ctr?slots=4&dense=2").unwrap();
    let probabilities = [0.9118207514474408, 0.2259387981951181, 0.40885450057678524];
    assert_eq!([0, 1, 2].map(|i| synthetic.probability(i).unwrap()), probabilities);
}

#[test]
fn any_sharding_gives_the_same_examples() {
    for url in
        ["ctr?examples=150000&slots=3&dense=1", "din?examples=70000", "corpus?examples=70000"]
    {
        let source = Source::synthetic(&format!("synthetic://{url}")).unwrap();
        let n = source.parts().len();
        assert!(n > 1);
        let whole: Vec<Value> = batches(source.clone(), 1, 1 << 24).remove(0).values().to_vec();
        let workers = (0..n).flat_map(|w| batches(source.clone().split(w, n).unwrap(), 1, 1 << 24));
        let first = |v: &Value| match v {
            Value::Dense(t) => match t.data() {
                regatta_tensor::Data::U64(v) => v.iter().sum::<u64>(),
                regatta_tensor::Data::I64(v) => v.iter().sum::<i64>() as u64,
                regatta_tensor::Data::F32(v) => v.iter().map(|x| (x * 16_777_216.0) as u64).sum(),
                other => panic!("no reader makes {}", other.dtype()),
            },
            Value::Ragged(r) => r.u64().iter().sum(),
        };
        let mut sums = vec![0; whole.len()];
        for batch in workers {
            sums.iter_mut().zip(batch.values()).for_each(|(sum, v)| *sum += first(v));
        }
        assert_eq!(sums, whole.iter().map(first).collect::<Vec<_>>(), "{url}");
    }
    let later = records("synthetic://ctr?examples=10&first=90");
    let all = records("synthetic://ctr?examples=100");
    assert_eq!(text(&later), text(&all).split_inclusive('\n').skip(90).collect::<String>());
}

#[test]
fn files_give_the_same_records() {
    for family in
        ["ctr?examples=100", "ctr?examples=50&ids_per_slot=3", "din?examples=50", "ncf?examples=50"]
    {
        let synthetic = Synthetic::parse(&format!("synthetic://{family}")).unwrap();
        let direct = batches(Source::from(synthetic.clone()), 1, 16);
        for text in
            [TextFormat::MultiSlot, TextFormat::Criteo(Criteo::by_name(&synthetic.schema()))]
        {
            let dir = tempfile::tempdir().unwrap();
            let files = write_synthetic(&synthetic, dir.path(), 3, &text).unwrap();
            assert_eq!(files, list_files(dir.path(), &Stores::new()).unwrap());
            let format = match text {
                TextFormat::MultiSlot => Format::MultiSlot,
                TextFormat::Criteo(criteo) => Format::Criteo(criteo),
            };
            let source = Source::files(synthetic.schema(), format, files).unwrap();
            let read = batches(source, 1, 16);
            let values = |b: &[Batch]| b.iter().map(|b| b.values().to_vec()).collect::<Vec<_>>();
            assert_eq!(values(&read), values(&direct), "{family}");
        }
    }
}

#[test]
fn a_corpus_is_written_as_paddlerec_lays_it_out() {
    let dir = tempfile::tempdir().unwrap();
    let synthetic = Synthetic::parse("synthetic://corpus?examples=200&pairs=4").unwrap();
    write_synthetic(&synthetic, dir.path(), 2, &TextFormat::MultiSlot).unwrap();
    let dict = dir.path().join("dict");
    let dictionary =
        Dictionary::load(&dict.join("word_count_dict.txt"), &dict.join("word_id_dict.txt"))
            .unwrap();
    assert_eq!(dictionary, *synthetic.dictionary().unwrap());
    let dictionary = std::sync::Arc::new(dictionary);
    let samples = SkipGram::new(dictionary.clone(), 5, 5, Tokens::Ids, 1).unwrap();
    let train = dir.path().join("train");
    let source = Source::directory(samples.schema(), Format::SkipGram(samples), train).unwrap();
    assert!(batches(source, 1, 64).len() > 20);
    let slots = ["a", "b", "c", "d"].map(|n| Slot::fixed_ids(n, 1)).to_vec();
    let (schema, test) = (Schema::new(slots).unwrap(), dir.path().join("test"));
    let questions =
        batches(Source::directory(schema, Format::Analogy(dictionary), test).unwrap(), 1, 64);
    let ids: Vec<u64> =
        (0..4).map(|s| questions[0].values()[s].as_dense().unwrap().u64()[0]).collect();
    assert_eq!(ids, synthetic.analogies().unwrap()[0]);
}

#[test]
fn writing_to_a_bad_place_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = support::write(dir.path(), "file", "");
    let synthetic = Synthetic::parse("synthetic://ctr?examples=10").unwrap();
    let error = write_synthetic(&synthetic, &blocked, 1, &TextFormat::MultiSlot).unwrap_err();
    assert!(error.to_string().contains("file/part-00000.txt"), "{error}");
}

/// Probability that a positive example has the higher score, ties counting half.
fn auc(scored: &mut [(f64, bool)]) -> f64 {
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut sum, mut i) = (0.0, 0.0, 0);
    while i < scored.len() {
        let end = i + scored[i..].iter().take_while(|s| s.0 == scored[i].0).count();
        let positives = scored[i..end].iter().filter(|s| s.1).count() as f64;
        let negatives = (end - i) as f64 - positives;
        sum += positives * (below + negatives / 2.0);
        below += negatives;
        i = end;
    }
    let positives = scored.len() as f64 - below;
    sum / (positives * below)
}

/// Logistic regression over all ids and floats, by AdaGrad; returns the AUC on other examples.
fn linear_auc(family: &str, train: u64, test: u64) -> f64 {
    let url = |first, n| format!("synthetic://{family}?first={first}&examples={n}");
    let mut weights: HashMap<u64, (f64, f64)> = HashMap::new();
    let mut scored = Vec::new();
    for (url, learn) in [(url(0, train), true), (url(train, test), false)] {
        for batch in batches(Source::synthetic(&url).unwrap(), 1, 1000) {
            let dense = |v: &Value| v.as_dense().unwrap().clone();
            let labels = dense(&batch.values()[0]);
            for row in 0..batch.examples() {
                let mut features = vec![(0, 1.0)];
                for value in batch.values() {
                    match dense(value).data() {
                        regatta_tensor::Data::U64(ids) => features.push((ids[row], 1.0)),
                        regatta_tensor::Data::F32(x) => {
                            let x = &x[13 * row..13 * (row + 1)];
                            features.extend(
                                (0..13).map(|i| (u64::MAX - i, f64::from(x[i as usize]) - 0.5)),
                            );
                        }
                        _ => {}
                    }
                }
                let logit: f64 =
                    features.iter().map(|(id, x)| weights.get(id).map_or(0.0, |w| w.0) * x).sum();
                let clicked = labels.i64()[row] == 1;
                if !learn {
                    scored.push((logit, clicked));
                    continue;
                }
                let error = 1.0 / (1.0 + (-logit).exp()) - f64::from(clicked);
                for (id, x) in features {
                    let (w, squares) = weights.entry(id).or_default();
                    *squares += (error * x).powi(2);
                    *w -= 0.1 * error * x / (squares.sqrt() + 1e-6);
                }
            }
        }
    }
    auc(&mut scored)
}

#[test]
fn click_logs_can_be_learnt() {
    let synthetic = Synthetic::parse("synthetic://ctr?examples=20000").unwrap();
    let mut all = Records::new(&synthetic.schema());
    synthetic.generate(0..20_000, &mut all);
    let labels: Vec<bool> = text(&all).lines().map(|l| l.starts_with("1 1 ")).collect();
    let rate = labels.iter().filter(|l| **l).count() as f64 / 20_000.0;
    let p = |i| synthetic.probability(i as u64).unwrap();
    let best = auc(&mut labels.iter().enumerate().map(|(i, l)| (p(i), *l)).collect::<Vec<_>>());
    let linear = linear_auc("ctr", 60_000, 10_000);
    println!("clicks {rate:.3}, AUC of the hidden model {best:.4}, of a linear model {linear:.4}");
    assert!((0.2..0.35).contains(&rate), "click rate {rate}");
    assert!((0.87..0.92).contains(&best), "AUC of the hidden model {best}");
    assert!((0.77..best).contains(&linear), "AUC of a linear model {linear}");
}

#[test]
fn other_families_have_structure() {
    // DIN: a target whose category occurs in the history is liked more often.
    let (mut seen, mut unseen) = ((0, 0), (0, 0));
    for batch in batches(Source::synthetic("synthetic://din?examples=5000").unwrap(), 1, 5000) {
        let Some(Value::Ragged(history)) = batch.get("hist_cat_seq") else { panic!() };
        let targets = batch.get("target_cat").unwrap().as_dense().unwrap().u64();
        let labels = batch.get("label").unwrap().as_dense().unwrap().i64();
        for (i, target) in targets.iter().enumerate() {
            let (from, to) = (history.offsets()[i] as usize, history.offsets()[i + 1] as usize);
            let often =
                history.u64()[from..to].iter().filter(|c| *c == target).count() * 4 > to - from;
            let count = if often { &mut seen } else { &mut unseen };
            *count = (count.0 + labels[i], count.1 + 1);
        }
    }
    let rate = |(n, all): (i64, i64)| n as f64 / all as f64;
    assert!(rate(seen) > 0.7 && rate(unseen) < 0.3, "{seen:?} {unseen:?}");
    // Multi-task: conversions need clicks, and both happen.
    let batch = batches(Source::synthetic("synthetic://multitask?examples=5000").unwrap(), 1, 5000)
        .remove(0);
    let labels = |name| batch.get(name).unwrap().as_dense().unwrap().i64().to_vec();
    let (click, conversion) = (labels("click"), labels("conversion"));
    assert!(click.iter().zip(&conversion).all(|(c, v)| c >= v));
    let sum = |v: &[i64]| v.iter().sum::<i64>();
    assert!(
        sum(&click) > 1500 && sum(&click) < 3000 && sum(&conversion) > 500,
        "{}",
        sum(&conversion)
    );
    assert!(linear_auc_multitask() > 0.7);
    // NCF: blocks of one liked item and four others, of one user.
    let batch =
        batches(Source::synthetic("synthetic://ncf?examples=5000").unwrap(), 1, 5000).remove(0);
    let users = batch.get("user_input").unwrap().as_dense().unwrap().u64();
    let items = batch.get("item_input").unwrap().as_dense().unwrap().u64();
    let labels = batch.get("label").unwrap().as_dense().unwrap().i64();
    for block in 0..1000 {
        let at = 5 * block..5 * block + 5;
        assert_eq!(labels[at.clone()], [1, 0, 0, 0, 0]);
        assert!(users[at.clone()].iter().all(|u| *u == users[at.start]));
        assert!(items[at.start + 1..at.end].iter().all(|i| *i != items[at.start]));
    }
}

/// Best possible AUC of `click` in the multi-task data.
fn linear_auc_multitask() -> f64 {
    let synthetic = Synthetic::parse("synthetic://multitask?examples=5000").unwrap();
    let mut all = Records::new(&synthetic.schema());
    synthetic.generate(0..5000, &mut all);
    let scored = text(&all);
    let scored = scored.lines().enumerate();
    let score =
        |(i, l): (usize, &str)| (synthetic.probability(i as u64).unwrap(), l.starts_with("1 1 "));
    auc(&mut scored.map(score).collect::<Vec<_>>())
}
