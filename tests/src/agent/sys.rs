//! System calls that std has no safe way to: the agent's only unsafe code.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::time::Duration;

/// Turns a libc return value into a result.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Length of a structure for a system call that takes it.
fn size_of_socklen<T>() -> libc::socklen_t {
    // Every structure passed here is a few bytes long.
    libc::socklen_t::try_from(mem::size_of::<T>()).unwrap_or(libc::socklen_t::MAX)
}

/// Mounts a file system that has no device behind it.
///
/// # Errors
/// The kernel's; `EBUSY` when it is mounted there already.
pub(crate) fn mount(kind: &CStr, target: &CStr) -> io::Result<()> {
    // SAFETY: all three strings are NUL-terminated and outlive the call; data
    // may be null for these file systems.
    check(unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            ptr::null(),
        )
    })
    .map(drop)
}

/// Loads a kernel module from an open, uncompressed file, without parameters.
///
/// # Errors
/// The kernel's; `EEXIST` when it is loaded already.
pub(crate) fn load_module(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, and the parameter string is
    // an empty NUL-terminated one.
    let result =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Bytes of memory that the kernel manages: /proc/meminfo's MemTotal, without
/// having the kernel add up everything else in that file.
///
/// # Errors
/// The kernel's.
pub(crate) fn total_memory_bytes() -> io::Result<u64> {
    // SAFETY: sysinfo is plain numbers, for which all zeroes are valid.
    let mut info: libc::sysinfo = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one sysinfo structure to the one given.
    check(unsafe { libc::sysinfo(&raw mut info) })?;
    Ok(info.totalram.saturating_mul(u64::from(info.mem_unit)))
}

/// Whether [`UeventSocket::receive`] found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A datagram of this many bytes from the kernel.
    Datagram(usize),
    /// Nothing waits.
    Nothing,
    /// The queue overflowed: datagrams were lost since the last call.
    Lost,
}

/// The kernel's broadcast of uevents.
#[derive(Debug)]
pub(crate) struct UeventSocket {
    socket: OwnedFd,
}

/// The kernel's multicast group (group 2 is udev's).
const KERNEL_GROUP: u32 = 1;

impl UeventSocket {
    /// Opens the socket with room for `buffer_bytes` of waiting datagrams. The
    /// kernel counts about 1 KiB for each uevent.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(buffer_bytes: i32) -> io::Result<Self> {
        // SAFETY: socket takes three numbers and touches no memory.
        let descriptor = check(unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                libc::NETLINK_KOBJECT_UEVENT,
            )
        })?;
        // SAFETY: the descriptor was just made and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: the option is read from one int, which is what it is.
        check(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const buffer_bytes).cast(),
                size_of_socklen::<i32>(),
            )
        })?;
        // SAFETY: sockaddr_nl is plain numbers, for which all zeroes are valid.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or_default();
        address.nl_groups = KERNEL_GROUP;
        // SAFETY: the address is a sockaddr_nl and its own length is given.
        check(unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of_socklen::<libc::sockaddr_nl>(),
            )
        })?;
        Ok(Self { socket })
    }

    /// Waits until a datagram (or news of a loss) is there; false when
    /// `timeout` passed first.
    ///
    /// # Errors
    /// The kernel's; an interrupted wait is one that timed out.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let milliseconds = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: one pollfd is given and the count says one.
        let result = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
        match check(result) {
            Ok(ready) => Ok(ready > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes one datagram, without waiting. One that another process sent is
    /// given as empty.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        // SAFETY: sockaddr_nl is plain numbers, for which all zeroes are valid.
        let mut sender: libc::sockaddr_nl = unsafe { mem::zeroed() };
        let mut length = size_of_socklen::<libc::sockaddr_nl>();
        // SAFETY: the buffer and its length belong together, as do the address
        // and its length; the kernel writes no more than that.
        let result = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut sender).cast(),
                &raw mut length,
            )
        };
        match usize::try_from(result) {
            Ok(_) if sender.nl_pid != 0 => Ok(Received::Datagram(0)),
            Ok(count) => Ok(Received::Datagram(count)),
            Err(_) => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::ENOBUFS) => Ok(Received::Lost),
                    Some(libc::EAGAIN | libc::EINTR) => Ok(Received::Nothing),
                    _ => Err(error),
                }
            }
        }
    }
}

/// Makes a command the leader of a session of its own whose controlling
/// terminal is its standard input, so that it gets ^C and job control, and
/// gives it all signals, of which PID 1 keeps some to itself.
pub(crate) fn own_terminal(command: &mut Command) {
    // SAFETY: between fork and exec only setsid, ioctl, sigemptyset and
    // pthread_sigmask are called, all async-signal-safe, and nothing is
    // allocated.
    unsafe {
        command.pre_exec(|| {
            new_session()?;
            take_terminal()?;
            unblock_signals()
        })
    };
}

