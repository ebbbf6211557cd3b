//! `getopt_long(3)` as glibc has it: options and arguments may be mixed, long options may be
//! shortened while they stay unique, `--` ends the options.

/// A long option.
pub(super) struct LongOption<K: 'static> {
    pub(super) name: &'static str,
    pub(super) has_value: bool,
    pub(super) key: K,
}

/// One option met; short ones come with the key they share with a long one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Met<K> {
    pub(super) key: K,
    /// Empty for an option that takes none.
    pub(super) value: String,
}

/// What an argument vector, without the program's name, comes to.
#[derive(Debug)]
pub(super) struct Parsed<K> {
    pub(super) options: Vec<Met<K>>,
    pub(super) arguments: Vec<String>,
}

/// Parse. `short` gives the key of a letter and whether it takes a value. With `posix`
/// (`POSIXLY_CORRECT`) the first argument ends the options.
pub(super) fn parse<K: Copy + PartialEq>(
    args: &[String],
    long: &'static [LongOption<K>],
    short: impl Fn(char) -> Option<(K, bool)>,
    posix: bool,
) -> Result<Parsed<K>, String> {
    let mut parsed = Parsed { options: Vec::new(), arguments: Vec::new() };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            break;
        } else if let Some(name) = arg.strip_prefix("--") {
            let (name, joined) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (name, None),
            };
            let option = find(long, name)?;
            let value = match (option.has_value, joined) {
                (true, Some(value)) => value.to_owned(),
                (true, None) => {
                    let missing = || format!("option --{} needs a value: none follows", option.name);
                    rest.next().cloned().ok_or_else(missing)?
                }
                (false, None) => String::new(),
                (false, Some(value)) => {
                    return Err(format!("option --{} takes no value: got {value:?}", option.name));
                }
            };
            parsed.options.push(Met { key: option.key, value });
        } else if arg.len() > 1 && arg.starts_with('-') {
            let mut letters = arg[1..].chars();
            while let Some(letter) = letters.next() {
                let (key, has_value) = short(letter).ok_or_else(|| format!("unknown option -{letter} in {arg:?}"))?;
                let value = match (has_value, letters.as_str()) {
                    (false, _) => String::new(),
                    (true, "") => {
                        rest.next().cloned().ok_or_else(|| format!("option -{letter} needs a value: none follows"))?
                    }
                    (true, joined) => joined.to_owned(),
                };
                parsed.options.push(Met { key, value });
                if has_value {
                    break;
                }
            }
        } else {
            parsed.arguments.push(arg.clone());
            if posix {
                break;
            }
        }
    }
    parsed.arguments.extend(rest.cloned());
    Ok(parsed)
}

fn find<K: Copy + PartialEq>(long: &'static [LongOption<K>], name: &str) -> Result<&'static LongOption<K>, String> {
    if let Some(exact) = long.iter().find(|o| o.name == name) {
        return Ok(exact);
    }
    let near: Vec<_> = long.iter().filter(|o| o.name.starts_with(name)).collect();
    match near[..] {
        [] => Err(format!("unknown option --{name}; `help` lists the options")),
        [only] => Ok(only),
        _ => {
            let names: Vec<_> = near.iter().map(|o| format!("--{}", o.name)).collect();
            Err(format!("option --{name} is ambiguous: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LONG: &[LongOption<u8>] = &[
        LongOption { name: "options", has_value: true, key: b'o' },
        LongOption { name: "columns", has_value: false, key: b'c' },
        LongOption { name: "count", has_value: true, key: b'n' },
        LongOption { name: "col", has_value: false, key: b'x' },
    ];

    fn run(line: &str, posix: bool) -> Result<(String, String), String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let short = |c| match c {
            'c' => Some((b'c', false)),
            'o' => Some((b'o', true)),
            _ => None,
        };
        let parsed = parse(&args, LONG, short, posix)?;
        let options = parsed.options.iter().map(|m| format!("{}{} ", char::from(m.key), m.value)).collect();
        Ok((options, parsed.arguments.join(" ")))
    }

    #[test]
    fn accepted() {
        let check = |line: &str, options: &str, arguments: &str| {
            assert_eq!(run(line, false), Ok((options.into(), arguments.into())), "{line}");
        };
        check("info -co name a", "c oname ", "info a");
        check("info -coname", "c oname ", "info");
        check("-c info -o name", "c oname ", "info");
        check("--opt=name,x a --colum", "oname,x c ", "a");
        check("--opt name", "oname ", "");
        check("--opt=", "o ", "");
        check("--col", "x ", "");
        check("-- -c", "", "-c");
        check("a - b", "", "a - b");
        check("-o -c", "o-c ", "");
        assert_eq!(run("-c a -c", true), Ok(("c ".into(), "a -c".into())));
    }

    #[test]
    fn refused() {
        let check = |line: &str, expect: &str| {
            let error = run(line, false).unwrap_err();
            assert!(error.contains(expect), "{line}: {error}");
        };
        check("--nonsense", "unknown option --nonsense");
        check("-Z", "unknown option -Z");
        check("-o", "-o needs a value");
        check("--options", "--options needs a value");
        check("--co", "ambiguous: --columns, --count, --col");
        check("--columns=1", "takes no value");
        check("-c=1", "unknown option -=");
    }
}
