//! One source file as plain data: what the rules ask of it, read from its syntax tree and tokens.
//!
//! Every fact knows whether it stands in a `#[cfg(test)]` item. A macro's body has no syntax tree,
//! so names come from the tokens, where it looks like any other code.

use proc_macro2::{Spacing, TokenStream, TokenTree};
use std::ops::RangeInclusive;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// One file.
pub(crate) struct Source {
    /// Relative to the root of the repository, with `/`.
    pub path: String,
    pub lines: Vec<Line>,
    /// Paths and single identifiers, outside of `use` items, in the order of the file.
    pub names: Vec<Name>,
    pub uses: Vec<Use>,
    pub modules: Vec<Module>,
    pub types: Vec<Type>,
    pub functions: Vec<Function>,
    pub docs: Vec<Doc>,
    /// Lines of `let (a, b) = (x, y)` and of such assignments.
    pub tuple_bindings: Vec<usize>,
    pub has_module_doc: bool,
}

/// One line.
pub(crate) struct Line {
    pub text: String,
    /// Part of a `#[cfg(test)]` item.
    pub is_test: bool,
    /// Has a token that is no doc comment.
    pub is_code: bool,
    /// A literal begins before column `WIDTH_MAX` and ends behind it.
    pub has_wide_literal: bool,
    /// What follows `//`, if that is no doc comment.
    pub comment: Option<String>,
}

/// `a::b::c`, or one identifier.
pub(crate) struct Name {
    pub path: String,
    pub line: usize,
    /// Inline modules around it.
    pub inside: Vec<String>,
    /// A method or a field.
    pub is_member: bool,
}

/// One path that a `use` item brings in.
pub(crate) struct Use {
    pub path: String,
    /// What the path is called here; `*` for all that is in it.
    pub alias: String,
    pub line: usize,
    pub inside: Vec<String>,
    pub is_public: bool,
}

/// One `mod` item.
pub(crate) struct Module {
    pub name: String,
    pub line: usize,
    pub inside: Vec<String>,
    /// From a `#[path]` attribute.
    pub file: Option<String>,
    pub is_inline: bool,
    pub is_test: bool,
}

/// A struct, enum, union, trait or type alias at module level.
pub(crate) struct Type {
    pub name: String,
    pub line: usize,
    /// Fields of a struct, 0 for the rest.
    pub field_count: usize,
    pub is_struct: bool,
}

/// A function with a body.
pub(crate) struct Function {
    pub name: String,
    pub lines: RangeInclusive<usize>,
    /// Parameters that are taken apart as a tuple.
    pub tuple_count: usize,
}

/// One doc comment, over all its lines.
pub(crate) struct Doc {
    pub line: usize,
    pub text: String,
    pub word_count: usize,
}

/// Columns of a line, comments included.
pub(crate) const WIDTH_MAX: usize = 100;

impl Source {
    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, String> {
        let fault =
            |at: proc_macro2::LineColumn, error: String| format!("{path}:{}: {error}", at.line);
        let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
            fault(error.span().start(), error.to_string())
        })?;
        let file: syn::File = syn::parse2(tokens.clone())
            .map_err(|error| fault(error.span().start(), error.to_string()))?;
        let mut found = Found::default();
        found.visit_file(&file);
        let mut lexed = Lexed::new(text);
        lexed.mark(tokens.clone());
        lexed.name(tokens);
        for name in &mut lexed.names {
            name.inside = found.inside(name.line);
        }
        let (mut lines, names) = lexed.into_parts();
        for line in found.test_lines.into_iter().flatten() {
            if let Some(line) = lines.get_mut(line - 1) {
                line.is_test = true;
            }
        }
        Ok(Self {
            path: path.to_owned(),
            lines,
            names,
            uses: found.uses,
            modules: found.modules,
            types: found.types,
            functions: found.functions,
            docs: found.docs,
            tuple_bindings: found.tuple_bindings,
            has_module_doc: file.attrs.iter().any(|attribute| doc_text(attribute).is_some()),
        })
    }

    /// Lines count from 1.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.lines.get(line.wrapping_sub(1)).is_some_and(|line| line.is_test)
    }
}

