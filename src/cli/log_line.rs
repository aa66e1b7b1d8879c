//! Lines of the log: text, or a JSON object with all fields at its top level.
//!
//! A record of each request is a line, formatted on the thread of a shard: a formatter for such a
//! path takes a third of the instructions of `tracing-subscriber`'s (decision 0129).

use crate::worker_lines::LineMark;
use std::fmt::{self, Debug, Write as _};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Room that most lines need, records of requests included.
const LINE_BYTES: usize = 640;
/// Name of the field with the text of an event.
const MESSAGE: &str = "message";
/// Target of the records of requests.
const RECORDS: &str = "forebay_dataplane::story::access_record";

/// Name of the field that may have several lines.
const BACKTRACE: &str = "backtrace";

/// Formatter of all events. Each line has the process: at an upgrade, two write to the same log.
/// Text by `log.format` stays as the key defines it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogLine {
    pub(super) form: LineForm,
    /// Number of the process.
    pub(super) pid: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum LineForm {
    Text { is_terminal: bool },
    Json,
}

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let mut line = String::with_capacity(LINE_BYTES);
        if let Some(mark) = LineMark::of(event) {
            // The queue takes the mark off.
            mark.write(&mut line)?;
        }
        let mut digits = itoa::Buffer::new();
        let pid = digits.format(self.pid);
        match self.form {
            LineForm::Text { is_terminal } => {
                SystemTime.format_time(&mut Writer::new(&mut line))?;
                line.push_str(if is_terminal { coloured(level) } else { padded(level) });
                event.record(&mut LineFields { out: &mut line, is_json: false });
                if !has_own_format(event) {
                    line.push_str(" pid=");
                    line.push_str(pid);
                }
            }
            LineForm::Json => {
                line.push_str(r#"{"timestamp":""#);
                SystemTime.format_time(&mut Writer::new(&mut line))?;
                line.push_str(r#"","level":""#);
                line.push_str(padded(level).trim_ascii());
                line.push_str(r#"","pid":"#);
                line.push_str(pid);
                event.record(&mut LineFields { out: &mut line, is_json: true });
                line.push('}');
            }
        }
        line.push('\n');
        writer.write_str(&line)
    }
}

/// Whether the event is a record of a request in the text of `log.format`: a message and no fields.
fn has_own_format(event: &Event<'_>) -> bool {
    event.metadata().target() == RECORDS && event.fields().count() == 1
}

/// The level between two spaces, right-aligned.
const fn padded(level: Level) -> &'static str {
    match level {
        Level::ERROR => " ERROR",
        Level::WARN => "  WARN",
        Level::INFO => "  INFO",
        Level::DEBUG => " DEBUG",
        Level::TRACE => " TRACE",
    }
}

/// The same in the usual colour of the level.
const fn coloured(level: Level) -> &'static str {
    match level {
        Level::ERROR => " \x1b[31mERROR\x1b[0m",
        Level::WARN => "  \x1b[33mWARN\x1b[0m",
        Level::INFO => "  \x1b[32mINFO\x1b[0m",
        Level::DEBUG => " \x1b[34mDEBUG\x1b[0m",
        Level::TRACE => " \x1b[35mTRACE\x1b[0m",
    }
}

/// Name of a field, or `None` for metadata of the crate `log`.
fn shown_name(field: &Field) -> Option<&'static str> {
    let name = field.name();
    (!name.starts_with("log.")).then(|| name.strip_prefix("r#").unwrap_or(name))
}

/// Whether text means the same with and without escapes.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\')
}

/// Whether a reader of logfmt takes the text for a single value: a word, or a text in quotes.
fn is_whole(text: &str) -> bool {
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
    let Some(quoted) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        let ends_word = |letter: char| is_odd(letter) || matches!(letter, '"' | '=' | '\\');
        return !text.is_empty() && !text.contains(ends_word);
    };
    let mut is_escaped = false;
    let is_inside = |letter: char| {
        let ends_text = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        !ends_text && (letter == ' ' || !is_odd(letter))
    };
    quoted.chars().all(is_inside) && !is_escaped
}

