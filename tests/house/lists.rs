//! Lists of all variants of an enum. The compiler does not notice a variant that a list lacks: a
//! loop over the list skips the variant, and an array with the list's length has no place for it.

use syn::{Expr, ImplItem, Item, ItemEnum, ItemImpl, Type};

/// Name of the constant with all variants.
const LIST: &str = "ALL";

/// Lists of the file that are not all variants, in the order of their declaration.
pub(crate) fn incomplete_lists(path: &str, text: &str) -> Vec<String> {
    let Ok(file) = syn::parse_file(text) else { return vec![format!("{path}: does not parse")] };
    let enums = file.items.iter().filter_map(|item| match item {
        Item::Enum(found) => Some(found),
        _ => None,
    });
    enums
        .filter_map(|found| fault_of(found, &file.items))
        .map(|name| format!("{path}: {name}"))
        .collect()
}

fn fault_of(found: &ItemEnum, items: &[Item]) -> Option<String> {
    let is_own = |own: &&ItemImpl| {
        own.trait_.is_none()
            && matches!(&*own.self_ty, Type::Path(own) if own.path.is_ident(&found.ident))
    };
    let impls = items.iter().filter_map(|item| match item {
        Item::Impl(own) => Some(own),
        _ => None,
    });
    let mut members = impls.filter(is_own).flat_map(|own| &own.items);
    let list = members.find_map(|member| match member {
        ImplItem::Const(list) if list.ident == LIST => Some(&list.expr),
        _ => None,
    })?;
    let listed = variants(list);
    let declared: Vec<String> = found.variants.iter().map(|one| one.ident.to_string()).collect();
    let is_whole = listed.is_empty() || listed == declared;
    (!is_whole).then(|| format!("`{}::{LIST}` has {listed:?}, not {declared:?}", found.ident))
}

/// Variants `Self::X` that are elements of an array, or parts of elements that are tuples.
fn variants(list: &Expr) -> Vec<String> {
    let elements = match list {
        Expr::Array(array) => &array.elems,
        Expr::Reference(array) => return variants(&array.expr),
        _ => return Vec::new(),
    };
    elements.iter().filter_map(variant).collect()
}

fn variant(element: &Expr) -> Option<String> {
    match element {
        Expr::Tuple(parts) => parts.elems.iter().find_map(variant),
        Expr::Path(path) if path.path.segments.first()?.ident == "Self" => {
            path.path.segments.last().map(|name| name.ident.to_string())
        }
        _ => None,
    }
}

#[test]
fn a_list_without_a_variant_is_found() {
    let faults = |list: &str| {
        incomplete_lists("x.rs", &format!("enum E {{ A, B }} impl E {{ const ALL: X = {list}; }}"))
    };
    for whole in ["[Self::A, Self::B]", "&[(1, Self::A), (2, Self::B)]", "[f(0)]", "[3, 4]"] {
        assert_eq!(faults(whole), [""; 0], "{whole}");
    }
    for odd in ["[Self::A]", "[Self::B, Self::A]", "&[(Self::A, 1)]", "[Self::A, Self::A]"] {
        assert_eq!(faults(odd).len(), 1, "{odd}");
    }
}