/// What the syntax tree tells.
#[derive(Default)]
struct Found {
    uses: Vec<Use>,
    modules: Vec<Module>,
    types: Vec<Type>,
    functions: Vec<Function>,
    docs: Vec<Doc>,
    tuple_bindings: Vec<usize>,
    test_lines: Vec<RangeInclusive<usize>>,
    /// Inline modules and where they stand.
    inline: Vec<(RangeInclusive<usize>, Vec<String>)>,
    /// Those around the node that is visited.
    around: Vec<String>,
    function_depth: usize,
    /// Line and style of the doc comment that the next line may go on.
    doc_end: (usize, bool),
}

impl Found {
    fn inside(&self, line: usize) -> Vec<String> {
        let around = self.inline.iter().filter(|(lines, _)| lines.contains(&line));
        around
            .max_by_key(|(_, names)| names.len())
            .map_or_else(Vec::new, |(_, names)| names.clone())
    }

    /// Notes the item's lines if it is for tests only.
    fn mark(&mut self, attributes: &[syn::Attribute], item: &impl Spanned) {
        if attributes.iter().any(is_test) {
            let span = item.span();
            self.test_lines.push(span.start().line..=span.end().line);
        }
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let is_tuple = |input: &&syn::FnArg| match input {
            syn::FnArg::Typed(typed) => matches!(*typed.pat, syn::Pat::Tuple(_)),
            syn::FnArg::Receiver(_) => false,
        };
        let first = signature.fn_token.span.start().line;
        self.functions.push(Function {
            name: signature.ident.to_string(),
            lines: first..=body.brace_token.span.close().end().line,
            tuple_count: signature.inputs.iter().filter(is_tuple).count(),
        });
    }

    fn define(&mut self, name: &syn::Ident, fields: Option<&syn::Fields>) {
        if self.function_depth == 0 {
            self.types.push(Type {
                name: name.to_string(),
                line: name.span().start().line,
                field_count: fields.map_or(0, syn::Fields::len),
                is_struct: fields.is_some(),
            });
        }
    }

    fn bring_in(&mut self, item: &syn::ItemUse, tree: &syn::UseTree, before: &str) {
        let join = |name: &syn::Ident| {
            if before.is_empty() { name.to_string() } else { format!("{before}::{name}") }
        };
        let (path, alias, line) = match tree {
            syn::UseTree::Path(part) => return self.bring_in(item, &part.tree, &join(&part.ident)),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|part| self.bring_in(item, part, before));
            }
            syn::UseTree::Name(name) => {
                (join(&name.ident), name.ident.to_string(), name.ident.span().start().line)
            }
            syn::UseTree::Rename(name) => {
                (join(&name.ident), name.rename.to_string(), name.ident.span().start().line)
            }
            syn::UseTree::Glob(glob) => {
                (before.to_owned(), "*".to_owned(), glob.star_token.span.start().line)
            }
        };
        // `use a::b::{self}` brings in `b`.
        let (path, alias) = match path.strip_suffix("::self") {
            Some(module) if alias == "self" => {
                let name = module.rsplit("::").next().unwrap_or(module).to_owned();
                (module.to_owned(), name)
            }
            Some(module) => (module.to_owned(), alias),
            None => (path, alias),
        };
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.uses.push(Use { path, alias, line, inside: self.around.clone(), is_public });
    }
}

/// Visits below the item, with its lines marked if it is for tests only.
macro_rules! marks {
    ($($visit:ident: $node:ident),* $(,)?) => {$(
        fn $visit(&mut self, node: &'ast syn::$node) {
            self.mark(&node.attrs, node);
            visit::$visit(self, node);
        }
    )*};
}

