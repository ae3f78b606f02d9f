//! Detects a write-ahead log that was altered, before SQLite reads it.
//!
//! SQLite replays its log up to the first invalid frame and takes the rest for an unfinished commit, as a
//! power failure leaves one. A flipped bit in the middle looks the same to SQLite: finished commits are lost
//! without an error. Three properties of the format distinguish the two cases:
//!
//! - Each frame holds the salts of its log, and a checksum over itself and all frames before it.
//! - A frame whose checksum continues that of a commit proves that the commit was finished, because SQLite
//!   writes nothing after an unfinished one.
//! - A power failure never leaves a frame that is a single bit away from a valid one.
//!
//! So a log is damaged at an invalid frame that is one bit away from a valid one, or that is followed by a
//! finished commit. Frames of an older log in the same file have other salts and do not count. Neither does
//! the rest of a transaction that was rolled back or whose sync failed, because nothing continues it.
//!
//! Limit: more than one altered bit in the last commit cannot be distinguished from a write that was cut off.
//!
//! The format: <https://www.sqlite.org/fileformat2.html#walformat>.

#[cfg(test)]
mod tests;

use crate::files::beside;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where a log was altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its write-ahead log was altered at byte {offset} of {length}, and what was written after that would be forgotten"
)]
pub struct WalDamage {
    /// Offset of the first invalid frame.
    offset: u64,
    /// Length of the log.
    length: u64,
}

/// Checks the log of a database. `None` also for a log that cannot be read: SQLite reports that.
pub fn wal_damage(database: &Path) -> Option<WalDamage> {
    let log = beside(database, "-wal");
    let find = || -> io::Result<Option<WalDamage>> {
        let file = File::open(&log)?;
        find_damage(file.metadata()?.len(), |offset, bytes| file.read_exact_at(bytes, offset))
    };
    let first = find().ok().flatten()?;
    // A program that uses the database may have been writing this frame, and has finished it by now.
    find().ok().flatten().filter(|second| second.offset == first.offset)
}

/// `read` fills the buffer with the bytes of the log from an offset on.
fn find_damage<E>(
    length: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Option<WalDamage>, E> {
    // A log without a frame holds no commit.
    if length < (HEADER + FRAME + PAGE_SIZES[0]) as u64 {
        return Ok(None);
    }
    let mut header = [0; HEADER];
    read(0, &mut header)?;
    if let Some(log) = WalLog::parse(&header) {
        let offset = log.walk(length, &mut read)?;
        return Ok(offset.map(|offset| WalDamage { offset, length }));
    }
    let header_damage = Some(WalDamage { offset: 0, length });
    if is_header_with_a_flipped_bit(&header) {
        return Ok(header_damage);
    }
    // The header is lost. Finished commits behind it are recognised without it.
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for page_size in PAGE_SIZES {
            let log = WalLog { order, page_size, salts: None, sum: word_pair(&header[24..]) };
            if log.walk(length, &mut read)?.is_some() {
                return Ok(header_damage);
            }
        }
    }
    Ok(None)
}

const HEADER: usize = 32;
/// Length of a frame's header, which the page follows.
const FRAME: usize = 24;
const PAGE_SIZES: [usize; 8] = [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536];
/// The last bit of the first word is the byte order of the checksums.
const MAGIC: u32 = 0x377f_0682;

type Sum = (u32, u32);

/// Byte order of the words in a checksum. All other fields are big-endian.
#[derive(Clone, Copy)]
enum ByteOrder {
    Little,
    Big,
}

struct WalLog {
    order: ByteOrder,
    page_size: usize,
    /// `None`: the header that holds them is lost.
    salts: Option<Sum>,
    /// The checksum that the first frame continues.
    sum: Sum,
}

impl WalLog {
    /// `None`: SQLite would reject this header and take the log for empty.
    fn parse(header: &[u8; HEADER]) -> Option<WalLog> {
        let order = match word(header) ^ MAGIC {
            0 => ByteOrder::Little,
            1 => ByteOrder::Big,
            _ => return None,
        };
        let page_size = word(&header[8..]) as usize;
        let sum = word_pair(&header[24..]);
        let is_valid = PAGE_SIZES.contains(&page_size) && checksum(order, (0, 0), &header[..24]) == sum;
        is_valid.then(|| WalLog { order, page_size, salts: Some(word_pair(&header[16..])), sum })
    }

