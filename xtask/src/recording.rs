//! Records a command in a terminal, and plays it as an animated SVG.
//!
//! `script` (util-linux) runs the command in a pseudo-terminal and writes its output with times. A
//! small terminal replays the output. Each text that was on a line for a while becomes a text of
//! the SVG. CSS shows it for that time. Decision: text and CSS instead of a GIF, so that it can be
//! selected and is small. A viewer without CSS animation shows the end. The price is that only the
//! sequences which progress bars use are understood.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{cannot_start, shown};

/// The terminal's size.
const COLUMNS: usize = 100;
const ROWS: usize = 40;

/// Lines change at most this often, in seconds of the recording.
const FRAME: f64 = 0.5;

/// The longest that the recording plays, and how long its end stays before it starts again.
const PLAYED: f64 = 14.0;
const HOLD: f64 = 10.0;

const FONT: f64 = 13.0;
const LETTER: f64 = 7.85;
const LINE: f64 = 18.0;
const BAR: f64 = 30.0;
const MARGIN: f64 = 14.0;

/// Output at a time, in seconds since the start.
type Output = (f64, String);

/// Runs `line` in a pseudo-terminal. Returns its output with times.
pub fn record(line: &str, directory: &Path) -> Result<Vec<Output>> {
    let files = tempfile::tempdir().context("cannot create a directory for the recording")?;
    let (log, timing) = (files.path().join("log"), files.path().join("timing"));
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--return", "--log-out"]).arg(&log).arg("--log-timing").arg(&timing);
    command.arg("--command").arg(format!("stty cols {COLUMNS} rows {ROWS}; exec {line}"));
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null());
    println!("$ {}", shown(&command));
    let status = command.status().with_context(|| cannot_start(&command))?;
    ensure!(status.success(), "`{line}` failed in the terminal");
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let (log, timing) = (read(&log)?, read(&timing)?);
    // The log begins with a line of `script` itself, which the times do not count.
    let begin = log.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    pieces(&log[begin..], &String::from_utf8_lossy(&timing))
}

/// The output in pieces, by lines of `SECONDS BYTES`.
fn pieces(mut log: &[u8], timing: &str) -> Result<Vec<Output>> {
    let (mut now, mut pieces, mut rest) = (0.0, Vec::new(), Vec::new());
    for line in timing.lines() {
        let Some((seconds, bytes)) = line.split_once(' ') else { bail!("not a time: {line}") };
        now += seconds.trim().parse::<f64>().with_context(|| format!("not a time: {line}"))?;
        let bytes: usize = bytes.trim().parse().with_context(|| format!("not a length: {line}"))?;
        let (piece, left) = log.split_at(bytes.min(log.len()));
        log = left;
        rest.extend_from_slice(piece);
        // A letter may be cut in two.
        let whole = std::str::from_utf8(&rest).map_or_else(|error| error.valid_up_to(), str::len);
        let left = rest.split_off(whole);
        pieces.push((now, String::from_utf8_lossy(&rest).into_owned()));
        rest = left;
    }
    Ok(pieces)
}

/// What a terminal shows.
#[derive(Debug, Default)]
struct Screen {
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Screen {
    fn write(&mut self, text: &str) {
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '\r' => self.column = 0,
                '\n' => self.row += 1,
                '\u{1b}' => {
                    if letters.next_if_eq(&'[').is_none() {
                        continue;
                    }
                    let mut number = String::new();
                    let end = loop {
                        match letters.next() {
                            Some(digit) if digit.is_ascii_digit() || "?;".contains(digit) => {
                                number.push(digit)
                            }
                            end => break end,
                        }
                    };
                    self.control(end, number.parse().ok());
                }
                letter if letter.is_control() => {}
                letter => self.put(letter),
            }
        }
    }

    fn put(&mut self, letter: char) {
        if self.column == COLUMNS {
            (self.row, self.column) = (self.row + 1, 0);
        }
        let column = self.column;
        let line = self.line();
        line.resize(line.len().max(column + 1), ' ');
        line[column] = letter;
        self.column += 1;
    }

    fn line(&mut self) -> &mut Vec<char> {
        self.lines.resize_with(self.lines.len().max(self.row + 1), Vec::new);
        &mut self.lines[self.row]
    }

    /// A control sequence, with its number.
    fn control(&mut self, end: Option<char>, number: Option<usize>) {
        let column = self.column;
        match (end, number) {
            (Some('A'), _) => self.row = self.row.saturating_sub(number.unwrap_or(1)),
            (Some('B'), _) => self.row += number.unwrap_or(1),
            (Some('K'), Some(2)) => self.line().clear(),
            (Some('K'), _) => self.line().truncate(column),
            // Colours and the cursor.
            _ => {}
        }
    }

    fn texts(&self) -> Vec<String> {
        self.lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}

/// A text that a line shows for a while; to the end without `until`.
#[derive(Debug, PartialEq)]
struct Shown {
    row: usize,
    text: String,
    from: f64,
    until: Option<f64>,
}

/// All texts that lines show, in frames.
fn frames(outputs: &[Output]) -> Vec<Shown> {
    let (mut screen, mut last) = (Screen::default(), f64::NEG_INFINITY);
    let (mut now, mut done): (BTreeMap<usize, (String, f64)>, Vec<Shown>) = (BTreeMap::new(), Vec::new());
    for (index, (at, text)) in outputs.iter().enumerate() {
        screen.write(text);
        if at - last < FRAME && index + 1 < outputs.len() {
            continue;
        }
        last = *at;
        for (row, text) in screen.texts().into_iter().enumerate() {
            if now.get(&row).is_some_and(|(shown, _)| *shown == text) {
                continue;
            }
            if let Some((text, from)) = now.insert(row, (text, *at)) {
                done.push(Shown { row, text, from, until: Some(*at) });
            }
        }
    }
    let last = now.into_iter().map(|(row, (text, from))| Shown { row, text, from, until: None });
    done.extend(last);
    done.retain(|shown| !shown.text.is_empty());
    done
}

