//! A descriptor chain, collected and judged: what the driver lets the device
//! read, what it lets it write, and whether the chain is well-formed.
//!
//! A chain is collected in full before anything is done with it, at most as
//! many descriptors as the queue has (virtio 1.2, section 2.7.5.3.1), so that
//! a loop ends and is seen as one. The walk is this module's own: virtio-queue's
//! follows tables of indirect descriptors whether they are offered or not.

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, GuestMemoryError, Permissions};

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
    /// It is longer than a chain may be (virtio 1.2, section 2.7.5.2).
    #[error("descriptor chain is longer than 2^32 bytes")]
    TooLong,
    /// It refers to a table of descriptors, which no device here offers (virtio
    /// 1.2, section 2.7.5.3.1: not unless INDIRECT_DESC is negotiated). The
    /// table is not looked at.
    #[error("descriptor refers to an indirect table, which was not negotiated")]
    Indirect,
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
    /// Collects the chain at `head` of a `table` of `size` descriptors, up to
    /// its end or its first defect.
    pub(super) fn collect<M: GuestMemory>(
        mem: &M,
        table: GuestAddress,
        size: u16,
        head: u16,
    ) -> Self {
        let mut chain = Self {
            readable: Vec::new(),
            writable: Vec::new(),
            defect: None,
        };
        // What ends the chain early comes before what is wrong within it.
        if let Err(defect) = chain.walk(mem, table, size, head) {
            chain.defect = Some(defect);
        }
        chain
    }

    fn walk<M: GuestMemory>(
        &mut self,
        mem: &M,
        table: GuestAddress,
        size: u16,
        head: u16,
    ) -> Result<(), ChainDefect> {
        let mut index = head;
        let mut bytes = 0_u32;
        for _ in 0..size {
            let descriptor = (index < size)
                .then(|| read_descriptor(mem, table, index))
                .flatten()
                .ok_or(ChainDefect::Unterminated)?;
            if descriptor.refers_to_indirect_table() {
                return Err(ChainDefect::Indirect);
            }
            bytes = bytes
                .checked_add(descriptor.len())
                .ok_or(ChainDefect::TooLong)?;
            self.push(descriptor);
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
        Err(ChainDefect::Unterminated)
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

fn read_descriptor<M: GuestMemory>(mem: &M, table: GuestAddress, index: u16) -> Option<Descriptor> {
    let offset = u64::from(index).checked_mul(size_of::<Descriptor>() as u64)?;
    mem.read_obj(table.checked_add(offset)?).ok()
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