impl<'ast> Visit<'ast> for Found {
    marks!(
        visit_item_const: ItemConst,
        visit_item_static: ItemStatic,
        visit_item_impl: ItemImpl,
        visit_item_macro: ItemMacro,
        visit_item_extern_crate: ItemExternCrate,
        visit_impl_item_const: ImplItemConst,
        visit_impl_item_type: ImplItemType,
        visit_field: Field,
        visit_field_value: FieldValue,
        visit_variant: Variant,
        visit_arm: Arm,
        visit_stmt_macro: StmtMacro,
    );

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let Some(text) = doc_text(attribute) else { return };
        let line = attribute.pound_token.span.start().line;
        let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
        let word_count = text.split_whitespace().filter(is_word).count();
        let is_inner = matches!(attribute.style, syn::AttrStyle::Inner(_));
        match self.docs.last_mut() {
            Some(doc) if self.doc_end == (line - 1, is_inner) => {
                doc.word_count += word_count;
                doc.text.push_str(&text);
            }
            _ => self.docs.push(Doc { line, text, word_count }),
        }
        self.doc_end = (line, is_inner);
    }

    fn visit_local(&mut self, node: &'ast syn::Local) {
        self.mark(&node.attrs, node);
        let pattern = match &node.pat {
            syn::Pat::Type(typed) => &*typed.pat,
            pattern => pattern,
        };
        let value = node.init.as_ref().filter(|init| init.diverge.is_none());
        if matches!(pattern, syn::Pat::Tuple(_))
            && value.is_some_and(|init| matches!(*init.expr, syn::Expr::Tuple(_)))
        {
            self.tuple_bindings.push(node.let_token.span.start().line);
        }
        visit::visit_local(self, node);
    }

    fn visit_expr_assign(&mut self, node: &'ast syn::ExprAssign) {
        if matches!((&*node.left, &*node.right), (syn::Expr::Tuple(_), syn::Expr::Tuple(_))) {
            self.tuple_bindings.push(node.eq_token.span.start().line);
        }
        visit::visit_expr_assign(self, node);
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        self.mark(&node.attrs, node);
        self.bring_in(node, &node.tree, "");
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        self.mark(&node.attrs, node);
        let name = node.ident.to_string();
        self.modules.push(Module {
            name: name.clone(),
            line: node.ident.span().start().line,
            inside: self.around.clone(),
            file: node.attrs.iter().find_map(path_attribute),
            is_inline: node.content.is_some(),
            is_test: node.attrs.iter().any(is_test),
        });
        self.around.push(name);
        if let Some((brace, _)) = &node.content {
            let lines = brace.span.open().start().line..=brace.span.close().end().line;
            self.inline.push((lines, self.around.clone()));
        }
        visit::visit_item_mod(self, node);
        self.around.pop();
    }

    fn visit_item_struct(&mut self, node: &'ast syn::ItemStruct) {
        self.mark(&node.attrs, node);
        self.define(&node.ident, Some(&node.fields));
        visit::visit_item_struct(self, node);
    }

    fn visit_item_enum(&mut self, node: &'ast syn::ItemEnum) {
        self.mark(&node.attrs, node);
        self.define(&node.ident, None);
        visit::visit_item_enum(self, node);
    }

    fn visit_item_union(&mut self, node: &'ast syn::ItemUnion) {
        self.mark(&node.attrs, node);
        self.define(&node.ident, None);
        visit::visit_item_union(self, node);
    }

    fn visit_item_type(&mut self, node: &'ast syn::ItemType) {
        self.mark(&node.attrs, node);
        self.define(&node.ident, None);
        visit::visit_item_type(self, node);
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        self.mark(&node.attrs, node);
        self.define(&node.ident, None);
        visit::visit_item_trait(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.mark(&node.attrs, node);
        self.function(&node.sig, &node.block);
        self.function_depth += 1;
        visit::visit_item_fn(self, node);
        self.function_depth -= 1;
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.mark(&node.attrs, node);
        self.function(&node.sig, &node.block);
        self.function_depth += 1;
        visit::visit_impl_item_fn(self, node);
        self.function_depth -= 1;
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        self.mark(&node.attrs, node);
        if let Some(body) = &node.default {
            self.function(&node.sig, body);
        }
        self.function_depth += 1;
        visit::visit_trait_item_fn(self, node);
        self.function_depth -= 1;
    }
}

/// `#[test]`, `#[cfg(test)]` and `#[cfg(all(test, …))]`.
fn is_test(attribute: &syn::Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && demands_test(list.tokens.clone())
}

fn demands_test(condition: TokenStream) -> bool {
    let parts: Vec<TokenTree> = condition.into_iter().collect();
    match parts.as_slice() {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "all" => group
            .stream()
            .into_iter()
            .any(|part| matches!(part, TokenTree::Ident(name) if name == "test")),
        _ => false,
    }
}

fn text_of<'a>(attribute: &'a syn::Attribute, name: &str) -> Option<&'a syn::LitStr> {
    let syn::Meta::NameValue(meta) = &attribute.meta else { return None };
    let syn::Expr::Lit(value) = &meta.value else { return None };
    let syn::Lit::Str(text) = &value.lit else { return None };
    meta.path.is_ident(name).then_some(text)
}

fn doc_text(attribute: &syn::Attribute) -> Option<String> {
    text_of(attribute, "doc").map(syn::LitStr::value)
}

