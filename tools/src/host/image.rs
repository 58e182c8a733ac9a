//! The host's initramfs: busybox, the modules of KVM, the files and the
//! command that were asked for, and an `/init` that runs it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};

use super::detect::HOST_KIND_VARIABLE;
use super::{Clock, HostRun, Threads};
use crate::guest;
use crate::initramfs::Initramfs;
use crate::packages::{self, Cache};

/// The modules that make `/dev/kvm` on an emulated AMD processor.
const MODULES: [&str; 1] = ["kvm_amd"];

/// What is needed beside them where the command has an input.
const INPUT_MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];

/// `/init` of the host. Its own standard output is the console; file
/// descriptor 3 is the status port, 4 the command's output, 5 its input. The
/// port of the input comes by and by: its device appears, then it is connected,
/// which the writing of one byte waits for. The command writes to a pipe, since programs draw for people where they see a terminal. When it has
/// ended, whatever it left running is killed, so that the pipe ends and all
/// that was in it goes out; `stty` waits until the port has sent it.
const INIT: &str = r#"#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/hugepages
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777,size=90% tmp /tmp
exec 3>/dev/ttyS2 4>/dev/ttyS1
stty -F /dev/ttyS2 115200 raw -echo
stty -F /dev/ttyS1 115200 raw -echo
end() { poweroff -f; }
fail() { echo "failed $*" >&3; stty -F /dev/ttyS2 raw; end; }
while read -r module; do
  text=$(insmod "/lib/modules/$module" 2>&1) || fail "the module $module does not load: $text"
done < /lib/modules/order
[ -c /dev/kvm ] || fail "there is no /dev/kvm after loading KVM's modules"
while read -r kb want; do
  got=$(cat "/sys/kernel/mm/hugepages/hugepages-${kb}kB/nr_hugepages")
  [ "$got" = "$want" ] || fail "only $got of $want huge pages of $kb kB could be had: give more --memory"
done < /lmb/hugepages
hostname lmb-host
ip link set lo up
if [ -e /lmb/input ]; then
  tries=0
  until port=$(ls /dev/vport* 2>/dev/null); do
    tries=$((tries + 1))
    [ "$tries" -le 100 ] || fail "the port of the command's input does not appear"
    sleep 0.1
  done
  exec 5<>"$port"
  echo >&5
else
  exec 5</dev/null
fi
echo ready >&3
mkfifo /lmb/output
cat </lmb/output >&4 3>&- 5<&- &
cat=$!
sh /lmb/command <&5 >/lmb/output 2>&1 3>&- 4>&- 5<&-
code=$?
for round in 1 2; do
  for process in /proc/[0-9]*; do
    process=${process#/proc/}
    [ "$process" = 1 ] || [ "$process" = "$cat" ] || kill -9 "$process"
  done
done 2>/dev/null
wait "$cat"
stty -F /dev/ttyS1 raw
echo "exit $code" >&3
stty -F /dev/ttyS2 raw
end
"#;

/// Builds the host's initramfs.
///
/// # Errors
/// When busybox, a module or a file is missing.
pub(super) fn build(
    run: &HostRun,
    cache: &Cache,
    qemu_version: &str,
    input: bool,
    note: &dyn Fn(&str),
) -> Result<Vec<u8>> {
    let mut archive = Initramfs::new();
    for directory in ["dev", "proc", "sys", "tmp", "root"] {
        archive.directory(directory)?;
    }
    archive.file("init", 0o755, INIT.as_bytes())?;
    archive.busybox(&packages::busybox(cache, note)?)?;
    let mut modules = MODULES.to_vec();
    if input {
        modules.extend(INPUT_MODULES);
        archive.file("lmb/input", 0o644, b"")?;
    }
    guest::add_modules(&mut archive, &run.kernel, &modules)
        .context("the host's kernel lacks KVM, or virtio's console for the command's input")?;
    archive.file("lmb/hugepages", 0o644, huge_pages(run).as_bytes())?;
    for file in &run.files {
        file.add_to(&mut archive)?;
    }
    archive.file("lmb/command", 0o644, &script(run, qemu_version))?;
    archive.finish()
}

fn huge_pages(run: &HostRun) -> String {
    [(2048, run.hugepages_2m), (1 << 20, run.hugepages_1g)]
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kb, count)| format!("{kb} {count}\n"))
        .collect()
}

