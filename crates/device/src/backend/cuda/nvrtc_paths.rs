//! The places where an NVRTC library may be: the system's search path, CUDA toolkits and Python packages.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Returns the libraries to try, in order: names for the system's search path first, then files.
pub(super) fn all() -> impl Iterator<Item = OsString> {
    let files = folders().into_iter().flat_map(|folder| libraries_in(&folder));
    names().into_iter().map(OsString::from).chain(files.map(PathBuf::into_os_string))
}

/// Returns the library's possible names in the system's search path, newest version first.
fn names() -> Vec<String> {
    if cfg!(windows) {
        let files = (11..=19).rev().map(|major| format!("nvrtc64_{major}0_0.dll"));
        return files.chain(["nvrtc64_112_0.dll".into()]).collect();
    }
    let versioned = (11..=19).rev().map(|major| format!("libnvrtc.so.{major}"));
    ["libnvrtc.so".into()].into_iter().chain(versioned).chain(["libnvrtc.so.11.2".into()]).collect()
}

/// Returns the NVRTC libraries in a folder, newest first.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = files_in(folder, |name| match cfg!(windows) {
        true => name.starts_with("nvrtc64_") && name.ends_with("_0.dll"),
        false => name == "libnvrtc.so" || name.starts_with("libnvrtc.so."),
    });
    files.sort();
    files.reverse();
    files
}

/// Returns the builtins libraries in the folder of an NVRTC library that is named by an absolute path.
pub(super) fn builtins_beside(library: &Path) -> Vec<PathBuf> {
    match library.parent() {
        Some(folder) if folder.is_absolute() => {
            files_in(folder, |name| name.starts_with("libnvrtc-builtins.so"))
        }
        _ => Vec::new(),
    }
}

fn files_in(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_wanted))
        .map(|entry| entry.path())
        .collect()
}

fn folders() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut folders = Vec::new();
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        folders.extend(["lib64", "lib", "bin", "bin/x64"].map(|name| toolkit.join(name)));
    }
    // `/usr/local/cuda` first: it is the one that the administrator chose.
    folders.extend(below(Path::new("/usr/local"), "cuda").into_iter().map(|toolkit| toolkit.join("lib64")));
    folders.extend(variable("CONDA_PREFIX").map(|conda| conda.join("lib")));
    let home = variable("HOME").map(|home| home.join(".local"));
    let python = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).chain(home);
    for root in python.chain(["/usr/local".into(), "/usr".into()]) {
        folders.push(root.join("Lib/site-packages/nvidia/cuda_nvrtc/bin"));
        for python in below(&root.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                folders.extend(below(&nvidia, "cu1").into_iter().rev().map(|toolkit| toolkit.join("lib")));
                folders.push(nvidia.join("cuda_nvrtc/lib"));
            }
        }
    }
    folders
}

/// Returns the entries of a folder whose names begin with `prefix`, sorted.
fn below(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn libraries_are_found_by_name_in_a_folder_newest_first_and_nothing_else_is() {
        if cfg!(windows) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names: Vec<_> = libraries_in(folder.path())
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["libnvrtc.so.13", "libnvrtc.so.12"]);
    }
}
