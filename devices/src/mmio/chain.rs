//! A descriptor chain, collected and judged: what the driver lets the device
//! read, what it lets it write, and whether the chain is well-formed.
//!
//! A chain is collected in full before anything is done with it, at most as
//! many descriptors as the queue has (virtio 1.2, section 2.7.5.3.1), so that
//! a loop ends and is seen as one.

use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryError, Permissions};

/// A piece of guest memory named by one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First guest-physical address.
    pub address: GuestAddress,
    /// Length; never 0 here.
    pub len_bytes: u32,
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainDefect {
    /// It loops, or goes on outside of the descriptor table or guest memory.
    #[error("descriptor chain does not end within the queue's size")]
    Unterminated,
    /// A device-readable descriptor follows a device-writable one (virtio 1.2,
    /// section 2.7.4.2 forbids it).
    #[error("device-readable descriptor after a device-writable one")]
    ReadableAfterWritable,
}

/// One chain of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    readable: Vec<Segment>,
    writable: Vec<Segment>,
    defect: Option<ChainDefect>,
}

impl Chain {
    /// Collects up to `max_descriptors` descriptors of a chain.
    pub(super) fn collect<M: GuestMemory>(
        descriptors: DescriptorChain<&M>,
        max_descriptors: u16,
    ) -> Self {
        let mut chain = Self {
            readable: Vec::new(),
            writable: Vec::new(),
            defect: None,
        };
        // The iterator also ends when a chain is broken; then the last
        // descriptor it gave, if any, promises another one.
        let mut ended = false;
        for descriptor in descriptors.take(usize::from(max_descriptors)) {
            ended = !descriptor.has_next();
            chain.push(descriptor);
        }
        if !ended {
            chain.defect = Some(ChainDefect::Unterminated);
        }
        chain
    }

    fn push(&mut self, descriptor: Descriptor) {
        let writable = descriptor.is_write_only();
        if !writable && !self.writable.is_empty() {
            self.defect
                .get_or_insert(ChainDefect::ReadableAfterWritable);
        }
        if descriptor.len() == 0 {
            return;
        }
        let segment = Segment {
            address: descriptor.addr(),
            len_bytes: descriptor.len(),
        };
        if writable {
            self.writable.push(segment);
        } else {
            self.readable.push(segment);
        }
    }

    /// What is wrong with the chain's form, if anything.
    #[must_use]
    pub fn defect(&self) -> Option<ChainDefect> {
        self.defect
    }

    /// Bytes the device may read.
    #[must_use]
    pub fn readable_bytes(&self) -> u64 {
        total_bytes(&self.readable)
    }

    /// Bytes the device may write.
    #[must_use]
    pub fn writable_bytes(&self) -> u64 {
        total_bytes(&self.writable)
    }

    /// Fills `data` from the start of the readable part, however it is split.
    ///
    /// # Errors
    /// If the readable part is shorter, or not within guest memory.
    pub fn read<M: GuestMemory>(&self, mem: &M, data: &mut [u8]) -> Result<(), GuestMemoryError> {
        let mut done = 0;
        for (address, range) in pieces(&self.readable, data.len()) {
            done = range.end;
            mem.read_slice(&mut data[range], address)?;
        }
        complete(done, data.len())
    }

    /// Whether the first `len_bytes` of the writable part exist and lie within
    /// guest memory.
    #[must_use]
    pub fn can_write<M: GuestMemory>(&self, mem: &M, len_bytes: usize) -> bool {
        self.writable_bytes() >= len_bytes as u64
            && pieces(&self.writable, len_bytes)
                .all(|(address, range)| mem.check_range(address, range.len(), Permissions::Write))
    }

    /// Writes `data` at the start of the writable part, however it is split.
    ///
    /// # Errors
    /// If the writable part is shorter, or not within guest memory; some of
    /// `data` may be written then.
    pub(super) fn write<M: GuestMemory>(
        &self,
        mem: &M,
        data: &[u8],
    ) -> Result<(), GuestMemoryError> {
        let mut done = 0;
        for (address, range) in pieces(&self.writable, data.len()) {
            done = range.end;
            mem.write_slice(&data[range], address)?;
        }
        complete(done, data.len())
    }
}

fn total_bytes(segments: &[Segment]) -> u64 {
    segments
        .iter()
        .fold(0, |sum, s| sum.saturating_add(u64::from(s.len_bytes)))
}

/// Maps the first `len` bytes of `segments` to ranges of a buffer.
fn pieces(
    segments: &[Segment],
    len: usize,
) -> impl Iterator<Item = (GuestAddress, std::ops::Range<usize>)> {
    let mut start = 0_usize;
    segments.iter().map_while(move |segment| {
        let room = len.checked_sub(start).filter(|room| *room > 0)?;
        let take = usize::try_from(segment.len_bytes).map_or(room, |n| n.min(room));
        let range = start..start + take;
        start = range.end;
        Some((segment.address, range))
    })
}

fn complete(done: usize, expected: usize) -> Result<(), GuestMemoryError> {
    if done == expected {
        Ok(())
    } else {
        Err(GuestMemoryError::PartialBuffer {
            expected,
            completed: done,
        })
    }
}
