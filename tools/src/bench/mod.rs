//! `lmb bench`: boots and memory changes measured over LMB sizes.
//!
//! A sweep ([`sweep`]) becomes a list of jobs ([`work`]), without those that
//! the results file ([`store`]) has already. They run ([`runner`]) on this
//! machine's KVM or in a virtual KVM host made for the sweep ([`place`],
//! [`sizing`]), each by the driver of its VMM ([`driver`]). Each job's samples
//! ([`sample`]) are saved as they come; tables are drawn afterwards.

pub mod cli;
mod driver;
mod facts;
mod figures;
mod id;
mod limits;
mod machine;
pub mod order;
mod place;
mod progress;
mod runner;
pub mod sample;
mod show;
pub mod sizing;
pub mod store;
pub mod sweep;
#[cfg(test)]
mod testing;
pub mod vmms;
pub mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

pub use self::id::revision;

use self::cli::{BenchArgs, BenchCommand, SweepArgs};
use self::place::VirtualHost;
use self::progress::SweepProgress;
use self::sample::Clock;
use self::store::{Done, Store, StoreError};
use self::sweep::{Axes, Cases, Kernel, Measure};
use self::vmms::{Vmm, VmmChoice};
use self::work::{GuestFiles, Message, Programs, Work};
use crate::guest::{DEFAULT_MODULES, GuestImage, default_agent};
use crate::host::{self, detect};
use crate::initramfs::FileArgument;
use crate::packages::{self, Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, Progress};
use crate::run::HostChoice;

/// Modules of guests whose memory device is a PCI device.
const PCI_MODULE: &str = "virtio_pci";

