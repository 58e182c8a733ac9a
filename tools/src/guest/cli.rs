//! `lmb guest`: fetching kernels and building guests' initramfs images.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::{DEFAULT_MODULES, GuestImage, default_agent};
use crate::cli::print;
use crate::initramfs::FileArgument;
use crate::packages::{Cache, DEFAULT_KERNEL_PACKAGE, KernelPackage, Progress};

/// Fetch kernels and build initramfs images for guests
#[derive(Args, Debug)]
pub struct GuestArgs {
    #[command(subcommand)]
    command: GuestCommand,
}

#[derive(Debug, Subcommand)]
enum GuestCommand {
    /// Fetch a Debian kernel package into the cache and print where it is
    Fetch(FetchArgs),
    /// Build a guest's initramfs: agent, busybox and virtio-mem's modules
    Build(BuildArgs),
}

/// Which kernel is meant; shared by the commands that start something.
#[derive(Args, Clone, Debug)]
pub struct KernelArgs {
    /// Debian package of the kernel, or a metapackage that leads to one
    #[arg(long, value_name = "PACKAGE", default_value = DEFAULT_KERNEL_PACKAGE)]
    pub kernel_package: String,
    /// A kernel of one's own in place of Debian's (bzImage or ELF)
    #[arg(long, value_name = "PATH", conflicts_with = "kernel_package")]
    pub kernel: Option<PathBuf>,
    /// The lib/modules/VERSION directory of --kernel [default:
    /// /lib/modules/VERSION when it exists]
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub modules_dir: Option<PathBuf>,
    /// Look for Debian's newest version even when one is cached
    #[arg(long)]
    pub refresh: bool,
}

impl KernelArgs {
    /// The kernel asked for, from the cache when it is there.
    ///
    /// # Errors
    /// When it cannot be found or fetched.
    pub fn resolve(&self, cache: &Cache, note: &dyn Fn(&str)) -> Result<KernelPackage> {
        match &self.kernel {
            Some(kernel) => KernelPackage::from_files(kernel, self.modules_dir.as_deref()),
            None => KernelPackage::fetch(cache, &self.kernel_package, self.refresh, note),
        }
    }
}

#[derive(Args, Debug)]
struct FetchArgs {
    #[command(flatten)]
    kernel: KernelArgs,
    /// Print paths and versions as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct BuildArgs {
    #[command(flatten)]
    kernel: KernelArgs,
    /// Where the image goes [default: the cache, under a name made from its
    /// content]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The static program that becomes /init [default: lmb-guest-agent beside
    /// this program]
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Kernel modules; what they need comes with them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          default_values_t = DEFAULT_MODULES.map(str::to_owned))]
    modules: Vec<String>,
    /// A file or directory to add; without DEST programs go to /bin and the
    /// rest to / (may be given again)
    #[arg(long = "file", value_name = "SOURCE[:/DEST]")]
    files: Vec<FileArgument>,
    /// Compress the image (guests start faster from one that is not)
    #[arg(long)]
    gzip: bool,
    /// Print paths and versions as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `lmb guest`.
///
/// # Errors
/// When a kernel cannot be fetched or an image cannot be built.
pub fn run(args: GuestArgs) -> Result<ExitCode> {
    match args.command {
        GuestCommand::Fetch(args) => fetch(&args),
        GuestCommand::Build(args) => build(args),
    }
}

fn fetch(args: &FetchArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let cache = Cache::open()?;
    let kernel = args
        .kernel
        .resolve(&cache, &|text: &str| progress.step(text))?;
    progress.clear();
    let text = if args.json {
        serde_json::to_string_pretty(&kernel)? + "\n"
    } else {
        kernel_text(&kernel)
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn build(args: BuildArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let note = |text: &str| progress.step(text);
    let cache = Cache::open()?;
    let agent = match args.agent {
        Some(agent) => agent,
        None => default_agent()?,
    };
    let image = GuestImage {
        agent,
        kernel: args.kernel.resolve(&cache, &note)?,
        modules: args
            .modules
            .into_iter()
            .filter(|name| !name.is_empty())
            .collect(),
        files: args.files,
        gzip: args.gzip,
    };
    let built = image.build(&cache, args.out.as_deref(), &note)?;
    progress.clear();
    let text = if args.json {
        serde_json::to_string_pretty(&built)? + "\n"
    } else {
        format!(
            "{}initramfs {} ({} bytes, {}; modules {})\n",
            kernel_text(&built.kernel),
            built.initramfs.display(),
            built.size_bytes,
            if built.written {
                "written"
            } else {
                "unchanged"
            },
            built.modules.join(" ")
        )
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn kernel_text(kernel: &KernelPackage) -> String {
    let modules = kernel
        .modules_dir
        .as_ref()
        .map_or(String::new(), |directory| {
            format!("modules   {}\n", directory.display())
        });
    format!(
        "kernel    {} ({})\n{modules}",
        kernel.vmlinuz.display(),
        kernel.version
    )
}
