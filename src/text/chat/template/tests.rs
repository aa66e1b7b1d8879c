//! Templates as transformers renders them.

use super::{ChatTemplate, RenderError};
use crate::chat::{ChatApi, ChatRole, EngineRules, MessageSpan, SpecialTokens};
use serde_json::{Value, json};

/// Prints all that a template can see of a request.
const EVERYTHING: &str =
    "{%- for m in messages %}{{- m | tojson }}{{- '\n' }}{%- endfor %}{{- tools | tojson }}";
const OWN: &str = include_str!("../../../../tests/data/tokenizer/chat_template.txt");

fn compile(source: &str, rules: EngineRules) -> ChatTemplate {
    let special = SpecialTokens::new().with("bos_token", "<s>").with("eos_token", "</s>");
    ChatTemplate::compile_for(source, &special, rules).unwrap()
}

fn render_for(source: &str, rules: EngineRules, body: &str) -> Result<String, RenderError> {
    let mut out = b"kept:".to_vec();
    let rendered = compile(source, rules).render_full(body.as_bytes(), &mut out);
    let text = String::from_utf8_lossy(&out).replacen("kept:", "", 1);
    assert!(rendered.is_ok() || text.is_empty());
    rendered.map(|()| text)
}

fn render(source: &str, body: &Value) -> String {
    render_for(source, EngineRules::Vllm, &body.to_string()).unwrap()
}

#[test]
fn messages_come_as_vllm_gives_them() {
    let body = json!({ "messages": [
        {"role": "developer", "content": "d", "name": null},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}], "unknown": 1},
        {"role": "assistant", "content": null, "reasoning_content": "r",
            "tool_calls": [{"id": "1", "type": "function",
                "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2.0]}"}},
                {"function": {"name": "g", "arguments": "[broken"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ]});
    let expected = r#"{"role": "system", "content": "d"}
{"role": "user", "content": "a\nb", "name": "ann"}
{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {"z": 1, "a": [2.0]}, "name": "f"}, "type": "function"}, {"function": {"arguments": {}, "name": "g"}}], "reasoning": "r", "reasoning_content": "r"}
{"role": "tool", "content": "done", "tool_call_id": "1"}
{"role": "assistant", "content": "x"}
null"#;
    assert_eq!(render(EVERYTHING, &body), expected);
}

#[test]
fn developers_become_the_system_message_at_the_front() {
    let body = json!({ "messages": [
        {"role": "system", "content": "a"}, {"role": "user", "content": "q"},
        {"role": "developer", "content": "b", "tools": []},
    ]});
    let text = render(EVERYTHING, &body);
    assert_eq!(
        text,
        "{\"role\": \"system\", \"content\": \"a\\n\\nb\"}\n{\"role\": \"user\", \"content\": \"q\"}\nnull"
    );
    let knows = format!("{EVERYTHING}{{% if 'developer' %}}{{% endif %}}");
    assert!(
        render(&knows, &body)
            .contains("\"role\": \"developer\", \"content\": \"b\", \"tools\": []")
    );
}

#[test]
fn the_billing_line_of_claude_code_is_taken_out() {
    let line = "x-anthropic-billing-header: cch=1;";
    let source = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let body = json!({ "messages": [{"role": "system", "content": format!("{line}\nBe kind.")}, {"role": "user", "content": line}] });
    assert_eq!(render(source, &body), format!("[Be kind.][{line}]"));
    let anthropic = json!({ "system": [{"type": "text", "text": line},
        {"type": "text", "text": "S"}], "messages": [{"role": "user", "content": "q"}] });
    assert_eq!(render(source, &anthropic), "[S][q]");
    let template = compile(source, EngineRules::Vllm);
    let span = MessageSpan {
        role: ChatRole::System,
        content: 0..u32::try_from(line.len()).unwrap(),
        escaped: false,
    };
    let mut out = Vec::new();
    assert!(!template.render_plain(std::slice::from_ref(&span), line.as_bytes(), true, &mut out));
    assert!(template.render_plain(
        &[MessageSpan { role: ChatRole::User, ..span }],
        line.as_bytes(),
        true,
        &mut out
    ));
}

