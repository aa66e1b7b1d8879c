//! Any bytes as a form. Must hold: an accepted form has the model of its one part of that name,
//! found again by splitting at the boundary, and under another name the rest stays.

use forebay_prompt::parse::{ApiRequest, Endpoint, scan_form};

const BOUNDARY: &[u8] = b"b";

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let mut request = ApiRequest::default();
    if scan_form(data, BOUNDARY, Endpoint::Other, &mut request).is_err() {
        return;
    }
    let models = models(data);
    assert_eq!(request.has_model, !models.is_empty());
    assert!(models.len() <= 1, "two models");
    assert!(models.iter().all(|model| *model == request.model.as_bytes()));
    assert!(request.data_bytes <= data.len() as u64);
    if request.has_model {
        renamed(data, request);
    }
}

/// What stands in the parts that are named `model` in any way.
fn models(data: &[u8]) -> Vec<&[u8]> {
    let mut models = Vec::new();
    let mut rest = &data[3..];
    while let Some(end) = memchr::memmem::find(rest, b"\r\n--b") {
        let part = &rest[..end];
        let blank = memchr::memmem::find(part, b"\r\n\r\n").expect("a part has a head");
        let head = String::from_utf8_lossy(&part[..blank]);
        let is_name = |line: &&str| line.to_ascii_lowercase().starts_with("content-disposition:");
        let mut words = head.split("\r\n").filter(is_name).flat_map(|line| line.split(';'));
        let name = |word: &str| {
            let (key, value) = word.split_once('=')?;
            let is_it = key.trim().eq_ignore_ascii_case("name");
            is_it.then(|| value.trim().trim_matches('"') == "model")
        };
        if words.any(|word| name(word) == Some(true)) {
            models.push(&part[blank + 4..]);
        }
        rest = &rest[end + 5..];
    }
    models
}

fn renamed(data: &[u8], mut request: ApiRequest) {
    let (mut body, mut found) = (data.to_vec(), ApiRequest::default());
    request.rename("a-longer-name");
    request.write_model(&mut body, 0);
    assert_eq!(scan_form(&body, BOUNDARY, Endpoint::Other, &mut found), Ok(()));
    assert_eq!((&found.model, &found.model_span), (&request.model, &request.model_span));
    assert_eq!((&found.texts, found.data_bytes), (&request.texts, request.data_bytes));
}
