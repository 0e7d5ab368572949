//! `regatta devices`: what can compute beside the CPU here, and why something cannot.

use std::io::{self, Write};

use regatta_device::{DeviceInfo, Kind, Listing};

use super::Outcome;

/// Lists the devices of this machine and says why others are not there.
///
/// A name such as `opencl:0` is what `runner.device` takes. OpenCL's library is loaded when this
/// command or a training asks for a device. Devices of kind "cpu" are software; they are used only
/// when they are named.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> anyhow::Result<Outcome> {
    let listing = Listing::take();
    let mut out = io::stdout();
    if listing.devices.is_empty() {
        writeln!(out, "no devices")?;
    } else {
        table(&mut out, &listing.devices)?;
    }
    for missing in &listing.missing {
        writeln!(out, "\nno {} devices: {}", missing.api, missing.reason)?;
        writeln!(out, "  to get them: {}", missing.remedy)?;
    }
    if listing.devices.iter().any(|device| device.kind == Kind::Cpu) {
        writeln!(out, "\nDevices of kind cpu are software, used only when they are named.")?;
    }
    Ok(Outcome::Done)
}

fn table(out: &mut impl Write, devices: &[DeviceInfo]) -> io::Result<()> {
    let rows = devices.iter().map(|device| {
        let memory = format!("{:.1} GB", device.memory as f64 / 1e9);
        let units = device.units.to_string();
        let of = [&device.name, &device.kind.to_string(), &memory, &units, &device.model];
        of.map(String::clone).into_iter().chain([device.driver.clone()]).collect()
    });
    let head = ["name", "kind", "memory", "units", "model", "driver"].map(String::from).to_vec();
    let rows: Vec<Vec<String>> = [head].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..6).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
