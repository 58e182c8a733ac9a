//! The test guest's init: mounts what a shell needs, loads the hotplug driver,
//! keeps a shell on the console, and tells the VMM by boot marks when init
//! runs, when the driver is loaded, and when the wanted amount of hotplugged
//! memory is online (see `watch`). Under another VMM, which has no boot-mark
//! device, it does the same without marks, or with marks on the console.
//!
//! The order at the start matters: the init mark comes before everything but
//! /sys, where the VMM is known by its tables, and the uevent socket is open
//! before the driver can make the first block. On the kernel command line `lmb.modules=off`
//! leaves the driver out, `lmb.marks=console` sends marks to the console, and
//! `lmb.uevent_bytes=N` gives events another room.
//!
//! Where each LMB is an ACPI device the kernel itself adds and removes memory. No driver is
//! loaded then, the mark of the loaded driver means that the agent watches, and LMBs that were
//! there at boot count as hotplugged.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

mod console;
mod log;
mod marks;
mod sys;
mod uevent;
mod watch;

use marks::{Mark, Marks};
use sys::{Received, Signals, UeventSocket};
use uevent::BlockAction;
use watch::{Blocks, Guest, Watch};

/// Kernel modules to load, one file name a line, in this order.
const MODULE_ORDER: &str = "/lib/modules/order";
const MODULES: &str = "/lib/modules";
const MEMORY_DEVICES: &str = "/sys/devices/system/memory";
/// The first ACPI memory device, which is there if any is, plugged or not.
const ACPI_MEMORY: &str = "/sys/bus/acpi/devices/PNP0C80:00";
/// The module that ACPI memory devices do without.
const VIRTIO_MEM: &str = "virtio_mem";
/// In a block's directory: the ACPI device it belongs to
/// (drivers/acpi/acpi_memhotplug.c, `acpi_bind_memory_blocks`).
const FIRMWARE_NODE: &str = "firmware_node";
/// Room for about 64,000 waiting uevents. Only a limit: it takes no memory
/// until they come.
const UEVENT_BUFFER_BYTES: i32 = 64 << 20;
/// How long a wait for uevents is where nothing else is to be done.
const LONG_WAIT: Duration = Duration::from_secs(3600);
/// No uevent is longer (UEVENT_BUFFER_SIZE is 2048, and the head).
const UEVENT_BYTES: usize = 8192;

fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("lmb-guest-agent is the init of a test guest and runs as process 1 only");
        return ExitCode::FAILURE;
    }
    log::take_panics();
    let sys = sys::mount(c"sysfs", c"/sys");
    let marks = Marks::open();
    if let Ok(Some(marks)) = &marks {
        marks.write(Mark::Init, 0);
    }
    attempt("mount /sys", sys);
    for (kind, target) in [
        (c"devtmpfs", c"/dev"),
        (c"proc", c"/proc"),
        (c"tmpfs", c"/tmp"),
    ] {
        attempt(&format!("mount {target:?}"), sys::mount(kind, target));
    }
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let mut marks = attempt("open the boot-mark device", marks).flatten();
    if marks.is_none() && option(&command_line, "lmb.marks") == Some("console") {
        marks = attempt("open the console", Marks::on_console());
        if let Some(marks) = &marks {
            marks.write_code(Mark::Init);
        }
    }
    // Before the first thread, so that all of them have the signals blocked.
    if let Some(signals) = attempt("block signals", Signals::block()) {
        thread::spawn(move || console::serve(&signals));
    }
    match run(&command_line, marks.as_ref()) {
        Ok(()) => {}
        Err(error) => log::error("watch memory", &error),
    }
    // PID 1 must not end; the console goes on.
    loop {
        thread::park();
    }
}

/// An option of the kernel's command line.
fn option<'a>(command_line: &'a str, name: &str) -> Option<&'a str> {
    command_line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Logs an error and goes on without: half a guest still shows what is wrong.
fn attempt<T>(what: &str, result: io::Result<T>) -> Option<T> {
    result.map_err(|error| log::error(what, &error)).ok()
}

/// Loads the driver and watches memory; returns only with an error, or where
/// there is nobody to tell.
fn run(command_line: &str, marks: Option<&Marks>) -> io::Result<()> {
    let buffer_bytes = option(command_line, "lmb.uevent_bytes").and_then(|text| text.parse().ok());
    let socket = UeventSocket::open(buffer_bytes.unwrap_or(UEVENT_BUFFER_BYTES))?;
    let acpi = Path::new(ACPI_MEMORY).exists();
    let (block_bytes, total_bytes) = (block_size_bytes()?, sys::total_memory_bytes()?);
    let blocks = list_blocks()?;
    let mut watch = if acpi {
        Watch::of_devices(block_bytes, total_bytes, blocks, of_device)
    } else {
        Watch::new(block_bytes, total_bytes, blocks)
    };
    if option(command_line, "lmb.modules") == Some("off") {
        log::info("lmb.modules=off: no modules are loaded");
    } else {
        load_modules(acpi.then_some(VIRTIO_MEM));
    }
    let Some(marks) = marks else {
        log::info("no boot-mark device: nothing is reported");
        return Ok(());
    };
    marks.write(Mark::DriverLoaded, 0);
    if !marks.know_target() {
        return tell_blocks(&socket, marks);
    }
    let mut guest = ThisGuest { marks };
    watch.begin(&mut guest);
    loop {
        if socket.wait(watch.patience())? {
            take_events(&socket, &mut watch, &mut guest)?;
        } else {
            watch.look(&mut guest);
        }
    }
}

