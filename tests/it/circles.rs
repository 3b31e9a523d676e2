//! The files of a crate do not import each other in a circle. A parent and its children may import each other, because
//! in Rust a child module sees what its parent has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The path of a module inside its crate. Empty: the root.
type Module = Vec<String>;

/// Crates that still have circles. In dq-http-server, `Api` is the state of all handlers: it contains the parts of all
/// handlers, and each handler gets the whole `Api`.
const TANGLED: [&str; 1] = ["src/roles/http_server"];

/// The folders of all crates below `src`.
fn crates(folder: &Path, found: &mut Vec<PathBuf>) {
    if folder.join("Cargo.toml").exists() {
        found.push(folder.to_owned());
    }
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            crates(&path, found);
        }
    }
}

/// The text of each module of a crate, without its tests.
fn modules(folder: &Path, at: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && !path.join("Cargo.toml").exists() {
            modules(&path, &[&at[..], &[name]].concat(), found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
            let is_root = matches!(name.as_str(), "lib" | "mod");
            found.insert(if is_root { at.clone() } else { [&at[..], &[name]].concat() }, code);
        }
    }
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn paths(tree: &str) -> Vec<String> {
    let Some((before, rest)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in inner.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(c);
    }
    let all = parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| paths(part));
    all.map(|path| format!("{}{path}", before.trim())).collect()
}

/// The modules that a module imports, without its parents and children.
fn imports(module: &Module, modules: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let code: Vec<&str> =
        modules[module].lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    let (code, mut found) = (code.join("\n"), BTreeSet::new());
    let statements = code.split(['\n', ' ']).collect::<Vec<_>>().join(" ");
    for statement in statements.split(" use ").skip(1) {
        for path in paths(statement.split(';').next().unwrap_or_default()) {
            let mut words = path.split("::").map(str::trim).peekable();
            let mut target = match words.peek() {
                Some(&"crate") => Module::new(),
                _ => module.clone(),
            };
            let is_own = matches!(words.peek(), Some(&("crate" | "self" | "super")));
            while matches!(words.peek(), Some(&("crate" | "self" | "super"))) {
                if words.next() == Some("super") {
                    target.pop();
                }
            }
            let begins = target.len();
            for word in words {
                target.push(word.to_owned());
                if !modules.contains_key(&target) {
                    target.pop();
                    break;
                }
            }
            if is_own || target.len() > begins {
                found.insert(target);
            }
        }
    }
    found.retain(|target| !target.starts_with(module) && !module.starts_with(target));
    found
}

/// Returns a circle, if there is one.
fn circle(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<String>> {
    fn visit<'a>(
        at: &'a Module,
        edges: &'a BTreeMap<Module, BTreeSet<Module>>,
        way: &mut Vec<&'a Module>,
        left: &mut BTreeSet<&'a Module>,
    ) -> Option<Vec<String>> {
        if let Some(begin) = way.iter().position(|module| *module == at) {
            return Some(way[begin..].iter().map(|module| module.join("::")).collect());
        }
        if left.contains(at) {
            return None;
        }
        way.push(at);
        let found = edges[at].iter().find_map(|next| visit(next, edges, way, left));
        way.pop();
        left.insert(at);
        found
    }
    let mut left = BTreeSet::new();
    edges.keys().find_map(|module| visit(module, edges, &mut Vec::new(), &mut left))
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let (root, mut folders) = (Path::new(env!("CARGO_MANIFEST_DIR")), Vec::new());
    crates(&root.join("src"), &mut folders);
    assert!(folders.len() > 10);
    for folder in folders {
        let mut texts = BTreeMap::new();
        modules(&folder, &Module::new(), &mut texts);
        let edges: BTreeMap<_, _> =
            texts.keys().map(|module| (module.clone(), imports(module, &texts))).collect();
        let is_tangled = TANGLED.iter().any(|name| folder == root.join(name));
        let found = circle(&edges);
        assert_eq!(found.is_some(), is_tangled, "{}: {found:?}", folder.display());
    }
}
