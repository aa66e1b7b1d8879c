//! The sending half of a socket.

use super::*;

#[test]
fn a_peer_that_does_not_read_stalls_only_its_own_task() {
    on_both(|| async {
        let (_receiver, mut sender, mut other) = pair().await;
        let is_sent = Rc::new(Cell::new(false));
        let sent = Rc::clone(&is_sent);
        spawn(async move {
            sender.start(vec![b'x'; 32 << 20]);
            sent.set(poll_fn(|cx| sender.poll_flushed(cx)).await.is_ok());
        });
        sleep(Duration::from_millis(20)).await;
        assert!(!is_sent.get());
        let reading = std::thread::spawn(move || {
            let mut all = Read::take(&mut other, 32 << 20);
            std::io::copy(&mut all, &mut std::io::sink()).unwrap()
        });
        while !is_sent.get() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(reading.join().unwrap(), 32 << 20);
        // Given up on: the buffer stays with the operation, and the connection ends.
        let (_receiver, mut sender, _other) = pair().await;
        sender.start(vec![b'x'; 32 << 20]);
        let mut cx = Context::from_waker(Waker::noop());
        sleep(Duration::from_millis(1)).await;
        assert!(sender.poll_sent(&mut cx).is_pending());
        drop(sender);
        sleep(Duration::from_millis(1)).await;
    });
}

#[test]
fn a_sender_waits_for_room_and_goes_on() {
    on_both(|| async {
        let (mut receiver, mut sender, mut other) = pair().await;
        let piece = [7; READ_BYTES];
        let mut sent = 0;
        while let count @ 1.. = sender.try_send(&[IoSlice::new(&piece)]).unwrap() {
            sent += count;
        }
        let waited = poll_fn(|cx| {
            let mut room = pin!(sender.room());
            Poll::Ready(room.as_mut().poll(cx).is_pending())
        });
        assert!(waited.await, "there is no room");
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            while all.len() <= sent {
                let mut bytes = [0; READ_BYTES];
                let count = other.read(&mut bytes).unwrap();
                all.extend_from_slice(&bytes[..count]);
            }
            all
        });
        sender.room().await.unwrap();
        while sender.try_send(&[IoSlice::new(&[8])]).unwrap() == 0 {
            sender.room().await.unwrap();
        }
        let all = reading.join().unwrap();
        assert_eq!((all.len(), all.last()), (sent + 1, Some(&8)));
        assert!(chunk(&mut receiver).await.is_empty());
    });
}

/// Reads until `other` has as many bytes; the loop runs on meanwhile.
async fn read_on(other: &mut TcpStream, count: usize) -> Vec<u8> {
    other.set_nonblocking(true).unwrap();
    let mut read = Vec::new();
    let mut piece = vec![0; 1 << 16];
    while read.len() < count {
        match other.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => read.extend_from_slice(&piece[..bytes]),
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
    read
}

#[test]
fn a_send_with_room_costs_no_wait_of_its_own() {
    on_both(|| async {
        let (mut receiver, mut sender, mut other) = pair().await;
        let mut answer = [0; 4];
        other.write_all(b"once").unwrap();
        assert_eq!(chunk(&mut receiver).await, b"once", "the receive is under way");
        let before = io_counts();
        for _ in 0..50 {
            other.write_all(b"ping").unwrap();
            let ping = chunk(&mut receiver).await;
            receiver.recycle(ping);
            let sent = sender.send(b"pong".to_vec()).await.unwrap();
            sender.recycle(sent);
        }
        let after = io_counts();
        assert!(after.waits - before.waits <= 52, "{before:?} {after:?}");
        end_turn().await;
        for _ in 0..50 {
            other.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"pong");
        }
    });
}

#[test]
fn posted_bytes_precede_a_direct_call_a_close_and_a_drop() {
    on_both(|| async {
        for end in 0..3 {
            let (receiver, mut sender, mut other) = pair().await;
            sender.send(b"first, ".to_vec()).await.unwrap();
            match end {
                0 => assert_eq!(sender.try_send(&[IoSlice::new(b"second")]).unwrap(), 6),
                1 => sender.close().unwrap(),
                _ => drop((receiver, sender)),
            }
            let expected: &[u8] = if end == 0 { b"first, second" } else { b"first, " };
            assert_eq!(read_on(&mut other, expected.len()).await, expected);
        }
    });
}

#[test]
fn sends_keep_their_order_where_the_socket_has_no_room() {
    on_both(|| async {
        let (_receiver, mut sender, mut other) = pair().await;
        let expected: Vec<u8> = (0..24_u8).flat_map(|byte| vec![byte; 1 << 20]).collect();
        let is_flushed = Rc::new(Cell::new(false));
        let flushed = Rc::clone(&is_flushed);
        spawn(async move {
            for byte in 0..24 {
                sender.send(vec![byte; 1 << 20]).await.unwrap();
            }
            poll_fn(|cx| sender.poll_flushed(cx)).await.unwrap();
            flushed.set(sender.is_flushed());
        });
        assert!(read_on(&mut other, expected.len()).await == expected);
        while !is_flushed.get() {
            sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_broken_socket_is_an_error_of_the_next_send_at_the_latest() {
    on_both(|| async {
        let (_receiver, mut sender, other) = pair().await;
        socket2::SockRef::from(&other).set_linger(Some(Duration::ZERO)).unwrap();
        drop(other);
        let mut sent_count = 0;
        while sender.send(b"into the void".to_vec()).await.is_ok() {
            sent_count += 1;
            assert!(sent_count < 3, "no error of {sent_count} sends");
            sleep(Duration::from_millis(1)).await;
        }
        let (_receiver, mut sender, other) = pair().await;
        socket2::SockRef::from(&other).set_linger(Some(Duration::ZERO)).unwrap();
        drop(other);
        sender.start(b"into the void".to_vec());
        let ended = poll_fn(|cx| sender.poll_flushed(cx)).await;
        assert!(ended.is_err(), "{ended:?}");
    });
}