#[test]
fn anthropic_thinking_becomes_reasoning() {
    let body = json!({ "thinking": {"type": "disabled"}, "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "a"}]} ]});
    let source = "{{ messages[-1] | tojson }}{{ enable_thinking }}{{ reasoning_effort }}";
    assert_eq!(
        render(source, &body),
        "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": \"hm\", \"reasoning_content\": \"hm\"}Falsenone"
    );
}

#[test]
fn templates_that_loop_over_parts_get_parts() {
    let source = "{%- for m in messages %}{%- for p in m.content %}{{- p | tojson }}{%- endfor %};{%- endfor %}";
    let body = json!({ "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": null},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": "u"}, "c"]},
    ]});
    assert_eq!(
        render(source, &body),
        r#"{"type": "text", "text": "a"};;{"type": "text", "text": "b"}{"type": "image"}{"type": "text", "text": "c"};"#
    );
    let sglang = render_for(
        "{%- for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{{ m.content is string }};{%- endfor %}",
        EngineRules::Sglang,
        &body.to_string(),
    );
    assert_eq!(sglang.unwrap(), "True;True;bcFalse;");
}

#[test]
fn sglang_joins_and_orders_its_own_way() {
    let body = json!({
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "extra": 1}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}, {"type": "function", "function": {"name": "g"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    });
    let text = render_for(EVERYTHING, EngineRules::Sglang, &body.to_string()).unwrap();
    assert_eq!(
        text,
        "{\"role\": \"user\", \"content\": \"a b\"}\n[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}, \"description\": null}, \"defer_loading\": null}]"
    );
    let mut none = body;
    none["tool_choice"] = json!("none");
    assert!(
        render_for(EVERYTHING, EngineRules::Sglang, &none.to_string()).unwrap().ends_with("\nnull")
    );
}

#[test]
fn sglang_reads_requests_its_own_way() {
    let sglang = |source: &str, body: &Value| {
        render_for(source, EngineRules::Sglang, &body.to_string()).unwrap()
    };
    let call = |arguments: &str| json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
    let body = json!({ "messages": [
        {"role": "user", "content": "q", "name": "ann"},
        {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": call("{\"a\": 1}")},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "so far"},
    ], "add_generation_prompt": false });
    let expected = r#"{"role": "user", "content": "q"}
{"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [{"id": "1", "index": null, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}
{"role": "tool", "content": "a b", "tool_call_id": "1"}
{"role": "user", "content": "so far"}
null"#;
    assert_eq!(sglang(EVERYTHING, &body), expected);
    assert_eq!(sglang("{{ add_generation_prompt }}", &body), "True");
    let broken = json!({ "messages": [{"role": "assistant", "tool_calls": call("[1]")}, {"role": "user", "content": "q"}] });
    let refused = render_for(EVERYTHING, EngineRules::Sglang, &broken.to_string());
    assert!(matches!(refused, Err(RenderError::Unsupported(_))));

    let source = "{{ thinking }},{{ enable_thinking }},{{ reasoning_effort }}";
    let user = json!([{"role": "user", "content": "q"}]);
    for (fields, wanted) in [
        (json!({ "reasoning_effort": "none" }), "False,False,none"),
        (json!({ "reasoning": {"effort": "high"} }), "True,True,high"),
        (json!({ "reasoning": {"enabled": true} }), "True,True,"),
        (
            json!({ "reasoning_effort": "low",
                "chat_template_kwargs": {"enable_thinking": false} }),
            "True,False,low",
        ),
    ] {
        let mut body = fields;
        body["messages"] = user.clone();
        assert_eq!(sglang(source, &body), wanted, "{body}");
    }
}

#[test]
fn sglang_tries_bare_functions_when_the_template_fails_on_tools() {
    let source = "{% for t in tools %}{% if t.function is defined %}{{ raise_exception('no') }}{% endif %}{{ t.name }}{% endfor %}";
    let body =
        json!({ "messages": [], "tools": [{"type": "function", "function": {"name": "f"}}] })
            .to_string();
    assert_eq!(render_for(source, EngineRules::Sglang, &body).unwrap(), "f");
    assert!(render_for(source, EngineRules::Vllm, &body).is_err());
}

