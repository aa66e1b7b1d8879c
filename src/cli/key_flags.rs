//! Flags of `serve` that set a single key each, generated from the table of keys.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use forebay_config::{KeyEntry, Kind, all_keys};
use serde_json::Value;
use std::ffi::OsStr;

/// Names of the given flags with their values; `on` for flags without a value.
#[derive(Debug, Default)]
pub(super) struct KeyFlags(pub(super) Vec<(&'static str, String)>);

impl Args for KeyFlags {
    fn augment_args(command: Command) -> Command {
        command.args(all_keys().iter().filter_map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for flag in all_keys().into_iter().filter_map(|entry| entry.key.flag) {
            if !flag.value.is_empty() {
                let value = matches.get_one::<String>(flag.name);
                self.0.extend(value.map(|value| (flag.name, value.clone())));
            } else if matches.get_flag(flag.name) {
                self.0.push((flag.name, "on".to_owned()));
            }
        }
        Ok(())
    }
}

fn argument(entry: &KeyEntry) -> Option<Arg> {
    let flag = entry.key.flag?;
    let doc = entry.key.doc.trim();
    let mut help = doc.strip_suffix('.').unwrap_or(doc).to_owned();
    let mut arg = Arg::new(flag.name).long(flag.name);
    if flag.value.is_empty() {
        arg = arg.action(ArgAction::SetTrue);
    } else {
        arg = arg.value_name(flag.value).value_parser(WordParser(entry.kind.clone()));
        let default = entry.default.as_ref().map(|value| match value {
            Value::Bool(is_on) => (if *is_on { "on" } else { "off" }).to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        help = format!("{help} [default: {}]", default.as_deref().unwrap_or(entry.key.absent));
    }
    arg = match flag.value {
        "FILE" => arg.value_hint(ValueHint::FilePath),
        "DIR" => arg.value_hint(ValueHint::DirPath),
        _ => arg,
    };
    if !flag.heading.is_empty() {
        arg = arg.help_heading(flag.heading);
    }
    Some(arg.help(help))
}

/// Accepts any text, since the check of the configuration reports all faults together. Lists the
/// allowed words for help and completions.
#[derive(Clone, Debug)]
struct WordParser(Kind);

impl TypedValueParser for WordParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        match &self.0 {
            Kind::Words(words) => {
                Some(Box::new(words.iter().map(|(word, _)| PossibleValue::new(*word))))
            }
            Kind::Switch => Some(Box::new(["on", "off"].into_iter().map(PossibleValue::new))),
            _ => None,
        }
    }
}
