//! What a dry run prints: the layout that a configuration comes to.

use std::fmt;

use lmb_memory::{Layout, LmbIndex, PieceKind};
use serde::Serialize;

/// A layout for people (`Display`) and programs (JSON).
#[derive(Debug, Serialize)]
pub struct LayoutReport {
    lmb_size_bytes: u64,
    boot_bytes: u64,
    boot_lmbs: u64,
    boot_pieces: Vec<PieceReport>,
    window: Option<WindowReport>,
    hotplug: &'static str,
    slot_size_bytes: u64,
    guest_block_size_bytes: u64,
    host_pages: String,
    hole_start_address: u64,
    hole_end_address: u64,
    worst_case_mappings: u64,
    swiotlb_bytes: u64,
    notices: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PieceReport {
    kind: &'static str,
    start_address: u64,
    size_bytes: u64,
    first_lmb: u64,
    last_lmb: u64,
}

#[derive(Debug, Serialize)]
struct WindowReport {
    start_address: u64,
    size_bytes: u64,
    first_lmb: u64,
    lmbs: u64,
    slots: u64,
}

impl LayoutReport {
    /// The report of one layout.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        Self {
            lmb_size_bytes: layout.lmb_size.bytes().get(),
            boot_bytes: layout.boot_bytes.get(),
            boot_lmbs: layout.boot_lmbs.get(),
            boot_pieces: pieces(layout),
            window: layout.window.as_ref().map(|window| WindowReport {
                start_address: window.range.start().get(),
                size_bytes: window.range.len().get(),
                first_lmb: layout.boot_lmbs.get(),
                lmbs: window.lmbs.get(),
                slots: layout.window_slots(),
            }),
            hotplug: layout.hotplug.name(),
            slot_size_bytes: layout.slot_size.get(),
            guest_block_size_bytes: layout.guest_block.get(),
            host_pages: layout.page_size.to_string(),
            hole_start_address: layout.hole.start().get(),
            hole_end_address: layout.hole.end(),
            worst_case_mappings: layout.worst_case_mappings,
            swiotlb_bytes: layout.swiotlb_bytes.get(),
            notices: layout.notices.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The pieces with the LMBs that they hold parts of. Pieces are in the order
/// of their addresses, and LMBs fill them in that order.
fn pieces(layout: &Layout) -> Vec<PieceReport> {
    let lmb = layout.lmb_size.bytes().get();
    let mut filled = 0_u64;
    let mut reports = Vec::with_capacity(layout.boot.len());
    for piece in &layout.boot {
        let size_bytes = piece.range.len().get();
        let end = filled.saturating_add(size_bytes);
        reports.push(PieceReport {
            kind: match piece.kind {
                PieceKind::Low => "low",
                PieceKind::High => "high",
                PieceKind::Tail => "tail",
            },
            start_address: piece.range.start().get(),
            size_bytes,
            first_lmb: LmbIndex::new(filled / lmb).get(),
            last_lmb: LmbIndex::new(end.saturating_sub(1) / lmb).get(),
        });
        filled = end;
    }
    reports
}

fn size(bytes: u64) -> lmb_memory::Bytes {
    lmb_memory::Bytes::new(bytes)
}

impl fmt::Display for LayoutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "LMB size            {}", size(self.lmb_size_bytes))?;
        writeln!(
            f,
            "boot memory         {} = {} LMBs",
            size(self.boot_bytes),
            self.boot_lmbs
        )?;
        for piece in &self.boot_pieces {
            writeln!(
                f,
                "  {:<4} {:#014x}-{:#014x}  {:>9}  LMB {}..={}",
                piece.kind,
                piece.start_address,
                piece.start_address + piece.size_bytes,
                size(piece.size_bytes).to_string(),
                piece.first_lmb,
                piece.last_lmb
            )?;
        }
        match &self.window {
            None => writeln!(f, "hotplug window      none (--max-memory gives one)")?,
            Some(window) => writeln!(
                f,
                "hotplug window      {} = {} LMBs from LMB {}\n       {:#014x}-{:#014x}\nhotplug \
                 through     {}\nKVM slots           {} of {} when all is plugged",
                size(window.size_bytes),
                window.lmbs,
                window.first_lmb,
                window.start_address,
                window.start_address + window.size_bytes,
                self.hotplug,
                window.slots,
                size(self.slot_size_bytes),
            )?,
        }
        writeln!(
            f,
            "guest memory block  {}",
            size(self.guest_block_size_bytes)
        )?;
        writeln!(f, "host pages          {}", self.host_pages)?;
        writeln!(
            f,
            "32-bit hole         {:#014x}-{:#014x}",
            self.hole_start_address, self.hole_end_address
        )?;
        writeln!(
            f,
            "host mappings       {} in the worst case",
            self.worst_case_mappings
        )?;
        if self.swiotlb_bytes > 0 {
            writeln!(
                f,
                "swiotlb             {} of the guest's low memory, which Linux reserves because \
                 memory lies above 4 GiB (swiotlb=noforce avoids it)",
                size(self.swiotlb_bytes)
            )?;
        }
        for notice in &self.notices {
            writeln!(f, "notice: {notice}")?;
        }
        Ok(())
    }
}