#[test]
fn templates_of_requests_are_not_followed() {
    let own = r#"{"messages": [], "chat_template": "x"}"#;
    let named = r#"{"messages": [], "chat_template_kwargs": {"chat_template": "x"}}"#;
    let unsupported =
        |rules, body| matches!(render_for("t", rules, body), Err(RenderError::Unsupported(_)));
    assert!(unsupported(EngineRules::Vllm, own) && unsupported(EngineRules::Vllm, named));
    assert!(!unsupported(EngineRules::Sglang, own) && unsupported(EngineRules::Sglang, named));
}

#[test]
fn tools_have_the_keys_of_the_engines_class() {
    let body = r#"{"messages": [], "tools": [{"function": {"strict": true, "extra": 1, "parameters": {"z": 1, "a": 2}, "name": "f"}, "type": "function"}]}"#;
    assert_eq!(
        render_for(EVERYTHING, EngineRules::Vllm, body).unwrap(),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}, "strict": true}}]"#
    );
}

#[test]
fn request_fields_become_variables() {
    let source = "{{ enable_thinking }},{{ reasoning_effort }},{{ documents | tojson }},{{ add_generation_prompt }},{{ x }},{{ bos_token }},{{ pad_token is defined }}";
    let body = json!({ "messages": [{"role": "user", "content": "a"}], "reasoning_effort": "none", "documents": [{"t": 1}],
        "add_generation_prompt": false, "chat_template_kwargs": {"x": 7, "messages": "no"} });
    assert_eq!(render(source, &body), "False,none,[{\"t\": 1}],False,7,<s>,False");
    let given = json!({ "messages": [], "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": false, "add_generation_prompt": false} });
    assert_eq!(render(source, &given), "False,low,null,True,,<s>,False");
}

#[test]
fn a_continued_message_ends_the_prompt() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let body = json!({ "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so far "}],
        "continue_final_message": true, "add_generation_prompt": false });
    assert_eq!(render(source, &body), "<user>q</><assistant>so far");
    let sglang = render_for(
        source,
        EngineRules::Sglang,
        &json!({ "messages": body["messages"], "continue_final_message": true }).to_string(),
    );
    assert_eq!(sglang.unwrap(), "<user>q</><assistant>so far ");
}

#[test]
fn anthropic_bodies_become_chats() {
    let body = json!({
        "system": [{"type": "text", "text": "S1"}, {"type": "text", "text": "S2"}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "let me"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "ok"}]}, {"type": "text", "text": "go"}]},
        ],
    });
    let expected = r#"{"role": "system", "content": "S1S2"}
{"role": "user", "content": "q"}
{"role": "assistant", "content": "let me", "tool_calls": [{"id": "t1", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"}]}
{"role": "tool", "content": "ok", "tool_call_id": "t1"}
{"role": "user", "content": "go"}
[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]"#;
    assert_eq!(render(EVERYTHING, &body), expected);
}

#[test]
fn responses_bodies_become_chats() {
    let body = json!({ "instructions": "be kind", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        {"type": "message", "role": "user", "content": "go"}] });
    let expected = r#"{"role": "system", "content": "be kind"}
{"role": "user", "content": "q"}
{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": {}, "name": "f"}, "type": "function"}]}
{"role": "tool", "content": "ok", "tool_call_id": "c"}
{"role": "user", "content": "go"}
null"#;
    assert_eq!(render(EVERYTHING, &body), expected);
    assert_eq!(
        render(EVERYTHING, &json!({ "input": "q" })),
        "{\"role\": \"user\", \"content\": \"q\"}\nnull"
    );
    assert_eq!(
        render(EVERYTHING, &json!({ "input": "q", "instructions": "" })),
        "{\"role\": \"user\", \"content\": \"q\"}\nnull"
    );
    let effort = json!({ "input": "q", "reasoning": {"effort": "low"} });
    assert_eq!(
        render("{{ reasoning_effort }}{{ enable_thinking is defined }}", &effort),
        "lowFalse"
    );
    let kept = json!({ "input": "q", "previous_response_id": "r" }).to_string();
    assert!(matches!(
        render_for(EVERYTHING, EngineRules::Vllm, &kept),
        Err(RenderError::Unsupported(_))
    ));
}

#[test]
fn what_cannot_be_rendered_is_an_error() {
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(4_000), "]".repeat(4_000));
    for body in ["", "[]", "{", "{\"messages\":[}", deep.as_str()] {
        assert!(
            matches!(render_for(EVERYTHING, EngineRules::Vllm, body), Err(RenderError::Body)),
            "{:.40}",
            body
        );
    }
    for body in ["{}", "{\"messages\":1}", "{\"input\":1}"] {
        assert!(
            matches!(render_for(EVERYTHING, EngineRules::Vllm, body), Err(RenderError::NoMessages)),
            "{body}"
        );
    }
    let refuses = "{{ raise_exception('no') }}";
    assert!(matches!(
        render_for(refuses, EngineRules::Vllm, "{\"messages\":[]}"),
        Err(RenderError::Template(_))
    ));
    assert!(ChatTemplate::compile("{% if %}", &SpecialTokens::new()).is_err());
}

#[test]
fn the_test_template_renders_tools() {
    let body = json!({ "messages": [{"role": "system", "content": "S"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": null,
            "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": \"é\"}"}}]},
        {"role": "tool", "content": "20"}],
        "tools": [{"type": "function", "function": {"name": "f"}}] });
    let text = render(OWN, &body);
    assert!(text.starts_with("<|im_start|>system\nS\n\nFunctions"));
    assert!(text.contains("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": null}}\n"));
    assert!(text.ends_with("<|im_start|>assistant\n\n<tool_call>\n{\"arguments\": {\"a\": \"é\"}, \"name\": \"f\"}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n20\n</tool_response><|im_end|>\n<|im_start|>assistant\n"));
}

