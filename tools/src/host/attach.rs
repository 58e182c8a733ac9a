//! What is attached to a run from outside: the command's standard input, and
//! the means to stop it.
//!
//! Two ends of one pair. The caller keeps [`Attached`]; [`HostEnd`] goes to
//! [`HostRun::run_attached`](super::HostRun::run_attached), which gives its
//! socket to QEMU. Inside it is a virtio-serial port: unlike a UART it holds
//! the sender back while the command does not read, changes no byte, and has
//! an end.
//!
//! States of the input: waiting (the host boots) → open (it has sent one byte)
//! → ended (shut down here, end of file there). The shutdown must wait for
//! *open*: a port whose other side has gone before it was opened tells nothing
//! from one that was never connected.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The caller's end. It must live until the run is over: dropped earlier, it
/// may take input along that the command has not read.
#[derive(Debug)]
pub struct Attached {
    input: UnixStream,
    stop: Arc<Stop>,
}

/// The run's end.
#[derive(Debug)]
pub struct HostEnd {
    pub(super) input: UnixStream,
    pub(super) stop: Arc<Stop>,
}

/// Makes both ends.
///
/// # Errors
/// When the system has no more file descriptors.
pub fn attach() -> io::Result<(Attached, HostEnd)> {
    let (near, far) = UnixStream::pair()?;
    let stop = Arc::new(Stop::default());
    let attached = Attached {
        input: near,
        stop: Arc::clone(&stop),
    };
    Ok((attached, HostEnd { input: far, stop }))
}

impl Attached {
    /// The socket whose bytes the command reads. What is written before the
    /// command runs is kept for it.
    #[must_use]
    pub fn input(&self) -> &UnixStream {
        &self.input
    }

    /// Ends the input of a command that is running: `false`, and nothing done,
    /// where the host has not come so far. Not to be mixed with
    /// [`Attached::copy_all`].
    ///
    /// # Errors
    /// When the socket fails.
    pub fn end_input(&self) -> io::Result<bool> {
        self.input.set_nonblocking(true)?;
        match (&self.input).read(&mut [0]) {
            Ok(_) => self.shut_down().map(|()| true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies all of `from` into the command's input and ends it. Returns
    /// early, without an error, when the host ends first.
    ///
    /// # Errors
    /// When `from` cannot be read or the socket fails.
    pub fn copy_all(&self, mut from: impl Read) -> io::Result<()> {
        let mut input = &self.input;
        if input.read(&mut [0])? == 0 {
            return Ok(());
        }
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => return self.shut_down(),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    // The command must not wait for more.
                    self.shut_down()?;
                    return Err(error);
                }
            };
            match input.write_all(buffer.get(..count).unwrap_or_default()) {
                Err(error) if is_gone(&error) => return Ok(()),
                other => other?,
            }
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        match self.input.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    /// Kills the host, now or as soon as it starts; the run then ends with
    /// [`HostError::Stopped`](super::HostError::Stopped).
    pub fn stop(&self) {
        self.stop.now();
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    )
}

/// Whether a run shall stop, and the QEMU that has to be killed for it.
#[derive(Debug, Default)]
pub(super) struct Stop {
    asked: AtomicBool,
    /// Names the process even after it has been waited for.
    qemu: OnceLock<OwnedFd>,
}

impl Stop {
    /// Takes note of QEMU; kills it if the stop came first.
    pub(super) fn watch(&self, qemu: &Child) -> io::Result<()> {
        let fd = pidfd_open(Pid::from_child(qemu), PidfdFlags::empty())?;
        let _ = self.qemu.set(fd);
        if self.is_asked() {
            self.now();
        }
        Ok(())
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    fn now(&self) {
        // Before QEMU is looked for: `watch` does the two in reverse, so one
        // of them sees the other.
        self.asked.store(true, Ordering::SeqCst);
        if let Some(qemu) = self.qemu.get() {
            // It fails when QEMU has ended, which is as good.
            let _ = pidfd_send_signal(qemu, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::thread;

    #[test]
    fn input_starts_when_the_host_is_open_and_ends_with_its_source() {
        let (attached, mut host) = attach().unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|n| n.to_le_bytes()[0]).collect();
        let copied = thread::scope(|scope| {
            let copying = scope.spawn(|| attached.copy_all(bytes.as_slice()));
            host.input.set_nonblocking(true).unwrap();
            let early = host.input.read(&mut [0]).unwrap_err();
            assert_eq!(early.kind(), ErrorKind::WouldBlock);
            host.input.set_nonblocking(false).unwrap();
            host.input.write_all(b"\n").unwrap();
            let mut read = Vec::new();
            host.input.read_to_end(&mut read).unwrap();
            assert!(read == bytes);
            copying.join().unwrap()
        });
        copied.unwrap();
    }

    #[test]
    fn a_host_that_ends_first_is_no_error() {
        let (attached, host) = attach().unwrap();
        drop(host);
        attached.copy_all(b"x".as_slice()).unwrap();

        let (attached, mut host) = attach().unwrap();
        host.input.write_all(b"\n").unwrap();
        drop(host);
        attached.copy_all(io::repeat(b'x')).unwrap();
    }

    #[test]
    fn the_input_of_a_host_that_boots_is_not_ended() {
        let (attached, mut host) = attach().unwrap();
        assert!(!attached.end_input().unwrap());
        host.input.write_all(b"\n").unwrap();
        assert!(attached.end_input().unwrap());
        assert_eq!(host.input.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_stop_kills_what_runs_and_what_starts_later() {
        for early in [true, false] {
            let (attached, host) = attach().unwrap();
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            if early {
                attached.stop();
            }
            host.stop.watch(&child).unwrap();
            if !early {
                assert!(child.try_wait().unwrap().is_none());
                attached.stop();
            }
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            attached.stop();
        }
    }
}
