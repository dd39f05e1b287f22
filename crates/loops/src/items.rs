//! What a file declares beside a function: functions for devices, structs and constants.

use std::collections::HashMap;

use syn::{Item, ItemFn};

/// The items that a `#[parallel]` function can use, by name. Names that occur twice are left out.
#[derive(Debug, Clone, Default)]
pub struct Items {
    pub(crate) functions: HashMap<String, ItemFn>,
    pub(crate) structs: HashMap<String, syn::ItemStruct>,
    pub(crate) constants: HashMap<String, syn::Type>,
    twice: Vec<String>,
}

impl Items {
    /// The items of a file that are visible from its function `name`: those of the same module.
    pub fn of_function(file: &syn::File, name: &str) -> Items {
        let mut items = Items::default();
        match module_of(&file.items, name) {
            Some(module) => items.add(module),
            None => items.add(&file.items),
        }
        items
    }

    /// Items of a list.
    pub fn of(list: &[Item]) -> Items {
        let mut items = Items::default();
        items.add(list);
        items
    }

    fn add(&mut self, list: &[Item]) {
        for item in list {
            let name = match item {
                Item::Fn(function) => function.sig.ident.to_string(),
                Item::Struct(structure) => structure.ident.to_string(),
                Item::Const(constant) => constant.ident.to_string(),
                _ => continue,
            };
            if self.knows(&name) {
                self.functions.remove(&name);
                self.twice.push(name);
                continue;
            }
            match item {
                Item::Fn(function) if is_marked(&function.attrs, "function") => {
                    self.functions.insert(name, function.clone());
                }
                Item::Struct(structure) => drop(self.structs.insert(name, structure.clone())),
                Item::Const(constant) => drop(self.constants.insert(name, (*constant.ty).clone())),
                _ => {}
            }
        }
    }

    fn knows(&self, name: &str) -> bool {
        self.functions.contains_key(name) || self.twice.iter().any(|known| known == name)
    }
}

/// Whether an attribute is `parallel` or `parallel::function`, under any path that ends so.
pub fn is_marked(attributes: &[syn::Attribute], last: &str) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().segments.last().is_some_and(|segment| segment.ident == last))
}

/// The items of the module that has the function.
fn module_of<'a>(items: &'a [Item], name: &str) -> Option<&'a [Item]> {
    let has = |item: &Item| matches!(item, Item::Fn(function) if function.sig.ident == name);
    if items.iter().any(has) {
        return Some(items);
    }
    items.iter().find_map(|item| match item {
        Item::Mod(module) => module_of(&module.content.as_ref()?.1, name),
        _ => None,
    })
}

impl Items {
    /// Adds a function that is marked, unless the file has it.
    pub fn add_function(&mut self, function: &ItemFn) {
        self.functions.entry(function.sig.ident.to_string()).or_insert_with(|| function.clone());
    }
}
