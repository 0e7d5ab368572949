//! Measures by epoch as SVG: a panel for each measure, a colour for each run; validation is dashed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Result, bail};
use regatta_checkpoint::publish_file;

use super::compare::names;
use super::{Measures, Run};

const COLOURS: [&str; 8] =
    ["#1f6f8b", "#e07a3f", "#7a9e3a", "#8a5a9e", "#b03a48", "#6b6b6b", "#c2a02e", "#3a6fc2"];
const WIDTH: f64 = 860.0;
const PANEL: f64 = 300.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 260.0;
const VALIDATION: &str = "validation/";

/// A line of a panel.
struct Series {
    label: String,
    colour: &'static str,
    is_validation: bool,
    points: Vec<(f64, f64)>,
}

/// Draws measures of runs; loss and auc if none are named.
///
/// # Errors
/// If a measure is unknown, there is none, or the file cannot be written.
pub(super) fn draw(runs: &[Run], metrics: &[String], path: &Path) -> Result<()> {
    if path.extension().is_none_or(|extension| extension != "svg") {
        bail!("--chart {}: charts are SVG: the name must end with .svg", path.display());
    }
    let measures: Vec<_> = runs.iter().map(Run::measures).collect();
    let known = names(measures.iter().flat_map(|run| run.values()));
    let base = |name: &str| name.strip_prefix(VALIDATION).unwrap_or(name).to_string();
    let mut wanted: Vec<String> = metrics.iter().map(|name| base(name)).collect();
    if let Some(name) = wanted.iter().find(|name| !known.iter().any(|k| base(k) == **name)) {
        bail!("--metric {name}: there is no such measure (known: {})", known.join(", "));
    }
    if wanted.is_empty() {
        let usual = ["loss", "auc"].map(str::to_string).into_iter();
        wanted = usual.filter(|name| known.contains(name)).collect();
    }
    if wanted.is_empty() {
        bail!("--chart: no epoch of these runs is done");
    }
    let mut body = String::new();
    for (n, name) in wanted.iter().enumerate() {
        let mut lines = Vec::new();
        for (i, (run, epochs)) in runs.iter().zip(&measures).enumerate() {
            for name in [name.clone(), format!("{VALIDATION}{name}")] {
                let value = |(epoch, found): (&u64, &Measures)| {
                    Some((*epoch as f64, *found.get(&name)?)).filter(|(_, y)| y.is_finite())
                };
                let points: Vec<_> = epochs.iter().filter_map(value).collect();
                let is_validation = name.starts_with(VALIDATION);
                let what = if is_validation { " (validation)" } else { "" };
                let label = format!("{}{what}", run.folder());
                let colour = COLOURS[i % COLOURS.len()];
                lines.push(Series { label, colour, is_validation, points });
            }
        }
        lines.retain(|line| !line.points.is_empty());
        body += &panel(name, &lines, PANEL * n as f64);
    }
    let height = PANEL * wanted.len() as f64;
    let text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    );
    Ok(publish_file(path, |file| file.write_all(text.as_bytes()))?)
}

/// One measure, drawn below `top`.
fn panel(name: &str, lines: &[Series], top: f64) -> String {
    let (first, last) = (top + 36.0, top + PANEL - 46.0);
    let points = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::new(points().map(|p| p.0), LEFT, WIDTH - RIGHT, true);
    let y = Axis::new(points().map(|p| p.1), last, first, false);
    let mut out = String::new();
    text(&mut out, 8.0, top + 22.0, "start", "#222222", name);
    for tick in x.ticks() {
        rule(&mut out, (x.at(tick), first), (x.at(tick), last));
        text(&mut out, x.at(tick), last + 18.0, "middle", "#222222", &number(tick));
    }
    for tick in y.ticks() {
        rule(&mut out, (LEFT, y.at(tick)), (WIDTH - RIGHT, y.at(tick)));
        text(&mut out, LEFT - 6.0, y.at(tick) + 4.0, "end", "#222222", &number(tick));
    }
    text(&mut out, (LEFT + WIDTH - RIGHT) / 2.0, last + 36.0, "middle", "#222222", "epoch");
    for (i, line) in lines.iter().enumerate() {
        let at = |p: &(f64, f64)| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1));
        let path: Vec<String> = line.points.iter().map(at).collect();
        let (colour, path) = (line.colour, path.join(" "));
        let dash = if line.is_validation { " stroke-dasharray=\"6 4\"" } else { "" };
        let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}");
        let _ = writeln!(out, "<polyline points=\"{path}\" {stroke}/>");
        for p in &line.points {
            let (x, y) = (x.at(p.0), y.at(p.1));
            let _ =
                writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let row = first + 18.0 * (i + 1) as f64;
        text(&mut out, WIDTH - RIGHT + 12.0, row, "start", colour, &line.label);
    }
    out
}

fn rule(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let ends = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
    let _ = writeln!(out, "<line {ends} stroke=\"#e4e4e4\"/>");
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, colour: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"");
    let _ = writeln!(out, "<text {place} fill=\"{colour}\">{words}</text>");
}

/// Few digits, as they distinguish values.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

/// Maps values to places between `start` and `end`.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    step: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, start: f64, end: f64, whole: bool) -> Axis {
        let range = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let (mut low, mut high) = range;
        if low == high {
            let margin = if whole { 1.0 } else { (low.abs() / 10.0).max(1e-3) };
            (low, high) = (if whole { low } else { low - margin }, high + margin);
        }
        // Five ticks or so, at 1, 2 or 5 times a power of ten.
        let rough = (high - low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|s| *s >= rough);
        let step = step.unwrap_or(rough);
        let step = if whole { step.max(1.0).round() } else { step };
        Axis { low, high, start, end, step }
    }

    fn at(&self, value: f64) -> f64 {
        self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
    }

    fn ticks(&self) -> Vec<f64> {
        let first = (self.low / self.step).ceil() as i64;
        let last = (self.high / self.step).floor() as i64;
        (first..=last).map(|n| n as f64 * self.step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_within_the_range() {
        let shown = |values: &[f64], whole| -> Vec<String> {
            let axis = Axis::new(values.iter().copied(), 200.0, 100.0, whole);
            assert!(axis.ticks().iter().all(|t| (100.0..=200.0).contains(&axis.at(*t))));
            axis.ticks().iter().map(|t| number(*t)).collect()
        };
        assert_eq!(shown(&[0.41, 0.53], false), ["0.45", "0.5"]);
        assert_eq!(shown(&[0.0, 1.0], true), ["0", "1"]);
        assert_eq!(shown(&[0.0, 19.0], true), ["0", "5", "10", "15"]);
        assert_eq!(shown(&[3.0], true), ["3", "4"]);
        assert!(!shown(&[0.5], false).is_empty());
    }
}
