//! Training by days, as PaddleRec's online trainer lays its data out: a folder for each day, in it
//! folders for the intervals of the day, and some intervals together are a data pass.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::civil::Date;
use regatta_store::{Stores, is_remote};

use super::{LONGEST_WAIT, PassPlan, Planner, Upcoming, Waiting};
use crate::Error;
use crate::files::list_files;

const MINUTES_OF_DAY: u32 = 24 * 60;
const DAY: &str = "%Y%m%d";

/// Which days there are, and how they are divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaysOptions {
    /// The folder of the days.
    pub folder: String,
    /// The first day, as `YYYYMMDD`.
    pub first: String,
    /// The last day.
    pub last: String,
    /// Minutes of an interval.
    pub interval_minutes: u32,
    /// Intervals of a data pass.
    pub intervals_per_pass: u32,
    /// The file that says that an interval is complete.
    pub done_file: Option<String>,
    /// Time between two looks for it.
    pub pause: Duration,
    /// How long it may take to come; without limit if there is none.
    pub limit: Option<Duration>,
}

/// One data pass of a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassOfDay {
    /// The day, as `YYYYMMDD`.
    pub day: String,
    /// Its number, from 1.
    pub pass: u32,
}

impl PassOfDay {
    /// What a plan of [`Days`] is of.
    ///
    /// # Errors
    /// If it is of other data.
    pub fn of(plan: &PassPlan) -> Result<PassOfDay, Error> {
        let parts = plan.next.split_once(" after pass ");
        let pass = parts.and_then(|(day, pass)| Some((day, pass.parse().ok()?)));
        let (day, pass) = pass.ok_or_else(|| {
            Error::config(format!("'{}' is no pass of a day: other data were trained", plan.title))
        })?;
        Ok(PassOfDay { day: day.to_string(), pass })
    }

    /// The end of it, for a planner that continues from there.
    pub fn plan(&self) -> PassPlan {
        let PassOfDay { day, pass } = self;
        PassPlan { next: format!("{day} after pass {pass}"), ..PassPlan::default() }
    }

    /// The day after it.
    ///
    /// # Errors
    /// If there is none in the calendar.
    pub fn next_day(&self) -> Result<String, Error> {
        next_day(&self.day)
    }

    /// The day before it.
    ///
    /// # Errors
    /// If there is none in the calendar.
    pub fn day_before(&self) -> Result<String, Error> {
        let before = day_of(&self.day)?.yesterday();
        let before =
            before.map_err(|_| Error::config(format!("nothing is before {}", self.day)))?;
        Ok(before.strftime(DAY).to_string())
    }
}

/// Plans the data passes of days.
pub struct Days {
    options: DaysOptions,
    /// The folders of the intervals of a day, by pass.
    passes: Vec<Vec<String>>,
    stores: Stores,
    waiting: Waiting,
    /// The file that was missing at the last look, and when that was.
    looked: Option<(String, Instant)>,
}

impl Days {
    /// A planner; nothing is looked for yet.
    ///
    /// # Errors
    /// If a day is none of the calendar, the last is before the first, or a day cannot be divided
    /// in this way.
    pub fn new(options: DaysOptions, stores: &Stores) -> Result<Days, Error> {
        let (first, last) = (day_of(&options.first)?, day_of(&options.last)?);
        if last < first {
            let (first, last) = (&options.first, &options.last);
            return Err(Error::config(format!("the last day {last} is before the first {first}")));
        }
        let (minutes, each) = (options.interval_minutes, options.intervals_per_pass);
        let intervals = MINUTES_OF_DAY.checked_div(minutes).unwrap_or(0);
        if each == 0 || intervals < each {
            return Err(Error::config(format!(
                "a day has {intervals} intervals of {minutes} minutes, fewer than a pass of {each}"
            )));
        }
        if !MINUTES_OF_DAY.is_multiple_of(minutes) || !intervals.is_multiple_of(each) {
            return Err(Error::config(format!(
                "a day cannot be divided into passes of {each} intervals of {minutes} minutes: \
                 the end of every day would never be trained"
            )));
        }
        let name = |interval: u32| {
            let start = interval * minutes;
            format!("{:02}{:02}", start / 60, start % 60)
        };
        let pass = |pass: u32| (pass * each..(pass + 1) * each).map(name).collect();
        let passes = (0..intervals / each).map(pass).collect();
        let (stores, waiting, looked) = (stores.clone(), Waiting::default(), None);
        Ok(Days { options, passes, stores, waiting, looked })
    }

