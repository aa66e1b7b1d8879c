//! Models of the comparison of failures that two ranks share.

use forebay_base::RankIndex;
use forebay_board::{ComparisonTurn, RankLoad, Suspect};
use forebay_ring::sync::Arc;
use loom::thread;

/// Two shards see the same two ranks fail together, and no request has another partner.
#[test]
fn ranks_that_fail_only_together_are_never_told_apart() {
    loom::model(|| {
        let board = Arc::new((ComparisonTurn::default(), RankLoad::default(), RankLoad::default()));
        let other = Arc::clone(&board);
        let doubt = |board: &(ComparisonTurn, RankLoad, RankLoad), ranks: [u16; 2]| {
            let loads = if ranks == [0, 1] { [&board.1, &board.2] } else { [&board.2, &board.1] };
            Suspect::of(&board.0, ranks.map(RankIndex), loads)
        };
        let there = thread::spawn(move || doubt(&other, [1, 0]));
        let here = [doubt(&board, [0, 1]), doubt(&board, [0, 1])];
        assert_eq!(here, [None; 2]);
        assert_eq!(there.join().unwrap(), None);
    });
}
