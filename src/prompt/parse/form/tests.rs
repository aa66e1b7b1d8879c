//! Forms that are read, and forms that parsers may read in two ways.

use super::*;
use crate::parse::{form_type, session_key};
use forebay_config::SessionConfig;
use forebay_fleet::worker::SessionKey;
use forebay_http1::{HeadLimits, Progress, RequestHead, parse_request};
use proptest::prelude::*;

const FILE: &str = "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
                    Content-Type: audio/wav";

const TYPE: FormType<'_> = FormType { boundary: b"b", is_utf8: true };

fn field(name: &str) -> String {
    format!("Content-Disposition: form-data; name=\"{name}\"")
}

fn body(parts: &[(&str, &str)]) -> String {
    let part = |(head, value): &(&str, &str)| format!("--b\r\n{head}\r\n\r\n{value}\r\n");
    parts.iter().map(part).collect::<String>() + "--b--\r\n"
}

fn scanned(body: &[u8]) -> Result<ApiRequest, ScanError> {
    let mut request = ApiRequest::default();
    scan_form(body, TYPE, Endpoint::Other, &mut request).map(|()| request)
}

fn refused(body: &str) -> &'static str {
    match scanned(body.as_bytes()) {
        Err(ScanError::Form { what }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_model_is_found_among_files_and_texts() {
    let wav = "RIFF\r\n--c\r\n\r\n".repeat(100);
    let text = body(&[
        (FILE, &wav),
        (&field("model"), "whisper"),
        (&field("stream"), "true"),
        (&field("session_id"), "ann"),
    ]);
    let request = scanned(text.as_bytes()).unwrap();
    assert_eq!((&*request.model, request.has_model, request.stream), ("whisper", true, true));
    assert_eq!((request.media_count, request.media_bytes), (1, wav.len() as u64));
    assert_eq!(
        &text[request.model_span.start as usize..request.model_span.end as usize],
        "whisper"
    );
    let found = (&request, text.as_bytes());
    let key = session_key(&SessionConfig::default(), &RequestHead::default(), &[], found);
    assert_eq!(key, SessionKey::of(b"ann"));
    let named = body(&[(&format!("{}; filename=\"a; b.wav\"", field("file")), "x")]);
    assert_eq!(scanned(named.as_bytes()).unwrap().media_count, 1);
    let token = body(&[("content-disposition: Form-Data; Name=model", "m")]);
    assert_eq!(scanned(token.as_bytes()).unwrap().model, "m");
    assert!(!scanned(b"--b--").unwrap().has_model);
}

#[test]
fn another_name_takes_the_place_of_the_models() {
    let mut text = body(&[(FILE, "x"), (&field("model"), "chat"), (&field("prompt"), "p")]);
    let mut request = scanned(text.as_bytes()).unwrap();
    let wanted = text.replace("\r\nchat\r\n", "\r\norg/\"w\"\r\n");
    request.rename("org/\"w\"");
    let mut message = std::mem::take(&mut text).into_bytes();
    request.write_model(&mut message, 0);
    assert_eq!(String::from_utf8(message.clone()).unwrap(), wanted);
    let again = scanned(&message).unwrap();
    assert_eq!((again.model_span, again.text_members), (request.model_span, request.text_members));
}

#[test]
fn what_parsers_may_read_in_two_ways_is_refused() {
    let model = field("model");
    for (text, what) in [
        (body(&[(&model, "a"), (&model, "b")]), "`model` is given twice"),
        (body(&[(&format!("{model}; filename=\"m\""), "a")]), "`model` is a file"),
        (body(&[(&format!("{model}; name=\"x\""), "a")]), "a part has two names"),
        (body(&[(&format!("{model}\r\n{}", field("x")), "a")]), "a part has two names"),
        (
            body(&[(&format!("{}; name*=UTF-8''model", field("x")), "a")]),
            "a part has a parameter beside name and filename",
        ),
        (body(&[(&field("mod\\\"el"), "a")]), "a part has a name that is not plain"),
        (
            body(&[(&format!("{model}\r\nContent-Transfer-Encoding: base64"), "YQ==")]),
            "a part is in a transfer coding",
        ),
        (
            body(&[(&format!("{}; filename=\"a; name=model\"", field("file")), "a")]),
            "the name of a part cannot be read",
        ),
        (
            body(&[("Content-Disposition: form-data;\r\n name=\"model\"", "a")]),
            "a part has no name",
        ),
        (body(&[("Content-Disposition : form-data; name=\"model\"", "a")]), "a part has a field"),
        (body(&[(&format!("Content-Type: a\r{model}"), "a")]), "a part has a field"),
        (body(&[(&field("lora_path"), "a")]), "it names an adapter"),
        (body(&[(&field("<model>"), "a")]), "a part has a name that is not plain"),
        (body(&[(&field("+AG0-odel"), "a")]), "a part has a name that is not plain"),
        (body(&[(&field("model "), "a")]), "a part has a name that is not plain"),
        (body(&[("Content-Disposition: form-data", "a")]), "a part has no name"),
        (body(&[("Content-Disposition: attachment; name=\"model\"", "a")]), "a part is no form"),
        (format!("preamble\r\n{}", body(&[])), "it does not begin with its boundary"),
        (body(&[]) + "more", "a boundary is not alone on its line"),
        (body(&[(&model, "a\r\n--bc")]), "a boundary is not alone on its line"),
        ("--b\r\n".to_owned() + &model + "\r\n\r\na", "its end is missing"),
        ("--b\r\n".to_owned() + &model + "\n\na\r\n--b--", "a part has no head"),
        (format!("--b\r\n--bx: y\r\n{model}\r\n\r\na\r\n--b--"), "a part has no head"),
        (body(&vec![(&*field("x"), "y"); PARTS_MAX + 1]), "it has too many parts"),
    ] {
        assert!(refused(&text).starts_with(what), "{text:?}: {}", refused(&text));
    }
    let owned = body(&[(&field("bootstrap_host"), "10.0.0.1")]);
    assert_eq!(scanned(owned.as_bytes()).unwrap_err(), ScanError::Owned { key: "bootstrap_host" });
    let long = body(&[(&model, &"m".repeat(MODEL_BYTES_MAX + 1))]);
    assert_eq!(scanned(long.as_bytes()).unwrap_err(), ScanError::ModelTooLong);
}

/// Issue 35: quotes, escapes and charsets that readers take apart in different ways.
#[test]
fn quotes_that_hide_a_name_are_refused() {
    let model = field("model");
    let file = field("file");
    let unread = "the name of a part cannot be read";
    let not_plain = "a part has a name that is not plain";
    for (head, what) in [
        (field("mod\\el"), not_plain),
        (field("%22model"), not_plain),
        (field("lora\\\"_path"), not_plain),
        (field("my field"), not_plain),
        (r#"Content-Disposition: form-data; x="\""; name="model""#.to_owned(), unread),
        (format!(r#"{file}; filename="C:\"; x=y"#), unread),
        (format!(r#"{file}; filename="a\\"; x="y""#), unread),
        (format!(r#"{file}; filename="a\" name=\"model""#), unread),
        (format!("{file}; nickname=model"), unread),
        (format!("{model}\r\nContent-Transfer-Encoding: 7bit; x=y"), "a part is in a transfer"),
        (format!("{model}\r\nContent-Transfer-Encoding:"), "a part is in a transfer"),
        (format!("{model}\r\nContent-Type: text/plain; charset=utf-16"), "`model` is not UTF-8"),
    ] {
        let text = body(&[(&head, "\u{e9}")]);
        assert!(refused(&text).starts_with(what), "{text:?}: {}", refused(&text));
    }
    for (text, what) in [
        (format!("\n{}", body(&[])), "it does not begin with its boundary"),
        (format!(" \r\n{}", body(&[])), "it does not begin with its boundary"),
        (body(&[]) + "\r\n--b--", "a boundary is not alone on its line"),
    ] {
        assert!(refused(&text).starts_with(what), "{text:?}: {}", refused(&text));
    }
}

fn boundary_of(fields: &str) -> Result<Option<Vec<u8>>, ScanError> {
    let text = format!("POST /v1/audio/x HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let mut head = RequestHead::default();
    let parsed = parse_request(text.as_bytes(), &HeadLimits::default(), &mut head);
    assert_eq!(parsed, Ok(Progress::Complete), "{fields}");
    form_type(&head, text.as_bytes()).map(|found| found.map(|form| form.boundary.to_vec()))
}

#[test]
fn the_boundary_is_that_of_the_one_content_type() {
    for (fields, expected) in [
        ("", None),
        ("content-type: application/json\r\n", None),
        ("content-type: text/plain; charset=utf-8\r\n", None),
        ("Content-Type: multipart/form-data; boundary=x-1\r\n", Some("x-1")),
        ("content-type: Multipart/Form-Data ; Boundary=\"x:1\"\r\n", Some("x:1")),
        ("content-type: multipart/form-data;charset=UTF-8;boundary=x\r\n", Some("x")),
        ("content-type: multipart/form-data; boundary=x; charset=\"utf-8\"\r\n", Some("x")),
        ("content-type: multipart/form-data; boundary=x; charset=ISO-8859-1\r\n", Some("x")),
        ("content-type: multipart/form-data; type=text; boundary=\"x\";\r\n", Some("x")),
        ("content-type: multipart/form-data; boundary=*****\r\n", Some("*****")),
    ] {
        let found = boundary_of(fields).unwrap();
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{fields}");
    }
    let form = "content-type: multipart/form-data; boundary=x\r\n";
    for wrong in [
        format!("{form}{form}"),
        format!("content-type: application/json\r\n{form}"),
        format!("{form}content-type: application/x-www-form-urlencoded\r\n"),
        form.replace("=x", "=x; boundary=y"),
        form.replace("=x", "=x; boundary*=utf-8''y"),
        // Names of parts would be read as UTF-7.
        form.replace("=x", "=x; charset=utf-7"),
        form.replace("=x", "=x; charset=utf-8; charset=utf-7"),
        form.replace("=x", "=x; charset*=utf-8''utf-7"),
        form.replace("=x", "=x; charset=UTF-16"),
        form.replace("=x", "=x; boundary*0=y"),
        form.replace("=x", "=x; a=\"boundary=y\""),
        form.replace("=x", "=x; a=\"; b=c\""),
        form.replace("boundary", "a=\"\\\"\"; boundary"),
        form.replace("=x", "=\"x\\\"y\""),
        form.replace("=x", "="),
        form.replace("=x", "=\"x 1\""),
        form.replace("; boundary=x", ""),
        form.replace("=x", "=\"x"),
        form.replace("form-data", "mixed"),
        form.replace("multipart", "application/json, multipart"),
        "content-type: application/x-www-form-urlencoded\r\n".to_owned(),
    ] {
        assert!(matches!(boundary_of(&wrong), Err(ScanError::Form { .. })), "{wrong}");
    }
}

/// Forms as clients write them: what stands behind the type, and the lines of the heads of a text
/// and of a file. Of clients' sources and documentation. starlette 1.10 with python-multipart
/// 0.0.34, which vLLM reads forms with, takes each.
const CLIENT_FORMS: &str = include_str!("../../../../tests/data/forms/clients.txt");

/// Issue 35, F3: seven of sixteen clients' forms were a 400.
#[test]
fn the_forms_of_clients_are_read() {
    let clients: Vec<&str> = CLIENT_FORMS.split("\n\n").collect();
    assert!(clients.len() >= 20, "they are read");
    for client in clients {
        let part = |key: &str| {
            let lines = client.lines().filter_map(|line| line.strip_prefix(key));
            lines.collect::<Vec<_>>().join("\r\n")
        };
        let fields = format!("content-type: multipart/form-data{}\r\n", part("type"));
        let message = format!("POST /v1/audio/x HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        parse_request(message.as_bytes(), &HeadLimits::default(), &mut head).unwrap();
        let kind = form_type(&head, message.as_bytes()).unwrap().unwrap();
        let text = part("text ");
        let file = part("file ");
        for (preamble, epilogue) in [("", ""), ("\r\n", "\r\n"), ("\r\n\r\n", " \t\r\n")] {
            let text = (&*text, "whisper");
            let file = (&*file, "RIFF");
            for parts in [[text, file], [file, text]] {
                let form = [preamble, &body(&parts), epilogue].concat();
                let mut request = ApiRequest::default();
                let scanned = scan_form(form.as_bytes(), kind, Endpoint::Other, &mut request);
                assert_eq!((scanned, &*request.model), (Ok(()), "whisper"), "{client}");
                assert_eq!(request.media_count, 1, "{client}");
            }
        }
    }
}

#[test]
fn a_model_is_read_in_another_charset_only_as_ascii() {
    let latin = FormType { is_utf8: false, ..TYPE };
    for (name, is_read) in [("whisper", true), ("\u{e9}", false)] {
        let text = body(&[(&field("model"), name)]);
        let mut request = ApiRequest::default();
        let in_latin = scan_form(text.as_bytes(), latin, Endpoint::Other, &mut request);
        assert_eq!(in_latin.is_ok(), is_read, "{name}");
        assert!(scanned(text.as_bytes()).is_ok(), "{name}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_taken(body: Vec<u8>, boundary in "[a-z]{1,3}") {
        let kind = FormType { boundary: boundary.as_bytes(), is_utf8: true };
        let _ = scan_form(&body, kind, Endpoint::Other, &mut ApiRequest::default());
    }

    #[test]
    fn contents_are_found_whatever_they_hold(
        model in "[a-z][a-z/.-]{0,20}",
        file in proptest::collection::vec(any::<u8>(), 0..200),
        place in 0_usize..2,
    ) {
        prop_assume!(!file.windows(5).any(|window| window == b"\r\n--b"));
        let head = field("model");
        let model_part = format!("--b\r\n{head}\r\n\r\n{model}\r\n").into_bytes();
        let file_part = [format!("--b\r\n{FILE}\r\n\r\n").as_bytes(), &file, b"\r\n"].concat();
        let mut parts = vec![file_part];
        parts.insert(place, model_part);
        let request = scanned(&[parts.concat(), b"--b--\r\n".to_vec()].concat()).unwrap();
        prop_assert_eq!(request.model, model);
        prop_assert_eq!(request.media_bytes, file.len() as u64);
    }
}
