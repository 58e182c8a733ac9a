//! Decompression by file name: the formats Debian uses for packages and
//! kernel modules.

use std::io::{self, Read};

use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

/// Longest decompressed kernel module that is accepted, in bytes.
const MODULE_LIMIT_BYTES: u64 = 256 << 20;

/// A reader of the decompressed bytes of `input`, whose file name ends in
/// `.xz`, `.zst`, `.gz`, or in something else when it is not compressed.
///
/// # Errors
/// When the head of a zstd frame is wrong; the other formats say so when they
/// are read.
pub(crate) fn decoder<'a, R: Read + 'a>(
    file_name: &str,
    input: R,
) -> io::Result<Box<dyn Read + 'a>> {
    let extension = file_name.rsplit_once('.').map_or("", |(_, end)| end);
    Ok(match extension {
        "xz" => Box::new(XzReader::new(input, true)),
        "zst" => Box::new(StreamingDecoder::new(input).map_err(io::Error::other)?),
        "gz" => Box::new(flate2::read::GzDecoder::new(input)),
        _ => Box::new(input),
    })
}

/// The whole decompressed content of a file named `file_name`.
///
/// # Errors
/// When the data is damaged, or longer than any kernel module is.
pub(crate) fn decompress(file_name: &str, data: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    decoder(file_name, data)?
        .take(MODULE_LIMIT_BYTES + 1)
        .read_to_end(&mut out)?;
    if out.len() as u64 > MODULE_LIMIT_BYTES {
        return Err(io::Error::other(format!(
            "{file_name} decompresses to more than {MODULE_LIMIT_BYTES} bytes"
        )));
    }
    Ok(out)
}
