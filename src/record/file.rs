//! Recordings on disk: the codec over files, with a single chunk in memory. Blocking, so only for
//! commands, never for a router's threads.

use super::chunk::{ChunkWriter, DecodeStep, RecordingDecoder};
use super::format::{RecordingEnd, RecordingError, RecordingHeader};
use super::message::RecordedMessage;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Most bytes of a read.
const READ_BYTES: u64 = 256 * 1024;

/// Writes a recording to a file.
#[derive(Debug)]
pub struct FileWriter {
    file: File,
    chunks: Option<ChunkWriter>,
    out: Vec<u8>,
    written_bytes: u64,
}

impl FileWriter {
    /// Creates the file and writes the header. Never changes an existing file.
    ///
    /// # Errors
    /// When the file exists or cannot be written, or the header is too large.
    pub fn create(path: &Path, header: &RecordingHeader) -> io::Result<Self> {
        let mut out = Vec::new();
        header.encode(&mut out).map_err(invalid)?;
        // Hashes of prompts and names of models are for the user alone.
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        let chunks = Some(ChunkWriter::new(header.sources.len()));
        let mut writer = Self { file, chunks, out, written_bytes: 0 };
        // An empty file would be in the way of the next try.
        writer.write_out().inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(writer)
    }

    /// Adds a message, and writes full chunks to the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn push(&mut self, message: &RecordedMessage<'_>) -> io::Result<()> {
        if let Some(chunks) = &mut self.chunks {
            chunks.push(message, &mut self.out).map_err(invalid)?;
        }
        self.write_out()
    }

    /// Writes all added messages to the file, so that a crash of the process does not lose them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(chunks) = &mut self.chunks {
            chunks.close_chunk(&mut self.out);
        }
        self.write_out()
    }

    /// Writes the end and returns the size of the file in bytes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self) -> io::Result<u64> {
        if let Some(chunks) = self.chunks.take() {
            chunks.finish(&mut self.out);
        }
        self.write_out()?;
        self.file.sync_all()?;
        Ok(self.written_bytes)
    }

    fn write_out(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.file.write_all(&self.out)?;
            self.written_bytes += self.out.len() as u64;
            self.out.clear();
        }
        Ok(())
    }
}

/// Reads a recording chunk by chunk.
#[derive(Debug)]
pub struct FileReader {
    file: File,
    decoder: RecordingDecoder,
    header: RecordingHeader,
    bytes: Vec<u8>,
    start: usize,
}

impl FileReader {
    /// Opens a recording and reads its header.
    ///
    /// # Errors
    /// When the file cannot be read, or is no recording.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let decoder = RecordingDecoder::new();
        let header = RecordingHeader { started_unix_ns: 0, sources: Vec::new() };
        let mut reader = Self { file, decoder, header, bytes: Vec::new(), start: 0 };
        match reader.step()? {
            Some(DecodeStep::Header { .. }) => {}
            _ => return Err(invalid(RecordingError::HeaderCut)),
        }
        reader.header = reader.decoder.header().cloned().unwrap_or_else(|| reader.header.clone());
        Ok(reader)
    }

    /// The header of the recording.
    #[must_use]
    pub fn header(&self) -> &RecordingHeader {
        &self.header
    }

    /// Reads the next chunk into [`FileReader::messages`]. At the end of the recording, returns how
    /// the recording ends.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged here.
    pub fn next_chunk(&mut self) -> io::Result<Option<RecordingEnd>> {
        match self.step()? {
            Some(DecodeStep::End { .. }) => {
                // Bytes after the end are a fault, which the decoder finds.
                self.step()?;
                Ok(Some(RecordingEnd::Complete))
            }
            Some(_) => Ok(None),
            None => Ok(Some(RecordingEnd::Cut { at: self.decoder.offset() })),
        }
    }

    /// Messages of the last chunk.
    pub fn messages(&self) -> impl Iterator<Item = RecordedMessage<'_>> {
        self.decoder.messages()
    }

    /// The next part; `None` at the end of the file.
    fn step(&mut self) -> io::Result<Option<DecodeStep>> {
        loop {
            let bytes = self.bytes.get(self.start..).unwrap_or_default();
            let step = self.decoder.step(bytes).map_err(invalid)?;
            match step {
                DecodeStep::Header { used_bytes }
                | DecodeStep::Chunk { used_bytes }
                | DecodeStep::End { used_bytes } => {
                    self.start += used_bytes;
                    return Ok(Some(step));
                }
                DecodeStep::NeedMore { bytes } => {
                    if !self.fill(bytes)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Reads until there are `wanted` bytes, in steps, so that a claimed size does not reserve
    /// memory; false at the end of the file.
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        self.bytes.drain(..self.start);
        self.start = 0;
        while self.bytes.len() < wanted {
            let read = (&mut self.file).take(READ_BYTES).read_to_end(&mut self.bytes)?;
            if read == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Header and totals of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub header: RecordingHeader,
    /// Number of messages, without ends of connections.
    pub messages: u64,
    /// Number of recorded ends of connections.
    pub disconnects: u64,
    /// Bytes of all frames.
    pub frame_bytes: u64,
    /// From the start of the recording to its last message, in nanoseconds.
    pub duration_ns: u64,
    pub end: RecordingEnd,
}

/// Reads and checks a whole recording, so that a command does not use half of a damaged recording.
///
/// # Errors
/// When the file cannot be read, is no recording, or is damaged anywhere.
pub fn inspect(path: &Path) -> io::Result<Summary> {
    let mut reader = FileReader::open(path)?;
    let mut summary = Summary {
        header: reader.header().clone(),
        messages: 0,
        disconnects: 0,
        frame_bytes: 0,
        duration_ns: 0,
        end: RecordingEnd::Complete,
    };
    loop {
        let end = reader.next_chunk()?;
        for message in reader.messages() {
            summary.duration_ns = message.at_ns;
            if message.is_end_of_connection() {
                summary.disconnects += 1;
                continue;
            }
            summary.messages += 1;
            let bytes: usize = message.frames().iter().map(|frame| frame.len()).sum();
            summary.frame_bytes += bytes as u64;
        }
        if let Some(end) = end {
            return Ok(Summary { end, ..summary });
        }
    }
}

fn invalid(error: RecordingError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
