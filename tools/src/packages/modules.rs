//! The modules of one kernel: finding them, and putting them into load order.
//!
//! A package's `modules.dep` is made when it is installed; one that was only
//! unpacked has none, so the order comes from the modules' own `depends=`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{compression, modinfo};

/// One module, ready to be given to `insmod`.
#[derive(Clone, Debug)]
pub struct Module {
    /// The name as the kernel writes it, with `_`.
    pub name: String,
    /// File name, decompressed: `virtio_mem.ko`.
    pub file_name: String,
    /// The ELF object, decompressed.
    pub data: Vec<u8>,
}

/// The modules under one `lib/modules/VERSION` directory.
#[derive(Debug)]
pub struct ModuleTree {
    root: PathBuf,
    files: HashMap<String, PathBuf>,
    builtin: HashSet<String>,
}

impl ModuleTree {
    /// Looks through `root`, a `lib/modules/VERSION` directory.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn open(root: &Path) -> Result<ModuleTree> {
        let mut files = HashMap::new();
        collect(root, &mut files)
            .with_context(|| format!("cannot look for kernel modules in {}", root.display()))?;
        let list = root.join("modules.builtin");
        let builtin = match fs::read_to_string(&list) {
            Ok(text) => text.lines().filter_map(module_name).collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => HashSet::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", list.display()));
            }
        };
        Ok(ModuleTree {
            root: root.to_owned(),
            files,
            builtin,
        })
    }

    /// The wanted modules and all they depend on, each after what it needs.
    /// What the kernel has built in is left out. Names may be written with
    /// `-` or `_`.
    ///
    /// # Errors
    /// When a module is missing, damaged, or depends on itself.
    pub fn load_order(&self, wanted: &[impl AsRef<str>]) -> Result<Vec<Module>> {
        let mut walk = Walk {
            tree: self,
            open: Vec::new(),
            done: HashSet::new(),
            order: Vec::new(),
        };
        for name in wanted {
            walk.visit(&modinfo::normalize(name.as_ref()))?;
        }
        Ok(walk.order)
    }

    fn load(&self, name: &str) -> Result<Module> {
        let Some(path) = self.files.get(name) else {
            bail!(
                "the kernel module {name} is neither under {} nor built in",
                self.root.display()
            );
        };
        let file_name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let data = compression::decompress(&file_name, &data)
            .with_context(|| format!("cannot decompress {}", path.display()))?;
        Ok(Module {
            name: name.to_owned(),
            file_name: format!("{name}.ko"),
            data,
        })
    }
}

/// A depth-first walk over `depends=`.
struct Walk<'a> {
    tree: &'a ModuleTree,
    open: Vec<String>,
    done: HashSet<String>,
    order: Vec<Module>,
}

impl Walk<'_> {
    fn visit(&mut self, name: &str) -> Result<()> {
        if self.done.contains(name) || self.tree.builtin.contains(name) {
            return Ok(());
        }
        if self.open.iter().any(|open| open == name) {
            bail!(
                "the kernel module {name} depends on itself by way of {}",
                self.open.join(", ")
            );
        }
        let module = self.tree.load(name)?;
        let depends = modinfo::depends(&module.data)
            .with_context(|| format!("the kernel module {name} is unusable"))?;
        self.open.push(name.to_owned());
        for dependency in &depends {
            self.visit(dependency)?;
        }
        self.open.pop();
        self.done.insert(name.to_owned());
        self.order.push(module);
        Ok(())
    }
}

fn collect(directory: &Path, files: &mut HashMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Not followed through links: an installed kernel has `build` and
        // `source`, which lead out of the tree.
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else if let Some(name) = module_name(&entry.file_name().to_string_lossy()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// `kernel/drivers/virtio/virtio-mem.ko.xz` is the module `virtio_mem`.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let (stem, rest) = file.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".zst" | ".gz").then(|| modinfo::normalize(stem))
}

#[cfg(test)]
#[path = "modules_tests.rs"]
mod tests;