/// Fields of a line: ` name=value` in text, where the message has no name, or `,"name":value`.
struct LineFields<'a> {
    out: &'a mut String,
    is_json: bool,
}

impl LineFields<'_> {
    /// Appends the name; `false` for a field that no line has.
    fn name(&mut self, field: &Field) -> bool {
        let Some(name) = shown_name(field) else {
            return false;
        };
        let is_bare = !self.is_json && name == MESSAGE;
        let [before, after] = if self.is_json { [",\"", "\":"] } else { [" ", "="] };
        self.out.push_str(before);
        if !is_bare {
            self.out.push_str(name);
            self.out.push_str(after);
        }
        true
    }

    /// Appends a value that means the same in both formats.
    fn plain(&mut self, field: &Field, value: &str) {
        if self.name(field) {
            self.out.push_str(value);
        }
    }

    /// Appends a text in quotes, by the escapes of JSON.
    fn quoted(&mut self, field: &Field, value: &str) {
        if !self.name(field) {
            return;
        }
        if is_plain(value) {
            self.out.push('"');
            self.out.push_str(value);
            self.out.push('"');
        } else {
            self.out.push_str(&serde_json::Value::from(value).to_string());
        }
    }
}

impl Visit for LineFields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let is_bare = !self.is_json && field.name() == MESSAGE;
        if is_bare {
            self.record_debug(field, &format_args!("{value}"));
        } else if self.is_json || is_plain(value) {
            self.quoted(field, value);
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, itoa::Buffer::new().format(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, itoa::Buffer::new().format(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if self.is_json {
            // `null` for what JSON has no number for.
            self.plain(field, &serde_json::Value::from(value).to_string());
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, if value { "true" } else { "false" });
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.is_json {
            self.quoted(field, &format!("{value:?}"));
        } else if self.name(field) {
            let keeps_lines = field.name() == BACKTRACE;
            // Writing to a string cannot fail.
            if keeps_lines || field.name() == MESSAGE {
                let _ = write!(Visible { out: self.out, keeps_lines }, "{value:?}");
                return;
            }
            let start = self.out.len();
            let _ = write!(self.out, "{value:?}");
            if !self.out.get(start..).is_some_and(is_whole) {
                let text = self.out.split_off(start);
                let _ = write!(self.out, "{text:?}");
            }
        }
    }
}

/// Appends text; control characters are escaped, so that no text from outside drives a terminal or
/// forges a line.
struct Visible<'a> {
    out: &'a mut String,
    /// Ends of lines stay.
    keeps_lines: bool,
}

