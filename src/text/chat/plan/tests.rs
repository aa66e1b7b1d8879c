//! Plans: what they cover, and that they never differ from the template.

use crate::chat::{ChatRole, ChatTemplate, EngineRules, MessageSpan, SpecialTokens};
use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert_eq, proptest};

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Default system text when none is given.
const DEFAULT_SYSTEM: &str = "{% if messages[0].role != 'system' %}[sys]Be kind.[/sys]{% endif %}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}";
/// Reasoning is taken out of earlier turns; the last one keeps a frame.
const THINKING: &str = "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' and not m.content.startswith('<result>') %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}\
    {%- for m in messages %}{%- set content = m.content %}{%- if m.role == 'assistant' %}{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}\
    {%- if loop.index0 > ns.last and loop.last %}{{- '<a>\n<think>\n\n</think>\n\n' + content.lstrip('\n') + '<e>\n' }}{%- else %}{{- '<a>\n' + content + '<e>\n' }}{%- endif %}\
    {%- else %}{{- '<' + m.role[0] + '>\n' + content + '<e>\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<a>\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}";
/// A date, trimmed contents, a header that is always there.
const DATED: &str = "{{- bos_token }}{%- set text = '' %}{%- if messages[0]['role'] == 'system' %}{%- set text = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- endif %}\
    {{- '#system\nToday: ' + strftime_now('%d %b %Y') + '\n\n' + text + '#end' }}{%- for m in messages %}{{- '#' + m['role'] + '\n' + m['content'] | trim + '#end' }}{%- endfor %}{%- if add_generation_prompt %}{{- '#assistant\n' }}{%- endif %}";
/// The system text goes in front of the first user message; roles must take turns.
const MERGED_SYSTEM: &str = "{{ bos_token }}{%- if messages[0].role == 'system' -%}{%- set first = messages[0].content + '\n\n' -%}{%- set rest = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}\
    {%- for m in rest -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must take turns') }}{%- endif -%}{{ '<turn>' + m.role + '\n' + (first if loop.first else '') }}{{ m.content | trim }}{{ '</turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<turn>model\n' }}{%- endif -%}";
/// The system text goes in front of the last user message.
const LATE_SYSTEM: &str = "{%- if messages[0].role == 'system' %}{%- set sys = messages[0].content %}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}{{- bos_token }}\
    {%- for m in rest %}{%- if m.role == 'user' %}{%- if loop.last and sys is defined %}{{- '[I] ' + sys + '\n\n' + m.content + '[/I]' }}{%- else %}{{- '[I] ' + m.content + '[/I]' }}{%- endif %}{%- else %}{{- ' ' + m.content + eos_token }}{%- endif %}{%- endfor %}";
/// Loops over parts.
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}S{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}P{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
/// Blank contents are left out altogether.
const NO_BLANKS: &str = "{% for m in messages %}{% if m.content | trim %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
/// Prints every content twice.
const TWICE: &str = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}";
/// Changes contents.
const LOUD: &str = "{% for m in messages %}{{ m.content | upper }}{% endfor %}";
/// Needs the number of messages.
const COUNTED: &str = "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}";
/// Looks for a string that it holds in a variable, and for one that is compared as a whole.
const HIDDEN_SEARCH: &str = "{% set mark = '##' %}{% for m in messages %}[{{ 'Stop!' if m.content == 'go on' else m.content.split(mark)[0] }}]{% endfor %}";

const ALL: [(&str, &str); 12] = [
    (CHATML, "all roles in any order; 0 trigger strings"),
    (DEFAULT_SYSTEM, "all roles in any order; 0 trigger strings"),
    (THINKING, "all roles in any order; 2 trigger strings"),
    (DATED, "all roles in any order; 0 trigger strings"),
    (MERGED_SYSTEM, "system first or absent, then turns; 0 trigger strings"),
    (LATE_SYSTEM, "no system message, turns; 0 trigger strings"),
    (PARTS, "all roles in any order; 0 trigger strings"),
    (NO_BLANKS, "all roles in any order; 0 trigger strings; no blank contents"),
    (TWICE, "none"),
    (LOUD, "none"),
    (COUNTED, "none"),
    (HIDDEN_SEARCH, "all roles in any order; 2 trigger strings"),
];

fn compile(source: &str, rules: EngineRules) -> ChatTemplate {
    let special = SpecialTokens::new().with("bos_token", "<s>").with("eos_token", "</s>");
    ChatTemplate::compile_for(source, &special, rules).unwrap()
}

