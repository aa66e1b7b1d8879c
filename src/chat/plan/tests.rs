use crate::chat::{ChatRole, ChatTemplate, MessageSpan, SpecialTokens};

fn plan_of(source: &str) -> String {
    let special = SpecialTokens::new().with("bos_token", "<s>").with("eos_token", "</s>");
    ChatTemplate::compile(source, &special).unwrap().plan_summary()
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn plain_templates_are_covered_for_all_roles() {
    assert_eq!(plan_of(CHATML), "all roles in any order; 0 trigger strings");
}