/// What results of this run say of the host.
pub(super) fn host_kind(run: &HostRun, qemu_version: &str) -> String {
    let clock = match run.clock {
        Clock::Wall => "wall",
        Clock::Instructions => "instructions",
    };
    let threads = match run.threads() {
        Threads::Single => "single",
        Threads::Multi => "multi",
    };
    format!(
        "virtual KVM host (QEMU {qemu_version} TCG thread={threads}, clock={clock}, cpus={}, kernel {})",
        run.cpus, run.kernel.version
    )
}

/// The shell script that becomes the command.
fn script(run: &HostRun, qemu_version: &str) -> Vec<u8> {
    let mut text = b"cd /\n".to_vec();
    let mut export = |name: &str, value: &OsStr| {
        text.extend_from_slice(format!("export {name}=").as_bytes());
        quote(&mut text, value);
        text.push(b'\n');
    };
    export("PATH", OsStr::new("/bin:/sbin:/usr/bin:/usr/sbin"));
    export("HOME", OsStr::new("/root"));
    let kind = host_kind(run, qemu_version);
    export(HOST_KIND_VARIABLE, OsStr::new(&kind));
    for (name, value) in &run.environment {
        export(name, value);
    }
    text.extend_from_slice(b"exec");
    for word in &run.command {
        text.push(b' ');
        quote(&mut text, word);
    }
    text.push(b'\n');
    text
}

/// Adds `word` so that the shell takes it as one word, unchanged.
fn quote(text: &mut Vec<u8>, word: &OsStr) {
    text.push(b'\'');
    for byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend_from_slice(br"'\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use crate::packages::KernelPackage;

    fn host(command: Vec<OsString>) -> HostRun {
        let kernel = KernelPackage {
            package: None,
            package_version: None,
            version: "6.1.0-test".into(),
            vmlinuz: "/k".into(),
            modules_dir: None,
        };
        HostRun::new(kernel, "qemu".into(), command)
    }

    /// What this machine's shell makes of the script.
    fn shell(script: &[u8]) -> Vec<u8> {
        let output = Command::new("sh")
            .arg("-c")
            .arg(OsStr::from_bytes(script))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    #[test]
    fn the_command_sees_its_environment() {
        let mut run = host(vec![
            "sh".into(),
            "-c".into(),
            "echo \"$LMB_HOST_KIND|$EXTRA|$PWD\"".into(),
        ]);
        run.environment = vec![("EXTRA".into(), "a 'b' $c".into())];
        let text = String::from_utf8(shell(&script(&run, "7.2.22"))).unwrap();
        assert_eq!(
            text,
            "virtual KVM host (QEMU 7.2.22 TCG thread=single, clock=wall, cpus=1, kernel \
             6.1.0-test)|a 'b' $c|/\n"
        );
    }

    #[test]
    fn huge_pages_are_listed_when_asked_for() {
        let mut run = host(vec!["true".into()]);
        assert_eq!(huge_pages(&run), "");
        run.hugepages_2m = 3;
        run.hugepages_1g = 2;
        assert_eq!(huge_pages(&run), "2048 3\n1048576 2\n");
    }

    #[test]
    fn init_is_a_script_the_shell_can_parse() {
        let output = Command::new("sh")
            .args(["-n", "-c", INIT])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn words_reach_the_command_unchanged(
            words in prop::collection::vec(prop::collection::vec(1u8.., 0..12), 1..4),
        ) {
            let mut command: Vec<OsString> = vec!["printf".into(), "%s\\0".into()];
            command.extend(words.iter().cloned().map(OsString::from_vec));
            let mut wanted = Vec::new();
            for word in &words {
                wanted.extend_from_slice(word);
                wanted.push(0);
            }
            prop_assert_eq!(shell(&script(&host(command), "7.2")), wanted);
        }
    }
}