    /// Data passes of a day.
    pub fn passes_per_day(&self) -> u32 {
        self.passes.len() as u32
    }

    /// The pass after another one; none after the last day.
    fn following(&self, plan: Option<&PassPlan>) -> Result<Option<PassOfDay>, Error> {
        let Some(plan) = plan else {
            return Ok(Some(PassOfDay { day: self.options.first.clone(), pass: 1 }));
        };
        let PassOfDay { day, pass } = PassOfDay::of(plan)?;
        let next = match pass < self.passes_per_day() {
            true => PassOfDay { day, pass: pass + 1 },
            false => PassOfDay { day: next_day(&day)?, pass: 1 },
        };
        Ok((day_of(&next.day)? <= day_of(&self.options.last)?).then_some(next))
    }

    /// The folders of a pass.
    fn folders(&self, pass: &PassOfDay) -> Vec<String> {
        let root = self.options.folder.trim_end_matches('/');
        let names = &self.passes[pass.pass as usize - 1];
        names.iter().map(|name| format!("{root}/{}/{name}", pass.day)).collect()
    }

    /// The files of a folder. An interval may have none.
    fn files(&self, folder: &str) -> Result<Vec<PathBuf>, Error> {
        match list_files(folder, &self.stores) {
            Ok(files) => Ok(files),
            Err(Error::NoFiles(_)) if self.options.done_file.is_some() => Ok(vec![]),
            // A remote store has no folders without files.
            Err(Error::NoFiles(_)) if !is_remote(Path::new(folder)) => Ok(vec![]),
            Err(Error::MissingDirectory(path)) if self.options.done_file.is_none() => {
                Err(Error::config(format!(
                    "{}: no such directory; to wait for data, name the file that completes them \
                     (runner.data_donefile)",
                    path.display()
                )))
            }
            Err(e) => Err(e),
        }
    }

    /// The file that is waited for, if a folder is not complete.
    fn missing(&self, folder: &str) -> Result<Option<String>, Error> {
        let Some(name) = &self.options.done_file else { return Ok(None) };
        let path = format!("{folder}/{name}");
        let is_there = match is_remote(Path::new(&path)) {
            true => self.stores.size(&path)?.is_some(),
            false => Path::new(&path).is_file(),
        };
        Ok((!is_there).then_some(path))
    }

    /// Nothing yet: waits for a while, but not beyond the limit.
    fn wait(&mut self, file: &str) -> Result<Upcoming, Error> {
        let waited = self.waiting.elapsed();
        if let Some(limit) = self.options.limit.filter(|limit| waited >= *limit) {
            let seconds = limit.as_secs();
            return Err(Error::config(format!(
                "{file} has not come within {seconds} s (runner.data_wait_limit)"
            )));
        }
        std::thread::sleep(self.options.pause.min(LONGEST_WAIT));
        Ok(Upcoming::Later(file.to_string()))
    }
}

impl Planner for Days {
    fn next_pass(&mut self, after: Option<&PassPlan>) -> Result<Upcoming, Error> {
        let Some(next) = self.following(after)? else {
            return Ok(Upcoming::End(format!("{} was the last day", self.options.last)));
        };
        if let Some((file, at)) = self.looked.clone()
            && at.elapsed() < self.options.pause
        {
            return self.wait(&file);
        }
        let folders = self.folders(&next);
        for folder in &folders {
            if let Some(file) = self.missing(folder)? {
                self.looked = Some((file.clone(), Instant::now()));
                return self.wait(&file);
            }
        }
        self.looked = None;
        self.waiting.end();
        let mut parts = Vec::new();
        for folder in &folders {
            let files = self.files(folder)?.into_iter();
            let is_data = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                name != self.options.done_file.as_deref()
            };
            parts.extend(files.filter(is_data).map(|path| path.to_string_lossy().into_owned()));
        }
        let (n, files) = (self.passes_per_day(), parts.len());
        let plural = if files == 1 { "" } else { "s" };
        let title = format!("day {}, pass {} of {n}: {files} file{plural}", next.day, next.pass);
        Ok(Upcoming::Pass(PassPlan { title, parts, ..next.plan() }))
    }
}

fn day_of(text: &str) -> Result<Date, Error> {
    let wrong = |_| Error::config(format!("'{text}' is no day: write it as 20190720"));
    let date = Date::strptime(DAY, text).map_err(wrong)?;
    // The parser takes fewer digits, too, and the text is the name of a folder.
    match date.strftime(DAY).to_string() == text {
        true => Ok(date),
        false => Err(Error::config(format!("'{text}' is no day: write it as 20190720"))),
    }
}

