//! Request bodies: the body is scanned ([`parse`]), its prompt becomes the bytes that the engine
//! sees ([`render`]). No I/O.

pub mod parse;
pub mod render;