fn body_of(messages: &[(ChatRole, String)]) -> (Vec<u8>, Vec<MessageSpan>) {
    let mut body = b"xx".to_vec();
    let mut spans = Vec::new();
    for (role, content) in messages {
        let quoted = serde_json::to_string(content).unwrap();
        let start = u32::try_from(body.len() + 1).unwrap();
        body.extend_from_slice(quoted.as_bytes());
        let end = u32::try_from(body.len() - 1).unwrap();
        spans.push(MessageSpan {
            role: *role,
            content: start..end,
            escaped: quoted.contains('\\'),
        });
    }
    (body, spans)
}

#[test]
fn plans_cover_what_they_can() {
    for (source, expected) in ALL {
        assert_eq!(compile(source, EngineRules::Vllm).plan_summary(), expected, "{source}");
    }
}

#[test]
fn contents_with_triggers_are_left_to_the_template() {
    let template = compile(THINKING, EngineRules::Vllm);
    let mut out = b"kept".to_vec();
    let messages =
        [(ChatRole::User, "q".to_owned()), (ChatRole::Assistant, "<think>x</think>\ny".to_owned())];
    let (body, spans) = body_of(&messages);
    assert!(!template.render_plain(&spans, &body, true, &mut out));
    assert_eq!(out, b"kept");
    template.render_messages(&spans, &body, true, &mut out).unwrap();
    assert_eq!(out, b"kept<u>\nq<e>\n<a>\n<think>\n\n</think>\n\ny<e>\n<a>\n");
    // Escaped so that the mark does not show in the body's bytes.
    let quoted = b"\\u003c/think>";
    let span = MessageSpan {
        role: ChatRole::User,
        content: 0..u32::try_from(quoted.len()).unwrap(),
        escaped: true,
    };
    assert!(!template.render_plain(&[span], quoted, true, &mut out));
}

#[test]
fn spans_outside_of_the_body_are_declined() {
    let template = compile(CHATML, EngineRules::Vllm);
    let span = MessageSpan { role: ChatRole::User, content: 5..9, escaped: false };
    let mut out = Vec::new();
    assert!(!template.render_plain(std::slice::from_ref(&span), b"abc", true, &mut out));
    assert!(template.render_messages(&[span], b"abc", true, &mut out).is_err());
    assert!(!template.render_plain(&[], b"abc", true, &mut out));
    assert!(out.is_empty());
}

fn conversations() -> impl Strategy<Value = Vec<(ChatRole, String)>> {
    let role = prop::sample::select(vec![ChatRole::System, ChatRole::User, ChatRole::Assistant]);
    let atom = prop::sample::select(vec![
        "word", " ", "\n", "\n\n", "\t", "\u{3000}", "\u{1f}", "é", "😀", "\"", "\\", "</think>",
        "<think>", "<result>", "##", "go on", "user", "<s>", "[/I]", "{{ x }}", "#end",
    ]);
    let known = prop::collection::vec(atom, 0..6).prop_map(|atoms| atoms.concat());
    let content = proptest::prop_oneof![known, any::<String>()];
    let free = prop::collection::vec((role, content.clone()), 1..7);
    let turns =
        (any::<bool>(), prop::collection::vec(content, 1..7)).prop_map(|(system, contents)| {
            let mut roles = system
                .then_some(ChatRole::System)
                .into_iter()
                .chain([ChatRole::User, ChatRole::Assistant].into_iter().cycle());
            contents.into_iter().map(|content| (roles.next().unwrap(), content)).collect()
        });
    proptest::prop_oneof![free, turns]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// The fast way gives what the template gives, or declines.
    #[test]
    fn plans_agree_with_their_templates(messages in conversations(), generates: bool) {
        thread_local! {
            static TEMPLATES: Vec<ChatTemplate> = ALL
                .iter()
                .flat_map(|(source, _)| {
                    [EngineRules::Vllm, EngineRules::Sglang].map(|rules| compile(source, rules))
                })
                .collect();
        }
        let (body, spans) = body_of(&messages);
        TEMPLATES.with(|templates| {
            for template in templates {
                let mut fast = Vec::new();
                let mut full = Vec::new();
                if template.render_plain(&spans, &body, generates, &mut fast) {
                    template.render_messages(&spans, &body, generates, &mut full).unwrap();
                    prop_assert_eq!(String::from_utf8(fast), String::from_utf8(full));
                }
            }
            Ok(())
        })?;
    }
}
