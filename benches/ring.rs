//! Cost of handing over between threads: one operation on each structure, without contention.
#![allow(missing_docs, reason = "bench functions need none")]

use criterion::{Criterion, criterion_group, criterion_main};
use forebay::ring::{Bell, Wake, latest, spsc};
use std::hint::black_box;

struct Nothing;

impl Wake for Nothing {
    fn wake(&self) {}
}

fn ring(criterion: &mut Criterion) {
    let (mut producer, mut consumer) = spsc::<u64>(1_024);
    criterion.bench_function("spsc_push_pop", |bencher| {
        bencher.iter(|| {
            let _ = producer.push(black_box(7));
            consumer.pop()
        });
    });
    criterion.bench_function("spsc_is_empty", |bencher| bencher.iter(|| consumer.is_empty()));
    let (writer, reader) = latest::<u64>();
    criterion.bench_function("latest_write_take", |bencher| {
        bencher.iter(|| {
            let _ = writer.write(black_box(7));
            reader.take()
        });
    });
    criterion.bench_function("latest_take_nothing", |bencher| bencher.iter(|| reader.take()));
    let bell = Bell::new(Nothing);
    criterion.bench_function("bell_ring_awake", |bencher| bencher.iter(|| bell.ring()));
    criterion.bench_function("bell_park_unpark", |bencher| {
        bencher.iter(|| {
            bell.park();
            bell.unpark()
        });
    });
}

criterion_group!(benches, ring);
criterion_main!(benches);
