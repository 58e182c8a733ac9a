//! What is known of a trial before it runs, and how trials are shared out
//! among several hosts.

use std::env;

use anyhow::{Context, Result, ensure};

use crate::shared::Standing;

/// What a trial needs of the machine.
#[derive(Clone, Copy)]
pub(crate) enum Needs {
    /// That guests can run.
    Guests,
    /// Nothing: it tests what happens before a guest runs.
    Nothing,
    /// Something of its own: why this machine does not have it.
    Machine(fn() -> Option<&'static str>),
}

/// A trial.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> Result<()>,
    pub(crate) needs: Needs,
    /// Seconds it takes in the virtual host, roughly, a standing guest's boot
    /// left out.
    pub(crate) seconds: u32,
    /// The guest that it shares with others.
    pub(crate) standing: Option<Standing>,
}

impl Case {
    /// A trial that boots its own guests.
    pub(crate) const fn new(name: &'static str, seconds: u32, run: fn() -> Result<()>) -> Self {
        Self {
            name,
            run,
            needs: Needs::Guests,
            seconds,
            standing: None,
        }
    }

    /// A trial on a guest that others use as well.
    pub(crate) const fn on(
        standing: Standing,
        name: &'static str,
        seconds: u32,
        run: fn() -> Result<()>,
    ) -> Self {
        Self {
            standing: Some(standing),
            ..Self::new(name, seconds, run)
        }
    }

    /// Whether it boots guests. The others run on the machine itself.
    fn has_guests(&self) -> bool {
        match self.needs {
            Needs::Guests => true,
            Needs::Nothing => false,
            Needs::Machine(_) => self.seconds > 0,
        }
    }

    /// The same with other needs.
    pub(crate) const fn needing(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }
}

/// A share of the trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shard {
    /// All of them.
    Whole,
    /// Those that need no guest.
    Guestless,
    /// One of several shares, counted from 0, of those with guests.
    Guests { index: usize, count: usize },
}

impl Shard {
    /// The share that `LMB_TEST_SHARD` names: `1/2` and `2/2` are two shares of
    /// the trials with guests, `0/2` is those without; all where it is not set.
    pub(crate) fn from_environment() -> Result<Self> {
        match env::var("LMB_TEST_SHARD") {
            Ok(text) => Self::parse(&text)
                .with_context(|| format!("LMB_TEST_SHARD is {text:?}, not like 1/2")),
            Err(_) => Ok(Self::Whole),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let (number, count) = text.split_once('/').context("no slash")?;
        let (number, count): (usize, usize) = (number.parse()?, count.parse()?);
        ensure!(number <= count, "out of range");
        Ok(match number.checked_sub(1) {
            Some(index) => Self::Guests { index, count },
            None => Self::Guestless,
        })
    }

    /// The trials of this share.
    pub(crate) fn take(self, cases: Vec<Case>) -> Vec<Case> {
        let (guestless, guests) = cases.into_iter().partition(|case| !case.has_guests());
        match self {
            Self::Whole => [guests, guestless].concat(),
            Self::Guestless => guestless,
            Self::Guests { index, count } => Self::share(guests, index, count),
        }
    }

    /// The longest first, each to the share with least work so far, those on
    /// one standing guest together.
    fn share(cases: Vec<Case>, index: usize, count: usize) -> Vec<Case> {
        const BOOT_SECONDS: u32 = 10;
        let mut groups: Vec<(u32, Vec<Case>)> = Vec::new();
        for case in cases {
            let together = groups.iter_mut().find(|(_, group)| {
                case.standing.is_some() && group.iter().any(|c| c.standing == case.standing)
            });
            match together {
                Some((seconds, group)) => {
                    *seconds += case.seconds;
                    group.push(case);
                }
                None => groups.push((case.seconds + BOOT_SECONDS, vec![case])),
            }
        }
        groups.sort_by_key(|(seconds, _)| std::cmp::Reverse(*seconds));
        let mut shares = vec![(0, Vec::new()); count];
        for (seconds, group) in groups {
            if let Some((load, share)) = shares.iter_mut().min_by_key(|(load, _)| *load) {
                *load += seconds;
                share.extend(group);
            }
        }
        shares.swap_remove(index).1
    }
}