/// A tool without parameters: Jinja2 takes an undefined value as an empty list and mapping.
#[test]
fn filters_of_undefined_values_are_empty() {
    let source = "{% for t in tools %}{% for k, v in t.function.parameters.properties | items %}\
                  {{ k }}{% endfor %}{{ t.function.parameters.properties | length }}{% endfor %}";
    let template = ChatTemplate::compile(source, &SpecialTokens::new()).unwrap();
    let mut out = Vec::new();
    let body = br#"{"messages":[],"tools":[{"type":"function","function":{"name":"now"}},
        {"type":"function","function":{"name":"w","parameters":{"properties":{"a":1}}}}]}"#;
    template.render_full(body, &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "0a1");
}

#[test]
fn integers_of_arguments_keep_their_digits() {
    let body = r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"1","function":
        {"name":"f","arguments":"{\"n\": 123456789012345678901234567890, \"m\": 1.5}"}}]}]}"#;
    let source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}\
                  {{ c.function.arguments.n }}{{ c.function.arguments }}{% endfor %}";
    for (rules, wanted) in [
        (
            EngineRules::Vllm,
            "{\"n\": 123456789012345678901234567890, \"m\": 1.5}123456789012345678901234567890\
             {'n': 123456789012345678901234567890, 'm': 1.5}",
        ),
        (
            EngineRules::VllmRust,
            "{\"n\": 1.2345678901234568e+29, \"m\": 1.5}123456789012345680000000000000.0\
             {\"n\": 1.2345678901234568e29, \"m\": 1.5}",
        ),
    ] {
        let template = ChatTemplate::compile_for(source, &SpecialTokens::new(), rules).unwrap();
        let mut out = Vec::new();
        template.render_full(body.as_bytes(), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), wanted, "{rules:?}");
    }
}

/// In a chat, vLLM joins a part `thinking` to the text. In Anthropic's API it is reasoning.
#[test]
fn thinking_parts_are_text_in_chats() {
    let body = br#"{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},
        {"type":"text","text":"A"}]}]}"#;
    let source = "{{ messages[0].content }}|{{ messages[0].reasoning }}";
    let template = ChatTemplate::compile(source, &SpecialTokens::new()).unwrap();
    for (api, wanted) in [(ChatApi::Chat, "hm\nA|"), (ChatApi::Messages, "A|hm")] {
        let mut out = Vec::new();
        template.render_text(body, api, None, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), wanted, "{api:?}");
    }
}
