//! Variables of a template as values that also print like Python's where the template engine
//! itself formats them: in `~` and in `'%s' | format(value)`.

use super::printing::numbers;
use super::printing::python::write_str;
use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Value};
use serde_json::Value as Json;
use std::fmt;
use std::sync::Arc;

/// A JSON value for a template.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Array(items) => wrapped(items.iter().map(from_json).collect()),
        Json::Object(fields) => {
            wrapped(fields.iter().map(|(key, value)| (key.as_str(), from_json(value))).collect())
        }
        Json::String(text) => numbers::read(text).unwrap_or_else(|| Value::from(text.as_str())),
        scalar => Value::from_serialize(scalar),
    }
}

fn wrapped(collection: Value) -> Value {
    match collection.as_object() {
        Some(object) => Value::from_object(Python(object.clone())),
        None => collection,
    }
}

/// A list or mapping of the template engine, except for its printed form.
#[derive(Debug)]
struct Python(DynObject);

impl Object for Python {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.0.repr()
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write_str(&Value::from_dyn_object(Arc::clone(self)), &mut text);
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::from_json;
    use minijinja::{Environment, context};

    #[test]
    fn reads_as_python_and_behaves_as_before() {
        let json = serde_json::json!({ "b": [1, true, null, {"x": "it's"}], "a": 1.5 });
        let environment = Environment::new();
        let render = |source: &str| {
            environment.render_str(source, context! { v => from_json(&json) }).unwrap()
        };
        assert_eq!(render("{{ '' ~ v }}"), "{'b': [1, True, None, {'x': \"it's\"}], 'a': 1.5}");
        assert_eq!(render("{{ '%s' | format(v.b) }}"), "[1, True, None, {'x': \"it's\"}]");
        let uses = "{{ v is mapping }},{{ v.b is sequence }},{{ v.b | length }},{{ v.b[1:] | length }},{{ v.b[-1].x }},\
                    {{ v.c is defined }},{{ 'a' in v }},{{ 1 in v.b }},{% for key, value in v | items %}{{ key }}{% endfor %}";
        assert_eq!(render(uses), "True,True,4,3,it's,False,True,True,ba");
    }
}