fn unblock_signals() -> io::Result<()> {
    // SAFETY: sigset_t is plain bits, for which all zeroes are valid.
    let mut none: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the set is valid for writing.
    check(unsafe { libc::sigemptyset(&raw mut none) })?;
    // SAFETY: the set is valid, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn new_session() -> io::Result<()> {
    // SAFETY: setsid takes nothing and touches no memory.
    check(unsafe { libc::setsid() }).map(drop)
}

fn take_terminal() -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number (0: do not steal) and no pointer.
    check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).map(drop)
}

/// What a signal asks PID 1 for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A child ended.
    Child,
    /// Power off (what busybox' `halt` and `poweroff` send).
    PowerOff,
    /// Reboot (what busybox' `reboot` sends).
    Reboot,
}

/// Signals that are taken by [`Signals::wait`] instead of being delivered.
pub(crate) struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks them in this thread and those it starts, so call it before
    /// the first thread. Children inherit that; see [`own_terminal`].
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn block() -> io::Result<Self> {
        // SAFETY: sigset_t is plain bits, for which all zeroes are valid.
        let mut set: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: the set is valid for writing.
        check(unsafe { libc::sigemptyset(&raw mut set) })?;
        for signal in [libc::SIGCHLD, libc::SIGUSR1, libc::SIGUSR2, libc::SIGTERM] {
            // SAFETY: the set was made by sigemptyset and the signal exists.
            check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
        }
        // SAFETY: the set is valid, and the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) } {
            0 => Ok(Self { set }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for the next of them.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn wait(&self) -> io::Result<Signal> {
        let mut signal = 0;
        // SAFETY: both pointers are to valid objects for the call's length.
        match unsafe { libc::sigwait(&raw const self.set, &raw mut signal) } {
            0 => Ok(match signal {
                libc::SIGTERM => Signal::Reboot,
                libc::SIGCHLD => Signal::Child,
                _ => Signal::PowerOff,
            }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Collects one child that has ended: its process id.
pub(crate) fn reap() -> Option<u32> {
    // SAFETY: a null status pointer says that the status is not wanted.
    let pid = unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) };
    u32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// Ends the machine; returns only when the kernel refuses.
pub(crate) fn end_machine(reboot: bool) -> io::Error {
    let command = if reboot {
        libc::LINUX_REBOOT_CMD_RESTART
    } else {
        libc::LINUX_REBOOT_CMD_POWER_OFF
    };
    // SAFETY: reboot takes a number and touches no memory of this process.
    unsafe { libc::reboot(command) };
    io::Error::last_os_error()
}

/// I/O ports that this thread may use.
#[derive(Debug)]
pub(crate) struct Ports {
    base: u16,
    count: u16,
    /// The permission is the thread's, so the value stays on it.
    _this_thread: PhantomData<*const ()>,
}

impl Ports {
    /// Asks the kernel for `count` ports from `base` on, for this thread
    /// alone. (/dev/port would do the same, but Debian's cloud kernels are
    /// built without it.)
    ///
    /// # Errors
    /// The kernel's: `EPERM` in a locked-down kernel, `ENOSYS` in one without
    /// `CONFIG_X86_IOPL_IOPERM`.
    pub(crate) fn open(base: u16, count: u16) -> io::Result<Self> {
        // SAFETY: ioperm takes numbers and touches no memory of this process.
        check(unsafe { libc::ioperm(base.into(), count.into(), 1) })?;
        Ok(Self {
            base,
            count,
            _this_thread: PhantomData,
        })
    }

    fn port(&self, offset: u16) -> Option<u16> {
        (offset < self.count).then_some(self.base.checked_add(offset)?)
    }

    /// Reads a byte; a port that is not among these reads as if nothing were
    /// there (all ones).
    pub(crate) fn read(&self, offset: u16) -> u8 {
        let Some(port) = self.port(offset) else {
            return u8::MAX;
        };
        let value: u8;
        // SAFETY: the thread has the port's permission, given by `open`, and
        // reading it touches neither memory nor flags.
        unsafe {
            asm!("in al, dx", in("dx") port, out("al") value,
                options(nomem, nostack, preserves_flags));
        }
        value
    }

    /// Writes a byte; one to a port that is not among these goes nowhere.
    pub(crate) fn write(&self, offset: u16, value: u8) {
        let Some(port) = self.port(offset) else {
            return;
        };
        // SAFETY: the thread has the port's permission, given by `open`; the
        // device behind it takes a note and does not touch memory.
        unsafe {
            asm!("out dx, al", in("dx") port, in("al") value,
                options(nomem, nostack, preserves_flags));
        }
    }
}