/// Runs `lmb bench`.
///
/// # Errors
/// When the sweep cannot be run.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Boot(boot) => sweep(&boot.sweep, &boot.measure(), "boot", None),
        BenchCommand::Dlpar(dlpar) => {
            let load = if dlpar.has_load() {
                Some(match &dlpar.load_program {
                    Some(path) => path.clone(),
                    None => beside(runner::LOAD_PROGRAM, "--load-program")?,
                })
            } else {
                None
            };
            sweep(&dlpar.sweep, &dlpar.measure(), "dlpar", load)
        }
        BenchCommand::Inside { work } => {
            place::run_inside(work)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn sweep(
    args: &SweepArgs,
    measure: &Measure,
    name: &str,
    load_program: Option<PathBuf>,
) -> Result<ExitCode> {
    for vmm in &args.vmm {
        if let Some(what) = vmm.untested() {
            eprintln!(
                "lmb: warning: the driver for {} is not fully tested: {what}",
                vmm.name()
            );
        }
    }
    let native = is_native(args.place.host)?;
    let started = id::rfc3339(figures::realtime_ns() / 1_000_000_000);
    let out = match &args.out {
        Some(out) => out.clone(),
        None => format!("lmb-{name}-{}.jsonl", started.replace([':', '-'], "")).into(),
    };
    let done = done(args, &out)?;
    let progress = Progress::new();
    let cache = Cache::open()?;
    let prepared = Prepared::new(args, measure, &cache, load_program, &|text| {
        progress.step(text);
    })?;
    progress.clear();
    for line in &prepared.left_out {
        eprintln!("lmb: left out: {line}");
    }
    let clock = match (native, args.place.clock) {
        (true, None | Some(host::Clock::Wall)) => Clock::Wall,
        (true, Some(host::Clock::Instructions)) => {
            bail!("native KVM has no instruction clock; use --host virtual, or leave --clock out")
        }
        (false, Some(host::Clock::Wall)) => Clock::Wall,
        (false, _) => Clock::Instructions,
    };
    let mut jobs = prepared.jobs;
    let all = jobs.len();
    jobs.retain(|job| !done.has(job));
    let work = Work {
        sweep: done.sweep.clone().unwrap_or(started),
        revision: revision(),
        native,
        clock,
        programs: prepared.programs,
        guests: prepared.guests,
        jobs,
        facts: done.facts.clone(),
        boot_timeout_ms: u64::try_from(args.place.boot_timeout.as_millis()).unwrap_or(u64::MAX),
    };
    eprintln!("lmb: {}", show::plan(&work, all, prepared.cases));
    let mut keeper = Keeper {
        store: Store::open(&out)?,
        bar: SweepProgress::new(work.jobs.len()),
        jobs: work.jobs.clone(),
        json: args.json,
        failed: 0,
    };
    if !work.jobs.is_empty() {
        execute(work, args, &cache, &mut keeper)?;
    }
    let failed = keeper.failed;
    drop(keeper);
    finish(args, &out, failed)
}

/// Runs the work where it belongs.
fn execute(work: Work, args: &SweepArgs, cache: &Cache, keeper: &mut Keeper) -> Result<()> {
    let go_on = "what was measured is saved; the same command with --out and --continue goes on";
    if work.native {
        eprintln!("lmb: host: {}", detect::host_kind());
        return runner::run(&work, &mut |message| keeper.take(message)).context(go_on);
    }
    let note = |text: &str| eprintln!("{text}");
    let place = &args.place;
    let virtual_host = VirtualHost {
        kernel: KernelPackage::fetch(cache, &place.host_kernel_package, false, &note)?,
        memory_mib: place.host_memory.map(|bytes| bytes >> 20),
        cpus: place.host_cpus,
        limit: place.host_limit,
    };
    let clock = match work.clock {
        Clock::Wall => host::Clock::Wall,
        Clock::Instructions => host::Clock::Instructions,
    };
    let prepared = place::prepare(work, virtual_host, clock, &note)?;
    eprintln!(
        "lmb: host: one virtual KVM host for the whole sweep, of {} MiB, {}; {}",
        prepared.memory_mib(),
        if place.host_memory.is_some() {
            "as --host-memory says"
        } else {
            "sized for its dearest guest"
        },
        show::clock(clock)
    );
    prepared
        .run(cache, &mut |message| keeper.take(message))
        .context(go_on)
}

fn is_native(choice: HostChoice) -> Result<bool> {
    match (choice, detect::native_kvm()) {
        (HostChoice::Virtual, _) | (HostChoice::Auto, Err(_)) => Ok(false),
        (_, Ok(())) => Ok(true),
        (HostChoice::Native, Err(reason)) => Err(reason.into()),
    }
}

/// What the results file has of this sweep.
fn done(args: &SweepArgs, out: &Path) -> Result<Done> {
    let samples = store::read(out)?;
    match (samples.is_empty(), args.go_on, args.append) {
        (true, true, _) => Err(StoreError::Nothing(out.to_owned()).into()),
        (false, true, _) => Ok(Done::of_last_sweep(&samples)),
        (false, false, false) => Err(StoreError::Occupied(out.to_owned()).into()),
        (true, false, _) | (false, false, true) => Ok(Done::default()),
    }
}

/// A sweep with all it needs found.
struct Prepared {
    programs: Programs,
    guests: Vec<GuestFiles>,
    jobs: Vec<work::Job>,
    cases: usize,
    left_out: Vec<String>,
}

impl Prepared {
    fn new(
        args: &SweepArgs,
        measure: &Measure,
        cache: &Cache,
        load_program: Option<PathBuf>,
        note: &dyn Fn(&str),
    ) -> Result<Self> {
        let values = args.values();
        let programs = programs(args)?;
        let kernels = kernels(args, cache, note)?;
        let axes = Axes {
            kernels: kernels
                .iter()
                .map(|kernel| Kernel {
                    version: kernel.version.clone(),
                })
                .collect(),
            vmms: vmms(args, &programs)?,
            hotplugs: values.hotplugs,
            lmb_sizes: values.lmb_sizes,
            guest_blocks: values.guest_blocks,
            slot_sizes: values.slot_sizes,
            cpus: values.cpus,
            kernel_entries: values.kernel_entries,
            hugepages: values.hugepages,
            cmdline: values.cmdline,
        };
        let Cases { cases, left_out } = sweep::cases(&axes, measure)?;
        let image = ImageParts {
            agent: match &args.place.agent {
                Some(agent) => agent.clone(),
                None => default_agent()?,
            },
            pci: args.vmm.iter().any(|vmm| vmm.has_pci()),
            unpacked: args.vmm.iter().any(|vmm| vmm.is_remote()),
            load_program,
        };
        let guests = kernels
            .into_iter()
            .map(|kernel| image.build(kernel, cache, note))
            .collect::<Result<_>>()?;
        Ok(Self {
            programs,
            guests,
            jobs: sweep::jobs(&cases, values.warm_up, values.rounds),
            cases: cases.len(),
            left_out,
        })
    }
}

/// What guests' initramfs images are made of: the same for every VMM.
struct ImageParts {
    agent: PathBuf,
    pci: bool,
    unpacked: bool,
    load_program: Option<PathBuf>,
}

impl ImageParts {
    fn build(
        &self,
        kernel: KernelPackage,
        cache: &Cache,
        note: &dyn Fn(&str),
    ) -> Result<GuestFiles> {
        let mut modules = DEFAULT_MODULES.map(str::to_owned).to_vec();
        if self.pci {
            // Before the memory driver, which is the last.
            modules.insert(modules.len().saturating_sub(1), PCI_MODULE.to_owned());
        }
        let files = self.load_program.iter().map(|program| FileArgument {
            source: program.clone(),
            dest: Some(format!("bin/{}", runner::LOAD_PROGRAM)),
        });
        let image = GuestImage {
            agent: self.agent.clone(),
            kernel,
            modules,
            files: files.collect(),
            gzip: false,
        };
        let initrd = image.build(cache, None, note)?.initramfs;
        let vmlinux = if self.unpacked {
            Some(image.kernel.vmlinux(cache)?)
        } else {
            None
        };
        Ok(GuestFiles {
            kernel: image.kernel.vmlinuz,
            initrd,
            vmlinux,
        })
    }
}

fn kernels(args: &SweepArgs, cache: &Cache, note: &dyn Fn(&str)) -> Result<Vec<KernelPackage>> {
    if !args.modules_dir.is_empty() && args.modules_dir.len() != args.kernel.len() {
        bail!(
            "{} --modules-dir for {} --kernel: give one for each, in their order",
            args.modules_dir.len(),
            args.kernel.len()
        );
    }
    let own = args.kernel.iter().enumerate().map(|(number, kernel)| {
        KernelPackage::from_files(kernel, args.modules_dir.get(number).map(PathBuf::as_path))
    });
    let mut packages: Vec<&str> = args.kernel_package.iter().map(String::as_str).collect();
    if args.kernel.is_empty() && packages.is_empty() {
        packages.push(DEFAULT_KERNEL_PACKAGE);
    }
    let debian = packages
        .into_iter()
        .map(|package| KernelPackage::fetch(cache, package, false, note));
    own.chain(debian).collect()
}

fn programs(args: &SweepArgs) -> Result<Programs> {
    let mut programs = Programs::default();
    if args.vmm.contains(&VmmChoice::LmbVmm) {
        programs.lmb_vmm = Some(match &args.place.lmb_vmm {
            Some(path) => path.clone(),
            None => beside("lmb-vmm", "--lmb-vmm")?,
        });
    }
    if args.vmm.iter().any(|vmm| vmm.is_qemu()) {
        programs.qemu = Some(match &args.place.qemu {
            Some(path) => path.clone(),
            None => packages::find_program("qemu-system-x86_64").context(
                "qemu-system-x86_64 is not in $PATH: install qemu-system-x86, or name it by --qemu",
            )?,
        });
    }
    for (choice, given, place, option) in [
        (
            VmmChoice::Firecracker,
            &args.place.firecracker,
            &mut programs.firecracker,
            "--firecracker",
        ),
        (
            VmmChoice::CloudHypervisor,
            &args.place.cloud_hypervisor,
            &mut programs.cloud_hypervisor,
            "--cloud-hypervisor",
        ),
    ] {
        if args.vmm.contains(&choice) {
            let name = choice.name();
            *place = Some(match given {
                Some(path) => path.clone(),
                None => packages::find_program(name).with_context(|| {
                    format!("{name} is not in $PATH: install it, or name it by {option}")
                })?,
            });
        }
    }
    Ok(programs)
}

/// A program beside this one, else in `$PATH`.
fn beside(name: &str, option: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let path = this.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    packages::find_program(name).with_context(|| {
        format!(
            "there is no {name} beside {} or in $PATH: build it (cargo build --release), or name \
             it by {option}",
            this.display()
        )
    })
}

fn vmms(args: &SweepArgs, programs: &Programs) -> Result<Vec<Vmm>> {
    args.vmm
        .iter()
        .map(|&choice| {
            let program = match choice {
                VmmChoice::LmbVmm => &programs.lmb_vmm,
                VmmChoice::QemuPc | VmmChoice::QemuMicrovm => &programs.qemu,
                VmmChoice::Firecracker => &programs.firecracker,
                VmmChoice::CloudHypervisor => &programs.cloud_hypervisor,
            };
            let program = program.as_deref().context("the VMM's program is missing")?;
            Ok(Vmm {
                choice,
                version: show::version(program)?,
            })
        })
        .collect()
}

/// Takes the sweep's messages: saves samples, shows how far it is.
struct Keeper {
    store: Store,
    bar: SweepProgress,
    jobs: Vec<work::Job>,
    json: bool,
    failed: usize,
}

impl Keeper {
    fn take(&mut self, message: Message) -> Result<()> {
        let job = |number: usize| self.jobs.get(number).map(show::job).unwrap_or_default();
        match message {
            Message::Begins { job: number } => self.bar.begins(&job(number)),
            Message::Samples { samples, .. } => {
                self.store.add(&samples)?;
                self.bar.ended();
                for sample in &samples {
                    if self.json {
                        let line = serde_json::to_string(sample)?;
                        self.bar.over(|| println!("{line}"));
                    } else {
                        let line = show::sample(sample);
                        self.bar.over(|| eprintln!("{line}"));
                    }
                }
            }
            Message::Failed { job: number, error } => {
                self.failed = self.failed.saturating_add(1);
                self.bar.ended();
                let name = job(number);
                self.bar.over(|| eprintln!("lmb: {name}: {error}"));
            }
        }
        Ok(())
    }
}

fn finish(args: &SweepArgs, out: &Path, failed: usize) -> Result<ExitCode> {
    eprintln!("lmb: samples are in {}", out.display());
    if !args.json {
        print!("{}", show::tables(out)?);
    }
    if failed > 0 {
        eprintln!(
            "lmb: {failed} jobs gave no sample, see above; the same command with --continue runs \
             them again"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
