//! The render stage: 8 KB of chat as 2 and as 20 messages (plan and full template), raw text, token
//! ids, and the decoding of one KV block. `cargo bench --bench render`.

#![expect(missing_docs, reason = "criterion_group! makes undocumented items")]
#![expect(clippy::unwrap_used, reason = "a bench that cannot set up stops")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay::text::Vocabulary;
use forebay::text::chat::{ChatRole, ChatTemplate, MessageSpan, SpecialTokens};
use std::hint::black_box;

const TOKENIZER: &str = include_str!("../tests/data/tokenizer/tokenizer.json");
/// A thinking model's template in short: its assistant turns search for a mark.
const TEMPLATE: &str = "{%- for m in messages %}{%- if m.role == 'assistant' and '</think>' in m.content %}\
    {{- '<|im_start|>assistant\n' + m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}{%- else %}\
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}\
    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

/// A body of `count` messages and `bytes` of contents, with a newline (an escape) every few words.
fn body(count: usize, bytes: usize) -> (Vec<u8>, Vec<MessageSpan>) {
    let mut body = b"{\"model\":\"m\",\"messages\":[".to_vec();
    let mut spans = Vec::new();
    let sentence = "The quick brown fox jumps over the lazy dog, and then it sleeps <soundly>.\\n";
    let content: String = sentence.chars().cycle().take(bytes / count).collect();
    let content = content.trim_end_matches('\\');
    for index in 0..count {
        let (role, name) = match index {
            0 => (ChatRole::System, "system"),
            index if index % 2 == 1 => (ChatRole::User, "user"),
            _ => (ChatRole::Assistant, "assistant"),
        };
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(format!("{{\"role\":\"{name}\",\"content\":\"").as_bytes());
        let start = u32::try_from(body.len()).unwrap();
        body.extend_from_slice(content.as_bytes());
        let end = u32::try_from(body.len()).unwrap();
        body.extend_from_slice(b"\"}");
        spans.push(MessageSpan { role, content: start..end, escaped: true });
    }
    body.extend_from_slice(b"]}");
    (body, spans)
}

fn render(criterion: &mut Criterion) {
    let template = ChatTemplate::compile(TEMPLATE, &SpecialTokens::new()).unwrap();
    let vocabulary = Vocabulary::from_tokenizer_json(TOKENIZER).unwrap();
    let mut out = Vec::new();
    let mut group = criterion.benchmark_group("render");
    for count in [2, 20] {
        let (body, spans) = body(count, 8 * 1024);
        group.throughput(Throughput::Bytes(8 * 1024));
        assert!(template.render_plain(&spans, &body, true, &mut out));
        group.bench_function(format!("plan/8KB/{count}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                assert!(template.render_plain(black_box(&spans), black_box(&body), true, &mut out));
                vocabulary.align(&mut out, 0);
            });
        });
        group.bench_function(format!("template/8KB/{count}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                template
                    .render_messages(black_box(&spans), black_box(&body), true, &mut out)
                    .unwrap();
            });
        });
        group.bench_function(format!("body/8KB/{count}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                template.render_full(black_box(&body), &mut out).unwrap();
            });
        });
    }
    group.finish();
    let ids: Vec<u32> = (300..316).collect();
    criterion.bench_function("vocabulary/16 tokens", |bencher| {
        bencher.iter(|| {
            out.clear();
            assert!(vocabulary.decode_into(black_box(&ids), &mut out));
        });
    });
}

criterion_group!(benches, render);
criterion_main!(benches);