/// The recording of a command as an animated SVG.
pub fn svg(command: &str, outputs: &[Output]) -> String {
    let end = outputs.last().map_or(0.0, |(at, _)| *at);
    let speed = (end / PLAYED).ceil().max(1.0);
    let whole = end / speed + HOLD;
    let texts = frames(outputs);
    let rows = texts.iter().map(|shown| shown.row + 2).max().unwrap_or(1);
    let width = 2.0 * MARGIN + COLUMNS as f64 * LETTER;
    let height = BAR + 2.0 * MARGIN + rows as f64 * LINE;
    let mut style = format!(
        "text{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation \
         Mono',monospace;font-size:{FONT}px;fill:#e6edf3;white-space:pre}}.i{{visibility:hidden}}\n"
    );
    let mut body = String::new();
    let mut add = |text: &str, row: usize, class: &str| {
        let y = BAR + MARGIN + (row as f64 + 0.75) * LINE;
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = writeln!(
            body,
            "<text x=\"{MARGIN}\" y=\"{y:.1}\"{class} xml:space=\"preserve\">{}</text>",
            escaped(text)
        );
    };
    add(&format!("$ {command}"), 0, "");
    for (index, shown) in texts.iter().enumerate() {
        let percent = |at: f64| 100.0 * at / speed / whole;
        let mut steps = format!("0%{{visibility:hidden}}{:.2}%{{visibility:visible}}", percent(shown.from));
        if let Some(until) = shown.until {
            let _ = write!(steps, "{:.2}%{{visibility:hidden}}", percent(until));
        }
        let _ = writeln!(style, "@keyframes k{index}{{{steps}}}");
        let _ = writeln!(style, ".k{index}{{animation:k{index} {whole:.1}s step-end infinite}}");
        let hidden = if shown.until.is_some() { "i " } else { "" };
        add(&shown.text, shown.row + 1, &format!("{hidden}k{index}"));
    }
    style.push_str("@media(prefers-reduced-motion:reduce){text{animation:none!important}}");
    let played = if speed > 1.0 { format!("  (played {speed:.0} times as fast)") } else { String::new() };
    let title = format!("{command}{played}");
    let mut svg =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\"");
    let _ = writeln!(svg, " viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">");
    let _ = writeln!(svg, "<title>Recording of {}</title>\n<style>{style}</style>", escaped(command));
    let frame = |height: &str, colour| {
        format!("<rect width=\"100%\" height=\"{height}\" rx=\"8\" fill=\"{colour}\"/>\n")
    };
    svg += &frame("100%", "#0d1117");
    svg += &frame(&BAR.to_string(), "#21262d");
    let _ = writeln!(svg, "<text x=\"50%\" y=\"20\" text-anchor=\"middle\">{}</text>", escaped(&title));
    svg += &body;
    svg += "</svg>\n";
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_cut_by_its_times() {
        let pieces = pieces("ab\u{e9}cd".as_bytes(), "0.5 3\n0.25 3\n").unwrap();
        assert_eq!(pieces, [(0.5, "ab".to_owned()), (0.75, "\u{e9}cd".to_owned())]);
        assert!(super::pieces(b"x", "soon 3").is_err());
    }

    #[test]
    fn screen_understands_what_progress_bars_write() {
        let mut screen = Screen::default();
        screen.write("one\r\n[=>  ] 1/2\r\u{1b}[2K[==>] 2/2\u{1b}[?25l");
        assert_eq!(screen.texts(), ["one", "[==>] 2/2"]);
        screen.write("\r\u{1b}[2Kdone\r\n\u{1b}[1A\u{1b}[32mD\u{1b}[0m\u{1b}[K");
        assert_eq!(screen.texts(), ["one", "D"]);
        screen.write(&"x".repeat(COLUMNS + 1));
        assert_eq!(screen.texts().last().map(String::as_str), Some("xx"));
    }

    #[test]
    fn lines_are_shown_for_their_time() {
        let output = |at: f64, text: &str| (at, text.to_owned());
        let shown = frames(&[
            output(0.0, "10 %"),
            output(0.1, "\r20 %"),
            output(1.0, "\r30 %"),
            output(1.2, "\r\u{1b}[2Kend\r\n"),
        ]);
        let text = |row, text: &str, from, until| Shown { row, text: text.to_owned(), from, until };
        assert_eq!(
            shown,
            [text(0, "10 %", 0.0, Some(1.0)), text(0, "30 %", 1.0, Some(1.2)), text(0, "end", 1.2, None)]
        );
    }

    #[test]
    fn svg_shows_the_end_without_animation() {
        let svg = svg("demo", &[(0.0, "20 %".to_owned()), (42.0, "\r\u{1b}[2Ka < b\r\n".to_owned())]);
        assert!(svg.contains("played 3 times as fast") && svg.contains(">$ demo</text>"), "{svg}");
        assert!(svg.contains("class=\"i k0\" xml:space=\"preserve\">20 %"), "{svg}");
        assert!(svg.contains("class=\"k1\" xml:space=\"preserve\">a &lt; b"), "{svg}");
        assert!(svg.contains("@keyframes k1{0%{visibility:hidden}58.33%{visibility:visible}}"), "{svg}");
    }
}