fn path_attribute(attribute: &syn::Attribute) -> Option<String> {
    text_of(attribute, "path").map(syn::LitStr::value)
}

/// What the tokens tell.
struct Lexed<'a> {
    text: Vec<&'a str>,
    /// Column behind the last token of each line; `usize::MAX` inside a literal of several lines.
    ends: Vec<usize>,
    has_wide_literal: Vec<bool>,
    names: Vec<Name>,
}

impl<'a> Lexed<'a> {
    fn new(text: &'a str) -> Self {
        let text: Vec<&str> = text.lines().collect();
        let count = text.len();
        Self { text, ends: vec![0; count], has_wide_literal: vec![false; count], names: Vec::new() }
    }

    /// Is it the `#` that a doc comment is read as?
    fn is_doc(&self, tree: &TokenTree) -> bool {
        let TokenTree::Punct(punct) = tree else { return false };
        let start = punct.span().start();
        let line = self.text.get(start.line - 1).copied().unwrap_or_default();
        punct.as_char() == '#' && line.chars().nth(start.column) == Some('/')
    }

    /// Marks where code is.
    fn mark(&mut self, tokens: TokenStream) {
        let mut trees = tokens.into_iter();
        while let Some(tree) = trees.next() {
            if self.is_doc(&tree) {
                // `#`, then `!` of an inner one, then the brackets.
                while !matches!(trees.next(), Some(TokenTree::Group(_)) | None) {}
                continue;
            }
            match tree {
                TokenTree::Group(group) => {
                    self.mark_end(group.span_open().end());
                    self.mark(group.stream());
                    self.mark_end(group.span_close().end());
                }
                TokenTree::Literal(literal) => self.mark_literal(&literal),
                other => self.mark_end(other.span().end()),
            }
        }
    }

    fn mark_end(&mut self, end: proc_macro2::LineColumn) {
        if let Some(column) = self.ends.get_mut(end.line - 1) {
            *column = end.column.max(*column);
        }
    }

    fn mark_literal(&mut self, literal: &proc_macro2::Literal) {
        let start = literal.span().start();
        let end = literal.span().end();
        for line in start.line..end.line {
            self.ends[line - 1] = usize::MAX;
            self.has_wide_literal[line - 1] |= line > start.line || start.column < WIDTH_MAX;
        }
        self.mark_end(end);
        let begins_before = end.line > start.line || start.column < WIDTH_MAX;
        self.has_wide_literal[end.line - 1] |= begins_before && end.column > WIDTH_MAX;
    }

    /// Collects the names.
    fn name(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let punct = |at: usize| match trees.get(at) {
            Some(TokenTree::Punct(punct)) => Some(punct),
            _ => None,
        };
        let is_punct = |at: usize, sign: char| punct(at).is_some_and(|one| one.as_char() == sign);
        let is_joint = |at: usize| punct(at).is_some_and(|one| one.spacing() == Spacing::Joint);
        let mut at = 0;
        while let Some(tree) = trees.get(at) {
            match tree {
                TokenTree::Group(group) => self.name(group.stream()),
                TokenTree::Ident(first) if first == "use" && !is_punct(at + 1, '<') => {
                    while at < trees.len() && !is_punct(at, ';') {
                        at += 1;
                    }
                }
                TokenTree::Ident(first) => {
                    let line = first.span().start().line;
                    let is_member = at > 0 && is_punct(at - 1, '.');
                    let mut path = first.to_string();
                    while is_punct(at + 1, ':') && is_joint(at + 1) && is_punct(at + 2, ':') {
                        let Some(TokenTree::Ident(next)) = trees.get(at + 3) else { break };
                        path.push_str("::");
                        path.push_str(&next.to_string());
                        at += 3;
                    }
                    self.names.push(Name { path, line, inside: Vec::new(), is_member });
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn into_parts(self) -> (Vec<Line>, Vec<Name>) {
        let line = |(index, text): (usize, &&str)| {
            let end = self.ends[index];
            let rest: String = text.chars().skip(end).collect();
            let after = rest.trim_start().strip_prefix("//");
            let comment = after.filter(|after| end > 0 || !after.starts_with(['/', '!']));
            Line {
                text: (*text).to_owned(),
                is_test: false,
                is_code: end > 0,
                has_wide_literal: self.has_wide_literal[index],
                comment: comment.map(str::to_owned),
            }
        };
        (self.text.iter().enumerate().map(line).collect(), self.names)
    }
}
