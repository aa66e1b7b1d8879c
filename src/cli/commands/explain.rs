//! `forebay explain`: a request at a running router, or the hit ladder of a recording.

use crate::cli::orders::overlap::OverlapArgs;
use crate::cli::process::{failed, run_local};
use clap::{ArgGroup, Args};
use forebay_record::{
    FileReader, HitLadder, LadderMaker, LadderSurvey, RUNGS, RequestNote, STEPS, inspect,
};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Flags of which a call needs exactly 1.
const SUBJECTS: [&str; 4] = ["recording", "body", "message", "prompt"];

/// Flags of the command `forebay explain`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("subject").required(true).args(SUBJECTS))]
#[command(after_help = "Examples:\n  \
    forebay explain --model Qwen/Qwen3-8B --message 'Where is the log?'\n  \
    forebay explain --body body.json --router http://gateway:9090\n  \
    forebay record --router http://127.0.0.1:9090 --seconds 600 --out day.kvrec\n  \
    forebay explain --recording day.kvrec\n\n\
    With a request, the router explains its choice and sends nothing to a worker.\n\
    Each rung of a recording replays the prompts with a restriction more than the rung\n\
    above. Steps between the rungs add up to what is missing. See docs/operate/hit-rate.md.")]
pub(crate) struct ExplainArgs {
    /// A file of `forebay record --router`
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// Tokens that the cache of a rank holds, where its engine does not tell
    #[arg(long, value_name = "N", requires = "recording",
          value_parser = clap::value_parser!(u64).range(1..))]
    kv_tokens: Option<u64>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    request: OverlapArgs,
}

pub(crate) fn run(args: &ExplainArgs) -> ExitCode {
    match explained(args, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

pub(crate) fn explained(args: &ExplainArgs, out: &mut impl Write) -> Result<(), String> {
    let Some(path) = &args.recording else {
        return run_local(args.request.report(args.json, out)).and_then(|done| done);
    };
    inspect(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut survey = LadderSurvey::default();
    each_note(path, |note| survey.take(note))?;
    let untold = survey.untold_ranks();
    if untold > 0 && args.kv_tokens.is_none() {
        return Err(format!(
            "{}: {untold} ranks do not tell how much their cache holds; give --kv-tokens",
            path.display()
        ));
    }
    let mut maker: LadderMaker = survey.maker(args.kv_tokens.unwrap_or(0));
    each_note(path, |note| maker.take(&note))?;
    let ladder = maker.finish();
    if ladder.requests == 0 {
        return Err(format!(
            "{}: no request that can be counted ({}); record with --router while requests with \
             usage are answered, and let vLLM tell of cached tokens \
             (--enable-prompt-tokens-details)",
            path.display(),
            left_out(&ladder)
        ));
    }
    let written = match args.json {
        true => writeln!(out, "{:#}", as_json(&ladder)),
        false => table(&ladder, out),
    };
    written.map_err(|error| error.to_string())
}

fn each_note(path: &Path, mut take: impl FnMut(RequestNote)) -> Result<(), String> {
    let of_file = |error: io::Error| format!("{}: {error}", path.display());
    let mut reader = FileReader::open(path).map_err(of_file)?;
    loop {
        let end = reader.next_chunk().map_err(of_file)?;
        let notes = reader.messages().filter(|note| !reader.header().has_events(note.source));
        for message in notes.filter(|note| !note.is_end_of_connection()) {
            let note = message.frames().first().and_then(|frame| RequestNote::decode(frame));
            take(note.ok_or_else(|| format!("{}: a note that is none", path.display()))?);
        }
        if end.is_some() {
            return Ok(());
        }
    }
}

fn left_out(ladder: &HitLadder) -> String {
    let HitLadder { untold, moved, cut, lost, .. } = ladder;
    format!(
        "left out: {untold} whose engine told no tokens, {moved} that another rank answered, {cut} \
         without beginning or end, {lost} lost notes"
    )
}

/// A share for display; the tokens are exact.
#[expect(clippy::cast_precision_loss, reason = "a share that is shown")]
fn share(tokens: i64, ladder: &HitLadder) -> f64 {
    tokens as f64 / ladder.prompt_tokens.max(1) as f64
}

fn table(ladder: &HitLadder, out: &mut impl Write) -> io::Result<()> {
    let HitLadder { requests, prompt_tokens, forgotten, .. } = ladder;
    writeln!(out, "{requests} requests, {prompt_tokens} tokens of prompts")?;
    writeln!(out, "{}", left_out(ladder))?;
    if *forgotten > 0 {
        writeln!(out, "{forgotten} parts of prompts had no room here: more was possible")?;
    }
    writeln!(out, "{:<22} {:>6} {:>15}  step", "", "hits", "tokens")?;
    let steps = ladder.steps();
    for (place, (name, tokens)) in RUNGS.into_iter().zip(ladder.rungs).enumerate() {
        let signed = i64::try_from(tokens).unwrap_or(i64::MAX);
        write!(out, "{name:<22} {:>6.3} {tokens:>15}", share(signed, ladder))?;
        let step =
            place.checked_sub(1).and_then(|place| Some((STEPS.get(place)?, steps.get(place)?)));
        match step {
            Some((name, step)) => writeln!(out, "  {name} {:+.3}", 0.0 - share(*step, ladder))?,
            None => writeln!(out)?,
        }
    }
    let missing = steps.iter().sum::<i64>();
    match missing.unsigned_abs() {
        more if missing < 0 => writeln!(
            out,
            "missing: none; reached is {more} tokens above possible, which knows no prompt from \
             before the recording"
        ),
        tokens => writeln!(out, "missing: {tokens} tokens"),
    }
}

fn as_json(ladder: &HitLadder) -> Value {
    let rungs: Map<String, Value> = RUNGS
        .into_iter()
        .zip(ladder.rungs)
        .map(|(name, tokens)| {
            let rate = share(i64::try_from(tokens).unwrap_or(i64::MAX), ladder);
            (name.replace(' ', "_"), json!({ "tokens": tokens, "hit_rate": rate }))
        })
        .collect();
    let steps: Map<String, Value> = STEPS
        .into_iter()
        .zip(ladder.steps())
        .map(|(name, lost)| (name.into(), json!(lost)))
        .collect();
    json!({
        "requests": ladder.requests,
        "prompt_tokens": ladder.prompt_tokens,
        "rungs": rungs,
        "steps": steps,
        "left_out": {
            "untold": ladder.untold,
            "moved": ladder.moved,
            "cut": ladder.cut,
            "lost_notes": ladder.lost,
        },
        "forgotten_parts": ladder.forgotten,
    })
}

#[cfg(test)]
mod tests {
    use super::{HitLadder, table};

    /// Issue 39: caches that were full before the recording made it `missing: -434 tokens`.
    #[test]
    fn no_number_of_missing_tokens_is_negative() {
        let last = |rungs: [u64; 5]| {
            let ladder =
                HitLadder { requests: 9, prompt_tokens: 900, rungs, ..HitLadder::default() };
            let mut out = Vec::new();
            table(&ladder, &mut out).unwrap();
            String::from_utf8(out).unwrap().lines().last().unwrap().to_owned()
        };
        assert_eq!(last([500, 400, 400, 300, 100]), "missing: 400 tokens");
        let more = last([66, 66, 66, 66, 500]);
        assert!(more.starts_with("missing: none; reached is 434 tokens above possible"), "{more}");
    }
}
