//! Errors of `ssh` and of the shell on the other machine: what is wrong, and what to do about it.

use super::Ending;

/// The status of a shell for a program that it cannot find.
const NOT_FOUND: i32 = 127;

/// The status of a shell for a program that it may not execute.
const NOT_EXECUTABLE: i32 = 126;

/// Which words the explanations use for a machine.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// The command that logs in there.
    pub(super) login: String,
    /// The host as the file of known hosts has it.
    pub(super) host: String,
    /// What to do if the program of the worker is not there.
    pub(super) if_missing: String,
}

/// Returns a sentence that says what is wrong and what to do, and the words of `ssh` or of the shell.
pub(super) fn explain(names: &Names, ending: &Ending) -> Option<String> {
    let Names { login, host, if_missing } = names;
    let find = |texts: &[&str]| {
        let has = |line: &&String| texts.iter().any(|text| line.contains(text));
        ending.lines.iter().rfind(has).map(String::as_str)
    };
    let find_start = |texts: &[&str]| {
        let has = |line: &&String| texts.iter().any(|text| line.starts_with(text));
        ending.lines.iter().rfind(has).map(String::as_str)
    };
    let is_missing = |line: &str| line.contains("not found") || line.contains("No such file");
    let (line, advice) = if let Some(line) = find(&["REMOTE HOST IDENTIFICATION HAS CHANGED"]) {
        // `ssh` names the file with the old key.
        let removal = find(&["ssh-keygen -f"]).map_or(format!("ssh-keygen -R {host}"), str::to_owned);
        let advice = format!(
            "its host key has changed: if the machine was set up anew, remove the old key with `{removal}` and accept the \
             new one with `{login}`; if not, this may be another machine"
        );
        (line.trim_matches(|c| c == '@' || c == ' '), advice)
    } else if let Some(line) = find(&["Host key verification failed"]) {
        let advice = format!(
            "its host key is unknown: run `{login}` once, compare the fingerprint with that of the machine, and accept it"
        );
        (line, advice)
    } else if let Some(line) = find(&["Permission denied ("]) {
        let advice = format!(
            "it refuses your key: make `{login}` work without a password, with a key that it accepts (`ssh-copy-id`) and \
             that needs no passphrase or is in your agent (`ssh-add`)"
        );
        (line, advice)
    } else if let Some(line) = find(&["Could not resolve hostname"]) {
        (
            line,
            "its name is unknown: correct it, or give its address in hosts.toml or in ~/.ssh/config".into(),
        )
    } else if let Some(line) = find(&["Connection refused"]) {
        (line, "it runs no SSH server on that port: start the server, or give the right port".into())
    } else if let Some(line) = find(&["timed out", "No route to host", "Network is unreachable"]) {
        (line, format!("it does not answer: check with `{login}` that it is on and can be reached"))
    } else if let Some(line) = find(&["No space left on device", "Disk quota exceeded"]) {
        (line, "its disk is full: free some space there".into())
    } else if let Some(line) = find_start(&["mkdir: ", "chmod: ", "mktemp: "]) {
        let advice = "its cache folder cannot be written: make ~/.cache/evener there your own, or set XDG_CACHE_HOME there";
        (line, advice.into())
    } else if let Some(line) = find(&["Exec format error", "cannot execute binary", "GLIBC_"]) {
        (line, "its `evener` is for another kind of machine: build one there".into())
    } else if let Some(line) = find(&["unrecognized subcommand", "unexpected argument"]) {
        (line, format!("its `evener` is another version: {if_missing}"))
    } else {
        let Some(line) = ending.lines.last().map(String::as_str) else {
            // It was ended because nothing came any more.
            return ending.code.is_none().then(|| format!("check with `{login}` that it answers"));
        };
        match ending.code {
            Some(NOT_FOUND) => (line, format!("it has no `evener`: {if_missing}")),
            Some(NOT_EXECUTABLE) => (line, not_executable()),
            None | Some(255) => return Some(line.to_owned()),
            _ if is_missing(line) => (line, format!("it has no `evener`: {if_missing}")),
            _ if line.contains("Permission denied") => (line, not_executable()),
            _ => return Some(line.to_owned()),
        }
    };
    Some(format!("{advice} ({})", line.trim_end_matches('.')))
}

fn not_executable() -> String {
    "its `evener` may not be executed: run `chmod +x` on it there, or name another one in hosts.toml".into()
}

#[cfg(test)]
mod test {
    use super::*;

    fn explained(lines: &[&str], code: i32) -> String {
        let names = Names {
            login: "ssh -p 2222 alice@lab3".into(),
            host: "lab3".into(),
            if_missing: "run `evener hosts install lab3`".into(),
        };
        let lines = lines.iter().map(|&line| line.to_owned()).collect();
        explain(&names, &Ending { lines, code: Some(code), ..Ending::default() }).unwrap()
    }

    #[test]
    fn each_error_comes_with_what_to_do() {
        let changed = [
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
            "ssh-keygen -f \"/home/alice/.ssh/known_hosts\" -R \"lab3\"",
            "Host key verification failed.",
        ];
        let cases: [(&[&str], i32, &str); 15] = [
            (&changed, 255, "`ssh-keygen -f \"/home/alice/.ssh/known_hosts\" -R \"lab3\"`"),
            (&["Host key verification failed."], 255, "run `ssh -p 2222 alice@lab3` once"),
            (&["alice@lab3: Permission denied (publickey)."], 255, "`ssh-copy-id`"),
            (&["ssh: Could not resolve hostname lab3: Name or service not known"], 255, "correct it"),
            (&["ssh: connect to host lab3 port 2222: Connection refused"], 255, "start the server"),
            (&["Connection timed out during banner exchange"], 255, "it does not answer"),
            (&["bash: line 1: evener: command not found"], 127, "run `evener hosts install lab3`"),
            (&["fish: Unbekannter Befehl: evener"], 127, "run `evener hosts install lab3`"),
            (&["bash: line 1: /opt/evener: Permission denied"], 126, "run `chmod +x`"),
            (&["bash: exec: /opt/evener: cannot execute: Permission denied"], 126, "run `chmod +x`"),
            (&["bash: /opt/evener: cannot execute binary file: Exec format error"], 126, "another kind"),
            (&["error: unrecognized subcommand 'worker'", "For more information"], 2, "another version"),
            (&["head: error writing: No space left on device"], 1, "free some space"),
            (&["mktemp: failed to create file via template: No space left on device"], 1, "free some space"),
            (&["mkdir: cannot create directory '/home/alice/.cache': Permission denied"], 1, "cache folder"),
        ];
        for (lines, code, advice) in cases {
            let text = explained(lines, code);
            assert!(text.contains(advice), "`{advice}` is not in: {text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn other_words_are_passed_on() {
        assert_eq!(explained(&["Welcome", "the node is reserved"], 1), "the node is reserved");
        let names = Names { login: "ssh lab3".into(), host: String::new(), if_missing: String::new() };
        assert_eq!(explain(&names, &Ending { code: Some(1), ..Ending::default() }), None);
        let silent = explain(&names, &Ending::default()).unwrap();
        assert!(silent.contains("`ssh lab3`"), "{silent}");
    }
}
