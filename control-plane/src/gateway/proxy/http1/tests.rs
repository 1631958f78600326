//! Replies as engines send them, whole, cut and wrong.

use proptest::prelude::*;

use super::*;

/// Reads a whole reply from `pieces` and the end of the connection: status, data, whether more may follow, what is left over.
fn read(pieces: &[&[u8]]) -> Result<(u16, Vec<u8>, bool, Vec<u8>), Malformed> {
    let mut input = BytesMut::new();
    let mut head = None;
    let mut data = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        if head.is_none() {
            head = Head::take(&mut input)?;
        }
        if let Some(head) = &mut head {
            let mut left = &input[..];
            data.extend_from_slice(&head.body.push(&mut left)?);
            input = BytesMut::from(left);
        }
    }
    let head = head.ok_or(Malformed::Short)?;
    head.body.close()?;
    Ok((head.status.as_u16(), data, head.keeps, input.to_vec()))
}

fn whole(reply: &str) -> Result<(u16, String, bool, String), Malformed> {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    read(&[reply.as_bytes()]).map(|(status, data, keeps, left)| (status, text(data), keeps, text(left)))
}

#[test]
fn the_end_of_a_body_is_found_in_each_way_it_is_told() {
    for (reply, status, data, keeps, left) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcX", 200, "abc", true, "X"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\ncontent-length: 2\r\n\r\nab", 200, "ab", true, ""),
        ("HTTP/1.1 500 \r\ncontent-length: 0\r\n\r\n", 500, "", true, ""),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true, ""),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, "", true, ""),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\nab", 101, "", false, "ab"),
        ("HTTP/1.1 200 OK\r\nconnection: keep-alive, Close\r\ncontent-length: 1\r\n\r\na", 200, "a", false, ""),
        ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na", 200, "a", false, ""),
        ("HTTP/1.1 200 OK\r\n\r\nall of it", 200, "all of it", false, ""),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ncontent-length: 1\r\n\r\nall", 200, "all", false, ""),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nab\r\nA \r\n0123456789\r\n0\r\n\r\nX", 200, "ab0123456789", true, "X"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n1\r\na\r\n0\r\n\r\n", 200, "a", false, ""),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;a=\"b\"\r\na\r\n000\r\nx: y\r\nz: \r\n\r\n", 200, "a", true, ""),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na",
            200,
            "a",
            true,
            "",
        ),
    ] {
        assert_eq!(whole(reply), Ok((status, data.to_owned(), keeps, left.to_owned())), "{reply}");
    }
}

#[test]
fn what_could_be_understood_in_two_ways_is_refused() {
    let chunked = |body: &str| format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    for (reply, why) in [
        ("SSH-2.0-OpenSSH\r\n".to_owned(), Malformed::Head(httparse::Error::Version)),
        ("HTTP/1.1 099 OK\r\n\r\n".to_owned(), Malformed::Head(httparse::Error::Status)),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na".to_owned(), Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\na".to_owned(), Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\na".to_owned(), Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\na".to_owned(), Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc".to_owned(), Malformed::Short),
        ("HTTP/1.1 200 OK\r\ncontent-le".to_owned(), Malformed::Short),
        (chunked("2\nab\r\n0\r\n\r\n"), Malformed::Chunk),
        (chunked("2\r\nabc\r\n0\r\n\r\n"), Malformed::Chunk),
        (chunked("\r\n"), Malformed::Chunk),
        (chunked("-1\r\n"), Malformed::Chunk),
        (chunked("10000000000000000\r\n"), Malformed::Chunk),
        (chunked("2\r\nab\r\n0\r\n"), Malformed::Short),
        (chunked("2\r\nab\r\n"), Malformed::Short),
        (chunked(&format!("2;{}\r\nab\r\n0\r\n\r\n", "x".repeat(20_000))), Malformed::Extras),
        (format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(MAX_HEAD)), Malformed::LongHead),
        (format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(MAX_HEAD)), Malformed::LongHead),
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(MAX_HEADERS + 1)), Malformed::Head(httparse::Error::TooManyHeaders)),
    ] {
        let start: String = reply.chars().take(80).collect();
        assert_eq!(whole(&reply), Err(why), "{start}");
    }
}

#[test]
fn a_head_is_copied_out_of_what_was_read_with_it() {
    let mut input = BytesMut::from(&b"HTTP/1.1 200 OK\r\nX-Two: a\r\nx-two: b\r\ncontent-length: 1\r\n\r\na"[..]);
    let head = Head::take(&mut input).unwrap().unwrap();
    assert_eq!(head.headers.get_all("x-two").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(&input[..], b"a");
}

proptest! {
    /// However the network cuts a reply, it reads as the same.
    #[test]
    fn a_cut_reply_reads_like_a_whole_one(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        framing in 0..3_u8,
    ) {
        let data = chunks.concat();
        let mut reply = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n".to_vec();
        match framing {
            0 => reply.extend_from_slice(b"\r\n"),
            1 => reply.extend_from_slice(format!("content-length: {}\r\n\r\n", data.len()).as_bytes()),
            _ => reply.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n"),
        }
        if framing < 2 {
            reply.extend_from_slice(&data);
        } else {
            for chunk in &chunks {
                reply.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                reply.extend_from_slice(chunk);
                reply.extend_from_slice(b"\r\n");
            }
            reply.extend_from_slice(b"0\r\n\r\n");
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(reply.len())).chain([0, reply.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &reply[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(&pieces), Ok((200, data, framing > 0, Vec::new())));
    }

    /// Nothing that comes makes the reader panic, loop, or find more data than there is.
    #[test]
    fn any_bytes_are_read_or_refused(start in 0..4_usize, noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let starts = ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"];
        let mut reply = starts[start].as_bytes().to_vec();
        reply.extend_from_slice(&noise);
        if let Ok((_, data, _, left)) = read(&[&reply]) {
            prop_assert!(data.len() + left.len() <= reply.len());
        }
    }
}
