//! The escape key of the console, as QEMU users know it: Ctrl-A, then
//! `x` ends the VM, `h` or `?` lists the keys, Ctrl-A or `a` sends a Ctrl-A.
//! Before any other key the Ctrl-A is sent too, so that a shell's
//! start-of-line key still works for who types on.
//!
//! States: plain ↔ escaped. Pure; bytes in, bytes and commands out.

const ESCAPE: u8 = 0x01;

/// What `Ctrl-A h` prints.
pub(super) const HELP: &str = "\
Ctrl-A x        end the VM
Ctrl-A h        these keys
Ctrl-A Ctrl-A   send a Ctrl-A
";

/// What the user asked lmb for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// End the VM.
    Quit,
    /// List the keys.
    Help,
}

/// The state of the escape key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Escape {
    escaped: bool,
}

impl Escape {
    /// Passes typed bytes on to `out`; the last command among them.
    /// Nothing after a quit is passed on.
    pub(super) fn feed(&mut self, typed: &[u8], out: &mut Vec<u8>) -> Option<Command> {
        let mut command = None;
        for &byte in typed {
            if !std::mem::replace(&mut self.escaped, false) {
                if byte == ESCAPE {
                    self.escaped = true;
                } else {
                    out.push(byte);
                }
                continue;
            }
            match byte {
                b'x' | b'X' => return Some(Command::Quit),
                b'h' | b'?' => command = Some(Command::Help),
                ESCAPE | b'a' => out.push(ESCAPE),
                other => out.extend([ESCAPE, other]),
            }
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(parts: &[&[u8]]) -> (Vec<u8>, Vec<Command>) {
        let mut escape = Escape::default();
        let mut out = Vec::new();
        let commands = parts
            .iter()
            .filter_map(|part| escape.feed(part, &mut out))
            .collect();
        (out, commands)
    }

    #[test]
    fn the_keys() {
        assert_eq!(feed(&[b"ls\n"]), (b"ls\n".to_vec(), vec![]));
        assert_eq!(feed(&[b"a\x01xb"]), (b"a".to_vec(), vec![Command::Quit]));
        assert_eq!(feed(&[b"\x01", b"x"]), (vec![], vec![Command::Quit]));
        assert_eq!(feed(&[b"\x01h."]), (b".".to_vec(), vec![Command::Help]));
        assert_eq!(feed(&[b"\x01\x01\x01a"]), (vec![1, 1], vec![]));
        assert_eq!(feed(&[b"\x01", b"ls"]), (b"\x01ls".to_vec(), vec![]));
    }

    proptest! {
        #[test]
        fn the_cut_between_reads_does_not_matter(
            typed in proptest::collection::vec(prop_oneof![Just(1u8), Just(b'a'), Just(b'z')], 0..40),
            cut in 0usize..40,
        ) {
            let (head, tail) = typed.split_at(cut.min(typed.len()));
            prop_assert_eq!(feed(&[&typed]), feed(&[head, tail]));
        }
    }
}