/// Tells of each memory block as it comes online or goes, where the VMM knows
/// no target. Lost events are not made up for: their marks are missing.
fn tell_blocks(socket: &UeventSocket, marks: &Marks) -> io::Result<()> {
    let mut buffer = [0; UEVENT_BYTES];
    loop {
        match socket.receive(&mut buffer)? {
            Received::Datagram(length) => {
                let event = uevent::parse(buffer.get(..length).unwrap_or_default());
                match event.map(|event| event.action) {
                    Some(BlockAction::Online) => marks.write_code(Mark::BlockOnline),
                    Some(BlockAction::Remove) => marks.write_code(Mark::BlockGone),
                    _ => {}
                }
            }
            Received::Lost => log::info("memory uevents were lost; nobody is told of them"),
            Received::Nothing => drop(socket.wait(LONG_WAIT)?),
        }
    }
}

/// Empties the socket. After a loss what is left in it is older than what
/// sysfs says, and is dropped.
fn take_events(
    socket: &UeventSocket,
    watch: &mut Watch,
    guest: &mut ThisGuest<'_>,
) -> io::Result<()> {
    let mut buffer = [0; UEVENT_BYTES];
    let mut lost = false;
    loop {
        match socket.receive(&mut buffer)? {
            Received::Datagram(length) if !lost => {
                let datagram = buffer.get(..length).unwrap_or_default();
                if let Some(event) = uevent::parse(datagram) {
                    watch.event(guest, event);
                }
            }
            Received::Datagram(_) => {}
            Received::Lost => lost = true,
            Received::Nothing => break,
        }
    }
    if lost {
        log::info("memory uevents were lost; reading sysfs instead");
        watch.events_lost(guest);
    }
    Ok(())
}

/// This guest, as the watch sees it.
struct ThisGuest<'a> {
    marks: &'a Marks,
}

impl Guest for ThisGuest<'_> {
    fn target_bytes(&mut self) -> Option<u64> {
        self.marks.target_bytes()
    }
    fn total_bytes(&mut self) -> Option<u64> {
        attempt("read the memory's size", sys::total_memory_bytes())
    }
    fn blocks(&mut self) -> Option<Blocks> {
        attempt("list memory blocks", list_blocks())
    }
    fn mark(&mut self, mark: Mark, value: u64) {
        self.marks.write(mark, value);
    }
}

/// Size of this kernel's memory blocks.
fn block_size_bytes() -> io::Result<u64> {
    let text = fs::read_to_string(Path::new(MEMORY_DEVICES).join("block_size_bytes"))?;
    u64::from_str_radix(text.trim(), 16).map_err(io::Error::other)
}

/// The memory blocks that exist now. One that goes while it is read is left
/// out.
fn list_blocks() -> io::Result<Blocks> {
    let mut blocks = Blocks::default();
    for entry in fs::read_dir(MEMORY_DEVICES)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("memory"))
            .and_then(uevent::block_number);
        let (Some(number), Ok(state)) = (number, fs::read_to_string(entry.path().join("state")))
        else {
            continue;
        };
        blocks.present.insert(number);
        if state.trim() == "online" {
            blocks.online.insert(number);
        }
    }
    Ok(blocks)
}

/// Whether a memory block belongs to an ACPI memory device.
fn of_device(block: u64) -> bool {
    let name = format!("memory{block}");
    Path::new(MEMORY_DEVICES)
        .join(name)
        .join(FIRMWARE_NODE)
        .exists()
}

/// Loads the hotplug driver's modules, in the order given, but for the one
/// called `without`. A missing list means that there are none.
fn load_modules(without: Option<&str>) {
    let order = fs::read_to_string(MODULE_ORDER).unwrap_or_default();
    let left_out = |name: &&str| without.is_some() && name.split('.').next() == without;
    for name in order.split_whitespace().filter(|name| !left_out(name)) {
        let loaded = File::open(Path::new(MODULES).join(name)).and_then(|f| sys::load_module(&f));
        match loaded {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => drop(attempt(&format!("load {name}"), other)),
        }
    }
}
