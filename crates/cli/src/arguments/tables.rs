//! Arguments of `foreread index` for tables, samples of several files, and parts of catalogs.

use std::collections::HashSet;

use anyhow::{Context, Result};
use clap::Args;
use foreread::Catalog;
use foreread::dataset::Grouping;
use foreread::table::{Filter, TableOptions, matching};

/// A table whose rows are the samples.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tables")]
pub struct TableArguments {
    /// A table of the samples: CSV, TSV, JSON lines (each also with .gz), Parquet or Arrow, also in
    /// a bucket. Each row is a sample, in the table's order
    #[arg(long, value_name = "FILE")]
    pub table: Option<String>,
    /// The column with the samples' files: below the URL, or URLs [default: file_name, path, file,
    /// filename, filepath or key]. Samples of several files: 'image=COLUMN', repeated. Without
    /// --table: the directory of each file, 'image=images/'. --label is the column with the labels
    #[arg(long, value_name = "[NAME=]COLUMN")]
    path: Vec<String>,
    /// A column whose values samples have; repeated. '' for none [default: all others]. Without
    /// --table: a column of Parquet and Arrow files [default: none]
    #[arg(long, value_name = "COLUMN")]
    pub column: Vec<String>,
    /// Take only some rows of the table, or samples of a catalog: 'split==train', 'year>=2020',
    /// 'split in train,val'. Repeated: rows that meet all
    #[arg(long, value_name = "CONDITION")]
    filter: Vec<String>,
    /// Take these samples of a catalog, in this order: a file with a number in each line, '-' for
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    select: Option<String>,
    /// Take the files of one stem as one sample, by WebDataset's rule: a.jpg and a.json
    #[arg(long, value_name = "HOW", value_parser = ["stem"], conflicts_with_all = ["table", "path"])]
    group: Option<String>,
    /// What to do with rows whose file does not exist, and with groups that lack one
    #[arg(long, value_name = "ACTION", value_parser = ["fail", "skip"], default_value = "fail")]
    on_missing: String,
    /// The column with the length of each file in bytes, so that no file is asked for
    #[arg(long, value_name = "COLUMN", requires = "table")]
    size: Option<String>,
    /// The column with the ETag of each file
    #[arg(long, value_name = "COLUMN", requires_all = ["table", "size"])]
    etag: Option<String>,
    /// The column with the first byte of each sample in its file [default: 0]
    #[arg(long, value_name = "COLUMN", requires = "table")]
    start: Option<String>,
    /// The column with the length of each sample in bytes [default: the rest of the file]
    #[arg(long, value_name = "COLUMN", requires = "table")]
    length: Option<String>,
}

impl TableArguments {
    /// The same for the library.
    pub fn options(&self, label: Option<&str>, classes: Option<Vec<String>>) -> Result<TableOptions> {
        let mut options = TableOptions::default();
        match &self.path[..] {
            [one] if !one.contains('=') => options.path = Some(one.clone()),
            several => options.fields = fields(several)?,
        }
        options.label = label.map(str::to_owned);
        let columns = self.column.iter().filter(|name| !name.is_empty()).cloned().collect();
        options.columns = (!self.column.is_empty()).then_some(columns);
        options.filters = self.filters()?;
        options.classes = classes;
        options.size = self.size.clone();
        options.etag = self.etag.clone();
        options.start = self.start.clone();
        options.length = self.length.clone();
        Ok(options)
    }

    /// The conditions on rows or samples.
    fn filters(&self) -> Result<Vec<Vec<Filter>>> {
        let filters = self.filter.iter().map(|text| text.parse::<Filter>());
        let filters: Vec<Filter> = filters.collect::<Result<_, _>>().map_err(foreread::Error::from)?;
        Ok(if filters.is_empty() { Vec::new() } else { vec![filters] })
    }

    /// Whether samples of a catalog are chosen.
    pub const fn chooses_samples(&self) -> bool {
        self.table.is_none() && (self.select.is_some() || !self.filter.is_empty())
    }

    /// The samples of a catalog that are chosen.
    pub fn chosen(&self, catalog: &Catalog) -> Result<Vec<u64>> {
        let Some(file) = &self.select else {
            return Ok(matching(catalog, &self.filters()?).map_err(foreread::Error::from)?);
        };
        let text = match file.as_str() {
            "-" => std::io::read_to_string(std::io::stdin()),
            file => std::fs::read_to_string(file),
        };
        let text = text.with_context(|| format!("--select {file}"))?;
        let number = |(at, line): (usize, &str)| {
            let line = line.trim();
            line.parse::<u64>()
                .with_context(|| format!("--select {file}: line {}: {line:?} is no number", at + 1))
        };
        let ids = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(number);
        let ids = ids.collect::<Result<Vec<u64>>>()?;
        if self.filter.is_empty() {
            return Ok(ids);
        }
        let wanted: HashSet<u64> =
            matching(catalog, &self.filters()?).map_err(foreread::Error::from)?.into_iter().collect();
        Ok(ids.into_iter().filter(|id| wanted.contains(id)).collect())
    }

    /// How files are samples without a table.
    pub fn grouping(&self) -> Result<Grouping> {
        match (&self.table, self.path.is_empty()) {
            (None, false) => Ok(Grouping::Directories(fields(&self.path)?)),
            _ if self.group.is_some() => Ok(Grouping::Stem),
            _ => Ok(Grouping::None),
        }
    }

    /// Whether rows without a file are left out.
    pub fn skips_missing(&self) -> bool {
        self.on_missing == "skip"
    }
}

/// The names of fields and what they are of: `image=COLUMN`.
fn fields(texts: &[String]) -> Result<Vec<(String, String)>> {
    let field = |text: &String| {
        let (name, of) = text.split_once('=').filter(|(name, of)| !name.is_empty() && !of.is_empty())?;
        Some((name.to_owned(), of.to_owned()))
    };
    let all = texts
        .iter()
        .map(|text| field(text).with_context(|| format!("--path {text}: write it as NAME={text}")));
    all.collect()
}