fn next_day(day: &str) -> Result<String, Error> {
    let next = day_of(day)?.tomorrow();
    let next = next.map_err(|_| Error::config(format!("there is no day after {day}")))?;
    Ok(next.strftime(DAY).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &Path) -> DaysOptions {
        DaysOptions {
            folder: folder.to_string_lossy().into_owned(),
            first: "20240228".into(),
            last: "20240301".into(),
            interval_minutes: 360,
            intervals_per_pass: 2,
            done_file: None,
            pause: Duration::from_millis(1),
            limit: Some(Duration::from_millis(20)),
        }
    }

    fn plans(days: &mut Days) -> Vec<PassPlan> {
        let mut plans: Vec<PassPlan> = Vec::new();
        while let Upcoming::Pass(plan) = days.next_pass(plans.last()).unwrap() {
            plans.push(plan);
        }
        plans
    }

    fn fill(folder: &Path, day: &str) {
        for time in ["0000", "0600", "1200", "1800"] {
            let dir = folder.join(day).join(time);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("part"), "x\n").unwrap();
        }
    }

    #[test]
    fn passes_follow_each_other_through_a_leap_day() {
        let dir = tempfile::tempdir().unwrap();
        ["20240228", "20240229", "20240301"].iter().for_each(|day| fill(dir.path(), day));
        let mut days = Days::new(options(dir.path()), &Stores::new()).unwrap();
        let plans = plans(&mut days);
        assert_eq!(plans.len(), 6);
        assert_eq!(plans[3].title, "day 20240229, pass 2 of 2: 2 files");
        let path = |time: &str| dir.path().join("20240229").join(time).join("part");
        let expected = [path("1200"), path("1800")].map(|p| p.to_string_lossy().into_owned());
        assert_eq!(plans[3].parts, expected);
        assert_eq!(PassOfDay::of(&plans[3]).unwrap().next_day().unwrap(), "20240301");
        let end = days.next_pass(plans.last()).unwrap();
        assert_eq!(end, Upcoming::End("20240301 was the last day".into()));
    }

    #[test]
    fn a_done_file_is_waited_for_and_is_no_data() {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), "20240228");
        let done_file = Some("data.done".to_string());
        let mut days =
            Days::new(DaysOptions { done_file, ..options(dir.path()) }, &Stores::new()).unwrap();
        let done = |time: &str| dir.path().join("20240228").join(time).join("data.done");
        std::fs::write(done("0000"), "").unwrap();
        let waits = days.next_pass(None).unwrap();
        assert_eq!(waits, Upcoming::Later(done("0600").to_string_lossy().into_owned()));
        std::fs::write(done("0600"), "").unwrap();
        let Upcoming::Pass(plan) = days.next_pass(None).unwrap() else { panic!("it is there") };
        assert_eq!(plan.parts.len(), 2);
        let error = loop {
            match days.next_pass(Some(&plan)) {
                Ok(waits) => assert!(matches!(waits, Upcoming::Later(_))),
                Err(e) => break e.to_string(),
            }
        };
        assert!(error.ends_with("has not come within 0 s (runner.data_wait_limit)"), "{error}");
    }

    #[test]
    fn what_is_no_day() {
        let dir = tempfile::tempdir().unwrap();
        let new = |options| Days::new(options, &Stores::new()).err().unwrap().to_string();
        let base = || options(dir.path());
        let error = new(DaysOptions { first: "20240230".into(), ..base() });
        assert_eq!(error, "'20240230' is no day: write it as 20190720");
        let error = new(DaysOptions { first: "2024022".into(), ..base() });
        assert!(error.contains("is no day"), "{error}");
        let error = new(DaysOptions { last: "20230101".into(), ..base() });
        assert_eq!(error, "the last day 20230101 is before the first 20240228");
        let error = new(DaysOptions { interval_minutes: 7, ..base() });
        assert!(error.contains("would never be trained"), "{error}");
        let error = new(DaysOptions { interval_minutes: 1440, ..base() });
        assert!(error.contains("a day has 1 intervals"), "{error}");
        // Without a done file nobody waits.
        let mut days = Days::new(base(), &Stores::new()).unwrap();
        let error = days.next_pass(None).unwrap_err().to_string();
        assert!(error.contains("20240228/0000: no such directory"), "{error}");
    }
}
