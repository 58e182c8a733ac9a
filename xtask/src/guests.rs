//! Running the tests with guests: on this machine's KVM where it can, else in
//! two virtual hosts at once, each with a share of the tests.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lmb_tools::host::{HostRun, detect};
use lmb_tools::packages::{self, Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, Progress};

use crate::artifacts::Programs;
use crate::cargo;
use crate::inputs::{self, Guest, KERNELS, put};
use crate::tally::{Follower, Tally};

/// Virtual hosts at once; each keeps one processor busy.
const HOSTS: usize = 2;
/// What one virtual host may take; both run at the same time.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// Memory of a virtual host beside its huge pages.
const HOST_MIB: u64 = 4096;
/// Huge pages of 2 MiB in a virtual host.
const HUGE_PAGES: u64 = 300;
/// Wide enough for windows of many TiB.
const PHYS_BITS: u8 = 48;

/// Names the unpacked kernel for the tests.
const VMLINUX: &str = "LMB_GUEST_VMLINUX_6_1";

/// Lines of several hosts, each shown whole.
static SCREEN: Mutex<()> = Mutex::new(());

/// Runs those tests whose names contain `filter`.
pub(crate) fn run(programs: &Programs, filter: Option<&str>) -> Result<Tally> {
    let progress = Progress::new();
    let note = |text: &str| progress.step(text);
    inputs::programs(&note)?;
    let cache = Cache::open()?;
    let agent = programs.path("lmb-guest-agent")?;
    let load = [put(&programs.path("lmb-guest-load")?, "bin/lmb-guest-load")];
    let guests = KERNELS
        .iter()
        .map(|(name, package)| {
            let kernel = KernelPackage::fetch(&cache, package, false, &note)?;
            inputs::guest(name, kernel, &agent, &load, &cache, &note)
        })
        .collect::<Result<Vec<_>>>()?;
    progress.show("unpacking a kernel");
    let vmlinux = inputs::vmlinux(&guests)?;
    progress.clear();
    let tests = Tests {
        programs,
        guests: &guests,
        vmlinux: vmlinux.path(),
        filter,
    };
    match detect::native_kvm() {
        Ok(()) => {
            println!("guests run on {}", detect::host_kind());
            tests.on_this_machine(None)
        }
        Err(reason) => {
            println!("guests run in {HOSTS} virtual KVM hosts, since {reason}");
            let mut tally = tests.on_this_machine(Some("0/2"))?;
            tally.add(tests.in_virtual_hosts(&cache)?);
            Ok(tally)
        }
    }
}

struct Tests<'a> {
    programs: &'a Programs,
    guests: &'a [Guest],
    vmlinux: &'a Path,
    filter: Option<&'a str>,
}

