//! Lines on standard output; on a terminal also a bar, below them, on standard error.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `total` units, such as `passes`, if someone is there to see it.
    pub(crate) fn new(total: u64, unit: &str) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden() };
        }
        let template = format!("{{bar:40}} {{pos}}/{{len}} {unit}, {{elapsed}}  {{msg}}");
        let style = ProgressStyle::with_template(&template);
        let bar = ProgressBar::new(total);
        Progress { bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())) }
    }

    /// Prints a line above the bar.
    pub(crate) fn line(&self, line: impl AsRef<str>) -> io::Result<()> {
        self.bar.suspend(|| writeln!(io::stdout(), "{}", line.as_ref()))
    }

    /// One unit is done.
    pub(crate) fn advance(&self, message: impl FnOnce() -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_message(message());
            self.bar.inc(1);
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
