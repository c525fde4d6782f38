//! What all commands do with standard output.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::error::Result;

/// Writes `value` to standard output as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Writes `text` and a line end to standard output.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(())
}

/// A table without lines, with the given headings.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings);
    table
}
