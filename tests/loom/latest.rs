//! Models of the cell in which the newest value wins.

use forebay_ring::latest;
use loom::alloc::Track;
use loom::thread;

#[test]
fn latest_takes_the_newest_or_gives_it_back() {
    loom::model(|| {
        let (writer, reader) = latest();
        let writing = thread::spawn(move || {
            let first = writer.write(Track::new(1)).map(Track::into_inner);
            let second = writer.write(Track::new(2)).map(Track::into_inner);
            (first, second)
        });
        let early = reader.take().map(Track::into_inner);
        let (first, second) = writing.join().unwrap();
        let late = reader.take().map(Track::into_inner);
        assert_eq!(first, None);
        match (early, second, late) {
            // Each value reaches exactly one side, and what the reader sees never goes back.
            (None, Some(1), Some(2)) | (Some(1), None, Some(2)) | (Some(2), Some(1), None) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn latest_drops_the_unread() {
    loom::model(|| {
        let (writer, reader) = latest();
        let writing = thread::spawn(move || drop(writer.write(Track::new(1))));
        drop(reader.take());
        drop(reader);
        writing.join().unwrap();
    });
}