impl Tests<'_> {
    /// The tests on this machine itself: all, or a share of them.
    fn on_this_machine(&self, shard: Option<&str>) -> Result<Tally> {
        let mut follower = Follower::new(self.names(shard)?);
        let mut command = self.command(shard)?;
        let ok = cargo::watched(&mut command, |line| {
            follower.line(line);
        })?;
        let mut tally = follower.end();
        if !ok && tally.failed == 0 {
            tally.step("the tests' program", false);
        }
        Ok(tally)
    }

    fn command(&self, shard: Option<&str>) -> Result<Command> {
        let mut command = Command::new(self.programs.path("guest")?);
        command
            .args(["--color", "never"])
            .args(self.filter)
            .env("LMB_VMM", self.programs.path("lmb-vmm")?)
            .env("LMB", self.programs.path("lmb")?)
            .env(VMLINUX, self.vmlinux);
        for guest in self.guests {
            command
                .env(
                    format!("LMB_GUEST_KERNEL_{}", guest.name),
                    &guest.kernel.vmlinuz,
                )
                .env(format!("LMB_GUEST_INITRD_{}", guest.name), &guest.initrd);
        }
        if let Some(shard) = shard {
            command.env("LMB_TEST_SHARD", shard);
        }
        Ok(command)
    }

    /// The names of the tests that a run will report.
    fn names(&self, shard: Option<&str>) -> Result<Vec<String>> {
        let output = self
            .command(shard)?
            .arg("--list")
            .stdin(Stdio::null())
            .output()
            .context("cannot run the tests' program")?;
        ensure!(output.status.success(), "the tests' program lists nothing");
        Ok(String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.strip_suffix(": test").map(str::to_owned))
            .collect())
    }

    fn in_virtual_hosts(&self, cache: &Cache) -> Result<Tally> {
        let start = Instant::now();
        let mut runs = Vec::new();
        for index in 1..=HOSTS {
            let shard = format!("{index}/{HOSTS}");
            let names = self.names(Some(&shard))?;
            if !names.is_empty() {
                runs.push((index, self.host(&shard, cache)?, Follower::new(names)));
            }
        }
        let tally = thread::scope(|scope| {
            let threads: Vec<_> = runs
                .into_iter()
                .map(|(index, host, follower)| {
                    scope.spawn(move || follow(index, &host, cache, follower))
                })
                .collect();
            let mut tally = Tally::default();
            for thread in threads {
                match thread.join() {
                    Ok(part) => tally.add(part),
                    Err(_) => tally.step("a virtual host's thread", false),
                }
            }
            tally
        });
        println!("the virtual hosts took {} s", start.elapsed().as_secs());
        Ok(tally)
    }

    fn host(&self, shard: &str, cache: &Cache) -> Result<HostRun> {
        let note = |_: &str| {};
        let kernel = KernelPackage::fetch(cache, DEFAULT_KERNEL_PACKAGE, false, &note)?;
        let mut command: Vec<OsString> = ["guest", "--color", "never"].map(OsString::from).into();
        command.extend(self.filter.map(OsString::from));
        let mut host = HostRun::new(kernel, packages::qemu(&note)?, command);
        host.memory_mib = HOST_MIB + HUGE_PAGES * 2;
        host.hugepages_2m = HUGE_PAGES;
        host.phys_bits = PHYS_BITS;
        host.limit = LIMIT;
        for name in ["guest", "lmb-vmm", "lmb"] {
            host.files
                .push(put(&self.programs.path(name)?, &format!("bin/{name}")));
        }
        host.files.extend(inputs::linked_program("curl")?);
        let mut add = |variable: String, source: &Path| {
            let inside = format!("guests/{variable}");
            host.files.push(put(source, &inside));
            host.environment
                .push((variable, format!("/{inside}").into()));
        };
        add(VMLINUX.to_owned(), self.vmlinux);
        for guest in self.guests {
            let name = guest.name;
            add(format!("LMB_GUEST_KERNEL_{name}"), &guest.kernel.vmlinuz);
            add(format!("LMB_GUEST_INITRD_{name}"), &guest.initrd);
        }
        host.environment
            .push(("LMB_TEST_SHARD".to_owned(), shard.into()));
        Ok(host)
    }
}

/// Runs one virtual host and shows its lines.
fn follow(index: usize, host: &HostRun, cache: &Cache, mut follower: Follower) -> Tally {
    let start = Instant::now();
    let show = |line: &str| {
        let _whole = SCREEN.lock().unwrap_or_else(PoisonError::into_inner);
        println!("[host {index}, {:4} s] {line}", start.elapsed().as_secs());
    };
    let outcome = host.run_lines(cache, &mut |line| {
        let line = line.trim_end_matches('\r');
        follower.line(line);
        show(line);
    });
    let mut tally = follower.end();
    match outcome {
        Ok(0) => {}
        Ok(_) if tally.failed > 0 => {}
        Ok(code) => tally.step(&format!("virtual host {index}: exit code {code}"), false),
        Err(error) => {
            show(&error.to_string());
            tally.step(&format!("virtual host {index}"), false);
        }
    }
    tally
}