    /// The offset of the damage.
    fn walk<E>(
        &self,
        length: u64,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let mut bytes = vec![0; FRAME + self.page_size];
        let mut previous = Frame { is_commit: false, salts: self.salts.unwrap_or_default(), sum: self.sum };
        let mut invalid = match self.salts {
            Some(_) => None,
            None => Some(0),
        };
        let mut offset = HEADER as u64;
        while offset + bytes.len() as u64 <= length {
            read(offset, &mut bytes)?;
            let frame = Frame::parse(&bytes);
            // Without the header, the previous frame has the salts.
            let salts = self.salts.unwrap_or(previous.salts);
            let sum = self.frame_sum(previous.sum, &bytes);
            let is_valid = frame.salts == salts && frame.sum == sum && word(&bytes) != 0;
            match invalid {
                None if is_valid => {}
                None if self.is_one_bit_away(&frame, salts, sum, &bytes) => return Ok(Some(offset)),
                None => invalid = Some(offset),
                Some(invalid) if is_valid && previous.is_commit => return Ok(Some(invalid)),
                Some(_) => {}
            }
            previous = frame;
            offset += bytes.len() as u64;
        }
        Ok(None)
    }

    /// Covers the page number, the commit field and the page.
    fn frame_sum(&self, previous: Sum, frame: &[u8]) -> Sum {
        let (head, page) = (&frame[..8], &frame[FRAME..]);
        checksum(self.order, checksum(self.order, previous, head), page)
    }

    fn is_one_bit_away(&self, frame: &Frame, salts: Sum, sum: Sum, bytes: &[u8]) -> bool {
        if frame.salts != salts {
            return differing_bits(frame.salts, salts) == 1 && frame.sum == sum;
        }
        let words = [&bytes[..8], &bytes[FRAME..]].concat();
        differing_bits(frame.sum, sum) == 1 || is_explained_by_one_bit(self.order, &words, sum, frame.sum)
    }
}

struct Frame {
    is_commit: bool,
    salts: Sum,
    sum: Sum,
}

impl Frame {
    fn parse(bytes: &[u8]) -> Frame {
        Frame {
            is_commit: word(&bytes[4..]) != 0,
            salts: word_pair(&bytes[8..]),
            sum: word_pair(&bytes[16..]),
        }
    }
}

fn is_header_with_a_flipped_bit(header: &[u8; HEADER]) -> bool {
    let (words, stored) = (&header[..24], word_pair(&header[24..]));
    [ByteOrder::Little, ByteOrder::Big].into_iter().any(|order| {
        let sum = checksum(order, (0, 0), words);
        let is_magic = word(header) & !1 == MAGIC;
        is_magic && differing_bits(sum, stored) == 1 || is_explained_by_one_bit(order, words, sum, stored)
    })
}

fn checksum(order: ByteOrder, previous: Sum, bytes: &[u8]) -> Sum {
    bytes.chunks_exact(8).fold(previous, |(first, second), pair| {
        let (even, odd) = ordered_pair(order, pair);
        let first = first.wrapping_add(even).wrapping_add(second);
        (first, second.wrapping_add(odd).wrapping_add(first))
    })
}

/// Whether flipping one bit of these bytes would turn their checksum `sum` into the `stored` one.
fn is_explained_by_one_bit(order: ByteOrder, bytes: &[u8], sum: Sum, stored: Sum) -> bool {
    let missing = (stored.0.wrapping_sub(sum.0), stored.1.wrapping_sub(sum.1));
    let explains = |word: u32, weight: Sum| {
        (0..u32::BITS).any(|bit| {
            let change = (word ^ (1 << bit)).wrapping_sub(word);
            (change.wrapping_mul(weight.0), change.wrapping_mul(weight.1)) == missing
        })
    };
    // The factors by which a change of a word changes the two sums. Each pair that follows the word adds the
    // sums to one another once more.
    let (mut even, mut odd) = ((1, 1), (0, 1));
    let carry = |(first, second): Sum| {
        let first = first.wrapping_add(second);
        (first, second.wrapping_add(first))
    };
    bytes.rchunks_exact(8).any(|pair| {
        let words = ordered_pair(order, pair);
        let found = explains(words.0, even) || explains(words.1, odd);
        (even, odd) = (carry(even), carry(odd));
        found
    })
}

fn differing_bits(one: Sum, other: Sum) -> u32 {
    (one.0 ^ other.0).count_ones() + (one.1 ^ other.1).count_ones()
}

fn ordered_pair(order: ByteOrder, bytes: &[u8]) -> Sum {
    let (first, second) = word_pair(bytes);
    match order {
        ByteOrder::Big => (first, second),
        ByteOrder::Little => (first.swap_bytes(), second.swap_bytes()),
    }
}

fn word_pair(bytes: &[u8]) -> Sum {
    (word(bytes), word(&bytes[4..]))
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
