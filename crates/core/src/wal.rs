//! Whether a SQLite write-ahead log has lost what was in it.
//!
//! SQLite reads its log up to the first frame that does not fit and takes the rest for what a power failure
//! left of a commit that was never finished. A bit that flips in the middle of it looks the same to it:
//! commits that were finished, and told of, are forgotten without a word. The two can be told apart:
//!
//! - every frame carries the salts of its log and a checksum over itself and all frames before it;
//! - a frame that goes on from the checksum of a commit proves that this commit was finished, for nothing is
//!   written after one that was not;
//! - of what a power failure leaves, nothing is a single bit away from being right.
//!
//! So a log is damaged where a frame does not fit and is one bit away from fitting, or is followed by a
//! commit that something was built upon. What an older log left behind in the file has other salts. What is
//! left of a transaction that was undone, or whose sync failed, has nothing built upon it. Of the last
//! commit, more than one altered bit cannot be told from a write that was cut off.
//!
//! The format is SQLite's: <https://www.sqlite.org/fileformat2.html#walformat>.

use std::fmt;

/// Where a log was altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where the first part begins that does not fit, in bytes.
    pub at: u64,
    /// How long the log is.
    pub of: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { at, of } = self;
        write!(
            f,
            "its write-ahead log was altered at byte {at} of {of}, and what was written after that would be forgotten"
        )
    }
}

/// Looks through a log of this length; `read` fills the bytes from a place on.
pub fn damage<E>(
    length: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Option<Damage>, E> {
    let mut header = [0; HEADER];
    // Without a single frame there is nothing to lose.
    if length < (HEADER + FRAME + PAGES[0]) as u64 {
        return Ok(None);
    }
    read(0, &mut header)?;
    if let Some(log) = WalLog::of(&header) {
        let broken = log.walk(length, &mut read)?;
        return Ok(broken.map(|at| Damage { at, of: length }));
    }
    if is_header_with_a_flipped_bit(&header) {
        return Ok(Some(Damage { at: 0, of: length }));
    }
    // Whatever it was that it said, the frames are there or not.
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for page in PAGES {
            let log = WalLog { order, page, salts: None, sum: word_pair(&header[24..]) };
            if log.walk(length, &mut read)?.is_some() {
                return Ok(Some(Damage { at: 0, of: length }));
            }
        }
    }
    Ok(None)
}

const HEADER: usize = 32;
/// What stands before the page in a frame.
const FRAME: usize = 24;
/// The sizes that a page may have.
const PAGES: [usize; 8] = [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536];
/// Its last bit says in which order the checksums take the bytes.
const MAGIC: u32 = 0x377f_0682;

type Sum = (u32, u32);

/// How the bytes of a word are taken for a checksum. Everything else is big-endian.
#[derive(Clone, Copy)]
enum ByteOrder {
    Little,
    Big,
}

struct WalLog {
    order: ByteOrder,
    page: usize,
    /// `None`: they cannot be told any more.
    salts: Option<Sum>,
    /// What the first frame's checksum goes on from.
    sum: Sum,
}

impl WalLog {
    /// `None`: SQLite would not believe this header, and take the log for empty.
    fn of(header: &[u8; HEADER]) -> Option<WalLog> {
        let order = match word(header) ^ MAGIC {
            0 => ByteOrder::Little,
            1 => ByteOrder::Big,
            _ => return None,
        };
        let page = word(&header[8..]) as usize;
        let sum = word_pair(&header[24..]);
        let is_sound = PAGES.contains(&page) && checksum(order, (0, 0), &header[..24]) == sum;
        is_sound.then(|| WalLog { order, page, salts: Some(word_pair(&header[16..])), sum })
    }

    /// Where it is damaged.
    fn walk<E>(
        &self,
        length: u64,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let mut bytes = vec![0; FRAME + self.page];
        let mut before = Frame { is_commit: false, salts: self.salts.unwrap_or_default(), sum: self.sum };
        let mut broken = match self.salts {
            Some(_) => None,
            None => Some(0),
        };
        let mut at = HEADER as u64;
        while at + bytes.len() as u64 <= length {
            read(at, &mut bytes)?;
            let frame = Frame::of(&bytes);
            // Where the salts are not known, those of the frame before must do.
            let salts = self.salts.unwrap_or(before.salts);
            let sum = self.sum_of(before.sum, &bytes);
            let fits = frame.salts == salts && frame.sum == sum && word(&bytes) != 0;
            match broken {
                None if fits => {}
                None if self.is_one_bit_away(&frame, salts, sum, &bytes) => return Ok(Some(at)),
                None => broken = Some(at),
                Some(broken) if fits && before.is_commit => return Ok(Some(broken)),
                Some(_) => {}
            }
            before = frame;
            at += bytes.len() as u64;
        }
        Ok(None)
    }

    /// The checksum of a frame: over its page's number, whether it is a commit, and the page.
    fn sum_of(&self, before: Sum, frame: &[u8]) -> Sum {
        let (head, page) = (&frame[..8], &frame[FRAME..]);
        checksum(self.order, checksum(self.order, before, head), page)
    }

    fn is_one_bit_away(&self, frame: &Frame, salts: Sum, sum: Sum, bytes: &[u8]) -> bool {
        if frame.salts != salts {
            return bits_between(frame.salts, salts) == 1 && frame.sum == sum;
        }
        let words = [&bytes[..8], &bytes[FRAME..]].concat();
        bits_between(frame.sum, sum) == 1 || is_explained_by_one_bit(self.order, &words, sum, frame.sum)
    }
}

struct Frame {
    is_commit: bool,
    salts: Sum,
    sum: Sum,
}

impl Frame {
    fn of(bytes: &[u8]) -> Frame {
        Frame {
            is_commit: word(&bytes[4..]) != 0,
            salts: word_pair(&bytes[8..]),
            sum: word_pair(&bytes[16..]),
        }
    }
}

fn is_header_with_a_flipped_bit(header: &[u8; HEADER]) -> bool {
    let (words, said) = (&header[..24], word_pair(&header[24..]));
    [ByteOrder::Little, ByteOrder::Big].into_iter().any(|order| {
        let sum = checksum(order, (0, 0), words);
        let is_magic = word(header) & !1 == MAGIC;
        is_magic && bits_between(sum, said) == 1 || is_explained_by_one_bit(order, words, sum, said)
    })
}

fn checksum(order: ByteOrder, before: Sum, bytes: &[u8]) -> Sum {
    bytes.chunks_exact(8).fold(before, |(first, second), pair| {
        let (even, odd) = ordered_pair(order, pair);
        let first = first.wrapping_add(even).wrapping_add(second);
        (first, second.wrapping_add(odd).wrapping_add(first))
    })
}

/// Whether the checksum would be what it is said to be if one bit of these bytes were another one.
fn is_explained_by_one_bit(order: ByteOrder, bytes: &[u8], sum: Sum, said: Sum) -> bool {
    let missing = (said.0.wrapping_sub(sum.0), said.1.wrapping_sub(sum.1));
    let explains = |word: u32, weight: Sum| {
        (0..u32::BITS).any(|bit| {
            let change = (word ^ (1 << bit)).wrapping_sub(word);
            (change.wrapping_mul(weight.0), change.wrapping_mul(weight.1)) == missing
        })
    };
    // How much of a change in a word arrives in the two sums: the sums are added to one another once for each
    // pair that follows.
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

fn bits_between(one: Sum, other: Sum) -> u32 {
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
