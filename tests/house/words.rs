//! Words of comments and type names: the field's nouns, and no stand-ins.

use super::source::Source;

/// Words that stand in for the thing that a sentence is about.
const STAND_INS: &[&str] =
    &["who", "whoever", "whom", "whose", "one", "nobody", "somebody", "those", "others"];
/// Verbs of speech. Data is sent, received, reported, stored or counted.
const SPEECH: &[&str] =
    &["tell", "tells", "told", "say", "says", "said", "saying", "hear", "hears", "heard"];
/// Irregular participles, verbs and adverbs that a type name may not end with.
const NO_NOUNS: &[&str] = &[
    "Asks", "Away", "Became", "Begun", "Came", "Done", "Given", "Going", "Gone", "Had", "Heard",
    "Held", "Kept", "Known", "Left", "Lost", "Made", "Met", "Seen", "Sent", "Shown", "Sought",
    "Spent", "Stay", "Stood", "Taken", "Taking", "Told", "Towards", "Under",
];
/// Nouns that end like a participle.
const NOUNS: &[&str] = &["Bed", "Embed", "Feed", "Need", "Seed", "Shed", "Speed"];

/// One word of a comment that the house rules ask to replace.
pub(crate) struct PrivateWord<'a> {
    pub line: usize,
    pub word: &'a str,
    pub is_speech: bool,
}

/// Comments with their first lines, tests aside. Code in backticks is no prose.
pub(crate) fn comments(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let docs = source.docs.iter().map(|doc| (doc.line, doc.text.as_str()));
    let lines =
        source.lines.iter().enumerate().filter_map(|(index, line)| {
            line.comment.as_deref().map(|comment| (index + 1, comment))
        });
    docs.chain(lines).filter(|(line, _)| !source.is_test_line(*line))
}

/// Words of a comment outside of code in backticks.
pub(crate) fn prose(comment: &str) -> impl Iterator<Item = &str> {
    let outside = comment.split('`').step_by(2);
    let words = outside.flat_map(|part| part.split(|c: char| !c.is_alphabetic() && c != '\''));
    words.filter(|word| !word.is_empty())
}

/// Words of a source's comments that the house rules ask to replace.
pub(crate) fn private_words(source: &Source) -> impl Iterator<Item = PrivateWord<'_>> {
    comments(source).flat_map(|(line, comment)| {
        prose(comment).filter_map(move |word| {
            let lower = word.to_lowercase();
            let is_speech = SPEECH.contains(&lower.as_str());
            let is_private = is_speech || STAND_INS.contains(&lower.as_str());
            is_private.then_some(PrivateWord { line, word, is_speech })
        })
    })
}

/// Last word of a type's name, if it is no noun: a participle, a verb or an adverb.
pub(crate) fn no_noun(name: &str) -> Option<&str> {
    let start = name.rfind(char::is_uppercase)?;
    let last = &name[start..];
    let is_participle = last.ends_with("ed") && !NOUNS.contains(&last);
    (is_participle || NO_NOUNS.contains(&last)).then_some(last)
}