impl fmt::Write for Visible<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if is_plain(text) {
            self.out.push_str(text);
            return Ok(());
        }
        for letter in text.chars() {
            if letter.is_control() && !(self.keeps_lines && letter == '\n') {
                self.out.extend(letter.escape_default());
            } else {
                self.out.push(letter);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use std::sync::mpsc::{Sender, channel};

    /// Sends each line.
    struct Lines(Sender<Vec<u8>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let sent = self.0.send(bytes.to_vec());
            sent.map_or(Ok(0), |()| Ok(bytes.len()))
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What `log` writes in this format.
    fn logged(form: LineForm, log: impl FnOnce()) -> String {
        let format = LogLine { form, pid: 4_321 };
        let (sender, lines) = channel();
        let subscriber = tracing_subscriber::fmt()
            .event_format(format)
            .with_writer(move || Lines(sender.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes: Vec<u8> = lines.try_iter().flatten().collect();
        String::from_utf8(bytes).unwrap()
    }

    fn odd_values() {
        tracing::warn!(
            status = 200_u64,
            below = -1_i64,
            share = 0.5,
            nan = f64::NAN,
            yes = true,
            none = None::<u64>,
            plain = "a b",
            odd = "q\"\\\u{1b}[31m\né",
            shown = %"x\u{1b}y",
            list = ?[1, 2],
            r#type = "t",
            "text {}\n\u{7}", "é\""
        );
    }

    #[test]
    fn text_has_name_and_value_and_no_byte_that_drives_a_terminal() {
        let line = logged(LineForm::Text { is_terminal: false }, odd_values);
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.len() == 27 && time.ends_with('Z'), "{time}");
        let fields = r#"status=200 below=-1 share=0.5 nan=NaN yes=true plain="a b""#;
        let odd = r#"odd="q\"\\\u{1b}[31m\né" shown="x\u{1b}y" list="[1, 2]" type="t""#;
        assert_eq!(rest, format!(" WARN text é\"\\n\\u{{7}} {fields} {odd} pid=4321\n"));
    }

    /// Text of the fields behind the message, as a reader of logfmt takes it.
    fn fields_of(line: &str) -> Vec<(&str, String)> {
        let (_, mut rest) = line.split_once(" text").expect("the message");
        let mut fields = Vec::new();
        while let Some(field) = rest.strip_prefix(' ') {
            let (name, value) = field.split_once('=').expect("a name");
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'), "{line}");
            let Some(quoted) = value.strip_prefix('"') else {
                let end = value.find([' ', '\n']).expect("an end");
                let (word, behind) = value.split_at(end);
                assert!(!word.is_empty() && !word.contains(['"', '=']), "{line}");
                fields.push((name, word.to_owned()));
                rest = behind;
                continue;
            };
            let mut is_escaped = false;
            let end = quoted.find(|letter| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            });
            let (text, behind) = quoted.split_at(end.expect("an end"));
            fields.push((name, text.to_owned()));
            rest = &behind[1..];
        }
        assert_eq!(rest, "\n", "{line}");
        fields
    }

    proptest! {
        /// Issue 39: `fault=it answers 400` had no quotes, and a reader took `answers` for a field.
        #[test]
        fn each_value_is_a_word_or_in_quotes(
            value in "[a-z =\"\\\\\n\t\u{1b}é\u{2028}\u{a0}]{0,8}",
        ) {
            let line = logged(LineForm::Text { is_terminal: false }, || {
                tracing::info!(
                    shown = %value,
                    debugged = ?value,
                    maybe = ?Some(&value),
                    list = ?[&value, &value],
                    text = &*value,
                    "text"
                );
            });
            let escaped = format!("{value:?}");
            let escaped = &escaped[1..escaped.len() - 1];
            let fields = fields_of(&line);
            let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            prop_assert_eq!(names, ["shown", "debugged", "maybe", "list", "text", "pid"]);
            prop_assert_eq!(&fields[1].1, escaped);
            // A value with quotes around it may stand for itself.
            let is_quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
            prop_assert!(is_quoted || fields[0].1 == escaped, "{}", line);
        }
    }

    #[test]
    fn json_is_an_object_with_all_fields() {
        let line = logged(LineForm::Json, odd_values);
        let mut object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(object["timestamp"].take().is_string());
        assert_eq!(
            object,
            serde_json::json!({
                "timestamp": null, "level": "WARN", "pid": 4321,
                "message": "text é\"\n\u{7}", "status": 200,
                "below": -1, "share": 0.5, "nan": null, "yes": true, "plain": "a b",
                "odd": "q\"\\\u{1b}[31m\né", "shown": "x\u{1b}y", "list": "[1, 2]", "type": "t",
            })
        );
    }

    #[test]
    fn a_terminal_gets_the_colour_of_the_level() {
        let line = logged(LineForm::Text { is_terminal: true }, || tracing::error!("e"));
        assert!(line.ends_with(" \x1b[31mERROR\x1b[0m e pid=4321\n"), "{line:?}");
    }
}
