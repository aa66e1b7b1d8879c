//! Models of the counts of a tenant.

use forebay_base::NanosSinceStart;
use forebay_board::TenantCell;
use forebay_fleet::tenant::MinuteRate;
use forebay_ring::sync::Arc;
use loom::thread;

const NOW: NanosSinceStart = NanosSinceStart(1_000_000_000);

fn together<T: Send + 'static>(
    take: impl Fn(&TenantCell) -> T + Clone + Send + 'static,
) -> (Arc<TenantCell>, T, T) {
    let cell = Arc::new(TenantCell::default());
    let other = Arc::clone(&cell);
    let taking = take.clone();
    let other = thread::spawn(move || taking(&other));
    let here = take(&cell);
    (cell, here, other.join().unwrap())
}

#[test]
fn the_last_request_of_a_minute_goes_to_one_shard() {
    loom::model(|| {
        let rate = MinuteRate::of(1).unwrap();
        let (cell, here, there) = together(move |cell| cell.take_request(rate, NOW).is_ok());
        assert!(here != there, "both or neither");
        assert_eq!(cell.requests(rate, NOW).remaining, 0);
    });
}

#[test]
fn tokens_that_come_back_are_neither_lost_nor_doubled() {
    loom::model(|| {
        let rate = MinuteRate::of(100).unwrap();
        let (cell, ..) = together(move |cell| {
            let taken = cell.take_tokens(rate, NOW, 40).unwrap();
            cell.correct_tokens(taken, NOW, 10);
        });
        assert_eq!(cell.tokens(rate, NOW).remaining, 80);
    });
}

#[test]
fn the_last_place_of_a_tenant_goes_to_one_shard() {
    loom::model(|| {
        let (cell, here, there) = together(|cell| {
            let entered = cell.enter(1);
            if entered {
                assert_eq!(cell.in_flight().get(), 1, "both are in");
                cell.in_flight().exit();
            }
            entered
        });
        assert!(here || there, "nobody is in");
        assert_eq!(cell.in_flight().get(), 0);
    });
}
