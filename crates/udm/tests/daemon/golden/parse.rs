//! Reading a golden (`tests/goldens/dmsetup/README.md`).

/// What a step does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// A command line.
    Command(String),
    /// Something else: its word and its argument.
    Other(String, String),
}

/// A step and what it came to in the recording.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) act: Act,
    pub(crate) input: Vec<String>,
    pub(crate) stdout: String,
    /// None when it was not recorded.
    pub(crate) code: Option<i32>,
    pub(crate) compare_stdout: bool,
    pub(crate) compare_code: bool,
}

pub(crate) fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l)) {
        let Some(kind) = line.chars().next().filter(|c| *c != '#') else { continue };
        let rest = line.get(2..).unwrap_or_default();
        if let '$' | '@' = kind {
            let act = match kind {
                '$' => Act::Command(rest.to_owned()),
                _ => rest
                    .split_once(' ')
                    .map(|(word, name)| Act::Other(word.into(), name.into()))
                    .ok_or_else(|| format!("line {number}: expected a name after {rest:?}"))?,
            };
            let (input, stdout) = (Vec::new(), String::new());
            steps.push(Step { line: number, act, input, stdout, code: None, compare_stdout: true, compare_code: true });
            continue;
        }
        let step = steps.last_mut().ok_or_else(|| format!("line {number}: no step has begun"))?;
        match kind {
            '<' => step.input.push(rest.to_owned()),
            '|' => step.stdout += &format!("{rest}\n"),
            '\\' => drop(step.stdout.pop()),
            '?' => step.code = Some(rest.parse().map_err(|_| format!("line {number}: {rest:?} is no exit code"))?),
            '!' | 'k' => {}
            '~' => match rest.split_once(':').map(|(what, _)| what) {
                Some("stdout") => step.compare_stdout = false,
                Some("step") => (step.compare_stdout, step.compare_code) = (false, false),
                Some("stderr") => {}
                _ => return Err(format!("line {number}: {rest:?} is not understood")),
            },
            other => return Err(format!("line {number}: a line cannot begin with {other:?}")),
        }
    }
    Ok(steps)
}

/// A command line as words: `'…'` and `"…"` are taken as they stand.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}
