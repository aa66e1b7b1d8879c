//! Model of prompts without a visible first token.

use forebay_board::{PromptNumber, RankLoad, UnstreamedPrompts};
use forebay_ring::sync::Arc;
use loom::thread;

/// One thread enters a prompt and ends it, another passes the oldest. The tokens are taken off
/// once, and no sum runs below zero on the way.
#[test]
fn tokens_of_a_passed_prompt_are_taken_off_once() {
    const TOKENS: u64 = 100;

    loom::model(|| {
        let load = Arc::new(RankLoad::default());
        let prompts = Arc::new(UnstreamedPrompts::default());
        let their_load = Arc::clone(&load);
        let their_prompts = Arc::clone(&prompts);
        let passing = thread::spawn(move || {
            let passed = their_prompts.pass(PromptNumber::new(1), 1);
            if passed.count > 0 {
                their_load.sub_unseen(passed.tokens);
                their_load.sub_prefills(passed.count, passed.tokens);
            }
        });
        let number = load.add_prefill(TOKENS);
        load.add_unseen(TOKENS);
        let slot = prompts.enter(number, TOKENS).expect("a free slot");
        if prompts.remove(slot) {
            load.sub_unseen(TOKENS);
            load.sub_prefill(TOKENS);
        }
        passing.join().unwrap();
        assert!(!load.has_unseen());
        assert_eq!(load.prefill_tokens(), 0);
    });
}
