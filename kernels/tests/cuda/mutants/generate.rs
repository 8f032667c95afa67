//! Mutants of a kernel: its PTX with one barrier, wait or predicate removed, or one predicate negated.

use sluice_kernels::cuda::Module;

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// A barrier of the block or of the warp is gone.
    NoBarrier,
    /// A wait for asynchronous copies is gone, or the end of a group of them.
    NoWait,
    /// A load or store whose value others change or see at any time becomes an ordinary one.
    NotVolatile,
    /// A guarded instruction is always executed.
    NoPredicate,
    /// A guarded instruction is executed where it was not, and the other way around.
    Negated,
}

impl Change {
    /// Its name in the list of survivors.
    fn name(self) -> &'static str {
        match self {
            Change::NoBarrier => "no-barrier",
            Change::NoWait => "no-wait",
            Change::NotVolatile => "not-volatile",
            Change::NoPredicate => "no-predicate",
            Change::Negated => "negated",
        }
    }
}

/// A kernel's part of the PTX of its module.
#[derive(Clone, Debug)]
pub struct KernelText {
    pub kernel: &'static str,
    /// Lines of the module, those of its other kernels empty: numbers of lines are those of the file.
    lines: Vec<&'static str>,
    /// Where the kernel's lines begin and end.
    body: std::ops::Range<usize>,
}

/// One changed line of a kernel.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// `KERNEL CHANGE FILE:LINE NUMBER`: the line of the source by the last `.loc`, and a number from 0 among the
    /// kernel's mutants with this change and line.
    pub name: String,
    /// Index of the changed line, and the line.
    at: usize,
    line: String,
}

impl KernelText {
    /// The kernels of a module.
    pub fn of(module: Module) -> Vec<KernelText> {
        let lines: Vec<&'static str> = module.ptx().lines().collect();
        let starts: Vec<_> =
            (0..lines.len()).filter(|at| lines[*at].starts_with(".visible .entry ")).collect();
        let end = |start: usize| start + lines[start..].iter().position(|line| *line == "}").unwrap() + 1;
        let bodies: Vec<_> = starts.iter().map(|start| *start..end(*start)).collect();
        let text = |body: &std::ops::Range<usize>| {
            let mut lines = lines.clone();
            for other in bodies.iter().filter(|other| *other != body) {
                lines[other.clone()].fill("");
            }
            let kernel = lines[body.start].split([' ', '(']).nth(2).unwrap();
            KernelText { kernel, lines, body: body.clone() }
        };
        bodies.iter().map(text).collect()
    }

    /// Every kernel of every module.
    pub fn all() -> Vec<KernelText> {
        Module::ALL.into_iter().flat_map(KernelText::of).collect()
    }

    /// All mutants in the order of the text.
    pub fn mutants(&self) -> Vec<Mutant> {
        let mut mutants: Vec<Mutant> = Vec::new();
        let mut source = String::new();
        for at in self.body.clone() {
            let line = self.lines[at].trim();
            if let Some(rest) = line.strip_prefix(".loc") {
                source = self.source(rest);
            }
            for (change, line) in changes(line) {
                let start = format!("{} {} {source} ", self.kernel, change.name());
                let number = mutants.iter().filter(|other| other.name.starts_with(&start)).count();
                mutants.push(Mutant { name: format!("{start}{number}"), at, line });
            }
        }
        mutants
    }

    /// `FILE:LINE` of a `.loc`; of an inlined function, its own line.
    fn source(&self, loc: &str) -> String {
        let mut words = loc.split_whitespace();
        let (file, line) = (words.next().unwrap(), words.next().unwrap());
        let named = format!(".file\t{file} \"");
        let name = self.lines.iter().find_map(|line| line.trim().strip_prefix(&named));
        format!("{}:{line}", name.expect("a file of the module").trim_end_matches('"'))
    }

    /// The kernel's PTX with the change.
    pub fn with(&self, mutant: &Mutant) -> String {
        self.with_lines(&[(mutant.at, &mutant.line)])
    }

    /// The first of the kernel's lines with `from`, and what it is with `to` in its place.
    pub fn replaced(&self, from: &str, to: &str) -> Option<(usize, String)> {
        let at = self.body.clone().find(|at| self.lines[*at].contains(from))?;
        Some((at, self.lines[at].replacen(from, to, 1)))
    }

    /// The kernel's PTX with other lines.
    pub fn with_lines(&self, changed: &[(usize, &str)]) -> String {
        let mut lines = self.lines.clone();
        for (at, line) in changed {
            lines[*at] = line;
        }
        lines.join("\n") + "\n"
    }
}

/// The changes of one line, and the line that each gives.
fn changes(line: &str) -> Vec<(Change, String)> {
    let instruction = line.split_whitespace().next().unwrap_or_default();
    let gone = |change| vec![(change, String::new())];
    if instruction.starts_with("bar.") {
        gone(Change::NoBarrier)
    } else if instruction.starts_with("cp.async.wait_") || instruction.starts_with("cp.async.commit_") {
        gone(Change::NoWait)
    } else if instruction.contains(".volatile") {
        vec![(Change::NotVolatile, line.replacen(".volatile", "", 1))]
    } else if let Some((guard, rest)) =
        line.strip_prefix('@').and_then(|rest| rest.split_once(char::is_whitespace))
    {
        let negated =
            guard.strip_prefix('!').map_or(format!("@!{guard} {rest}"), |guard| format!("@{guard} {rest}"));
        vec![(Change::NoPredicate, rest.to_owned()), (Change::Negated, negated)]
    } else {
        Vec::new()
    }
}

#[test]
fn each_barrier_wait_and_predicate_is_changed_and_nothing_else() {
    let changed = |line| changes(line).into_iter().map(|(_, line)| line).collect::<Vec<_>>();
    assert_eq!(changed("bar.sync \t0;"), [""]);
    assert_eq!(changed("cp.async.wait_group 1;"), [""]);
    assert_eq!(changed("ld.volatile.global.u64 \t%rd13, [%rd11];"), ["ld.global.u64 \t%rd13, [%rd11];"]);
    assert_eq!(changed("@%p1 bra \t$L__BB0_3;"), ["bra \t$L__BB0_3;", "@!%p1 bra \t$L__BB0_3;"]);
    assert!(changed("cp.async.cg.shared.global [%r1], [%rd2], 16, %r3;").is_empty());
    assert!(changed("ld.global.u64 \t%rd13, [%rd11];").is_empty());
}
